//! The layout of a volume. The page `docs/spec/volume.md` shows it as a picture.
//!
//! 1. All integers are little endian. First come four superblock copies of a block each, then two
//!    halves of equal size. Then come one block that belongs to no area (the *void*), and the
//!    blocks of areas.
//! 2. Generation `g` of the superblock is written to the copies `2 * (g % 2)` and `2 * (g % 2) +
//!    1`, and names half `g % 2`. So an update never touches the generation that it replaces.
//! 3. A half is a checkpoint (all areas), padded to a block, and then records of one block each. A
//!    checkpoint and every record carry a CRC32C seeded by the volume's identity and their own
//!    offset. So data of another volume, or at a wrong offset, does not validate.
//! 4. `epoch` grows with every opening, `sequence` with every record. A record counts only when it
//!    is the direct successor of the one before: leftovers of an earlier use of the half never
//!    count.

use sietch_disk::superblock_copies::{self, CopyDamage};
use sietch_structures::{crc32c, crc32c_from};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::limits::{BLOCK, HALF_RANGE, HALVES_START, MAX_AREAS, MAX_EXTENTS, MAX_NAME};

/// Version of the format that this code writes and reads.
pub(crate) const VERSION: u32 = 1;

const SUPERBLOCK_MAGIC: u64 = u64::from_le_bytes(*b"SIETCHVL");
const CHECKPOINT_MAGIC: u32 = u32::from_le_bytes(*b"SVCP");
const RECORD_MAGIC: u32 = u32::from_le_bytes(*b"SVRC");

/// A record with the new state of an area.
const KIND_PUT: u32 = 1;
/// A record that ends an area.
const KIND_DELETE: u32 = 2;

/// Contiguous blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Extent {
    /// The first, counted from the beginning of the volume.
    pub start: u64,
    /// How many.
    pub blocks: u64,
}

/// A named piece of the volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Area {
    /// Never given twice on a volume.
    pub id: u64,
    /// Whose it is.
    pub uid: u32,
    /// What it is called.
    pub name: String,
    /// The blocks of its bytes, in their order.
    pub extents: Vec<Extent>,
}

impl Area {
    /// Bytes.
    pub fn size(&self) -> u64 {
        self.extents.iter().map(|extent| extent.blocks * BLOCK).sum()
    }
}

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
    half_bytes: U64,
    epoch: U64,
    reserved: [u8; 4032],
}

const _: () = assert!(size_of::<RawSuperblock>() == BLOCK as usize);
const _: () = assert!(std::mem::offset_of!(RawSuperblock, reserved) == 64);
const SUPERBLOCK_CHECKED_FROM: usize = 12;

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawCheckpoint {
    magic: U32,
    /// CRC32C of everything after this field, up to `length`.
    checksum: U32,
    /// Bytes with this header, without padding.
    length: U32,
    areas: U32,
    epoch: U64,
    generation: U64,
    /// Of the last record that is in it.
    sequence: U64,
    /// Larger than any area's id so far.
    next_id: U64,
}

const _: () = assert!(size_of::<RawCheckpoint>() == 48);

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawRecord {
    magic: U32,
    /// CRC32C of everything after this field, to the end of the block.
    checksum: U32,
    kind: U32,
    reserved: U32,
    epoch: U64,
    sequence: U64,
}

const _: () = assert!(size_of::<RawRecord>() == 32);
const CHECKED_FROM: usize = 8;

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawArea {
    id: U64,
    uid: U32,
    extents: U32,
    name_length: U32,
    reserved: U32,
    name: [u8; MAX_NAME],
    reserved_too: [u8; 8],
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawExtent {
    start: U64,
    blocks: U64,
}

const AREA: usize = size_of::<RawArea>();
const EXTENT: usize = size_of::<RawExtent>();
const _: () = assert!(AREA == 64 && EXTENT == 16);
// A record of the longest area is one block.
const _: () = assert!(size_of::<RawRecord>() + AREA + MAX_EXTENTS * EXTENT <= BLOCK as usize);

fn checksum(seed: u32, offset: u64, bytes: &[u8]) -> u32 {
    // Both halves of the block's number: two places of a volume below 16 TiB never share a seed.
    let place = (offset / BLOCK) as u32 ^ ((offset / BLOCK) >> 32) as u32;
    crc32c_from(seed ^ place, bytes)
}

/// The content of a superblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Superblock {
    pub generation: u64,
    pub identity: u128,
    pub capacity: u64,
    pub half_bytes: u64,
    pub epoch: u64,
}

impl Superblock {
    /// Offset of copy `index` (0 or 1) of generation `generation`.
    pub(crate) fn copy_offset(generation: u64, index: u64) -> u64 {
        superblock_copies::offset(generation, index)
    }

    /// Offset of half `index`.
    pub(crate) fn half(&self, index: u64) -> u64 {
        HALVES_START + index * self.half_bytes
    }

    /// Offset of the void.
    pub(crate) fn void(&self) -> u64 {
        HALVES_START + 2 * self.half_bytes
    }

    /// The blocks that areas may have: the first one, and how many.
    pub(crate) fn data(&self) -> (u64, u64) {
        let first = self.void() / BLOCK + 1;
        (first, (self.capacity / BLOCK).saturating_sub(first))
    }

    /// The seed of all checksums of the volume.
    pub(crate) fn seed(&self) -> u32 {
        crc32c(&self.identity.to_le_bytes())
    }

    pub(crate) fn write(&self) -> Vec<u8> {
        let mut raw = RawSuperblock::new_zeroed();
        raw.magic = U64::new(SUPERBLOCK_MAGIC);
        raw.version = U32::new(VERSION);
        raw.generation = U64::new(self.generation);
        raw.identity = self.identity.to_le_bytes();
        raw.capacity = U64::new(self.capacity);
        raw.half_bytes = U64::new(self.half_bytes);
        raw.epoch = U64::new(self.epoch);
        raw.checksum = U32::new(crc32c(&raw.as_bytes()[SUPERBLOCK_CHECKED_FROM..]));
        raw.as_bytes().to_vec()
    }

    pub(crate) fn read(bytes: &[u8]) -> Result<Self, CopyDamage> {
        let raw = RawSuperblock::ref_from_bytes(bytes).map_err(|_| CopyDamage::Damaged)?;
        let sum = crc32c(&bytes[SUPERBLOCK_CHECKED_FROM..]);
        if raw.magic.get() != SUPERBLOCK_MAGIC || raw.checksum.get() != sum {
            let blank = bytes.iter().all(|&byte| byte == 0);
            return Err(if blank { CopyDamage::Blank } else { CopyDamage::Damaged });
        }
        if raw.version.get() != VERSION {
            return Err(CopyDamage::Version(raw.version.get()));
        }
        let superblock = Self {
            generation: raw.generation.get(),
            identity: u128::from_le_bytes(raw.identity),
            capacity: raw.capacity.get(),
            half_bytes: raw.half_bytes.get(),
            epoch: raw.epoch.get(),
        };
        // A checksum does not make a foreign writer's numbers safe to use.
        let sound = (HALF_RANGE.0..=HALF_RANGE.1).contains(&superblock.half_bytes)
            && superblock.half_bytes.is_multiple_of(BLOCK)
            && superblock.capacity.is_multiple_of(BLOCK)
            && superblock.data().1 > 0
            && superblock.generation < u64::MAX / 2
            && superblock.epoch < u64::MAX / 2;
        if sound { Ok(superblock) } else { Err(CopyDamage::Damaged) }
    }
}

fn put_area(area: &Area, out: &mut Vec<u8>) {
    let mut raw = RawArea::new_zeroed();
    raw.id = U64::new(area.id);
    raw.uid = U32::new(area.uid);
    // Bounded by MAX_EXTENTS and MAX_NAME.
    raw.extents = U32::new(area.extents.len() as u32);
    raw.name_length = U32::new(area.name.len() as u32);
    raw.name[..area.name.len()].copy_from_slice(area.name.as_bytes());
    out.extend_from_slice(raw.as_bytes());
    for extent in &area.extents {
        let raw = RawExtent { start: U64::new(extent.start), blocks: U64::new(extent.blocks) };
        out.extend_from_slice(raw.as_bytes());
    }
}

/// The area at the start of `bytes`, and the bytes after it.
fn take_area(bytes: &[u8]) -> Option<(Area, &[u8])> {
    let (raw, rest) = RawArea::read_from_prefix(bytes).ok()?;
    let (count, length) = (raw.extents.get() as usize, raw.name_length.get() as usize);
    if count == 0 || count > MAX_EXTENTS {
        return None;
    }
    let name = std::str::from_utf8(raw.name.get(..length)?).ok()?.to_owned();
    let (extents, rest) = rest.split_at_checked(count * EXTENT)?;
    let extents = <[RawExtent]>::ref_from_bytes(extents).ok()?;
    let extents =
        extents.iter().map(|raw| Extent { start: raw.start.get(), blocks: raw.blocks.get() }).collect();
    Some((Area { id: raw.id.get(), uid: raw.uid.get(), name, extents }, rest))
}

/// Bytes of a checkpoint of areas with so many extents in all, padded.
pub(crate) fn checkpoint_bytes(areas: usize, extents: usize) -> u64 {
    ((size_of::<RawCheckpoint>() + areas * AREA + extents * EXTENT) as u64).next_multiple_of(BLOCK)
}

/// All areas at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Checkpoint {
    pub epoch: u64,
    pub generation: u64,
    pub sequence: u64,
    pub next_id: u64,
    pub areas: Vec<Area>,
}

impl Checkpoint {
    /// Its encoding at `offset`, padded to whole blocks.
    pub(crate) fn write(&self, seed: u32, offset: u64) -> Vec<u8> {
        let mut out = vec![0; size_of::<RawCheckpoint>()];
        for area in &self.areas {
            put_area(area, &mut out);
        }
        let mut raw = RawCheckpoint {
            magic: U32::new(CHECKPOINT_MAGIC),
            checksum: U32::new(0),
            // At most a half.
            length: U32::new(out.len() as u32),
            areas: U32::new(self.areas.len() as u32),
            epoch: U64::new(self.epoch),
            generation: U64::new(self.generation),
            sequence: U64::new(self.sequence),
            next_id: U64::new(self.next_id),
        };
        out[..size_of::<RawCheckpoint>()].copy_from_slice(raw.as_bytes());
        raw.checksum = U32::new(checksum(seed, offset, &out[CHECKED_FROM..]));
        out[..size_of::<RawCheckpoint>()].copy_from_slice(raw.as_bytes());
        out.resize(out.len().next_multiple_of(BLOCK as usize), 0);
        out
    }

    /// The checkpoint at the start of `half`, which is at `offset`, and the bytes that it occupies
    /// with its padding.
    pub(crate) fn read(seed: u32, offset: u64, half: &[u8]) -> Option<(Self, usize)> {
        let (raw, _) = RawCheckpoint::read_from_prefix(half).ok()?;
        let length = raw.length.get() as usize;
        if raw.magic.get() != CHECKPOINT_MAGIC || length < size_of::<RawCheckpoint>() {
            return None;
        }
        let checked = half.get(CHECKED_FROM..length)?;
        if checksum(seed, offset, checked) != raw.checksum.get() {
            return None;
        }
        let count = raw.areas.get() as usize;
        if count > MAX_AREAS {
            return None;
        }
        let mut rest = half.get(size_of::<RawCheckpoint>()..length)?;
        let mut areas = Vec::with_capacity(count);
        for _ in 0..count {
            let (area, after) = take_area(rest)?;
            areas.push(area);
            rest = after;
        }
        let checkpoint = Self {
            epoch: raw.epoch.get(),
            generation: raw.generation.get(),
            sequence: raw.sequence.get(),
            next_id: raw.next_id.get(),
            areas,
        };
        rest.is_empty().then_some((checkpoint, length.next_multiple_of(BLOCK as usize)))
    }
}

/// What a record changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// The area of that id is this from now on.
    Put(Area),
    /// The area of that id is no more.
    Delete(u64),
}

/// A record of the journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub epoch: u64,
    pub sequence: u64,
    pub change: Change,
}

impl Record {
    /// One block, encoded for `offset`.
    pub(crate) fn write(&self, seed: u32, offset: u64) -> Vec<u8> {
        let mut out = vec![0; size_of::<RawRecord>()];
        let kind = match &self.change {
            Change::Put(area) => {
                put_area(area, &mut out);
                KIND_PUT
            }
            Change::Delete(id) => {
                out.extend_from_slice(&id.to_le_bytes());
                KIND_DELETE
            }
        };
        out.resize(BLOCK as usize, 0);
        let mut raw = RawRecord {
            magic: U32::new(RECORD_MAGIC),
            checksum: U32::new(0),
            kind: U32::new(kind),
            reserved: U32::new(0),
            epoch: U64::new(self.epoch),
            sequence: U64::new(self.sequence),
        };
        out[..size_of::<RawRecord>()].copy_from_slice(raw.as_bytes());
        raw.checksum = U32::new(checksum(seed, offset, &out[CHECKED_FROM..]));
        out[..size_of::<RawRecord>()].copy_from_slice(raw.as_bytes());
        out
    }

    /// The record in `block`, which is at `offset`, if it is complete and valid.
    pub(crate) fn read(seed: u32, offset: u64, block: &[u8]) -> Option<Self> {
        let (raw, rest) = RawRecord::read_from_prefix(block).ok()?;
        if raw.magic.get() != RECORD_MAGIC
            || checksum(seed, offset, block.get(CHECKED_FROM..)?) != raw.checksum.get()
        {
            return None;
        }
        let change = match raw.kind.get() {
            KIND_PUT => Change::Put(take_area(rest)?.0),
            KIND_DELETE => Change::Delete(U64::read_from_prefix(rest).ok()?.0.get()),
            _ => return None,
        };
        Some(Self { epoch: raw.epoch.get(), sequence: raw.sequence.get(), change })
    }
}
