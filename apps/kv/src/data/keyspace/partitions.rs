//! The partitions that a shard holds, and the way from a key to its partition.
//!
//! 1. A shard always holds its own partition, except while another shard has it. Commands whose
//!    keys are its own need no other.
//! 2. To run a command with keys of several shards, a shard is given the partitions of all others
//!    as *guests*, and gives them back afterwards.
//! 3. Without guests every key is looked up in the own partition: nothing is hashed, and a store of
//!    one shard pays one comparison.

use sietch_structures::XorShift64Star;

use super::database::Database;
use super::entry::{Entry, Weight};
use super::key::DatabaseKey;
use super::partition::Partition;
use crate::data::index::CURSOR_BITS;
use crate::foundation::placement::Placement;

/// The partitions that a shard holds; see the module documentation.
pub(super) struct Partitions {
    pub(super) own: Partition,
    /// With the numbers of their shards, in order.
    guests: Vec<(usize, Partition)>,
    placement: Placement,
    /// The number of the last change of a key that clients watch or wait for: the order in which
    /// keys of several partitions have become ready.
    changes: u64,
}

impl Partitions {
    pub(super) fn new(own: Partition, placement: Placement) -> Self {
        Self { own, guests: Vec::new(), placement, changes: 0 }
    }

    pub(super) fn placement(&self) -> Placement {
        self.placement
    }

    /// Adds the partitions of the other shards.
    pub(super) fn host(&mut self, mut guests: Vec<(usize, Partition)>) {
        debug_assert!(self.guests.is_empty(), "guests are there already");
        debug_assert!(guests.iter().all(|&(shard, _)| shard != self.placement.own()), "its own partition");
        guests.sort_unstable_by_key(|&(shard, _)| shard);
        self.guests = guests;
    }

    /// Gives the partitions of the other shards back.
    pub(super) fn release_guests(&mut self) -> Vec<(usize, Partition)> {
        std::mem::take(&mut self.guests)
    }

    /// The partition of a key. It must be held, and without guests it is the own one.
    #[inline]
    pub(super) fn of(&self, key: &[u8]) -> &Partition {
        if self.guests.is_empty() { &self.own } else { self.held(self.placement.shard_of(key)) }
    }

    /// The same, to be changed.
    #[inline]
    pub(super) fn of_mut(&mut self, key: &[u8]) -> &mut Partition {
        if self.guests.is_empty() { &mut self.own } else { self.held_mut(self.placement.shard_of(key)) }
    }

    #[cold]
    fn held(&self, shard: usize) -> &Partition {
        let guest = self.guests.iter().find(|&&(number, _)| number == shard);
        guest.map_or(&self.own, |(_, partition)| partition)
    }

    #[cold]
    fn held_mut(&mut self, shard: usize) -> &mut Partition {
        let guest = self.guests.iter_mut().find(|(number, _)| *number == shard);
        guest.map_or(&mut self.own, |(_, partition)| partition)
    }

    /// Whether all partitions are held, as in an exclusive section.
    pub(super) fn has_guests(&self) -> bool {
        !self.guests.is_empty()
    }

    /// The partition of a key, or `None` if another shard has it.
    pub(super) fn find_mut(&mut self, key: &[u8]) -> Option<&mut Partition> {
        let is_held = !self.guests.is_empty() || self.placement.is_own(key);
        is_held.then(|| self.of_mut(key))
    }

    /// All partitions that are held, with the numbers of their shards, in order.
    pub(super) fn numbered(&self) -> impl Iterator<Item = (usize, &Partition)> {
        let own = self.placement.own();
        let before = self.guests.partition_point(|&(shard, _)| shard < own);
        let (low, high) = self.guests.split_at(before);
        let low = low.iter().map(|(shard, partition)| (*shard, partition));
        let high = high.iter().map(|(shard, partition)| (*shard, partition));
        low.chain([(own, &self.own)]).chain(high)
    }

    /// The same without the numbers.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Partition> {
        self.numbered().map(|(_, partition)| partition)
    }

    /// The same, to be changed, the own one first.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Partition> {
        [&mut self.own].into_iter().chain(self.guests.iter_mut().map(|(_, partition)| partition))
    }

    /// The partition at this position of [`Partitions::iter_mut`], or the own one.
    pub(super) fn nth_mut(&mut self, position: usize) -> &mut Partition {
        match position.checked_sub(1).and_then(|guest| self.guests.get_mut(guest)) {
            Some((_, partition)) => partition,
            None => &mut self.own,
        }
    }

    /// All partitions that are held, and the counter of changes.
    pub(super) fn with_changes(&mut self) -> (impl Iterator<Item = &mut Partition>, &mut u64) {
        let guests = self.guests.iter_mut().map(|(_, partition)| partition);
        ([&mut self.own].into_iter().chain(guests), &mut self.changes)
    }

    /// The bytes that all entries take.
    #[inline]
    pub(super) fn weight(&self) -> Weight {
        let mut weight = self.own.weight;
        for (_, guest) in &self.guests {
            weight.memory += guest.weight.memory;
            weight.dumped += guest.weight.dumped;
        }
        weight
    }

    /// Notes that a key was changed.
    #[inline]
    pub(super) fn signal(&mut self, database: usize, key: &[u8]) {
        if self.of(key).is_awaited() {
            self.changes += 1;
            let change = self.changes;
            self.of_mut(key).notify_watchers(change, database, key);
        }
    }

    /// Whether there are changed keys that clients wait for.
    #[inline]
    pub(super) fn has_ready(&self) -> bool {
        self.own.first_ready().is_some() || self.guests.iter().any(|(_, guest)| guest.first_ready().is_some())
    }

    /// The key that has become ready first, of those that clients wait for.
    pub(super) fn pop_ready(&mut self) -> Option<DatabaseKey> {
        let ready = self.iter_mut().filter(|partition| partition.first_ready().is_some());
        ready.min_by_key(|partition| partition.first_ready())?.pop_ready()
    }

    /// Keys of a database.
    pub(super) fn len(&self, database: usize) -> usize {
        self.iter()
            .filter_map(|partition| partition.databases.get(database))
            .map(|here| here.index.len())
            .sum()
    }

    /// One of the partitions, each in proportion to its `size`.
    pub(super) fn random(
        &self,
        random: &mut XorShift64Star,
        size: impl Fn(&Partition) -> usize,
    ) -> &Partition {
        if self.guests.is_empty() {
            return &self.own;
        }
        let all: usize = self.iter().map(&size).sum();
        let mut left = random.word() % (all as u64).max(1);
        let chosen = self.iter().find(|partition| {
            let here = size(partition) as u64;
            let is_here = left < here;
            left = left.saturating_sub(here);
            is_here
        });
        chosen.unwrap_or(&self.own)
    }

    /// Visits about `count` keys of a database and returns the next cursor, 0 at the end. A cursor
    /// is a position in the index of a shard, and in the bits above it the number of the shard:
    /// exact in the doubles that some clients keep numbers in, up to 32 shards.
    pub(super) fn scan(
        &self,
        database: usize,
        cursor: u64,
        count: usize,
        visit: &mut dyn FnMut(&Entry),
    ) -> u64 {
        let (first, from) = ((cursor >> CURSOR_BITS) as usize, cursor & ((1 << CURSOR_BITS) - 1));
        let mut left = count.max(1);
        for (shard, partition) in self.numbered().skip_while(|&(shard, _)| shard < first) {
            let index = partition.databases.get(database).map(Database::index);
            let Some(index) = index.filter(|index| !index.is_empty()) else { continue };
            let base = (shard as u64) << CURSOR_BITS;
            if left == 0 {
                return base;
            }
            let from = if shard == first { from } else { 0 };
            let next = index.scan(from, left, &mut |entry| {
                left = left.saturating_sub(1);
                visit(entry);
            });
            if next != 0 {
                return base | next;
            }
        }
        0
    }
}
