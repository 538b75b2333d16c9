//! The private page of an end. Only the holders of that end (any number of processes and threads)
//! map it.
//!
//! 1. It holds everything that an end relies on: positions, current regions, locks, flags, the
//!    state of the connection, and options.
//! 2. All words are atomics, because the holders share them. Another holder may write any value, so
//!    a word never leads an access out of the mapping.
//! 3. A service core at the other end reads the options from the page's file, not from a mapping.
//!
//! The layout is part of the format in `docs/spec/stream.md`.

use super::layout::{Names, PRIVATE, RegionSizes};
use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// The head of an end that reads nothing any more, because a page of it was refused.
pub(super) const DISTRUSTED: u64 = u64::MAX;

/// Values of [`Private::state`].
pub mod state {
    /// Bytes may go both ways.
    pub const ESTABLISHED: u32 = 0;
    /// Not yet: the service is still setting the connection up.
    pub const CONNECTING: u32 = 1;
    /// The set-up failed; [`super::Private::error`] says why.
    pub const FAILED: u32 = 2;
}

/// Bits of [`Private::flags`].
pub mod flag {
    /// Its holders read no more (`shutdown(SHUT_RD)`).
    pub const SHUT_RD: u32 = 1;
    /// Its holders write no more (`shutdown(SHUT_WR)`).
    pub const SHUT_WR: u32 = 2;
    /// The other end is dead.
    pub const HUNG_UP: u32 = 4;
    /// ... and that was a reset.
    pub const RESET: u32 = 8;
    /// The reset was reported (once, as `ECONNRESET`).
    pub const RESET_REPORTED: u32 = 16;
    /// `O_NONBLOCK` is set on its descriptor.
    pub const NONBLOCKING: u32 = 32;
    /// `SO_LINGER` with a time of zero.
    pub(crate) const ABORT_ON_CLOSE: u32 = 64;
    /// The other end is a service core with a connection of the network behind it: options are
    /// announced to it ([`super::super::Endpoint::announce`]).
    pub const SERVED: u32 = 128;
    /// This end has reset the connection.
    pub(crate) const HAS_RESET: u32 = 256;
    /// `TCP_CORK`, between two applications: what is sent is held back.
    pub const CORKED: u32 = 512;
    /// `TCP_USER_TIMEOUT`, between two applications ([`super::super::user_timeout`]).
    pub const USER_TIMEOUT: u32 = 1024;
    /// The first bit of four for uses that this crate does not know.
    pub const FREE: u32 = 1 << 16;
    /// From here on: how often a holder did what wakes every thread that watches this end, changing
    /// anything or not (`shutdown(2)`), wrapping.
    pub(crate) const WOKEN: u32 = 1 << 20;
}

/// Words of [`Private::options`]: 0 for an option that was not set, or [`option::SET`] and a value,
/// as `docs/spec/stream.md` has them.
pub mod option {
    /// Words there are.
    pub const COUNT: usize = 40;
    /// A word that was set has this bit; its value is in the others.
    pub const SET: u64 = 1 << 63;
    /// SO_RCVBUF: bytes, as `getsockopt(2)` returns them.
    pub const RECEIVE_BUFFER: usize = 5;
    /// SO_KEEPALIVE: 0 or 1.
    pub const KEEPALIVE: usize = 8;
    /// SO_OOBINLINE: 0 or 1.
    pub const OOB_INLINE: usize = 10;
    /// TCP_NODELAY: 0 or 1.
    pub const NO_DELAY: usize = 14;
    /// TCP_CORK: 0 or 1.
    pub const CORK: usize = 15;
    /// TCP_KEEPIDLE: seconds.
    pub const KEEP_IDLE: usize = 17;
    /// TCP_KEEPINTVL: seconds.
    pub const KEEP_INTERVAL: usize = 18;
    /// TCP_KEEPCNT.
    pub const KEEP_COUNT: usize = 19;
    /// TCP_USER_TIMEOUT: milliseconds.
    pub const USER_TIMEOUT: usize = 21;
    /// IP_TOS.
    pub const TYPE_OF_SERVICE: usize = 27;
    /// IP_TTL.
    pub const TIME_TO_LIVE: usize = 28;
    /// IPV6_TCLASS.
    pub const TRAFFIC_CLASS: usize = 30;
    /// IPV6_UNICAST_HOPS.
    pub const HOP_LIMIT: usize = 31;
    /// TCP_CONGESTION: the name, at most eight letters, the first in the lowest byte.
    pub const CONGESTION: usize = 32;
    /// SO_MAX_PACING_RATE: bytes a second; all ones in the lower half for none.
    pub const PACING_RATE: usize = 33;
    /// Words of [`super::Private::other_options`]: more than the kernel has options that a TCP
    /// socket accepts and that have no word of their own.
    pub const OTHERS: usize = 64;
}

/// The receiving side, on lines of its own.
#[repr(C, align(128))]
#[derive(Debug)]
pub(super) struct Receiving {
    pub lock: AtomicU32,
    /// Bytes read.
    pub head: AtomicU64,
    /// The region in which the head is, and since which byte: as [`super::layout::moved`].
    pub region: AtomicU64,
    /// The other's tail that was last found not to mean that it is dead.
    pub vetted: AtomicU64,
}

/// The sending side, on lines of its own.
#[repr(C, align(128))]
#[derive(Debug)]
pub(super) struct Sending {
    pub lock: AtomicU32,
    /// Bytes published.
    pub tail: AtomicU64,
    /// The region in which the tail is, and since which byte.
    pub region: AtomicU64,
    /// The other's head when it was last read.
    pub head: AtomicU64,
    /// The other's head when the ring was last found full; `u64::MAX`: never; one less: it is to be
    /// left for a larger one.
    pub full_at: AtomicU64,
    /// Lowest bit: a writer found no room since there last was some (`SOCK_NOSPACE` of Linux). The
    /// others: how often there was room again.
    pub space: AtomicU32,
    /// The note of an arrival that gives way next, see [`super::arrivals`].
    pub noted: AtomicU32,
    /// The other's head when a note needed it last. Only the notes use it.
    pub noted_head: AtomicU64,
    /// The end of the bytes that are staged and held back ([`super::cork`]): none, unless it is
    /// more than `tail`. Not 0 either while the producer moves to another region.
    pub held: AtomicU64,
    /// As [`super::layout::Moves`].
    pub left: [AtomicU64; super::layout::REGIONS],
}

/// Taking bytes from the doorbell, on a line of its own.
#[repr(C, align(128))]
#[derive(Debug)]
pub(super) struct Doorbell {
    /// The thread that takes some now, see [`super::waiters::Drain`].
    pub draining: AtomicU32,
    /// What [`super::layout::Notified::bytes`] said when none was left.
    pub drained: AtomicU32,
}

/// See the module.
#[repr(C, align(128))]
#[derive(Debug)]
pub struct Private {
    pub(super) magic: AtomicU64,
    /// Which end: 0 connected, 1 accepted.
    pub(super) end: AtomicU32,
    pub(super) region_sizes: AtomicU32,
    /// What became of the set-up: see [`state`].
    pub state: AtomicU32,
    /// An errno that is still to be reported (`SO_ERROR`), or 0.
    pub error: AtomicU32,
    /// See [`flag`].
    pub flags: AtomicU32,
    /// The largest region to grow to, as a power of two; 0 for the configured one.
    pub send_limit: AtomicU32,
    pub(super) names: Names,
    pub(super) receiving: Receiving,
    pub(super) sending: Sending,
    pub(super) doorbell: Doorbell,
    /// Socket options, see [`option`]. Zero at first.
    pub options: [AtomicU64; option::COUNT],
    /// Bytes sent to a vanished peer: nothing but a reset answers them. A holder's word; zero at
    /// first.
    pub lost: AtomicU32,
    /// Options that mean nothing to either end: a holder stores them and returns them. Zero at
    /// first.
    pub other_options: [AtomicU64; option::OTHERS],
    /// Since when the peer has read nothing though it should, in milliseconds of the monotonic
    /// clock; 0: it has. See [`super::user_timeout`].
    pub(super) stalled_since: AtomicU64,
    /// What it had read then.
    pub(super) stalled_at: AtomicU64,
    /// The mark whose byte was taken by itself. See [`super::urgent`].
    pub(super) urgent_taken: AtomicU64,
}

/// Where the service that sets the connection up writes [`Private::state`] and, right behind it,
/// [`Private::error`], with `pwrite(2)`.
#[cfg(not(loom))]
pub const STATE_OFFSET: usize = std::mem::offset_of!(Private, state);

/// Where [`Private::options`] are, for a process that reads them with `pread(2)`.
#[cfg(not(loom))]
pub const OPTIONS_OFFSET: usize = std::mem::offset_of!(Private, options);

#[cfg(not(loom))]
const _: () = {
    assert!(size_of::<Private>() <= PRIVATE);
    assert!(STATE_OFFSET == 16);
    assert!(std::mem::offset_of!(Private, error) == STATE_OFFSET + 4);
    assert!(std::mem::offset_of!(Private, names) == 32);
};

impl Private {
    /// Sizes of the regions, as the service wrote them.
    pub(super) fn region_sizes(&self) -> RegionSizes {
        let word = self.region_sizes.load(Ordering::Relaxed);
        RegionSizes { smallest: (word & 0xff) as u8, largest: (word >> 8 & 0xff) as u8 }
    }

    /// Whether all of `bits` are set.
    #[inline]
    pub fn has(&self, bits: u32) -> bool {
        self.flags.load(Ordering::Acquire) & bits == bits
    }

    /// Sets `bits`; returns the previous bits.
    pub fn set(&self, bits: u32) -> u32 {
        self.flags.fetch_or(bits, Ordering::AcqRel)
    }

    /// The other counts as having reset the connection, and nothing can be read any more.
    pub(super) fn distrust(&self) {
        self.set(flag::HUNG_UP | flag::RESET);
        self.receiving.head.store(DISTRUSTED, Ordering::Release);
    }

    /// Clears `bits`; returns the previous bits.
    pub fn clear(&self, bits: u32) -> u32 {
        self.flags.fetch_and(!bits, Ordering::AcqRel)
    }

    /// Wakes everything that watches this end: an edge.
    pub fn wake_watchers(&self) {
        self.flags.fetch_add(flag::WOKEN, Ordering::AcqRel);
    }

    /// Takes the error that is still to be reported, 0 if none.
    pub fn take_error(&self) -> u32 {
        self.error.swap(0, Ordering::AcqRel)
    }
}
