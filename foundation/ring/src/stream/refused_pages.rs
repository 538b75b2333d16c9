//! Pages of the common memory that the kernel refuses.
//!
//! A peer can punch holes into the common memory. They read as zeros, unless the kernel has no page
//! for the next access (`vm.overcommit_memory=2`): that is SIGBUS. No seal forbids holes and allows
//! writes, so the fault is handled.
//!
//! 1. Each mapped end is listed here ([`List`]): where its common memory is, and its private
//!    page.
//! 2. A fault in one of them resets its connection, in its private page. If it was a copy of bytes
//!    ([`crate::guarded`]), the copy ends.
//! 3. Any other access is one of this crate's to a word that the peer may write anyhow, or a copy
//!    of a service core. It continues in a spare page of this process, mapped over the hole. That
//!    page was allocated before, because there may be no new one when pages are refused. It is
//!    mapped a second time (`mremap` of no bytes), for which the kernel commits no memory. All
//!    holes share it, also with children of a fork: only what a reset connection publishes is
//!    written there.
//! 4. The list consists of words alone. The handler waits for nothing, allocates nothing, and uses
//!    no thread-local memory.
//! 5. An entry is used again after its end is unmapped. So the handler pins an entry ([`Pinned`]):
//!    it counts itself, then checks that the entry is still of the generation in which the address
//!    lay. A thread that takes an end off the list begins another generation, then waits until no
//!    pin is counted. One of the two sees the other, and the handler never waits. The wait is
//!    bounded, because a pin may stay for ever. It may be that of a handler that another one
//!    interrupted or jumped out of, or of a thread that a fork left behind. Then the end stays
//!    mapped, and its entry is not reused.
//!
//! A process that runs only code of Sietch calls [`install_handler`]. The library for unmodified
//! programs has a handler of its own, because the programs' handlers come after it. It calls
//! [`prepare`] and [`handle_fault`].

use std::ptr::{self, NonNull};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicPtr, AtomicUsize};

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};

use super::lock;
use super::private::Private;
use crate::guarded;

const PAGE: usize = 4096;

/// Entries of one part of the list.
const PART: usize = 1024;
/// Parts: room for both ends of all connections that a user may have (131,072), twice. Memory of a
/// part comes when it is needed.
const PARTS: usize = 512;

/// How often a thread that takes an end off the list polls for handlers that have it pinned: a
/// handler stores two words and maps a page.
const PIN_POLLS: u32 = 4096;

/// One mapped end.
#[derive(Debug)]
struct Entry {
    /// Odd while an end is listed here. The three below change only while it is even and nothing is
    /// pinned.
    generation: AtomicUsize,
    /// Where the common memory begins; 0 for a free entry, 1 for one that is taken and not yet
    /// written.
    start: AtomicUsize,
    length: AtomicUsize,
    private: AtomicUsize,
    /// Handlers that have it pinned, or are about to check whether they may.
    pins: AtomicUsize,
}

/// An entry as it is while a handler answers: what it names stays mapped.
#[derive(Debug)]
struct Pinned<'a>(&'a Entry);

impl Entry {
    fn has(&self, address: usize) -> bool {
        let (start, length) = (self.start.load(Relaxed), self.length.load(Relaxed));
        address.checked_sub(start).is_some_and(|at| at < length)
    }

    /// Pins it if an end is listed here in whose common memory the address is.
    fn pin(&self, address: usize) -> Option<Pinned<'_>> {
        let generation = self.generation.load(Acquire);
        // These words may be of several generations: they only decide whether a pin is worth a try.
        if generation.is_multiple_of(2) || !self.has(address) {
            return None;
        }
        self.pins.fetch_add(1, SeqCst);
        let pinned = Pinned(self);
        // From here on, if the generation is the same, they are of one, and do not change.
        (self.generation.load(SeqCst) == generation && self.has(address)).then_some(pinned)
    }

    fn write(&self, common: (NonNull<u8>, usize), private: NonNull<u8>) {
        self.length.store(common.1, Relaxed);
        self.private.store(private.as_ptr().expose_provenance(), Relaxed);
        self.start.store(common.0.as_ptr().expose_provenance(), Relaxed);
        self.generation.fetch_add(1, SeqCst);
    }

    /// Handlers find nothing here any more, and the entry is free. False: a handler keeps it
    /// pinned.
    fn clear(&self) -> bool {
        self.generation.fetch_add(1, SeqCst);
        for _ in 0..PIN_POLLS {
            if self.pins.load(SeqCst) == 0 {
                self.start.store(0, Release);
                return true;
            }
            lock::give_way();
        }
        false
    }
}

impl Pinned<'_> {
    fn private(&self) -> &Private {
        // SAFETY: the private page of an end, which is mapped while it is pinned.
        unsafe { &*ptr::with_exposed_provenance(self.0.private.load(Relaxed)) }
    }
}

impl Drop for Pinned<'_> {
    fn drop(&mut self) {
        self.0.pins.fetch_sub(1, SeqCst);
    }
}

type Part = [Entry; PART];

#[derive(Debug)]
struct List {
    /// Null until it is needed.
    parts: [AtomicPtr<Part>; PARTS],
    /// Where a free entry is likely.
    next: AtomicUsize,
}

static LIST: List = List::new();

/// The page that takes the place of holes; 0 until there is one.
static SPARE: AtomicUsize = AtomicUsize::new(0);

/// An end that is listed until it is taken off.
#[derive(Debug)]
pub(super) struct Listed(Option<&'static Entry>);

impl List {
    const fn new() -> Self {
        Self { parts: [const { AtomicPtr::new(ptr::null_mut()) }; PARTS], next: AtomicUsize::new(0) }
    }

    /// A part, which is made if there is none yet.
    fn part(&self, index: usize) -> Option<&'static Part> {
        let slot = self.parts.get(index)?;
        let mut part = slot.load(Acquire);
        if part.is_null() {
            let made = pages(size_of::<Part>(), MapFlags::PRIVATE)?.as_ptr().cast::<Part>();
            part = match slot.compare_exchange(ptr::null_mut(), made, AcqRel, Acquire) {
                Ok(_) => made,
                Err(other) => {
                    // SAFETY: mapped above, and no pointer to it was shared.
                    let _ = unsafe { rustix::mm::munmap(made.cast(), size_of::<Part>()) };
                    other
                }
            };
        }
        // SAFETY: a mapping of that size, of zeros at first, which are entries; it is never
        // unmapped.
        Some(unsafe { &*part })
    }

    fn take(&self) -> Option<&'static Entry> {
        let first = self.next.load(Relaxed);
        for step in 0..PARTS * PART {
            let at = (first + step) % (PARTS * PART);
            let entry = &self.part(at / PART)?[at % PART];
            if entry.start.load(Relaxed) == 0 && entry.start.compare_exchange(0, 1, AcqRel, Relaxed).is_ok() {
                self.next.store(at + 1, Relaxed);
                return Some(entry);
            }
        }
        None
    }

    /// The entry in whose common memory an address is.
    fn find(&self, address: usize) -> Option<Pinned<'static>> {
        self.parts.iter().find_map(|slot| {
            // SAFETY: null, or a part, which is never unmapped.
            let part: &'static Part = unsafe { slot.load(Acquire).as_ref() }?;
            part.iter().find_map(|entry| entry.pin(address))
        })
    }
}

/// Zeros that only this process has, and what it forks.
fn pages(length: usize, sharing: MapFlags) -> Option<NonNull<libc::c_void>> {
    let access = ProtFlags::READ.union(ProtFlags::WRITE);
    // SAFETY: the kernel chooses addresses that are not in use.
    let start = unsafe { mmap_anonymous(ptr::null_mut(), length, access, sharing) };
    NonNull::new(start.ok()?)
}

/// Lists an end. `None`: there is no room or memory, and a hole in it would end this process, which
/// relies on an answer.
pub(super) fn list(common: (NonNull<u8>, usize), private: NonNull<u8>) -> Option<Listed> {
    let entry = LIST.take();
    if let Some(entry) = entry {
        entry.write(common, private);
    }
    (entry.is_some() || SPARE.load(Acquire) == 0).then_some(Listed(entry))
}

impl Listed {
    /// Takes the end off the list. False: a handler may continue using what is mapped, and it has
    /// to stay.
    #[must_use]
    pub(super) fn take_off(&mut self) -> bool {
        let Some(entry) = self.0.take() else { return true };
        let cleared = entry.clear();
        if cleared {
            // Only a hint: the entry that has just become free is taken next.
            LIST.next.fetch_update(Relaxed, Relaxed, |next| next.checked_sub(1)).ok();
        }
        cleared
    }
}

/// Has a page ready for holes. To be called before a fault can be answered.
pub fn prepare() {
    guarded::prepare();
    if SPARE.load(Acquire) != 0 {
        return;
    }
    let Some(page) = pages(PAGE, MapFlags::SHARED) else { return };
    // It is there from here on.
    // SAFETY: a new page of this process.
    unsafe { page.as_ptr().cast::<u8>().write_volatile(0) };
    if SPARE.compare_exchange(0, page.as_ptr().expose_provenance(), AcqRel, Acquire).is_err() {
        // SAFETY: mapped above, and no pointer to it was shared.
        let _ = unsafe { rustix::mm::munmap(page.as_ptr(), PAGE) };
    }
}

/// Answers a fault if it is one of this crate's: then the handler returns, and the interrupted code
/// continues.
///
/// # Safety
/// What the kernel gave to a handler of SIGSEGV or SIGBUS.
pub unsafe fn handle_fault(
    signal: i32,
    information: *const libc::siginfo_t,
    context: *mut libc::ucontext_t,
) -> bool {
    // SAFETY: as the caller promises. A signal that a process sent is no fault.
    let address = unsafe {
        if (*information).si_code <= 0 {
            return false;
        }
        (*information).si_addr().addr()
    };
    // Pinned until the hole is filled: nothing else can be mapped at the address.
    let pinned = if signal == libc::SIGBUS { LIST.find(address) } else { None };
    if let Some(pinned) = &pinned {
        pinned.private().distrust();
    }
    // SAFETY: the caller's.
    let landed = unsafe { guarded::recover(address, context) };
    landed || pinned.is_some() && fill(address)
}

/// Puts the spare page in the place of the one that was refused.
fn fill(address: usize) -> bool {
    let spare = SPARE.load(Acquire);
    let hole = address & !(PAGE - 1);
    if spare == 0 {
        return false;
    }
    let (from, to) = (ptr::with_exposed_provenance_mut(spare), ptr::with_exposed_provenance_mut::<u8>(hole));
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    // SAFETY: the hole is a page of a mapping of this crate; nothing of it was to be had.
    unsafe { libc::mremap(from, 0, PAGE, flags, to) != libc::MAP_FAILED }
}

/// What was to be called for a fault before [`install_handler`].
static BEFORE: [AtomicPtr<libc::sigaction>; 2] = [const { AtomicPtr::new(ptr::null_mut()) }; 2];

fn before(signal: i32) -> &'static AtomicPtr<libc::sigaction> {
    &BEFORE[usize::from(signal == libc::SIGBUS)]
}

/// From now on faults of this kind do not end the process, which runs only code of Sietch. Other
/// faults go to the handlers installed before.
pub fn install_handler() {
    prepare();
    for signal in [libc::SIGSEGV, libc::SIGBUS] {
        if !before(signal).load(Acquire).is_null() {
            continue;
        }
        // SAFETY: zeros are an action, and the kernel writes the present one there.
        unsafe {
            let mut old: libc::sigaction = std::mem::zeroed();
            libc::sigaction(signal, ptr::null(), &raw mut old);
            let kept = Box::into_raw(Box::new(old));
            if before(signal).compare_exchange(ptr::null_mut(), kept, AcqRel, Acquire).is_err() {
                drop(Box::from_raw(kept));
                continue;
            }
            let mut new: libc::sigaction = std::mem::zeroed();
            new.sa_sigaction = handler as *const () as usize;
            new.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            libc::sigaction(signal, &raw const new, ptr::null_mut());
        }
    }
}

extern "C" fn handler(signal: i32, information: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: called by the kernel for these signals.
    if unsafe { handle_fault(signal, information, context.cast()) } {
        return;
    }
    // What was there before is called when the instruction faults again, or for a signal that was
    // sent, when that is sent again. SAFETY: never freed, and not null since this handler is
    // installed.
    unsafe {
        libc::sigaction(signal, before(signal).load(Acquire), ptr::null_mut());
        if (*information).si_code <= 0 {
            libc::raise(signal);
        }
    }
}

// They map files, which Miri does not.
#[cfg(all(test, not(miri)))]
mod tests;
