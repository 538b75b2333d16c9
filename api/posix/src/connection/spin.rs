//! How long a call polls shared memory before it sleeps.
//!
//! 1. To fall asleep and be woken costs about 10 microseconds of processor time, more in latency,
//!    and a system call of the peer. Polling pays if the answer comes sooner than that, and is a
//!    waste if it does not.
//! 2. So a waiter learns from its pauses ([`Learned`]). A pause that ended within [`LONGEST`] is
//!    one that polling could have bridged: the budget becomes at least twice its length. A longer
//!    pause halves the budget, down to [`SHORTEST`]. Once it is there and pauses stay long, the
//!    budget becomes nothing. Then only every [`TRIAL`]th long pause begins with polling, a
//!    *trial*. So a program that gets one request a second costs no more than it does on the
//!    kernel.
//! 3. A thread that waits for many sockets ([`MANY_SOCKETS`]) is not what its peers wait for:
//!    polling longer than a sleep costs makes none of them faster. There a pause that ended within
//!    [`WORTH`] is one to bridge, and a longer one is a long one. Trials come after twice as many
//!    pauses each time, at least every [`RAREST_TRIAL`]th, because such a thread may pause ten
//!    thousand times a second.
//! 4. Two threads that wait for each other can put each other to sleep: each finds its pauses long
//!    because the other has to be woken. Hence the trials, which poll for the longest time. If one
//!    receives the answer, both stay awake from then on.
//! 5. Every [`YIELD_EVERY`] the thread yields the processor. Runnable threads (perhaps the peer)
//!    run at once; without any, the yield costs less than a microsecond.
//! 6. A peer that was last seen on the caller's processor cannot answer before the caller leaves
//!    it, so the thread yields before each check. Sleeping instead would cost both a system call
//!    for every connection that waits. It would also keep them on one processor: the scheduler
//!    treats two threads that sleep in alternation like one that runs, while it separates two
//!    runnable threads. (Measured: redis-benchmark with 50 connections on a busy machine of two
//!    processors: 140 thousand requests a second with sleeping, 450 thousand with yielding.) A
//!    machine with one processor does not poll.
//! 7. A yield that took as long as a time slice of the scheduler ([`CONTENDED`]) went to a thread
//!    that needs the processor: the processor is *contended*. There each yield waits for a whole
//!    time slice, while a sleeper is scheduled first when it is woken. So for a while ([`BACKOFF`],
//!    longer each time that the processor is still contended) this thread sleeps at once.
//!    (Measured: nginx and wrk on two processors beside six compilers: 330 to 960 requests a second
//!    with yielding, 2400 with sleeping, as over kernel sockets.)
//! 8. A signal handler that ran meanwhile ends the polling ([`handlers::count`]), as it would have
//!    ended the sleep.

use std::cell::Cell;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use sietch_ring::spin::CONTENDED;

use crate::signal::handlers;
use crate::system::kernel;
use crate::system::processor::{processor, processors, yield_now};

/// The longest spin, in nanoseconds: five times what sleeping and waking cost.
pub(crate) const LONGEST: u64 = 50_000;

/// The shortest spin, in nanoseconds: a third of what sleeping and waking cost.
pub(crate) const SHORTEST: u64 = 3_000;

/// The longest pause that is worth bridging, in nanoseconds, for a thread that waits for many: what
/// it costs the sleeper itself to fall asleep and be woken. (Measured: 400 connections at 80,000
/// requests a second, 11.5 microseconds of the server's a request; with 15,000 here 12.9.)
pub(crate) const WORTH: u64 = 6_000;

/// Sockets that are many: more than the connections of one client that sends one request after
/// another.
pub(crate) const MANY_SOCKETS: u32 = 64;

/// Nanoseconds between two yields: more than a round trip over shared memory to a peer that is
/// awake.
pub(crate) const YIELD_EVERY: u64 = 2_000;

/// Long pauses between two trials of the longest spin. A power of two.
pub(crate) const TRIAL: u16 = 16;

/// The most long pauses between two trials of a thread that waits for many. A trial that fails
/// costs up to [`LONGEST`]: of pauses of that length half a percent. A power of two.
pub(crate) const RAREST_TRIAL: u16 = 256;

/// Long pauses in a row, all with the shortest budget, after which there is none but in trials.
pub(crate) const HOPELESS: u16 = 4;

/// Nanoseconds for which a contended processor is slept on at once, the first time: some hundred
/// pauses with sleeping.
pub(crate) const BACKOFF: u64 = 10_000_000;

/// The same after many times: to find out costs a slice of some milliseconds, which is about a
/// percent of this.
pub(crate) const LONGEST_BACKOFF: u64 = 320_000_000;

/// Checks between two readings of the clock: a check of one socket takes some nanoseconds, the
/// clock 25.
const CHECKS: u32 = 8;

/// The outcome of polling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spun {
    /// The awaited event has come.
    Ready,
    /// It did not come in time: sleep.
    Sleep,
    /// A signal handler ran in this thread.
    Interrupted,
}

/// The state learned from the pauses of one place, in a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Learned {
    /// Nanoseconds.
    budget: u16,
    /// Long pauses in a row.
    long: u16,
    /// During a trial: the budget to go back to, plus one.
    kept: u16,
    /// Whether anything was learned yet.
    begun: bool,
}

const NEW: Learned = Learned { budget: LONGEST as u16, long: 0, kept: 0, begun: true };

const _: () = assert!(LONGEST < u16::MAX as u64);

impl Learned {
    /// From its word; 0 is the beginning.
    pub(crate) const fn of(word: u64) -> Self {
        if word == 0 {
            return NEW;
        }
        Self { budget: word as u16, long: (word >> 16) as u16, kept: (word >> 32) as u16, begun: true }
    }

    /// As a word, never 0.
    pub(crate) const fn word(self) -> u64 {
        (self.budget as u64) | (self.long as u64) << 16 | (self.kept as u64) << 32 | 1 << 63
    }

    /// Nanoseconds to poll in the next pause.
    pub(crate) const fn budget(self) -> u64 {
        if self.kept == 0 && self.budget as u64 <= SHORTEST && self.long >= HOPELESS {
            return 0;
        }
        self.budget as u64
    }

    fn is_trial(self, worth: u64) -> bool {
        let doubled = self.long >= TRIAL && self.long.is_power_of_two();
        if worth < LONGEST { doubled } else { self.long.is_multiple_of(TRIAL) }
    }

    /// A pause of `pause` nanoseconds has ended, bridged or slept through. Those of up to `worth`
    /// are to be bridged.
    pub(crate) fn ended(&mut self, pause: u64, worth: u64) {
        let budget = u64::from(self.budget);
        let next = if pause <= worth {
            (self.kept, self.long) = (0, 0);
            // A slow decay, so that one short pause among long ones does not last.
            (budget - budget / 8).max((pause * 2).min(worth))
        } else {
            self.long = if self.long == 2 * RAREST_TRIAL { RAREST_TRIAL + 1 } else { self.long + 1 };
            if self.kept != 0 {
                let kept = u64::from(self.kept - 1);
                self.kept = 0;
                kept
            } else if self.is_trial(worth) {
                self.kept = (budget / 2) as u16 + 1;
                LONGEST
            } else {
                budget / 2
            }
        };
        self.budget = next.clamp(SHORTEST, LONGEST) as u16;
    }
}

/// Whether other threads need the processor of the calling thread.
struct Contention {
    /// Until when it sleeps at once.
    until: Cell<u64>,
    /// How long that was.
    backoff: Cell<u64>,
}

impl Contention {
    /// A yield that ended at `now` was long.
    fn found(&self, now: u64) {
        let (until, backoff) = (self.until.get(), self.backoff.get());
        // Soon after the last time: it is still contended.
        let still = backoff != 0 && now < until.saturating_add(backoff);
        let next = if still { (backoff * 2).min(LONGEST_BACKOFF) } else { BACKOFF };
        self.backoff.set(next);
        self.until.set(now.saturating_add(next));
    }

    /// Whether to sleep at once at `now`.
    fn is_present(&self, now: u64) -> bool {
        now < self.until.get()
    }
}

thread_local! {
    static CONTENTION: Contention = const { Contention { until: Cell::new(0), backoff: Cell::new(0) } };
}

/// A pause that has begun, and the word that will learn from it.
#[derive(Debug)]
pub(crate) struct Pause<'a> {
    word: &'a AtomicU64,
    began: u64,
    worth: u64,
}

impl<'a> Pause<'a> {
    /// Begins a pause: there is nothing yet.
    pub(crate) fn begin(word: &'a AtomicU64) -> Self {
        Self { word, began: kernel::now(), worth: LONGEST }
    }

    /// The same for a thread that waits for so many sockets.
    pub(crate) fn begin_of(word: &'a AtomicU64, sockets: u32) -> Self {
        Self { worth: if sockets > MANY_SOCKETS { WORTH } else { LONGEST }, ..Self::begin(word) }
    }

    /// When it began, in nanoseconds of the monotonic clock.
    pub(crate) const fn began(&self) -> u64 {
        self.began
    }

    /// Polls as long as it pays, and no longer than `most` nanoseconds. `seen` is what
    /// [`handlers::count`] returned when the call began.
    #[inline]
    pub(crate) fn poll(
        &self,
        peer: Option<u32>,
        most: u64,
        seen: u32,
        mut ready: impl FnMut() -> bool,
    ) -> Spun {
        let budget = Learned::of(self.word.load(Relaxed)).budget().min(most);
        if budget == 0 || processors() == 1 || CONTENTION.with(|contention| contention.is_present(self.began))
        {
            return Spun::Sleep;
        }
        let same_processor = peer.is_some_and(|peer| peer == processor());
        let (checks, yield_every) = if same_processor { (1, 0) } else { (CHECKS, YIELD_EVERY) };
        let mut yielded = self.began;
        loop {
            for _ in 0..checks {
                if ready() {
                    return Spun::Ready;
                }
                std::hint::spin_loop();
            }
            if handlers::count() != seen {
                return Spun::Interrupted;
            }
            let now = kernel::now();
            if now.saturating_sub(self.began) >= budget {
                return Spun::Sleep;
            }
            if now.saturating_sub(yielded) >= yield_every {
                yield_now();
                yielded = kernel::now();
                if yielded.saturating_sub(now) > CONTENDED {
                    CONTENTION.with(|contention| contention.found(yielded));
                    return if ready() { Spun::Ready } else { Spun::Sleep };
                }
            }
        }
    }

    /// The pause is over because what was waited for is there. Nothing is learned from a
    /// pause that a timeout or a signal ended.
    pub(crate) fn finished(self) {
        self.finish();
    }

    /// As [`Pause::finished`], for a caller that keeps it.
    pub(crate) fn finish(&self) {
        let mut learned = Learned::of(self.word.load(Relaxed));
        learned.ended(kernel::now().saturating_sub(self.began), self.worth);
        self.word.store(learned.word(), Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(pauses: impl IntoIterator<Item = u64>) -> Learned {
        let mut learned = Learned::of(0);
        for pause in pauses {
            learned.ended(pause, LONGEST);
            assert_eq!(Learned::of(learned.word()), learned);
        }
        learned
    }

    #[test]
    fn short_pauses_are_bridged_with_room_to_spare() {
        assert_eq!(after([1_000; 100]).budget(), SHORTEST);
        assert_eq!(after([20_000; 100]).budget(), 40_000);
    }

    #[test]
    fn a_thread_with_one_request_a_second_polls_in_few_pauses() {
        let mut learned = after([1_000_000_000; 40]);
        let spent: u64 = (0..1600)
            .map(|_| {
                learned.ended(1_000_000_000, LONGEST);
                learned.budget()
            })
            .sum();
        assert!(spent <= 1600 / u64::from(TRIAL) * LONGEST, "{spent}");
        assert!(spent > 0, "no trial: two sleepers would never find each other awake");
    }

    #[test]
    fn a_trial_that_meets_the_answer_raises_the_budget() {
        let mut learned = after([1_000_000; 17]);
        learned.ended(10_000, LONGEST);
        assert!(learned.budget() >= 20_000);
    }

    #[test]
    fn a_thread_that_waits_for_many_bridges_only_pauses_shorter_than_a_sleep() {
        let mut learned = Learned::of(0);
        let spent = |learned: &mut Learned, pause: u64| -> u64 {
            (0..1600)
                .map(|_| {
                    learned.ended(pause, WORTH);
                    learned.budget().min(pause)
                })
                .sum()
        };
        spent(&mut learned, 45_000);
        let polled = spent(&mut learned, 45_000);
        assert!(polled <= 1600 * 45_000 / 100 && polled > 0, "{polled}");
        spent(&mut learned, 2_000);
        assert!(learned.budget() >= 4_000);
    }

    #[test]
    fn a_contended_processor_is_tried_less_and_less_often_and_forgotten_when_it_is_free() {
        let contention = Contention { until: Cell::new(0), backoff: Cell::new(0) };
        let (mut now, mut tried) = (1_000_000_000, 0);
        let begun = now;
        while now < begun + 10_000_000_000 {
            if contention.is_present(now) {
                now += 1_000_000;
            } else {
                // Another's slice.
                now += 4_000_000;
                tried += 1;
                contention.found(now);
            }
        }
        assert!((20..60).contains(&tried), "{tried}");
        now += 10_000_000_000;
        assert!(!contention.is_present(now));
        contention.found(now);
        assert!(contention.is_present(now + BACKOFF - 1) && !contention.is_present(now + BACKOFF));
    }

    #[test]
    fn a_handler_ends_the_polling() {
        let word = AtomicU64::new(0);
        let pause = Pause::begin(&word);
        assert_eq!(pause.poll(None, LONGEST, handlers::count().wrapping_sub(1), || false), Spun::Interrupted);
        assert_eq!(pause.poll(None, LONGEST, handlers::count(), || true), Spun::Ready);
    }

    #[test]
    fn a_peer_on_the_same_processor_runs_before_each_check() {
        use std::sync::atomic::AtomicBool;
        let (answer, begun) = (AtomicBool::new(false), AtomicBool::new(false));
        let pin = |to: u32| {
            // SAFETY: a set of processors on the stack.
            unsafe {
                let mut set: libc::cpu_set_t = std::mem::zeroed();
                libc::CPU_SET(to as usize, &mut set);
                libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set);
            }
        };
        std::thread::scope(|threads| {
            let here = processor();
            let (answer, begun) = (&answer, &begun);
            threads.spawn(move || {
                pin(here);
                begun.store(true, Relaxed);
                while !answer.load(Relaxed) {
                    yield_now();
                }
            });
            threads.spawn(move || {
                pin(here);
                let word = AtomicU64::new(0);
                while !begun.load(Relaxed) {
                    yield_now();
                }
                // In any case it ends in its time, although the other never sleeps.
                let spun = Pause::begin(&word).poll(Some(processor()), LONGEST, handlers::count(), || false);
                answer.store(true, Relaxed);
                if processors() > 1 {
                    assert_eq!(spun, Spun::Sleep);
                }
            });
        });
    }
}

thread_local! {
    /// The state that this thread has learned about its waits.
    static LEARNED: AtomicU64 = const { AtomicU64::new(0) };
}

/// Runs `with` what the calling thread has learned about its waits.
pub(crate) fn learned<R>(with: impl FnOnce(&AtomicU64) -> R) -> R {
    LEARNED.with(with)
}
