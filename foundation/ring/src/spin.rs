//! How long an idle loop polls its rings before it sleeps.
//!
//! 1. Falling asleep and being woken costs about 10 microseconds of processor time, and more in
//!    latency. Polling instead pays if the next frame comes soon, and is a waste if it does not.
//! 2. So the loop learns from its pauses. A pause that ended within [`LONGEST`] is one that
//!    spinning could have bridged: the budget becomes at least twice its length. A longer pause
//!    halves the budget, down to [`SHORTEST`]. Traffic with gaps of microseconds is thus never put
//!    to sleep. A loop with one request a millisecond spins for one part in three hundred of its
//!    time.
//! 3. Two loops that wait for each other can put each other to sleep: each finds its pauses long
//!    because the other has to be woken. So every [`TRIAL`]th long pause is followed by the longest
//!    spin. If the answer comes within it, both stay awake from then on.
//! 4. A spinning loop yields the core every [`YIELD_EVERY`]. A runnable thread then runs at once;
//!    on a machine with two cores that may be the very peer that the loop waits for. Where nothing
//!    else is runnable, a yield costs less than a microsecond. The loop does not yield before an
//!    answer from memory can have arrived, because it would see that answer late.
//! 5. A yield that took as long as a slice of the scheduler ([`CONTENDED`]) went to another thread
//!    that needs the core. A loop that keeps yielding waits for a slice each time, while the
//!    scheduler prefers a thread that it has just woken. So the loop sleeps at once for a while
//!    ([`BACKOFF`], doubled each time that the core is still contended).
//! 6. On a machine with one core spinning keeps the core from the peer, so the budget is zero.

/// The longest spin, in nanoseconds: five times what sleeping and waking cost.
pub const LONGEST: u64 = 50_000;

/// The shortest spin, in nanoseconds: a third of what sleeping and waking cost.
pub const SHORTEST: u64 = 3_000;

/// Nanoseconds from the beginning of a pause to the first yield, and between two. That is more than
/// a round trip over shared memory to a peer that is awake, and a fifth of what sleeping and waking
/// cost.
pub const YIELD_EVERY: u64 = 2_000;

/// Long pauses between two trials of the longest spin: at a pause a millisecond that is a third of
/// a percent of the core.
pub const TRIAL: u32 = 16;

/// Nanoseconds of a yield that went to another thread than the peer. The work of a peer between two
/// waits, fifty requests maybe, is shorter. The slices of the scheduler are longer
/// (`base_slice_ns`: 0.7 ms times 1 + log2 of the cores, and there are two at least).
pub const CONTENDED: u64 = 1_000_000;

/// Nanoseconds for which a contended core is slept on at once, the first time: some hundred pauses
/// with sleeping.
pub const BACKOFF: u64 = 10_000_000;

/// The same after many times: to find out costs a slice of some milliseconds, which is about a
/// percent of this.
pub const LONGEST_BACKOFF: u64 = 320_000_000;

/// What an idle loop does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Idle {
    /// Poll again at once.
    Poll,
    /// Yield the core, then poll again.
    Yield,
    /// Arm the doorbells and sleep.
    Sleep,
}

/// The budget and what it was learnt from.
#[derive(Clone, Copy, Debug)]
pub struct Spin {
    budget: u64,
    most: u64,
    idle_since: Option<u64>,
    /// When the core was last yielded, or the pause began.
    yielded: u64,
    long_pauses: u32,
    /// During a trial: the budget to go back to.
    kept: Option<u64>,
    /// The last answer was to yield.
    yielding: bool,
    /// Until when the core counts as contended, and how long that was.
    contended_until: u64,
    backoff: u64,
}

impl Default for Spin {
    fn default() -> Self {
        Self::up_to(if one_core() { 0 } else { LONGEST })
    }
}

impl Spin {
    /// Spins for `most` nanoseconds at most. 0 sleeps at once; `u64::MAX` never sleeps, and only
    /// yields the core now and then.
    pub const fn up_to(most: u64) -> Self {
        Self {
            budget: most,
            most,
            idle_since: None,
            yielded: 0,
            long_pauses: 0,
            kept: None,
            yielding: false,
            contended_until: 0,
            backoff: 0,
        }
    }

    /// Something happened in the iteration that began at `now`.
    #[inline]
    pub fn busy(&mut self, now: u64) {
        if self.yielding {
            self.resumed(now);
        }
        let Some(since) = self.idle_since.take() else { return };
        if self.most == u64::MAX {
            return;
        }
        let pause = now.saturating_sub(since);
        self.budget = if pause <= self.most {
            self.kept = None;
            // A slow decay, so that one short pause among long ones does not last.
            (self.budget - self.budget / 8).max(pause * 2)
        } else if let Some(kept) = self.kept.take() {
            kept
        } else {
            self.long_pauses = self.long_pauses.wrapping_add(1);
            if self.long_pauses.is_multiple_of(TRIAL) {
                self.kept = Some(self.budget / 2);
                self.most
            } else {
                self.budget / 2
            }
        }
        .clamp(SHORTEST.min(self.most), self.most);
    }

    /// Nothing happened in the iteration that began at `now`.
    #[inline]
    pub fn idle(&mut self, now: u64) -> Idle {
        if self.yielding {
            self.resumed(now);
        }
        let since = match self.idle_since {
            Some(since) => since,
            None => {
                (self.idle_since, self.yielded) = (Some(now), now);
                now
            }
        };
        if now.saturating_sub(since) >= self.budget || now < self.contended_until {
            return Idle::Sleep;
        }
        if now.saturating_sub(self.yielded) < YIELD_EVERY {
            return Idle::Poll;
        }
        self.yielded = now;
        self.yielding = true;
        Idle::Yield
    }

    /// The core was yielded at `yielded`, and is back at `now`.
    fn resumed(&mut self, now: u64) {
        self.yielding = false;
        if self.most == u64::MAX || now.saturating_sub(self.yielded) <= CONTENDED {
            return;
        }
        // Soon after the last backoff: the core is still contended.
        let still = self.backoff != 0 && now < self.contended_until.saturating_add(self.backoff);
        self.backoff = if still { (self.backoff * 2).min(LONGEST_BACKOFF) } else { BACKOFF };
        self.contended_until = now.saturating_add(self.backoff);
    }

    /// Nanoseconds for which it would spin now.
    #[cfg(test)]
    pub(crate) const fn budget(&self) -> u64 {
        self.budget
    }
}

/// Whether the machine has one core. Being pinned to one of several is no reason not to spin.
fn one_core() -> bool {
    std::fs::read_to_string("/sys/devices/system/cpu/online").is_ok_and(|cores| cores.trim() == "0")
}

#[cfg(test)]
mod tests;
