//! The data set of a shard, and what belongs to it: users, settings, counters, the journal.
//!
//! 1. Whatever is known by key is in the shard's [`Partition`], and everything else is here.
//! 2. The methods route by key ([`Partitions`]): to the own partition, or to one of the guests
//!    while there are any. Changes of guests are recorded in this shard's journal, and counted
//!    here.
//! 3. A client may stop to watch or wait for a key of another shard while that shard has the
//!    partition. This is noted, and done when the partition is a guest again.

use std::sync::Arc;

use sietch_structures::XorShift64Star;

use super::clock::{NEVER, Now};
use super::database::Database;
use super::entry::{Entry, Weight, access_time, fresh_access};
use super::key::DatabaseKey;
use super::partial_dump::EffectDetail;
use super::partition::{Partition, Waiter};
use super::partitions::Partitions;
use crate::acl::Users;
use crate::data::index::{Index, Seeds};
use crate::data::journal::Journal;
use crate::data::value::Value;
use crate::foundation::client_id::ClientId;
use crate::foundation::metrics::{Metrics, Persistence};
use crate::foundation::observation::Observation;
use crate::foundation::observation::key_events::class;
use crate::foundation::placement::Placement;
use crate::foundation::settings::Settings;
use crate::foundation::totals::{Refusals, Sums, Totals};

/// How SHUTDOWN was requested.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ShutdownMode {
    /// Everything recorded becomes durable first.
    Save,
    /// The server ends at once.
    NoSave,
}

/// What is to be done with a key of another shard when its partition is a guest again.
#[derive(Debug)]
enum Postponed {
    /// A watch has ended.
    Unwatch(DatabaseKey),
    /// A client no longer waits for the key.
    EndWait(DatabaseKey, ClientId),
}

/// The data set of a shard, and everything else that is not a client.
pub(crate) struct Store {
    /// The keys.
    pub(super) partitions: Partitions,
    postponed: Vec<Postponed>,
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
    /// Most bytes that all entries may take in a snapshot: the room in the log's area.
    pub most_dumped: u64,
    /// What was refused because it would exceed that, by any shard.
    pub refusals: Arc<Refusals>,
    /// What the shards have whose partitions are not here, as they last published it.
    pub elsewhere: Sums,
    /// Where the shards publish it, if there are several.
    pub totals: Option<Arc<Totals>>,
    /// Bytes of the clients' buffers.
    pub client_bytes: usize,
    /// The most bytes in use since freed memory last went back to the system.
    pub most_used: u64,
    /// The state of the log, for INFO.
    pub persistence: Persistence,
    /// Requested by BGREWRITEAOF; reset by the event loop.
    pub compaction_requested: bool,
    /// Keys may have to be evicted before the next command: a setting has changed.
    pub evicting: bool,
    /// Requested by SHUTDOWN.
    pub shutdown_requested: Option<ShutdownMode>,
    /// Unix seconds of the last finished snapshot.
    pub last_save: u64,
    /// Monotonic nanoseconds of the first clock reading.
    pub started_ns: u64,
    /// Forty hexadecimal digits that differ from run to run.
    pub run_id: String,
    /// Chooses samples. Seeds of hash tables, which must be secret, come from [`Seeds`].
    pub(super) random: XorShift64Star,
    pub(super) seeds: Seeds,
}

/// What all shards may add between two publications without a claim is one part of this many of
/// the room in the log's area: little beside what a snapshot leaves free.
const SLACK: u64 = 64;

/// An area of which less than one part of this many is free counts as full, if a command was
/// refused. With more room, the command was too large.
const FULL_SHARE: u64 = 16;

impl Store {
    /// An empty store of the shard at this place.
    pub(crate) fn new(settings: Settings, seed: u64, commands: usize, placement: Placement) -> Self {
        let mut seeds = Seeds::new(seed);
        let own = Partition::new(settings.databases.max(1), &mut seeds);
        Self {
            partitions: Partitions::new(own, placement),
            postponed: Vec::new(),
            settings,
            observation: Observation::default(),
            users: Users::new(commands),
            metrics: Metrics::new(commands),
            journal: Journal::default(),
            replaying: false,
            building: false,
            most_dumped: u64::MAX,
            refusals: Arc::default(),
            elsewhere: Sums::default(),
            totals: None,
            client_bytes: 0,
            most_used: 0,
            persistence: Persistence::default(),
            compaction_requested: false,
            evicting: false,
            shutdown_requested: None,
            last_save: 0,
            started_ns: 0,
            run_id: format!("{:016x}{:016x}{:08x}", seeds.next(), seeds.next(), seeds.next() as u32),
            random: XorShift64Star::new(seeds.next()),
            seeds,
        }
    }

    /// Bytes that all entries take in a snapshot, if the ones here take `growth` more.
    pub(super) fn dumped_after(&self, growth: u64) -> u64 {
        let here = (self.weight().dumped as u64).saturating_add(growth);
        let claimed = self.totals.as_ref().filter(|_| !self.partitions.has_guests()).and_then(|totals| {
            let placement = self.placement();
            let slack = self.most_dumped / (SLACK * placement.count() as u64);
            totals.claim(placement.own(), here, slack)
        });
        here.saturating_add(claimed.unwrap_or(self.elsewhere.dumped))
    }

    /// Whether there is still no room for what was refused last, however much of an almost empty
    /// area that was: then the area is full.
    pub(crate) fn lacks_room(&self) -> bool {
        let wanted = self.refusals.growth().min(self.most_dumped / FULL_SHARE);
        let there = (self.weight().dumped as u64).saturating_add(self.elsewhere.dumped);
        wanted > 0 && there.saturating_add(wanted) > self.most_dumped
    }

    /// The place of the shard among all shards.
    pub(crate) fn placement(&self) -> Placement {
        self.partitions.placement()
    }

    /// The shard's own partition.
    pub(crate) fn own(&self) -> &Partition {
        &self.partitions.own
    }

    /// The same, to be changed.
    pub(crate) fn own_mut(&mut self) -> &mut Partition {
        &mut self.partitions.own
    }

    /// Takes the shard's own partition. Until it is put back nothing may use its keys: the store
    /// has no databases meanwhile.
    pub(crate) fn take_partition(&mut self) -> Partition {
        std::mem::replace(&mut self.partitions.own, Partition::vacant())
    }

    /// Puts the shard's own partition back.
    pub(crate) fn put_partition(&mut self, own: Partition) {
        self.partitions.own = own;
    }

    /// Adds the partitions of all other shards, each with the number of its shard.
    pub(crate) fn host(&mut self, guests: Vec<(usize, Partition)>) {
        self.partitions.host(guests);
        for postponed in std::mem::take(&mut self.postponed) {
            match postponed {
                Postponed::Unwatch(database_key) => self.unwatch(&database_key),
                Postponed::EndWait(database_key, client) => self.end_wait(&database_key, client),
            }
        }
    }

    /// Gives the partitions of the other shards back, each with the number of its shard.
    pub(crate) fn release_guests(&mut self) -> Vec<(usize, Partition)> {
        self.partitions.release_guests()
    }

    /// All partitions that are held, in the order of their shards.
    pub(crate) fn partitions(&self) -> impl Iterator<Item = &Partition> {
        self.partitions.iter()
    }

    /// How many databases there are.
    pub(crate) fn database_count(&self) -> usize {
        self.partitions.own.databases.len()
    }

    /// Keys of a database.
    pub(crate) fn len(&self, database: usize) -> usize {
        self.partitions.len(database)
    }

    /// Keys of all databases.
    pub(crate) fn keys(&self) -> usize {
        self.partitions().flat_map(Partition::databases).map(|database| database.index.len()).sum()
    }

    /// Keys of a database that have an expiry.
    pub(crate) fn volatile_count(&self, database: usize) -> usize {
        self.partitions()
            .filter_map(|partition| partition.databases.get(database))
            .map(Database::volatile_count)
            .sum()
    }

    /// The entry of a key, whether or not its time is over.
    pub(crate) fn find(&self, database: usize, key: &[u8]) -> Option<&Entry> {
        self.partitions.of(key).databases.get(database)?.index.get(key)
    }

    /// Visits about `count` keys of a database and returns the next cursor, 0 at the end.
    pub(crate) fn scan(
        &self,
        database: usize,
        cursor: u64,
        count: usize,
        visit: &mut dyn FnMut(&Entry),
    ) -> u64 {
        self.partitions.scan(database, cursor, count, visit)
    }

    /// The bytes that all entries take.
    pub(crate) fn weight(&self) -> Weight {
        self.partitions.weight()
    }

    /// Bytes in use, as `maxmemory` counts them.
    pub(crate) fn used_memory(&self) -> u64 {
        (self.weight().memory + self.client_bytes) as u64
    }

    /// Notes that a key was changed.
    #[inline]
    pub(super) fn signal(&mut self, database: usize, key: &[u8]) {
        self.partitions.signal(database, key);
    }

    /// Starts to watch a key and returns its version.
    pub(crate) fn watch(&mut self, database_key: DatabaseKey) -> u64 {
        self.partitions.of_mut(&database_key.1).watch(database_key)
    }

    /// Ends one watch of a key.
    pub(crate) fn unwatch(&mut self, database_key: &DatabaseKey) {
        match self.partitions.find_mut(&database_key.1) {
            Some(partition) => partition.unwatch(database_key),
            None => self.postponed.push(Postponed::Unwatch(database_key.clone())),
        }
    }

    /// The version of a watched key.
    pub(crate) fn version(&self, database_key: &DatabaseKey) -> u64 {
        self.partitions.of(&database_key.1).version(database_key)
    }

    /// Puts a client of this shard behind those that wait for a key with a value of this type.
    /// `number` is that of its wait.
    pub(crate) fn wait(
        &mut self,
        database_key: DatabaseKey,
        client: ClientId,
        (type_name, number): (&'static str, u64),
    ) {
        let waiter = Waiter { shard: self.placement().own(), client, type_name, number };
        self.partitions.of_mut(&database_key.1).wait(database_key, waiter);
    }

    /// Takes a client of this shard out of those that wait for a key.
    pub(crate) fn end_wait(&mut self, database_key: &DatabaseKey, client: ClientId) {
        let shard = self.placement().own();
        match self.partitions.find_mut(&database_key.1) {
            Some(partition) => partition.end_wait(database_key, shard, client),
            None => self.postponed.push(Postponed::EndWait(database_key.clone(), client)),
        }
    }

    /// The clients that wait for a key, oldest first.
    pub(crate) fn waiters(&self, database_key: &DatabaseKey) -> Vec<Waiter> {
        self.partitions.of(&database_key.1).waiters(database_key).collect()
    }

    /// Whether there are changed keys that clients wait for.
    #[inline]
    pub(crate) fn has_ready(&self) -> bool {
        self.partitions.has_ready()
    }

    /// Takes out the key that was changed first, of those that clients wait for.
    pub(crate) fn pop_ready(&mut self) -> Option<DatabaseKey> {
        self.partitions.pop_ready()
    }

    /// The clients that wait for changed keys whose values can serve them.
    pub(crate) fn ready_waiters(&self) -> impl Iterator<Item = Waiter> {
        self.partitions().flat_map(Partition::ready_waiters)
    }

    /// Forgets the keys that were changed.
    pub(crate) fn clear_ready(&mut self) {
        self.partitions.iter_mut().for_each(|partition| partition.clear_ready());
    }

    /// Whether a key exists although its time is over.
    pub(crate) fn is_overdue(&self, database: usize, key: &[u8], now: Now) -> bool {
        self.find(database, key).is_some_and(|entry| entry.expire_at() <= now.unix_ms)
    }

    /// The partition of a key that is about to be changed. A snapshot that has dumped a part of the
    /// key must dump it again, unless an effect will record the change.
    #[inline]
    pub(super) fn changing(&mut self, database: usize, key: &[u8]) -> &mut Partition {
        let records = self.records();
        let partition = self.partitions.of_mut(key);
        if let Some(dump) = &mut partition.partial_dump
            && !records
        {
            dump.invalidate(database, key);
        }
        partition
    }

    pub(super) fn set_expiry(&mut self, database: usize, key: &[u8], deadline: u64) -> bool {
        self.changing(database, key).set_expiry(database, key, deadline)
    }

    /// Removes an entry, without signal or effect.
    pub(super) fn take(&mut self, database: usize, key: &[u8]) -> Option<Entry> {
        self.changing(database, key).take(database, key)
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
        let policy = self.settings.policy;
        let access = fresh_access(policy, now);
        let is_new = self.changing(database, key).put(database, key, keep_expiry, |old| {
            make(old.filter(|_| policy.counts_frequency()).map_or(access, Entry::access))
        });
        if is_new {
            self.observation.events.note(class::NEW, "new", database, key);
        }
    }

    /// As [`Store::put`] with a string. A string of the same length and without an expiry is
    /// overwritten in place.
    #[inline]
    pub(super) fn put_string(&mut self, database: usize, key: &[u8], bytes: &[u8], now: Now) {
        self.put_hashed_string(database, self.hash_of(database, key), key, bytes, now);
    }

    /// As [`Store::put_string`], for a key whose [`Store::hash_of`] is known.
    #[inline]
    pub(super) fn put_hashed_string(
        &mut self,
        database: usize,
        hash: u64,
        key: &[u8],
        bytes: &[u8],
        now: Now,
    ) {
        let index = &mut self.partitions.of_mut(key).databases[database].index;
        let Some(entry) = index.get_hashed_mut(hash, key) else {
            let entry = Entry::of_string(key, bytes, fresh_access(self.settings.policy, now));
            self.changing(database, key).add(database, hash, entry);
            self.observation.events.note(class::NEW, "new", database, key);
            return;
        };
        if entry.overwrite(bytes) {
            if !self.settings.policy.counts_frequency() {
                entry.put_access(access_time(now));
            }
            return;
        }
        self.put_entry(database, key, false, now, |access| Entry::of_string(key, bytes, access));
    }

    /// Sets an existing string to an integer, as an access that keeps its expiry.
    pub(super) fn put_integer(&mut self, database: usize, key: &[u8], integer: i64, now: Now) {
        self.changing(database, key);
        let Partition { databases, weight: all, .. } = self.partitions.of_mut(key);
        let Database { index, weight, .. } = &mut databases[database];
        if let Some(entry) = index.get_mut(key) {
            entry.note_access(self.settings.policy, now, &mut self.random);
            let before = entry.weight();
            entry.set_integer(integer);
            let after = entry.weight();
            weight.exchange(before, after);
            all.exchange(before, after);
        }
    }

    /// The hash of a key in the index that it belongs to. FLUSHALL, FLUSHDB and SWAPDB change it,
    /// and the generation of the partition.
    #[inline]
    pub(crate) fn hash_of(&self, database: usize, key: &[u8]) -> u64 {
        self.partitions.of(key).databases[database].index.hash_of(key)
    }

    /// Prepares for a recovery that will load `times` as many keys as are there.
    pub(crate) fn expect(&mut self, times: usize) {
        let own = &mut self.partitions.own;
        for database in 0..own.databases.len() {
            own.arrange(database, |index| index.expect(index.len().saturating_mul(times)));
        }
    }

    /// Ends such a recovery.
    pub(crate) fn end_expecting(&mut self) {
        let own = &mut self.partitions.own;
        for database in 0..own.databases.len() {
            own.arrange(database, Index::end_expecting);
        }
    }

    /// Reads a byte of the memory that commands on these keys will need: table, entry and value. No
    /// read depends on another, so the processor fetches all of them at the same time.
    pub(crate) fn prefetch<'a>(&self, database: usize, keys: impl Iterator<Item = &'a &'a [u8]>) {
        let Some(database) = self.partitions.own.databases.get(database) else { return };
        let mut touched = 0;
        for key in keys {
            if let Some(entry) = database.index.probable(key) {
                touched ^= entry.prefetch();
            }
        }
        std::hint::black_box(touched);
    }

    /// The same for the keys of a recovery, whose hashes are known and which are mostly new ones.
    pub(crate) fn prefetch_hashed(&self, keys: impl Iterator<Item = (usize, u64)> + Clone) {
        let databases = &self.partitions.own.databases;
        let mut touched = 0;
        for (database, hash) in keys.clone() {
            touched ^= databases.get(database).map_or(0, |database| database.index.prefetch_segment(hash));
        }
        for (database, hash) in keys {
            let Some(Database { index, .. }) = databases.get(database) else { continue };
            touched ^= index.neighbour(hash).map_or(0, |entry| usize::from(entry.is_record()));
            touched ^= index.probable_hashed(hash).map_or(0, |entry| usize::from(entry.prefetch()));
        }
        std::hint::black_box(touched);
    }

    /// Deletes a key whose time is over and records it.
    pub(super) fn expire(&mut self, database: usize, key: &[u8]) {
        if let Some(entry) = self.take(database, key) {
            self.discard(key, entry.into_value());
            self.metrics.expired += 1;
            self.observation.events.note(class::EXPIRED, "expired", database, key);
            self.record(database, &[b"DEL", key]);
            self.signal(database, key);
        }
    }

    /// Deletes up to `limit` keys whose time is over; whether more are left.
    pub(crate) fn expire_due(&mut self, now: Now, limit: usize) -> bool {
        let mut left = limit;
        for held in 0..self.partitions().count() {
            let mut from = 0;
            while let Some((database, key)) = self.partitions.nth_mut(held).due(from, now) {
                if left == 0 {
                    return true;
                }
                left -= 1;
                from = database;
                self.expire(database, &key);
            }
        }
        false
    }

    /// Unix milliseconds of the next expiry of any key.
    pub(crate) fn next_expiry(&self) -> Option<u64> {
        let databases = self.partitions().flat_map(Partition::databases);
        databases.map(Database::earliest).min().filter(|&at| at != NEVER)
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
            let key = arguments.get(1).copied().unwrap_or_default();
            if let Some(dump) = &mut self.partitions.of_mut(key).partial_dump {
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
        let (partitions, changes) = self.partitions.with_changes();
        partitions.for_each(|partition| partition.flush(only, &mut self.seeds, changes));
    }

    /// Exchanges two databases.
    pub(crate) fn swap(&mut self, first: usize, second: usize) {
        let (partitions, changes) = self.partitions.with_changes();
        partitions.for_each(|partition| partition.swap(first, second, changes));
    }

    /// Frees about `limit` entries of flushed databases and large values; whether more are left.
    pub(crate) fn free_pending(&mut self, limit: usize) -> bool {
        let mut left = limit;
        for partition in self.partitions.iter_mut() {
            left = left.saturating_sub(partition.free_pending(left));
        }
        self.has_pending_frees()
    }

    /// Drops a value of a key; a large one is freed later, in slices.
    pub(crate) fn discard(&mut self, key: &[u8], value: Value) {
        self.partitions.of_mut(key).discard(value);
    }

    /// Whether flushed databases or large values wait to be freed.
    pub(crate) fn has_pending_frees(&self) -> bool {
        self.partitions().any(Partition::has_pending_frees)
    }
}
