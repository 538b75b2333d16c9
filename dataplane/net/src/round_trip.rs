//! The round-trip time and the retransmission timeout (RFC 6298), in nanoseconds.

use crate::limits::{LEAST_ROUND_TRIP, MILLISECOND, RTO_INITIAL, RTO_MAX, RTO_MIN};

/// The estimator of one flow.
#[derive(Clone, Copy, Debug, Default)]
pub struct RoundTrip {
    smoothed: u64,
    variation: u64,
    /// The least sample of late, and when it was taken.
    least: u64,
    least_at: u64,
    /// The timeout of what was sent once; zero before the first sample.
    first: u64,
}

impl RoundTrip {
    /// The smoothed round-trip time; zero before the first sample.
    #[inline]
    pub const fn smoothed(&self) -> u64 {
        self.smoothed
    }

    /// How much it varies.
    pub const fn variation(&self) -> u64 {
        self.variation
    }

    /// The least round trip of the last minutes; zero before the first sample.
    pub const fn least(&self) -> u64 {
        self.least
    }

    /// Takes a sample (section 2.2 and 2.3).
    #[inline]
    pub fn sample(&mut self, time: u64) {
        let time = time.clamp(1, RTO_MAX);
        if self.smoothed == 0 {
            self.smoothed = time;
            self.variation = time / 2;
            // The handshake's: without it, the first reordering would pass for a loss (RFC 8985
            // section 6.2 step 4). One within a turn of the clock measures nothing.
            if self.least == 0 && time > 1 {
                self.least = time;
            }
        } else {
            self.variation = (3 * self.variation + self.smoothed.abs_diff(time)) / 4;
            self.smoothed = (7 * self.smoothed + time) / 8;
        }
        self.first = (self.smoothed + (4 * self.variation).max(MILLISECOND)).clamp(RTO_MIN, RTO_MAX);
    }

    /// Notes the round trip of the newest segment of an acknowledgement.
    #[inline]
    pub fn note_least(&mut self, time: u64, now: u64) {
        let time = time.max(1);
        if self.least == 0 || time <= self.least || now.saturating_sub(self.least_at) > LEAST_ROUND_TRIP {
            self.least = time;
            self.least_at = now;
        }
    }

    /// The timeout after `backoff` retransmissions in a row.
    #[inline]
    pub fn timeout(&self, backoff: u8) -> u64 {
        let base = if self.first == 0 { RTO_INITIAL } else { self.first };
        if backoff == 0 {
            return base;
        }
        base.saturating_mul(1 << backoff.min(20)).min(RTO_MAX)
    }
}
