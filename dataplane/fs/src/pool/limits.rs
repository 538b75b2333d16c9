//! Limits of a pool, with their reasons.

/// Media of a pool: three classes, some of each, and a superblock names them in one byte.
pub const MAX_MEDIA: usize = 8;

/// Blocks at the beginning of each medium: the copies of its superblock.
pub(crate) const FIRST_BLOCK: u32 = sietch_disk::superblock_copies::COPIES as u32;

/// Blocks of the largest run: 256 MiB, a quarter of what a queue takes in one request.
pub const MAX_RUN: u32 = 1 << 16;

/// Smallest home: superblocks, the first nodes, and as much again.
pub(crate) const MIN_HOME: u64 = 512;

/// Smallest medium that is not the home.
pub(crate) const MIN_MEDIUM: u64 = 16;

/// Clean nodes that the writer has in memory: 64 MiB.
pub const WRITER_NODES: usize = 16_384;

/// Clean nodes that a reader has in memory: 16 MiB. Each client has one.
pub const READER_NODES: usize = 4_096;

/// Nodes of a commit that are written by one request: 256 KiB.
pub(crate) const NODES_PER_WRITE: usize = 64;

/// Free node blocks that only removals may take. A commit with removals alone needs room for the
/// copies of the nodes that it changes; it gets the old ones back when it is durable.
pub(crate) const fn node_reserve(home: u32) -> u64 {
    clamp(home / 64, 48, 1024)
}

/// Data blocks that only removals may take: a cut or punched block is written anew.
pub(crate) const fn data_reserve(home: u32) -> u64 {
    clamp(home / 256, 8, 256)
}

/// Node blocks that are taken from the data space at once, and never fewer than [`MIN_CHUNK`].
pub(crate) const fn chunk_blocks(home: u32) -> u32 {
    // At most 256.
    clamp(home / 64, 32, 256) as u32
}

/// Smallest chunk, where the free space of the home is in pieces. A further chunk needs fewer
/// blocks itself: for its own item, and for that of the free run that it was.
pub(crate) const MIN_CHUNK: u32 = 4;

/// Node blocks of a new pool: the reserve, and as much again to work with.
pub(crate) const fn first_chunk(home: u32) -> u32 {
    // At most 2 * 1024 and 256.
    2 * node_reserve(home) as u32 + chunk_blocks(home)
}

const fn clamp(value: u32, low: u64, high: u64) -> u64 {
    let value = value as u64;
    if value < low {
        low
    } else if value > high {
        high
    } else {
        value
    }
}
