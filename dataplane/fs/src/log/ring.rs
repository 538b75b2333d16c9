//! The geometry of the ring: from positions to places, and what is kept free.

use crate::log::record::LINE;

/// Smallest ring, in bytes: the smallest reserve is a quarter of it.
pub const MIN_RING: u64 = 32 << 10;

/// Smallest and largest reserve, in bytes: 21 and 2730 removals with the longest name.
const RESERVES: (u64, u64) = (8 << 10, 1 << 20);

/// Part of the ring that is kept for removals.
const RESERVED_PART: u64 = 16;

/// Bytes of a ring that only removals may use ([`crate::Change::Unlink`], `Free`, `Truncate`,
/// `RemoveXattr`). The digest of a full pool cannot go on before something is removed. It takes the
/// removals together with the writes before them, so they must fit behind a log that is full of
/// writes.
pub fn reserve(ring: u64) -> u64 {
    (ring / RESERVED_PART).clamp(RESERVES.0, RESERVES.1)
}

/// Why memory cannot be a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RingError {
    /// Too small.
    #[error("a log needs at least {MIN_RING} bytes and this memory has {bytes}; make it larger")]
    TooSmall {
        /// Bytes that it has.
        bytes: u64,
    },
    /// Not whole blocks.
    #[error("a log of {bytes} bytes is not whole blocks of {block}; make it a multiple")]
    NotWhole {
        /// Bytes that it has.
        bytes: u64,
        /// A line, or a block of the disk that mirrors it.
        block: u64,
    },
}

/// A ring of so many bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ring {
    bytes: u64,
}

impl Ring {
    /// The ring that fills memory of so many bytes, which a disk of these blocks may mirror.
    pub(crate) fn new(bytes: usize, block: usize) -> Result<Self, RingError> {
        let (bytes, block) = (bytes as u64, block as u64);
        if bytes < MIN_RING {
            return Err(RingError::TooSmall { bytes });
        }
        // Nothing is a multiple of 0 but 0.
        if !block.is_multiple_of(LINE as u64) || !bytes.is_multiple_of(block) {
            return Err(RingError::NotWhole { bytes, block });
        }
        Ok(Self { bytes })
    }

    pub(crate) fn bytes(self) -> u64 {
        self.bytes
    }

    /// Where in the memory `position` is.
    pub(crate) fn place(self, position: u64) -> usize {
        // Below the length of a memory that is mapped.
        (position % self.bytes) as usize
    }

    /// Bytes from `position` to the end of the ring: not 0.
    pub(crate) fn contiguous(self, position: u64) -> u64 {
        self.bytes - position % self.bytes
    }

    /// Bytes to pad at `position` so that `length` bytes fit in one piece.
    pub(crate) fn pad_before(self, position: u64, length: u64) -> u64 {
        let contiguous = self.contiguous(position);
        if length <= contiguous { 0 } else { contiguous }
    }
}
