//! How large buffers may become: as large as the path can use, and not before it is seen to use it.
//!
//! *Receiving* (dynamic right-sizing, Fisk and Feng 2001, and what Linux made of it):
//!
//! 1. A flow begins with a small window. Memory is taken for bytes that have arrived, not for those
//!    that may come, so a window costs nothing until it is used.
//! 2. The receiver estimates the round trip by itself: within one, no more than a window can come.
//!    It keeps the minimum time that a window of data took. It bounds that by a multiple of the
//!    round trip that was measured otherwise, because a slow sender takes long for a window.
//! 3. Once a round trip, the bytes that the application consumed are compared with the most it
//!    consumed in one before. If there are more, the window grows to twice that, and further by the
//!    ratio of the increase. A sender in slow start sends twice as much in the next round trip.
//! 4. A sender may fill half of the window before the next update, while the application has
//!    consumed everything. Then the window limits it, however short the round trip is (batches over
//!    a memory link). The window then doubles, at most once a window.
//! 5. It grows up to the limit of the engine and to an eighth of the free memory. It never shrinks
//!    (RFC 9293 section 3.8.6).
//!
//! *Sending*: twice the congestion window, between a smallest size and the limit. The application
//! may as well keep what the path does not take.

use crate::limits::MILLISECOND;

/// How many times the smoothed round trip, and how much beside it, the receiver's own measurement
/// may be: batches at both ends.
const TRUST: u64 = 8;
const TRUST_SLACK: u64 = MILLISECOND;
/// A round trip of which nothing is known: a long one, which errs on the side of throughput.
const UNKNOWN: u64 = 100 * MILLISECOND;

/// What the receiver's side of a flow has measured.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tuning {
    /// When this period began, and what the application had taken then.
    since: u64,
    taken: u64,
    /// The maximum of bytes that the application took in one round trip.
    max_taken: u64,
    /// What the application had taken when the window last grew.
    grown_at: u64,
    /// When the present window of data began, where it ends, and the minimum time that one took.
    window_since: u64,
    window_end: u64,
    min_window_time: u64,
}

/// The state of a flow when data have arrived.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Observation {
    pub now: u64,
    /// Bytes received in order, and taken by the application, since the connection began.
    pub received: u64,
    pub taken: u64,
    /// The window.
    pub limit: usize,
    /// The smoothed round trip, or zero.
    pub srtt: u64,
    pub mss: u32,
}

impl Tuning {
    /// Evaluates an observation. Returns the size that the window should have, if it should be
    /// larger.
    pub(crate) fn observe(&mut self, observation: &Observation) -> Option<usize> {
        if observation.received >= self.window_end {
            let took = observation.now - self.window_since;
            if self.window_end > 0 && (self.min_window_time == 0 || took < self.min_window_time) {
                self.min_window_time = took.max(1);
            }
            (self.window_since, self.window_end) =
                (observation.now, observation.received + observation.limit as u64);
        }
        if self.since == 0 {
            (self.since, self.taken) = (observation.now, observation.taken);
            self.max_taken = 10 * u64::from(observation.mss);
            return None;
        }
        let rtt = match (self.min_window_time, observation.srtt) {
            (0, 0) => UNKNOWN,
            (0, srtt) => srtt,
            (minimum, 0) => minimum.min(UNKNOWN),
            (minimum, srtt) => minimum.clamp(srtt, TRUST * srtt + TRUST_SLACK),
        };
        let elapsed = observation.now - self.since;
        if elapsed < rtt {
            return None;
        }
        let brought = u128::from(observation.taken - self.taken) * u128::from(rtt) / u128::from(elapsed);
        let brought = u64::try_from(brought).unwrap_or(u64::MAX).min(1 << 32);
        (self.since, self.taken) = (observation.now, observation.taken);
        if brought <= self.max_taken {
            return None;
        }
        let wanted = 2 * brought + 16 * u64::from(observation.mss);
        // At most fourfold: no sender more than doubles in a round trip.
        let grown = wanted + (wanted * (brought - self.max_taken) / self.max_taken).min(wanted);
        self.max_taken = brought;
        let size = usize::try_from(grown).unwrap_or(usize::MAX / 2).next_power_of_two();
        (size > observation.limit).then(|| self.grows(size))
    }

    /// A window that grew while it was measured would seem to have taken less than a round trip.
    fn grows(&mut self, size: usize) -> usize {
        self.window_end = 0;
        size
    }

    /// The application has taken everything that arrived: `taken` bytes so far, of which the last
    /// fill half of the window or more. Returns the size that it should have, if it should be
    /// larger.
    pub(crate) fn emptied(&mut self, taken: u64, limit: usize) -> Option<usize> {
        if taken - self.grown_at < limit as u64 {
            return None;
        }
        self.grown_at = taken;
        Some(self.grows(2 * limit))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MSS: u32 = 1460;

    /// Feeds `rate` bytes a second for `time`, a segment at a time, to an application that reads
    /// everything at once. The path has this round trip, and the sender never has more than `limit`
    /// in flight. Returns the window in the end.
    fn feed(rate: u64, rtt: u64, srtt: u64, time: u64, most: usize) -> usize {
        let mut tuning = Tuning::default();
        let (mut limit, mut received, mut now) = (64 << 10, 0_u64, 1_000_000_000_u64);
        let end = now + time;
        while now < end {
            let allowed = (limit as u64 * 1_000_000_000 / rtt).min(rate).max(1);
            now += u64::from(MSS) * 1_000_000_000 / allowed;
            received += u64::from(MSS);
            let seen = Observation { now, received, taken: received, limit, srtt, mss: MSS };
            if let Some(size) = tuning.observe(&seen) {
                limit = size.min(most);
            }
        }
        limit
    }

    #[test]
    fn a_fast_sender_gets_twice_the_capacity_of_the_path() {
        // 1 Gbit/s and 10 ms hold 1.25 MB.
        let window = feed(125_000_000, 10 * MILLISECOND, 10 * MILLISECOND, 500 * MILLISECOND, 64 << 20);
        assert!((2_500_000..10_000_000).contains(&window), "{window}");
        // The same if nothing is known of the round trip, or what is known is far too little.
        assert!(feed(125_000_000, 10 * MILLISECOND, 0, 500 * MILLISECOND, 64 << 20) >= 2_500_000);
        assert!(feed(125_000_000, 10 * MILLISECOND, 1_250_000, 500 * MILLISECOND, 64 << 20) >= 2_500_000);
    }

    #[test]
    fn a_slow_sender_keeps_a_small_window() {
        for rtt in [MILLISECOND / 10, 10 * MILLISECOND] {
            let window = feed(100_000, rtt, rtt, 100_000 * MILLISECOND, 64 << 20);
            assert_eq!(window, 64 << 10);
        }
    }

    #[test]
    fn a_sender_that_fills_the_window_at_once_gets_more_once_a_window() {
        let (mut tuning, limit) = (Tuning::default(), 64 << 10);
        assert_eq!(tuning.emptied(40_000, limit), None, "not yet a window");
        assert_eq!(tuning.emptied(70_000, limit), Some(128 << 10));
        assert_eq!(tuning.emptied(150_000, 128 << 10), None);
        assert_eq!(tuning.emptied(210_000, 128 << 10), Some(256 << 10));
    }
}
