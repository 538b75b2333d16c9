//! What a commit makes current.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::tree::{MAX_LEVEL, Pointer};

/// Numbers that the file system keeps beside the tree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Inodes in use.
    pub inodes: u64,
    /// The first inode number that was never used.
    pub next_inode: u64,
}

/// A generation of a pool: all that a [`super::Reader`] needs to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Root {
    /// The pool.
    pub identity: u128,
    /// Number of the commit.
    pub generation: u64,
    /// What the commit was given.
    pub counters: Counters,
    /// Blocks that no file has.
    pub free: u64,
    /// Blocks in all.
    pub total: u64,
    pub(crate) pointer: Pointer,
    pub(crate) level: u8,
}

/// A root in bytes, to pass it to another process.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawRoot {
    identity: [u8; 16],
    generation: U64,
    inodes: U64,
    next_inode: U64,
    free: U64,
    total: U64,
    node_generation: U64,
    block: U32,
    checksum: U32,
    level: U64,
}

impl Root {
    /// Bytes of a root that is passed to another process.
    pub const BYTES: usize = size_of::<RawRoot>();

    /// The root in bytes.
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let raw = RawRoot {
            identity: self.identity.to_le_bytes(),
            generation: U64::new(self.generation),
            inodes: U64::new(self.counters.inodes),
            next_inode: U64::new(self.counters.next_inode),
            free: U64::new(self.free),
            total: U64::new(self.total),
            node_generation: U64::new(self.pointer.generation),
            block: U32::new(self.pointer.block),
            checksum: U32::new(self.pointer.checksum),
            level: U64::new(u64::from(self.level)),
        };
        let mut bytes = [0; Self::BYTES];
        bytes.copy_from_slice(raw.as_bytes());
        bytes
    }

    /// The root that the bytes say, if they can be one.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let raw = RawRoot::read_from_bytes(bytes).ok()?;
        Some(Self {
            identity: u128::from_le_bytes(raw.identity),
            generation: raw.generation.get(),
            counters: Counters { inodes: raw.inodes.get(), next_inode: raw.next_inode.get() },
            free: raw.free.get(),
            total: raw.total.get(),
            pointer: Pointer {
                block: raw.block.get(),
                generation: raw.node_generation.get(),
                checksum: raw.checksum.get(),
            },
            level: u8::try_from(raw.level.get()).ok().filter(|level| *level <= MAX_LEVEL)?,
        })
    }
}
