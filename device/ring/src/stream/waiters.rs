//! Counted waiters: step 5 of [`super`].
//!
//! A waiter adds itself and fences; a ringer fences, looks, and takes the whole number. The fences are sequentially consistent, so of a waiter that
//! still finds nothing and a ringer that still finds nobody at most one can be. Who was counted and has not been rung subtracts itself again.
//!
//! The other side may write the word too. A number that is too small loses its own peer's wake-up, which the holder survives because others that
//! wait at the same time sleep in slices; one that is too large costs the ringer a write or two ([`MOST`]).

use crate::sync::{AtomicU32, Ordering, fence};

/// The most bytes that one ring writes, whatever the word says: more waiters than this wake one another as they find the rest to do.
pub const MOST: u32 = 16;

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
    while seen != 0 {
        match word.compare_exchange_weak(seen, seen - 1, Ordering::AcqRel, Ordering::Relaxed) {
            Ok(_) => return,
            Err(now) => seen = now,
        }
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
    word.swap(0, Ordering::AcqRel).min(MOST)
}
