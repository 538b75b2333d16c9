//! A lock between threads of several processes, any of which may be killed while it holds it.
//!
//! 1. The word holds the thread id of the holder, 0 for nobody. What the lock protects is published by single stores, so it is whole at any
//!    moment, and a lock whose holder is dead may simply be taken over.
//! 2. Who finds it taken spins, then yields, then asks the kernel whether the holder still lives.
//! 3. Who finds itself the holder is a signal handler that interrupted its own thread, and gets nothing: it must not wait for itself.
//!
//! Only those who hold the same end can write the word: they harm nobody else.

use std::cell::Cell;

use crate::sync::{AtomicU32, Ordering};

/// Looks at a taken lock between two yields: a copy of 16 KiB takes about so long.
const SPINS: u32 = 200;
/// The same where the processor cannot be given away: some milliseconds.
const CONFINED_SPINS: u32 = 1 << 20;
/// Yields between two questions whether the holder lives.
const YIELDS: u32 = 64;

thread_local! {
    static ID: Cell<u32> = const { Cell::new(0) };
}

/// To be called in the child of a fork: its thread has another id.
pub fn after_fork() {
    let _ = ID.try_with(|id| id.set(0));
}

/// Whether this process may not ask the kernel for what others may.
static CONFINED: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);

/// From now on the kernel is asked for nothing but whether a holder lives, and that only where a lock stays taken for very long: the process is about to
/// give up system calls.
pub fn confine() {
    own();
    CONFINED.store(true, std::sync::atomic::Ordering::Relaxed);
}

/// The caller's thread id; 1 (the first process of all, which holds no end) where thread-local memory is gone already.
pub fn own() -> u32 {
    ID.try_with(|id| {
        if id.get() == 0 {
            id.set(rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs());
        }
        id.get()
    })
    .unwrap_or(1)
}

/// Held until it is dropped.
#[derive(Debug)]
pub struct Guard<'a>(&'a AtomicU32);

impl Drop for Guard<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.store(0, Ordering::Release);
    }
}

/// Takes the lock; `None` if this very thread holds it.
#[inline]
pub fn take(word: &AtomicU32) -> Option<Guard<'_>> {
    let own = own();
    match word.compare_exchange(0, own, Ordering::Acquire, Ordering::Relaxed) {
        Ok(_) => Some(Guard(word)),
        Err(_) => wait(word, own),
    }
}

#[cold]
fn wait(word: &AtomicU32, own: u32) -> Option<Guard<'_>> {
    let mut turns: u32 = 0;
    let confined = CONFINED.load(std::sync::atomic::Ordering::Relaxed);
    let spins = if confined { CONFINED_SPINS } else { SPINS };
    loop {
        let holder = word.load(Ordering::Relaxed);
        if holder == own {
            return None;
        }
        let dead = turns >= spins && turns.is_multiple_of(YIELDS) && holder != 0 && !lives(holder);
        if (holder == 0 || dead)
            && word.compare_exchange(holder, own, Ordering::Acquire, Ordering::Relaxed).is_ok()
        {
            return Some(Guard(word));
        }
        if turns < spins || confined {
            std::hint::spin_loop();
        } else {
            rustix::thread::sched_yield();
        }
        turns = turns.wrapping_add(1).max(1);
    }
}

/// Whether there is a thread of that id.
pub fn lives(thread: u32) -> bool {
    let Some(id) = i32::try_from(thread).ok().and_then(rustix::process::Pid::from_raw) else { return false };
    !matches!(rustix::process::test_kill_process(id), Err(rustix::io::Errno::SRCH))
}
