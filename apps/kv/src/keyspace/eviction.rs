//! Eviction: which key goes when memory is full.
//!
//! 1. Each entry's access word is either the time of the last access (units of 64 ms) or, under an
//!    LFU policy, the minute of the last decay (24 bits) and a logarithmic counter (8 bits) as
//!    Redis keeps it.
//! 2. For each key to evict, a few entries are sampled and the best of them join a pool of [`POOL`]
//!    candidates that is kept between calls, sorted by idleness. The idlest candidate that is still
//!    there goes. This approximates true LRU closely while an entry needs no links.
//! 3. `volatile-ttl` needs no sampling: the expiry map is ordered.
//! 4. Each eviction is a DEL in the log.

use sietch_structures::XorShift64Star;

use super::{Entry, NEVER, Now, Store};
use crate::settings::Policy;

/// Candidates kept between evictions, as many as Redis keeps.
const POOL: usize = 16;
/// Where a new key's frequency counter starts, so that it is not evicted at once.
const LFU_START: u32 = 5;
/// How much slower the counter grows the higher it is (`lfu-log-factor`).
const LFU_FACTOR: u32 = 10;
/// Entries looked at for one with an expiry before the search goes on in the expiry map.
const VOLATILE_TRIES: usize = 32;
/// Keys evicted before one command at most: a bound on its delay. The next command goes on.
const EVICTIONS_AT_ONCE: usize = 1024;

/// A key that may be evicted.
pub(super) struct Candidate {
    /// The greater, the sooner it goes.
    idleness: u64,
    database: usize,
    key: Box<[u8]>,
}

pub(super) fn access_time(now: Now) -> u32 {
    (now.unix_ms >> 6) as u32
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

    /// Makes it look as if it had been accessed so many seconds ago, or so often.
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
    pub fn idle_ms(&self, now: Now) -> u64 {
        u64::from(access_time(now).wrapping_sub(self.access)) << 6
    }

    /// The frequency counter, less one for each minute without access.
    pub fn frequency(&self, now: Now) -> u32 {
        let elapsed = minutes(now).wrapping_sub(self.access >> 8) & 0xff_ffff;
        (self.access & 0xff).saturating_sub(elapsed)
    }
}

impl Store {
    /// The access word of a key made now.
    pub(super) fn fresh_access(&self, now: Now) -> u32 {
        if self.settings.policy.counts_frequency() { minutes(now) << 8 | LFU_START } else { access_time(now) }
    }

    /// Evicts until memory is below the limit. False: it is not, and nothing more can go.
    pub fn make_room(&mut self, now: Now) -> bool {
        let used = self.used_memory();
        self.metrics.peak_memory = self.metrics.peak_memory.max(used);
        if self.settings.maxmemory == 0 || used <= self.settings.maxmemory {
            return true;
        }
        if self.settings.policy == Policy::NoEviction {
            return false;
        }
        for _ in 0..EVICTIONS_AT_ONCE {
            if self.used_memory() <= self.settings.maxmemory {
                return true;
            }
            let Some((database, key)) = self.victim(now) else {
                return false;
            };
            if let Some(entry) = self.take(database, &key) {
                self.discard(entry.value);
                self.metrics.evicted += 1;
                self.record(database, &[b"DEL", &key]);
                self.signal(database, &key);
            }
        }
        true
    }

    fn victim(&mut self, now: Now) -> Option<(usize, Box<[u8]>)> {
        match self.settings.policy {
            Policy::NoEviction => None,
            Policy::VolatileTtl => self
                .databases
                .iter()
                .enumerate()
                .filter_map(|(number, database)| {
                    let (&(deadline, _), key) = database.expires.first_key_value()?;
                    Some((deadline, number, key))
                })
                .min_by_key(|&(deadline, ..)| deadline)
                .map(|(_, number, key)| (number, key.clone())),
            Policy::AllKeysRandom | Policy::VolatileRandom => {
                let start = self.random.word() as usize;
                let count = self.databases.len();
                (0..count).map(|offset| (start.wrapping_add(offset)) % count).find_map(|database| {
                    self.sample(database, now).map(|candidate| (database, candidate.key))
                })
            }
            _ => self.idlest(now),
        }
    }

    /// An entry that the policy allows to go.
    fn sample(&mut self, database: usize, now: Now) -> Option<Candidate> {
        let policy = self.settings.policy;
        let Self { databases, random, .. } = self;
        let index = &databases[database].index;
        let expires = &databases[database].expires;
        let candidate = |entry: &Entry| Candidate {
            idleness: if policy.counts_frequency() {
                u64::from(255 - entry.frequency(now))
            } else {
                entry.idle_ms(now)
            },
            database,
            key: entry.key[..].into(),
        };
        if !policy.volatile() {
            return index.random(&mut || random.word()).map(candidate);
        }
        let (&(first, _), _) = expires.first_key_value()?;
        let (&(last, _), _) = expires.last_key_value()?;
        for _ in 0..VOLATILE_TRIES {
            if let Some(entry) = index.random(&mut || random.word())
                && entry.expire_at != NEVER
            {
                return Some(candidate(entry));
            }
        }
        // Few keys have an expiry: take one whose deadline follows a random point of time.
        let from = first + random.word() % (last - first).saturating_add(1).max(1);
        let (_, key) = expires.range((from, 0)..).next()?;
        index.get(key).map(candidate)
    }

    fn idlest(&mut self, now: Now) -> Option<(usize, Box<[u8]>)> {
        for _ in 0..POOL {
            for database in 0..self.databases.len() {
                if self.databases[database].index.is_empty() {
                    continue;
                }
                for _ in 0..self.settings.maxmemory_samples {
                    if let Some(candidate) = self.sample(database, now) {
                        self.offer(candidate);
                    }
                }
            }
            while let Some(best) = self.pool.pop() {
                let here = self.databases[best.database].index.get(&best.key);
                let allowed = !self.settings.policy.volatile();
                if here.is_some_and(|entry| allowed || entry.expire_at != NEVER) {
                    return Some((best.database, best.key));
                }
            }
            if self.databases.iter().all(|database| database.index.is_empty()) {
                return None;
            }
        }
        None
    }

    /// Puts a candidate into the pool if it is idle enough for it.
    fn offer(&mut self, candidate: Candidate) {
        let known = |other: &Candidate| other.database == candidate.database && other.key == candidate.key;
        if self.pool.iter().any(known) {
            return;
        }
        let at = self.pool.partition_point(|other| other.idleness <= candidate.idleness);
        if self.pool.len() == POOL {
            if at == 0 {
                return;
            }
            self.pool.remove(0);
            self.pool.insert(at - 1, candidate);
        } else {
            self.pool.insert(at, candidate);
        }
    }
}
