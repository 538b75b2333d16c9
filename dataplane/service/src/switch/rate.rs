//! A token bucket as a clock: the generic cell rate algorithm (ITU-T I.371).
//!
//! 1. `empty_at` is the time at which all that was sent will have been paid for at the granted
//!    rate.
//! 2. A frame may pass if paying for it as well would end no later than one burst from now. A frame
//!    that is longer than the whole burst passes when all frames before it are paid for.
//! 3. An idle sender's credit does not grow beyond the burst: `empty_at` is never before now.
//! 4. A refusal says when to try again: when the frame may pass, or a little later, so that several
//!    frames leave together ([`RATE_DELAY`]).

use super::limits::RATE_DELAY;

/// Fractions of a nanosecond: 2^10, so that the cost of a byte at 1 TB/s is still one unit.
const UNITS: u128 = 1024;

/// A rate limit. Time is in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bucket {
    /// Bytes a second.
    rate: u64,
    /// Units.
    window: u128,
    /// Units.
    empty_at: u128,
}

impl Bucket {
    /// A full bucket of `burst` bytes that fills with `rate` bytes a second.
    pub(super) fn new(rate: u64, burst: u64) -> Self {
        let rate = rate.max(1);
        Self { rate, window: Self::cost(rate, burst), empty_at: 0 }
    }

    fn cost(rate: u64, bytes: u64) -> u128 {
        u128::from(bytes) * 1_000_000_000 * UNITS / u128::from(rate)
    }

    /// Pays for `bytes` if they may pass now.
    ///
    /// # Errors
    /// The bytes may not pass yet: returns the time to try again, later than `now`.
    #[inline]
    pub(super) fn take(&mut self, bytes: usize, now: u64) -> Result<(), u64> {
        let cost = Self::cost(self.rate, bytes as u64);
        let present = u128::from(now) * UNITS;
        let after = self.empty_at.max(present) + cost;
        let passes_at = after - self.window.max(cost).min(after);
        if passes_at <= present {
            self.empty_at = after;
            return Ok(());
        }
        let due = u64::try_from(passes_at.div_ceil(UNITS)).unwrap_or(u64::MAX);
        // Never so late that credit is lost: a quarter of the burst is not yet earned.
        let quarter = u64::try_from(self.window / UNITS / 4).unwrap_or(u64::MAX);
        Err(due.max(now.saturating_add(quarter.min(RATE_DELAY))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sender_that_retries_at_the_returned_time_gets_the_whole_rate() {
        for (rate, burst, frame) in [(125_000_000, 125_000, 1514), (1_250_000, 64 << 10, 60), (1000, 1, 9014)]
        {
            let mut bucket = Bucket::new(rate, burst);
            let (mut now, mut sent) = (0, 0);
            while sent < 20 * burst.max(frame as u64) {
                match bucket.take(frame, now) {
                    Ok(()) => sent += frame as u64,
                    Err(retry_at) => {
                        assert!(retry_at > now);
                        now = retry_at;
                    }
                }
            }
            let granted = burst + (u128::from(rate) * u128::from(now) / 1_000_000_000) as u64;
            let slack = frame as u64 + rate * RATE_DELAY / 1_000_000_000;
            assert!(
                sent <= granted + frame as u64 && sent + slack >= granted,
                "{sent} of {granted} at {rate}"
            );
        }
    }
}
