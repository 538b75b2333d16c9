//! A key with its value, its expiry and its last access.
//!
//! 1. A string that was set as a whole is a [`Record`]: one allocation with its key.
//! 2. Every other value, and one with a very long key, is [`Full`]: an allocation that holds the
//!    key if it is short, and the value, which may have allocations of its own.
//! 3. An entry is two words, so that the index has little to move when a segment splits.

use sietch_structures::XorShift64Star;

use super::clock::{NEVER, Now};
use super::record::Record;
use crate::data::index::Keyed;
use crate::data::value::{ShortBytes, StringRef, StringValue, Value, ValueRef};
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

enum Form {
    Text(Record),
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
const _: () = assert!(size_of::<Full>() <= 64);

impl Keyed for Entry {
    #[inline]
    fn key(&self) -> &[u8] {
        match &self.0 {
            Form::Text(record) => record.key(),
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
            return Self(Form::Text(record));
        }
        let key = ShortBytes::of(&[key]);
        Self(Form::Full(Box::new(Full { key, value, expire_at: NEVER, access })))
    }

    /// An entry of a string as SET makes it, without an expiry.
    #[inline]
    pub(super) fn of_string(key: &[u8], bytes: &[u8], access: u32) -> Self {
        let string = StringRef::of(bytes);
        match Record::new(key, string, access) {
            Some(record) => Self(Form::Text(record)),
            None => Self::new(key, Value::String(StringValue::new(bytes)), access),
        }
    }

    /// The value.
    #[inline]
    pub(crate) fn value(&self) -> ValueRef<'_> {
        match &self.0 {
            Form::Text(record) => ValueRef::String(record.string()),
            Form::Full(full) => full.value.view(),
        }
    }

    /// The value to be changed, unless it is stored together with the key: a string.
    #[inline]
    pub(super) fn value_mut(&mut self) -> Option<&mut Value> {
        match &mut self.0 {
            Form::Text(_) => None,
            Form::Full(full) => Some(&mut full.value),
        }
    }

    /// The bytes of a string to be changed in place; `None` for other types. From now on they are
    /// stored apart from the key.
    pub(super) fn grow_string(&mut self) -> Option<&mut Vec<u8>> {
        if let Form::Text(record) = &self.0 {
            let full = Full {
                key: ShortBytes::of(&[record.key()]),
                value: Value::String(record.string().to_value()),
                expire_at: record.expire_at(),
                access: record.access(),
            };
            self.0 = Form::Full(Box::new(full));
        }
        match &mut self.0 {
            Form::Full(full) => match &mut full.value {
                Value::String(string) => Some(string.grow()),
                _ => None,
            },
            Form::Text(_) => None,
        }
    }

    /// Replaces a string by an integer.
    pub(super) fn set_integer(&mut self, integer: i64) {
        if let Form::Text(record) = &mut self.0
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
            Form::Text(record) => record.overwrite(bytes),
            Form::Full(_) => false,
        }
    }

    /// Its value.
    pub(super) fn into_value(self) -> Value {
        match self.0 {
            Form::Text(record) => ValueRef::String(record.string()).to_value(),
            Form::Full(full) => full.value,
        }
    }

    /// The key's expiry, or [`NEVER`].
    #[inline]
    pub(crate) fn expire_at(&self) -> u64 {
        match &self.0 {
            Form::Text(record) => record.expire_at(),
            Form::Full(full) => full.expire_at,
        }
    }

    pub(super) fn set_expire_at(&mut self, expire_at: u64) {
        match &mut self.0 {
            Form::Text(record) => record.set_expire_at(expire_at),
            Form::Full(full) => full.expire_at = expire_at,
        }
    }

    /// See `eviction.rs`.
    pub(super) fn access(&self) -> u32 {
        match &self.0 {
            Form::Text(record) => record.access(),
            Form::Full(full) => full.access,
        }
    }

    #[inline]
    pub(super) fn put_access(&mut self, access: u32) {
        match &mut self.0 {
            Form::Text(record) => record.set_access(access),
            Form::Full(full) => full.access = access,
        }
    }

    /// Reads bytes of the entry's memory, so that the processor fetches it.
    #[inline]
    pub(super) fn prefetch(&self) -> u8 {
        match &self.0 {
            Form::Text(record) => record.prefetch(),
            Form::Full(full) => full.access as u8,
        }
    }

    /// The bytes that it takes beside its place in the index.
    pub(crate) fn weight(&self) -> Weight {
        let key = self.key().len();
        let value = self.value();
        let (memory, expires) = match &self.0 {
            Form::Text(record) => (record.memory(), record.expire_at() != NEVER),
            Form::Full(full) => {
                let memory = allocation(size_of::<Full>()) + full.key.memory() + value.memory();
                (memory, full.expire_at != NEVER)
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
