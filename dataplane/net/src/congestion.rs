//! Congestion control: how many bytes may be in flight. Which bytes are lost is decided elsewhere (`slow`); a
//! [`CongestionControl`] only hears of it, so that another algorithm is another implementation.

use crate::limits::INITIAL_WINDOW;

/// An algorithm that sizes the congestion window. All quantities are bytes.
pub trait CongestionControl {
    /// The congestion window.
    fn window(&self) -> u32;
    /// `bytes` were acknowledged outside of recovery while the window was in use.
    fn acknowledged(&mut self, bytes: u32, mss: u32);
    /// A loss was found by duplicate acknowledgements, with `in_flight` outstanding.
    fn enter_recovery(&mut self, in_flight: u32, mss: u32);
    /// Another duplicate in recovery: a segment has left the network.
    fn duplicate(&mut self, mss: u32);
    /// In recovery `bytes` were acknowledged, but not all that was outstanding when it began.
    fn partial(&mut self, bytes: u32, mss: u32);
    /// Recovery is over, with `in_flight` outstanding.
    fn exit_recovery(&mut self, in_flight: u32, mss: u32);
    /// The retransmission timer fired for the first time on these data.
    fn timed_out(&mut self, in_flight: u32, mss: u32);
    /// The flow has been idle for a retransmission timeout (RFC 5681 section 4.1).
    fn idle(&mut self, mss: u32);
}

/// NewReno (RFC 5681 and 6582).
#[derive(Clone, Copy, Debug)]
pub struct NewReno {
    window: u32,
    threshold: u32,
    counted: u32,
}

impl NewReno {
    /// Starts with the initial window (RFC 6928).
    pub const fn new(mss: u32) -> Self {
        Self { window: mss * INITIAL_WINDOW, threshold: u32::MAX, counted: 0 }
    }

    /// The slow-start threshold.
    pub const fn threshold(&self) -> u32 {
        self.threshold
    }

    const fn halved(in_flight: u32, mss: u32) -> u32 {
        if in_flight / 2 > 2 * mss { in_flight / 2 } else { 2 * mss }
    }
}

impl CongestionControl for NewReno {
    #[inline]
    fn window(&self) -> u32 {
        self.window
    }

    #[inline]
    fn acknowledged(&mut self, bytes: u32, mss: u32) {
        if self.window < self.threshold {
            // Appropriate byte counting (RFC 3465) with L = 2, for receivers that acknowledge every other segment. Ours
            // acknowledge once a batch, so the bound is on the batch.
            self.window = self.window.saturating_add(bytes.min(self.window));
        } else {
            self.counted = self.counted.saturating_add(bytes);
            if self.counted >= self.window {
                self.counted -= self.window;
                self.window = self.window.saturating_add(mss);
            }
        }
    }

    fn enter_recovery(&mut self, in_flight: u32, mss: u32) {
        self.threshold = Self::halved(in_flight, mss);
        self.window = self.threshold + 3 * mss;
        self.counted = 0;
    }

    fn duplicate(&mut self, mss: u32) {
        self.window = self.window.saturating_add(mss);
    }

    fn partial(&mut self, bytes: u32, mss: u32) {
        self.window = self.window.saturating_sub(bytes).max(mss);
        if bytes >= mss {
            self.window += mss;
        }
    }

    fn exit_recovery(&mut self, in_flight: u32, mss: u32) {
        self.window = self.threshold.min(in_flight.max(mss) + mss);
        self.counted = 0;
    }

    fn timed_out(&mut self, in_flight: u32, mss: u32) {
        self.threshold = Self::halved(in_flight, mss);
        self.window = mss;
        self.counted = 0;
    }

    fn idle(&mut self, mss: u32) {
        self.window = self.window.min(mss * INITIAL_WINDOW);
        self.counted = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_start_doubles_and_avoidance_adds_one_segment_a_window() {
        let mut reno = NewReno::new(1000);
        reno.acknowledged(10_000, 1000);
        assert_eq!(reno.window(), 20_000);
        reno.enter_recovery(20_000, 1000);
        assert_eq!((reno.threshold(), reno.window()), (10_000, 13_000));
        reno.exit_recovery(15_000, 1000);
        assert_eq!(reno.window(), 10_000);
        for _ in 0..10 {
            reno.acknowledged(1000, 1000);
        }
        assert_eq!(reno.window(), 11_000);
        reno.timed_out(11_000, 1000);
        assert_eq!((reno.threshold(), reno.window()), (5_500, 1000));
    }
}
