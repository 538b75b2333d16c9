//! Numbers in memory that the processes of one epoll share.
//!
//! A child of fork has the same memory here as its parent, as it has the same kernel epoll. It may
//! have other rights by then, and it may have been compromised. So any number here can be wrong,
//! and can change while it is read:
//!
//! 1. There is no address here, and no type for which a bit pattern is invalid. What a registration
//!    refers to is in each process's own memory ([`crate::readiness::set::registrations::Known`]).
//! 2. A number that leads somewhere is clamped to the arrays, whose lengths each process remembers
//!    for itself. No chain is followed for longer than there are entries.
//! 3. What a hostile relative can do here it can do with the descriptor of the kernel's epoll as
//!    well: change or remove registrations, and have the others woken for nothing or not at all. It
//!    cannot make them read or write elsewhere, nor wait for ever for the lock.
//! 4. A process that closes the epoll replaces the memory ([`Arrays::renew`]).

use std::ffi::c_int;
use std::ptr::{self, NonNull};
use std::sync::atomic::AtomicU32;

use crate::readiness::check::Seen;

use crate::system::memory::map;

/// The kind of a slot's registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum SlotKind {
    /// Nothing: on the free list.
    Nothing = 0,
    /// A socket that the kernel watches with the program's own data, remembered because it may
    /// become a stream.
    Native = 1,
    /// An end of a connection.
    Stream = 2,
    /// Another epoll.
    Nested = 3,
    /// A stream that the program has removed; the kernel still has its placeholder, so that adding
    /// it again needs no system call.
    Dormant = 4,
}

impl SlotKind {
    const fn of(kind_code: u8) -> Self {
        match kind_code {
            1 => Self::Native,
            2 => Self::Stream,
            3 => Self::Nested,
            4 => Self::Dormant,
            _ => Self::Nothing,
        }
    }
}

/// Bits of [`Slot::state`].
pub(crate) mod bit {
    /// On the list.
    pub(crate) const LISTED: u16 = 1;
    /// Counted as a waiter for data.
    pub(crate) const DATA: u16 = 2;
    /// Counted as a waiter for room.
    pub(crate) const ROOM: u16 = 4;
    /// Registered or modified and not reported since: an edge by itself.
    pub(crate) const NEW: u16 = 8;
    /// Reports nothing: one-shot and reported, or removed by the program.
    pub(crate) const SILENT: u16 = 16;
    /// The kernel has reported a nested epoll as readable.
    pub(crate) const KERNEL_READY: u16 = 32;
    /// Had nothing to report when it was `seen`.
    pub(crate) const IDLE: u16 = 64;
    /// The kernel watches it for room too, so that it reports it once more.
    pub(crate) const FORCED: u16 = 128;
    /// The peer has closed, and the kernel no longer watches the placeholder.
    pub(crate) const UNWATCHED: u16 = 256;
    /// Closed here, and maybe open in another process.
    pub(crate) const LEFT_OPEN: u16 = 512;
    /// Counted as a waiter for data that sleeps for many, see
    /// [`crate::readiness::set::registrations::Registrations::sleep`].
    pub(crate) const AMONG_MANY: u16 = 1024;
    /// The kernel has reported its placeholder since it was armed, so its requests are answered.
    pub(crate) const NOTIFIED: u16 = 2048;
    /// The registration is ordered by when it was reported or found ready, and it has not been
    /// found unready since. Set when it is level-triggered and reported, or when a check found it
    /// ready that alone knows since when.
    pub(crate) const QUEUED: u16 = 4096;
    /// The bytes on its placeholder must be examined before the next sleep.
    pub(crate) const EXAMINE: u16 = 8192;
    /// [`FORCED`], and the kernel has not reported it since: a thread that sleeps will get it.
    pub(crate) const PENDING: u16 = 16384;
    /// Forced in the present period, see [`super::State::forcing_since`].
    pub(crate) const FORCED_LATELY: u16 = 32768;
    /// What the kernel's registration of a stream consists of, and what is queued on its
    /// placeholder. The program may remove the stream and add it again meanwhile.
    pub(crate) const OF_PLACEHOLDER: u16 = UNWATCHED | FORCED | PENDING | FORCED_LATELY | EXAMINE;
}

/// A registration: a cache line. All zeros are an empty one.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Slot {
    /// The program's data.
    pub(crate) data: u64,
    /// The values that an edge-triggered registration compares with.
    pub(crate) seen: Seen,
    /// When it was reported, registered or modified last, or found ready by a check that alone
    /// knows since when: in cycles.
    pub(crate) ordered_at: u64,
    /// As the program gave them.
    pub(crate) events: u32,
    /// The descriptor that its maker registered it by.
    pub(crate) fd: c_int,
    /// The lower half of its request for data ([`sietch_ring::stream::Endpoint::arm`]).
    pub(crate) data_request: u32,
    /// The same for room.
    pub(crate) room_request: u32,
    /// Next slot of the same descriptor, or of the free list, plus one.
    pub(crate) next: u32,
    /// Where it is on the list.
    pub(crate) position: u32,
    /// [`crate::readiness::set::registrations::Registrations::sleeps`] when it was last ready.
    pub(crate) ready_at: u32,
    /// A [`SlotKind`], see [`Slot::kind`].
    pub(crate) kind_code: u8,
    /// See [`bit`].
    pub(crate) state: u16,
}

const _: () = assert!(size_of::<Slot>() == 64);

impl Slot {
    /// See [`SlotKind`].
    #[inline]
    pub(crate) const fn kind(&self) -> SlotKind {
        SlotKind::of(self.kind_code)
    }

    /// From now on it registers this.
    pub(crate) const fn set_kind(&mut self, what: SlotKind) {
        self.kind_code = what as u8;
    }
}

/// Yes or no: every value is one of the two.
#[derive(Clone, Copy, Debug, Default)]
#[repr(transparent)]
pub(crate) struct Flag(u8);

impl Flag {
    /// Yes.
    pub(crate) const YES: Self = Self(1);

    /// Whether it says yes.
    #[inline]
    pub(crate) const fn is_yes(self) -> bool {
        self.0 != 0
    }

    /// Yes if `yes`.
    pub(crate) const fn of(yes: bool) -> Self {
        Self(yes as u8)
    }
}

/// Beside the arrays: what the lock protects, and its word. All zeros are that of an epoll in which
/// nothing is registered.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct State {
    /// Threads that sleep in the kernel's epoll.
    pub(crate) sleepers: u32,
    /// Registrations with [`bit::LEFT_OPEN`].
    pub(crate) left_open: u32,
    /// Streams and nested epolls that are registered.
    pub(crate) watched: u32,
    /// Nested epolls among them.
    pub(crate) nested: u32,
    /// Slots on the list.
    pub(crate) listed: u32,
    /// Slots that were ever used.
    pub(crate) used: u32,
    /// The free list, plus one.
    pub(crate) free: u32,
    /// Several threads or processes wait in it, or another epoll or poll watches it: everything
    /// stays armed. Set by [`crate::readiness::set::registrations::Registrations::share`].
    pub(crate) shared: Flag,
    /// Several processes use it: not everything in it is known to each.
    pub(crate) multi_process: Flag,
    /// Whether exec leaves the epoll open, so that the kernel has to know what is registered with
    /// what.
    pub(crate) survives: Flag,
    /// Registrations may have the number of a sleep still.
    pub(crate) numbered: Flag,
    /// Whether another epoll or poll watches this one, so that what wakes is counted.
    pub(crate) has_watchers: Flag,
    /// How often something has woken the watchers.
    pub(crate) edges: u64,
    /// When the present period of forcing registrations began ([`bit::FORCED_LATELY`]), in cycles.
    pub(crate) forcing_since: u64,
}

/// The memory: a head and the arrays, of which pages come when they are touched.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrays {
    start: NonNull<Head>,
    length: usize,
    /// Entries of `first`.
    pub(crate) descriptors: usize,
    /// Entries of the others.
    pub(crate) slots: usize,
}

/// The head of the memory.
#[repr(C)]
struct Head {
    owner: AtomicU32,
    state: State,
}

/// Bytes before the arrays.
const HEAD: usize = 4096;

const _: () = assert!(size_of::<Head>() <= HEAD);

/// The arrays, which the caller must reach under the lock alone.
#[derive(Debug)]
pub(crate) struct ArrayViews {
    pub(crate) state: &'static mut State,
    /// By descriptor: its first registration, plus one.
    pub(crate) first: &'static mut [u32],
    /// Numbers of slots that are hot.
    pub(crate) list: &'static mut [u32],
    pub(crate) slots: &'static mut [Slot],
    /// By slot: what was noticed for watchers. Pages are allocated when there is one.
    pub(crate) noticed: &'static mut [Seen],
    /// By slot: the process that made it ([`crate::readiness::set::sharing::mark`]).
    pub(crate) makers: &'static mut [u64],
}

impl Arrays {
    /// New memory for so many descriptors and registrations. None: there is no room for it.
    pub(crate) fn map(descriptors: usize, slots: usize) -> Option<Self> {
        let length = Self::length(descriptors, slots);
        let start = map(ptr::null_mut(), length, libc::MAP_SHARED)?.cast();
        Some(Self { start, length, descriptors, slots })
    }

    /// Bytes of the memory for so many.
    pub(crate) const fn length(descriptors: usize, slots: usize) -> usize {
        let this = Self { start: NonNull::dangling(), length: 0, descriptors, slots };
        this.offsets()[4] + slots * size_of::<u64>()
    }

    /// Where each array begins.
    const fn offsets(&self) -> [usize; 5] {
        let first = HEAD;
        let list = first + size_of::<u32>() * self.descriptors;
        let slots = (list + size_of::<u32>() * self.slots).next_multiple_of(align_of::<Slot>());
        let noticed = slots + size_of::<Slot>() * self.slots;
        [first, list, slots, noticed, noticed + size_of::<Seen>() * self.slots]
    }

    /// Puts empty memory in the place of this, which other processes that have it keep.
    pub(crate) fn renew(&self) -> bool {
        map(self.start.as_ptr().cast(), self.length, libc::MAP_SHARED | libc::MAP_FIXED).is_some()
    }

    /// The lock's word: the thread that holds it, or 0.
    #[inline]
    pub(crate) const fn owner(&self) -> &'static AtomicU32 {
        // SAFETY: at the start of a mapping that is never unmapped; any value is valid.
        unsafe { &(*self.start.as_ptr()).owner }
    }

    /// # Safety
    /// Called once.
    pub(crate) unsafe fn views(&self) -> ArrayViews {
        let [first, list, slots, noticed, makers] = self.offsets();
        // SAFETY: all are within the mapping, which is never unmapped, disjoint and aligned; every
        // bit pattern is valid. Other processes write there too, under the lock or not: a value
        // that was read twice may differ, and nothing here relies on it.
        unsafe {
            let at = |offset: usize| self.start.as_ptr().cast::<u8>().add(offset);
            ArrayViews {
                state: &mut (*self.start.as_ptr()).state,
                first: std::slice::from_raw_parts_mut(at(first).cast(), self.descriptors),
                list: std::slice::from_raw_parts_mut(at(list).cast(), self.slots),
                slots: std::slice::from_raw_parts_mut(at(slots).cast(), self.slots),
                noticed: std::slice::from_raw_parts_mut(at(noticed).cast(), self.slots),
                makers: std::slice::from_raw_parts_mut(at(makers).cast(), self.slots),
            }
        }
    }
}
