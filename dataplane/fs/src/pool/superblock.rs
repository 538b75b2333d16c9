//! The superblock of a medium: which pool it belongs to, and on the home, what is current.
//!
//! 1. Each medium begins with four copies, a block each. Those of the home follow
//!    [`sietch_disk::superblock_copies`]: generation `g` is in two copies, and `g + 1` in the other
//!    two. Those of the other media are equal and never change.
//! 2. The CRC32C of a copy covers all that follows it.
//! 3. The home has version 2 and a [table](super::media_table) of the other media from the first
//!    change of the media on. Before that it has version 1, as the other media always have.

use sietch_disk::superblock_copies::{self, CopyDamage};
use sietch_disk::{Buffer, DiskQueue};
use sietch_structures::crc32c;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::error::{OpenError, Unsuitable};
use super::media_table::{FORMATTED, MediaTable, RawTable};
use super::medium::{Class, Medium};
use super::{Counters, Root};
use crate::error::Fault;
use crate::limits::BLOCK;
use crate::name::NameKey;
use crate::tree::{MAX_LEVEL, Pointer};

/// Newest version of the format: of a home with a table of the media. This code reads and writes
/// version 1 too.
pub const VERSION: u32 = 2;

/// Version of a superblock without a table.
const WITHOUT_TABLE: u32 = 1;

const MAGIC: u64 = u64::from_le_bytes(*b"SIETCHFS");

/// A copy of a superblock.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawSuperblock {
    magic: U64,
    /// CRC32C of everything after this field.
    checksum: U32,
    version: U32,
    generation: U64,
    identity: [u8; 16],
    blocks: U64,
    index: u8,
    media: u8,
    class: u8,
    root_level: u8,
    root_block: U32,
    root_generation: U64,
    root_checksum: U32,
    reserved: U32,
    name_key: [u8; 16],
    inodes: U64,
    next_inode: U64,
    free: U64,
    total: U64,
    table: RawTable,
    reserved_too: [u8; BLOCK - 232],
}

const _: () = assert!(size_of::<RawSuperblock>() == BLOCK);
const _: () = assert!(std::mem::offset_of!(RawSuperblock, name_key) == 72);
const _: () = assert!(std::mem::offset_of!(RawSuperblock, table) == 120);
const _: () = assert!(std::mem::offset_of!(RawSuperblock, reserved_too) == 232);
const CHECKED_FROM: usize = 12;

/// What a superblock says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Superblock {
    pub identity: u128,
    /// Blocks of the medium that are the pool's.
    pub blocks: u32,
    pub index: u8,
    pub media: u8,
    pub class: Class,
    pub name_key: NameKey,
    /// Of the home; elsewhere only its generation counts, which is the key of the medium.
    pub root: Root,
    /// Of the home, once the media have changed.
    pub table: Option<MediaTable>,
}

impl Superblock {
    /// A copy.
    pub(super) fn write(&self) -> Buffer {
        let Root { generation, pointer, level, counters, free, total, .. } = self.root;
        let mut raw = RawSuperblock::new_zeroed();
        raw.magic = U64::new(MAGIC);
        raw.version = U32::new(if self.table.is_some() { VERSION } else { WITHOUT_TABLE });
        raw.generation = U64::new(generation);
        raw.identity = self.identity.to_le_bytes();
        raw.blocks = U64::new(u64::from(self.blocks));
        (raw.index, raw.media, raw.class) = (self.index, self.media, self.class as u8);
        raw.root_level = level;
        raw.root_block = U32::new(pointer.block);
        raw.root_generation = U64::new(pointer.generation);
        raw.root_checksum = U32::new(pointer.checksum);
        raw.name_key = self.name_key.0;
        raw.inodes = U64::new(counters.inodes);
        raw.next_inode = U64::new(counters.next_inode);
        raw.free = U64::new(free);
        raw.total = U64::new(total);
        if let Some(table) = &self.table {
            raw.table = table.write();
        }
        raw.checksum = U32::new(checksum(raw.as_bytes()));
        let mut bytes = Buffer::new(BLOCK);
        bytes.copy_from_slice(raw.as_bytes());
        bytes
    }

    /// Reads a copy.
    pub(super) fn read(bytes: &[u8]) -> Result<Self, CopyDamage> {
        let bytes = bytes.get(..BLOCK).ok_or(CopyDamage::Damaged)?;
        let raw = RawSuperblock::ref_from_bytes(bytes).map_err(|_| CopyDamage::Damaged)?;
        if raw.magic.get() != MAGIC || raw.checksum.get() != checksum(bytes) {
            let is_blank = bytes.iter().all(|byte| *byte == 0);
            return Err(if is_blank { CopyDamage::Blank } else { CopyDamage::Damaged });
        }
        let table = match raw.version.get() {
            WITHOUT_TABLE => None,
            VERSION => Some(MediaTable::read(&raw.table)?),
            other => return Err(CopyDamage::Version(other)),
        };
        let identity = u128::from_le_bytes(raw.identity);
        let superblock = Self {
            identity,
            blocks: u32::try_from(raw.blocks.get()).map_err(|_| CopyDamage::Damaged)?,
            index: raw.index,
            media: raw.media,
            class: Class::from_byte(raw.class).ok_or(CopyDamage::Damaged)?,
            name_key: NameKey(raw.name_key),
            root: Root {
                identity,
                generation: raw.generation.get(),
                pointer: Pointer {
                    block: raw.root_block.get(),
                    generation: raw.root_generation.get(),
                    checksum: raw.root_checksum.get(),
                },
                level: raw.root_level,
                counters: Counters { inodes: raw.inodes.get(), next_inode: raw.next_inode.get() },
                free: raw.free.get(),
                total: raw.total.get(),
            },
            table,
        };
        let is_other = table.is_some_and(|table| table.count() != superblock.media);
        if superblock.root.level > MAX_LEVEL || is_other {
            return Err(CopyDamage::Damaged);
        }
        Ok(superblock)
    }

    /// The slots of the media, without that of the home.
    pub(super) fn slots(&self) -> Vec<usize> {
        match &self.table {
            Some(table) => table.slots(),
            None => (1..usize::from(self.media)).collect(),
        }
    }

    /// The key of the medium in a slot beside that of the home.
    pub(super) fn key_of(&self, slot: usize) -> Option<u64> {
        match &self.table {
            Some(table) => table.get(slot).map(|listed| listed.key),
            None => (1..usize::from(self.media)).contains(&slot).then_some(FORMATTED),
        }
    }
}

fn checksum(bytes: &[u8]) -> u32 {
    // The CRC has 32 bits.
    crc32c(&bytes[CHECKED_FROM..])
}

/// The newest of the copies on a medium.
pub(super) fn newest<D: DiskQueue>(medium: &mut Medium<D>) -> Result<Superblock, OpenError> {
    let name = medium.name.clone();
    check_pieces(&name, medium.disk_mut())?;
    if u64::from(medium.blocks) < superblock_copies::COPIES as u64 {
        return Err(OpenError::Blank { medium: name });
    }
    let generation = |superblock: &Superblock| superblock.root.generation;
    let copies =
        superblock_copies::read(medium.disk_mut(), Superblock::read, generation).map_err(|source| {
            let medium = name.clone();
            OpenError::Fault(Fault::Medium { medium, action: "read", offset: 0, length: BLOCK, source })
        })?;
    if let Some(found) = copies.version {
        return Err(OpenError::Version { medium: name, found, known: VERSION });
    }
    let Some(superblock) = copies.newest else {
        if let Some((offset, source)) = copies.unreadable {
            let fault = Fault::Medium { medium: name, action: "read", offset, length: BLOCK, source };
            return Err(OpenError::Fault(fault));
        }
        // Formatting leaves blank copies until it is done.
        let is_blank = copies.blank && !copies.rotten;
        return Err(if is_blank {
            OpenError::Blank { medium: name }
        } else {
            OpenError::Superblocks { medium: name }
        });
    };
    let needed = u64::from(superblock.blocks);
    if u64::from(medium.blocks) < needed {
        return Err(OpenError::TooSmall { medium: name, blocks: u64::from(medium.blocks), needed });
    }
    Ok(superblock)
}

/// Refuses a medium that writes pieces of more than a block.
fn check_pieces(name: &str, disk: &impl DiskQueue) -> Result<(), Unsuitable> {
    let (piece, block) = (disk.physical_block_size(), disk.block_size());
    if piece > BLOCK || !BLOCK.is_multiple_of(block) {
        return Err(Unsuitable::Geometry { medium: name.to_owned(), bytes: piece.max(block) });
    }
    Ok(())
}

/// Refuses a medium that cannot be one of a pool, in which it needs so many blocks.
pub(super) fn check_suitable(name: &str, disk: &impl DiskQueue, needed: u64) -> Result<(), Unsuitable> {
    let blocks = disk.capacity() / BLOCK as u64;
    if blocks < needed {
        return Err(Unsuitable::TooSmall { medium: name.to_owned(), blocks, needed });
    }
    check_pieces(name, disk)
}

/// The blocks of the two copies of a generation.
pub(super) fn copies(generation: u64) -> [u32; 2] {
    // Four copies.
    [0, 1].map(|index| (superblock_copies::offset(generation, index) / BLOCK as u64) as u32)
}
