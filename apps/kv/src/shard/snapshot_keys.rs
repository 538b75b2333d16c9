//! Which keys a snapshot holds, while the log after it is replayed.
//!
//! Keys are identified by 128 bits of a keyed hash, and each has one sequence: a collision would
//! need 2^64 keys.

use std::hash::Hasher as _;

use hashbrown::HashTable;
use siphasher::sip128::{Hasher128 as _, SipHasher13};

/// The keys that the snapshot holds, each with the sequence up to which its dump includes the log's
/// effects.
pub(super) struct SnapshotKeys {
    table: HashTable<DumpedKey>,
    seeds: (u64, u64),
}

/// The hash of a key's name, and the sequence of its dump.
struct DumpedKey {
    name: (u64, u64),
    as_of: u64,
}

impl SnapshotKeys {
    pub(super) fn new(first: u64, second: u64) -> Self {
        Self { table: HashTable::new(), seeds: (first, second) }
    }

    /// Notes that the snapshot holds a key as it was after the record `as_of` of the log.
    pub(super) fn insert(&mut self, database: u64, key: &[u8], as_of: u64) {
        let name = self.name(database, key);
        match self.table.find_mut(name.0, |dumped| dumped.name == name) {
            Some(dumped) => dumped.as_of = as_of,
            None => {
                self.table.insert_unique(name.0, DumpedKey { name, as_of }, |dumped| dumped.name.0);
            }
        }
    }

    /// Whether the snapshot holds a key.
    pub(super) fn contains(&self, database: u64, key: &[u8]) -> bool {
        let name = self.name(database, key);
        self.table.find(name.0, |dumped| dumped.name == name).is_some()
    }

    /// Whether the dump of a key includes the effects of the record `sequence`.
    pub(super) fn covers(&self, database: u64, key: &[u8], sequence: u64) -> bool {
        if self.table.is_empty() {
            return false;
        }
        let name = self.name(database, key);
        self.table.find(name.0, |dumped| dumped.name == name).is_some_and(|dumped| sequence <= dumped.as_of)
    }

    fn name(&self, database: u64, key: &[u8]) -> (u64, u64) {
        let mut hasher = SipHasher13::new_with_keys(self.seeds.0, self.seeds.1);
        hasher.write_u64(database);
        hasher.write(key);
        hasher.finish128().as_u64()
    }

    /// Forgets all keys, and frees their memory.
    pub(super) fn clear(&mut self) {
        self.table = HashTable::new();
    }
}
