//! What all shards of a store have together: memory, bytes of a snapshot, clients.
//!
//! 1. Each shard publishes its share here, once an iteration, and reads the sum of the others.
//!    Limits (`maxmemory`, the room in the log, `maxclients`) are checked against the sum.
//! 2. The counters are the only memory that the shards share. Nothing is ordered by them, so a sum
//!    may be as old as the last iteration of each shard.

use std::sync::atomic::{AtomicU64, Ordering};

/// The share of one shard, in a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Share {
    memory: AtomicU64,
    dumped: AtomicU64,
    clients: AtomicU64,
}

/// What some shards have together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sums {
    /// Bytes in use, as `maxmemory` counts them.
    pub memory: u64,
    /// Bytes that all entries take in a snapshot.
    pub dumped: u64,
    /// Clients connected.
    pub clients: u64,
}

/// The shares of all shards.
#[derive(Debug)]
pub struct Totals {
    shares: Box<[Share]>,
}

impl Totals {
    /// The totals of so many shards.
    pub fn new(shards: usize) -> Self {
        Self { shares: (0..shards).map(|_| Share::default()).collect() }
    }

    /// Publishes what shard `own` has.
    pub fn publish(&self, own: usize, share: Sums) {
        let Some(slot) = self.shares.get(own) else { return };
        slot.memory.store(share.memory, Ordering::Relaxed);
        slot.dumped.store(share.dumped, Ordering::Relaxed);
        slot.clients.store(share.clients, Ordering::Relaxed);
    }

    /// What all shards but `own` have together.
    pub fn others(&self, own: usize) -> Sums {
        let mut sums = Sums::default();
        for (_, share) in self.shares.iter().enumerate().filter(|&(number, _)| number != own) {
            sums.memory += share.memory.load(Ordering::Relaxed);
            sums.dumped += share.dumped.load(Ordering::Relaxed);
            sums.clients += share.clients.load(Ordering::Relaxed);
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
            totals.publish(own, Sums { memory: share, dumped: 2 * share, clients: 3 * share });
        }
        totals.publish(1, Sums { memory: 0x200, dumped: 0, clients: 0 });
        assert_eq!(totals.others(2), Sums { memory: 0x201, dumped: 2, clients: 3 });
        assert_eq!(totals.others(0).memory, 0x1_0200);
    }
}
