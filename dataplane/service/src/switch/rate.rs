//! A port's rate: a token bucket whose refusals are rounded up, so that several frames leave
//! together.

use sietch_structures::TokenBucket;

use super::limits::RATE_DELAY;

/// The rate limit of a port. Time is in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rate(TokenBucket);

impl Rate {
    /// Allows `burst` bytes at once, and `rate` bytes a second.
    pub(super) fn new(rate: u64, burst: u64) -> Self {
        Self(TokenBucket::new(rate, burst))
    }

    /// Pays for `bytes` if they may pass now.
    ///
    /// # Errors
    /// The bytes may not pass yet: returns the time to try again, later than `now`. It may be up to
    /// [`RATE_DELAY`] later than necessary, but never so late that credit is lost: a quarter of the
    /// burst is not yet earned then.
    #[inline]
    pub(super) fn take(&mut self, bytes: usize, now: u64) -> Result<(), u64> {
        let taken = self.0.take(bytes as u64, now);
        taken.map_err(|due| due.max(now.saturating_add((self.0.fill_time() / 4).min(RATE_DELAY))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sender_that_retries_at_the_returned_time_gets_the_whole_rate() {
        for (rate, burst, frame) in [(125_000_000, 125_000, 1514), (1_250_000, 64 << 10, 60), (1000, 1, 9014)]
        {
            let mut limit = Rate::new(rate, burst);
            let (mut now, mut sent) = (0, 0);
            while sent < 20 * burst.max(frame as u64) {
                match limit.take(frame, now) {
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
