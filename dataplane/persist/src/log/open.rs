//! Formatting, opening and checking an area.
//!
//! 1. Formatting blanks all superblock copies, the newest last, then writes those of generation 1,
//!    then those of generation 0. A crash before the end leaves a blank copy, and nothing readable
//!    or the whole of it.
//! 2. Opening scans (see `scan`), then flushes: what was read may have been in a volatile cache,
//!    and the next superblock promises that it exists. Then it writes the superblock of the next
//!    epoch, durably, and only then can append.
//! 3. Opening skips two generations and writes two, so that all four copies are its own. A previous
//!    owner that died has at most two superblock writes in flight, both of one generation. Wherever
//!    and however late they land, a copy of this opening stays and is newer.
//! 4. An area that is shorter than the log was laid out for is opened if nothing that the log needs
//!    lay in the missing part. A longer one is used as far as before; [`Log::grow`] takes the rest.
//! 5. A run without records is forgotten, so that restarts alone do not fill the superblock or the
//!    area.

use sietch_disk::{Buffer, DiskQueue, Operation};

use super::metrics::LogMetrics;
use super::options::Options;
use super::state::reads::Reads;
use super::state::snapshot::Snapshot;
use super::state::waiters::Waiters;
use super::{Flush, Log};
use crate::disk_request::execute;
use crate::error::{Failure, FormatError, OpenError};
use crate::layout::{Content, KIND_LOG, Run, Superblock, log_stream};
use crate::limits::{
    DATA_START, MAX_RUNS, MIN_CAPACITY, MIN_SEGMENTS, RESERVED_REQUESTS, SEGMENT_RANGE, SUPERBLOCK,
    SUPERBLOCKS, usual_segment,
};
use crate::scan::{Applied, Apply, Entry, RecoveryReport, Scan};
use crate::space::Space;
use crate::stream::{Pool, Stream, batch_bytes};
use crate::superblocks::{self, Found};

/// Segments left alone after the previous owner's last one, so that its writes in flight meet
/// nothing should they still land.
const SKIPPED: u32 = 2;

/// How an area is formatted.
#[derive(Clone, Copy, Debug)]
pub struct FormatOptions {
    /// Distinguishes this log from any other that the area has held or will hold: random.
    pub identity: u128,
    /// Bytes of a segment, a multiple of 4096 and at least 16 KiB; `None`: chosen by the size of
    /// the area.
    pub segment_bytes: Option<u32>,
}

impl FormatOptions {
    /// The default format with this random identity.
    pub fn new(identity: u128) -> Self {
        Self { identity, segment_bytes: None }
    }
}

/// The block of a log on a medium that writes `unit` bytes in one piece: acknowledged records share
/// no such piece with later writes.
fn block_for(unit: usize) -> u32 {
    match unit {
        ..=64 => 64,
        65..=512 => 512,
        _ => 4096,
    }
}

/// Writes both copies of a superblock, durably.
pub(super) fn write_superblock<D: DiskQueue>(disk: &mut D, superblock: &Superblock) -> Result<(), Failure> {
    for index in 0..2 {
        let offset = Superblock::copy_offset(superblock.generation, index);
        let mut buffer = Buffer::new(SUPERBLOCK);
        superblock.write(&mut buffer);
        let write = Operation::Write { offset, length: SUPERBLOCK, buffer, durable: true };
        execute(disk, "writing a superblock", offset, write)?;
    }
    Ok(())
}

/// Makes everything that the device has completed durable.
pub(super) fn settle<D: DiskQueue>(disk: &mut D) -> Result<(), Failure> {
    execute(disk, "flushing", 0, Operation::Flush).map(|_| ())
}

/// Blanks all superblock copies, the newest generation last: a crash meanwhile finds the previous
/// log as it was, or none, but never an older state of it.
fn blank<D: DiskQueue>(disk: &mut D) -> Result<(), Failure> {
    let newest = superblocks::newest(disk).map_or(0, |found| found.superblock.generation);
    for generation in [newest + 1, newest] {
        let offset = Superblock::copy_offset(generation, 0);
        let length = SUPERBLOCKS / 2 * SUPERBLOCK;
        let buffer = Buffer::new(length);
        let write = Operation::Write { offset, length, buffer, durable: true };
        execute(disk, "blanking the superblocks", offset, write)?;
    }
    Ok(())
}

impl<D: DiskQueue> Log<D> {
    /// Makes an empty log of the whole area. Whatever it held is lost.
    ///
    /// # Errors
    /// See [`FormatError`].
    pub fn format(disk: &mut D, options: FormatOptions) -> Result<(), FormatError> {
        Self::format_as(disk, options, Content::LOG)
    }

    /// Makes an empty log of a structure.
    pub(crate) fn format_as(
        disk: &mut D,
        options: FormatOptions,
        content: Content,
    ) -> Result<(), FormatError> {
        let capacity = disk.capacity();
        if capacity < MIN_CAPACITY {
            return Err(FormatError::TooSmall { capacity, minimum: MIN_CAPACITY });
        }
        // At most 8 MiB.
        let segment_bytes = options.segment_bytes.unwrap_or(usual_segment(capacity) as u32);
        let segment = u64::from(segment_bytes);
        let count = (capacity - DATA_START).checked_div(segment).unwrap_or_default();
        let sound = segment >= SEGMENT_RANGE.0
            && segment <= 1 << 30
            && segment.is_multiple_of(SUPERBLOCK as u64)
            && count >= u64::from(MIN_SEGMENTS);
        let Some(segment_count) = u32::try_from(count).ok().filter(|_| sound) else {
            return Err(FormatError::Segment { segment_bytes, capacity, minimum: MIN_SEGMENTS });
        };
        blank(disk)?;
        let mut superblock = Superblock {
            generation: 1,
            identity: options.identity,
            capacity,
            block: block_for(disk.physical_block_size().max(disk.block_size())),
            segment_bytes,
            segment_count,
            epoch: 0,
            closed: false,
            clean: 0,
            proven: 0,
            snapshot: None,
            runs: Vec::new(),
            head: 0,
            content,
        };
        write_superblock(disk, &superblock)?;
        superblock.generation = 0;
        Ok(write_superblock(disk, &superblock)?)
    }

    /// Opens the log of an area: delivers the snapshot's payloads, then the log's, in order, and
    /// starts a new epoch.
    ///
    /// # Errors
    /// See [`OpenError`]. What `apply` was given until then is not to be used.
    pub fn open(
        disk: D,
        options: Options,
        apply: &mut dyn FnMut(Entry<'_>) -> Applied,
    ) -> Result<(Self, RecoveryReport), OpenError> {
        Self::open_as(disk, options, Content::LOG, &mut |entry, _| apply(entry))
    }

    /// Opens the log of a structure.
    pub(crate) fn open_as(
        mut disk: D,
        options: Options,
        content: Content,
        apply: Apply<'_>,
    ) -> Result<(Self, RecoveryReport), OpenError> {
        let Found { superblock, damaged, formatted } = superblocks::newest(&mut disk)?;
        expect_content(superblock.content, content)?;
        let outcome = Scan::new(&mut disk, &superblock).run(apply)?;
        let mut report = outcome.report;
        report.damaged_superblocks = damaged;
        (report.formatted, report.area) = (formatted, disk.capacity());
        let Some(epoch) = superblock.epoch.checked_add(1) else {
            return Err(OpenError::Worn { epoch: superblock.epoch });
        };
        report.epoch = epoch;
        let mut space = claim(&superblock, &outcome.log_segments, &outcome.snapshot_segments)?;
        let unused = superblock.runs.is_empty() && superblock.epoch == 0;
        space.seek(if unused { 0 } else { outcome.last_segment + 1 + SKIPPED });
        settle(&mut disk)?;

        let first = report.last_sequence + 1;
        let mut next = superblock;
        next.epoch = epoch;
        next.generation += 3;
        (next.closed, next.clean) = (false, 0);
        // It was read, and made durable by the flush.
        next.proven = report.last_sequence;
        next.runs.retain(|run| run.first < first);
        let segment = (next.runs.len() < MAX_RUNS).then(|| space.take()).flatten();
        next.runs.extend(segment.map(|segment| Run { epoch, segment, position: 0, first }));
        write_superblock(&mut disk, &next)?;
        next.generation += 1;
        write_superblock(&mut disk, &next)?;

        let mut stream = Stream::new(&next, KIND_LOG, log_stream(epoch), first, segment.unwrap_or_default());
        let mut segments: std::collections::VecDeque<u32> = outcome.log_segments.into();
        segments.extend(segment);
        *stream.segments_mut() = segments;
        *stream.sparse_index_mut() = outcome.sparse_index.into();
        let log = Self {
            durability: options.durability,
            in_flight: options.in_flight.clamp(1, most_in_flight(&disk)),
            disk,
            space,
            pool: Pool::new(batch_bytes(&next)),
            superblock: next,
            stream,
            headless: segment.is_none(),
            durable: first - 1,
            submit_wanted: false,
            flush: Flush::Idle,
            snapshot: Snapshot::new(),
            snapshot_segments: outcome.snapshot_segments,
            truncation: None,
            resize: None,
            proof_write: None,
            proof_schedule: None,
            replacement: None,
            reads: Reads::default(),
            waiters: Waiters::default(),
            completions: Vec::new(),
            failure: None,
            metrics: LogMetrics::default(),
        };
        Ok((log, report))
    }
}

/// Writes of the log that a queue may hold beside what else the log does.
pub(super) fn most_in_flight<D: DiskQueue>(disk: &D) -> usize {
    disk.depth().saturating_sub(RESERVED_REQUESTS).max(1)
}

/// Whether an area holds what it is opened as.
pub(crate) fn expect_content(found: Content, known: Content) -> Result<(), OpenError> {
    if found.kind != known.kind {
        return Err(OpenError::Content { found: found.name(), wanted: known.name() });
    }
    if found.version != known.version {
        let (name, found, known) = (known.name(), found.version, known.version);
        return Err(OpenError::ContentVersion { name, found, known });
    }
    Ok(())
}

/// Reads an area as [`Log::open`] would, and changes nothing.
///
/// # Errors
/// The first damage found, as [`Log::open`] would report it.
pub fn check<D: DiskQueue>(disk: &mut D) -> Result<RecoveryReport, OpenError> {
    let Found { superblock, damaged, formatted } = superblocks::newest(disk)?;
    let mut report = Scan::new(disk, &superblock).run(&mut |_, _| Ok(()))?.report;
    report.damaged_superblocks = damaged;
    (report.formatted, report.area) = (formatted, disk.capacity());
    Ok(report)
}

/// Whether an area holds a log. Reads the superblocks and changes nothing.
///
/// # Errors
/// It held one and its superblocks are damaged, or the device failed.
pub fn is_formatted<D: DiskQueue>(disk: &mut D) -> Result<bool, OpenError> {
    match superblocks::newest(disk) {
        Ok(_) => Ok(true),
        Err(OpenError::NotFormatted) => Ok(false),
        Err(other) => Err(other),
    }
}

/// How many records opening an area will deliver at least, as its superblock says: of the snapshot,
/// and of the log. Payloads that were cut into several records count as several. Changes nothing.
///
/// # Errors
/// There is no log, or its superblocks are damaged, or the device failed.
pub fn expected_records<D: DiskQueue>(disk: &mut D) -> Result<(u64, u64), OpenError> {
    let Found { superblock, .. } = superblocks::newest(disk)?;
    let first = superblock.runs.first().map_or(0, |run| run.first.max(superblock.head));
    let last = superblock.clean.max(superblock.proven);
    let snapshot = superblock.snapshot.map_or(0, |snapshot| snapshot.last);
    Ok((snapshot, last.saturating_add(1).saturating_sub(first)))
}

/// Marks the segments of all chains; no two may claim one.
pub(super) fn claim(superblock: &Superblock, log: &[u32], snapshot: &[u32]) -> Result<Space, OpenError> {
    let mut space = Space::new(superblock.segment_count);
    for &segment in log.iter().chain(snapshot) {
        if !space.mark(segment) {
            let offset = superblock.segment_start(segment);
            let evidence = "two chains claim its segment".to_owned();
            return Err(OpenError::Corrupt { what: "link", sequence: 0, offset, evidence });
        }
    }
    Ok(space)
}
