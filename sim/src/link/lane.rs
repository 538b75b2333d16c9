//! One direction of a link: accepts frames, and releases them when they are due.

use std::collections::BTreeMap;

use super::config::{Direction, Marking, Router, Tally};
use super::packet;
use crate::Random;

/// Nanoseconds in a second times bits in a byte.
const BYTE_SECONDS: u128 = 8 * 1_000_000_000;

/// One direction of a link.
#[derive(Debug)]
pub struct Lane {
    config: Direction,
    /// In flight, by time of delivery and age.
    flying: BTreeMap<(u64, u64), Vec<u8>>,
    age: u64,
    /// When the last byte so far will have left the queue.
    busy_until: u64,
    /// The average length of the queue in sixteenths of a byte, for RED.
    average: u64,
    /// The state of the burst model.
    bad: bool,
    /// When the last frame that kept the order is due.
    last_due: u64,
    tally: Tally,
}

impl Lane {
    /// An empty path.
    pub fn new(config: Direction) -> Self {
        Self {
            config,
            flying: BTreeMap::new(),
            age: 0,
            busy_until: 0,
            average: 0,
            bad: false,
            last_due: 0,
            tally: Tally::default(),
        }
    }

    /// Replaces the configuration.
    pub fn configure(&mut self, config: Direction) {
        self.bad = false;
        self.busy_until = 0;
        self.config = config;
    }

    /// Ends all faults and limits but the delay, and routers that answer.
    pub fn heal(&mut self) {
        let delay = self.config.delay;
        let mtu = self.config.mtu.filter(|mtu| mtu.router == Router::Answers);
        self.configure(Direction { delay, mtu, ..Direction::perfect() });
    }

    /// The counters so far.
    pub fn tally(&self) -> Tally {
        self.tally
    }

    /// Resets the longest queue.
    pub fn forget_longest_queue(&mut self) {
        self.tally.longest_queue = 0;
    }

    /// Bytes that wait for bandwidth.
    pub fn waiting(&self, now: u64) -> u64 {
        let time = u128::from(self.busy_until.saturating_sub(now));
        (time * u128::from(self.config.bandwidth) / BYTE_SECONDS) as u64
    }

    /// Decides the fate of a frame that enters at `now`. Returns the frame with which a router
    /// answers its sender, if one does.
    pub fn launch(&mut self, mut frame: Vec<u8>, now: u64, random: &mut Random) -> Option<Vec<u8>> {
        self.tally.taken += 1;
        self.tally.bytes += frame.len() as u64;
        if self.is_lost(now, random) {
            self.tally.lost += 1;
            return None;
        }
        if let Some(mtu) = self.config.mtu
            && packet::length(&frame).is_some_and(|length| length > mtu.bytes)
        {
            if mtu.router == Router::Answers
                && let Some(pieces) = packet::split(&frame, mtu.bytes)
            {
                for piece in pieces {
                    self.queue(piece, now, random);
                }
                return None;
            }
            self.tally.lost += 1;
            self.tally.too_big += 1;
            return (mtu.router == Router::Answers).then(|| packet::too_big(&frame, mtu.bytes)).flatten();
        }
        if random.chance(self.config.corruption) && packet::damage(&mut frame, random) {
            self.tally.corrupted += 1;
        }
        self.queue(frame, now, random);
        None
    }

    /// Puts a frame in flight, without faults.
    pub fn inject(&mut self, frame: Vec<u8>, now: u64) {
        self.fly(frame, now + self.config.delay);
    }

    /// The next frame that is due at `now`. The caller reports its fate by [`Lane::delivered`].
    pub fn arrive(&mut self, now: u64) -> Option<Vec<u8>> {
        let entry = self.flying.first_entry()?;
        (entry.key().0 <= now).then(|| entry.remove())
    }

    /// Counts the fate of a frame that arrived: `taken`, or dropped for want of room.
    pub fn delivered(&mut self, taken: bool) {
        if taken {
            self.tally.delivered += 1;
        } else {
            self.tally.lost += 1;
        }
    }

    /// When the next frame in flight is due.
    pub fn next_deadline(&self) -> Option<u64> {
        self.flying.first_key_value().map(|((due, _), _)| *due)
    }

    fn is_lost(&mut self, now: u64, random: &mut Random) -> bool {
        let Direction { loss, burst, outages, .. } = &self.config;
        if outages.iter().any(|(from, to)| (*from..*to).contains(&now)) {
            return true;
        }
        if let Some(burst) = burst {
            let changes = random.chance(if self.bad { burst.end.max(1) } else { burst.begin });
            self.bad ^= changes;
            if self.bad && random.chance(burst.loss) {
                return true;
            }
        }
        random.chance(*loss)
    }

    /// The queue and the stages after it.
    fn queue(&mut self, mut frame: Vec<u8>, now: u64, random: &mut Random) {
        let bandwidth = self.config.bandwidth;
        let mut leaves = now;
        if bandwidth > 0 {
            let waiting = self.waiting(now);
            self.average = self.average - self.average / 16 + waiting;
            if waiting + frame.len() as u64 > self.config.queue || self.congested(&mut frame, waiting, random)
            {
                self.tally.lost += 1;
                self.tally.overflowed += 1;
                return;
            }
            self.tally.longest_queue = self.tally.longest_queue.max(waiting + frame.len() as u64);
            let spent = frame.len() as u128 * BYTE_SECONDS / u128::from(bandwidth);
            self.busy_until = self.busy_until.max(now) + spent as u64;
            leaves = self.busy_until;
        }
        let Direction { delay, jitter, hold, reordering, duplication, .. } = self.config;
        let mut due = leaves + delay;
        if random.chance(reordering) {
            due += random.below(hold + 1);
            self.tally.reordered += 1;
        } else {
            if jitter > 0 {
                due += random.below(jitter + 1);
            }
            due = due.max(self.last_due);
            self.last_due = due;
        }
        if random.chance(duplication) {
            let again = due + random.below(hold + 1);
            self.tally.duplicated += 1;
            self.fly(frame.clone(), again);
        }
        self.fly(frame, due);
    }

    /// Marks the frame if the queue is long; returns whether to drop it instead.
    fn congested(&mut self, frame: &mut [u8], waiting: u64, random: &mut Random) -> bool {
        match self.config.marking {
            Marking::None => false,
            Marking::Threshold(bytes) => {
                if waiting >= bytes && packet::mark(frame) {
                    self.tally.marked += 1;
                }
                false
            }
            Marking::Red { low, high, permille } => {
                let average = self.average / 16;
                let over = average.saturating_sub(low);
                let chance = if average >= high {
                    1000
                } else {
                    (u64::from(permille) * over / high.saturating_sub(low).max(1)) as u32
                };
                if chance == 0 || !random.chance(chance) {
                    return false;
                }
                let marked = packet::mark(frame);
                self.tally.marked += u64::from(marked);
                !marked
            }
        }
    }

    fn fly(&mut self, frame: Vec<u8>, due: u64) {
        self.age += 1;
        self.flying.insert((due, self.age), frame);
    }
}
