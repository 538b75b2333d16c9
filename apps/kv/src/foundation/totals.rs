//! What all shards of a store have together: memory, bytes of a snapshot, clients.
//!
//! 1. Each shard publishes its share here, once an iteration, and reads the sum of the others.
//!    Limits (`maxmemory`, the room in the log, `maxclients`) are checked against the sum.
//! 2. A sum may be as old as the last iteration of each shard. Where that is not good enough, a
//!    shard [claims](Totals::claim) what it is about to add: of two that claim at the same time, at
//!    least one sees the other's claim.
//! 3. [`Numbers`] count up over all shards, so that what two shards have numbered has an order.
//! 4. The counters are the only memory that the shards share.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The share of one shard, in a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Share {
    memory: AtomicU64,
    dumped: AtomicU64,
    clients: AtomicU64,
}

/// Commands that were refused because a snapshot would have no room for what they add.
#[derive(Debug, Default)]
pub(crate) struct Refusals {
    count: AtomicU64,
    growth: AtomicU64,
}

impl Refusals {
    /// Notes a refusal of so many bytes.
    pub(crate) fn note(&self, growth: u64) {
        self.count.fetch_add(1, Ordering::Relaxed);
        self.growth.store(growth, Ordering::Relaxed);
    }

    /// How many there were.
    pub(crate) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// The bytes of the last one; 0 if there was none.
    pub(crate) fn growth(&self) -> u64 {
        self.growth.load(Ordering::Relaxed)
    }
}

/// What some shards have together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Sums {
    /// Bytes in use, as `maxmemory` counts them.
    pub memory: u64,
    /// Bytes that all entries take in a snapshot.
    pub dumped: u64,
}

/// Numbers that all shards take from one counter, from 0 on.
#[derive(Debug, Clone, Default)]
pub(crate) struct Numbers(Arc<AtomicU64>);

impl Numbers {
    /// A number that is larger than all before it.
    pub(crate) fn next(&self) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed)
    }
}

/// The shares of all shards.
#[derive(Debug)]
pub struct Totals {
    shares: Box<[Share]>,
    /// The numbers of clients.
    pub(crate) client_numbers: Numbers,
    /// The numbers of entries of the slow log.
    pub(crate) slow_numbers: Numbers,
    refusals: Arc<Refusals>,
}

impl Totals {
    /// The totals of so many shards.
    pub fn new(shards: usize) -> Self {
        Self {
            shares: (0..shards).map(|_| Share::default()).collect(),
            client_numbers: Numbers::default(),
            slow_numbers: Numbers::default(),
            refusals: Arc::default(),
        }
    }

    /// What was refused for lack of room.
    pub(crate) fn refusals(&self) -> Arc<Refusals> {
        Arc::clone(&self.refusals)
    }

    /// Publishes the bytes of shard `own`.
    pub(crate) fn publish(&self, own: usize, memory: u64, dumped: u64) {
        let Some(share) = self.shares.get(own) else { return };
        share.memory.store(memory, Ordering::Relaxed);
        share.dumped.store(dumped, Ordering::Relaxed);
    }

    /// Claims that shard `own` will have `dumped` bytes, and returns what the others have or have
    /// claimed. `None` if that is at most `slack` more than it has published: then the last sum is
    /// good enough.
    pub(crate) fn claim(&self, own: usize, dumped: u64, slack: u64) -> Option<u64> {
        let share = self.shares.get(own)?;
        if dumped <= share.dumped.load(Ordering::Relaxed).saturating_add(slack) {
            return None;
        }
        // Sequentially consistent: a shard stores its claim before it reads those of others.
        share.dumped.store(dumped, Ordering::SeqCst);
        let others = self.shares.iter().enumerate().filter(|&(number, _)| number != own);
        Some(others.map(|(_, share)| share.dumped.load(Ordering::SeqCst)).sum())
    }

    /// Counts a client of shard `own`.
    pub(crate) fn add_client(&self, own: usize) {
        self.shares[own].clients.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes that a client of shard `own` has left.
    pub(crate) fn remove_client(&self, own: usize) {
        self.shares[own].clients.fetch_sub(1, Ordering::Relaxed);
    }

    /// The clients of all shards.
    pub(crate) fn clients(&self) -> u64 {
        self.shares.iter().map(|share| share.clients.load(Ordering::Relaxed)).sum()
    }

    /// What all shards but `own` have together.
    pub(crate) fn others(&self, own: usize) -> Sums {
        let mut sums = Sums::default();
        for (_, share) in self.shares.iter().enumerate().filter(|&(number, _)| number != own) {
            sums.memory += share.memory.load(Ordering::Relaxed);
            sums.dumped += share.dumped.load(Ordering::Relaxed);
        }
        sums
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_own_share_is_not_among_the_others() {
        let totals = Totals::new(3);
        for own in 0..3 {
            let share = 1 << (8 * own as u64);
            totals.publish(own, share, 2 * share);
            totals.add_client(own);
        }
        totals.publish(1, 0x200, 0);
        assert_eq!(totals.others(2), Sums { memory: 0x201, dumped: 2 });
        assert_eq!(totals.others(0).memory, 0x1_0200);
        totals.remove_client(1);
        assert_eq!(totals.clients(), 2);
    }

    #[test]
    fn a_claim_is_seen_by_others_before_it_is_published() {
        let totals = Totals::new(2);
        assert_eq!(totals.claim(0, 10, 10), None, "it is within the slack");
        assert_eq!(totals.claim(0, 11, 10), Some(0));
        assert_eq!(totals.claim(1, 100, 10), Some(11));
        totals.publish(0, 0, 5);
        assert_eq!(totals.claim(1, 120, 10), Some(5));
    }
}
