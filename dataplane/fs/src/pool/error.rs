//! Why a pool cannot be made or opened.

use crate::error::Fault;

/// Why a medium cannot hold a pool, or a part of one.
#[derive(Debug, thiserror::Error)]
pub enum Unsuitable {
    /// Too small.
    #[error("{medium}: has {blocks} blocks of 4096 bytes and needs {needed}; choose a larger one")]
    TooSmall {
        /// Which one.
        medium: String,
        /// Blocks that it has.
        blocks: u64,
        /// Blocks that it needs.
        needed: u64,
    },
    /// Its pieces are larger than a block.
    #[error("{medium}: writes pieces of {bytes} bytes, more than 4096; choose another medium")]
    Geometry {
        /// Which one.
        medium: String,
        /// Bytes that it writes in one piece.
        bytes: usize,
    },
}

/// Why [`super::format()`] refuses.
#[derive(Debug, thiserror::Error)]
pub enum FormatError {
    /// None, or too many.
    #[error("a pool has 1 to {most} media, not {count}")]
    Count {
        /// Media given.
        count: usize,
        /// Media that a pool may have.
        most: usize,
    },
    /// It cannot hold a pool.
    #[error(transparent)]
    Unsuitable(#[from] Unsuitable),
    /// A medium failed. It holds no pool now.
    #[error(transparent)]
    Fault(#[from] Fault),
}

/// Why a pool does not open.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// None, or too many, or too few.
    #[error("the pool has {needed} media and {count} are given; name all of them, the home first")]
    Count {
        /// Media given.
        count: usize,
        /// Media of the pool.
        needed: usize,
    },
    /// It was never formatted, or not completely.
    #[error("{medium}: holds no pool; format it, or name the medium that does")]
    Blank {
        /// Which one.
        medium: String,
    },
    /// No copy of its superblock is whole.
    #[error("{medium}: no copy of its superblock is whole; restore the medium from a backup")]
    Superblocks {
        /// Which one.
        medium: String,
    },
    /// Of another version.
    #[error("{medium}: has format version {found}, and this program knows version {known}; use a newer one")]
    Version {
        /// Which one.
        medium: String,
        /// Its version.
        found: u32,
        /// The version of this program.
        known: u32,
    },
    /// Of another pool.
    #[error("{medium}: belongs to pool {found:032x}, not to {wanted:032x}; give the medium of this pool")]
    Foreign {
        /// Which one.
        medium: String,
        /// Its pool.
        found: u128,
        /// The pool of the home.
        wanted: u128,
    },
    /// Not in its place.
    #[error("{medium}: is medium {found} of its pool and was given as medium {given}; change the order")]
    Swapped {
        /// Which one.
        medium: String,
        /// Its place in the pool.
        found: usize,
        /// Where it was given.
        given: usize,
    },
    /// It left the pool, or never joined it, and another medium is in its slot.
    #[error("{medium}: does not belong to the pool any more: another medium is medium {slot}; give that one")]
    Left {
        /// Which one.
        medium: String,
        /// Its slot, when it belonged to the pool.
        slot: usize,
    },
    /// Shorter than when it was formatted.
    #[error("{medium}: has {blocks} blocks and had {needed}; restore its size")]
    TooSmall {
        /// Which one.
        medium: String,
        /// Blocks that it has.
        blocks: u64,
        /// Blocks that it had.
        needed: u64,
    },
    /// It cannot hold a pool.
    #[error(transparent)]
    Unsuitable(#[from] Unsuitable),
    /// A medium failed, or what it holds is damaged.
    #[error(transparent)]
    Fault(#[from] Fault),
}

/// Why the media of a pool cannot be changed. The pool is as it was, but for
/// [`MediaError::Fault`]: then opening it again says whether the change was made.
#[derive(Debug, thiserror::Error)]
pub enum MediaError {
    /// No medium is in that slot.
    #[error("the pool has no medium in slot {slot}")]
    Unknown {
        /// Which one.
        slot: usize,
    },
    /// As many as a pool may have.
    #[error("the pool has {most} media, and may not have more; take one out first")]
    Count {
        /// Media that a pool may have.
        most: usize,
    },
    /// A medium only gets larger.
    #[error("{medium}: has {now} blocks of 4096 bytes, and cannot have {blocks}: it only gets larger")]
    NotLarger {
        /// Which one.
        medium: String,
        /// Blocks that it should have.
        blocks: u32,
        /// Blocks that it has.
        now: u32,
    },
    /// It is not so large.
    #[error("{medium}: should have {blocks} blocks of 4096 bytes, and there are {capacity}")]
    Capacity {
        /// Which one.
        medium: String,
        /// Blocks that it should have.
        blocks: u32,
        /// Blocks that there are.
        capacity: u32,
    },
    /// It cannot hold a pool.
    #[error(transparent)]
    Unsuitable(#[from] Unsuitable),
    /// The home cannot leave.
    #[error("{medium}: has the tree of the pool, which is nowhere else; only other media can leave")]
    Home {
        /// Which one.
        medium: String,
    },
    /// It has data.
    #[error("{medium}: has {blocks} blocks of data; move them first")]
    InUse {
        /// Which one.
        medium: String,
        /// Blocks in use.
        blocks: u64,
    },
    /// A medium failed, or the home has no room for the change.
    #[error(transparent)]
    Fault(#[from] Fault),
}
