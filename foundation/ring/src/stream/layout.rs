//! The layout of a stream's memories: sizes, offsets, and the words that both ends exchange. The
//! picture is in `docs/spec/stream.md`.
//!
//! 1. The common memory has a header page, then the regions of both directions. Region `n` of a
//!    direction begins `1 << n` bytes into its area.
//! 2. In the header, the words of the producer, of the consumer and of the waiters are on different
//!    cache lines.
//! 3. [`tail`] packs a position and flags into one word. [`moved`] packs a position and a region.
//!
//! The constants and `repr(C)` structs here are the format. A change of them needs another
//! [`MAGIC`].

use crate::sync::{AtomicU32, AtomicU64};

/// Bytes of the common memory before the rings.
pub const HEADER: usize = 4096;
/// Bytes of a private page.
pub(crate) const PRIVATE: usize = 4096;
/// First word of both kinds of memory, version included: another layout has another word.
pub const MAGIC: u64 = u64::from_le_bytes(*b"SIETCHS7");

/// The smallest and the largest region that may be configured: a page, and what 46 bits of
/// addresses hold for 100,000 connections.
pub(crate) const BOUNDS: std::ops::RangeInclusive<u8> = 12..=26;

/// Sizes of regions, as powers of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionSizes {
    /// The region that a direction begins with.
    pub smallest: u8,
    /// The largest that it may grow to.
    pub largest: u8,
}

impl Default for RegionSizes {
    /// 16 KiB, which holds any request of most protocols and leaves 50 connections in a
    /// second-level cache; 4 MiB, what Linux lets a socket buffer grow to (`net.ipv4.tcp_wmem`).
    fn default() -> Self {
        Self { smallest: 14, largest: 22 }
    }
}

impl RegionSizes {
    /// Whether it is within [`BOUNDS`].
    pub(crate) fn is_valid(self) -> bool {
        BOUNDS.contains(&self.smallest) && BOUNDS.contains(&self.largest) && self.smallest <= self.largest
    }

    /// Whether it has a region of `1 << log2` bytes.
    pub(crate) fn has(self, log2: u8) -> bool {
        (self.smallest..=self.largest).contains(&log2)
    }

    /// Bytes of one direction's regions. Region `n` begins at byte `1 << n`: those below it have
    /// fewer bytes in all.
    pub(crate) fn area(self) -> usize {
        2 << self.largest
    }

    /// Bytes of the common memory.
    pub(crate) fn common(self) -> usize {
        HEADER + 2 * self.area()
    }
}

/// The addresses of both ends, as one of them sees them: `sockaddr_in` or `sockaddr_in6`, and how
/// many bytes of it count.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Names {
    /// Of this end.
    pub local: [u8; 28],
    /// Of the other.
    pub peer: [u8; 28],
    /// Bytes of `local`.
    pub local_length: u32,
    /// Bytes of `peer`.
    pub peer_length: u32,
}

/// Bit of [`Producer::held`], once set for good: there has been urgent data ([`super::urgent`]).
pub(super) const MARKED: u64 = 1 << 39;

/// What the producer of a direction writes, on a line of its own.
#[repr(C, align(128))]
#[derive(Debug)]
pub struct Producer {
    /// See [`tail`].
    pub tail: AtomicU64,
    /// The processor that it was last seen on, plus one; 0 for unknown. A hint.
    pub cpu: AtomicU32,
    /// How often it has announced that options on its private page have changed, wrapping.
    pub option_changes: AtomicU32,
    /// What is held back, and until when: see [`super::cork`]; 0 for nothing.
    pub held: AtomicU64,
    /// What the producer has read of the other direction, when it published last. A hint.
    pub read: AtomicU64,
    /// See [`super::arrivals`].
    pub arrivals: [AtomicU64; super::arrivals::KEPT],
    /// The position behind the last urgent byte; 0 for none. See [`super::urgent`].
    pub urgent: AtomicU64,
    /// From here on, and up to where, earlier urgent bytes are passed over.
    pub urgent_passed: [AtomicU64; 2],
    /// Not 0: a process gets SIGURG when urgent data arrive at this end.
    pub urgent_signals: AtomicU64,
}

/// Slots of a table by region: no region has a power beyond [`BOUNDS`].
pub(crate) const REGIONS: usize = 32;

/// Where the producer left each region the last time, see [`moved`]; zero for never. Written once a
/// move.
#[repr(C, align(128))]
#[derive(Debug)]
pub struct Moves {
    /// By the power of two of the region that was left.
    pub left: [AtomicU64; REGIONS],
}

/// What the consumer writes, on a line of its own.
#[repr(C, align(128))]
#[derive(Debug)]
pub struct Consumer {
    /// Bytes read.
    pub head: AtomicU64,
}

/// The waiters, on a line that is not written while none sleeps. See [`super::waiters`].
#[repr(C, align(128))]
#[derive(Debug)]
pub struct Waiters {
    /// Consumers that wait for data, and their requests.
    pub data: AtomicU64,
    /// Producers that wait for room, and their requests.
    pub room: AtomicU64,
    /// The number of the current sleep of the consumer that sleeps for many streams; 0 for none.
    /// See [`super::waiters`].
    pub sleep: AtomicU64,
}

/// One direction.
#[repr(C)]
#[derive(Debug)]
pub struct Direction {
    /// The producer's.
    pub producer: Producer,
    /// The consumer's.
    pub consumer: Consumer,
    /// Both sides'.
    pub waiters: Waiters,
    /// The producer's.
    pub moves: Moves,
}

/// How an end was notified, written by the other, on a line of its own.
#[repr(C, align(128))]
#[derive(Debug)]
pub(crate) struct Notified {
    /// The last request for data that was answered.
    pub data: AtomicU64,
    /// The same for room.
    pub room: AtomicU64,
    /// Bytes written to its descriptor in all, wrapping.
    pub bytes: AtomicU32,
}

/// The beginning of the common memory.
#[repr(C)]
#[derive(Debug)]
pub struct Common {
    /// [`MAGIC`].
    pub magic: AtomicU64,
    /// [`RegionSizes::smallest`] and, shifted by 8, [`RegionSizes::largest`]. For display: each end
    /// has it in its private page.
    pub region_sizes: AtomicU32,
    /// Direction `n` is produced by end `n`.
    pub directions: [Direction; 2],
    /// Of end `n`.
    pub(crate) notified: [Notified; 2],
}

#[cfg(not(loom))]
const _: () = {
    assert!(size_of::<Common>() <= HEADER);
    assert!(size_of::<Names>() == 64);
    assert!(std::mem::offset_of!(Common, directions) == 128);
    assert!(size_of::<Direction>() == 640 && size_of::<Producer>() == 128);
    assert!(std::mem::offset_of!(Common, notified) == 128 + 2 * 640);
    // The notes are on the cache line of the tail.
    assert!(std::mem::offset_of!(Producer, arrivals) + 8 * super::arrivals::KEPT == 64);
};

/// The word that a producer publishes: a position and what goes with it.
pub mod tail {
    /// Nothing comes after this position.
    pub const FIN: u64 = 1;
    /// When this end hangs up, that is a reset (`SO_LINGER` with a time of zero).
    pub(crate) const ABORT: u64 = 2;
    /// A process has closed the end: the kernel knows whether it was the last.
    pub const CLOSING: u64 = 4;
    /// With `CLOSING`: there was something that it had not read.
    pub(crate) const UNREAD: u64 = 8;
    /// With `CLOSING`: this end has reset the connection, whichever other processes hold it.
    pub const RESET: u64 = 16;
    /// Counts closings at one position (modulo 8), so that the hint of the last differs from that
    /// of the one before.
    pub(crate) const CLOSINGS: u64 = 0xe0;
    /// The tail of a connection that was not accepted yet.
    pub(crate) const UNACCEPTED: u64 = word(0, ABORT | CLOSING);

    /// The word for a position and flags.
    #[inline]
    pub const fn word(position: u64, flags: u64) -> u64 {
        position << 8 | flags
    }

    /// The position in a word.
    #[inline]
    pub const fn position(word: u64) -> u64 {
        word >> 8
    }

    /// The next value of the `CLOSINGS` bits after those of `word`.
    #[inline]
    pub(crate) const fn next_closing(word: u64) -> u64 {
        (word & CLOSINGS).wrapping_add(CLOSINGS & CLOSINGS.wrapping_neg()) & CLOSINGS
    }
}

/// The word for a move: from this position on the bytes are in that region.
pub mod moved {
    /// The word for a position and the power of two of the region.
    #[inline]
    pub const fn word(at: u64, log2: u8) -> u64 {
        at << 8 | log2 as u64
    }

    /// Its position.
    #[inline]
    pub const fn at(word: u64) -> u64 {
        word >> 8
    }

    /// Its power of two.
    #[inline]
    pub const fn log2(word: u64) -> u8 {
        (word & 0xff) as u8
    }
}
