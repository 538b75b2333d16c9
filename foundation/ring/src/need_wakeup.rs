//! Whether the other side sleeps: the protocol of a need-wakeup word.
//!
//! 1. The sleeper has found nothing to do. It *arms* the word, then polls once more. It sleeps only
//!    if there is still nothing.
//! 2. The notifier has published something. It then *claims* the word. If the word was armed, this
//!    notifier (and no other) must notify. If not, the other side is awake, and nothing is to be
//!    done.
//! 3. Both sides write one word and then read the other's, with a sequentially consistent fence
//!    between the two. So at least one of them sees the other's write: either the sleeper finds the
//!    work, or the notifier finds the word armed. No wake-up is lost.
//! 4. Awake again, the sleeper *disarms*, so that it is not notified while it works. A claim that
//!    races with that notifies once for nothing, which is allowed.
//!
//! Arming and disarming are read-modify-writes although plain stores would do. A read-modify-write
//! comes after the write before it, which lets loom check step 3; loom's plain stores keep no such
//! order.
//!
//! A hostile sleeper that keeps the word armed costs the notifier one system call a batch. A
//! hostile notifier that clears the word delays its own data only.

use crate::sync::{AtomicU32, Ordering, fence};

/// The bit of the word that requests a wake-up: `XDP_RING_NEED_WAKEUP` of AF_XDP.
pub(crate) const NEED_WAKEUP: u32 = 1;

/// Requests a wake-up. The caller must poll once more before it sleeps.
#[inline]
pub fn arm(word: &AtomicU32) {
    word.swap(NEED_WAKEUP, Ordering::AcqRel);
    fence(Ordering::SeqCst);
}

/// As [`arm`], for a word that the notifier cannot write: it counts, and is odd while armed. The
/// notifier remembers the value for which it last notified ([`claim_counted`]).
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

/// Called after publishing: whether the caller must notify a sleeper that used [`arm_counted`].
/// `load` reads the word; `notified` is the value of the last notification, zero at first. True at
/// most once for each value.
#[inline]
#[must_use = "the caller that claims the word must notify, or the sleeper sleeps on"]
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

/// Called after publishing: whether the caller must notify. True at most once for each [`arm`].
#[inline]
#[must_use = "the caller that claims the word must notify, or the sleeper sleeps on"]
pub fn claim(word: &AtomicU32) -> bool {
    is_armed(word) && word.swap(0, Ordering::AcqRel) & NEED_WAKEUP != 0
}

/// Called after publishing: whether the peer requests a wake-up. For a peer that takes the request
/// back itself, as the kernel does.
#[inline]
pub fn is_armed(word: &AtomicU32) -> bool {
    fence(Ordering::SeqCst);
    word.load(Ordering::Relaxed) & NEED_WAKEUP != 0
}
