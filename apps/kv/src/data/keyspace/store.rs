//! The data set of a shard, and what belongs to it: users, settings, counters, the journal.

use std::collections::{HashMap, VecDeque};

use sietch_structures::XorShift64Star;

use super::candidates::Candidates;
use super::clock::{NEVER, Now};
use super::database::{Database, Expires};
use super::entry::{Entry, Weight, access_time, fresh_access};
use super::key::DatabaseKey;
use super::partial_dump::{EffectDetail, PartialDump};
use crate::acl::Users;
use crate::data::index::{Index, Seeds};
use crate::data::journal::Journal;
use crate::data::value::Value;
use crate::foundation::client_id::ClientId;
use crate::foundation::metrics::{Metrics, Persistence};
use crate::foundation::observation::Observation;
use crate::foundation::observation::key_events::class;
use crate::foundation::settings::Settings;

/// How SHUTDOWN was requested.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShutdownMode {
    /// Everything recorded becomes durable first.
    Save,
    /// The server ends at once.
    NoSave,
}

/// Elements from which on a value is freed in slices: to free fewer takes a fraction of a
/// millisecond.
const HUGE: usize = 4096;

#[derive(Debug, Default)]
struct Watched {
    version: u64,
    watchers: usize,
}

/// The data set of a shard, and everything else that is not a client.
pub(crate) struct Store {
    pub(super) databases: Vec<Database>,
    /// Limits and policies.
    pub settings: Settings,
    /// Counters.
    pub metrics: Metrics,
    /// What is recorded of commands and keys at run time.
    pub observation: Observation,
    /// The users and their permissions.
    pub users: Users,
    /// Effects that are to be logged.
    pub journal: Journal,
    /// Whether a log is being replayed: nothing expires, nothing is recorded.
    pub replaying: bool,
    /// Whether a value is being built that is recorded as a whole once it is complete. Nothing is
    /// recorded meanwhile.
    pub building: bool,
    /// The large value that a running snapshot has dumped in part.
    pub partial_dump: Option<PartialDump>,
    /// The bytes that all entries take.
    pub weight: Weight,
    /// Most bytes that all entries may take in a snapshot: the room in the log's area.
    pub most_dumped: u64,
    /// Bytes of the clients' buffers.
    pub client_bytes: usize,
    /// The state of the log, for INFO.
    pub persistence: Persistence,
    /// Requested by BGREWRITEAOF, BGSAVE or SAVE; reset by the event loop.
    pub compaction_requested: bool,
    /// Requested by SHUTDOWN.
    pub shutdown_requested: Option<ShutdownMode>,
    /// Incremented by FLUSHALL, FLUSHDB and SWAPDB: a running snapshot must begin again.
    pub generation: u64,
    /// Unix seconds of the last finished snapshot.
    pub last_save: u64,
    /// Monotonic nanoseconds of the first clock reading.
    pub started_ns: u64,
    /// Forty hexadecimal digits that differ from run to run.
    pub run_id: String,
    watched: HashMap<DatabaseKey, Watched>,
    version: u64,
    /// The clients that wait for each key, oldest first.
    pub waiting: HashMap<DatabaseKey, VecDeque<ClientId>>,
    /// Keys that clients wait for and that were changed.
    pub ready: VecDeque<DatabaseKey>,
    dead_indexes: Vec<Index<Entry>>,
    dead_values: Vec<Value>,
    dead_expires: Vec<Expires>,
    pub(super) candidates: Candidates,
    /// Chooses samples. Seeds of hash tables, which must be secret, come from [`Seeds`].
    pub(super) random: XorShift64Star,
    pub(super) seeds: Seeds,
}

impl Store {
    /// An empty store.
    pub(crate) fn new(settings: Settings, seed: u64, commands: usize) -> Self {
        let mut seeds = Seeds::new(seed);
        Self {
            databases: (0..settings.databases.max(1)).map(|_| Database::new(seeds.next())).collect(),
            settings,
            observation: Observation::default(),
            users: Users::new(commands),
            metrics: Metrics::new(commands),
            journal: Journal::default(),
            replaying: false,
            building: false,
            partial_dump: None,
            weight: Weight::default(),
            most_dumped: u64::MAX,
            client_bytes: 0,
            persistence: Persistence::default(),
            compaction_requested: false,
            shutdown_requested: None,
            generation: 0,
            last_save: 0,
            started_ns: 0,
            run_id: format!("{:016x}{:016x}{:08x}", seeds.next(), seeds.next(), seeds.next() as u32),
            watched: HashMap::new(),
            version: 0,
            waiting: HashMap::new(),
            ready: VecDeque::new(),
            dead_indexes: Vec::new(),
            dead_values: Vec::new(),
            dead_expires: Vec::new(),
            candidates: Candidates::default(),
            random: XorShift64Star::new(seeds.next()),
            seeds,
        }
    }

    /// The numbered databases.
    pub(crate) fn databases(&self) -> &[Database] {
        &self.databases
    }

    /// Bytes in use, as `maxmemory` counts them.
    pub(crate) fn used_memory(&self) -> u64 {
        (self.weight.memory + self.client_bytes) as u64
    }

    /// Notes that a key was changed.
    #[inline]
    pub(super) fn signal(&mut self, database: usize, key: &[u8]) {
        if !self.watched.is_empty() || !self.waiting.is_empty() {
            self.notify_watchers(database, key);
        }
    }

    fn notify_watchers(&mut self, database: usize, key: &[u8]) {
        let database_key = (database, key.into());
        if let Some(watched) = self.watched.get_mut(&database_key) {
            self.version += 1;
            watched.version = self.version;
        }
        if self.waiting.contains_key(&database_key) && !self.ready.contains(&database_key) {
            self.ready.push_back(database_key);
        }
    }

    /// Starts to watch a key and returns its version.
    pub(crate) fn watch(&mut self, database_key: DatabaseKey) -> u64 {
        let watched = self.watched.entry(database_key).or_default();
        watched.watchers += 1;
        watched.version
    }

    /// Ends one watch of a key.
    pub(crate) fn unwatch(&mut self, database_key: &DatabaseKey) {
        if let Some(watched) = self.watched.get_mut(database_key) {
            watched.watchers -= 1;
            if watched.watchers == 0 {
                self.watched.remove(database_key);
            }
        }
    }

    /// The version of a watched key.
    pub(crate) fn version(&self, database_key: &DatabaseKey) -> u64 {
        self.watched.get(database_key).map_or(0, |watched| watched.version)
    }

    /// Whether a key exists although its time is over.
    pub(crate) fn is_overdue(&self, database: usize, key: &[u8], now: Now) -> bool {
        self.databases[database].index.get(key).is_some_and(|entry| entry.expire_at() <= now.unix_ms)
    }

    /// Prepares for a change of a key. A snapshot that has dumped a part of it must dump it again,
    /// unless an effect will record the change.
    #[inline]
    pub(super) fn before_change(&mut self, database: usize, key: &[u8]) {
        let records = self.records();
        if let Some(dump) = &mut self.partial_dump
            && !records
        {
            dump.invalidate(database, key);
        }
    }

    pub(super) fn set_expiry(&mut self, database: usize, key: &[u8], deadline: u64) -> bool {
        self.before_change(database, key);
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

    /// Recounts the bytes of an entry that had `before`, or removes an empty collection; whether it
    /// was removed.
    pub(super) fn reweigh(&mut self, database: usize, key: &[u8], before: Weight) -> bool {
        self.before_change(database, key);
        let Database { index, weight, .. } = &mut self.databases[database];
        let Some(entry) = index.get_mut(key) else {
            return false;
        };
        let after = entry.weight();
        weight.exchange(before, after);
        self.weight.exchange(before, after);
        let emptied = entry.value_mut().is_some_and(|value| value.is_empty());
        if emptied {
            self.take(database, key);
        }
        emptied
    }

    /// Removes an entry, without signal or effect.
    pub(super) fn take(&mut self, database: usize, key: &[u8]) -> Option<Entry> {
        self.before_change(database, key);
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

    /// Adds an entry whose key is not there.
    fn add(&mut self, database: usize, entry: Entry) {
        let database = &mut self.databases[database];
        let before = Weight { memory: database.index.growth(), dumped: 0 };
        let mut after = entry.weight();
        database.index.insert(entry);
        after.memory += database.index.growth();
        database.weight.exchange(before, after);
        self.weight.exchange(before, after);
    }

    /// Sets a key to a value, and drops its expiry unless `keep_expiry`.
    pub(super) fn put(&mut self, database: usize, key: &[u8], value: Value, keep_expiry: bool, now: Now) {
        self.put_entry(database, key, keep_expiry, now, |access| Entry::new(key, value, access));
    }

    /// Sets a key to the entry that `make` builds of the word for eviction.
    #[inline(never)]
    fn put_entry(
        &mut self,
        database: usize,
        key: &[u8],
        keep_expiry: bool,
        now: Now,
        make: impl FnOnce(u32) -> Entry,
    ) {
        self.before_change(database, key);
        let access = fresh_access(self.settings.policy, now);
        let Some(entry) = self.databases[database].index.get_mut(key) else {
            self.add(database, make(access));
            return self.observation.events.note(class::NEW, "new", database, key);
        };
        let frequencies = self.settings.policy.counts_frequency();
        let mut new = make(if frequencies { entry.access() } else { access });
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
    }

    /// As [`Store::put`] with a string. A string of the same length and without an expiry is
    /// overwritten in place.
    #[inline]
    pub(super) fn put_string(&mut self, database: usize, key: &[u8], bytes: &[u8], now: Now) {
        if let Some(entry) = self.databases[database].index.get_mut(key)
            && entry.overwrite(bytes)
        {
            if !self.settings.policy.counts_frequency() {
                entry.put_access(access_time(now));
            }
            return;
        }
        self.put_entry(database, key, false, now, |access| Entry::of_string(key, bytes, access));
    }

    /// Sets an existing string to an integer, as an access that keeps its expiry.
    pub(super) fn put_integer(&mut self, database: usize, key: &[u8], integer: i64, now: Now) {
        self.before_change(database, key);
        let Database { index, weight, .. } = &mut self.databases[database];
        if let Some(entry) = index.get_mut(key) {
            entry.note_access(self.settings.policy, now, &mut self.random);
            let before = entry.weight();
            entry.set_integer(integer);
            let after = entry.weight();
            weight.exchange(before, after);
            self.weight.exchange(before, after);
        }
    }

    /// Reads a byte of the memory that commands on these keys will need: table, entry and value. No
    /// read depends on another, so the processor fetches all of them at the same time.
    pub(crate) fn prefetch<'a>(&self, database: usize, keys: impl Iterator<Item = &'a &'a [u8]>) {
        let Some(database) = self.databases.get(database) else { return };
        let mut touched = 0;
        for key in keys {
            if let Some(entry) = database.index.probable(key) {
                touched ^= entry.prefetch();
            }
        }
        std::hint::black_box(touched);
    }

    /// Deletes a key whose time is over and records it.
    pub(super) fn expire(&mut self, database: usize, key: &[u8]) {
        if let Some(entry) = self.take(database, key) {
            self.discard(entry.into_value());
            self.metrics.expired += 1;
            self.observation.events.note(class::EXPIRED, "expired", database, key);
            self.record(database, &[b"DEL", key]);
            self.signal(database, key);
        }
    }

    /// Deletes up to `limit` keys whose time is over; whether more are left.
    pub(crate) fn expire_due(&mut self, now: Now, limit: usize) -> bool {
        let mut left = limit;
        for database in 0..self.databases.len() {
            while self.databases[database].earliest() <= now.unix_ms {
                if left == 0 {
                    return true;
                }
                left -= 1;
                let Some(&first) = self.databases[database].expires.first() else {
                    break;
                };
                match self.databases[database].expiring_key(first).map(Box::<[u8]>::from) {
                    Some(key) => self.expire(database, &key),
                    None => _ = self.databases[database].expires.pop_first(),
                }
            }
        }
        false
    }

    /// Unix milliseconds of the next expiry of any key.
    pub(crate) fn next_expiry(&self) -> Option<u64> {
        self.databases.iter().map(Database::earliest).min().filter(|&at| at != NEVER)
    }

    /// Records an effect for the log.
    #[inline]
    pub(crate) fn record(&mut self, database: usize, arguments: &[&[u8]]) {
        self.record_detail(database, arguments, &EffectDetail::None);
    }

    /// The same, with the detail that a partial dump of the key needs.
    #[inline]
    pub(crate) fn record_detail(&mut self, database: usize, arguments: &[&[u8]], detail: &EffectDetail<'_>) {
        if self.records() {
            self.metrics.effects += 1;
            self.persistence.changes += 1;
            self.journal.append(database, arguments);
            if let Some(dump) = &mut self.partial_dump {
                dump.note_effect(database, arguments, detail);
            }
        }
    }

    /// Whether effects are recorded.
    pub(crate) fn records(&self) -> bool {
        !self.replaying && !self.building && self.journal.enabled()
    }

    /// Empties one database, or all. Its memory is freed later, in slices.
    pub(crate) fn flush(&mut self, only: Option<usize>) {
        self.generation += 1;
        for number in 0..self.databases.len() {
            if only.is_some_and(|only| only != number) {
                continue;
            }
            self.signal_database(number);
            let seed = self.seeds.next();
            let old = std::mem::replace(&mut self.databases[number], Database::new(seed));
            self.weight.exchange(old.weight, Weight::default());
            if !old.index.is_empty() {
                self.dead_indexes.push(old.index);
                self.dead_expires.push(old.expires);
            }
        }
        self.candidates.clear();
    }

    /// Signals every existing key of a database that clients watch or wait for.
    fn signal_database(&mut self, database: usize) {
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
            self.signal(database_key.0, &database_key.1);
        }
    }

    /// Exchanges two databases.
    pub(crate) fn swap(&mut self, first: usize, second: usize) {
        self.generation += 1;
        self.signal_database(first);
        self.signal_database(second);
        self.databases.swap(first, second);
        self.signal_database(first);
        self.signal_database(second);
    }

    /// Frees about `limit` entries of flushed databases and large values; whether more are left.
    pub(crate) fn free_pending(&mut self, limit: usize) -> bool {
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
                return false;
            };
            let before = index.len();
            if index.release(limit - freed) {
                self.dead_indexes.pop();
            }
            freed += before.min(limit - freed).max(1);
        }
        self.has_pending_frees()
    }

    /// Drops a value; a large one is freed later, in slices.
    pub(crate) fn discard(&mut self, value: Value) {
        if value.view().free_effort() > HUGE {
            self.dead_values.push(value);
        }
    }

    /// Whether flushed databases or large values wait to be freed.
    pub(crate) fn has_pending_frees(&self) -> bool {
        !self.dead_indexes.is_empty() || !self.dead_values.is_empty() || !self.dead_expires.is_empty()
    }
}
