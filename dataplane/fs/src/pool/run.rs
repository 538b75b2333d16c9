//! Adjacent blocks of one medium.

use crate::limits::BLOCK;

/// A run of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Run {
    /// The medium, by its place in the pool.
    pub medium: u8,
    /// First block.
    pub start: u32,
    /// Blocks.
    pub blocks: u32,
}

impl Run {
    /// The first block behind it. A run that is inside a medium does not pass the largest number.
    pub fn end(self) -> u32 {
        self.start.saturating_add(self.blocks)
    }

    /// Bytes.
    pub fn bytes(self) -> usize {
        self.blocks as usize * BLOCK
    }

    /// Whether all of `part` is in it.
    pub(super) fn contains(self, part: Self) -> bool {
        self.medium == part.medium && self.start <= part.start && part.end() <= self.end()
    }

    /// Whether they share a block, on whatever medium.
    pub(super) fn overlaps(self, other: Self) -> bool {
        other.start < self.end() && self.start < other.end()
    }
}
