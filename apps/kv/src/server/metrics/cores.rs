//! The counters of several cores: their sums, and some of each shard.
//!
//! 1. A member copies its counters into memory that core 0 reads ([`MemberCounters::update`]):
//!    before it sleeps and, while it is busy, once in [`sietch::METRICS_INTERVAL`]. Then it wakes
//!    core 0, if that sleeps, because core 0 alone publishes pages. A member whose counters do not
//!    change has no timer and wakes nothing.
//! 2. Core 0 adds them to its own ([`SharedCounters::sum`]), and shows some of each shard
//!    ([`SharedCounters::shards`]).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use sietch::disk::DiskQueue;
use sietch::nic::NicQueue;
use sietch_ring::thread_doorbell::EventDoorbell;

use super::store::{Entries, store};
use crate::server::reactor::Reactor;

/// What is shown of each shard.
const OF_SHARD: [&str; 6] =
    ["clients", "commands", "exclusive_sections", "forwarded", "keys", "memory_bytes"];

/// The counters of all members, in the order of their cores.
#[derive(Debug, Clone, Default)]
pub(super) struct SharedCounters(Arc<[Box<[AtomicU64]>]>);

impl SharedCounters {
    /// Room for so many counters of each of so many members.
    pub(super) fn new(members: usize, counters: usize) -> Self {
        let zeros = || (0..counters).map(|_| AtomicU64::new(0)).collect();
        Self((0..members).map(|_| zeros()).collect())
    }

    /// Adds those of all members to core 0's.
    pub(super) fn sum(&self, entries: &mut Entries) {
        for member in &*self.0 {
            for ((name, _, value), counter) in entries.iter_mut().zip(member) {
                let counter = counter.load(Ordering::Relaxed);
                *value = if name.starts_with("longest_") { counter.max(*value) } else { *value + counter };
            }
        }
    }

    /// Some of each shard, if there are several. `own`: core 0's.
    pub(super) fn shards(&self, own: &Entries) -> Entries {
        if self.0.is_empty() {
            return Entries::new();
        }
        let mut shown = Entries::new();
        for shard in 0..=self.0.len() {
            for (index, (name, kind, value)) in own.iter().enumerate() {
                if !OF_SHARD.contains(&name.as_str()) {
                    continue;
                }
                let member = shard.checked_sub(1).map(|member| &self.0[member]);
                let value = member.map_or(*value, |member| member[index].load(Ordering::Relaxed));
                shown.push((format!("{shard}.{name}"), *kind, value));
            }
        }
        shown
    }

    /// The part of each member. `coordinator` is the doorbell of core 0.
    pub(super) fn members(&self, coordinator: &EventDoorbell) -> Vec<MemberCounters> {
        (0..self.0.len())
            .map(|member| MemberCounters {
                member,
                shared: self.clone(),
                coordinator: coordinator.clone(),
                left: Vec::new(),
                next: 0,
            })
            .collect()
    }
}

/// A member's counters, for core 0 to show.
#[derive(Debug)]
pub(in crate::server) struct MemberCounters {
    member: usize,
    shared: SharedCounters,
    coordinator: EventDoorbell,
    /// The values that it left last.
    left: Vec<u64>,
    next: u64,
}

impl MemberCounters {
    /// Whether a busy member should update them.
    pub(in crate::server) fn is_due(&self, now: u64) -> bool {
        now >= self.next
    }

    /// Leaves the current values. Returns when to call it again if it is too early for changed
    /// ones.
    pub(in crate::server) fn update<Q: NicQueue, D: DiskQueue>(
        &mut self,
        reactor: &Reactor<Q, D>,
        now: u64,
    ) -> Option<u64> {
        // While core 0 has the shard, they stay as they are.
        let shard = reactor.shard()?;
        let values: Vec<u64> = store(reactor, shard).into_iter().map(|(_, _, value)| value).collect();
        self.leave(values, now)
    }

    fn leave(&mut self, values: Vec<u64>, now: u64) -> Option<u64> {
        let changed = values != self.left;
        if now < self.next {
            return changed.then_some(self.next);
        }
        self.next = now.saturating_add(sietch::METRICS_INTERVAL);
        if changed {
            for (counter, value) in self.shared.0[self.member].iter().zip(&values) {
                counter.store(*value, Ordering::Relaxed);
            }
            self.left = values;
            self.coordinator.notify();
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use sietch::Kind;

    use super::*;

    #[test]
    fn sums_have_every_core_and_shards_their_own() {
        let shared = SharedCounters::new(2, 3);
        let mut members = shared.members(&EventDoorbell::new().expect("a descriptor"));
        let own: Entries = [("commands", 1), ("longest_iteration_ns", 7), ("keys", 3)]
            .map(|(name, value)| (name.to_owned(), Kind::Counter, value))
            .into();
        assert_eq!(members[0].leave(vec![10, 5, 30], 1), None);
        assert_eq!(members[1].leave(vec![100, 9, 300], 1), None);
        let mut sums = own.clone();
        shared.sum(&mut sums);
        assert_eq!(sums.iter().map(|(_, _, value)| *value).collect::<Vec<_>>(), [111, 9, 333]);
        let shards = shared.shards(&own);
        let shown: Vec<_> = shards.iter().map(|(name, _, value)| (name.as_str(), *value)).collect();
        let expected = [
            ("0.commands", 1),
            ("0.keys", 3),
            ("1.commands", 10),
            ("1.keys", 30),
            ("2.commands", 100),
            ("2.keys", 300),
        ];
        assert_eq!(shown, expected);
        assert!(SharedCounters::default().shards(&own).is_empty(), "one shard has no page of its own");
    }

    #[test]
    fn changes_that_come_too_early_are_left_later_and_an_idle_member_has_no_timer() {
        let shared = SharedCounters::new(1, 1);
        let mut member = shared.members(&EventDoorbell::new().expect("a descriptor")).remove(0);
        assert_eq!(member.leave(vec![1], 1), None);
        let due = 1 + sietch::METRICS_INTERVAL;
        assert_eq!(member.leave(vec![2], 2), Some(due));
        assert_eq!(shared.0[0][0].load(Ordering::Relaxed), 1);
        assert_eq!(member.leave(vec![2], due), None);
        assert_eq!(shared.0[0][0].load(Ordering::Relaxed), 2);
        assert_eq!(member.leave(vec![2], due + 1), None, "nothing has changed");
    }
}
