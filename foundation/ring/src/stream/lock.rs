//! A lock between threads of several processes, any of which may be killed while it holds it.
//!
//! 1. The word holds the thread id of the holder and bits that tell its PID namespace; 0 is free.
//!    What the lock protects is published by single stores, so it is whole at any moment. So the
//!    lock of a dead holder may simply be taken over. A process cannot tell whether a holder in
//!    another PID namespace runs: its number means another thread here, or none. Nor can it tell a
//!    dead holder from a later thread that got the same number: there is no room for more than the
//!    number. Such a holder counts as one that runs.
//! 2. A caller that finds the lock taken spins, then yields and checks with the kernel whether the
//!    holder still runs, then sleeps between its attempts. After [`NAPS`] of them with the same
//!    holder it gives up. The holder is stopped, or the word was written by a process that never
//!    releases it. A process that received this end from another user must not hang in it.
//! 3. A thread that finds itself the holder is a signal handler that interrupted its own thread. It
//!    does not get the lock: it must not wait for itself.
//! 4. After an exec the thread has the number of the process's first thread. Another thread may
//!    have called exec while the first one held a lock. The caller that adopts an end after an exec
//!    first frees the words that hold its own number ([`free_if_own`]).
//! 5. A caller that closes the end waits only for a moment ([`take_soon`]).
//!
//! Only holders of the same end can write the word. They can make one another's calls fail, and no
//! others.

use std::cell::Cell;
use std::io::Write as _;

use rustix::io::Errno;
use rustix::process::Pid;
use rustix::time::Timespec;

use crate::sync::{AtomicU32, Ordering};

/// Polls of a taken lock between two yields: a copy of 16 KiB takes about so long.
const SPINS: u32 = 200;
/// The same where the processor cannot be given away: some milliseconds.
const RESTRICTED_SPINS: u32 = 1 << 20;
/// Yields between two checks whether the holder runs.
const YIELDS: u32 = 64;
/// Polls with a yield before naps begin: where others run, each gives a whole slice away.
const YIELDING: u32 = 4096;
/// Naps before a caller gives up on one holder, of [`NAP`] each: two seconds. A holder only copies
/// 16 KiB before it releases the lock.
const NAPS: u32 = 2000;
const NAP: Timespec = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
/// Yields of a caller that waits for the thread that drains a doorbell, and naps after them.
/// Draining takes microseconds, and a thread that has lost its processor to others has it back
/// sooner.
const DRAIN_YIELDS: u32 = 256;
const DRAIN_NAPS: u32 = 50;
/// The same where a process may not sleep: some seconds.
const RESTRICTED_TURNS: u32 = 1 << 27;
/// Bits of a thread id (`PID_MAX_LIMIT` of 64-bit kernels is 2^22); the mark of the namespace is
/// above.
const ID_BITS: u32 = 22;

thread_local! {
    static ID: Cell<u32> = const { Cell::new(0) };
}

/// To be called in the child of a fork: its thread has another id.
pub fn after_fork() {
    let _ = ID.try_with(|id| id.set(0));
    // A child may be the first of another PID namespace.
    MARK.store(UNKNOWN, std::sync::atomic::Ordering::Relaxed);
}

/// The mark of this process's PID namespace, once it was determined.
static MARK: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(UNKNOWN);
const UNKNOWN: u32 = u32::MAX;

/// What is above the thread id in the word: bits of the namespace's inode number; 0 where there is
/// no `/proc`.
#[inline]
fn mark() -> u32 {
    let known = MARK.load(std::sync::atomic::Ordering::Relaxed);
    if known != UNKNOWN { known } else { find_mark() }
}

#[cold]
fn find_mark() -> u32 {
    // Miri has neither other processes nor this call.
    let inode =
        if cfg!(miri) { 0 } else { rustix::fs::stat(c"/proc/self/ns/pid").map_or(0, |found| found.st_ino) };
    // The numbers of namespaces follow one another (fs/nsfs.c): their low bits distinguish them.
    let mark = (inode as u32) << ID_BITS;
    MARK.store(mark, std::sync::atomic::Ordering::Relaxed);
    mark
}

/// What this thread writes into a word.
#[inline]
pub fn holder() -> u32 {
    own() & ((1 << ID_BITS) - 1) | mark()
}

/// Whether this process has restricted its system calls.
static RESTRICTED: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);

/// From now on the kernel is queried only about whether a holder runs, and only where a lock stays
/// taken for very long. The process is about to give up system calls.
pub fn restrict_system_calls() {
    own();
    mark();
    RESTRICTED.store(true, std::sync::atomic::Ordering::Relaxed);
}

/// The caller's thread id; 1 (the first process of all, which holds no end) where thread-local
/// memory is already freed.
#[inline]
pub fn own() -> u32 {
    ID.try_with(|id| if id.get() != 0 { id.get() } else { fetch_own(id) }).unwrap_or(1)
}

#[cold]
fn fetch_own(id: &Cell<u32>) -> u32 {
    id.set(rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs());
    id.get()
}

/// Held until it is dropped.
#[derive(Debug)]
pub(super) struct Guard<'a>(&'a AtomicU32);

impl Drop for Guard<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.store(0, Ordering::Release);
    }
}

/// Takes the lock; `None` if this very thread holds it, or if the holder does not release it.
#[inline]
pub(super) fn take(word: &AtomicU32) -> Option<Guard<'_>> {
    let own = holder();
    match word.compare_exchange(0, own, Ordering::Acquire, Ordering::Relaxed) {
        Ok(_) => Some(Guard(word)),
        Err(_) => wait(word, own, Patience::Call),
    }
}

/// As [`take`], for a caller that can do without: it waits about as long as a holder that runs
/// needs.
pub(super) fn take_soon(word: &AtomicU32) -> Option<Guard<'_>> {
    let own = holder();
    match word.compare_exchange(0, own, Ordering::Acquire, Ordering::Relaxed) {
        Ok(_) => Some(Guard(word)),
        Err(_) => wait(word, own, Patience::Close),
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Patience {
    Call,
    Close,
}

#[cold]
fn wait(word: &AtomicU32, own: u32, patience: Patience) -> Option<Guard<'_>> {
    let mut polls: u32 = 0;
    let mut since = 0;
    let mut last = 0;
    let restricted = RESTRICTED.load(std::sync::atomic::Ordering::Relaxed);
    let spins = if restricted { RESTRICTED_SPINS } else { SPINS };
    let most = match patience {
        Patience::Close => spins + YIELDING,
        Patience::Call if restricted => RESTRICTED_TURNS,
        Patience::Call => spins + YIELDING + NAPS,
    };
    loop {
        let holder = word.load(Ordering::Relaxed);
        if holder == own {
            return None;
        }
        if holder != last {
            // Another holder: the lock was released meanwhile. The count begins anew, but not for
            // ever.
            (last, since) = (holder, polls.min(most));
        }
        let dead = polls >= spins && polls.is_multiple_of(YIELDS) && holder != 0 && is_dead(holder);
        if (holder == 0 || dead)
            && word.compare_exchange(holder, own, Ordering::Acquire, Ordering::Relaxed).is_ok()
        {
            return Some(Guard(word));
        }
        if polls - since >= most {
            return None;
        }
        if polls < spins || restricted {
            std::hint::spin_loop();
        } else if polls < spins + YIELDING {
            rustix::thread::sched_yield();
        } else {
            // Cut short by a signal, it polls sooner.
            let _ = rustix::thread::nanosleep(&NAP);
        }
        polls += 1;
    }
}

/// Gives the processor to others, where that is allowed.
pub(super) fn give_way() {
    if RESTRICTED.load(std::sync::atomic::Ordering::Relaxed) {
        std::hint::spin_loop();
    } else {
        rustix::thread::sched_yield();
    }
}

/// Whether a holder is known to be dead: one of this PID namespace that the kernel has no thread
/// for.
pub fn is_dead(holder: u32) -> bool {
    holder >> ID_BITS == mark() >> ID_BITS && !is_running(holder & ((1 << ID_BITS) - 1))
}

/// The rest of the time that a caller spends on the holders of a word, all of them together.
#[derive(Debug)]
pub(super) struct Budget {
    polls: u32,
}

impl Budget {
    /// Polls, yields and [`DRAIN_NAPS`]: a twentieth of a second, where others run somewhat more.
    pub(super) fn new() -> Self {
        let restricted = RESTRICTED.load(std::sync::atomic::Ordering::Relaxed);
        Self { polls: if restricted { RESTRICTED_SPINS } else { SPINS + DRAIN_YIELDS + DRAIN_NAPS } }
    }

    /// For a caller that has waited for this holder in vain before.
    pub(super) fn spent() -> Self {
        Self { polls: 0 }
    }
}

/// Waits until a word becomes 0 or the caller's own thread. The word holds a thread for as long as
/// that thread is busy. A dead thread is taken off the word. False: the budget is spent.
#[cold]
pub(super) fn wait_for(word: &AtomicU32, budget: &mut Budget) -> bool {
    let restricted = RESTRICTED.load(std::sync::atomic::Ordering::Relaxed);
    loop {
        let found = word.load(Ordering::Acquire);
        if found == 0 || found == holder() {
            return true;
        }
        let Some(left) = budget.polls.checked_sub(1) else { return false };
        budget.polls = left;
        if restricted || left >= DRAIN_YIELDS + DRAIN_NAPS {
            std::hint::spin_loop();
        } else if left >= DRAIN_NAPS {
            rustix::thread::sched_yield();
            if left.is_multiple_of(YIELDS) {
                free_of_dead(word);
            }
        } else {
            let _ = rustix::thread::nanosleep(&NAP);
        }
    }
}

/// Frees a word that holds the number of this thread, which another one left there.
pub(super) fn free_if_own(word: &AtomicU32) {
    let _ = word.compare_exchange(holder(), 0, Ordering::AcqRel, Ordering::Relaxed);
}

/// Takes a word from a dead thread.
#[cold]
pub(super) fn free_of_dead(word: &AtomicU32) {
    // Querying the kernel for the threads that run may end a process that gave up system calls.
    let restricted = RESTRICTED.load(std::sync::atomic::Ordering::Relaxed);
    let found = word.load(Ordering::Relaxed);
    if found != 0 && !restricted && is_dead(found) {
        let _ = word.compare_exchange(found, 0, Ordering::AcqRel, Ordering::Relaxed);
    }
}

/// Whether a thread of that id exists and has not ended. One that has ended keeps its id until it
/// is reaped.
pub fn is_running(thread: u32) -> bool {
    // Miri has neither other processes nor this call.
    if cfg!(miri) {
        return true;
    }
    let Some(id) = i32::try_from(thread).ok().and_then(Pid::from_raw) else { return false };
    if matches!(rustix::process::test_kill_process(id), Err(Errno::SRCH)) {
        return false;
    }
    // A filter that allows kill(2) need not allow more.
    RESTRICTED.load(std::sync::atomic::Ordering::Relaxed) || !has_ended(id)
}

/// Whether an existing thread is known to have ended: it has no namespaces any more. `stat(2)` says
/// so without a descriptor, which the program or a child of it could meet. False where there is no
/// `/proc` of this PID namespace, and for threads that this one may not trace (another user's).
#[cold]
fn has_ended(thread: Pid) -> bool {
    let thread = thread.as_raw_nonzero();
    let namespace = |kind| rustix::fs::stat(Text::new(format_args!("/proc/{thread}/ns/{kind}")).bytes());
    // The first two show that this kernel has such files, the third that the thread may be queried.
    is_own_proc()
        && rustix::fs::stat(c"/proc/thread-self/ns/mnt").is_ok()
        && namespace("pid").is_ok()
        && namespace("mnt").is_err_and(|error| error == Errno::NOENT)
}

/// Whether `/proc` shows threads under the numbers that they have in this PID namespace.
fn is_own_proc() -> bool {
    let process = rustix::process::getpid().as_raw_nonzero();
    let expected = Text::new(format_args!("{process}/task/{}", own()));
    let mut link = [0; 64];
    let length = rustix::fs::readlinkat_raw(rustix::fs::CWD, c"/proc/thread-self", &mut link);
    length.is_ok_and(|length| link.get(..length) == Some(expected.bytes()))
}

/// A short text, without an allocation.
struct Text {
    bytes: [u8; 64],
    length: usize,
}

impl Text {
    /// What does not fit is left out.
    fn new(text: std::fmt::Arguments<'_>) -> Self {
        let mut bytes = [0; 64];
        let mut rest = &mut bytes[..];
        let _ = rest.write_fmt(text);
        let length = 64 - rest.len();
        Self { bytes, length }
    }

    fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }
}
