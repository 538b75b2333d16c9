//! One numbered database: an index of entries, and the expiries in order.

use std::collections::BTreeSet;

use super::clock::NEVER;
use super::entry::{Entry, Weight};
use crate::data::index::{Index, Keyed as _};

/// One numbered database.
pub(crate) struct Database {
    pub(super) index: Index<Entry>,
    pub(super) expires: Expires,
    /// The bytes that its entries take, and its index beyond what an empty one does.
    pub(super) weight: Weight,
}

/// (deadline, hash of the key) of every key with an expiry.
///
/// The hash names the key in 8 bytes, whatever its length. Two keys with the same hash of 64 bits
/// and the same deadline share an item: the second one then expires when it is accessed.
pub(super) type Expires = BTreeSet<(u64, u64)>;

impl Database {
    pub(super) fn new(seed: u64) -> Self {
        Self { index: Index::new(seed), expires: Expires::new(), weight: Weight::default() }
    }

    /// Its entries.
    pub(crate) fn index(&self) -> &Index<Entry> {
        &self.index
    }

    /// The bytes that its entries take, and its index beyond what an empty one does.
    #[cfg(test)]
    pub(crate) fn weight(&self) -> Weight {
        self.weight
    }

    /// Average bytes of an entry, with its share of the index.
    pub(crate) fn average(&self) -> usize {
        self.weight.memory / self.index.len().max(1)
    }

    /// Keys with an expiry.
    pub(crate) fn volatile_count(&self) -> usize {
        self.expires.len()
    }

    pub(super) fn earliest(&self) -> u64 {
        self.expires.first().map_or(NEVER, |&(deadline, _)| deadline)
    }

    /// The key with this deadline and this hash.
    pub(super) fn expiring_key(&self, (deadline, hash): (u64, u64)) -> Option<&[u8]> {
        let entry = self.index.find_hashed(hash, |entry| entry.expire_at() == deadline)?;
        Some(entry.key())
    }

    /// Moves an entry's expiry in the ordered set.
    pub(super) fn reschedule(&mut self, key: &[u8], from: u64, to: u64) {
        if from == NEVER && to == NEVER {
            return;
        }
        let hash = self.index.hash_of(key);
        if from != NEVER {
            self.expires.remove(&(from, hash));
        }
        if to != NEVER {
            self.expires.insert((to, hash));
        }
    }
}
