//! One database as a command sees it.

use super::change::{Change, Counted};
use super::clock::Now;
use super::database::Database;
use super::entry::Entry;
use super::partial_dump::EffectDetail;
use super::partition::Partition;
use super::store::Store;
use crate::data::index::{Index, Keyed as _, Location};
use crate::data::value::{Collection, Rules, Value, ValueRef};
use crate::foundation::observation::key_events::class;
use crate::foundation::protocol::Fault;
use crate::foundation::settings::Settings;

/// Longest string that replay makes: as much as a process can address. The limit keeps a forged
/// record from overflowing a length.
const LONGEST_REPLAYED: u64 = 1 << 46;

/// The selected database, with the clock reading of the batch.
pub(crate) struct Data<'a> {
    store: &'a mut Store,
    database: usize,
    now: Now,
    /// The last [`Change`] has left an empty collection.
    left_empty: bool,
    /// The last change emptied its key and removed it, so its effect is recorded as DEL.
    emptied: bool,
}

impl<'a> Data<'a> {
    /// Database `database` of `store`.
    ///
    /// # Panics
    /// Accesses panic if there is no such database.
    pub(crate) fn new(store: &'a mut Store, database: usize, now: Now) -> Self {
        Self { store, database, now, left_empty: false, emptied: false }
    }

    /// The clock reading of this batch.
    pub(crate) fn now(&self) -> Now {
        self.now
    }

    /// Number of the database.
    pub(crate) fn database(&self) -> usize {
        self.database
    }

    /// Selects another database, which must exist.
    pub(crate) fn select(&mut self, database: usize) {
        self.database = database;
    }

    /// Limits and policies.
    pub(crate) fn settings(&self) -> &Settings {
        &self.store.settings
    }

    /// The store of the database.
    pub(crate) fn store(&mut self) -> &mut Store {
        self.store
    }

    /// The store of the database, to be read.
    pub(crate) fn store_ref(&self) -> &Store {
        self.store
    }

    /// What a change of a collection needs to know: the thresholds, and a secret seed.
    pub(crate) fn rules(&mut self) -> Rules {
        Rules { limits: self.store.settings.encodings, seed: self.store.seeds.reserve() }
    }

    /// Whether a log is being replayed.
    pub(crate) fn replaying(&self) -> bool {
        self.store.replaying
    }

    /// Longest string that may be made, in bytes. The strings of a log were made under an earlier
    /// limit, which may have been larger.
    pub(crate) fn longest_string(&self) -> u64 {
        if self.store.replaying { LONGEST_REPLAYED } else { self.store.settings.proto_max_bulk_len }
    }

    fn expire_if_due(&mut self, key: &[u8]) {
        let database = &self.store.partitions.of(key).databases[self.database];
        if database.earliest() > self.now.unix_ms || self.store.replaying {
            return;
        }
        if database.index.get(key).is_some_and(|entry| entry.expire_at() <= self.now.unix_ms) {
            self.store.expire(self.database, key);
        }
    }

    /// The value of a key, for a command that reads. Counts a hit or a miss.
    pub(crate) fn read(&mut self, key: &[u8]) -> Option<ValueRef<'_>> {
        self.expire_if_due(key);
        let Store { partitions, settings, metrics, observation, random, .. } = &mut *self.store;
        let Some(entry) = partitions.of_mut(key).databases[self.database].index.get_mut(key) else {
            metrics.misses += 1;
            observation.events.note(class::MISS, "keymiss", self.database, key);
            return None;
        };
        metrics.hits += 1;
        entry.note_access(settings.policy, self.now, random);
        Some(entry.value())
    }

    /// Whether a key is there. Counts a hit or a miss, and is no access.
    pub(crate) fn contains_counted(&mut self, key: &[u8]) -> bool {
        let found = self.exists(key);
        self.store.metrics.hits += u64::from(found);
        self.store.metrics.misses += u64::from(!found);
        if !found {
            self.store.observation.events.note(class::MISS, "keymiss", self.database, key);
        }
        found
    }

    /// Sets the last access of a key, or its frequency, whichever the policy uses.
    pub(crate) fn set_access(&mut self, key: &[u8], idle_seconds: Option<u64>, frequency: Option<u8>) {
        let Store { partitions, settings, .. } = &mut *self.store;
        if let Some(entry) = partitions.of_mut(key).databases[self.database].index.get_mut(key) {
            entry.set_access(settings.policy, self.now, idle_seconds, frequency);
        }
    }

    /// The entry of a key, without counting the access (OBJECT, TYPE, SCAN).
    pub(crate) fn peek(&mut self, key: &[u8]) -> Option<&Entry> {
        self.expire_if_due(key);
        self.store.partitions.of(key).databases[self.database].index.get(key)
    }

    /// The collection at a key, for a command that changes it, drops it and then calls
    /// [`Data::changed`]. The caller must know that changes to two keys do not overlap.
    ///
    /// # Errors
    /// It has another type.
    pub(crate) fn write<'b, T: Collection>(
        &'b mut self,
        key: &'b [u8],
    ) -> Result<Option<Change<'b, T>>, Fault> {
        match self.access(key) {
            Some(location) => self.change(key, location).map(Some),
            None => Ok(None),
        }
    }

    /// The same, but the collection is created if there is none. The caller must add an element
    /// then.
    ///
    /// # Errors
    /// It has another type.
    pub(crate) fn write_or_create<'b, T: Collection>(
        &'b mut self,
        key: &'b [u8],
    ) -> Result<Change<'b, T>, Fault> {
        let location = self.access(key).unwrap_or_else(|| self.create::<T>(key));
        self.change(key, location)
    }

    /// Where the entry of a key is, for a command that changes it. Counts the access.
    fn access(&mut self, key: &[u8]) -> Option<Location> {
        self.expire_if_due(key);
        let Store { partitions, settings, random, .. } = &mut *self.store;
        let index = &mut partitions.of_mut(key).databases[self.database].index;
        let location = index.locate(key)?;
        index.at_mut(location).note_access(settings.policy, self.now, random);
        Some(location)
    }

    /// Puts an empty collection at a key, which is not there.
    #[cold]
    fn create<T: Collection>(&mut self, key: &[u8]) -> Location {
        self.store.put(self.database, key, T::empty().into_value(), true, self.now);
        let index = &self.store.partitions.of(key).databases[self.database].index;
        index.locate(key).expect("it was inserted above")
    }

    /// The collection at this location, to be changed.
    #[inline]
    fn change<'b, T: Collection>(
        &'b mut self,
        key: &'b [u8],
        location: Location,
    ) -> Result<Change<'b, T>, Fault> {
        let Partition { databases, weight: partition, .. } = self.store.partitions.of_mut(key);
        let Database { index, weight: database, .. } = &mut databases[self.database];
        let counted = Counted { database, partition, left_empty: &mut self.left_empty };
        Change::new(index.at_mut(location), key, counted).ok_or(Fault::WRONG_TYPE)
    }

    /// Changes the bytes of the string at a key in place; [`Data::changed`] must follow if they
    /// are others than before. An empty string is made if there is none.
    ///
    /// # Errors
    /// It is no string.
    pub(crate) fn change_string<R>(
        &mut self,
        key: &[u8],
        change: impl FnOnce(&mut Vec<u8>) -> R,
    ) -> Result<R, Fault> {
        self.expire_if_due(key);
        if self.store.find(self.database, key).is_none() {
            self.store.put_string(self.database, key, b"", self.now);
        }
        self.store.changing(self.database, key);
        let Store { partitions, settings, random, .. } = &mut *self.store;
        let Partition { databases, weight: all, .. } = partitions.of_mut(key);
        let Database { index, weight, .. } = &mut databases[self.database];
        let entry = index.get_mut(key).expect("it was found or inserted above");
        entry.note_access(settings.policy, self.now, random);
        let before = entry.weight();
        let result = change(entry.grow_string().ok_or(Fault::WRONG_TYPE)?);
        let after = entry.weight();
        weight.exchange(before, after);
        all.exchange(before, after);
        Ok(result)
    }

    /// Sets the string at a key, which exists, to an integer, and keeps its expiry.
    pub(crate) fn set_integer(&mut self, key: &[u8], integer: i64) {
        self.store.put_integer(self.database, key, integer, self.now);
        self.store.signal(self.database, key);
    }

    /// Must follow every change through [`Data::write`] and its like; see `commands.rs`.
    pub(crate) fn changed(&mut self, key: &[u8]) {
        self.emptied = std::mem::take(&mut self.left_empty);
        if self.emptied {
            self.store.take(self.database, key);
            self.store.observation.events.note(class::GENERIC, "del", self.database, key);
        } else {
            self.store.changing(self.database, key);
        }
        self.store.signal(self.database, key);
    }

    /// Sets a key to a value, and removes its expiry.
    pub(crate) fn insert(&mut self, key: &[u8], value: Value) {
        self.store.put(self.database, key, value, false, self.now);
        self.store.signal(self.database, key);
    }

    /// The same with a string, which may overwrite another one without an allocation.
    #[inline]
    pub(crate) fn insert_string(&mut self, key: &[u8], bytes: &[u8]) {
        self.store.put_string(self.database, key, bytes, self.now);
        self.store.signal(self.database, key);
    }

    /// The same with a key whose [`Store::hash_of`] is known.
    #[inline]
    pub(crate) fn insert_hashed_string(&mut self, hash: u64, key: &[u8], bytes: &[u8]) {
        self.store.put_hashed_string(self.database, hash, key, bytes, self.now);
        self.store.signal(self.database, key);
    }

    /// The same, but the key keeps its expiry.
    pub(crate) fn insert_keeping_expiry(&mut self, key: &[u8], value: Value) {
        self.expire_if_due(key);
        self.store.put(self.database, key, value, true, self.now);
        self.store.signal(self.database, key);
    }

    /// Removes a key.
    pub(crate) fn remove(&mut self, key: &[u8]) -> Option<Value> {
        self.remove_entry(key).map(|(value, _)| value)
    }

    /// Removes a key; its value and expiry ([`NEVER`](super::clock::NEVER) if none).
    pub(crate) fn remove_entry(&mut self, key: &[u8]) -> Option<(Value, u64)> {
        self.expire_if_due(key);
        let entry = self.store.take(self.database, key)?;
        self.store.signal(self.database, key);
        let expire_at = entry.expire_at();
        Some((entry.into_value(), expire_at))
    }

    /// Whether a key is there.
    pub(crate) fn exists(&mut self, key: &[u8]) -> bool {
        self.peek(key).is_some()
    }

    /// A key's expiry ([`NEVER`](super::clock::NEVER) if it has none), or `None` if there is no
    /// such key.
    pub(crate) fn expiry(&mut self, key: &[u8]) -> Option<u64> {
        self.peek(key).map(Entry::expire_at)
    }

    /// Sets (or with [`NEVER`](super::clock::NEVER) removes) the expiry of a key that is there.
    pub(crate) fn set_expiry(&mut self, key: &[u8], deadline: u64) {
        if self.store.set_expiry(self.database, key, deadline) {
            self.store.signal(self.database, key);
        }
    }

    /// Records an effect; see `commands.rs`. If the change has emptied the key, a DEL is recorded
    /// instead: it is short whatever was removed, and it has the same result on a key that is in
    /// another state at replay.
    #[inline]
    pub(crate) fn effect(&mut self, arguments: &[&[u8]]) {
        self.effect_detail(arguments, &EffectDetail::None);
    }

    /// The same for a change of a list or a sorted set whose position the arguments do not show.
    #[inline]
    pub(crate) fn effect_detail(&mut self, arguments: &[&[u8]], detail: &EffectDetail<'_>) {
        if std::mem::take(&mut self.emptied)
            && let [_, key, ..] = arguments
        {
            return self.store.record(self.database, &[b"DEL", key]);
        }
        self.store.record_detail(self.database, arguments, detail);
    }

    /// Elements at the front of a list that a running snapshot already holds.
    pub(crate) fn dumped_elements(&self, key: &[u8]) -> usize {
        let dump = self.store.partitions.of(key).partial_dump.as_ref();
        dump.map_or(0, |dump| dump.elements(self.database, key))
    }

    /// Refuses growth past the log's area: a data set that no snapshot has room for could never be
    /// compacted.
    ///
    /// # Errors
    /// `growth` more bytes exceed the limit.
    pub(crate) fn admit(&self, growth: usize) -> Result<(), Fault> {
        let limit = self.store.most_dumped;
        let after = self.store.dumped_after(growth as u64);
        if after <= limit || !self.store.records() {
            return Ok(());
        }
        self.store.refusals.note(growth as u64);
        let there = after.saturating_sub(growth as u64);
        Err(Fault::new(format!(
            "MISCONF the storage area is full: it has room for {limit} bytes of data, {there} are there, and this needs {growth} more; delete data, or make the area larger"
        )))
    }

    /// The same for a value that replaces the one of `key`.
    ///
    /// # Errors
    /// As [`Data::admit`].
    pub(crate) fn admit_value(&self, key: &[u8], value: &Value) -> Result<(), Fault> {
        self.admit(value.view().dumped(key.len()).saturating_sub(self.dumped(key)))
    }

    /// Bytes that a key takes in a snapshot.
    pub(crate) fn dumped(&self, key: &[u8]) -> usize {
        self.store.find(self.database, key).map_or(0, Entry::dumped)
    }

    /// Bytes of memory that a key takes, with its share of the index.
    pub(crate) fn memory(&mut self, key: &[u8]) -> Option<usize> {
        let memory = self.peek(key)?.weight().memory;
        let index = &self.store.partitions.of(key).databases[self.database].index;
        Some(memory + index.memory() / index.len().max(1))
    }

    /// Whether effects are recorded. If not, a handler need not build them.
    pub(crate) fn effects_on(&self) -> bool {
        self.store.records()
    }

    /// Records that a key is deleted.
    pub(crate) fn effect_delete(&mut self, key: &[u8]) {
        self.effect(&[b"DEL", key]);
    }

    /// Deletes a key and records it; whether it was there.
    pub(crate) fn delete(&mut self, key: &[u8]) -> bool {
        let Some(value) = self.remove(key) else {
            return false;
        };
        self.store.discard(key, value);
        self.effect_delete(key);
        true
    }

    /// Records the effects that rebuild a key: DEL, its value, its expiry.
    pub(crate) fn effect_rebuild(&mut self, key: &[u8]) {
        if !self.store.records() {
            return;
        }
        let Store { partitions, journal, metrics, .. } = &mut *self.store;
        let Partition { databases, partial_dump, .. } = partitions.of_mut(key);
        let mut record = |arguments: &[&[u8]]| {
            metrics.effects += 1;
            journal.append(self.database, arguments);
            if let Some(dump) = partial_dump {
                dump.note_effect(self.database, arguments, &EffectDetail::None);
            }
        };
        record(&[b"DEL", key]);
        if let Some(entry) = databases[self.database].index.get(key) {
            entry.rebuild(&mut record);
        }
    }

    /// Keys in the database.
    pub(crate) fn len(&self) -> usize {
        self.store.len(self.database)
    }

    /// Visits about `count` keys in the order of the index, but not those whose time is over.
    /// Returns the next cursor, 0 at the end.
    pub(crate) fn scan(&self, cursor: u64, count: usize, visit: &mut dyn FnMut(&Entry)) -> u64 {
        let now = if self.store.replaying { 0 } else { self.now.unix_ms };
        self.store.scan(self.database, cursor, count, &mut |entry: &Entry| {
            if entry.expire_at() > now {
                visit(entry);
            }
        })
    }

    /// Visits all keys.
    pub(crate) fn for_each(&self, visit: &mut dyn FnMut(&Entry)) {
        let now = if self.store.replaying { 0 } else { self.now.unix_ms };
        let indexes = self.store.partitions().map(|partition| &partition.databases[self.database].index);
        indexes.flat_map(Index::iter).filter(|entry| entry.expire_at() > now).for_each(visit);
    }

    /// A random key.
    pub(crate) fn random_key(&mut self) -> Option<Box<[u8]>> {
        // Bounded, because every key of the database may be overdue.
        for _ in 0..100 {
            let Store { partitions, random, .. } = &mut *self.store;
            let number = self.database;
            let chosen = partitions.random(random, |partition| partition.databases[number].index.len());
            let entry = chosen.databases[number].index.random(&mut || random.word())?;
            let key: Box<[u8]> = entry.key().into();
            if self.exists(&key) {
                return Some(key);
            }
        }
        None
    }
}
