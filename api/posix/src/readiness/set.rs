//! Epoll sets: what the library remembers of an epoll.
//!
//! 1. An [`EpollSet`] has memory that related processes share ([`shared`]): the first registration
//!    of each descriptor, the *list*, and the registrations ([`Slot`](shared::Slot), a cache line
//!    each). Beside it is memory of this process alone: where the shared memory is, and what each
//!    registration refers to ([`Known`]). Address space is reserved for every descriptor that the
//!    process may open; pages are allocated when touched. A set is made when the first of our
//!    sockets is registered: an epoll of kernel descriptors has none.
//! 2. Sets are never unmapped, but used again. So walking [`each`] needs no lock.
//! 3. What is known of a slot holds a reference to its description, so the connection's memory
//!    stays mapped while it may be checked. Closing the last descriptor removes the slots
//!    ([`crate::readiness::hooks`]), as the kernel removes registrations of a closed file.
//! 4. The lock is held for the few instructions of a change or a scan, never during a sleep. It is
//!    always taken within a [`Section`], so handlers of the program wait for its end. The word is
//!    the holder's mark. A handler that was installed with a raw system call, and interrupted the
//!    holder, gets an error instead of waiting for its own thread. There are two locks: one among
//!    the threads of this process, which no other process can take, and one among related
//!    processes, for which no thread waits longer than [`MAX_WAIT`]. A relative that holds it
//!    longer is stopped or hostile. The process then goes on without its relatives, with a copy of
//!    what it knows ([`EpollSet::leave_relatives`]): the wait is paid once.
//! 5. A child of fork shares the registrations, as it shares the kernel's epoll: edges, one-shots
//!    and changes apply to all. Most children do not touch an inherited epoll; such a child leaves
//!    it alone, closes included ([`EpollSet::is_inherited`]). A child that uses it joins
//!    ([`EpollSet::join`]). From then on the set is *multi-process*: everything stays armed, and
//!    each process skips what it does not know ([`sharing`]). A child recognises itself by a page
//!    that the kernel wipes on fork.
//! 6. A file that a process closes may still be open in a related process. The registration stays
//!    (`LEFT_OPEN`) until the kernel no longer has it, which `KCMP_EPOLL_TFD` shows before a scan.

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::ops::{Deref, DerefMut};
use std::ptr;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64};

use crate::descriptor::description::{Attached, DESCRIPTORS, Held, Kind};
use crate::readiness::set::registrations::{Known, Registrations};
use crate::readiness::set::shared::{Arrays, Flag, SlotKind};
use crate::readiness::tag::MAX_SLOTS;
use crate::signal::handlers::Section;
use crate::system::memory::map;
use crate::system::{fork, kernel, processor};

pub(crate) mod registrations;
pub(crate) mod shared;
pub(crate) mod sharing;

/// The first stream is about to be registered: threads that already sleep in the epoll count from
/// now on.
pub(crate) fn count_kernel_only_waiters(held: &Held) {
    let count = held.kernel_only_waiters.swap(0, SeqCst);
    if count != 0
        && let Some(set) = with_streams(held)
        && let Some(mut locked) = set.lock()
    {
        locked.sleepers = locked.sleepers.saturating_add(count);
    }
}

/// The set of an epoll in which some of ours were registered.
pub(crate) fn with_streams(held: &Held) -> Option<&'static EpollSet> {
    if held.kind() == Kind::Epoll { set_of(held) } else { None }
}

/// The set of an epoll, if it has one.
#[inline]
pub(crate) fn set_of(held: &Held) -> Option<&'static EpollSet> {
    // SAFETY: null, or an set, which is never unmapped.
    let set = unsafe { held.epoll.load(Acquire).cast::<EpollSet>().as_ref() }?;
    if set.is_inherited() {
        set.join();
    }
    Some(set)
}

/// The last reference to an epoll's description was dropped.
///
/// # Safety
/// `attached` is a pointer to an epoll set.
pub(crate) unsafe fn release(attached: *mut Attached) {
    // SAFETY: the caller upholds this function's contract; an set begins with its `Attached`, and
    // is never unmapped.
    unsafe { &*attached.cast::<EpollSet>() }.recycle();
}

/// Bytes of a page.
const PAGE: usize = 4096;

/// Bytes of the largest page of any machine.
const LARGEST_PAGE: usize = 64 << 10;

/// A thread in [`EpollSet::missed`], of which the lower half counts sleepers.
const MISSED: u64 = 1 << 32;

/// Checks of a held lock between two yields.
const SPINS: u32 = 100;

/// Checks of a held lock between two queries whether its holder runs.
const OWNER_CHECK_EVERY: u32 = 10_000;

/// Nanoseconds to wait for a lock: its holder may be a relative that was stopped, or that is
/// hostile.
const MAX_WAIT: u64 = 2_000_000_000;

/// Most nanoseconds between two checks that count as waiting: several slices of the scheduler. A
/// longer gap means that the caller was stopped.
const MAX_STEP: u64 = 50_000_000;

/// See the module.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct EpollSet {
    /// First, because a description points here.
    attached: Attached,
    next: AtomicPtr<EpollSet>,
    usage: AtomicU32,
    /// Of a parent, and not used in this process.
    inherited: AtomicBool,
    /// The process that recycled it, and after how many forks ([`sharing::mark`]).
    recycled_at: AtomicU64,
    /// See [`EpollSet::missed`].
    missed: AtomicU64,
    /// The thread of this process that holds the lock, or 0.
    owner: AtomicU32,
    arrays: Arrays,
    locked: UnsafeCell<Registrations>,
}

/// Values of [`EpollSet::usage`].
mod usage {
    /// Free for the next epoll.
    pub(crate) const FREE: u32 = 0;
    /// An epoll's.
    pub(crate) const IN_USE: u32 = 1;
    /// Another process may use it too, so it is not used again.
    pub(crate) const RETIRED: u32 = 2;
}

const _: () = assert!(size_of::<EpollSet>() <= PAGE);

// SAFETY: `locked` is only reached through `Locked`, which holds the lock.
unsafe impl Sync for EpollSet {}

static ALL: AtomicPtr<EpollSet> = AtomicPtr::new(ptr::null_mut());

/// Every set that this process uses.
pub(crate) fn each() -> impl Iterator<Item = &'static EpollSet> {
    let mut at = ALL.load(Acquire);
    std::iter::from_fn(move || {
        // SAFETY: sets are never unmapped; the list only grows.
        let now = unsafe { at.as_ref() }?;
        at = now.next.load(Acquire);
        let used = now.usage.load(Acquire) == usage::IN_USE && !now.is_inherited();
        Some(used.then_some(now))
    })
    .flatten()
}

impl EpollSet {
    /// An empty one for the epoll behind `epfd`.
    pub(crate) fn take(epfd: c_int) -> Option<&'static Self> {
        let mut at = ALL.load(Acquire);
        // SAFETY: sets are never unmapped.
        while let Some(old) = unsafe { at.as_ref() } {
            at = old.next.load(Acquire);
            if old.usage.compare_exchange(usage::FREE, usage::IN_USE, AcqRel, Relaxed).is_err() {
                continue;
            }
            // There was a fork since it was recycled: a relative has this memory too, and must not
            // see later registrations.
            let alone = old.recycled_at.load(Relaxed) == sharing::mark() || old.arrays.renew();
            old.missed.store(0, Relaxed);
            match old.lock() {
                Some(mut locked) if alone => {
                    locked.begin(epfd);
                    drop(locked);
                    return Some(old);
                }
                _ => old.usage.store(usage::RETIRED, Release),
            }
        }
        Self::map(epfd)
    }

    /// Address space that one takes, or more, in whole pages of any machine.
    pub(crate) fn length() -> usize {
        let descriptors = descriptors();
        let slots = descriptors.min(MAX_SLOTS);
        let length = Arrays::length(descriptors, slots) + PAGE + slots * size_of::<Option<Known>>();
        length.next_multiple_of(LARGEST_PAGE)
    }

    fn map(epfd: c_int) -> Option<&'static Self> {
        let descriptors = descriptors();
        let slots = descriptors.min(MAX_SLOTS);
        let arrays = Arrays::map(descriptors, slots)?;
        let own = map(ptr::null_mut(), PAGE + slots * size_of::<Option<Known>>(), libc::MAP_PRIVATE)?;
        // SAFETY: both within the new mapping, aligned, and never unmapped; zeros are `None`; the
        // views are taken once.
        let new = unsafe {
            let known = std::slice::from_raw_parts_mut(own.add(PAGE).cast().as_ptr(), slots);
            let locked = Registrations::new(epfd, arrays.views(), known);
            let new = own.cast::<Self>();
            new.write(Self {
                attached: Attached { release },
                next: AtomicPtr::new(ptr::null_mut()),
                usage: AtomicU32::new(usage::IN_USE),
                inherited: AtomicBool::new(false),
                recycled_at: AtomicU64::new(0),
                missed: AtomicU64::new(0),
                owner: AtomicU32::new(0),
                arrays,
                locked: UnsafeCell::new(locked),
            });
            new.as_ref()
        };
        if let Some(mut locked) = new.lock() {
            locked.begin(epfd);
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
    pub(crate) fn join(&self) {
        let alone = !sharing::any_relative_exists();
        let Some(mut locked) = self.lock() else { return };
        if !self.inherited.swap(false, Relaxed) {
            // Another thread was first, and may sleep here by now.
            return;
        }
        if !alone {
            locked.share();
            locked.multi_process = Flag::YES;
            return;
        }
        // The parent has ended: its registrations since the fork ended with it.
        locked.sleepers = 0;
        for number in locked.used() {
            if locked.slot(number).kind() != SlotKind::Nothing && !locked.is_known(number) {
                locked.remove(number);
            }
        }
    }

    /// Empties it and keeps it for the next epoll.
    pub(crate) fn recycle(&self) {
        self.recycled_at.store(sharing::mark(), Relaxed);
        let Some(mut locked) = self.lock() else { return };
        if self.is_inherited() || locked.forks != sharing::forks() {
            // A relative may continue with it, and take the lock that this process has there. Or it
            // has ended, and its state is unknown.
            let numbers = locked.numbers();
            self.arrays.owner().store(0, Release);
            let renewed = self.arrays.renew();
            numbers.for_each(|number| locked.forget(number));
            drop(locked);
            self.inherited.store(false, Relaxed);
            self.usage.store(if renewed { usage::FREE } else { usage::RETIRED }, Release);
            return;
        }
        for number in locked.numbers() {
            if locked.slot(number).kind() != SlotKind::Nothing {
                locked.remove(number);
            }
        }
        drop(locked);
        self.usage.store(usage::FREE, Release);
    }

    /// The word of the lock among relatives, for a test to corrupt.
    #[cfg(test)]
    pub(crate) fn owner_among_relatives(&self) -> &AtomicU32 {
        self.arrays.owner()
    }

    /// A thread has returned from the kernel's epoll and does not get the lock. `counted`: it is
    /// one of the sleepers.
    pub(crate) fn missed(&self, counted: bool) {
        self.missed.fetch_add(MISSED | u64::from(counted), Relaxed);
    }

    /// How many have since the last call of this, and were counted; none if none has.
    #[inline]
    pub(crate) fn take_missed(&self) -> Option<u32> {
        let missed = if self.missed.load(Relaxed) == 0 { 0 } else { self.missed.swap(0, Relaxed) };
        (missed != 0).then_some(missed as u32)
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
        if !take(self.arrays.owner(), own, MAX_WAIT) && !self.leave_relatives(own) {
            self.owner.store(0, Release);
            return None;
        }
        Some(Locked { behind: self, _section: section })
    }

    /// A relative does not release the lock among relatives: this process has memory of its own
    /// from now on, and the lock there. Both still share the kernel's epoll, so a report for one
    /// may reach the other. As in any set of several processes, all registrations are checked ten
    /// times a second. False: there is no memory. Only for the holder of the lock of this process.
    #[cold]
    fn leave_relatives(&self, own: u32) -> bool {
        // SAFETY: the lock among the threads of this process is held, and no `Locked` exists. What
        // relatives write there meanwhile is as for any holder.
        let registrations = unsafe { &mut *self.locked.get() };
        registrations.leave_relatives(|| {
            let renewed = self.arrays.renew();
            if renewed {
                // Before it is filled: a fork of another thread may come in between.
                self.arrays.owner().store(own, Relaxed);
            }
            renewed
        })
    }
}

/// Takes the lock of a word. False: the caller has it already, or has waited for so many
/// nanoseconds.
#[inline]
fn take(word: &AtomicU32, own: u32, max_wait: u64) -> bool {
    word.compare_exchange(0, own, Acquire, Relaxed).is_ok() || contend(word, own, max_wait)
}

#[cold]
fn contend(word: &AtomicU32, own: u32, max_wait: u64) -> bool {
    let (mut waited, mut last) = (0_u64, kernel::now());
    let mut iterations: u32 = 0;
    loop {
        let owner = word.load(Relaxed);
        if owner == own {
            return false;
        }
        let is_due = iterations.is_multiple_of(OWNER_CHECK_EVERY) && iterations != 0;
        // The state that a killed process leaves is consistent enough: nothing in it is an address
        // that others follow.
        let free = owner == 0 || is_due && sietch_ring::stream::is_dead(owner);
        if free && word.compare_exchange(owner, own, Acquire, Relaxed).is_ok() {
            return true;
        }
        if is_due {
            let now = kernel::now();
            // While the caller itself was stopped it has not waited.
            waited += now.saturating_sub(last).min(MAX_STEP);
            last = now;
            if waited > max_wait {
                return false;
            }
        }
        iterations = iterations.wrapping_add(1);
        if iterations.is_multiple_of(SPINS) {
            processor::yield_now();
        }
        std::hint::spin_loop();
    }
}

/// An epoll set whose lock the caller holds.
#[derive(Debug)]
pub(crate) struct Locked<'a> {
    behind: &'a EpollSet,
    _section: Section,
}

impl Deref for Locked<'_> {
    type Target = Registrations;

    #[inline]
    fn deref(&self) -> &Registrations {
        // SAFETY: the lock is held.
        unsafe { &*self.behind.locked.get() }
    }
}

impl DerefMut for Locked<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Registrations {
        // SAFETY: the lock is held, and this is the only way to what it protects.
        unsafe { &mut *self.behind.locked.get() }
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

/// The first time in a child of fork: the registrations of its parent are inherited.
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
    // SAFETY: sets are never unmapped.
    while let Some(now) = unsafe { at.as_ref() } {
        now.inherited.store(true, Relaxed);
        // A thread that held it does not exist here.
        now.owner.store(0, Relaxed);
        // The parent uses it again for an epoll of its own.
        let _ = now.usage.compare_exchange(usage::FREE, usage::RETIRED, AcqRel, Relaxed);
        at = now.next.load(Acquire);
    }
}
