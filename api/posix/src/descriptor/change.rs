//! The lock under which a number changes: its word in the table and the kernel's descriptor are two
//! steps, and no call of this library sees one without the other.
//!
//! 1. `dup`, `dup2`, `fcntl(F_DUPFD)`, `close` and `connect` hold [`Change`] around both steps. So
//!    the number that is duplicated keeps its word until the kernel's call has returned.
//! 2. A call that moves bytes takes no lock. The word of a number whose file changes is *busy*
//!    meanwhile ([`crate::descriptor::table`]). A look-up that finds such a word waits for the
//!    lock, then reads the word again. Other look-ups cost what they did before.
//! 3. No handler of the program runs in the holder ([`Section`]), so none waits for its own thread,
//!    and none jumps out. A handler that the kernel alone knows finds that its thread has the lock,
//!    and does not wait. Nothing under the lock is a cancellation point.
//! 4. A fork waits for the holder and holds the lock itself, so a child finds no busy word. A child
//!    in which no handler of a fork ran has the lock free, because its word is in a page that the
//!    kernel wipes. A busy word that it finds under the lock has no holder, and it clears the word.
//! 5. The lock is taken after that of the files ([`crate::files::state`]) and before those of the
//!    epoll sets. A holder of an epoll set's lock looks up no number.
//!
//! A call that has read the word 0 is in the kernel a few instructions later. The lock does not
//! hold it back; [`crate::descriptor::kernel_calls`] does.

use std::cell::UnsafeCell;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use sietch_ring::stream;

use crate::signal::handlers::Section;
use crate::system::{fork, processor, seccomp};

/// Polls before the processor is yielded.
const SPINS: u32 = 64;

/// Polls between two questions whether the holder still runs.
const HOLDER_CHECK_EVERY: u32 = 1 << 14;

/// Polls until a holder counts as lost in a process that must not ask. A thread without a processor
/// has it again after some milliseconds.
const RESTRICTED_POLLS: u32 = 1 << 21;

/// The bit of the lock's word by which others wait; the rest is the holder's thread id. A holder
/// that finds it yields when it has released the lock: otherwise a thread that changes numbers in a
/// loop would have the lock nearly always.
const WAITED_FOR: u32 = 1 << 31;

/// The word where there is no memory for [`fork::changing_descriptors`].
static CHANGING: AtomicU32 = AtomicU32::new(0);

/// The lock, held by the calling thread.
#[derive(Debug)]
pub(crate) struct Change {
    word: &'static AtomicU32,
    own: u32,
    /// Not within another change of the same thread.
    holds: bool,
    _section: Section,
}

impl Change {
    /// Waits for the lock.
    pub(crate) fn begin() -> Self {
        let section = Section::enter();
        let word = fork::changing_descriptors().unwrap_or(&CHANGING);
        let own = stream::thread();
        let holds = word.compare_exchange(0, own, Acquire, Relaxed).is_ok() || contend(word, own);
        Self { word, own, holds, _section: section }
    }

    /// Whether the thread had it already.
    pub(crate) fn is_nested(&self) -> bool {
        !self.holds
    }
}

impl Drop for Change {
    fn drop(&mut self) {
        // In a child of fork it is free already.
        if self.holds && self.word.load(Relaxed) & !WAITED_FOR == self.own {
            let before = self.word.swap(0, Release);
            if before & WAITED_FOR != 0 {
                processor::yield_now();
            }
        }
    }
}

/// Takes the lock. False: the caller has it already.
#[cold]
fn contend(word: &AtomicU32, own: u32) -> bool {
    let mut polls: u32 = 0;
    loop {
        let found = word.load(Relaxed);
        let holder = found & !WAITED_FOR;
        if holder == own {
            return false;
        }
        let is_free = holder == 0 || polls != 0 && is_lost(holder, polls);
        if is_free && word.compare_exchange(found, own, Acquire, Relaxed).is_ok() {
            return true;
        }
        if holder != 0 && found == holder {
            let _ = word.compare_exchange(found, found | WAITED_FOR, Relaxed, Relaxed);
        }
        polls = polls.wrapping_add(1);
        if polls.is_multiple_of(SPINS) {
            processor::yield_now();
        }
        std::hint::spin_loop();
    }
}

/// Whether a holder will never release the lock.
fn is_lost(holder: u32, polls: u32) -> bool {
    if seccomp::is_restricted() {
        return polls.is_multiple_of(RESTRICTED_POLLS);
    }
    polls.is_multiple_of(HOLDER_CHECK_EVERY) && !stream::is_running(holder)
}

/// What a fork holds.
struct Forking(UnsafeCell<Option<Change>>);

// SAFETY: used between the two ends of a fork alone, by the thread that has the lock.
unsafe impl Sync for Forking {}

static FORKING: Forking = Forking(UnsafeCell::new(None));

/// Before a fork: no number is half changed in the child.
pub(crate) fn before_fork() {
    let change = Change::begin();
    if !change.is_nested() {
        // SAFETY: this thread has the lock, so no other one is here.
        let left = unsafe { (*FORKING.0.get()).replace(change) };
        // A fork without handlers, during another thread's fork, has left what that one held.
        std::mem::forget(left);
    }
}

/// After a fork, in the parent and in the child.
pub(crate) fn after_fork() {
    // SAFETY: this thread has had the lock since `before_fork`; a child has no other thread.
    drop(unsafe { (*FORKING.0.get()).take() });
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU64};
    use std::thread;

    use super::*;

    #[test]
    fn a_thread_that_has_the_lock_does_not_wait_for_it() {
        let first = Change::begin();
        assert!(!first.is_nested());
        let second = Change::begin();
        assert!(second.is_nested());
        drop(second);
        let entered = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                let _change = Change::begin();
                entered.store(true, Relaxed);
            });
            thread::yield_now();
            assert!(!entered.load(Relaxed), "the end of the inner change releases nothing");
            drop(first);
        });
        assert!(entered.load(Relaxed));
    }

    #[test]
    fn threads_change_one_after_the_other() {
        const ROUNDS: u64 = if cfg!(miri) { 20 } else { 5_000 };
        let count = AtomicU64::new(0);
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..ROUNDS {
                        let _change = Change::begin();
                        let before = count.load(Relaxed);
                        count.store(before + 1, Relaxed);
                    }
                });
            }
        });
        assert_eq!(count.load(Relaxed), 3 * ROUNDS);
    }
}
