//! The layout of an area. The page `docs/spec/log.md` shows it as a picture.
//!
//! 1. All integers are little endian. Four superblock copies of 4096 bytes, then segments of equal
//!    size.
//! 2. Generation `g` of the superblock is written to the copies `2 * (g % 2)` and `2 * (g % 2) +
//!    1`. So an update never touches the generation it replaces, and one rotten copy costs nothing.
//! 3. A record is a [`RecordHeader`] and its payload, padded to 8 bytes. Its CRC32C covers
//!    everything after the checksum field. It starts from a seed made of the area's identity and
//!    the record's own offset. So a record of another owner, or one that landed in the wrong place,
//!    does not validate.
//! 4. `stream` is unique to each run of the log (its epoch) and to each snapshot attempt, and
//!    `sequence` never repeats within a stream. So records of an earlier lap do not validate
//!    either.

use sietch_disk::superblock_copies::{self, CopyDamage};
use sietch_structures::{crc32c, crc32c_from};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::limits::{DATA_START, INDEX_BYTES, MAX_RUNS, MIN_SEGMENTS, SEGMENT_RANGE, SUPERBLOCK};

/// Version of the queue's records.
pub(crate) const QUEUE_VERSION: u32 = 1;
/// Version of the map's records.
pub(crate) const MAP_VERSION: u32 = 1;

/// Version of the format that this code writes and reads.
pub const VERSION: u32 = 1;

const SUPERBLOCK_MAGIC: u64 = u64::from_le_bytes(*b"SIETCHLG");
const RECORD_MAGIC: u32 = u32::from_le_bytes(*b"SREC");

/// Bytes of a record's header.
pub const HEADER: usize = size_of::<RecordHeader>();

/// A record starts at a multiple of this many bytes.
pub(crate) const ALIGN: usize = 8;

/// Payload of a log: application data.
pub(crate) const KIND_LOG: u8 = 1;
/// Payload of a snapshot.
pub(crate) const KIND_SNAPSHOT: u8 = 2;
/// Names the segment in which the stream continues; the payload is its number, 4 bytes.
pub(crate) const KIND_LINK: u8 = 4;
/// The first fragment of a payload.
pub(crate) const FLAG_FIRST: u8 = 1;
/// The last fragment of a payload.
pub(crate) const FLAG_LAST: u8 = 2;

/// Before each record.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct RecordHeader {
    magic: U32,
    /// CRC32C of everything after this field, payload included.
    checksum: U32,
    /// Payload bytes, without padding.
    length: U32,
    /// [`KIND_LOG`] or [`KIND_SNAPSHOT`], with or without [`KIND_LINK`].
    pub kind: u8,
    /// [`FLAG_FIRST`] and [`FLAG_LAST`].
    pub flags: u8,
    reserved: U16,
    /// Epoch in the high half; 0 (the log) or the snapshot's number in the low half.
    stream: U64,
    sequence: U64,
    /// The log was known to be durable up to this sequence when the record was made: proof for
    /// recovery.
    durable: U64,
}

const _: () = assert!(HEADER == 40);
const _: () = assert!(std::mem::offset_of!(RecordHeader, stream) == 16);
const CHECKED_FROM: usize = 8;

/// What a record says beside its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tag {
    pub kind: u8,
    pub flags: u8,
    pub stream: u64,
    pub sequence: u64,
    pub durable: u64,
}

/// A payload that is in several pieces, and how much of it was taken.
pub(crate) struct Parts<'a> {
    rest: &'a [&'a [u8]],
    /// Bytes taken of the first piece.
    taken: usize,
    left: usize,
}

impl<'a> Parts<'a> {
    pub(crate) fn new(parts: &'a [&'a [u8]]) -> Self {
        Self { rest: parts, taken: 0, left: parts.iter().map(|part| part.len()).sum() }
    }

    /// Bytes not taken yet.
    pub(crate) fn left(&self) -> usize {
        self.left
    }

    /// Fills `out` with the next bytes.
    ///
    /// # Panics
    /// If fewer are left.
    fn take(&mut self, mut out: &mut [u8]) {
        self.left -= out.len();
        while !out.is_empty() {
            let part = &self.rest[0][self.taken..];
            let count = part.len().min(out.len());
            let (now, later) = out.split_at_mut(count);
            now.copy_from_slice(&part[..count]);
            out = later;
            self.taken += count;
            if self.taken == self.rest[0].len() {
                self.rest = &self.rest[1..];
                self.taken = 0;
            }
        }
    }
}

/// The stream of the log's run in `epoch`.
pub(crate) fn log_stream(epoch: u32) -> u64 {
    u64::from(epoch) << 32
}

/// The epoch in which a stream was written.
pub(crate) fn stream_epoch(stream: u64) -> u32 {
    (stream >> 32) as u32
}

/// Bytes that a record with `payload` bytes takes, padding included.
pub(crate) fn record_size(payload: usize) -> usize {
    (HEADER + payload).next_multiple_of(ALIGN)
}

/// Writes a record at the start of `out`, which is at `offset` in the area, and returns the bytes
/// it takes. Its payload is the next `length` bytes of `payload`.
///
/// # Panics
/// If `out` is shorter than [`record_size`] of `length`.
pub(crate) fn write_record(
    seed: u32,
    offset: u64,
    tag: Tag,
    payload: &mut Parts<'_>,
    length: usize,
    out: &mut [u8],
) -> usize {
    let size = record_size(length);
    let mut header = RecordHeader {
        magic: U32::new(RECORD_MAGIC),
        checksum: U32::new(0),
        // Fragments are no longer than a batch.
        length: U32::new(length as u32),
        kind: tag.kind,
        flags: tag.flags,
        reserved: U16::new(0),
        stream: U64::new(tag.stream),
        sequence: U64::new(tag.sequence),
        durable: U64::new(tag.durable),
    };
    let out = &mut out[..size];
    let end = HEADER + length;
    out[..HEADER].copy_from_slice(header.as_bytes());
    payload.take(&mut out[HEADER..end]);
    out[end..].fill(0);
    header.checksum = U32::new(checksum(seed, offset, &out[CHECKED_FROM..end]));
    out[..HEADER].copy_from_slice(header.as_bytes());
    size
}

fn checksum(seed: u32, offset: u64, bytes: &[u8]) -> u32 {
    // Folding both halves of the offset into the initial state: two places of an area below 16 TiB
    // never share one.
    let place = (offset >> 3) as u32 ^ (offset >> 35) as u32;
    crc32c_from(seed ^ place, bytes)
}

/// The seed of all records of the area with this identity.
pub(crate) fn seed(identity: u128) -> u32 {
    crc32c(&identity.to_le_bytes())
}

/// The header at the start of `bytes`, if its fields are plausible; its checksum is not verified.
/// Returns the payload's length.
pub(crate) fn peek(bytes: &[u8]) -> Option<(Tag, usize)> {
    let (header, _) = RecordHeader::read_from_prefix(bytes).ok()?;
    if header.magic.get() != RECORD_MAGIC || header.reserved.get() != 0 {
        return None;
    }
    let tag = Tag {
        kind: header.kind,
        flags: header.flags,
        stream: header.stream.get(),
        sequence: header.sequence.get(),
        durable: header.durable.get(),
    };
    Some((tag, header.length.get() as usize))
}

/// The record at the start of `bytes`, which are at `offset` in the area, if it is whole and
/// genuine.
pub(crate) fn read_record(seed: u32, offset: u64, bytes: &[u8]) -> Option<(Tag, &[u8])> {
    let (tag, length) = peek(bytes)?;
    let end = HEADER.checked_add(length)?;
    let checked = bytes.get(CHECKED_FROM..end)?;
    let stored = U32::read_from_bytes(&bytes[4..8]).ok()?;
    (checksum(seed, offset, checked) == stored.get()).then(|| (tag, &bytes[HEADER..end]))
}

/// A run as it is in the superblock.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawRun {
    epoch: U32,
    segment: U32,
    first: U64,
    position: U32,
    reserved: U32,
}

/// A superblock copy.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawSuperblock {
    magic: U64,
    /// CRC32C of everything after this field.
    checksum: U32,
    version: U32,
    generation: U64,
    identity: [u8; 16],
    capacity: U64,
    block: U32,
    segment_bytes: U32,
    segment_count: U32,
    epoch: U32,
    clean: U64,
    snapshot_stream: U64,
    snapshot_segment: U32,
    run_count: U32,
    snapshot_last: U64,
    runs: [RawRun; MAX_RUNS],
    head: U64,
    content: U32,
    content_version: U32,
    closed: U32,
    reserved: U32,
    proven: U64,
    reserved_too: [u8; 128],
}

const _: () = assert!(size_of::<RawSuperblock>() == SUPERBLOCK);
const _: () = assert!(std::mem::offset_of!(RawSuperblock, runs) == 96);
const _: () = assert!(std::mem::offset_of!(RawSuperblock, head) == 3936);
const _: () = assert!(std::mem::offset_of!(RawSuperblock, closed) == 3952);
const _: () = assert!(std::mem::offset_of!(RawSuperblock, proven) == 3960);
const SUPERBLOCK_CHECKED_FROM: usize = 12;

/// No sequence and no generation comes near this by counting, so adding to a smaller one cannot
/// overflow.
const SEQUENCE_LIMIT: u64 = 1 << 62;

/// The records that one owner of the log appended between two openings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub epoch: u32,
    /// Where its first record is: in this segment, this many bytes from its start.
    pub segment: u32,
    pub position: u32,
    pub first: u64,
}

/// The snapshot that the log starts from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SnapshotLocation {
    pub stream: u64,
    pub segment: u32,
    /// Sequence of its last record; the first is 1. 0: it has none.
    pub last: u64,
}

/// What a superblock says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Superblock {
    pub generation: u64,
    pub identity: u128,
    pub capacity: u64,
    pub block: u32,
    pub segment_bytes: u32,
    pub segment_count: u32,
    pub epoch: u32,
    /// Whether the log was closed in order.
    pub closed: bool,
    /// The last sequence then; 0 otherwise, and of a log that never had a record.
    pub clean: u64,
    /// The log was known to be durable up to this sequence when the superblock was written. 0:
    /// nothing was known.
    pub proven: u64,
    pub snapshot: Option<SnapshotLocation>,
    pub runs: Vec<Run>,
    /// Records before this sequence were given up, though some may still be in the first segment.
    /// 0: none were.
    pub head: u64,
    pub content: Content,
}

/// What the records of a log are: those of an application, or of a structure that is built over the
/// log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Content {
    /// Four letters, little endian; 0: an application's own.
    pub kind: u32,
    pub version: u32,
}

impl Content {
    /// Records of an application.
    pub(crate) const LOG: Self = Self { kind: 0, version: 0 };
    /// A queue.
    pub(crate) const QUEUE: Self = Self { kind: u32::from_le_bytes(*b"QUEU"), version: QUEUE_VERSION };
    /// A map.
    pub(crate) const MAP: Self = Self { kind: u32::from_le_bytes(*b"HMAP"), version: MAP_VERSION };

    /// What it is called in messages.
    pub(crate) fn name(self) -> String {
        match self.kind {
            kind if kind == Self::LOG.kind => "log".to_owned(),
            kind if kind == Self::QUEUE.kind => "queue".to_owned(),
            kind if kind == Self::MAP.kind => "map".to_owned(),
            kind => kind.to_le_bytes().iter().map(|byte| char::from(*byte).to_ascii_lowercase()).collect(),
        }
    }
}

/// Where a payload is: its first record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RecordLocation {
    /// Of the log, or of a snapshot.
    pub stream: u64,
    pub sequence: u64,
    pub segment: u32,
    /// Bytes from the start of the segment.
    pub position: u32,
}

impl RecordLocation {
    /// [`KIND_LOG`] or [`KIND_SNAPSHOT`].
    pub(crate) fn kind(&self) -> u8 {
        if self.stream == log_stream(stream_epoch(self.stream)) { KIND_LOG } else { KIND_SNAPSHOT }
    }
}

impl Superblock {
    /// Area offset of copy `index` (0 or 1) of generation `generation`.
    pub(crate) fn copy_offset(generation: u64, index: u64) -> u64 {
        superblock_copies::offset(generation, index)
    }

    /// Area offset of a segment.
    pub(crate) fn segment_start(&self, segment: u32) -> u64 {
        DATA_START + u64::from(segment) * u64::from(self.segment_bytes)
    }

    /// Writes one copy into `out`.
    ///
    /// # Panics
    /// If `out` is shorter than [`SUPERBLOCK`] or there are more than [`MAX_RUNS`] runs.
    pub(crate) fn write(&self, out: &mut [u8]) {
        let mut raw = RawSuperblock::new_zeroed();
        raw.magic = U64::new(SUPERBLOCK_MAGIC);
        raw.version = U32::new(VERSION);
        raw.generation = U64::new(self.generation);
        raw.identity = self.identity.to_le_bytes();
        raw.capacity = U64::new(self.capacity);
        raw.block = U32::new(self.block);
        raw.segment_bytes = U32::new(self.segment_bytes);
        raw.segment_count = U32::new(self.segment_count);
        raw.epoch = U32::new(self.epoch);
        raw.clean = U64::new(self.clean);
        raw.proven = U64::new(self.proven);
        raw.closed = U32::new(u32::from(self.closed));
        if let Some(snapshot) = self.snapshot {
            raw.snapshot_stream = U64::new(snapshot.stream);
            raw.snapshot_segment = U32::new(snapshot.segment);
            raw.snapshot_last = U64::new(snapshot.last);
        }
        // At most MAX_RUNS.
        raw.run_count = U32::new(self.runs.len() as u32);
        for (raw, run) in raw.runs[..self.runs.len()].iter_mut().zip(&self.runs) {
            raw.epoch = U32::new(run.epoch);
            raw.segment = U32::new(run.segment);
            raw.first = U64::new(run.first);
            raw.position = U32::new(run.position);
        }
        raw.head = U64::new(self.head);
        raw.content = U32::new(self.content.kind);
        raw.content_version = U32::new(self.content.version);
        raw.checksum = U32::new(superblock_checksum(raw.as_bytes()));
        out[..SUPERBLOCK].copy_from_slice(raw.as_bytes());
    }

    /// Reads one copy.
    pub(crate) fn read(bytes: &[u8]) -> Result<Self, CopyDamage> {
        let bytes = bytes.get(..SUPERBLOCK).ok_or(CopyDamage::Damaged)?;
        let raw = RawSuperblock::ref_from_bytes(bytes).map_err(|_| CopyDamage::Damaged)?;
        if raw.magic.get() != SUPERBLOCK_MAGIC || raw.checksum.get() != superblock_checksum(bytes) {
            let blank = bytes.iter().all(|&byte| byte == 0);
            return Err(if blank { CopyDamage::Blank } else { CopyDamage::Damaged });
        }
        if raw.version.get() != VERSION {
            return Err(CopyDamage::Version(raw.version.get()));
        }
        let runs = raw.runs.get(..raw.run_count.get() as usize).ok_or(CopyDamage::Damaged)?;
        let superblock = Self {
            generation: raw.generation.get(),
            identity: u128::from_le_bytes(raw.identity),
            capacity: raw.capacity.get(),
            block: raw.block.get(),
            segment_bytes: raw.segment_bytes.get(),
            segment_count: raw.segment_count.get(),
            epoch: raw.epoch.get(),
            // `closed` came later: a version that did not have it says so by `clean` alone.
            closed: raw.closed.get() != 0 || raw.clean.get() != 0,
            clean: raw.clean.get(),
            proven: raw.proven.get(),
            snapshot: (raw.snapshot_stream.get() != 0).then(|| SnapshotLocation {
                stream: raw.snapshot_stream.get(),
                segment: raw.snapshot_segment.get(),
                last: raw.snapshot_last.get(),
            }),
            runs: runs.iter().map(RawRun::decode).collect(),
            head: raw.head.get(),
            content: Content { kind: raw.content.get(), version: raw.content_version.get() },
        };
        if superblock.is_sound() { Ok(superblock) } else { Err(CopyDamage::Damaged) }
    }

    /// Whether the fields fit each other: a checksum does not make a foreign writer's numbers safe
    /// to use.
    fn is_sound(&self) -> bool {
        let block = u64::from(self.block);
        let segment = u64::from(self.segment_bytes);
        let in_range = |number: u32| number < self.segment_count;
        matches!(block, 64 | 512 | 4096)
            && segment % SUPERBLOCK as u64 == 0
            && segment >= SEGMENT_RANGE.0
            && self.segment_bytes <= 1 << 30
            && self.segment_count >= MIN_SEGMENTS
            && self.sequences().all(|sequence| sequence < SEQUENCE_LIMIT)
            && u64::from(self.segment_count)
                .checked_mul(segment)
                .and_then(|bytes| bytes.checked_add(DATA_START))
                .is_some_and(|end| end <= self.capacity)
            && self.snapshot.is_none_or(|snapshot| in_range(snapshot.segment))
            && self.runs.iter().all(|run| {
                in_range(run.segment)
                    && run.first > 0
                    && run.position < self.segment_bytes
                    && run.position.is_multiple_of(self.block)
            })
            && self.runs.windows(2).all(|w| w[0].first < w[1].first && w[0].epoch < w[1].epoch)
            && self.runs.last().is_none_or(|run| run.epoch <= self.epoch)
    }

    /// All numbers that count records, and the generation.
    fn sequences(&self) -> impl Iterator<Item = u64> {
        let counts = [self.generation, self.clean, self.proven, self.head];
        let snapshot = self.snapshot.map(|snapshot| snapshot.last);
        counts.into_iter().chain(snapshot).chain(self.runs.iter().map(|run| run.first))
    }
}

impl Run {
    /// Whether a place should be remembered when `last` was the one before: in each segment the
    /// first, and then one each [`INDEX_BYTES`].
    pub(crate) fn is_worth(&self, last: Option<&Self>) -> bool {
        last.is_none_or(|last| {
            last.segment != self.segment
                || last.epoch != self.epoch
                || self.position.saturating_sub(last.position) >= INDEX_BYTES
        })
    }
}

impl RawRun {
    fn decode(&self) -> Run {
        Run {
            epoch: self.epoch.get(),
            segment: self.segment.get(),
            position: self.position.get(),
            first: self.first.get(),
        }
    }
}

fn superblock_checksum(bytes: &[u8]) -> u32 {
    crc32c(&bytes[SUPERBLOCK_CHECKED_FROM..])
}
