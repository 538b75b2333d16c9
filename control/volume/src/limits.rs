//! Limits of the format, and why they are what they are.

/// The unit of everything: superblocks, journal records, extents. Enough for direct I/O on every
/// device in use.
pub const BLOCK: u64 = sietch_disk::BLOCK as u64;

/// Superblock copies: two of each of two generations, so that one rotten copy costs nothing.
pub(crate) const SUPERBLOCKS: u64 = sietch_disk::superblock_copies::COPIES as u64;

/// Where the first half begins.
pub const HALVES_START: u64 = SUPERBLOCKS * BLOCK;

/// Bytes of a half unless a smaller volume requests less: a checkpoint of a thousand areas with
/// fifty extents each.
pub(crate) const USUAL_HALF: u64 = 1 << 20;

/// Bounds of a half: a checkpoint and three records; what a mount reads in a second from a slow
/// disk.
pub(crate) const HALF_RANGE: (u64, u64) = (4 * BLOCK, 64 << 20);

/// The longest name of an area in bytes, as in the control protocol.
pub(crate) const MAX_NAME: usize = 32;

/// The most extents of one area: a record of it is one block.
pub const MAX_EXTENTS: usize = 248;

/// The most areas of a volume: a listing of all stays short.
pub const MAX_AREAS: usize = 1024;

/// The smallest volume: the metadata of the smallest halves, the void and one block.
pub(crate) const MIN_CAPACITY: u64 = HALVES_START + 2 * HALF_RANGE.0 + 2 * BLOCK;
