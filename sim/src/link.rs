//! A link between two in-memory queues that does what networks do.
//!
//! 1. Each direction takes what its queue transmitted and decides by the seed: lose (singly, in bursts, or in a
//!    partition), damage one bit, repeat, delay by a random time (so later frames overtake), wait for bandwidth.
//! 2. What survives stands in a list ordered by delivery time and age, and is delivered when its time has come.
//! 3. [`Link::heal`] ends all faults: from then on everything arrives. Liveness is asserted after it.
//!
//! A damaged frame has one bit of its IPv4 packet flipped: the internet checksum detects every single-bit error,
//! so whatever reaches an application damaged is a fault of the engine. ARP has no checksum and
//! is never damaged: the frame check sequence of a real link protects it.

use std::collections::BTreeMap;

use sietch_nic::wire::WireTap;

use crate::Random;

/// What a link does to frames. Chances are permille of frames, times nanoseconds.
#[derive(Debug, Clone)]
pub struct Faults {
    /// Frames lost singly.
    pub loss: u32,
    /// Frames after which a burst of loss starts, and its longest length in frames.
    pub burst: (u32, u64),
    /// Frames delivered twice.
    pub duplication: u32,
    /// Frames held back by up to [`Faults::jitter`], so that others overtake them.
    pub reordering: u32,
    /// Frames with one bit flipped.
    pub corruption: u32,
    /// Every frame's delay.
    pub delay: u64,
    /// The longest extra delay of a reordered frame.
    pub jitter: u64,
    /// Bytes a second; 0 is unlimited.
    pub bandwidth: u64,
    /// Frames that may wait for bandwidth; more are lost.
    pub queue: usize,
    /// Intervals in which nothing passes.
    pub partitions: Vec<(u64, u64)>,
}

/// A microsecond in nanoseconds.
const MICROSECOND: u64 = 1_000;
/// A millisecond in nanoseconds.
const MILLISECOND: u64 = 1_000_000;

impl Faults {
    /// A perfect link with 10 microseconds of delay.
    pub fn none() -> Self {
        Self {
            loss: 0,
            burst: (0, 0),
            duplication: 0,
            reordering: 0,
            corruption: 0,
            delay: 10 * MICROSECOND,
            jitter: 0,
            bandwidth: 0,
            queue: usize::MAX,
            partitions: Vec::new(),
        }
    }

    /// A random choice of faults: each is absent in half of the seeds, so that one does not hide another.
    pub fn swarm(random: &mut Random) -> Self {
        let mut maybe = |permille: &[u32]| if random.chance(500) { *random.pick(permille) } else { 0 };
        let loss = maybe(&[1, 10, 50, 200]);
        let burst = maybe(&[1, 5]);
        let duplication = maybe(&[1, 10, 100]);
        let reordering = maybe(&[5, 50, 300]);
        let corruption = maybe(&[1, 10, 50]);
        let delay = *random.pick(&[MICROSECOND, 20 * MICROSECOND, MILLISECOND, 40 * MILLISECOND]);
        let bandwidth = *random.pick(&[0, 0, 1_000_000, 20_000_000, 1_000_000_000]);
        let partitions = if random.chance(200) {
            let start = random.below(2_000 * MILLISECOND);
            vec![(start, start + random.between(1, 3_000) * MILLISECOND)]
        } else {
            Vec::new()
        };
        Self {
            loss,
            burst: (burst, random.between(2, 20)),
            duplication,
            reordering,
            corruption,
            delay,
            jitter: delay * random.between(1, 8),
            bandwidth,
            queue: *random.pick(&[8, 64, 1024]),
            partitions,
        }
    }
}

/// What a link has done to frames.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// Frames taken from a queue.
    pub taken: u64,
    /// Frames put before a queue.
    pub delivered: u64,
    /// Frames lost, for whatever reason.
    pub lost: u64,
    /// Frames damaged.
    pub corrupted: u64,
    /// Frames delivered twice.
    pub duplicated: u64,
    /// Frames held back.
    pub reordered: u64,
}

#[derive(Debug, Default)]
struct Direction {
    /// In flight, by time of delivery and age.
    flying: BTreeMap<(u64, u64), Vec<u8>>,
    /// When the last byte so far will have left.
    busy_until: u64,
    burst_left: u64,
}

/// A link between the taps `a` and `b`.
#[derive(Debug)]
pub struct Link {
    a: WireTap,
    b: WireTap,
    directions: [Direction; 2],
    faults: Faults,
    random: Random,
    age: u64,
    /// What was done so far.
    pub tally: Tally,
}

impl Link {
    /// Joins two taps.
    pub fn new(a: WireTap, b: WireTap, faults: Faults, random: Random) -> Self {
        Self { a, b, directions: Default::default(), faults, random, age: 0, tally: Tally::default() }
    }

    /// Ends all faults. What is already in flight keeps its fate.
    pub fn heal(&mut self) {
        self.faults = Faults { delay: self.faults.delay, ..Faults::none() };
        for direction in &mut self.directions {
            direction.burst_left = 0;
        }
    }

    /// Puts another queue in the place of the second: its machine was started anew. What is in flight goes on.
    pub fn replace_second(&mut self, tap: WireTap) {
        self.b = tap;
    }

    /// Replaces the faults.
    pub fn set_faults(&mut self, faults: Faults) {
        self.faults = faults;
    }

    /// Takes what both queues have sent and delivers what is due at `now`.
    pub fn step(&mut self, now: u64) {
        for side in 0..2 {
            while let Some(frame) =
                if side == 0 { self.a.take_transmitted() } else { self.b.take_transmitted() }
            {
                self.tally.taken += 1;
                self.launch(side, frame, now);
            }
            while let Some(entry) = self.directions[side].flying.first_entry() {
                if entry.key().0 > now {
                    break;
                }
                let frame = entry.remove();
                let taken = if side == 0 { self.b.deliver(&frame) } else { self.a.deliver(&frame) };
                if taken {
                    self.tally.delivered += 1;
                } else {
                    self.tally.lost += 1;
                }
            }
        }
    }

    /// When the next frame in flight is due.
    pub fn next_deadline(&self) -> Option<u64> {
        self.directions
            .iter()
            .filter_map(|direction| direction.flying.first_key_value())
            .map(|((due, _), _)| *due)
            .min()
    }

    fn launch(&mut self, side: usize, mut frame: Vec<u8>, now: u64) {
        let faults = &self.faults;
        let direction = &mut self.directions[side];
        let random = &mut self.random;
        if direction.burst_left == 0 && random.chance(faults.burst.0) {
            direction.burst_left = random.between(1, faults.burst.1.max(1));
        }
        let cut = faults.partitions.iter().any(|(from, to)| (*from..*to).contains(&now));
        if direction.burst_left > 0
            || cut
            || random.chance(faults.loss)
            || direction.flying.len() >= faults.queue
        {
            direction.burst_left = direction.burst_left.saturating_sub(1);
            self.tally.lost += 1;
            return;
        }
        if random.chance(faults.corruption) && damage(&mut frame, random) {
            self.tally.corrupted += 1;
        }
        let mut due = now + faults.delay;
        // Bandwidth 0 is no limit, and so no division.
        if let Some(spent) = (frame.len() as u64 * 1_000_000_000).checked_div(faults.bandwidth) {
            direction.busy_until = direction.busy_until.max(now) + spent;
            due = direction.busy_until + faults.delay;
        }
        if random.chance(faults.reordering) {
            due += random.below(faults.jitter + 1);
            self.tally.reordered += 1;
        }
        if random.chance(faults.duplication) {
            let again = due + random.below(faults.jitter + 1);
            self.age += 1;
            direction.flying.insert((again, self.age), frame.clone());
            self.tally.duplicated += 1;
        }
        self.age += 1;
        direction.flying.insert((due, self.age), frame);
    }
}

/// Flips one bit of the packet inside an IPv4 frame; returns whether it did.
fn damage(frame: &mut [u8], random: &mut Random) -> bool {
    const HEADER: usize = 14;
    let Some([8, 0]) = frame.get(12..HEADER) else { return false };
    // Only what the checksums cover: a short packet is followed by padding that nobody reads.
    let length = frame.get(16..18).map_or(0, |field| usize::from(u16::from_be_bytes([field[0], field[1]])));
    let end = (HEADER + length).min(frame.len());
    if end <= HEADER {
        return false;
    }
    let at = HEADER + random.index(end - HEADER);
    frame[at] ^= 1 << random.below(8);
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use sietch_nic::NicQueue;
    use sietch_nic::wire::{WireQueue, tapped};

    fn ends() -> (WireQueue, WireQueue, WireTap, WireTap) {
        let (a, tap_a) = tapped([2, 0, 0, 0, 0, 1], 1500, 256);
        let (b, tap_b) = tapped([2, 0, 0, 0, 0, 2], 1500, 256);
        (a, b, tap_a, tap_b)
    }

    fn send(queue: &mut WireQueue, byte: u8) {
        let mut frame = queue.allocate().unwrap();
        queue.bytes_mut(&mut frame, 60).fill(byte);
        queue.transmit(frame).unwrap();
        queue.flush().unwrap();
    }

    fn received(queue: &mut WireQueue) -> Vec<u8> {
        let mut frames = Vec::new();
        queue.receive(&mut frames, 1000);
        frames
            .into_iter()
            .map(|frame| {
                let first = queue.bytes(&frame)[0];
                queue.release(frame);
                first
            })
            .collect()
    }

    #[test]
    fn a_healthy_link_delivers_in_order_after_its_delay() {
        let (mut a, mut b, tap_a, tap_b) = ends();
        let mut link = Link::new(tap_a, tap_b, Faults::none(), Random::new(1));
        for byte in 0..5 {
            send(&mut a, byte);
        }
        link.step(0);
        assert!(received(&mut b).is_empty());
        let due = link.next_deadline().unwrap();
        link.step(due);
        assert_eq!(received(&mut b), [0, 1, 2, 3, 4]);
        assert_eq!(link.next_deadline(), None);
    }

    #[test]
    fn each_fault_happens_and_healing_ends_them() {
        let (mut a, mut b, tap_a, tap_b) = ends();
        let faults =
            Faults { loss: 300, duplication: 300, reordering: 500, jitter: 1_000_000, ..Faults::none() };
        let mut link = Link::new(tap_a, tap_b, faults, Random::new(3));
        let mut all = Vec::new();
        for byte in 0..200 {
            send(&mut a, byte);
            link.step(u64::from(byte) * 1000);
        }
        while let Some(due) = link.next_deadline() {
            link.step(due);
            all.extend(received(&mut b));
        }
        assert!(!all.is_sorted(), "nothing overtook");
        assert!(link.tally.lost > 20 && link.tally.duplicated > 20, "{:?}", link.tally);
        assert_eq!(all.len() as u64, 200 - link.tally.lost + link.tally.duplicated);
        link.heal();
        send(&mut a, 9);
        link.step(1_000_000_000);
        link.step(2_000_000_000);
        assert_eq!(received(&mut b), [9]);
    }
}
