//! The configuration of a link, and its counters.

use crate::Random;

/// A microsecond in nanoseconds.
const MICROSECOND: u64 = 1_000;
/// A millisecond in nanoseconds.
const MILLISECOND: u64 = 1_000_000;

/// When a queue marks packets with Congestion Experienced.
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
    /// Chance at each frame that the good state becomes bad.
    pub begin: u32,
    /// Chance at each frame that the bad state becomes good; 0 counts as 1, because the state must
    /// end.
    pub end: u32,
    /// Loss while the state is bad.
    pub loss: u32,
}

/// The reaction of a router to a packet that is too big for its next link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Router {
    /// Drops it silently: a black hole.
    Silent,
    /// Sends an ICMP error (RFC 792, RFC 1191, RFC 4443 section 3.2), and fragments IPv4 packets
    /// that allow it.
    Answers,
}

/// The largest IP packet that a path takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mtu {
    /// Bytes, IP header included.
    pub bytes: usize,
    /// How the router treats larger packets.
    pub router: Router,
}

/// The path in one direction, with its faults. Chances are permille of frames, times nanoseconds.
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
    /// Intervals, start and end, in which no frame passes.
    pub outages: Vec<(u64, u64)>,
}

impl Direction {
    /// A path without faults: 10 microseconds of delay, unlimited bandwidth.
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
        self.outages.extend((0..times).map(|number| {
            let at = start + number * period;
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

    /// A random link. In three draws of four both directions are the same, otherwise independent.
    /// In one of eight a router limits the packet size (silently in three of ten of those). In one
    /// of eight the interface goes down and up.
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

/// Counters of a link, or of one of its directions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// Frames taken from a queue.
    pub taken: u64,
    /// Bytes in them.
    pub bytes: u64,
    /// Frames put before a queue.
    pub delivered: u64,
    /// Frames lost, for any reason.
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
    pub(super) fn plus(self, other: Self) -> Self {
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
