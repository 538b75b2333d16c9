//! A link between two in-memory queues that does what networks do, in virtual time and from one
//! seed.
//!
//! Each [`Direction`] is a path of its own, so a link may be asymmetric. A frame that a queue has
//! transmitted passes these stations, in this order (`link/lane.rs`):
//!
//! 1. *Outage*: within one of the given intervals nothing passes. [`Direction::flapping`] makes a
//!    row of them.
//! 2. *Loss*: singly, and in bursts by the model of Gilbert and Elliott: a hidden state that is
//!    good or bad, with its own loss in each, and chances to change at every frame.
//! 3. *MTU*: an IP packet longer than the path takes is dropped. A router that is
//!    [`Router::Silent`] is a black hole; one that [`Router::Answers`] sends ICMP "too big" back,
//!    and splits IPv4 packets that allow it (`link/packet.rs`).
//! 4. *Bandwidth and queue*: one server of `bandwidth` bits a second after a queue of so many
//!    bytes. A frame that finds no room is dropped at the tail; [`Marking`] sets Congestion
//!    Experienced before that: at a threshold as DCTCP wants it (RFC 8257 section 3.1), or with a
//!    probability that grows with the average length (RED).
//! 5. *Propagation*: delay and jitter. Jitter keeps the order; reordering is apart, so that each
//!    can be had without the other.
//! 6. *Damage*: one bit of the IP packet flipped, a frame repeated, a frame held back so that later
//!    ones overtake it.
//!
//! What survives stands in a list ordered by delivery time and age, and is delivered when its time
//! has come. [`Link::heal`] ends all faults: from then on everything arrives. Liveness is asserted
//! after it.
//!
//! A damaged frame has one bit of its IP packet flipped: the internet checksum detects every
//! single-bit error in what it covers, so whatever reaches an application damaged is a fault of the
//! engine. ARP has no checksum and is never damaged: the frame check sequence of a real link
//! protects it.
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
//! // Let both hosts work, then `link.step(now)`; time jumps to `link.next_deadline()` or an engine's own.
//! link.step(0);
//! assert_eq!(link.next_deadline(), None);
//! ```

use sietch_nic::wire::WireTap;

use crate::Random;

mod lane;
mod packet;
#[cfg(test)]
mod tests;

pub use lane::Lane;

/// A microsecond in nanoseconds.
const MICROSECOND: u64 = 1_000;
/// A millisecond in nanoseconds.
const MILLISECOND: u64 = 1_000_000;

/// When a queue sets Congestion Experienced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Marking {
    /// Never: drops at the tail are the only sign of congestion.
    None,
    /// On every packet of an ECN-capable transport that finds so many bytes waiting; others pass.
    Threshold(u64),
    /// With a probability that grows from zero at an average of `low` bytes to `permille` at
    /// `high`, and is one beyond. Packets of transports without ECN are dropped instead.
    Red {
        /// Bytes.
        low: u64,
        /// Bytes.
        high: u64,
        /// The greatest probability between the two.
        permille: u32,
    },
}

/// Loss in bursts: the model of Gilbert and Elliott. All in permille.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Burst {
    /// Chance at each frame that the good state turns bad.
    pub begin: u32,
    /// Chance at each frame that the bad state turns good; 0 counts as 1, for the state must end.
    pub end: u32,
    /// Loss while the state is bad.
    pub loss: u32,
}

/// What a router does with a packet that is too big for its next link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Router {
    /// Drops it and says nothing: a black hole.
    Silent,
    /// Tells the sender (RFC 792, RFC 1191, RFC 4443 section 3.2); splits IPv4 packets that may be
    /// split.
    Answers,
}

/// The largest IP packet that a path takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mtu {
    /// Bytes, IP header included.
    pub bytes: usize,
    /// What becomes of bigger ones.
    pub router: Router,
}

/// What one direction of a link is and does. Chances are permille of frames, times nanoseconds.
#[derive(Debug, Clone)]
pub struct Direction {
    /// Bits a second; 0 is unlimited.
    pub bandwidth: u64,
    /// Propagation delay of every frame.
    pub delay: u64,
    /// The longest extra delay, drawn for every frame; the order is kept.
    pub jitter: u64,
    /// Bytes that may wait for bandwidth; frames that find no room are lost.
    pub queue: u64,
    /// When the queue marks.
    pub marking: Marking,
    /// Frames lost singly.
    pub loss: u32,
    /// Loss in bursts.
    pub burst: Option<Burst>,
    /// Frames delivered twice.
    pub duplication: u32,
    /// Frames held back, so that others overtake them.
    pub reordering: u32,
    /// The longest time for which such a frame, or a second copy, is held back.
    pub hold: u64,
    /// Frames with one bit flipped.
    pub corruption: u32,
    /// The largest packet.
    pub mtu: Option<Mtu>,
    /// Intervals, start and end, in which nothing passes.
    pub outages: Vec<(u64, u64)>,
}

impl Direction {
    /// A perfect path with 10 microseconds of delay and no limit to its bandwidth.
    pub fn perfect() -> Self {
        Self {
            bandwidth: 0,
            delay: 10 * MICROSECOND,
            jitter: 0,
            queue: u64::MAX,
            marking: Marking::None,
            loss: 0,
            burst: None,
            duplication: 0,
            reordering: 0,
            hold: 0,
            corruption: 0,
            mtu: None,
            outages: Vec::new(),
        }
    }

    /// Adds `times` outages of `down` nanoseconds, one every `period`, the first at `start`.
    #[must_use]
    pub fn flapping(mut self, start: u64, period: u64, down: u64, times: u64) -> Self {
        self.outages.extend((0..times).map(|turn| {
            let at = start + turn * period;
            (at, at + down)
        }));
        self
    }

    /// A random path: each fault is absent in half of the draws, so that one does not hide another.
    pub fn swarm(random: &mut Random) -> Self {
        let mut maybe = |permille: &[u32]| if random.chance(500) { *random.pick(permille) } else { 0 };
        let loss = maybe(&[1, 10, 50, 200]);
        let begin = maybe(&[1, 5]);
        let duplication = maybe(&[1, 10, 100]);
        let reordering = maybe(&[5, 50, 300]);
        let corruption = maybe(&[1, 10, 50]);
        let jittery = random.chance(300);
        let delay = *random.pick(&[MICROSECOND, 20 * MICROSECOND, MILLISECOND, 40 * MILLISECOND]);
        // Bits a second: a modem's bulk line, an old and a new Ethernet.
        let bandwidth = *random.pick(&[0, 0, 8_000_000, 100_000_000, 10_000_000_000]);
        let queue = *random.pick(&[12_000, 96_000, 1_500_000]);
        let marking = match random.below(4) {
            0 => Marking::Threshold(queue / 4),
            1 => Marking::Red { low: queue / 8, high: queue / 2, permille: 100 },
            _ => Marking::None,
        };
        let outages = if random.chance(200) {
            let start = random.below(2_000 * MILLISECOND);
            vec![(start, start + random.between(1, 3_000) * MILLISECOND)]
        } else {
            Vec::new()
        };
        Self {
            bandwidth,
            delay,
            jitter: if jittery { delay * random.between(1, 4) } else { 0 },
            queue,
            marking,
            loss,
            burst: (begin > 0).then(|| Burst {
                begin,
                end: *random.pick(&[60, 200, 500]),
                loss: *random.pick(&[300, 800, 1000]),
            }),
            duplication,
            reordering,
            hold: delay * random.between(1, 8),
            corruption,
            mtu: None,
            outages,
        }
    }
}

/// Both directions of a link: from the first tap to the second, and back.
#[derive(Debug, Clone)]
pub struct LinkConfig {
    /// From the first tap to the second.
    pub there: Direction,
    /// From the second to the first.
    pub back: Direction,
}

impl LinkConfig {
    /// A perfect link.
    pub fn perfect() -> Self {
        Self::symmetric(Direction::perfect())
    }

    /// The same path both ways.
    pub fn symmetric(direction: Direction) -> Self {
        Self { back: direction.clone(), there: direction }
    }

    /// A random link: mostly the same both ways, in one draw of four two paths that have nothing to
    /// do with each other, in one of eight with routers that answer to packets that are too big or,
    /// a third of them, do not, in one of eight with an interface that comes and goes.
    pub fn swarm(random: &mut Random) -> Self {
        let there = Direction::swarm(random);
        let back = if random.chance(250) { Direction::swarm(random) } else { there.clone() };
        let mut link = Self { there, back };
        if random.chance(125) {
            let bytes = *random.pick(&[576, 1280, 1400, 1492]);
            let router = if random.chance(300) { Router::Silent } else { Router::Answers };
            let mtu = Some(Mtu { bytes, router });
            link.there.mtu = mtu;
            link.back.mtu = mtu;
        }
        if random.chance(125) {
            let period = random.between(50, 2_000) * MILLISECOND;
            let down = period / random.between(2, 10);
            let (start, times) = (random.below(5_000) * MILLISECOND, random.between(2, 20));
            link.there = link.there.flapping(start, period, down, times);
            link.back = link.back.flapping(start, period, down, times);
        }
        link
    }
}

impl From<Direction> for LinkConfig {
    fn from(direction: Direction) -> Self {
        Self::symmetric(direction)
    }
}

/// What a link, or one direction of it, has done to frames.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// Frames taken from a queue.
    pub taken: u64,
    /// Bytes in them.
    pub bytes: u64,
    /// Frames put before a queue.
    pub delivered: u64,
    /// Frames lost, for whatever reason.
    pub lost: u64,
    /// Of them, those that found the queue full, or that a RED queue dropped.
    pub overflowed: u64,
    /// Of them, those that were too big for the path.
    pub too_big: u64,
    /// Frames marked Congestion Experienced.
    pub marked: u64,
    /// Frames damaged.
    pub corrupted: u64,
    /// Frames delivered twice.
    pub duplicated: u64,
    /// Frames held back.
    pub reordered: u64,
    /// The most bytes that waited for bandwidth.
    pub longest_queue: u64,
}

impl Tally {
    fn plus(self, other: Self) -> Self {
        Self {
            taken: self.taken + other.taken,
            bytes: self.bytes + other.bytes,
            delivered: self.delivered + other.delivered,
            lost: self.lost + other.lost,
            overflowed: self.overflowed + other.overflowed,
            too_big: self.too_big + other.too_big,
            marked: self.marked + other.marked,
            corrupted: self.corrupted + other.corrupted,
            duplicated: self.duplicated + other.duplicated,
            reordered: self.reordered + other.reordered,
            longest_queue: self.longest_queue.max(other.longest_queue),
        }
    }
}

/// Someone who sees every frame. Sides are 0 for the first tap and 1 for the second.
pub trait Observer: std::fmt::Debug {
    /// The queue of `side` has sent a frame.
    fn sent(&mut self, side: usize, frame: &[u8], now: u64);
    /// A frame was put before the queue of `side`.
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

    /// Lets someone watch. Observers hear of a frame in the order in which they came.
    pub fn watch(&mut self, observer: Box<dyn Observer>) {
        self.observers.push(observer);
    }

    /// Sends a frame to `side` that comes from neither queue: from a third host, or from somebody
    /// who pretends. It takes the delay of the path and meets none of its faults.
    pub fn inject(&mut self, side: usize, frame: Vec<u8>, now: u64) {
        self.lanes[1 - side].inject(frame, now);
    }

    /// Ends all faults, and the limits of bandwidth and queue. Delays stay, and so do routers that
    /// answer. What is already in flight keeps its fate.
    pub fn heal(&mut self) {
        for lane in &mut self.lanes {
            lane.heal();
        }
    }

    /// Puts another queue in the place of the second: its machine was started anew. What is in
    /// flight goes on.
    pub fn replace_second(&mut self, tap: WireTap) {
        self.taps[1] = tap;
    }

    /// Replaces what the link is and does. What is already in flight keeps its fate.
    pub fn configure(&mut self, config: impl Into<LinkConfig>) {
        let config = config.into();
        self.lanes[0].configure(config.there);
        self.lanes[1].configure(config.back);
    }

    /// What was done so far, both ways together.
    pub fn tally(&self) -> Tally {
        self.lanes[0].tally().plus(self.lanes[1].tally())
    }

    /// What was done so far, from the first tap to the second, and back.
    pub fn tallies(&self) -> [Tally; 2] {
        [self.lanes[0].tally(), self.lanes[1].tally()]
    }

    /// Begins to look for the longest queue anew.
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
