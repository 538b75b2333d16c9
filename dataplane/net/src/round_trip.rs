//! The round-trip time and the retransmission timeout (RFC 6298), in nanoseconds.

use crate::limits::{MILLISECOND, RTO_INITIAL, RTO_MAX, RTO_MIN};

/// The estimator of one flow.
#[derive(Clone, Copy, Debug, Default)]
pub struct RoundTrip {
    smoothed: u64,
    variation: u64,
}

impl RoundTrip {
    /// The smoothed round-trip time; zero before the first sample.
    pub const fn smoothed(&self) -> u64 {
        self.smoothed
    }

    /// Takes a sample (section 2.2 and 2.3).
    pub fn sample(&mut self, time: u64) {
        let time = time.clamp(1, RTO_MAX);
        if self.smoothed == 0 {
            self.smoothed = time;
            self.variation = time / 2;
        } else {
            self.variation = (3 * self.variation + self.smoothed.abs_diff(time)) / 4;
            self.smoothed = (7 * self.smoothed + time) / 8;
        }
    }

    /// The timeout after `backoff` retransmissions in a row.
    pub fn timeout(&self, backoff: u8) -> u64 {
        let base = if self.smoothed == 0 {
            RTO_INITIAL
        } else {
            (self.smoothed + (4 * self.variation).max(MILLISECOND)).clamp(RTO_MIN, RTO_MAX)
        };
        base.saturating_mul(1 << backoff.min(20)).min(RTO_MAX)
    }
}
