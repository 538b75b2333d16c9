//! A link between two in-memory queues with the faults of real networks, in virtual time and from
//! one seed.
//!
//! Each [`Direction`] is a path of its own, so a link may be asymmetric. A frame that a queue has
//! transmitted passes these stages, in this order (`link/lane.rs`):
//!
//! 1. *Outage*: within one of the given intervals no frame passes. [`Direction::flapping`] makes a
//!    series of them.
//! 2. *Loss*: singly, and in bursts by the model of Gilbert and Elliott. A hidden state is good or
//!    bad, with its own loss in each, and may change at every frame.
//! 3. *MTU*: an IP packet longer than the path takes is dropped. A router that is
//!    [`Router::Silent`] is a black hole; one that [`Router::Answers`] sends ICMP "too big" back,
//!    and splits IPv4 packets that allow it (`link/packet.rs`).
//! 4. *Bandwidth and queue*: one server of `bandwidth` bits a second after a queue of limited
//!    bytes. A frame that finds no room is dropped at the tail. [`Marking`] sets Congestion
//!    Experienced before that. It does so at a threshold as DCTCP expects it (RFC 8257 section
//!    3.1), or with a probability that grows with the average length (RED).
//! 5. *Propagation*: delay and jitter. Jitter keeps the order; reordering is separate, so that each
//!    can be configured without the other.
//! 6. *Damage*: one bit of the IP packet flipped, a frame repeated, a frame held back so that later
//!    ones overtake it.
//!
//! The remaining frames wait in a list ordered by delivery time and age, and are delivered when
//! due. [`Link::heal`] ends all faults: from then on everything arrives. Tests assert liveness
//! after it.
//!
//! A damaged frame has one bit of its IP packet flipped. The internet checksum detects every
//! single-bit error in the bytes that it covers, so damaged data that reaches an application is a
//! fault of the engine. ARP has no checksum and is never damaged: the frame check sequence of a
//! real link protects it.
//!
//! ```
//! use sietch_nic::wire::tapped;
//! use sietch_sim::link::{Direction, Link, LinkConfig, Marking};
//! use sietch_sim::Random;
//!
//! let (mut a, tap_a) = tapped([2, 0, 0, 0, 0, 1], 1500, 256);
//! let (mut b, tap_b) = tapped([2, 0, 0, 0, 0, 2], 1500, 256);
//! // 100 Mbit/s, half a millisecond each way, 64 KiB of queue that marks from 20 KB on.
//! let path = Direction {
//!     bandwidth: 100_000_000,
//!     delay: 500_000,
//!     queue: 64 << 10,
//!     marking: Marking::Threshold(20_000),
//!     ..Direction::perfect()
//! };
//! let mut link = Link::new(tap_a, tap_b, LinkConfig::symmetric(path), Random::new(1));
//! // Let both hosts work, then `link.step(now)`; time jumps to `link.next_deadline()` or an
//! // engine's own.
//! link.step(0);
//! assert_eq!(link.next_deadline(), None);
//! ```

use sietch_nic::wire::WireTap;

use crate::Random;

mod config;
mod lane;
mod packet;
#[cfg(test)]
mod tests;

pub use config::{Burst, Direction, LinkConfig, Marking, Mtu, Router, Tally};
pub use lane::Lane;

/// Observes every frame. Side 0 is the first tap, side 1 the second.
pub trait Observer: std::fmt::Debug {
    /// The queue of `side` has sent a frame.
    fn sent(&mut self, side: usize, frame: &[u8], now: u64);
    /// A frame was delivered to the queue of `side`.
    fn delivered(&mut self, side: usize, frame: &[u8], now: u64);
}

/// A link between the taps `a` and `b`.
#[derive(Debug)]
pub struct Link {
    taps: [WireTap; 2],
    lanes: [Lane; 2],
    random: Random,
    observers: Vec<Box<dyn Observer>>,
}

impl Link {
    /// Joins two taps.
    pub fn new(a: WireTap, b: WireTap, config: impl Into<LinkConfig>, random: Random) -> Self {
        let config = config.into();
        Self {
            taps: [a, b],
            lanes: [Lane::new(config.there), Lane::new(config.back)],
            random,
            observers: Vec::new(),
        }
    }

    /// Adds an observer. Observers see each frame in the order in which they were added.
    pub fn watch(&mut self, observer: Box<dyn Observer>) {
        self.observers.push(observer);
    }

    /// Sends a frame to `side` that comes from neither queue: from a third host, or forged. It
    /// takes the delay of the path, without its faults.
    pub fn inject(&mut self, side: usize, frame: Vec<u8>, now: u64) {
        self.lanes[1 - side].inject(frame, now);
    }

    /// Ends all faults, and the limits of bandwidth and queue. Delays stay, and so do routers that
    /// answer. Frames in flight are not affected.
    pub fn heal(&mut self) {
        for lane in &mut self.lanes {
            lane.heal();
        }
    }

    /// Replaces the second queue, as if its machine had been restarted. Frames in flight stay in
    /// flight.
    pub fn replace_second(&mut self, tap: WireTap) {
        self.taps[1] = tap;
    }

    /// Replaces the configuration. Frames in flight are not affected.
    pub fn configure(&mut self, config: impl Into<LinkConfig>) {
        let config = config.into();
        self.lanes[0].configure(config.there);
        self.lanes[1].configure(config.back);
    }

    /// The counters so far, of both directions together.
    pub fn tally(&self) -> Tally {
        self.lanes[0].tally().plus(self.lanes[1].tally())
    }

    /// The counters so far, from the first tap to the second, and back.
    pub fn tallies(&self) -> [Tally; 2] {
        [self.lanes[0].tally(), self.lanes[1].tally()]
    }

    /// Resets the longest queue seen so far.
    pub fn forget_longest_queue(&mut self) {
        for lane in &mut self.lanes {
            lane.forget_longest_queue();
        }
    }

    /// Takes what both queues have sent and delivers what is due at `now`.
    pub fn step(&mut self, now: u64) {
        for side in 0..2 {
            while let Some(frame) = self.taps[side].take_transmitted() {
                for observer in &mut self.observers {
                    observer.sent(side, &frame, now);
                }
                if let Some(answer) = self.lanes[side].launch(frame, now, &mut self.random) {
                    self.lanes[1 - side].inject(answer, now);
                }
            }
        }
        for side in 0..2 {
            while let Some(frame) = self.lanes[side].arrive(now) {
                let taken = self.taps[1 - side].deliver(&frame);
                for observer in self.observers.iter_mut().filter(|_| taken) {
                    observer.delivered(1 - side, &frame, now);
                }
                self.lanes[side].delivered(taken);
            }
        }
    }

    /// When the next frame in flight is due.
    pub fn next_deadline(&self) -> Option<u64> {
        self.lanes.iter().filter_map(Lane::next_deadline).min()
    }
}
