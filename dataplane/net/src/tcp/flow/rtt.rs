//! The round-trip time and the retransmission timeout (RFC 6298), in nanoseconds.

use crate::limits::{MILLISECOND, MIN_RTT_WINDOW, RTO_INITIAL, RTO_MAX, RTO_MIN};

/// The estimator of one flow.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RttEstimator {
    srtt: u64,
    rttvar: u64,
    /// The minimum sample of the last minutes, and when it was taken.
    min_rtt: u64,
    min_rtt_at: u64,
    /// The timeout of data that was sent once; zero before the first sample.
    rto: u64,
}

impl RttEstimator {
    /// SRTT: the smoothed round-trip time; zero before the first sample.
    #[inline]
    pub(crate) const fn srtt(&self) -> u64 {
        self.srtt
    }

    /// RTTVAR: the smoothed deviation of the samples from the smoothed round-trip time.
    pub(crate) const fn rttvar(&self) -> u64 {
        self.rttvar
    }

    /// The minimum RTT of the last minutes; zero before the first sample.
    pub(crate) const fn min_rtt(&self) -> u64 {
        self.min_rtt
    }

    /// Takes a sample (section 2.2 and 2.3).
    #[inline]
    pub(crate) fn sample(&mut self, time: u64) {
        let time = time.clamp(1, RTO_MAX);
        if self.srtt == 0 {
            self.srtt = time;
            self.rttvar = time / 2;
            // The sample of the handshake: without it, the first reordering would count as a loss
            // (RFC 8985 section 6.2 step 4). A sample within one tick of the clock measures
            // nothing.
            if self.min_rtt == 0 && time > 1 {
                self.min_rtt = time;
            }
        } else {
            self.rttvar = (3 * self.rttvar + self.srtt.abs_diff(time)) / 4;
            self.srtt = (7 * self.srtt + time) / 8;
        }
        self.rto = (self.srtt + (4 * self.rttvar).max(MILLISECOND)).clamp(RTO_MIN, RTO_MAX);
    }

    /// Notes the round trip of the newest segment of an acknowledgement.
    #[inline]
    pub(crate) fn note_min_rtt(&mut self, time: u64, now: u64) {
        let time = time.max(1);
        if self.min_rtt == 0 || time <= self.min_rtt || now.saturating_sub(self.min_rtt_at) > MIN_RTT_WINDOW {
            self.min_rtt = time;
            self.min_rtt_at = now;
        }
    }

    /// The timeout after `backoff` retransmissions in a row.
    #[inline]
    pub(crate) fn timeout(&self, backoff: u8) -> u64 {
        let base = if self.rto == 0 { RTO_INITIAL } else { self.rto };
        if backoff == 0 {
            return base;
        }
        base.saturating_mul(1 << backoff.min(20)).min(RTO_MAX)
    }
}
