//! The part of the data set that one shard owns: its keys, and what is known by key.
//!
//! 1. Its databases hold only keys of the shard's slots. All partitions together are the data set.
//! 2. A partition moves to another shard as a value, as a whole, and the other shard changes it
//!    ([`Partitions`](super::partitions::Partitions)). So everything that a change of a key
//!    concerns is here: the bytes that are counted, the clients that watch or wait for the key, the
//!    snapshot that has dumped a part of it, and what waits to be freed.
//! 3. Clients may be those of any shard. Their numbers are unique only together with their shard
//!    ([`Waiter`]).

use std::collections::{HashMap, HashSet, VecDeque};

use super::candidates::Candidates;
use super::clock::{NEVER, Now};
use super::database::{Database, Expires};
use super::entry::{Entry, Weight};
use super::key::DatabaseKey;
use super::partial_dump::PartialDump;
use crate::data::index::{Index, Seeds};
use crate::data::value::Value;
use crate::foundation::client_id::ClientId;

/// Elements from which on a value is freed in slices: to free fewer takes a fraction of a
/// millisecond.
pub(super) const HUGE: usize = 4096;

#[derive(Debug, Default)]
struct Watched {
    version: u64,
    watchers: usize,
}

/// A client that waits for a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Waiter {
    /// The client's shard.
    pub shard: usize,
    /// The client.
    pub client: ClientId,
    /// The type of value that serves it, as TYPE shows it.
    pub type_name: &'static str,
    /// Which wait of its shard's clients this is.
    pub number: u64,
}

/// The part of the data set that one shard owns; see the module documentation.
pub(crate) struct Partition {
    pub(super) databases: Vec<Database>,
    /// The bytes that its entries take.
    pub(super) weight: Weight,
    /// Incremented by FLUSHALL, FLUSHDB and SWAPDB: a running snapshot must begin again.
    pub(super) generation: u64,
    /// The large value that a running snapshot has dumped in part.
    pub partial_dump: Option<PartialDump>,
    watched: HashMap<DatabaseKey, Watched>,
    version: u64,
    /// The clients that wait for each key, oldest first.
    waiting: HashMap<DatabaseKey, VecDeque<Waiter>>,
    /// Keys that clients wait for and that were changed, each with the number of the change.
    ready: VecDeque<(u64, DatabaseKey)>,
    /// The same keys, to be found.
    is_ready: HashSet<DatabaseKey>,
    dead_indexes: Vec<Index<Entry>>,
    dead_values: Vec<Value>,
    dead_expires: Vec<Expires>,
    pub(super) candidates: Candidates,
}

impl Partition {
    /// An empty partition of so many databases.
    pub(super) fn new(databases: usize, seeds: &mut Seeds) -> Self {
        Self { databases: (0..databases).map(|_| Database::new(seeds.next())).collect(), ..Self::vacant() }
    }

    /// What is left where a partition was taken away: no databases.
    pub(super) fn vacant() -> Self {
        Self {
            databases: Vec::new(),
            weight: Weight::default(),
            generation: 0,
            partial_dump: None,
            watched: HashMap::new(),
            version: 0,
            waiting: HashMap::new(),
            ready: VecDeque::new(),
            is_ready: HashSet::new(),
            dead_indexes: Vec::new(),
            dead_values: Vec::new(),
            dead_expires: Vec::new(),
            candidates: Candidates::default(),
        }
    }

    /// The numbered databases.
    pub(crate) fn databases(&self) -> &[Database] {
        &self.databases
    }

    /// Changes with FLUSHALL, FLUSHDB and SWAPDB.
    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    /// Whether clients watch or wait for any key.
    #[inline]
    pub(crate) fn is_awaited(&self) -> bool {
        !self.watched.is_empty() || !self.waiting.is_empty()
    }

    /// Notes a key's change, which has this number.
    pub(super) fn notify_watchers(&mut self, change: u64, database: usize, key: &[u8]) {
        let database_key = (database, key.into());
        if let Some(watched) = self.watched.get_mut(&database_key) {
            self.version += 1;
            watched.version = self.version;
        }
        if self.waiting.contains_key(&database_key) && self.is_ready.insert(database_key.clone()) {
            self.ready.push_back((change, database_key));
        }
    }

    /// The number of the change by which a key became ready first.
    #[inline]
    pub(super) fn first_ready(&self) -> Option<u64> {
        self.ready.front().map(|&(change, _)| change)
    }

    /// Takes that key.
    pub(super) fn pop_ready(&mut self) -> Option<DatabaseKey> {
        let (_, database_key) = self.ready.pop_front()?;
        self.is_ready.remove(&database_key);
        Some(database_key)
    }

    /// Forgets all that are ready.
    pub(super) fn clear_ready(&mut self) {
        self.ready.clear();
        self.is_ready.clear();
    }

    /// Starts to watch a key and returns its version.
    pub(super) fn watch(&mut self, database_key: DatabaseKey) -> u64 {
        let watched = self.watched.entry(database_key).or_default();
        watched.watchers += 1;
        watched.version
    }

    /// Ends one watch of a key.
    pub(super) fn unwatch(&mut self, database_key: &DatabaseKey) {
        if let Some(watched) = self.watched.get_mut(database_key) {
            watched.watchers -= 1;
            if watched.watchers == 0 {
                self.watched.remove(database_key);
            }
        }
    }

    /// The version of a watched key.
    pub(super) fn version(&self, database_key: &DatabaseKey) -> u64 {
        self.watched.get(database_key).map_or(0, |watched| watched.version)
    }

    /// Puts a client behind those that wait for a key.
    pub(super) fn wait(&mut self, database_key: DatabaseKey, waiter: Waiter) {
        self.waiting.entry(database_key).or_default().push_back(waiter);
    }

    /// Takes a client out of those that wait for a key.
    pub(super) fn end_wait(&mut self, database_key: &DatabaseKey, shard: usize, client: ClientId) {
        if let Some(queue) = self.waiting.get_mut(database_key) {
            queue.retain(|waiter| (waiter.shard, waiter.client) != (shard, client));
            if queue.is_empty() {
                self.waiting.remove(database_key);
            }
        }
    }

    /// The clients that wait for a key, oldest first.
    pub(super) fn waiters(&self, database_key: &DatabaseKey) -> impl Iterator<Item = Waiter> {
        self.waiting.get(database_key).into_iter().flatten().copied()
    }

    /// The clients that wait for changed keys whose values can serve them.
    pub(super) fn ready_waiters(&self) -> impl Iterator<Item = Waiter> {
        self.ready.iter().flat_map(|(_, ready)| {
            let found = self.databases[ready.0].index.get(&ready.1).map(|entry| entry.value().type_name());
            self.waiters(ready).filter(move |waiter| found == Some(waiter.type_name))
        })
    }

    /// Sets a key's expiry; whether it is there.
    pub(super) fn set_expiry(&mut self, database: usize, key: &[u8], deadline: u64) -> bool {
        let database = &mut self.databases[database];
        let Some(entry) = database.index.get_mut(key) else {
            return false;
        };
        let (before, old) = (entry.weight(), entry.expire_at());
        entry.set_expire_at(deadline);
        let after = entry.weight();
        database.weight.exchange(before, after);
        self.weight.exchange(before, after);
        database.reschedule(key, old, deadline);
        true
    }

    /// Removes an entry, without signal or effect.
    pub(super) fn take(&mut self, database: usize, key: &[u8]) -> Option<Entry> {
        let database = &mut self.databases[database];
        let table = database.index.growth();
        let entry = database.index.remove(key)?;
        let mut before = entry.weight();
        before.memory += table;
        let after = Weight { memory: database.index.growth(), dumped: 0 };
        database.weight.exchange(before, after);
        self.weight.exchange(before, after);
        database.reschedule(key, entry.expire_at(), NEVER);
        Some(entry)
    }

    /// Changes the index of a database, but none of its entries.
    pub(super) fn arrange(&mut self, database: usize, arrange: impl FnOnce(&mut Index<Entry>)) {
        let Database { index, weight, .. } = &mut self.databases[database];
        let before = Weight { memory: index.growth(), dumped: 0 };
        arrange(index);
        let after = Weight { memory: index.growth(), dumped: 0 };
        weight.exchange(before, after);
        self.weight.exchange(before, after);
    }

    /// Adds an entry with this hash whose key is not there.
    pub(super) fn add(&mut self, database: usize, hash: u64, entry: Entry) {
        let database = &mut self.databases[database];
        let before = Weight { memory: database.index.growth(), dumped: 0 };
        let mut after = entry.weight();
        database.index.insert_new(hash, entry);
        after.memory += database.index.growth();
        database.weight.exchange(before, after);
        self.weight.exchange(before, after);
    }

    /// Sets a key to the entry that `make` builds from the old one. It has the expiry of
    /// the old one if `keep_expiry`. Returns whether the key is a new one.
    pub(super) fn put(
        &mut self,
        database: usize,
        key: &[u8],
        keep_expiry: bool,
        make: impl FnOnce(Option<&Entry>) -> Entry,
    ) -> bool {
        let index = &mut self.databases[database].index;
        let hash = index.hash_of(key);
        let Some(entry) = index.get_hashed_mut(hash, key) else {
            self.add(database, hash, make(None));
            return true;
        };
        let mut new = make(Some(entry));
        let (before, old_expiry) = (entry.weight(), entry.expire_at());
        let expire_at = if keep_expiry { old_expiry } else { NEVER };
        new.set_expire_at(expire_at);
        let after = new.weight();
        let old = std::mem::replace(entry, new);
        if old.value().free_effort() > HUGE {
            self.dead_values.push(old.into_value());
        }
        self.weight.exchange(before, after);
        let database = &mut self.databases[database];
        database.weight.exchange(before, after);
        if old_expiry != expire_at {
            database.reschedule(key, old_expiry, expire_at);
        }
        false
    }

    /// A key whose time is over in database `from` or behind it, and its database. Drops expiries
    /// without a key.
    pub(super) fn due(&mut self, from: usize, now: Now) -> Option<(usize, Box<[u8]>)> {
        for (number, database) in self.databases.iter_mut().enumerate().skip(from) {
            while database.earliest() <= now.unix_ms {
                let Some(&first) = database.expires.first() else { break };
                if let Some(key) = database.expiring_key(first) {
                    return Some((number, key.into()));
                }
                database.expires.pop_first();
            }
        }
        None
    }

    /// Empties one database, or all. Its memory is freed later, in slices. `changes` counts the
    /// changes of keys.
    pub(super) fn flush(&mut self, only: Option<usize>, seeds: &mut Seeds, changes: &mut u64) {
        self.generation += 1;
        for number in 0..self.databases.len() {
            if only.is_some_and(|only| only != number) {
                continue;
            }
            self.signal_database(number, changes);
            let old = std::mem::replace(&mut self.databases[number], Database::new(seeds.next()));
            self.weight.exchange(old.weight, Weight::default());
            if !old.index.is_empty() {
                self.dead_indexes.push(old.index);
                self.dead_expires.push(old.expires);
            }
        }
        self.candidates.clear();
    }

    /// Signals every existing key of a database that clients watch or wait for.
    fn signal_database(&mut self, database: usize, changes: &mut u64) {
        let places: Vec<DatabaseKey> = self
            .watched
            .keys()
            .chain(self.waiting.keys())
            .filter(|database_key| {
                database_key.0 == database && self.databases[database].index.contains(&database_key.1)
            })
            .cloned()
            .collect();
        for database_key in places {
            *changes += 1;
            self.notify_watchers(*changes, database_key.0, &database_key.1);
        }
    }

    /// Exchanges two databases. `changes` counts the changes of keys.
    pub(super) fn swap(&mut self, first: usize, second: usize, changes: &mut u64) {
        self.generation += 1;
        self.signal_database(first, changes);
        self.signal_database(second, changes);
        self.databases.swap(first, second);
        self.signal_database(first, changes);
        self.signal_database(second, changes);
    }

    /// Frees about `limit` entries of flushed databases and large values; how many.
    pub(super) fn free_pending(&mut self, limit: usize) -> usize {
        let mut freed = 0;
        while freed < limit {
            if let Some(value) = self.dead_values.last_mut() {
                let before = value.view().free_effort();
                if value.release(limit - freed) {
                    self.dead_values.pop();
                }
                freed += before.min(limit - freed).max(1);
                continue;
            }
            if let Some(expires) = self.dead_expires.last_mut() {
                if expires.pop_first().is_none() {
                    self.dead_expires.pop();
                }
                freed += 1;
                continue;
            }
            let Some(index) = self.dead_indexes.last_mut() else {
                break;
            };
            let before = index.len();
            if index.release(limit - freed) {
                self.dead_indexes.pop();
            }
            freed += before.min(limit - freed).max(1);
        }
        freed
    }

    /// Drops a value; a large one is freed later, in slices.
    pub(super) fn discard(&mut self, value: Value) {
        if value.view().free_effort() > HUGE {
            self.dead_values.push(value);
        }
    }

    /// Whether flushed databases or large values wait to be freed.
    pub(crate) fn has_pending_frees(&self) -> bool {
        !self.dead_indexes.is_empty() || !self.dead_values.is_empty() || !self.dead_expires.is_empty()
    }
}
