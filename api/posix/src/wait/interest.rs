//! What the library remembers of an epoll: which of our sockets are registered there, and with what.
//!
//! 1. An [`Interest`] is one mapping: a head, the first registration of each descriptor, the *list* and the registrations
//!    ([`Slot`], a cache line each). Address space is reserved for every descriptor that the process may open; pages
//!    come when they are touched. It is made when the first of our sockets is registered: an epoll of kernel descriptors has none.
//! 2. Interests are never unmapped, but used again: whoever walks [`each`] needs no lock for it.
//! 3. A slot holds a reference to its description, so the connection's memory stays mapped while it may be looked at. The close
//!    of the last descriptor takes the slots out (`hooks`), as the kernel takes out registrations of a file that is gone.
//! 4. The lock is for the few instructions of a change or of a scan, never held asleep, always within a
//!    [`Section`]: handlers of the program wait for the end of it. Its word is the holder's mark, so that a handler that came in by
//!    another way (installed with a raw system call) gets an error instead of waiting for the thread that it interrupted.
//! 5. All but the head lies in memory that a child of fork shares, as it shares the kernel's epoll: edges, one-shots and changes are then
//!    everybody's, whoever waits. A child that does not touch an inherited epoll (most do not) leaves it alone, closes included ([`Interest::is_inherited`]);
//!    one that uses it comes in ([`Interest::come_in`]), and from then on it is *common*: everything stays armed, and each process passes over what
//!    it does not know ([`super::family`]). A child recognises itself by a page that the kernel wipes on fork.
//! 6. What a process closes while a relative lives may still be open there. The registration stays (`LEFT`) until the kernel, asked with
//!    `KCMP_EPOLL_TFD` before a scan, has it no more.

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::ops::{Deref, DerefMut};
use std::ptr::{self, NonNull};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, fence};

use super::look::{Seen, cycles};
use super::signals::Section;
use super::{family, spin};
use crate::table::{DESCRIPTORS, Held};

/// Upper 20 bits of the kernel's data for what is ours: no address of a program (not canonical) and no small number. Below are 18 bits of the slot's
/// number and 26 of the program's data, for who inherits the epoll over exec (`inherit`).
pub const TAG: u64 = 0x5ce7_c000_0000_0000;
/// The bits of [`TAG`].
pub const TAG_MASK: u64 = !0x0fff_ffff_ffff;
/// Bits of the program's data that the kernel is given.
pub const DATA_BITS: u32 = 26;

/// Slots of an epoll at most: 18 bits hold more than a process has memory maps for (a connection takes two).
pub const SLOTS: usize = 1 << 18;

/// The kernel's data for a slot.
pub const fn tagged(number: u32, data: u64) -> u64 {
    let most = (1 << DATA_BITS) - 1;
    TAG | (number as u64) << DATA_BITS | if data < most { data } else { most }
}

/// Bytes before the arrays.
const HEAD: usize = 4096;

/// Looks at a taken lock between two yields.
const SPINS: u32 = 100;
/// Looks between two questions whether its holder lives.
const DEAD: u32 = 10_000;

/// What a slot registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum What {
    /// Nothing: on the free list.
    Nothing = 0,
    /// A socket that the kernel watches with the program's own data, remembered because it may become a stream.
    Native = 1,
    /// An end of a connection.
    Stream = 2,
    /// Another epoll.
    Nested = 3,
    /// A stream that the program has taken out; the kernel still has its placeholder, so that it comes back without a system call.
    Dormant = 4,
}

/// Bits of [`Slot::state`].
pub mod bit {
    /// On the list.
    pub const LISTED: u16 = 1;
    /// Counted as a waiter for data.
    pub const DATA: u16 = 2;
    /// Counted as a waiter for room.
    pub const ROOM: u16 = 4;
    /// Registered or modified and not reported since: an edge by itself.
    pub const NEW: u16 = 8;
    /// One-shot and reported.
    pub const SPENT: u16 = 16;
    /// The kernel says that a nested epoll is readable.
    pub const KERNEL: u16 = 32;
    /// Had nothing to report when it was `seen`.
    pub const IDLE: u16 = 64;
    /// The kernel was asked to report it once more, for room too.
    pub const KICKED: u16 = 128;
    /// The peer is gone, and the kernel was told to watch the placeholder no longer.
    pub const GONE: u16 = 256;
    /// Closed here, and maybe open in another process.
    pub const LEFT: u16 = 512;
    /// Counted as a waiter for data that sleeps for many, see [`super::Body::sleep`].
    pub const AMONG_MANY: u16 = 1024;
    /// The kernel has reported its placeholder since it was armed, so its requests are answered.
    pub const RUNG: u16 = 2048;
    /// Level-triggered, was reported, and has not been found unready since.
    pub const QUEUED: u16 = 4096;
}

/// A registration. A cache line.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Slot {
    /// What is registered; none on the free list.
    pub held: Option<Held>,
    /// The program's data.
    pub data: u64,
    /// What an edge-triggered registration compares with.
    pub seen: Seen,
    /// As the program gave them.
    pub events: u32,
    /// The descriptor that it was registered by.
    pub fd: c_int,
    /// The lower half of its request for data ([`sietch_ring::stream::End::arm`]).
    pub data_request: u32,
    /// The same for room.
    pub room_request: u32,
    /// Next slot of the same descriptor, or of the free list, plus one.
    pub next: u32,
    /// Where it is on the list.
    pub position: u32,
    /// When it was last ready, in ticks ([`super::look::ticks`]).
    pub ready_at: u32,
    /// See [`What`].
    pub what: What,
    /// See [`bit`].
    pub state: u16,
}

const _: () = assert!(size_of::<Slot>() == 128 || size_of::<Slot>() == 64);

/// See the module.
#[derive(Debug)]
pub struct Interest {
    next: AtomicPtr<Interest>,
    taken: AtomicU32,
    /// Of a parent, and not used in this process.
    inherited: AtomicBool,
    common: &'static Common,
}

/// What processes share.
#[derive(Debug)]
struct Common {
    /// The thread that holds the lock, or 0.
    owner: AtomicU32,
    body: UnsafeCell<Body>,
}

/// Values of [`Interest::taken`].
mod taken {
    /// For whoever needs one.
    pub const FREE: u32 = 0;
    /// An epoll's.
    pub const IN_USE: u32 = 1;
    /// Another process may use it still: never again.
    pub const LOST: u32 = 2;
}

const _: () = assert!(size_of::<Common>() <= HEAD && size_of::<Interest>() <= HEAD);

/// What the lock protects.
#[derive(Debug)]
pub struct Body {
    /// A descriptor of the epoll.
    pub epfd: c_int,
    /// Threads that sleep in the kernel's epoll.
    pub sleepers: u32,
    /// Several threads or processes wait in it, or another epoll or poll watches it: everything stays armed. Set by [`Body::share`].
    pub shared: bool,
    /// The number of the sleep that a thread is about to begin here alone; 0 for none. A service core rings once for all that are armed with it, because the thread
    /// looks at all of them when it wakes.
    pub sleep: u64,
    /// Registrations may have such a number still.
    pub numbered: bool,
    /// Several processes use it: not everything in it is known to each.
    pub common: bool,
    /// Whether exec leaves the epoll open, so that the kernel has to know what is registered with what.
    pub survives: bool,
    /// Registrations with [`bit::LEFT`].
    pub left: u32,
    /// Streams and nested epolls that are registered.
    pub watched: u32,
    /// Nested epolls among them.
    pub nested: u32,
    /// Slots on the list.
    pub listed: u32,
    /// When the kernel was last asked, in cycles.
    pub asked: u64,
    /// What [`crate::real::calls`] said then.
    pub asked_at_call: u32,
    /// Whether the kernel had something of its own to report then: it has still, unless somebody used it up.
    pub natives: bool,
    /// Whether those filled the array of the last call: it is the streams' turn.
    pub streams_first: bool,
    /// Whether somebody watches from outside, so that what wakes is counted.
    pub outside: bool,
    /// How often something has woken who watches from outside.
    pub edges: u64,
    /// Where the peer of what was last reported was seen.
    pub peer: Option<u32>,
    /// Slots that were ever used.
    used: u32,
    /// The free list, plus one.
    free: u32,
    first: &'static mut [u32],
    list: &'static mut [u32],
    slots: &'static mut [Slot],
    /// By slot: what was noticed for who watches from outside. Pages come when somebody does.
    pub(super) noticed: &'static mut [Seen],
    /// By slot: who made it ([`family::mark`]).
    makers: &'static mut [u64],
    /// By slot: when it was reported, registered or modified last, in cycles.
    ordered: &'static mut [u64],
}

// SAFETY: `body` is only reached through `Locked`, which holds the lock.
unsafe impl Sync for Common {}

static ALL: AtomicPtr<Interest> = AtomicPtr::new(ptr::null_mut());

/// Every interest that this process uses.
pub fn each() -> impl Iterator<Item = &'static Interest> {
    let mut at = ALL.load(Acquire);
    std::iter::from_fn(move || {
        // SAFETY: interests are never unmapped; the list only grows.
        let now = unsafe { at.as_ref() }?;
        at = now.next.load(Acquire);
        let used = now.taken.load(Acquire) == taken::IN_USE && !now.is_inherited();
        Some(used.then_some(now))
    })
    .flatten()
}

impl Interest {
    /// An empty one for the epoll behind `epfd`.
    pub fn take(epfd: c_int) -> Option<&'static Self> {
        let mut at = ALL.load(Acquire);
        // SAFETY: interests are never unmapped.
        while let Some(old) = unsafe { at.as_ref() } {
            if old.taken.compare_exchange(taken::FREE, taken::IN_USE, AcqRel, Relaxed).is_ok() {
                old.lock()?.epfd = epfd;
                return Some(old);
            }
            at = old.next.load(Acquire);
        }
        Self::map(epfd)
    }

    fn map(epfd: c_int) -> Option<&'static Self> {
        let descriptors = descriptors();
        let slots = descriptors.min(SLOTS);
        let (first, list) = (HEAD, HEAD + 4 * descriptors);
        let lines = (list + 4 * slots).next_multiple_of(128);
        let noticed = lines + slots * size_of::<Slot>();
        let makers = noticed + slots * size_of::<Seen>();
        let ordered = makers + slots * size_of::<u64>();
        let length = ordered + slots * size_of::<u64>();
        let head = map(HEAD, libc::MAP_PRIVATE)?;
        let start = map(length, libc::MAP_SHARED)?;
        // SAFETY: all six are within the new mapping, apart from one another and aligned; zeroes are valid numbers and valid slots.
        let (first, list, slots, noticed, makers, ordered) = unsafe {
            (
                std::slice::from_raw_parts_mut(start.add(first).cast().as_ptr(), descriptors),
                std::slice::from_raw_parts_mut(start.add(list).cast().as_ptr(), slots),
                std::slice::from_raw_parts_mut(start.add(lines).cast().as_ptr(), slots),
                std::slice::from_raw_parts_mut(start.add(noticed).cast().as_ptr(), slots),
                std::slice::from_raw_parts_mut(start.add(makers).cast().as_ptr(), slots),
                std::slice::from_raw_parts_mut(start.add(ordered).cast().as_ptr(), slots),
            )
        };
        let body = Body {
            epfd,
            sleepers: 0,
            shared: false,
            sleep: 0,
            numbered: false,
            common: false,
            survives: true,
            left: 0,
            watched: 0,
            nested: 0,
            listed: 0,
            asked: 0,
            asked_at_call: 0,
            natives: false,
            streams_first: false,
            outside: false,
            edges: 0,
            peer: None,
            used: 0,
            free: 0,
            first,
            list,
            slots,
            noticed,
            makers,
            ordered,
        };
        let (new, common) = (head.cast::<Self>(), start.cast::<Common>());
        // SAFETY: each at the start of a mapping, which is aligned and long enough, and never unmapped.
        let new = unsafe {
            common.write(Common { owner: AtomicU32::new(0), body: UnsafeCell::new(body) });
            new.write(Self {
                next: AtomicPtr::new(ptr::null_mut()),
                taken: AtomicU32::new(taken::IN_USE),
                inherited: AtomicBool::new(false),
                common: common.as_ref(),
            });
            new.as_ref()
        };
        let mut top = ALL.load(Acquire);
        loop {
            new.next.store(top, Relaxed);
            match ALL.compare_exchange_weak(top, ptr::from_ref(new).cast_mut(), AcqRel, Acquire) {
                Ok(_) => return Some(new),
                Err(now) => top = now,
            }
        }
    }

    /// Whether it is of a parent, and not used in this process.
    #[inline]
    pub fn is_inherited(&self) -> bool {
        self.inherited.load(Relaxed)
    }

    /// A child uses its parent's epoll.
    #[cold]
    pub fn come_in(&self) {
        let alone = !family::any_lives();
        let Some(mut body) = self.lock() else { return };
        self.inherited.store(false, Relaxed);
        if !alone {
            body.share();
            body.common = true;
            return;
        }
        // The parent has left it to this process: what it registered since the fork went with it.
        body.sleepers = 0;
        for number in body.numbers() {
            if body.slots[number as usize].what != What::Nothing
                && !family::knows(body.makers[number as usize])
            {
                std::mem::forget(body.slots[number as usize].held.take());
                body.remove(number);
            }
        }
    }

    /// Empties it and puts it aside for the next epoll.
    pub fn give_back(&self) {
        if self.is_inherited() || family::any_lives() {
            // A relative may go on with it.
            self.taken.store(taken::LOST, Release);
            return;
        }
        if let Some(mut body) = self.lock() {
            for number in 0..body.used {
                if body.slots[number as usize].what != What::Nothing {
                    body.remove(number);
                }
            }
            (body.shared, body.sleepers, body.asked, body.peer) = (false, 0, 0, None);
            (body.natives, body.streams_first, body.outside, body.edges) = (false, false, false, 0);
            (body.common, body.survives, body.numbered) = (false, true, false);
        }
        self.taken.store(taken::FREE, Release);
    }

    /// Takes the lock; `None` in a handler that interrupted its holder.
    #[inline]
    pub fn lock(&self) -> Option<Locked<'_>> {
        recognise_child();
        let section = Section::enter();
        let own = sietch_ring::stream::thread();
        let owner = &self.common.owner;
        if owner.compare_exchange(0, own, Acquire, Relaxed).is_err() && !contend(owner, own) {
            return None;
        }
        Some(Locked { behind: self.common, _section: section })
    }
}

#[cold]
fn contend(word: &AtomicU32, own: u32) -> bool {
    let mut turns: u32 = 0;
    loop {
        let owner = word.load(Relaxed);
        if owner == own {
            return false;
        }
        // What a process that was killed held is whole enough: nothing of it is an address that others follow.
        let free =
            owner == 0 || turns.is_multiple_of(DEAD) && turns != 0 && !sietch_ring::stream::lives(owner);
        if free && word.compare_exchange(owner, own, Acquire, Relaxed).is_ok() {
            return true;
        }
        turns = turns.wrapping_add(1);
        if turns.is_multiple_of(SPINS) {
            spin::give_way();
        }
        std::hint::spin_loop();
    }
}

/// An interest whose lock the caller holds.
#[derive(Debug)]
pub struct Locked<'a> {
    behind: &'a Common,
    _section: Section,
}

impl Deref for Locked<'_> {
    type Target = Body;

    #[inline]
    fn deref(&self) -> &Body {
        // SAFETY: the lock is held.
        unsafe { &*self.behind.body.get() }
    }
}

impl DerefMut for Locked<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Body {
        // SAFETY: the lock is held, and this is the only way to the body.
        unsafe { &mut *self.behind.body.get() }
    }
}

impl Drop for Locked<'_> {
    #[inline]
    fn drop(&mut self) {
        self.behind.owner.store(0, Release);
    }
}

impl Body {
    /// A registration.
    #[inline]
    pub fn slot(&mut self, number: u32) -> &mut Slot {
        &mut self.slots[number as usize]
    }

    /// Whether a registration means nothing to this process.
    #[inline]
    pub fn is_foreign(&self, number: u32) -> bool {
        self.common && !family::knows(self.makers[number as usize])
    }

    /// The slot that the kernel's data names, if it is in use.
    pub fn named(&self, data: u64) -> Option<u32> {
        let number = ((data & !TAG_MASK) >> DATA_BITS) as u32;
        (data & TAG_MASK == TAG && number < self.used && self.slots[number as usize].what != What::Nothing)
            .then_some(number)
    }

    /// The slot on the list at a position.
    #[inline]
    pub fn at(&self, position: u32) -> u32 {
        self.list[position as usize]
    }

    /// Numbers of slots that may be in use.
    pub fn numbers(&self) -> std::ops::Range<u32> {
        0..self.used
    }

    /// The registration of a description by a descriptor. Those of descriptions that lost their last descriptor unseen are taken out.
    pub fn find(&mut self, fd: c_int, held: &Held) -> Option<u32> {
        let mut next = *self.first.get(fd.cast_unsigned() as usize)?;
        let mut found = None;
        while next != 0 {
            let number = next - 1;
            let slot = &self.slots[number as usize];
            next = slot.next;
            if self.is_foreign(number) {
                continue;
            }
            match &slot.held {
                Some(other) if other.number() == held.number() => found = Some(number),
                Some(other) if other.descriptors() != 0 || slot.state & bit::LEFT != 0 => {}
                _ => self.remove(number),
            }
        }
        found
    }

    /// A new registration, on the list. `None`: no room.
    pub fn insert(&mut self, what: What, fd: c_int, held: &Held, events: u32, data: u64) -> Option<u32> {
        let index = usize::try_from(fd).ok().filter(|fd| *fd < self.first.len())?;
        let number = if self.free != 0 {
            self.free - 1
        } else if (self.used as usize) < self.slots.len() {
            self.used += 1;
            self.used - 1
        } else {
            return None;
        };
        let first = self.first[index];
        let slot = &mut self.slots[number as usize];
        if self.free != 0 {
            self.free = slot.next;
        }
        super::hooks::count_watch(held, true);
        *slot = Slot {
            held: Some(held.clone()),
            data,
            seen: Seen::at_registration(held),
            events,
            fd,
            data_request: 0,
            room_request: 0,
            next: first,
            position: 0,
            ready_at: 0,
            what,
            state: bit::NEW,
        };
        self.first[index] = number + 1;
        self.makers[number as usize] = family::mark();
        self.order(number, cycles());
        self.count(what, true);
        if what != What::Native {
            self.put_on_list(number);
        }
        Some(number)
    }

    /// Lets the next registration have this number, which nobody has.
    pub fn skip_to(&mut self, number: u32) -> bool {
        let fits = number >= self.used && (number as usize) < self.slots.len() && self.free == 0;
        if fits {
            self.used = number;
        }
        fits
    }

    fn count(&mut self, what: What, more: bool) {
        let add = |counter: &mut u32| *counter = if more { *counter + 1 } else { counter.saturating_sub(1) };
        if matches!(what, What::Stream | What::Nested) {
            add(&mut self.watched);
        }
        if what == What::Nested {
            add(&mut self.nested);
        }
    }

    /// A socket has become what it was not.
    pub fn becomes(&mut self, number: u32, what: What) {
        let before = self.slot(number).what;
        self.count(before, false);
        self.count(what, true);
        let slot = self.slot(number);
        (slot.what, slot.state) = (what, slot.state & (bit::LISTED | bit::GONE) | bit::NEW);
        slot.seen = slot.held.as_ref().map_or_else(Seen::default, Seen::at_registration);
        self.order(number, cycles());
        if matches!(what, What::Stream | What::Nested) {
            self.put_on_list(number);
        } else {
            self.take_off_list(number);
        }
    }

    /// Takes a registration out. That of a relative goes without its reference, which is none to what this process has.
    pub fn remove(&mut self, number: u32) {
        self.take_off_list(number);
        self.disarm(number);
        let foreign = self.is_foreign(number);
        let free = self.free;
        let slot = &mut self.slots[number as usize];
        let (fd, next, what) = (slot.fd, slot.next, slot.what);
        if foreign {
            std::mem::forget(slot.held.take());
        }
        let held = slot.held.take();
        let left = slot.state & bit::LEFT != 0;
        (slot.what, slot.next, slot.state) = (What::Nothing, free, 0);
        self.left = self.left.saturating_sub(u32::from(left));
        self.free = number + 1;
        self.count(what, false);
        if let Some(held) = &held {
            super::hooks::count_watch(held, false);
        }
        let mut at = self.first[fd.cast_unsigned() as usize];
        if at == number + 1 {
            self.first[fd.cast_unsigned() as usize] = next;
        } else {
            while at != 0 {
                let slot = self.slot(at - 1);
                at = slot.next;
                if at == number + 1 {
                    slot.next = next;
                    break;
                }
            }
        }
        if self.numbered && self.sleepers != 0 {
            // The bell that was rung for all may have gone with it.
            self.unnumber();
            self.pass_on();
        }
    }

    /// From now on several use it.
    pub fn share(&mut self) {
        self.shared = true;
        self.unnumber();
    }

    /// Each registration is rung for itself again. What was not, because another was, is looked at by who wakes for that, or by the caller.
    pub fn unnumber(&mut self) {
        if !std::mem::take(&mut self.numbered) {
            return;
        }
        for number in self.numbers() {
            let slot = self.slot(number);
            if slot.state & bit::AMONG_MANY != 0
                && let Some(end) = slot.held.as_ref().and_then(|held| held.end())
            {
                end.number_sleep(0);
            }
        }
        fence(SeqCst);
    }

    /// When a registration was reported, registered or modified last, in cycles.
    #[inline]
    pub fn ordered_at(&self, number: u32) -> u64 {
        self.ordered[number as usize]
    }

    /// It is now, at `at`.
    #[inline]
    pub fn order(&mut self, number: u32, at: u64) {
        self.ordered[number as usize] = at;
    }

    /// Puts a slot on the list: it will be looked at in every scan.
    #[inline]
    pub fn put_on_list(&mut self, number: u32) {
        let position = self.listed;
        let slot = &mut self.slots[number as usize];
        if slot.state & bit::LISTED == 0 {
            slot.state |= bit::LISTED;
            slot.position = position;
            self.list[position as usize] = number;
            self.listed += 1;
        }
    }

    /// Takes a slot off the list; the last takes its place.
    pub fn take_off_list(&mut self, number: u32) {
        let slot = &mut self.slots[number as usize];
        if slot.state & bit::LISTED == 0 {
            return;
        }
        slot.state &= !bit::LISTED;
        let position = slot.position;
        self.listed -= 1;
        let last = self.list[self.listed as usize];
        self.list[position as usize] = last;
        self.slots[last as usize].position = position;
    }
}

/// Descriptors that this process may ever have.
fn descriptors() -> usize {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the C library writes the limits there.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    usize::try_from(limit.rlim_max).unwrap_or(DESCRIPTORS).clamp(1024, DESCRIPTORS)
}

fn map(length: usize, sharing: c_int) -> Option<NonNull<u8>> {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let flags = sharing | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping of its own.
    let start = unsafe { libc::mmap(ptr::null_mut(), length, access, flags, -1, 0) };
    if start == libc::MAP_FAILED { None } else { NonNull::new(start.cast()) }
}

/// A word of a page that the kernel wipes in a child of fork.
static PARENT: AtomicPtr<AtomicU32> = AtomicPtr::new(ptr::null_mut());

/// In a child of fork, the first time: what its parent had is inherited.
#[inline]
pub(super) fn recognise_child() {
    // SAFETY: the page is never unmapped.
    match unsafe { PARENT.load(Acquire).as_ref() } {
        Some(word) if word.load(Relaxed) != 0 => {}
        word => begin(word),
    }
}

#[cold]
fn begin(word: Option<&AtomicU32>) {
    let Some(word) = word else {
        let Some(page) = map(HEAD, libc::MAP_PRIVATE) else { return };
        let word = page.cast::<AtomicU32>();
        // SAFETY: a page of zeroes that is this function's until it is published.
        unsafe {
            libc::madvise(page.as_ptr().cast(), HEAD, libc::MADV_WIPEONFORK);
            word.as_ref().store(1, Relaxed);
        }
        if PARENT.compare_exchange(ptr::null_mut(), word.as_ptr(), AcqRel, Relaxed).is_err() {
            // SAFETY: another thread was first; nobody has seen this page.
            unsafe { libc::munmap(page.as_ptr().cast(), HEAD) };
        }
        return;
    };
    if word.swap(1, AcqRel) != 0 {
        return;
    }
    sietch_ring::stream::after_fork();
    family::begin();
    let mut at = ALL.load(Acquire);
    // SAFETY: interests are never unmapped.
    while let Some(now) = unsafe { at.as_ref() } {
        now.inherited.store(true, Relaxed);
        // The parent uses it again for an epoll of its own.
        let _ = now.taken.compare_exchange(taken::FREE, taken::LOST, AcqRel, Relaxed);
        at = now.next.load(Acquire);
    }
}
