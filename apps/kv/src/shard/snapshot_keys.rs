//! Which keys a snapshot holds, while the log after it is replayed.
//!
//! 1. Keys are identified by 128 bits of a keyed hash, and each has one sequence: a collision would
//!    need 2^64 keys.
//! 2. Only effects that ran while the snapshot was taken need to know of its keys. So keys are
//!    gathered in the order of the snapshot, without a look at memory elsewhere, and become a table
//!    when the first such effect comes. After most snapshots none comes. They are gathered in
//!    pieces, because a vector of all would be copied each time that it grows.

use std::hash::Hasher as _;

use hashbrown::HashTable;
use siphasher::sip128::{Hasher128 as _, SipHasher13};

/// Keys that are gathered in one piece: 192 KiB.
const PIECE: usize = 8 << 10;

/// The keys that the snapshot holds, each with the sequence up to which its dump includes the log's
/// effects.
pub(super) struct SnapshotKeys {
    /// Those that are not in the table yet. The last one of a name counts.
    gathered: Vec<Vec<DumpedKey>>,
    table: HashTable<DumpedKey>,
    /// The greatest sequence of all.
    latest: u64,
    seeds: (u64, u64),
}

/// The hash of a key's name, and the sequence of its dump.
#[derive(Clone, Copy)]
struct DumpedKey {
    name: (u64, u64),
    as_of: u64,
}

impl SnapshotKeys {
    pub(super) fn new(first: u64, second: u64) -> Self {
        Self { gathered: Vec::new(), table: HashTable::new(), latest: 0, seeds: (first, second) }
    }

    /// Notes that the snapshot holds a key as it was after the record `as_of` of the log.
    pub(super) fn insert(&mut self, database: u64, key: &[u8], as_of: u64) {
        let name = self.name(database, key);
        self.latest = self.latest.max(as_of);
        let mut piece = self.gathered.last_mut();
        match piece.as_mut().and_then(|piece| piece.last_mut()) {
            // A long value is several effects.
            Some(last) if last.name == name => return last.as_of = as_of,
            _ => {}
        }
        match piece.filter(|piece| piece.len() < PIECE) {
            Some(piece) => piece.push(DumpedKey { name, as_of }),
            None => {
                let mut piece = Vec::with_capacity(PIECE);
                piece.push(DumpedKey { name, as_of });
                self.gathered.push(piece);
            }
        }
    }

    /// Whether the snapshot holds a key.
    pub(super) fn contains(&mut self, database: u64, key: &[u8]) -> bool {
        self.find(database, key).is_some()
    }

    /// Whether the dump of a key includes the effects of the record `sequence`.
    pub(super) fn covers(&mut self, database: u64, key: &[u8], sequence: u64) -> bool {
        sequence <= self.latest && self.find(database, key).is_some_and(|as_of| sequence <= as_of)
    }

    fn find(&mut self, database: u64, key: &[u8]) -> Option<u64> {
        self.tabulate();
        let name = self.name(database, key);
        self.table.find(name.0, |dumped| dumped.name == name).map(|dumped| dumped.as_of)
    }

    /// Puts what was gathered into the table.
    fn tabulate(&mut self) {
        let gathered = std::mem::take(&mut self.gathered);
        self.table.reserve(gathered.iter().map(Vec::len).sum(), |dumped| dumped.name.0);
        for new in gathered.into_iter().flatten() {
            match self.table.find_mut(new.name.0, |dumped| dumped.name == new.name) {
                Some(dumped) => dumped.as_of = new.as_of,
                None => {
                    self.table.insert_unique(new.name.0, new, |dumped| dumped.name.0);
                }
            }
        }
    }

    fn name(&self, database: u64, key: &[u8]) -> (u64, u64) {
        let mut hasher = SipHasher13::new_with_keys(self.seeds.0, self.seeds.1);
        hasher.write_u64(database);
        hasher.write(key);
        hasher.finish128().as_u64()
    }

    /// Forgets all keys, and frees their memory.
    pub(super) fn clear(&mut self) {
        *self = Self::new(self.seeds.0, self.seeds.1);
    }
}
