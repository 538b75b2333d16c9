//! One database as a command sees it.

use super::{Detail, Entry, NEVER, Now, Store};
use crate::commands::Fault;
use crate::settings::Settings;
use crate::value::Value;

/// Longest string that replay makes: what a process can address. It keeps a record that no store
/// has written from overflowing a length.
const LONGEST_REPLAYED: u64 = 1 << 46;

/// The selected database, with the clock reading of the batch.
pub struct Data<'a> {
    store: &'a mut Store,
    database: usize,
    now: Now,
    /// The last change removed its key, which had become empty: what is recorded of it is that.
    emptied: bool,
}

impl<'a> Data<'a> {
    /// Database `database` of `store`.
    ///
    /// # Panics
    /// Later, if there is no such database.
    pub fn new(store: &'a mut Store, database: usize, now: Now) -> Self {
        Self { store, database, now, emptied: false }
    }

    /// The clock reading of this batch.
    pub fn now(&self) -> Now {
        self.now
    }

    /// Number of the database.
    pub fn database(&self) -> usize {
        self.database
    }

    /// Selects another database, which must exist.
    pub fn select(&mut self, database: usize) {
        self.database = database;
    }

    /// Limits and policies.
    pub fn settings(&self) -> &Settings {
        &self.store.settings
    }

    /// Everything else of the shard.
    pub fn store(&mut self) -> &mut Store {
        self.store
    }

    /// Everything else of the shard, to be read.
    pub fn store_ref(&self) -> &Store {
        self.store
    }

    /// A secret seed for the hash table of a new value.
    pub fn seed(&mut self) -> u64 {
        self.store.seeds.next()
    }

    /// Whether a log is being replayed.
    pub fn replaying(&self) -> bool {
        self.store.replaying
    }

    /// Longest string that may be made, in bytes. What a log says was made under the limit of its
    /// time, whatever that is now.
    pub fn longest_string(&self) -> u64 {
        if self.store.replaying { LONGEST_REPLAYED } else { self.store.settings.proto_max_bulk_len }
    }

    fn expire_if_due(&mut self, key: &[u8]) {
        let database = &self.store.databases[self.database];
        if database.earliest() > self.now.unix_ms || self.store.replaying {
            return;
        }
        if database.index.get(key).is_some_and(|entry| entry.expire_at <= self.now.unix_ms) {
            self.store.expire(self.database, key);
        }
    }

    /// The value of a key, for a command that reads. Counts a hit or a miss.
    pub fn read(&mut self, key: &[u8]) -> Option<&Value> {
        self.expire_if_due(key);
        let Store { databases, settings, metrics, random, .. } = &mut *self.store;
        let Some(entry) = databases[self.database].index.get_mut(key) else {
            metrics.misses += 1;
            return None;
        };
        metrics.hits += 1;
        entry.note_access(settings.policy, self.now, random);
        Some(&entry.value)
    }

    /// Whether a key is there. Counts a hit or a miss, and is no access.
    pub fn look(&mut self, key: &[u8]) -> bool {
        let found = self.exists(key);
        self.store.metrics.hits += u64::from(found);
        self.store.metrics.misses += u64::from(!found);
        found
    }

    /// Makes a key look as if it had been accessed so many seconds ago, or so often: what the
    /// policy asks for of both.
    pub fn set_access(&mut self, key: &[u8], idle_seconds: Option<u64>, frequency: Option<u8>) {
        let Store { databases, settings, .. } = &mut *self.store;
        if let Some(entry) = databases[self.database].index.get_mut(key) {
            entry.set_access(settings.policy, self.now, idle_seconds, frequency);
        }
    }

    /// The value of a key without any trace of the access (OBJECT, TYPE, SCAN).
    pub fn peek(&mut self, key: &[u8]) -> Option<&Entry> {
        self.expire_if_due(key);
        self.store.databases[self.database].index.get(key)
    }

    /// The value of a key, for a command that changes it; then call [`Data::changed`].
    pub fn write(&mut self, key: &[u8]) -> Option<&mut Value> {
        self.expire_if_due(key);
        let Store { databases, settings, random, .. } = &mut *self.store;
        let entry = databases[self.database].index.get_mut(key)?;
        entry.note_access(settings.policy, self.now, random);
        Some(&mut entry.value)
    }

    /// The value of a key, made by `make` if there is none; then call [`Data::changed`].
    pub fn write_or_insert_with(&mut self, key: &[u8], make: impl FnOnce() -> Value) -> &mut Value {
        self.expire_if_due(key);
        if !self.store.databases[self.database].index.contains(key) {
            self.store.put(self.database, key, make(), true, self.now);
        }
        let entry = self.store.databases[self.database].index.get_mut(key);
        &mut entry.expect("it was found or inserted above").value
    }

    /// Must follow every change through [`Data::write`]; see `commands.rs`.
    pub fn changed(&mut self, key: &[u8]) {
        self.emptied = self.store.reweigh(self.database, key);
        self.store.signal(self.database, key);
    }

    /// The same for a change that nobody who watches the key, or waits for it, is to know of.
    pub fn changed_unseen(&mut self, key: &[u8]) {
        self.store.reweigh(self.database, key);
    }

    /// Puts a value in the place of whatever was there; the key has no expiry then.
    pub fn insert(&mut self, key: &[u8], value: Value) {
        self.store.put(self.database, key, value, false, self.now);
        self.store.signal(self.database, key);
    }

    /// The same with a string, which may take the place of another without an allocation.
    #[inline]
    pub fn insert_string(&mut self, key: &[u8], bytes: &[u8]) {
        self.store.put_string(self.database, key, bytes, self.now);
        self.store.signal(self.database, key);
    }

    /// The same, but the key keeps its expiry.
    pub fn insert_keeping_expiry(&mut self, key: &[u8], value: Value) {
        self.expire_if_due(key);
        self.store.put(self.database, key, value, true, self.now);
        self.store.signal(self.database, key);
    }

    /// Removes a key.
    pub fn remove(&mut self, key: &[u8]) -> Option<Value> {
        self.remove_entry(key).map(|(value, _)| value)
    }

    /// Removes a key; its value and expiry ([`NEVER`] if none).
    pub fn remove_entry(&mut self, key: &[u8]) -> Option<(Value, u64)> {
        self.expire_if_due(key);
        let entry = self.store.take(self.database, key)?;
        self.store.signal(self.database, key);
        Some((entry.value, entry.expire_at))
    }

    /// Whether a key is there.
    pub fn exists(&mut self, key: &[u8]) -> bool {
        self.peek(key).is_some()
    }

    /// A key's expiry ([`NEVER`] if it has none), or `None` if there is no such key.
    pub fn expiry(&mut self, key: &[u8]) -> Option<u64> {
        self.peek(key).map(Entry::expire_at)
    }

    /// Sets (or with [`NEVER`] removes) the expiry of a key that is there.
    pub fn set_expiry(&mut self, key: &[u8], deadline: u64) {
        if self.store.set_expiry(self.database, key, deadline) {
            self.store.signal(self.database, key);
        }
    }

    /// Records an effect; see `commands.rs`. Where the change before it has emptied the key, that
    /// is a DEL: it is short whatever was removed, and it does the same to a key that is in another
    /// state when it is replayed.
    #[inline]
    pub fn effect(&mut self, arguments: &[&[u8]]) {
        self.effect_detail(arguments, &Detail::None);
    }

    /// The same for a change of a list or a sorted set whose place the arguments do not say.
    #[inline]
    pub fn effect_detail(&mut self, arguments: &[&[u8]], detail: &Detail<'_>) {
        if std::mem::take(&mut self.emptied)
            && let [_, key, ..] = arguments
        {
            return self.store.record(self.database, &[b"DEL", key]);
        }
        self.store.record_detail(self.database, arguments, detail);
    }

    /// Elements at the front of a list that a running snapshot has already.
    pub fn dumped_elements(&self, key: &[u8]) -> usize {
        self.store.dumping.as_ref().map_or(0, |dumping| dumping.elements(self.database, key))
    }

    /// Refuses what would let the data set outgrow the log's area: a state that no snapshot has
    /// room for could never be compacted.
    ///
    /// # Errors
    /// It would, with `growth` bytes more.
    pub fn admit(&self, growth: usize) -> Result<(), Fault> {
        let (there, limit) = (self.store.weight.dumped, self.store.most_dumped);
        if there.saturating_add(growth) as u64 <= limit || !self.store.records() {
            return Ok(());
        }
        Err(Fault::new(format!(
            "MISCONF the storage area is full: it has room for {limit} bytes of data, {there} are there, and this needs {growth} more; delete data, or make the area larger"
        )))
    }

    /// The same for a value that is to take the place of whatever is at `key`.
    ///
    /// # Errors
    /// As [`Data::admit`].
    pub fn admit_value(&self, key: &[u8], value: &Value) -> Result<(), Fault> {
        let old = self.store.databases[self.database].index.get(key).map_or(0, Entry::dumped);
        self.admit(value.dumped(key.len()).saturating_sub(old))
    }

    /// Bytes that a key takes in a snapshot.
    pub fn dumped(&self, key: &[u8]) -> usize {
        self.store.databases[self.database].index.get(key).map_or(0, Entry::dumped)
    }

    /// Whether effects are recorded: when not, a handler need not build them.
    pub fn effects_on(&self) -> bool {
        self.store.records()
    }

    /// Records that a key is deleted.
    pub fn effect_delete(&mut self, key: &[u8]) {
        self.effect(&[b"DEL", key]);
    }

    /// Records what builds a key anew as it is now: DEL, its value, its expiry.
    pub fn effect_rebuild(&mut self, key: &[u8]) {
        if !self.store.records() {
            return;
        }
        let Store { databases, journal, metrics, dumping, .. } = &mut *self.store;
        let mut record = |arguments: &[&[u8]]| {
            metrics.effects += 1;
            journal.append(self.database, arguments);
            if let Some(dumping) = dumping {
                dumping.follow(self.database, arguments, &Detail::None);
            }
        };
        record(&[b"DEL", key]);
        if let Some(entry) = databases[self.database].index.get(key) {
            entry.rebuild(&mut record);
        }
    }

    /// Keys in the database.
    pub fn len(&self) -> usize {
        self.store.databases[self.database].index.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Visits about `count` keys in the order of the index; the cursor to go on with, 0 at the end.
    /// Keys whose time is over are left out.
    pub fn scan(&self, cursor: u64, count: usize, visit: &mut dyn FnMut(&Entry)) -> u64 {
        let now = if self.store.replaying { 0 } else { self.now.unix_ms };
        self.store.databases[self.database].index.scan(cursor, count, &mut |entry: &Entry| {
            if entry.expire_at > now {
                visit(entry);
            }
        })
    }

    /// Visits all keys.
    pub fn for_each(&self, visit: &mut dyn FnMut(&Entry)) {
        let now = if self.store.replaying { 0 } else { self.now.unix_ms };
        self.store.databases[self.database]
            .index
            .iter()
            .filter(|entry| entry.expire_at > now)
            .for_each(visit);
    }

    /// Some key.
    pub fn random_key(&mut self) -> Option<Box<[u8]>> {
        // Tries, lest a database full of overdue keys never ends.
        for _ in 0..100 {
            let Store { databases, random, .. } = &mut *self.store;
            let entry = databases[self.database].index.random(&mut || random.word())?;
            let key: Box<[u8]> = entry.key[..].into();
            if self.exists(&key) {
                return Some(key);
            }
        }
        None
    }
}

impl Entry {
    /// The commands that build this key anew, to `emit`.
    pub fn rebuild(&self, emit: &mut dyn FnMut(&[&[u8]])) {
        self.value.commands(&self.key, emit);
        self.rebuild_expiry(emit);
    }

    /// The command that gives this key its expiry, if it has one, to `emit`.
    pub fn rebuild_expiry(&self, emit: &mut dyn FnMut(&[&[u8]])) {
        if self.expire_at != NEVER {
            let mut digits = [0; 24];
            let at = crate::resp::print_integer(self.expire_at as i64, &mut digits);
            emit(&[b"PEXPIREAT", &self.key, &digits[at..]]);
        }
    }
}
