//! The shortest round trip of each path, for congestion control by delay.
//!
//! 1. A flow that starts while others queue cannot measure the round trip without queueing: it
//!    takes their queue for propagation delay. So all flows to one destination share the shortest
//!    round trip that any of them measured.
//! 2. The path may become longer. What counts is therefore the minimum of this time window and of
//!    the one before it, and flows follow it up as well as down. All flows use the
//!    same value, and fairness depends on that.
//! 3. The table is bounded; the entry that was updated least recently is evicted.

use hashbrown::HashMap;

use crate::limits::{PATH_DELAY_WINDOW, PATH_DELAYS};
use crate::packet::Address;

/// What was seen of one path. Nanoseconds.
#[derive(Clone, Copy, Debug)]
struct Seen {
    current: u64,
    before: u64,
    /// When the window began, and when anything was noted last.
    since: u64,
    noted: u64,
}

/// The table.
#[derive(Debug, Default)]
pub(crate) struct PathDelays {
    entries: HashMap<Address, Seen, foldhash::fast::RandomState>,
}

impl PathDelays {
    /// The shortest round trip to `remote`, if any is known.
    pub(crate) fn get(&self, remote: &Address) -> Option<u64> {
        self.entries.get(remote).map(|seen| seen.current.min(seen.before))
    }

    /// Notes a round trip to `remote`; returns the shortest.
    pub(crate) fn note(&mut self, remote: Address, time: u64, now: u64) -> u64 {
        if let Some(seen) = self.entries.get_mut(&remote) {
            let windows = now.saturating_sub(seen.since) / PATH_DELAY_WINDOW;
            if windows > 0 {
                seen.before = if windows == 1 { seen.current } else { time };
                (seen.current, seen.since) = (time, now);
            }
            seen.current = seen.current.min(time);
            seen.noted = now;
            return seen.current.min(seen.before);
        }
        if self.entries.len() >= PATH_DELAYS {
            let oldest = self.entries.iter().min_by_key(|(_, seen)| seen.noted).map(|(address, _)| *address);
            if let Some(oldest) = oldest {
                self.entries.remove(&oldest);
            }
        }
        self.entries.insert(remote, Seen { current: time, before: time, since: now, noted: now });
        time
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flows_share_the_shortest_round_trip_and_follow_a_path_that_becomes_longer() {
        let (mut paths, here, there) = (PathDelays::default(), Address::v4(1), Address::v4(2));
        assert_eq!(paths.note(here, 300, 0), 300);
        assert_eq!(
            (paths.note(here, 100, 1), paths.note(here, 500, 2), paths.note(there, 700, 3)),
            (100, 100, 700)
        );
        // The window before still counts, the one before that no more.
        assert_eq!(paths.note(here, 400, PATH_DELAY_WINDOW), 100);
        assert_eq!(paths.note(here, 450, 2 * PATH_DELAY_WINDOW), 400);
        // After a long time without updates nothing is known.
        assert_eq!(paths.note(here, 900, 9 * PATH_DELAY_WINDOW), 900);
    }

    #[test]
    fn the_table_is_bounded() {
        let mut paths = PathDelays::default();
        paths.note(Address::v4(0), 100, 0);
        for number in 0..2 * PATH_DELAYS as u32 {
            paths.note(Address::v4(number), 200, 1 + u64::from(number));
        }
        assert_eq!(paths.entries.len(), PATH_DELAYS);
        assert_eq!(paths.note(Address::v4(0), 300, 1_000_000), 300);
    }
}
