//! What the library remembers of an epoll: which of our sockets are registered there, and with what.
//!
//! 1. An [`Interest`] has memory that relatives share: the first registration of each descriptor, the *list* and the registrations
//!    ([`Slot`], a cache line each), see [`super::shared`]. Beside it stands what only this process reads: where that memory is, and what each
//!    registration refers to ([`Known`]). Address space is reserved for every descriptor that the process may open; pages
//!    come when they are touched. It is made when the first of our sockets is registered: an epoll of kernel descriptors has none.
//! 2. Interests are never unmapped, but used again: whoever walks [`each`] needs no lock for it.
//! 3. What is known of a slot holds a reference to its description, so the connection's memory stays mapped while it may be looked at. The close
//!    of the last descriptor takes the slots out (`hooks`), as the kernel takes out registrations of a file that is gone.
//! 4. The lock is for the few instructions of a change or of a scan, never held asleep, always within a
//!    [`Section`]: handlers of the program wait for the end of it. Its word is the holder's mark, so that a handler that came in by
//!    another way (installed with a raw system call) gets an error instead of waiting for the thread that it interrupted. There are two: one among
//!    the threads of this process, which nobody else can take away, and one among relatives, for which nobody waits longer than [`PATIENCE`].
//! 5. A child of fork shares the registrations, as it shares the kernel's epoll: edges, one-shots and changes are then
//!    everybody's, whoever waits. A child that does not touch an inherited epoll (most do not) leaves it alone, closes included ([`Interest::is_inherited`]);
//!    one that uses it comes in ([`Interest::come_in`]), and from then on it is *common*: everything stays armed, and each process passes over what
//!    it does not know ([`super::family`]). A child recognises itself by a page that the kernel wipes on fork.
//! 6. What a process closes while a relative lives may still be open there. The registration stays (`LEFT`) until the kernel, asked with
//!    `KCMP_EPOLL_TFD` before a scan, has it no more.

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::ops::{Deref, DerefMut};
use std::ptr;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, fence};

use super::look::{Seen, cycles};
use super::shared::{Arrays, Flag, Parts, State, map};
pub use super::shared::{Slot, What, bit};
use super::signals::Section;
use super::{family, spin};
use crate::sys;
use crate::table::{Attached, DESCRIPTORS, Held};
use super::hooks::release;
use sietch_ring::stream::End;

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

/// Bytes of a page.
const PAGE: usize = 4096;

/// Looks at a taken lock between two yields.
const SPINS: u32 = 100;
/// Looks between two questions whether its holder lives.
const DEAD: u32 = 10_000;
/// Nanoseconds for which a lock is waited for: its holder may be a relative that was stopped, or that means harm.
const PATIENCE: u64 = 2_000_000_000;
/// Nanoseconds between two questions that were none of waiting: several slices of the scheduler.
const STOPPED: u64 = 50_000_000;

/// What this process knows of a slot.
#[derive(Debug)]
pub struct Known {
    /// What is registered.
    held: Held,
    /// The mark of the registration: another in [`Parts::makers`] means that it was taken out, and the slot is another's.
    mark: u64,
}

/// See the module.
#[repr(C)]
#[derive(Debug)]
pub struct Interest {
    /// First, because a description points here.
    attached: Attached,
    next: AtomicPtr<Interest>,
    taken: AtomicU32,
    /// Of a parent, and not used in this process.
    inherited: AtomicBool,
    /// Who has put it aside, and after how many forks ([`family::mark`]).
    aside: AtomicU64,
    /// See [`Interest::missed`].
    missed: AtomicU32,
    /// The thread of this process that holds the lock, or 0.
    owner: AtomicU32,
    arrays: Arrays,
    body: UnsafeCell<Body>,
}

/// Values of [`Interest::taken`].
mod taken {
    /// For whoever needs one.
    pub const FREE: u32 = 0;
    /// An epoll's.
    pub const IN_USE: u32 = 1;
    /// Another process may use it too: never again.
    pub const LOST: u32 = 2;
}

const _: () = assert!(size_of::<Interest>() <= PAGE);

/// What the lock protects: what relatives share ([`State`], to which it dereferences), and what is this process's own.
#[derive(Debug)]
pub struct Body {
    /// A descriptor of the epoll.
    pub epfd: c_int,
    /// The number of the sleep that a thread is about to begin here alone; 0 for none. A service core rings once for all that are armed with it, because the thread
    /// looks at all of them when it wakes.
    pub sleep: u64,
    /// How often a thread has gone to sleep here.
    pub sleeps: u32,
    /// Polls that have found nothing: those since the last that counted as a sleep, and one. 0 after a wait that was no poll.
    pub polls: u32,
    /// When the kernel was last asked, in cycles.
    pub asked: u64,
    /// What [`crate::real::calls`] said then.
    pub asked_at_call: u32,
    /// Whether the kernel had something of its own to report then: it has still, unless somebody used it up.
    pub natives: bool,
    /// Whether those filled the array of the last call: it is the streams' turn.
    pub streams_first: bool,
    /// Where the peer of what was last reported was seen.
    pub peer: Option<u32>,
    parts: Parts,
    known: &'static mut [Option<Known>],
    /// Numbers from this on this process never knew.
    highest: u32,
    /// How often this process had forked when the epoll was made.
    forks: u32,
}

// SAFETY: `body` is only reached through `Locked`, which holds the lock.
unsafe impl Sync for Interest {}

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
            at = old.next.load(Acquire);
            if old.taken.compare_exchange(taken::FREE, taken::IN_USE, AcqRel, Relaxed).is_err() {
                continue;
            }
            // Since it was put aside there was a fork: a relative has this memory too, and is to have nothing of what comes.
            let alone = old.aside.load(Relaxed) == family::mark() || old.arrays.renew();
            old.missed.store(0, Relaxed);
            match old.lock() {
                Some(mut body) if alone => {
                    body.begin(epfd);
                    drop(body);
                    return Some(old);
                }
                _ => old.taken.store(taken::LOST, Release),
            }
        }
        Self::map(epfd)
    }

    fn map(epfd: c_int) -> Option<&'static Self> {
        let descriptors = descriptors();
        let slots = descriptors.min(SLOTS);
        let arrays = Arrays::map(descriptors, slots)?;
        let own = map(ptr::null_mut(), PAGE + slots * size_of::<Option<Known>>(), libc::MAP_PRIVATE)?;
        // SAFETY: both within the new mapping, aligned, and never taken away; zeros are `None`; the parts are taken once.
        let new = unsafe {
            let known = std::slice::from_raw_parts_mut(own.add(PAGE).cast().as_ptr(), slots);
            let body = Body {
                epfd,
                sleep: 0,
                sleeps: 0,
                polls: 0,
                asked: 0,
                asked_at_call: 0,
                natives: false,
                streams_first: false,
                peer: None,
                parts: arrays.parts(),
                known,
                highest: 0,
                forks: 0,
            };
            let new = own.cast::<Self>();
            new.write(Self {
                attached: Attached { release },
                next: AtomicPtr::new(ptr::null_mut()),
                taken: AtomicU32::new(taken::IN_USE),
                inherited: AtomicBool::new(false),
                aside: AtomicU64::new(0),
                missed: AtomicU32::new(0),
                owner: AtomicU32::new(0),
                arrays,
                body: UnsafeCell::new(body),
            });
            new.as_ref()
        };
        if let Some(mut body) = new.lock() {
            body.begin(epfd);
        }
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
            body.common = Flag::YES;
            return;
        }
        // The parent has left it to this process: what it registered since the fork went with it.
        body.sleepers = 0;
        for number in body.used() {
            if body.slot(number).what() != What::Nothing && !body.is_known(number) {
                body.remove(number);
            }
        }
    }

    /// Empties it and puts it aside for the next epoll.
    pub fn give_back(&self) {
        self.aside.store(family::mark(), Relaxed);
        let Some(mut body) = self.lock() else { return };
        if self.is_inherited() || body.forks != family::forks() {
            // A relative may go on with it, and take the lock that this process has there; or it is gone, and who knows what it left.
            let numbers = body.numbers();
            self.arrays.owner().store(0, Release);
            let renewed = self.arrays.renew();
            numbers.for_each(|number| body.forget(number));
            drop(body);
            self.inherited.store(false, Relaxed);
            self.taken.store(if renewed { taken::FREE } else { taken::LOST }, Release);
            return;
        }
        for number in body.numbers() {
            if body.slot(number).what() != What::Nothing {
                body.remove(number);
            }
        }
        drop(body);
        self.taken.store(taken::FREE, Release);
    }

    /// The word of the lock among relatives, for a test to spoil.
    #[cfg(test)]
    pub fn owner_among_relatives(&self) -> &AtomicU32 {
        self.arrays.owner()
    }

    /// A sleeper has returned and does not get the lock.
    pub fn missed(&self) {
        self.missed.fetch_add(1, Relaxed);
    }

    /// How many have since this was last asked.
    #[inline]
    pub fn take_missed(&self) -> u32 {
        if self.missed.load(Relaxed) == 0 { 0 } else { self.missed.swap(0, Relaxed) }
    }

    /// Takes the lock; `None` in a handler that interrupted its holder.
    #[inline]
    pub fn lock(&self) -> Option<Locked<'_>> {
        recognise_child();
        let section = Section::enter();
        let own = sietch_ring::stream::holder();
        if !take(&self.owner, own, u64::MAX) {
            return None;
        }
        if !take(self.arrays.owner(), own, PATIENCE) {
            self.owner.store(0, Release);
            return None;
        }
        Some(Locked { behind: self, _section: section })
    }
}

/// Takes the lock of a word. Not, if the caller has it already, or has waited for so many nanoseconds.
#[inline]
fn take(word: &AtomicU32, own: u32, patience: u64) -> bool {
    word.compare_exchange(0, own, Acquire, Relaxed).is_ok() || contend(word, own, patience)
}

#[cold]
fn contend(word: &AtomicU32, own: u32, patience: u64) -> bool {
    let (mut waited, mut last) = (0_u64, sys::now());
    let mut turns: u32 = 0;
    loop {
        let owner = word.load(Relaxed);
        if owner == own {
            return false;
        }
        let looks_up = turns.is_multiple_of(DEAD) && turns != 0;
        // What a process that was killed held is whole enough: nothing of it is an address that others follow.
        let free = owner == 0 || looks_up && sietch_ring::stream::is_dead(owner);
        if free && word.compare_exchange(owner, own, Acquire, Relaxed).is_ok() {
            return true;
        }
        if looks_up {
            let now = sys::now();
            // While the caller itself was stopped it has not waited.
            waited += now.saturating_sub(last).min(STOPPED);
            last = now;
            if waited > patience {
                return false;
            }
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
    behind: &'a Interest,
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
        self.behind.arrays.owner().store(0, Release);
        self.behind.owner.store(0, Release);
    }
}

impl Deref for Body {
    type Target = State;

    #[inline]
    fn deref(&self) -> &State {
        self.parts.state
    }
}

impl DerefMut for Body {
    #[inline]
    fn deref_mut(&mut self) -> &mut State {
        self.parts.state
    }
}

/// A number of the shared memory that says where to go, read once.
#[inline]
fn read(word: &u32) -> u32 {
    // SAFETY: a reference. Volatile: another process may write there between two readings.
    unsafe { ptr::from_ref(word).read_volatile() }
}

impl Body {
    /// Begins with the epoll behind `epfd`, in which nothing is registered.
    fn begin(&mut self, epfd: c_int) {
        *self.parts.state =
            State { survives: Flag::YES, used: self.used, free: self.free, ..State::default() };
        (self.epfd, self.asked, self.polls, self.peer) = (epfd, 0, 0, None);
        (self.natives, self.streams_first, self.forks) = (false, false, family::forks());
    }

    /// Where a number points, whatever it is.
    #[inline]
    fn place(&self, number: u32) -> usize {
        (number as usize).min(self.known.len() - 1)
    }

    /// A registration.
    #[inline]
    pub fn slot(&mut self, number: u32) -> &mut Slot {
        let place = self.place(number);
        &mut self.parts.slots[place]
    }

    /// The same with what it registers; none if that means nothing to this process.
    #[inline]
    pub fn slot_and_held(&mut self, number: u32) -> (&mut Slot, Option<&Held>) {
        let place = self.place(number);
        let known = !self.parts.state.common.is_yes() || self.is_known(number);
        let held = if known { self.known[place].as_ref().map(|known| &known.held) } else { None };
        (&mut self.parts.slots[place], held)
    }

    /// What a slot registers; none if that means nothing to this process.
    #[inline]
    pub fn held(&mut self, number: u32) -> Option<&Held> {
        self.slot_and_held(number).1
    }

    /// The end of the stream that a slot registers.
    #[inline]
    pub fn end(&mut self, number: u32) -> Option<&End> {
        self.held(number).and_then(|held| held.end())
    }

    #[inline]
    fn is_known(&self, number: u32) -> bool {
        let place = self.place(number);
        self.known[place].as_ref().is_some_and(|known| known.mark == self.parts.makers[place])
    }

    /// Whether a registration means nothing to this process.
    #[inline]
    pub fn is_foreign(&self, number: u32) -> bool {
        self.parts.state.common.is_yes() && !self.is_known(number)
    }

    /// Lets go of what this process knew of a slot.
    fn forget(&mut self, number: u32) {
        let place = self.place(number);
        if let Some(known) = self.known[place].take() {
            super::hooks::count_watch(&known.held, false);
        }
    }

    /// What lies in the memory of relatives, word by word, for a test to spoil.
    #[cfg(test)]
    pub fn words(&mut self) -> impl Iterator<Item = &mut [u32]> {
        let used = self.highest as usize + 2;
        // SAFETY: plain numbers, seen as plain numbers.
        unsafe fn seen<T>(of: &mut [T]) -> &mut [u32] {
            // SAFETY: the same memory, of which every pattern is valid.
            unsafe { std::slice::from_raw_parts_mut(of.as_mut_ptr().cast(), size_of_val(of) / 4) }
        }
        let parts = &mut self.parts;
        // SAFETY: as above.
        unsafe {
            [
                seen(std::slice::from_mut(parts.state)),
                seen(&mut parts.first[..64]),
                seen(&mut parts.list[..used]),
                seen(&mut parts.slots[..used]),
                seen(&mut parts.noticed[..used]),
                seen(&mut parts.makers[..used]),
                seen(&mut parts.ordered[..used]),
            ]
            .into_iter()
        }
    }

    /// What a relative has taken out, or replaced, of a description: the process lets go of it too.
    pub fn forget_removed(&mut self, held: &Held) {
        for number in self.numbers() {
            let place = self.place(number);
            let stale = self.known[place].as_ref().is_some_and(|known| known.held.number() == held.number())
                && (self.parts.slots[place].what() == What::Nothing || !self.is_known(number));
            if stale {
                self.forget(number);
            }
        }
    }

    /// The slot that the kernel's data names, if it is in use.
    pub fn named(&self, data: u64) -> Option<u32> {
        let number = ((data & !TAG_MASK) >> DATA_BITS) as u32;
        (data & TAG_MASK == TAG
            && self.numbers().contains(&number)
            && self.parts.slots[number as usize].what() != What::Nothing)
            .then_some(number)
    }

    /// The slot on the list at a position.
    #[inline]
    pub fn at(&self, position: u32) -> u32 {
        read(&self.parts.list[self.place(position)])
    }

    /// Slots on the list.
    #[inline]
    pub fn listed(&self) -> u32 {
        read(&self.parts.state.listed).min(self.known.len() as u32)
    }

    /// Numbers of slots that this process may know.
    pub fn numbers(&self) -> std::ops::Range<u32> {
        0..self.highest
    }

    /// Numbers of slots that relatives may use as well.
    fn used(&self) -> std::ops::Range<u32> {
        0..read(&self.parts.state.used).min(self.known.len() as u32)
    }

    /// The registration of a description by a descriptor. Those of descriptions that lost their last descriptor unseen are taken out.
    pub fn find(&mut self, fd: c_int, held: &Held) -> Option<u32> {
        let mut next = read(self.parts.first.get(fd.cast_unsigned() as usize)?);
        let mut found = None;
        for _ in self.used() {
            if next == 0 {
                break;
            }
            let number = next - 1;
            let (slot, other) = self.slot_and_held(number);
            next = read(&slot.next);
            match other {
                None => {}
                Some(other) if other.number() == held.number() => found = Some(number),
                Some(other) if other.descriptors() != 0 || slot.state & bit::LEFT != 0 => {}
                _ => self.remove(number),
            }
        }
        found
    }

    /// A new registration, on the list. `None`: no room.
    pub fn insert(&mut self, what: What, fd: c_int, held: &Held, events: u32, data: u64) -> Option<u32> {
        let index = usize::try_from(fd).ok().filter(|fd| *fd < self.parts.first.len())?;
        let (free, used) = (read(&self.free), read(&self.used));
        let number = if free != 0 { free - 1 } else { used };
        if number as usize >= self.known.len() {
            return None;
        }
        if free == 0 {
            self.used = used + 1;
        } else {
            self.free = read(&self.slot(number).next);
        }
        let mark = family::mark();
        self.forget(number);
        super::hooks::count_watch(held, true);
        self.known[number as usize] = Some(Known { held: held.clone(), mark });
        self.highest = self.highest.max(number + 1);
        self.parts.makers[number as usize] = mark;
        let next = self.parts.first[index];
        let slot = self.slot(number);
        *slot = Slot {
            data,
            seen: Seen::at_registration(held),
            events,
            fd,
            next,
            state: bit::NEW,
            ..Slot::default()
        };
        slot.becomes(what);
        self.parts.first[index] = number + 1;
        self.order(number, cycles());
        self.count(what, true);
        if what != What::Native {
            self.put_on_list(number);
        }
        Some(number)
    }

    /// Lets the next registration have this number, which nobody has.
    pub fn skip_to(&mut self, number: u32) -> bool {
        let fits = number >= self.used && (number as usize) < self.known.len() && self.free == 0;
        if fits {
            self.used = number;
        }
        fits
    }

    fn count(&mut self, what: What, more: bool) {
        let add = |counter: &mut u32| {
            *counter = if more { counter.saturating_add(1) } else { counter.saturating_sub(1) };
        };
        if matches!(what, What::Stream | What::Nested) {
            add(&mut self.watched);
        }
        if what == What::Nested {
            add(&mut self.nested);
        }
    }

    /// A socket has become what it was not.
    pub fn becomes(&mut self, number: u32, what: What) {
        let before = self.slot(number).what();
        self.count(before, false);
        self.count(what, true);
        let (slot, held) = self.slot_and_held(number);
        slot.becomes(what);
        // What lies on a placeholder lies there also while the program has taken the stream out.
        let same = matches!((before, what), (What::Stream, What::Dormant) | (What::Dormant, What::Stream));
        let kept = bit::LISTED | bit::GONE | if same { bit::EXAMINE } else { 0 };
        slot.state = slot.state & kept | bit::NEW;
        if matches!(what, What::Stream | What::Nested) {
            slot.seen = held.map_or_else(Seen::default, Seen::at_registration);
            self.order(number, cycles());
            self.put_on_list(number);
        } else {
            self.take_off_list(number);
        }
    }

    /// Takes a registration out. That of a relative goes without its reference, which is none to what this process has.
    pub fn remove(&mut self, number: u32) {
        self.take_off_list(number);
        self.disarm(number);
        let free = self.free;
        let slot = self.slot(number);
        let (fd, next, what) = (slot.fd.cast_unsigned() as usize, read(&slot.next), slot.what());
        let left = slot.state & bit::LEFT != 0;
        (slot.next, slot.state) = (free, 0);
        slot.becomes(What::Nothing);
        self.left = self.left.saturating_sub(u32::from(left));
        self.free = number + 1;
        self.count(what, false);
        self.forget(number);
        let mut at = self.parts.first.get(fd).map_or(0, read);
        if at == number + 1 {
            self.parts.first[fd] = next;
        } else {
            for _ in self.used() {
                if at == 0 {
                    break;
                }
                let slot = self.slot(at - 1);
                at = read(&slot.next);
                if at == number + 1 {
                    slot.next = next;
                    break;
                }
            }
        }
        if self.numbered.is_yes() && self.sleepers != 0 {
            // The bell that was rung for all may have gone with it.
            self.unnumber();
            self.pass_on();
        }
    }

    /// From now on several use it.
    pub fn share(&mut self) {
        self.shared = Flag::YES;
        self.unnumber();
    }

    /// Each registration is rung for itself again. What was not, because another was, is looked at by who wakes for that, or by the caller.
    pub fn unnumber(&mut self) {
        if !std::mem::take(&mut self.numbered).is_yes() {
            return;
        }
        for number in self.numbers() {
            if self.slot(number).state & bit::AMONG_MANY != 0
                && let Some(end) = self.end(number)
            {
                end.number_sleep(0);
            }
        }
        fence(SeqCst);
    }

    /// When a registration was reported, registered or modified last, in cycles.
    #[inline]
    pub fn ordered_at(&self, number: u32) -> u64 {
        self.parts.ordered[self.place(number)]
    }

    /// What was noticed of a registration for who watches from outside.
    pub(super) fn noticed(&mut self, number: u32) -> &mut Seen {
        let place = self.place(number);
        &mut self.parts.noticed[place]
    }

    /// It is now, at `at`.
    #[inline]
    pub fn order(&mut self, number: u32, at: u64) {
        let place = self.place(number);
        self.parts.ordered[place] = at;
    }

    /// Puts a slot on the list: it will be looked at in every scan.
    #[inline]
    pub fn put_on_list(&mut self, number: u32) {
        let position = self.listed();
        let slot = self.slot(number);
        if slot.state & bit::LISTED == 0 && (position as usize) < self.known.len() {
            let slot = self.slot(number);
            slot.state |= bit::LISTED;
            slot.position = position;
            self.parts.list[position as usize] = number;
            self.listed = position + 1;
        }
    }

    /// Takes a slot off the list; the last takes its place.
    pub fn take_off_list(&mut self, number: u32) {
        let slot = self.slot(number);
        if slot.state & bit::LISTED == 0 {
            return;
        }
        slot.state &= !bit::LISTED;
        let position = read(&slot.position);
        let listed = self.listed().saturating_sub(1);
        let last = self.at(listed);
        let place = self.place(position);
        self.listed = listed;
        self.parts.list[place] = last;
        self.slot(last).position = position;
    }
}

/// Descriptors that this process may ever have.
fn descriptors() -> usize {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the C library writes the limits there.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    usize::try_from(limit.rlim_max).unwrap_or(DESCRIPTORS).clamp(1024, DESCRIPTORS)
}

/// In a child of fork, the first time: what its parent had is inherited.
#[inline]
pub(super) fn recognise_child() {
    if let Some(word) = family::own_word()
        && word.load(Relaxed) == 0
    {
        begin(word);
    }
}

#[cold]
fn begin(word: &AtomicU32) {
    if word.swap(1, AcqRel) != 0 {
        return;
    }
    sietch_ring::stream::after_fork();
    family::begin();
    let mut at = ALL.load(Acquire);
    // SAFETY: interests are never unmapped.
    while let Some(now) = unsafe { at.as_ref() } {
        now.inherited.store(true, Relaxed);
        // A thread that held it has not come along.
        now.owner.store(0, Relaxed);
        // The parent uses it again for an epoll of its own.
        let _ = now.taken.compare_exchange(taken::FREE, taken::LOST, AcqRel, Relaxed);
        at = now.next.load(Acquire);
    }
}
