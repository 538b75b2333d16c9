//! A token bucket, kept as a time: the generic cell rate algorithm (ITU-T I.371).
//!
//! 1. `empty_at` is the time at which everything taken so far will have been paid for at the
//!    granted rate.
//! 2. An amount may be taken if paying for it as well ends no later than one burst from now. An
//!    amount that exceeds the burst may be taken once everything before it is paid for.
//! 3. An idle user's credit does not grow beyond the burst: `empty_at` counts from now at the
//!    earliest.
//!
//! Nothing is lost to rounding: times are kept in fractions of a nanosecond, and no refill is
//! rounded. Each operation takes constant time; the caller passes the time in, so a test drives it.

/// Fractions of a nanosecond: 2^10, so that one token at 10^12 a second still costs a whole unit.
const UNITS: u128 = 1024;

/// A rate limit. A token is whatever the caller counts: a byte, a packet, an answer. Times are
/// nanoseconds of any clock that does not run backwards.
#[derive(Clone, Copy, Debug)]
pub struct TokenBucket {
    /// Tokens a second.
    rate: u64,
    /// The time that a whole burst takes at the rate, in units.
    burst: u128,
    /// In units.
    empty_at: u128,
}

impl TokenBucket {
    /// A full bucket of `burst` tokens that is refilled with `rate` tokens a second (1 at least).
    pub fn new(rate: u64, burst: u64) -> Self {
        let rate = rate.max(1);
        Self { rate, burst: Self::cost(rate, burst), empty_at: 0 }
    }

    #[inline]
    fn cost(rate: u64, tokens: u64) -> u128 {
        u128::from(tokens) * 1_000_000_000 * UNITS / u128::from(rate)
    }

    /// Takes `tokens` if they are there now, and none of them otherwise.
    ///
    /// # Errors
    /// The time, later than `now`, at which they are there if nothing else is taken meanwhile.
    #[inline]
    pub fn take(&mut self, tokens: u64, now: u64) -> Result<(), u64> {
        let cost = Self::cost(self.rate, tokens);
        let present = u128::from(now) * UNITS;
        let after = self.empty_at.max(present) + cost;
        let available_at = after - self.burst.max(cost).min(after);
        if available_at <= present {
            self.empty_at = after;
            return Ok(());
        }
        Err(u64::try_from(available_at.div_ceil(UNITS)).unwrap_or(u64::MAX))
    }

    /// The nanoseconds in which an empty bucket fills.
    #[inline]
    pub fn fill_time(&self) -> u64 {
        u64::try_from(self.burst / UNITS).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caller_that_returns_at_the_given_time_gets_exactly_the_rate() {
        for (rate, burst, tokens) in
            [(125_000_000, 125_000, 1514), (1_250_000, 64 << 10, 60), (1000, 1, 9014)]
        {
            let mut bucket = TokenBucket::new(rate, burst);
            let (mut now, mut taken) = (0, 0);
            while taken < 20 * burst.max(tokens) {
                match bucket.take(tokens, now) {
                    Ok(()) => taken += tokens,
                    Err(later) => {
                        assert!(later > now);
                        now = later;
                    }
                }
            }
            let granted = burst + (u128::from(rate) * u128::from(now) / 1_000_000_000) as u64;
            assert!(taken <= granted + tokens && taken + tokens >= granted, "{taken} of {granted} at {rate}");
        }
    }

    #[test]
    fn a_bucket_holds_one_burst_however_long_it_was_idle() {
        let mut bucket = TokenBucket::new(1000, 10);
        let day = 86_400_000_000_000;
        assert_eq!((bucket.fill_time(), bucket.take(10, day)), (10_000_000, Ok(())));
        assert_eq!(bucket.take(1, day), Err(day + 1_000_000));
        assert_eq!(bucket.take(1, day + 999_999), Err(day + 1_000_000));
        assert_eq!(bucket.take(1, day + 1_000_000), Ok(()));
    }

    #[test]
    fn more_than_a_burst_passes_once_the_bucket_is_full() {
        let mut bucket = TokenBucket::new(1000, 10);
        assert_eq!(bucket.take(1, 0), Ok(()));
        assert_eq!(bucket.take(100, 0), Err(1_000_000));
        assert_eq!(bucket.take(100, 1_000_000), Ok(()));
        // It has to be paid for in full before another passes.
        assert_eq!(bucket.take(1, 1_000_000), Err(92_000_000));
    }
}
