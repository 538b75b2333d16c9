//! Whether the other side sleeps: the protocol of a need-wakeup word.
//!
//! 1. The sleeper has found nothing to do. It *arms* the word, then looks once more. Only if there
//!    is still nothing does it sleep.
//! 2. The ringer has published something. It then *claims* the word: if it was armed, this ringer
//!    (and no other) must ring. If not, nobody sleeps, and ringing costs nothing.
//! 3. Both sides write one word and then read the other's. A sequentially consistent fence stands
//!    between the two on either side, so at least one of them sees the other's write: either the
//!    sleeper finds the work, or the ringer finds the word armed. No wake-up is lost.
//! 4. Awake again, the sleeper *disarms*, so that it is not rung while it works. A claim that raced
//!    with it rings once for nothing; that is allowed.
//!
//! Arming and disarming are read-modify-writes although plain stores would do: whoever writes the
//! word then comes after the writer before, which is what lets loom (whose plain stores keep no
//! such order) check step 3.
//!
//! A hostile sleeper that keeps the word armed costs the ringer one system call a batch. A hostile
//! ringer that clears the word withholds its own news only.

use crate::sync::{AtomicU32, Ordering, fence};

/// The bit of the word that asks for a wake-up: `XDP_RING_NEED_WAKEUP` of AF_XDP.
pub const NEED_WAKEUP: u32 = 1;

/// Asks to be woken. The caller must look for work once more before it sleeps.
#[inline]
pub fn arm(word: &AtomicU32) {
    word.swap(NEED_WAKEUP, Ordering::AcqRel);
    fence(Ordering::SeqCst);
}

/// As [`arm`], for a word that the ringer cannot write: it counts, and is odd while armed. Whoever
/// rings remembers the value that it rang for ([`claim_counted`]).
#[inline]
pub fn arm_counted(word: &AtomicU32) {
    if word.load(Ordering::Relaxed) & NEED_WAKEUP == 0 {
        word.fetch_add(1, Ordering::AcqRel);
    }
    fence(Ordering::SeqCst);
}

/// Takes the request of [`arm_counted`] back.
#[inline]
pub fn disarm_counted(word: &AtomicU32) {
    if word.load(Ordering::Relaxed) & NEED_WAKEUP != 0 {
        word.fetch_add(1, Ordering::AcqRel);
    }
}

/// Called after publishing: whether the caller must ring a sleeper that used [`arm_counted`].
/// `load` reads the word, `rung` is the value that was last rung for (zero at first). True at most
/// once for each value.
#[inline]
#[must_use = "whoever claims the word must ring, or the sleeper sleeps on"]
pub fn claim_counted(load: impl FnOnce() -> u32, notified: &mut u32) -> bool {
    fence(Ordering::SeqCst);
    let value = load();
    let wanted = value & NEED_WAKEUP != 0 && value != *notified;
    if wanted {
        *notified = value;
    }
    wanted
}

/// Takes the request back.
#[inline]
pub fn disarm(word: &AtomicU32) {
    word.swap(0, Ordering::AcqRel);
}

/// Called after publishing: whether the caller must ring. True at most once for each [`arm`].
#[inline]
#[must_use = "whoever claims the word must ring, or the sleeper sleeps on"]
pub fn claim(word: &AtomicU32) -> bool {
    is_armed(word) && word.swap(0, Ordering::AcqRel) & NEED_WAKEUP != 0
}

/// Called after publishing: whether the peer asks to be woken. For a peer that takes the request
/// back itself, as the kernel does.
#[inline]
pub fn is_armed(word: &AtomicU32) -> bool {
    fence(Ordering::SeqCst);
    word.load(Ordering::Relaxed) & NEED_WAKEUP != 0
}
