//! Counted waiters and the doorbell that wakes them: step 5 of [`super`].
//!
//! 1. **Requests.** A waiter adds 1 to the count and 1 to the number of *requests* in one step
//!    ([`arm`]), fences, looks once more, and sleeps. It takes itself off the count when it has
//!    returned ([`disarm`]), never before, and nobody else takes it off. A waiter that was woken
//!    for nothing and sleeps again makes another request ([`arm_again`]).
//! 2. **Notifications.** A ringer publishes, fences, and reads the word ([`due`]). If anybody is
//!    counted and the last request is another than the one that was last answered, it writes one
//!    byte to the doorbell and then notes that request as answered ([`answer`]). The byte wakes all
//!    who sleep there; each looks. The fences are sequentially consistent, so of a waiter that
//!    still finds nothing and a ringer that still finds no new request at most one can be. A ringer
//!    that is killed before the byte was written has noted nothing. A waiter that is killed stays
//!    counted, and costs nothing: it makes no requests.
//! 3. **Bytes.** Every sleeper is woken by a byte that is written, and sees that it is there; so a
//!    byte may be taken only if no sleeper still needs it. Whoever takes bytes says so first
//!    ([`Drain`]), fences, and looks at the count: if others are counted, one byte at least must
//!    stay. A waiter that has counted itself and finds that somebody is taking bytes waits for the
//!    end of it and makes its request again ([`is_draining`]). Of the two at least one sees the
//!    other, so no byte that answers a request is taken before its waiter has returned.
//! 4. **One ring a sleep.** Who sleeps for many streams at once ([`arm_among_many`]) says beside
//!    each in which of its sleeps it is: a number that it never uses twice. A ringer that has rung
//!    for that sleep somewhere need not ring again ([`due_unless`]), because whoever wakes looks at
//!    all of them before it sleeps again. The waiter numbers its sleep, fences, and looks at each;
//!    a ringer publishes, fences, and looks at the number.
//!
//! The other side may write these words too. A count that is too small, or a request that counts as
//! answered, loses its own peer's wake-up; others cost a write.

use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};

/// The sleeps for which a ringer has rung lately: as many as an application has processes that
/// sleep by turns.
#[derive(Clone, Copy, Debug, Default)]
pub struct NotifiedSleeps {
    sleeps: [u64; 8],
    next: usize,
}

impl NotifiedSleeps {
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

/// The number of waiters: more than there can be threads (`PID_MAX_LIMIT` is 2^22, and a word that
/// overflows costs its own side a wake-up).
const COUNT: u64 = (1 << 22) - 1;
/// Beside the number of waiters: one of them sleeps for many streams.
const AMONG_MANY: u64 = 1 << 22;
/// Beside the number of waiters: somebody asked in the place of others who sleep without being
/// counted ([`ask`]).
const ASKED: u64 = 1 << 23;
/// One request.
const REQUEST: u64 = 1 << 24;
/// Whoever is to be woken.
const ANYBODY: u64 = COUNT | ASKED;
/// 40 bits of requests: a waiter that makes one each microsecond comes round after twelve days, and
/// then the number in [`answer`] has moved as well.
const REQUESTS: u64 = !(REQUEST - 1);

/// The number of the last request.
#[inline]
const fn request(word: u64) -> u64 {
    word >> REQUEST.trailing_zeros()
}

/// How many wait.
#[inline]
pub fn count(word: &AtomicU64) -> u32 {
    let word = word.load(Ordering::Relaxed);
    (word & COUNT) as u32 + u32::from(word & ASKED != 0)
}

/// Counts the caller, who must look once more before it sleeps. The number of its request.
#[inline]
pub fn arm(word: &AtomicU64) -> u64 {
    let before = word.fetch_add(REQUEST + 1, Ordering::AcqRel);
    fence(Ordering::SeqCst);
    request(before.wrapping_add(REQUEST))
}

/// The caller, who is counted, is about to sleep again, and must look once more before. The number
/// of its request.
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

/// Asks in the place of others who sleep at this end, not counted, and that still do: until
/// [`asked_no_more`].
pub fn ask(word: &AtomicU64) {
    change(word, |seen| (seen | ASKED).wrapping_add(REQUEST));
    fence(Ordering::SeqCst);
}

/// Those for whom it was asked have been woken.
#[inline]
pub fn asked_no_more(word: &AtomicU64) {
    if word.load(Ordering::Relaxed) & ASKED != 0 {
        word.fetch_and(!ASKED, Ordering::AcqRel);
    }
}

/// Counts the caller as one who sleeps for many, if nobody else waits: the number of the sleep
/// would be understood as theirs. The caller then stores that number, fences once for all that it
/// arms so, and looks at all of them. The number of its request.
#[inline]
#[must_use = "who is not counted is not rung"]
pub fn arm_among_many(word: &AtomicU64) -> Option<u64> {
    let before = word.load(Ordering::Relaxed);
    if before & ANYBODY != 0 {
        return None;
    }
    let after = ((before & REQUESTS) | AMONG_MANY | 1).wrapping_add(REQUEST);
    let taken = word.compare_exchange(before, after, Ordering::AcqRel, Ordering::Relaxed);
    taken.ok().map(|_| request(after))
}

/// The caller, counted with [`arm_among_many`], is about to sleep again. Then as there.
#[inline]
pub fn arm_again_among_many(word: &AtomicU64) -> u64 {
    request(word.fetch_add(REQUEST, Ordering::AcqRel).wrapping_add(REQUEST))
}

/// Takes the caller off the count that was counted with [`arm_among_many`].
#[inline]
pub fn disarm_among_many(word: &AtomicU64) {
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

/// After publishing: the request that is to be answered by a byte, and then by [`answer`].
#[inline]
#[must_use = "who is not rung sleeps on"]
pub fn due(word: &AtomicU64, answered: &AtomicU64) -> Option<u64> {
    fence(Ordering::SeqCst);
    let seen = word.load(Ordering::Relaxed);
    let last = request(seen);
    (seen & ANYBODY != 0 && answered.load(Ordering::Relaxed) != last).then_some(last)
}

/// As [`due`], but none if the only one who waits does so in a sleep that the ringer has rung for.
/// Beside it the sleep that is rung for by that, 0 for none.
#[inline]
#[must_use = "who is not rung sleeps on"]
pub fn due_unless(
    word: &AtomicU64,
    answered: &AtomicU64,
    sleep: &AtomicU64,
    is_rung: impl FnOnce(u64) -> bool,
) -> Option<(u64, u64)> {
    fence(Ordering::SeqCst);
    let seen = word.load(Ordering::Relaxed);
    if seen & ANYBODY == 0 {
        return None;
    }
    let among = seen & (ANYBODY | AMONG_MANY) == AMONG_MANY | 1;
    let number = if among { sleep.load(Ordering::Acquire) } else { 0 };
    let last = request(seen);
    // The byte for a request is the byte for the sleep that it was made for.
    if number != 0 && is_rung(number) || answered.load(Ordering::Relaxed) == last {
        return None;
    }
    Some((last, number))
}

/// A byte was written for this request: the next is written for the next request.
#[inline]
pub fn answer(answered: &AtomicU64, request: u64) {
    answered.store(request, Ordering::Release);
}

/// Whether a byte was written since the caller made its request (its lower half is enough): the
/// caller is then rung for no more unless it arms again.
#[inline]
pub fn is_answered(answered: &AtomicU64, request: u32) -> bool {
    (answered.load(Ordering::Acquire) as u32).wrapping_sub(request).cast_signed() >= 0
}

/// Somebody takes bytes from the doorbell, and nobody else does, until this is dropped.
#[derive(Debug)]
pub struct Drain<'a> {
    word: &'a AtomicU32,
    thread: u32,
}

impl<'a> Drain<'a> {
    /// Begins; `thread` is not 0. None: somebody else is at it. Who waits is to be counted
    /// afterwards.
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
        // Another may have taken the word from a thread that was away for too long.
        let _ = self.word.compare_exchange(self.thread, 0, Ordering::Release, Ordering::Relaxed);
    }
}

/// The thread that takes bytes from the doorbell now, 0 for none: to be asked by who has armed. Who
/// finds one waits for the end of it, and arms again.
#[inline]
pub fn is_draining(word: &AtomicU32) -> u32 {
    word.load(Ordering::Acquire)
}
