//! HyStart++ (RFC 9406): leaves slow start when the round trip grows, before the queue overflows.
//!
//! 1. Time is counted in rounds: one ends when all that was outstanding at its beginning is
//!    acknowledged.
//! 2. The smallest of at least eight samples of a round is compared with the last round's smallest.
//!    If it is larger by an eighth (at least 4 ms, at most 16 ms), growth slows to a quarter:
//!    conservative slow start.
//! 3. If the round trip falls below what it was then, it was jitter: back to slow start. If it does
//!    not within five rounds, the window is where slow start ends.
//!
//! Without pacing RFC 9406 bounds growth to eight segments an acknowledgement. Receivers that
//! acknowledge once a batch would make that very slow, so the bound is the window
//! (`window::grow_exponentially`).

use super::control::Acknowledged;
use super::window::Window;
use crate::limits::{MILLISECOND, NEVER};

/// MIN_RTT_THRESH: less than this is scheduling, not a queue.
const SMALLEST_RISE: u64 = 4 * MILLISECOND;
/// MAX_RTT_THRESH.
const LARGEST_RISE: u64 = 16 * MILLISECOND;
/// MIN_RTT_DIVISOR.
const DIVISOR: u64 = 8;
/// N_RTT_SAMPLE: rounds with fewer samples say nothing.
const SAMPLES: u8 = 8;
/// CSS_GROWTH_DIVISOR.
const SLOWDOWN: u32 = 4;
/// CSS_ROUNDS.
const ROUNDS: u8 = 5;

/// The state of one slow start.
#[derive(Clone, Copy, Debug)]
pub(super) struct HyStart {
    /// Smallest samples of the last round and of this one, or [`NEVER`].
    last: u64,
    current: u64,
    /// The smallest sample when conservative slow start began; zero outside of it.
    baseline: u64,
    /// Bytes whose acknowledgement ends the round.
    left: u32,
    samples: u8,
    rounds: u8,
}

impl HyStart {
    pub(super) const fn new() -> Self {
        Self { last: NEVER, current: NEVER, baseline: 0, left: 0, samples: 0, rounds: 0 }
    }

    /// Grows a window that is in slow start; ends that by setting the threshold.
    #[inline]
    pub(super) fn acknowledged(&mut self, window: &mut Window, what: &Acknowledged) {
        self.count(window, what);
        if what.rtt > 0 {
            self.sample(what.rtt);
        }
        if what.grow {
            let share = if self.baseline > 0 { what.bytes / SLOWDOWN } else { what.bytes };
            window.grow_exponentially(share);
        }
    }

    #[inline]
    fn count(&mut self, window: &mut Window, what: &Acknowledged) {
        if self.left > what.bytes {
            self.left -= what.bytes;
            return;
        }
        self.left = what.in_flight.saturating_sub(what.bytes);
        self.last = std::mem::replace(&mut self.current, NEVER);
        self.samples = 0;
        if self.baseline > 0 {
            self.rounds += 1;
            if self.rounds >= ROUNDS {
                window.threshold = window.size;
            }
        }
    }

    #[inline]
    fn sample(&mut self, time: u64) {
        self.current = self.current.min(time);
        self.samples = self.samples.saturating_add(1);
        if self.samples < SAMPLES {
            return;
        }
        if self.baseline > 0 {
            if self.current < self.baseline {
                self.baseline = 0;
            }
        } else if self.last != NEVER {
            let rise = (self.last / DIVISOR).clamp(SMALLEST_RISE, LARGEST_RISE);
            if self.current >= self.last.saturating_add(rise) {
                self.baseline = self.current;
                self.rounds = 0;
            }
        }
    }
}
