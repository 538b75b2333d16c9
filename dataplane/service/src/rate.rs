//! A token bucket as a clock: the generic cell rate algorithm (ITU-T I.371).
//!
//! 1. `empty_at` is the time at which all that was sent will have been paid for at the granted rate.
//! 2. A frame may pass if paying for it as well would end no later than one burst from now.
//! 3. An idle sender's credit does not grow beyond the burst: `empty_at` is never before now.

/// Fractions of a nanosecond: 2^10, so that the cost of a byte at 1 TB/s is still one unit.
const UNITS: u128 = 1024;

/// A rate limit. Time is in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bucket {
    /// Bytes a second.
    rate: u64,
    /// Units.
    window: u128,
    /// Units.
    empty_at: u128,
}

impl Bucket {
    /// A full bucket of `burst` bytes that fills with `rate` bytes a second.
    pub(crate) fn new(rate: u64, burst: u64) -> Self {
        let rate = rate.max(1);
        Self { rate, window: Self::cost(rate, burst), empty_at: 0 }
    }

    fn cost(rate: u64, bytes: u64) -> u128 {
        u128::from(bytes) * 1_000_000_000 * UNITS / u128::from(rate)
    }

    /// Whether `bytes` may pass now; if so they are paid for.
    #[inline]
    pub(crate) fn take(&mut self, bytes: usize, now: u64) -> bool {
        let now = u128::from(now) * UNITS;
        let after = self.empty_at.max(now) + Self::cost(self.rate, bytes as u64);
        let passes = after <= now + self.window;
        if passes {
            self.empty_at = after;
        }
        passes
    }
}
