//! Counted waiters and the doorbell that wakes them: step 5 of [`super`].
//!
//! 1. **Requests.** A waiter adds 1 to the count and 1 to the number of *requests* in one step
//!    ([`arm`]), fences, polls once more, and sleeps. It takes itself off the count after it has
//!    returned ([`disarm`]); nothing else takes it off. A waiter that was woken for nothing and
//!    sleeps again makes another request ([`arm_again`]).
//! 2. **Notifications.** A notifier publishes, fences, and reads the word ([`due`]). If a waiter is
//!    counted and the last request differs from the last one answered, it writes one byte to the
//!    doorbell. It then records that request as answered ([`answer`]). The byte wakes all sleepers
//!    there, and each polls. The fences are sequentially consistent, so at most one of the two
//!    fails to see the other. That is the waiter that finds nothing, or the notifier that finds no
//!    new request. A notifier that is killed before the byte was written has recorded nothing. A
//!    waiter that is killed stays counted, and costs nothing: it makes no requests.
//! 3. **Bytes.** Every sleeper is woken by a byte, and sees that it is there. So a byte may be
//!    taken only if no sleeper still needs it. A thread that takes bytes announces it first
//!    ([`Drain`]), fences, and reads the count: if others are counted, one byte at least must stay.
//!    A waiter that has counted itself and finds a drain in progress waits for its end and makes
//!    its request again ([`is_draining`]). At least one of the two sees the other, so no byte that
//!    answers a request is taken before its waiter has returned.
//! 4. **One notification a sleep.** A thread that sleeps for many streams at once
//!    ([`arm_among_many`]) writes the number of its sleep beside each. It never uses a number
//!    twice. A notifier that has already notified that sleep through another stream skips the
//!    notification ([`due_unless`]), because the thread polls all its streams before it sleeps
//!    again. The waiter numbers its sleep, fences, and polls each; a notifier publishes, fences,
//!    and reads the number.
//!
//! The other side may write these words too. A count that is too small, or a request that counts as
//! answered, loses that side's own wake-up; any other value costs a write.

use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};

/// The sleeps that a notifier has notified lately: as many as an application has processes that
/// sleep alternately.
#[derive(Clone, Copy, Debug, Default)]
pub struct NotifiedSleeps {
    sleeps: [u64; 8],
    next: usize,
}

impl NotifiedSleeps {
    /// Whether this sleep was notified. One that was forgotten is notified once more.
    #[inline]
    pub fn has(&self, sleep: u64) -> bool {
        self.sleeps.contains(&sleep)
    }

    /// Records that this sleep was notified; 0 is none.
    #[inline]
    pub fn note(&mut self, sleep: u64) {
        if sleep != 0 {
            self.sleeps[self.next % self.sleeps.len()] = sleep;
            self.next = self.next.wrapping_add(1);
        }
    }
}

/// The number of waiters: more than there can be threads (`PID_MAX_LIMIT` is 2^22, and a word that
/// overflows costs its own side a wake-up).
const COUNT: u64 = (1 << 22) - 1;
/// Beside the number of waiters: one of them sleeps for many streams.
const AMONG_MANY: u64 = 1 << 22;
/// Beside the number of waiters: a request was made for sleepers that are not counted
/// ([`request_uncounted`]).
const UNCOUNTED: u64 = 1 << 23;
/// One request.
const REQUEST: u64 = 1 << 24;
/// Any waiter, counted or not.
const ANY_WAITER: u64 = COUNT | UNCOUNTED;
/// 40 bits of requests: a waiter that makes one each microsecond comes round after twelve days, and
/// then the number in [`answer`] has moved as well.
const REQUESTS: u64 = !(REQUEST - 1);

/// The number of the last request.
#[inline]
const fn request(word: u64) -> u64 {
    word >> REQUEST.trailing_zeros()
}

/// How many waiters are counted.
#[inline]
pub fn count(word: &AtomicU64) -> u32 {
    let word = word.load(Ordering::Relaxed);
    (word & COUNT) as u32 + u32::from(word & UNCOUNTED != 0)
}

/// Counts the caller, which must poll once more before it sleeps. Returns the number of its
/// request.
#[inline]
pub fn arm(word: &AtomicU64) -> u64 {
    let before = word.fetch_add(REQUEST + 1, Ordering::AcqRel);
    fence(Ordering::SeqCst);
    request(before.wrapping_add(REQUEST))
}

/// The caller, which is counted, is about to sleep again, and must poll once more before. Returns
/// the number of its request.
#[inline]
pub fn arm_again(word: &AtomicU64) -> u64 {
    let before = word.fetch_add(REQUEST, Ordering::AcqRel);
    fence(Ordering::SeqCst);
    request(before.wrapping_add(REQUEST))
}

/// Takes the caller off the count.
#[inline]
pub fn disarm(word: &AtomicU64) {
    change(word, |seen| if seen & COUNT == 0 { seen } else { seen - 1 });
}

/// Makes a request for others that sleep at this end without being counted. It is valid until
/// [`withdraw_request`].
pub(crate) fn request_uncounted(word: &AtomicU64) {
    change(word, |seen| (seen | UNCOUNTED).wrapping_add(REQUEST));
    fence(Ordering::SeqCst);
}

/// The sleepers of [`request_uncounted`] have been woken.
#[inline]
pub(crate) fn withdraw_request(word: &AtomicU64) {
    if word.load(Ordering::Relaxed) & UNCOUNTED != 0 {
        word.fetch_and(!UNCOUNTED, Ordering::AcqRel);
    }
}

/// Counts the caller as a sleeper for many streams, if no other waiter is counted. Another waiter
/// would take the number of the sleep for its own. The caller then stores that number, fences once
/// for all streams that it arms this way, and polls all of them. Returns the number of its request.
#[inline]
#[must_use = "a waiter that is not counted is not notified"]
pub fn arm_among_many(word: &AtomicU64) -> Option<u64> {
    let before = word.load(Ordering::Relaxed);
    if before & ANY_WAITER != 0 {
        return None;
    }
    let after = ((before & REQUESTS) | AMONG_MANY | 1).wrapping_add(REQUEST);
    let taken = word.compare_exchange(before, after, Ordering::AcqRel, Ordering::Relaxed);
    taken.ok().map(|_| request(after))
}

/// The caller, counted with [`arm_among_many`], is about to sleep again. Otherwise as
/// [`arm_among_many`].
#[inline]
pub(crate) fn arm_again_among_many(word: &AtomicU64) -> u64 {
    request(word.fetch_add(REQUEST, Ordering::AcqRel).wrapping_add(REQUEST))
}

/// Takes the caller off the count that was counted with [`arm_among_many`].
#[inline]
pub(crate) fn disarm_among_many(word: &AtomicU64) {
    change(word, |seen| {
        let counted = seen & AMONG_MANY != 0 && seen & COUNT != 0;
        if counted { (seen & !AMONG_MANY) - 1 } else { seen }
    });
}

#[inline]
fn change(word: &AtomicU64, to: impl Fn(u64) -> u64) {
    let mut seen = word.load(Ordering::Relaxed);
    while to(seen) != seen {
        match word.compare_exchange_weak(seen, to(seen), Ordering::AcqRel, Ordering::Relaxed) {
            Ok(_) => return,
            Err(now) => seen = now,
        }
    }
}

/// Called after publishing. Returns the request that is to be answered by a byte, and then by
/// [`answer`].
#[inline]
#[must_use = "a waiter that is not notified sleeps on"]
pub fn due(word: &AtomicU64, answered: &AtomicU64) -> Option<u64> {
    fence(Ordering::SeqCst);
    let seen = word.load(Ordering::Relaxed);
    let last = request(seen);
    (seen & ANY_WAITER != 0 && answered.load(Ordering::Relaxed) != last).then_some(last)
}

/// As [`due`], but none if the only waiter is in a sleep that was already notified. Beside the
/// request, the sleep that its byte notifies; 0 for none.
#[inline]
#[must_use = "a waiter that is not notified sleeps on"]
pub fn due_unless(
    word: &AtomicU64,
    answered: &AtomicU64,
    sleep: &AtomicU64,
    is_notified: impl FnOnce(u64) -> bool,
) -> Option<(u64, u64)> {
    fence(Ordering::SeqCst);
    let seen = word.load(Ordering::Relaxed);
    if seen & ANY_WAITER == 0 {
        return None;
    }
    let among = seen & (ANY_WAITER | AMONG_MANY) == AMONG_MANY | 1;
    let number = if among { sleep.load(Ordering::Acquire) } else { 0 };
    let last = request(seen);
    // The byte for a request is the byte for the sleep that it was made for.
    if number != 0 && is_notified(number) || answered.load(Ordering::Relaxed) == last {
        return None;
    }
    Some((last, number))
}

/// A byte was written for this request: the next is written for the next request.
#[inline]
pub fn answer(answered: &AtomicU64, request: u64) {
    answered.store(request, Ordering::Release);
}

/// Whether a byte was written since the caller made its request (its lower half is enough). The
/// caller is then not notified again unless it arms again.
#[inline]
pub(crate) fn is_answered(answered: &AtomicU64, request: u32) -> bool {
    (answered.load(Ordering::Acquire) as u32).wrapping_sub(request).cast_signed() >= 0
}

/// The exclusive right to take bytes from the doorbell, until it is dropped.
#[derive(Debug)]
pub struct Drain<'a> {
    word: &'a AtomicU32,
    thread: u32,
}

impl<'a> Drain<'a> {
    /// Begins; `thread` is not 0. `None`: another thread is draining. Waiters are to be counted
    /// after this.
    #[inline]
    pub fn begin(word: &'a AtomicU32, thread: u32) -> Option<Self> {
        word.compare_exchange(0, thread, Ordering::AcqRel, Ordering::Relaxed).ok()?;
        fence(Ordering::SeqCst);
        Some(Self { word, thread })
    }
}

impl Drop for Drain<'_> {
    #[inline]
    fn drop(&mut self) {
        // Another thread may have taken the word from one that was away for too long.
        let _ = self.word.compare_exchange(self.thread, 0, Ordering::Release, Ordering::Relaxed);
    }
}

/// The thread that takes bytes from the doorbell now, 0 for none. A caller that has armed asks
/// this. If there is such a thread, the caller waits for the end of the drain and arms again.
#[inline]
pub fn is_draining(word: &AtomicU32) -> u32 {
    word.load(Ordering::Acquire)
}
