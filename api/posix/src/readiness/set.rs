//! What the library remembers of an epoll: which of our sockets are registered there, and with what.
//!
//! 1. An [`Interest`] has memory that relatives share: the first registration of each descriptor, the *list* and the registrations
//!    ([`Slot`], a cache line each), see [`crate::readiness::set::shared`]. Beside it stands what only this process reads: where that memory is, and what each
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
//!    it does not know ([`crate::readiness::set::sharing`]). A child recognises itself by a page that the kernel wipes on fork.
//! 6. What a process closes while a relative lives may still be open there. The registration stays (`LEFT`) until the kernel, asked with
//!    `KCMP_EPOLL_TFD` before a scan, has it no more.

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::ops::{Deref, DerefMut};
use std::ptr;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64};

use crate::descriptor::description::{Attached, DESCRIPTORS, Held, Kind};
use crate::readiness::set::registrations::{Body, Known};
use crate::readiness::set::shared::{Arrays, Flag, What};
use crate::readiness::tag::SLOTS;
use crate::signal::handlers::Section;
use crate::system::memory::map;
use crate::system::{fork, kernel, processor};

pub(crate) mod registrations;
pub(crate) mod shared;
pub(crate) mod sharing;

/// The first stream is about to be registered: who sleeps in the epoll already counts from now on.
pub(crate) fn register_outsiders(held: &Held) {
    let count = held.outside.swap(0, SeqCst);
    if count != 0
        && let Some(interest) = with_streams(held)
        && let Some(mut body) = interest.lock()
    {
        body.sleepers = body.sleepers.saturating_add(count);
    }
}

/// The interest of an epoll in which some of ours were registered.
pub(crate) fn with_streams(held: &Held) -> Option<&'static Interest> {
    if held.kind() == Kind::Epoll { interest_of(held) } else { None }
}

/// The interest of an epoll, if it has one.
#[inline]
pub(crate) fn interest_of(held: &Held) -> Option<&'static Interest> {
    // SAFETY: null, or an interest, which is never unmapped.
    let interest = unsafe { held.epoll.load(Acquire).cast::<Interest>().as_ref() }?;
    if interest.is_inherited() {
        interest.come_in();
    }
    Some(interest)
}

/// The last reference to an epoll's description went.
///
/// # Safety
/// `attached` is a pointer to an interest.
pub(crate) unsafe fn release(attached: *mut Attached) {
    // SAFETY: the caller's; an interest begins with its `Attached`, and is never unmapped.
    unsafe { &*attached.cast::<Interest>() }.give_back();
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

/// See the module.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Interest {
    /// First, because a description points here.
    attached: Attached,
    next: AtomicPtr<Interest>,
    taken: AtomicU32,
    /// Of a parent, and not used in this process.
    inherited: AtomicBool,
    /// Who has put it aside, and after how many forks ([`sharing::mark`]).
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
    pub(crate) const FREE: u32 = 0;
    /// An epoll's.
    pub(crate) const IN_USE: u32 = 1;
    /// Another process may use it too: never again.
    pub(crate) const LOST: u32 = 2;
}

const _: () = assert!(size_of::<Interest>() <= PAGE);

// SAFETY: `body` is only reached through `Locked`, which holds the lock.
unsafe impl Sync for Interest {}

static ALL: AtomicPtr<Interest> = AtomicPtr::new(ptr::null_mut());

/// Every interest that this process uses.
pub(crate) fn each() -> impl Iterator<Item = &'static Interest> {
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
    pub(crate) fn take(epfd: c_int) -> Option<&'static Self> {
        let mut at = ALL.load(Acquire);
        // SAFETY: interests are never unmapped.
        while let Some(old) = unsafe { at.as_ref() } {
            at = old.next.load(Acquire);
            if old.taken.compare_exchange(taken::FREE, taken::IN_USE, AcqRel, Relaxed).is_err() {
                continue;
            }
            // Since it was put aside there was a fork: a relative has this memory too, and is to have nothing of what comes.
            let alone = old.aside.load(Relaxed) == sharing::mark() || old.arrays.renew();
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
            let body = Body::new(epfd, arrays.parts(), known);
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
    pub(crate) fn is_inherited(&self) -> bool {
        self.inherited.load(Relaxed)
    }

    /// A child uses its parent's epoll.
    #[cold]
    pub(crate) fn come_in(&self) {
        let alone = !sharing::any_lives();
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
    pub(crate) fn give_back(&self) {
        self.aside.store(sharing::mark(), Relaxed);
        let Some(mut body) = self.lock() else { return };
        if self.is_inherited() || body.forks != sharing::forks() {
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
    pub(crate) fn owner_among_relatives(&self) -> &AtomicU32 {
        self.arrays.owner()
    }

    /// A sleeper has returned and does not get the lock.
    pub(crate) fn missed(&self) {
        self.missed.fetch_add(1, Relaxed);
    }

    /// How many have since this was last asked.
    #[inline]
    pub(crate) fn take_missed(&self) -> u32 {
        if self.missed.load(Relaxed) == 0 { 0 } else { self.missed.swap(0, Relaxed) }
    }

    /// Takes the lock; `None` in a handler that interrupted its holder.
    #[inline]
    pub(crate) fn lock(&self) -> Option<Locked<'_>> {
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
    let (mut waited, mut last) = (0_u64, kernel::now());
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
            let now = kernel::now();
            // While the caller itself was stopped it has not waited.
            waited += now.saturating_sub(last).min(STOPPED);
            last = now;
            if waited > patience {
                return false;
            }
        }
        turns = turns.wrapping_add(1);
        if turns.is_multiple_of(SPINS) {
            processor::give_way();
        }
        std::hint::spin_loop();
    }
}

/// An interest whose lock the caller holds.
#[derive(Debug)]
pub(crate) struct Locked<'a> {
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

/// Descriptors that this process may ever have.
fn descriptors() -> usize {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the C library writes the limits there.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    usize::try_from(limit.rlim_max).unwrap_or(DESCRIPTORS).clamp(1024, DESCRIPTORS)
}

/// In a child of fork, the first time: what its parent had is inherited.
#[inline]
pub(crate) fn recognise_child() {
    if let Some(word) = fork::own_word()
        && word.load(Relaxed) == 0
    {
        begin(word);
    }
}

#[cold]
pub(crate) fn begin(word: &AtomicU32) {
    if word.swap(1, AcqRel) != 0 {
        return;
    }
    sietch_ring::stream::after_fork();
    sharing::begin();
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
