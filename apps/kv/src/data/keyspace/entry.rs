//! A key with its value, its expiry and its last access.
//!
//! 1. A string that was set as a whole, and a packed collection, is a [`Record`]: one allocation
//!    with its key.
//! 2. Every other value, and one with a very long key, is [`Full`]: an allocation that holds the
//!    key if it is short, and the value, which may have allocations of its own.
//! 3. A collection is changed through a [`Change`](super::change::Change), which takes it out of
//!    the entry and puts it back. This copies nothing.
//! 4. An entry is two words, so that the index has little to move when a segment splits.

use sietch_structures::XorShift64Star;

use super::clock::{NEVER, Now};
use super::record::Record;
use crate::data::index::Keyed;
use crate::data::value::{Collection, ShortBytes, StringRef, StringValue, Value, ValueRef};
use crate::foundation::allocation::allocation;
use crate::foundation::settings::Policy;
use crate::foundation::text::number::Digits;

/// Bytes of an expiry in the ordered set: two words, and its share of a node's spare room.
const EXPIRY_MEMORY: usize = 32;

/// Bytes of an expiry in a snapshot beside the key: one more effect, with 13 digits.
const EXPIRY_DUMPED: usize = 48;

/// Where a new key's frequency counter starts, so that it is not evicted at once.
const LFU_START: u32 = 5;
/// How much slower the counter grows the higher it is (`lfu-log-factor`).
const LFU_FACTOR: u32 = 10;

/// The bytes that entries take.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Weight {
    /// Bytes of memory.
    pub memory: usize,
    /// Bytes in a snapshot, at most.
    pub dumped: usize,
}

impl Weight {
    /// Replaces the bytes of one entry by those of another.
    pub(super) fn exchange(&mut self, old: Self, new: Self) {
        self.memory = self.memory - old.memory + new.memory;
        self.dumped = self.dumped - old.dumped + new.dumped;
    }
}

/// A key with its value and its attributes.
pub(crate) struct Entry(Form);

/// What an entry knows beside its key and its value.
#[derive(Debug, Clone, Copy)]
pub(super) struct Attributes {
    /// See [`Entry::expire_at`].
    expire_at: u64,
    /// See [`Entry::access`].
    access: u32,
}

enum Form {
    Record(Record),
    Full(Box<Full>),
}

struct Full {
    key: ShortBytes,
    value: Value,
    /// Unix time in milliseconds, or [`NEVER`].
    expire_at: u64,
    /// See `eviction.rs`.
    access: u32,
}

const _: () = assert!(size_of::<Entry>() == 16);
const _: () = assert!(size_of::<Full>() <= 72);

impl Keyed for Entry {
    #[inline]
    fn key(&self) -> &[u8] {
        match &self.0 {
            Form::Record(record) => record.key(),
            Form::Full(full) => &full.key,
        }
    }
}

impl Entry {
    /// An entry without an expiry.
    pub(super) fn new(key: &[u8], value: Value, access: u32) -> Self {
        if let Value::String(string) = &value
            && let Some(record) = Record::new(key, string.view(), access)
        {
            return Self(Form::Record(record));
        }
        match Record::of_collection(key, value, access, NEVER) {
            Ok(record) => Self(Form::Record(record)),
            // It may be behind another key still.
            Err(value) => Self::full(key, value.apart(), access, NEVER),
        }
    }

    /// An entry whose value is apart from its key.
    fn full(key: &[u8], value: Value, access: u32, expire_at: u64) -> Self {
        Self(Form::Full(Box::new(Full { key: ShortBytes::of(&[key]), value, expire_at, access })))
    }

    /// An entry of a string as SET makes it, without an expiry.
    #[inline]
    pub(super) fn of_string(key: &[u8], bytes: &[u8], access: u32) -> Self {
        let string = StringRef::of(bytes);
        match Record::new(key, string, access) {
            Some(record) => Self(Form::Record(record)),
            None => Self::new(key, Value::String(StringValue::new(bytes)), access),
        }
    }

    /// The value.
    #[inline]
    pub(crate) fn value(&self) -> ValueRef<'_> {
        match &self.0 {
            Form::Record(record) => record.value(),
            Form::Full(full) => full.value.view(),
        }
    }

    /// Takes the collection out; `None`, and no change, if it is none of this type. Nothing but
    /// [`Entry::put_collection`] may be called then. One in a record takes the allocation with it.
    #[inline]
    pub(super) fn take_collection<T: Collection>(&mut self) -> Option<(T, Attributes)> {
        match &mut self.0 {
            Form::Record(record) => {
                let attributes = Attributes { expire_at: record.expire_at(), access: record.access() };
                let (allocated, front) = record.take_collection(T::KIND)?;
                Some((T::of_allocated(allocated, front), attributes))
            }
            Form::Full(full) => {
                T::of(full.value.view())?;
                let value = std::mem::replace(&mut full.value, Value::String(StringValue::Integer(0)));
                let attributes = Attributes { expire_at: full.expire_at, access: full.access };
                Some((T::of_value(value)?, attributes))
            }
        }
    }

    /// Puts the collection back that [`Entry::take_collection`] returned, with what it did.
    #[inline]
    pub(super) fn put_collection<T: Collection>(
        &mut self,
        key: &[u8],
        collection: T,
        attributes: Attributes,
    ) {
        match &mut self.0 {
            Form::Full(full) => full.value = collection.into_value(),
            Form::Record(record) => match collection.into_allocated() {
                Ok(allocated) => record.put_bytes(allocated),
                Err(value) => *self = Self::full(key, value, attributes.access, attributes.expire_at),
            },
        }
        debug_assert_eq!(self.key(), key, "a collection keeps the bytes before it");
    }

    /// The bytes of a string to be changed in place; `None` for other types. From now on they are
    /// stored apart from the key.
    pub(super) fn grow_string(&mut self) -> Option<&mut Vec<u8>> {
        if let Form::Record(record) = &self.0 {
            if record.kind().is_some() {
                return None;
            }
            let string = Value::String(record.string().to_value());
            *self = Self::full(record.key(), string, record.access(), record.expire_at());
        }
        match &mut self.0 {
            Form::Full(full) => match &mut full.value {
                Value::String(string) => Some(string.grow()),
                _ => None,
            },
            Form::Record(_) => None,
        }
    }

    /// Replaces a string by an integer.
    pub(super) fn set_integer(&mut self, integer: i64) {
        if let Form::Record(record) = &mut self.0
            && record.overwrite_integer(integer)
        {
            return;
        }
        let mut new = Self::new(self.key(), Value::String(StringValue::Integer(integer)), self.access());
        new.set_expire_at(self.expire_at());
        *self = new;
    }

    /// See [`Record::overwrite`].
    #[inline]
    pub(super) fn overwrite(&mut self, bytes: &[u8]) -> bool {
        match &mut self.0 {
            Form::Record(record) => record.overwrite(bytes),
            Form::Full(_) => false,
        }
    }

    /// Its value.
    pub(super) fn into_value(self) -> Value {
        match self.0 {
            Form::Record(record) => record.into_value(),
            Form::Full(full) => full.value,
        }
    }

    /// The key's expiry, or [`NEVER`].
    #[inline]
    pub(crate) fn expire_at(&self) -> u64 {
        match &self.0 {
            Form::Record(record) => record.expire_at(),
            Form::Full(full) => full.expire_at,
        }
    }

    pub(super) fn set_expire_at(&mut self, expire_at: u64) {
        match &mut self.0 {
            Form::Record(record) => record.set_expire_at(expire_at),
            Form::Full(full) => full.expire_at = expire_at,
        }
    }

    /// See `eviction.rs`.
    pub(super) fn access(&self) -> u32 {
        match &self.0 {
            Form::Record(record) => record.access(),
            Form::Full(full) => full.access,
        }
    }

    #[inline]
    pub(super) fn put_access(&mut self, access: u32) {
        match &mut self.0 {
            Form::Record(record) => record.set_access(access),
            Form::Full(full) => full.access = access,
        }
    }

    /// Whether it is one allocation.
    #[inline]
    pub(super) fn is_record(&self) -> bool {
        matches!(self.0, Form::Record(_))
    }

    /// Reads bytes of the entry's memory, so that the processor fetches it.
    #[inline]
    pub(super) fn prefetch(&self) -> u8 {
        match &self.0 {
            Form::Record(record) => record.prefetch(),
            Form::Full(full) => full.access as u8,
        }
    }

    /// The bytes that it takes beside its place in the index.
    pub(crate) fn weight(&self) -> Weight {
        let (key, value, memory, expires) = match &self.0 {
            Form::Record(record) => {
                (record.key().len(), record.value(), record.memory(), record.expire_at() != NEVER)
            }
            Form::Full(full) => {
                let value = full.value.view();
                let memory = allocation(size_of::<Full>()) + full.key.memory() + value.memory();
                (full.key.len(), value, memory, full.expire_at != NEVER)
            }
        };
        let (listed, effect) = if expires { (EXPIRY_MEMORY, EXPIRY_DUMPED + key) } else { (0, 0) };
        Weight { memory: memory + listed, dumped: value.dumped(key) + effect }
    }

    /// Bytes that it takes in a snapshot, at most.
    pub(crate) fn dumped(&self) -> usize {
        self.weight().dumped
    }
}

pub(super) fn access_time(now: Now) -> u32 {
    (now.unix_ms >> 6) as u32
}

/// The access word of a key that is created now.
pub(super) fn fresh_access(policy: Policy, now: Now) -> u32 {
    if policy.counts_frequency() { minutes(now) << 8 | LFU_START } else { access_time(now) }
}

fn minutes(now: Now) -> u32 {
    (now.unix_ms / 60_000) as u32 & 0xff_ffff
}

impl Entry {
    /// Notes an access.
    pub(super) fn note_access(&mut self, policy: Policy, now: Now, random: &mut XorShift64Star) {
        if !policy.counts_frequency() {
            self.put_access(access_time(now));
            return;
        }
        let mut counter = self.frequency(now);
        let base = counter.saturating_sub(LFU_START);
        if counter < 255 && random.word().is_multiple_of(u64::from(base * LFU_FACTOR + 1)) {
            counter += 1;
        }
        self.put_access(minutes(now) << 8 | counter);
    }

    /// Sets the last access, or the frequency, whichever the policy uses.
    pub(super) fn set_access(&mut self, policy: Policy, now: Now, idle: Option<u64>, frequency: Option<u8>) {
        if policy.counts_frequency() {
            if let Some(frequency) = frequency {
                self.put_access(minutes(now) << 8 | u32::from(frequency));
            }
        } else if let Some(seconds) = idle {
            let units = seconds.saturating_mul(1000) >> 6;
            self.put_access(access_time(now).wrapping_sub(units.min(u64::from(u32::MAX / 2)) as u32));
        }
    }

    /// Milliseconds since the last access.
    pub(crate) fn idle_ms(&self, now: Now) -> u64 {
        u64::from(access_time(now).wrapping_sub(self.access())) << 6
    }

    /// The frequency counter, less one for each minute without access.
    pub(crate) fn frequency(&self, now: Now) -> u32 {
        let elapsed = minutes(now).wrapping_sub(self.access() >> 8) & 0xff_ffff;
        (self.access() & 0xff).saturating_sub(elapsed)
    }
}

impl Entry {
    /// Emits the commands that rebuild this key.
    pub(crate) fn rebuild(&self, emit: &mut dyn FnMut(&[&[u8]])) {
        self.value().commands(self.key(), emit);
        self.rebuild_expiry(emit);
    }

    /// Emits the command that sets the expiry of this key, if it has one.
    pub(crate) fn rebuild_expiry(&self, emit: &mut dyn FnMut(&[&[u8]])) {
        if self.expire_at() != NEVER {
            let mut digits = Digits::default();
            emit(&[b"PEXPIREAT", self.key(), digits.write(self.expire_at() as i64)]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::value::{Hash, List, Rules, Set, SortedSet};

    /// Changes the collection, and returns how many elements it then has.
    fn change<T: Collection>(entry: &mut Entry, key: &[u8], change: impl FnOnce(&mut T)) -> usize {
        let (mut collection, attributes) = entry.take_collection::<T>().expect("its type");
        change(&mut collection);
        entry.put_collection(key, collection, attributes);
        entry.value().len()
    }

    /// Puts the element number `number` in, and returns how many there then are.
    fn grow(entry: &mut Entry, key: &[u8], number: u32, rules: &Rules) -> usize {
        let text = &number.to_string().into_bytes()[..];
        match entry.value().type_name() {
            "list" => change::<List>(entry, key, |list| list.push_back(text, rules)),
            // The members are no integers from the 20th on.
            "set" if number >= 20 => {
                change::<Set>(entry, key, |set| assert!(set.insert(&[b"e", text].concat(), rules)))
            }
            "set" => change::<Set>(entry, key, |set| assert!(set.insert(text, rules))),
            "hash" => change::<Hash>(entry, key, |hash| assert!(hash.insert(text, b"value", rules))),
            _ => change::<SortedSet>(entry, key, |set| assert!(set.insert(text, 1.0, rules).is_none())),
        }
    }

    fn collections() -> [Value; 4] {
        [
            Value::List(List::new()),
            Value::Set(Set::new()),
            Value::Hash(Hash::new()),
            Value::SortedSet(SortedSet::new()),
        ]
    }

    /// The commands that rebuild the entry, as one text.
    fn rebuilt(entry: &Entry) -> Vec<Vec<u8>> {
        let mut all = Vec::new();
        entry.rebuild(&mut |command| all.extend(command.iter().map(|word| word.to_vec())));
        all
    }

    #[test]
    fn a_collection_that_changes_keeps_its_key_expiry_and_access_in_all_its_forms() {
        let rules = Rules::with_seed(1);
        for (length, expire_at) in [(0, NEVER), (1, 7), (22, NEVER), (1024, 8), (1025, 9), (70_000, NEVER)] {
            let (key, long) = (vec![b'k'; length], vec![b'k'; 70_000]);
            for value in collections() {
                let mut apart = Entry::new(&long, value.clone(), 5);
                let mut entry = Entry::new(&key, value, 5);
                entry.set_expire_at(expire_at);
                for number in 0..700 {
                    assert_eq!(grow(&mut entry, &key, number, &rules), number as usize + 1);
                    grow(&mut apart, &long, number, &rules);
                    assert_eq!((entry.key(), entry.expire_at(), entry.access()), (&key[..], expire_at, 5));
                    if number % 60 == 0 {
                        let (mut expected, mut found) = (Vec::new(), Vec::new());
                        let words = |all: &mut Vec<Vec<u8>>, command: &[&[u8]]| {
                            all.extend(command[2..].iter().map(|word| word.to_vec()));
                        };
                        apart.value().commands(b"k", &mut |command| words(&mut expected, command));
                        entry.value().commands(b"k", &mut |command| words(&mut found, command));
                        expected.sort();
                        found.sort();
                        assert_eq!(found, expected);
                    }
                }
            }
        }
    }

    /// The key has 16 bytes, with 8 before it; a packed value has 8 before its elements.
    #[test]
    fn ten_elements_are_one_allocation_with_their_key() {
        let (rules, key) = (Rules::with_seed(1), [b'k'; 16]);
        for (value, elements) in collections().into_iter().zip([10 * 2, 10 * 2, 10 * (2 + 7), 10 * (2 + 2)]) {
            let mut entry = Entry::new(&key, value, 0);
            for number in 0..10 {
                grow(&mut entry, &key, number, &rules);
            }
            assert_eq!(entry.weight().memory, allocation(8 + 16 + 8 + elements));
            entry.set_expire_at(1);
            assert_eq!(entry.weight().memory, allocation(16 + 16 + 8 + elements) + EXPIRY_MEMORY);
        }
    }

    #[test]
    fn no_string_overwrites_a_collection_in_place() {
        let rules = Rules::with_seed(1);
        for value in collections() {
            let mut entry = Entry::new(b"key", value, 0);
            grow(&mut entry, b"key", 1, &rules);
            let text = rebuilt(&entry);
            for length in 0..40 {
                assert!(!entry.overwrite(&vec![b'x'; length]));
            }
            assert!(entry.grow_string().is_none());
            assert_eq!(rebuilt(&entry), text);
        }
    }

    #[test]
    fn a_collection_of_another_type_is_refused_and_stays() {
        let rules = Rules::with_seed(1);
        for key in [&b"key"[..], &[b'k'; 2000]] {
            let mut hash = Entry::new(key, Value::Hash(Hash::new()), 0);
            grow(&mut hash, key, 1, &rules);
            assert!(hash.take_collection::<List>().is_none() && hash.take_collection::<Set>().is_none());
            assert!(hash.take_collection::<SortedSet>().is_none());
            assert_eq!((hash.key(), hash.value().type_name(), hash.value().len()), (key, "hash", 1));
            let mut string = Entry::of_string(key, b"value", 0);
            assert!(string.take_collection::<Hash>().is_none());
            assert_eq!((string.key(), string.value().len()), (key, 5));
            string.grow_string().expect("a string").push(b'!');
            assert!(string.take_collection::<Hash>().is_none());
            assert_eq!((string.key(), string.value().len()), (key, 6));
        }
    }

    /// A value that moves to another key leaves the former key behind.
    #[test]
    fn a_value_under_another_key_weighs_what_a_new_one_does() {
        let rules = Rules::with_seed(1);
        for key in [&b"a"[..], &[b'k'; 300], &[b'k'; 2000]] {
            for value in collections() {
                let mut old = Entry::new(b"the former key", value.clone(), 0);
                let mut new = Entry::new(key, value, 0);
                for number in 0..5 {
                    grow(&mut old, b"the former key", number, &rules);
                    grow(&mut new, key, number, &rules);
                }
                let moved = Entry::new(key, old.into_value(), 0);
                assert_eq!(moved.weight().memory, new.weight().memory);
                assert_eq!(rebuilt(&moved), rebuilt(&new));
            }
        }
    }
}
