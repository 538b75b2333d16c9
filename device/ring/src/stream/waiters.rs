//! Counted waiters: step 5 of [`super`].
//!
//! A waiter adds itself and fences; a ringer fences, looks, and takes the whole number. The fences are sequentially consistent, so of a waiter that
//! still finds nothing and a ringer that still finds nobody at most one can be. Who was counted and has not been rung subtracts itself again.
//!
//! **One ring a sleep.** Who sleeps for many streams at once ([`arm_among_many`]) says beside each in which of its sleeps it is: a number that it never uses
//! twice. A ringer that has rung for that sleep somewhere need not ring again ([`take_unless`]), because whoever wakes looks at all of them before it sleeps
//! again. The waiter numbers its sleep, fences, and looks at each; a ringer publishes, fences, and looks at the number.
//!
//! The other side may write the word too. A number that is too small loses its own peer's wake-up, which the holder survives because others that
//! wait at the same time sleep in slices; one that is too large costs the ringer a write or two ([`MOST`]).

use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};

/// The most bytes that one ring writes, whatever the word says: more waiters than this wake one another as they find the rest to do.
pub const MOST: u32 = 16;

/// The sleeps for which a ringer has rung lately: as many as an application has processes that sleep by turns.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rung {
    sleeps: [u64; 8],
    next: usize,
}

impl Rung {
    /// Whether it has rung for this one. One that was forgotten is rung for once more.
    #[inline]
    pub fn has(&self, sleep: u64) -> bool {
        self.sleeps.contains(&sleep)
    }

    /// It has; 0 is none.
    #[inline]
    pub fn note(&mut self, sleep: u64) {
        if sleep != 0 {
            self.sleeps[self.next % self.sleeps.len()] = sleep;
            self.next = self.next.wrapping_add(1);
        }
    }
}

/// Beside the number of waiters: one of them sleeps for many streams.
const AMONG_MANY: u32 = 1 << 16;
/// The number of waiters.
const COUNT: u32 = AMONG_MANY - 1;

/// How many wait.
#[inline]
pub fn count(word: &AtomicU32) -> u32 {
    word.load(Ordering::Relaxed) & COUNT
}

/// Counts the caller, who must look once more before it sleeps.
#[inline]
pub fn arm(word: &AtomicU32) {
    word.fetch_add(1, Ordering::AcqRel);
    fence(Ordering::SeqCst);
}

/// Takes the caller back, if it was not taken by a ringer.
#[inline]
pub fn disarm(word: &AtomicU32) {
    let mut seen = word.load(Ordering::Relaxed);
    while seen & COUNT != 0 {
        match word.compare_exchange_weak(seen, seen - 1, Ordering::AcqRel, Ordering::Relaxed) {
            Ok(_) => return,
            Err(now) => seen = now,
        }
    }
}

/// Counts the caller as one who sleeps for many, if nobody else waits: the number of the sleep would be understood as theirs. The caller then stores that
/// number, fences once for all that it arms so, and looks at all of them.
#[inline]
#[must_use = "who is not counted is not rung"]
pub fn arm_among_many(word: &AtomicU32) -> bool {
    word.compare_exchange(0, AMONG_MANY | 1, Ordering::AcqRel, Ordering::Relaxed).is_ok()
}

/// Takes the caller back that was counted with [`arm_among_many`].
#[inline]
pub fn disarm_among_many(word: &AtomicU32) {
    let mut seen = word.load(Ordering::Relaxed);
    while seen & AMONG_MANY != 0 && seen & COUNT != 0 {
        let less = seen - AMONG_MANY - 1;
        match word.compare_exchange_weak(seen, less, Ordering::AcqRel, Ordering::Relaxed) {
            Ok(_) => return,
            Err(now) => seen = now,
        }
    }
}

/// As [`take`], but nobody if the only one who waits does so in a sleep that the ringer has rung for. Else how many to ring, and the sleep that is rung
/// for by that, 0 for none.
#[inline]
#[must_use = "who takes waiters must ring them, or they sleep on"]
pub fn take_unless(word: &AtomicU32, sleep: &AtomicU64, is_rung: impl FnOnce(u64) -> bool) -> (u32, u64) {
    fence(Ordering::SeqCst);
    let seen = word.load(Ordering::Relaxed);
    if seen == 0 {
        return (0, 0);
    }
    let among = seen == AMONG_MANY | 1;
    let number = if among { sleep.load(Ordering::Acquire) } else { 0 };
    if number != 0 && is_rung(number) {
        return (0, 0);
    }
    match word.swap(0, Ordering::AcqRel) {
        0 => (0, 0),
        // Another waiter may have come and another number with it: only what was seen before and after was rung for.
        taken if taken == seen && sleep.load(Ordering::Acquire) == number => {
            ((taken & COUNT).clamp(1, MOST), number)
        }
        taken => ((taken & COUNT).clamp(1, MOST), 0),
    }
}

/// After publishing: how many to ring, at most [`MOST`]. Each waiter is taken once.
#[inline]
#[must_use = "who takes waiters must ring them, or they sleep on"]
pub fn take(word: &AtomicU32) -> u32 {
    fence(Ordering::SeqCst);
    if word.load(Ordering::Relaxed) == 0 {
        return 0;
    }
    match word.swap(0, Ordering::AcqRel) {
        0 => 0,
        taken => (taken & COUNT).clamp(1, MOST),
    }
}
