//! A key with its value, its expiry, its last access, and the bytes that it takes.

use sietch_structures::XorShift64Star;

use super::clock::Now;
use super::key::Key;
use crate::data::index::Keyed;
use crate::data::value::Value;
use crate::foundation::settings::Policy;
use crate::foundation::text::number::Digits;

/// The expiry of a key that has none.
pub(crate) const NEVER: u64 = u64::MAX;

/// Bytes that an entry takes beside a long key and its value: itself, its share of the index (load
/// 7/16 on the average) and the allocator's headers.
const ENTRY_OVERHEAD: usize = size_of::<Entry>() + size_of::<Entry>() / 2 + 16;

/// Bytes that an expiry takes beside a second copy of the key.
const EXPIRY_OVERHEAD: usize = 48;

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
pub(crate) struct Entry {
    pub(super) key: Key,
    /// The value.
    pub value: Value,
    /// Unix time in milliseconds, or [`NEVER`].
    pub(super) expire_at: u64,
    pub(super) charged: Weight,
    pub(super) ticket: u32,
    /// See `eviction.rs`.
    pub(super) access: u32,
}

impl Keyed for Entry {
    fn key(&self) -> &[u8] {
        &self.key
    }
}

impl Entry {
    /// The key's expiry, or [`NEVER`].
    pub(crate) fn expire_at(&self) -> u64 {
        self.expire_at
    }

    /// Bytes of memory it is charged with.
    pub(crate) fn charged(&self) -> usize {
        self.charged.memory
    }

    /// Bytes that it takes in a snapshot, at most.
    pub(crate) fn dumped(&self) -> usize {
        self.charged.dumped
    }

    /// Recounts its bytes, in its database and in total.
    pub(super) fn reweigh(&mut self, database: &mut Weight, all: &mut Weight) {
        let charged = self.weigh();
        database.exchange(self.charged, charged);
        all.exchange(self.charged, charged);
        self.charged = charged;
    }

    fn weigh(&self) -> Weight {
        // An expiry is one more effect, with 13 digits.
        let expiry = if self.expire_at == NEVER { 0 } else { EXPIRY_OVERHEAD + self.key.len() };
        Weight {
            memory: ENTRY_OVERHEAD + self.key.memory() + self.value.memory() + expiry,
            dumped: self.value.dumped(self.key.len()) + expiry,
        }
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
            self.access = access_time(now);
            return;
        }
        let mut counter = self.frequency(now);
        let base = counter.saturating_sub(LFU_START);
        if counter < 255 && random.word().is_multiple_of(u64::from(base * LFU_FACTOR + 1)) {
            counter += 1;
        }
        self.access = minutes(now) << 8 | counter;
    }

    /// Sets the last access, or the frequency, whichever the policy uses.
    pub(super) fn set_access(&mut self, policy: Policy, now: Now, idle: Option<u64>, frequency: Option<u8>) {
        if policy.counts_frequency() {
            if let Some(frequency) = frequency {
                self.access = minutes(now) << 8 | u32::from(frequency);
            }
        } else if let Some(seconds) = idle {
            let units = seconds.saturating_mul(1000) >> 6;
            self.access = access_time(now).wrapping_sub(units.min(u64::from(u32::MAX / 2)) as u32);
        }
    }

    /// Milliseconds since the last access.
    pub(crate) fn idle_ms(&self, now: Now) -> u64 {
        u64::from(access_time(now).wrapping_sub(self.access)) << 6
    }

    /// The frequency counter, less one for each minute without access.
    pub(crate) fn frequency(&self, now: Now) -> u32 {
        let elapsed = minutes(now).wrapping_sub(self.access >> 8) & 0xff_ffff;
        (self.access & 0xff).saturating_sub(elapsed)
    }
}

impl Entry {
    /// Emits the commands that rebuild this key.
    pub(crate) fn rebuild(&self, emit: &mut dyn FnMut(&[&[u8]])) {
        self.value.commands(&self.key, emit);
        self.rebuild_expiry(emit);
    }

    /// Emits the command that sets the expiry of this key, if it has one.
    pub(crate) fn rebuild_expiry(&self, emit: &mut dyn FnMut(&[&[u8]])) {
        if self.expire_at != NEVER {
            let mut digits = Digits::default();
            emit(&[b"PEXPIREAT", &self.key, digits.write(self.expire_at as i64)]);
        }
    }
}
