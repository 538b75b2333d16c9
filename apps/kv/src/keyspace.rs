//! The data set: databases, expiry, memory accounting, watched keys.
//!
//! 1. A [`Database`] is an [`Index`] of [`Entry`]s. An entry has its value, its expiry (or
//!    [`NEVER`]), a word for eviction (time of last access, or frequency) and the bytes it is
//!    charged with.
//! 2. Keys with an expiry stand also in an ordered map (deadline, ticket) -> key. Its first element
//!    is the next deadline: active expiry never samples, and an idle store has nothing to do. The
//!    ticket (kept in the entry) makes equal deadlines distinct.
//! 3. A key is expired lazily when it is looked up and actively by [`Store::expire_due`]; both
//!    record a DEL. While a log is replayed nothing expires: the log says itself what was deleted.
//! 4. Each change calls [`Store::signal`]: it raises the version of a watched key and queues a key
//!    for which clients wait.
//! 5. FLUSHALL moves whole databases to a graveyard that [`Store::bury`] frees in bounded slices.
//! 6. [`Data`] is one database as a command sees it, with the clock reading of the batch.

use std::collections::{BTreeMap, HashMap, VecDeque};

use sietch_structures::XorShift64Star;

use crate::acl::Users;
use crate::client::ClientId;
use crate::index::{Index, Keyed, Seeds};
use crate::journal::Journal;
use crate::metrics::Metrics;
use crate::persistence::Persistence;
use crate::settings::Settings;
use crate::value::{StringValue, Value};

mod data;
mod dumping;
mod eviction;
mod key;

pub use data::Data;
pub use dumping::{Detail, Dumping, Part};

use key::Key;

/// The expiry of a key that has none.
pub const NEVER: u64 = u64::MAX;

/// Bytes that an entry takes beside a long key and its value: itself, its share of the index (load
/// 7/16 on the average) and the allocator's headers.
const ENTRY_OVERHEAD: usize = size_of::<Entry>() + size_of::<Entry>() / 2 + 16;

/// Bytes that an expiry takes beside a second copy of the key.
const EXPIRY_OVERHEAD: usize = 48;

/// Elements from which on a value is freed in slices: fewer take a fraction of a millisecond.
const HUGE: usize = 4096;

/// Readings of the clock, taken once a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Now {
    /// Nanoseconds of a clock that never goes back.
    pub monotonic_ns: u64,
    /// Milliseconds since 1970.
    pub unix_ms: u64,
}

/// What entries take.
#[derive(Debug, Clone, Copy, Default)]
pub struct Weight {
    /// Bytes of memory.
    pub memory: usize,
    /// Bytes in a snapshot, at most.
    pub dumped: usize,
}

impl Weight {
    /// Counts one entry instead of another.
    fn exchange(&mut self, old: Self, new: Self) {
        self.memory = self.memory - old.memory + new.memory;
        self.dumped = self.dumped - old.dumped + new.dumped;
    }
}

/// A key and what belongs to it.
pub struct Entry {
    key: Key,
    /// The value.
    pub value: Value,
    /// Unix time in milliseconds, or [`NEVER`].
    expire_at: u64,
    charged: Weight,
    ticket: u32,
    /// See `eviction.rs`.
    access: u32,
}

impl Keyed for Entry {
    fn key(&self) -> &[u8] {
        &self.key
    }
}

impl Entry {
    /// The key's expiry, or [`NEVER`].
    pub fn expire_at(&self) -> u64 {
        self.expire_at
    }

    /// Bytes of memory it is charged with.
    pub fn charged(&self) -> usize {
        self.charged.memory
    }

    /// Bytes that it takes in a snapshot, at most.
    pub fn dumped(&self) -> usize {
        self.charged.dumped
    }

    /// Counts its bytes again, in its database and in all.
    fn reweigh(&mut self, database: &mut Weight, all: &mut Weight) {
        let charged = self.weigh();
        database.exchange(self.charged, charged);
        all.exchange(self.charged, charged);
        self.charged = charged;
    }

    fn weigh(&self) -> Weight {
        // An expiry is one effect more, with 13 digits.
        let expiry = if self.expire_at == NEVER { 0 } else { EXPIRY_OVERHEAD + self.key.len() };
        Weight {
            memory: ENTRY_OVERHEAD + self.key.memory() + self.value.memory() + expiry,
            dumped: self.value.dumped(self.key.len()) + expiry,
        }
    }
}

/// One numbered database.
pub struct Database {
    index: Index<Entry>,
    expires: Expires,
    /// What its entries take.
    weight: Weight,
}

/// Keys by (deadline, ticket).
type Expires = BTreeMap<(u64, u32), Box<[u8]>>;

impl Database {
    fn new(seed: u64) -> Self {
        Self { index: Index::new(seed), expires: Expires::new(), weight: Weight::default() }
    }

    /// Its entries.
    pub fn index(&self) -> &Index<Entry> {
        &self.index
    }

    /// Bytes of an entry on the average.
    pub fn average(&self) -> usize {
        self.weight.memory / self.index.len().max(1)
    }

    /// Keys with an expiry.
    pub fn volatile_count(&self) -> usize {
        self.expires.len()
    }

    fn earliest(&self) -> u64 {
        self.expires.first_key_value().map_or(NEVER, |(&(deadline, _), _)| deadline)
    }
}

/// A key of a database.
pub type Place = (usize, Box<[u8]>);

#[derive(Debug, Default)]
struct Watched {
    version: u64,
    watchers: usize,
}

/// Everything of a shard that is not a client.
pub struct Store {
    databases: Vec<Database>,
    /// Limits and policies.
    pub settings: Settings,
    /// Counters.
    pub metrics: Metrics,
    /// Who may do what.
    pub users: Users,
    /// Effects that are to be logged.
    pub journal: Journal,
    /// Whether a log is being replayed: nothing expires, nothing is recorded.
    pub replaying: bool,
    /// Whether a value is being built that is recorded as a whole when it is there: nothing is
    /// recorded meanwhile.
    pub building: bool,
    /// The key that a snapshot is in the midst of.
    pub dumping: Option<Dumping>,
    /// What all entries take.
    pub weight: Weight,
    /// Bytes that all entries may take in a snapshot: what the log's area has room for.
    pub most_dumped: u64,
    /// Bytes of the clients' buffers.
    pub client_bytes: usize,
    /// What is known of the log.
    pub persistence: Persistence,
    /// Asked for by BGREWRITEAOF and its like; the event loop takes it.
    pub compaction_requested: bool,
    /// FLUSHALL and its like bump it: a running snapshot must start again.
    pub generation: u64,
    /// Unix seconds of the last finished snapshot.
    pub last_save: u64,
    /// Monotonic nanoseconds of the first clock reading.
    pub started_ns: u64,
    /// Forty hexadecimal digits that differ from run to run.
    pub run_id: String,
    watched: HashMap<Place, Watched>,
    version: u64,
    /// Who waits for which key, oldest first.
    pub waiting: HashMap<Place, VecDeque<ClientId>>,
    /// Keys that clients wait for and that were changed.
    pub ready: VecDeque<Place>,
    graveyard: Vec<Index<Entry>>,
    dead: Vec<Value>,
    dead_expires: Vec<Expires>,
    pool: Vec<eviction::Candidate>,
    ticket: u32,
    /// Chooses samples. Seeds of hash tables, which have to be secret, come from [`Seeds`].
    random: XorShift64Star,
    seeds: Seeds,
}

impl Store {
    /// An empty store.
    pub fn new(settings: Settings, seed: u64, commands: usize) -> Self {
        let mut seeds = Seeds::new(seed);
        Self {
            databases: (0..settings.databases.max(1)).map(|_| Database::new(seeds.next())).collect(),
            settings,
            users: Users::new(commands),
            metrics: Metrics::new(commands),
            journal: Journal::default(),
            replaying: false,
            building: false,
            dumping: None,
            weight: Weight::default(),
            most_dumped: u64::MAX,
            client_bytes: 0,
            persistence: Persistence::default(),
            compaction_requested: false,
            generation: 0,
            last_save: 0,
            started_ns: 0,
            run_id: format!("{:016x}{:016x}{:08x}", seeds.next(), seeds.next(), seeds.next() as u32),
            watched: HashMap::new(),
            version: 0,
            waiting: HashMap::new(),
            ready: VecDeque::new(),
            graveyard: Vec::new(),
            dead: Vec::new(),
            dead_expires: Vec::new(),
            pool: Vec::new(),
            ticket: 0,
            random: XorShift64Star::new(seeds.next()),
            seeds,
        }
    }

    /// The numbered databases.
    pub fn databases(&self) -> &[Database] {
        &self.databases
    }

    /// Bytes in use, as `maxmemory` counts them.
    pub fn used_memory(&self) -> u64 {
        (self.weight.memory + self.client_bytes) as u64
    }

    /// Notes that a key was changed.
    #[inline]
    fn signal(&mut self, database: usize, key: &[u8]) {
        if !self.watched.is_empty() || !self.waiting.is_empty() {
            self.tell_watchers(database, key);
        }
    }

    fn tell_watchers(&mut self, database: usize, key: &[u8]) {
        let place = (database, key.into());
        if let Some(watched) = self.watched.get_mut(&place) {
            self.version += 1;
            watched.version = self.version;
        }
        if self.waiting.contains_key(&place) && !self.ready.contains(&place) {
            self.ready.push_back(place);
        }
    }

    /// Starts to watch a key and returns its version.
    pub fn watch(&mut self, place: Place) -> u64 {
        let watched = self.watched.entry(place).or_default();
        watched.watchers += 1;
        watched.version
    }

    /// Ends one watch of a key.
    pub fn unwatch(&mut self, place: &Place) {
        if let Some(watched) = self.watched.get_mut(place) {
            watched.watchers -= 1;
            if watched.watchers == 0 {
                self.watched.remove(place);
            }
        }
    }

    /// The version of a watched key.
    pub fn version(&self, place: &Place) -> u64 {
        self.watched.get(place).map_or(0, |watched| watched.version)
    }

    /// Whether a key is there although its time is over.
    pub fn is_overdue(&self, database: usize, key: &[u8], now: Now) -> bool {
        self.databases[database].index.get(key).is_some_and(|entry| entry.expire_at <= now.unix_ms)
    }

    /// A key is about to change: a snapshot that is in the midst of it must begin with it again,
    /// unless an effect will tell it what has changed.
    #[inline]
    fn disturb(&mut self, database: usize, key: &[u8]) {
        let records = self.records();
        if let Some(dumping) = &mut self.dumping
            && !records
        {
            dumping.spoil(database, key);
        }
    }

    fn set_expiry(&mut self, database: usize, key: &[u8], deadline: u64) -> bool {
        self.disturb(database, key);
        let ticket = self.ticket.wrapping_add(1);
        let Database { index, expires, weight } = &mut self.databases[database];
        let Some(entry) = index.get_mut(key) else {
            return false;
        };
        if entry.expire_at != NEVER {
            expires.remove(&(entry.expire_at, entry.ticket));
        }
        entry.expire_at = deadline;
        if deadline != NEVER {
            let mut ticket = ticket;
            while expires.contains_key(&(deadline, ticket)) {
                ticket = ticket.wrapping_add(1);
            }
            expires.insert((deadline, ticket), key.into());
            entry.ticket = ticket;
            self.ticket = ticket;
        }
        entry.reweigh(weight, &mut self.weight);
        true
    }

    /// Counts an entry's memory again, or removes a collection that is empty: whether it did.
    fn reweigh(&mut self, database: usize, key: &[u8]) -> bool {
        self.disturb(database, key);
        let Database { index, weight, .. } = &mut self.databases[database];
        let Some(entry) = index.get_mut(key) else {
            return false;
        };
        if entry.value.is_empty() {
            self.take(database, key);
            return true;
        }
        entry.reweigh(weight, &mut self.weight);
        false
    }

    /// Removes an entry, without signal or effect.
    fn take(&mut self, database: usize, key: &[u8]) -> Option<Entry> {
        self.disturb(database, key);
        let Database { index, expires, weight } = &mut self.databases[database];
        let entry = index.remove(key)?;
        if entry.expire_at != NEVER {
            expires.remove(&(entry.expire_at, entry.ticket));
        }
        weight.exchange(entry.charged, Weight::default());
        self.weight.exchange(entry.charged, Weight::default());
        Some(entry)
    }

    /// Puts a value in the place of whatever was there and drops its expiry unless `keep_expiry`.
    fn put(&mut self, database: usize, key: &[u8], value: Value, keep_expiry: bool, now: Now) {
        self.disturb(database, key);
        let access = self.fresh_access(now);
        let Database { index, expires, weight } = &mut self.databases[database];
        if let Some(entry) = index.get_mut(key) {
            if !self.settings.policy.counts_frequency() {
                entry.access = access;
            }
            let old = std::mem::replace(&mut entry.value, value);
            if old.free_effort() > HUGE {
                self.dead.push(old);
            }
            if !keep_expiry && entry.expire_at != NEVER {
                expires.remove(&(entry.expire_at, entry.ticket));
                entry.expire_at = NEVER;
            }
            entry.reweigh(weight, &mut self.weight);
            return;
        }
        let mut entry =
            Entry { key: key.into(), value, expire_at: NEVER, charged: Weight::default(), ticket: 0, access };
        entry.reweigh(weight, &mut self.weight);
        index.insert(entry);
    }

    /// As [`Store::put`] with a string; one of the same length without an expiry is written over
    /// where it is.
    fn put_string(&mut self, database: usize, key: &[u8], bytes: &[u8], now: Now) {
        if let Some(entry) = self.databases[database].index.get_mut(key)
            && entry.expire_at == NEVER
            && entry.value.overwrite(bytes)
        {
            if !self.settings.policy.counts_frequency() {
                entry.access = eviction::access_time(now);
            }
            return;
        }
        self.put(database, key, Value::String(StringValue::new(bytes)), false, now);
    }

    /// Touches what commands on these keys will look for: table, entry and value. Nothing depends
    /// on what is read, so that the processor fetches all of it at the same time.
    pub fn touch<'a>(&self, database: usize, keys: impl Iterator<Item = &'a &'a [u8]>) {
        let Some(database) = self.databases.get(database) else { return };
        let mut touched = 0;
        for key in keys {
            if let Some(entry) = database.index.probable(key) {
                touched ^= entry.key.touch() ^ entry.value.touch();
            }
        }
        std::hint::black_box(touched);
    }

    /// Deletes a key whose time is over and records it.
    fn expire(&mut self, database: usize, key: &[u8]) {
        if let Some(entry) = self.take(database, key) {
            self.discard(entry.value);
            self.metrics.expired += 1;
            self.record(database, &[b"DEL", key]);
            self.signal(database, key);
        }
    }

    /// Deletes at most `limit` keys whose time is over; whether more are left.
    pub fn expire_due(&mut self, now: Now, limit: usize) -> bool {
        let mut left = limit;
        for database in 0..self.databases.len() {
            while self.databases[database].earliest() <= now.unix_ms {
                if left == 0 {
                    return true;
                }
                left -= 1;
                let first = self.databases[database].expires.first_key_value();
                let Some(key) = first.map(|(_, key)| key.clone()) else {
                    break;
                };
                self.expire(database, &key);
            }
        }
        false
    }

    /// Unix milliseconds of the next expiry of any key.
    pub fn next_expiry(&self) -> Option<u64> {
        self.databases.iter().map(Database::earliest).min().filter(|&at| at != NEVER)
    }

    /// Records an effect for the log.
    #[inline]
    pub fn record(&mut self, database: usize, arguments: &[&[u8]]) {
        self.record_detail(database, arguments, &Detail::None);
    }

    /// The same, with what a dump of the key has to know about it.
    #[inline]
    pub fn record_detail(&mut self, database: usize, arguments: &[&[u8]], detail: &Detail<'_>) {
        if self.records() {
            self.metrics.effects += 1;
            self.persistence.changes += 1;
            self.journal.append(database, arguments);
            if let Some(dumping) = &mut self.dumping {
                dumping.follow(database, arguments, detail);
            }
        }
    }

    /// Whether effects are recorded at all.
    pub fn records(&self) -> bool {
        !self.replaying && !self.building && self.journal.enabled()
    }

    /// Empties one database, or all. Its memory is freed later, in slices.
    pub fn flush(&mut self, only: Option<usize>) {
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
                self.graveyard.push(old.index);
                self.dead_expires.push(old.expires);
            }
        }
        self.pool.clear();
    }

    /// Signals every watched or awaited key of a database that is there.
    fn signal_database(&mut self, database: usize) {
        let places: Vec<Place> = self
            .watched
            .keys()
            .chain(self.waiting.keys())
            .filter(|place| place.0 == database && self.databases[database].index.contains(&place.1))
            .cloned()
            .collect();
        for place in places {
            self.signal(place.0, &place.1);
        }
    }

    /// Exchanges two databases.
    pub fn swap(&mut self, first: usize, second: usize) {
        self.generation += 1;
        self.signal_database(first);
        self.signal_database(second);
        self.databases.swap(first, second);
        self.signal_database(first);
        self.signal_database(second);
    }

    /// Frees about `limit` entries of databases that were flushed; whether more are left.
    pub fn bury(&mut self, limit: usize) -> bool {
        let mut freed = 0;
        while freed < limit {
            if let Some(value) = self.dead.last_mut() {
                let before = value.free_effort();
                if value.release(limit - freed) {
                    self.dead.pop();
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
            let Some(index) = self.graveyard.last_mut() else {
                return false;
            };
            let before = index.len();
            if index.release(limit - freed) {
                self.graveyard.pop();
            }
            freed += before.min(limit - freed).max(1);
        }
        self.has_graves()
    }

    /// Drops a value, a huge one later and in slices.
    pub fn discard(&mut self, value: Value) {
        if value.free_effort() > HUGE {
            self.dead.push(value);
        }
    }

    /// Whether flushed databases wait to be freed.
    pub fn has_graves(&self) -> bool {
        !self.graveyard.is_empty() || !self.dead.is_empty() || !self.dead_expires.is_empty()
    }
}

#[cfg(test)]
mod tests;
