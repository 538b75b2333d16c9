//! Eviction: which key is deleted when memory is full.
//!
//! 1. Each entry's access word is either the time of the last access (units of 64 ms) or, under an
//!    LFU policy, the minute of the last decay (24 bits) and a logarithmic counter (8 bits) as
//!    Redis keeps it.
//! 2. For each key to evict, a few entries are sampled. The best of them join the [`CANDIDATES`]
//!    candidates that are kept between calls, sorted by idleness, and the idlest one that still
//!    exists is evicted. This approximates true LRU closely, and an entry needs no links.
//! 3. `volatile-ttl` needs no sampling: the expiry map is ordered.
//! 4. With several shards the limit is that of all together. A shard evicts its own keys as long as
//!    it has at least 7/8 of an equal share. If it has less, or no key that the policy allows, keys
//!    of all shards are evicted in an exclusive section, and a few more than needed, so that not
//!    each write takes a section. Candidates among the keys of guests join the own ones.
//! 5. Each eviction is a DEL in the log.

use super::candidates::{CANDIDATES, Candidate};
use super::clock::{NEVER, Now};
use super::database::Database;
use super::entry::Entry;
use super::store::Store;
use crate::data::index::Keyed as _;
use crate::foundation::observation::key_events::class;
use crate::foundation::settings::Policy;

/// Random entries tried for one with an expiry before the search uses the expiry map.
const VOLATILE_TRIES: usize = 32;
/// Most keys evicted before one command: a bound on its delay. The next command continues.
const EVICTIONS_AT_ONCE: usize = 1024;
/// An exclusive section evicts until this part of the limit is free: 1 of 128.
const MORE_IN_SECTION: u64 = 128;

impl Store {
    /// Evicts until memory is below the limit. Returns false if it is not and no key can be
    /// evicted here.
    pub(crate) fn make_room(&mut self, now: Now) -> bool {
        let used = self.used_memory();
        self.metrics.peak_memory = self.metrics.peak_memory.max(used);
        let used = used + self.elsewhere.memory;
        if self.settings.maxmemory == 0 || used <= self.settings.maxmemory {
            return true;
        }
        if self.settings.policy == Policy::NoEviction || !self.evicts_alone() {
            return false;
        }
        let target = match self.partitions.has_guests() {
            true => self.settings.maxmemory - self.settings.maxmemory / MORE_IN_SECTION,
            false => self.settings.maxmemory,
        };
        for _ in 0..EVICTIONS_AT_ONCE {
            let left = self.used_memory() + self.elsewhere.memory;
            if left <= target {
                return true;
            }
            let Some((database, key)) = self.victim(now) else { return left <= self.settings.maxmemory };
            if let Some(entry) = self.take(database, &key) {
                self.discard(&key, entry.into_value());
                self.metrics.evicted += 1;
                self.observation.events.note(class::EVICTED, "evicted", database, &key);
                self.record(database, &[b"DEL", &key]);
                self.signal(database, &key);
            }
        }
        true
    }

    /// Whether all shards together have more than the limit.
    pub(crate) fn is_over_limit(&self) -> bool {
        let limit = self.settings.maxmemory;
        limit > 0 && self.used_memory() + self.elsewhere.memory > limit
    }

    /// Whether there is more than the limit, and only an exclusive section may evict.
    pub(crate) fn must_evict_elsewhere(&self) -> bool {
        self.is_over_limit() && self.settings.policy != Policy::NoEviction && !self.evicts_alone()
    }

    /// Whether the keys to evict are among those that are held: all are, or this shard has enough.
    fn evicts_alone(&self) -> bool {
        let count = self.placement().count() as u64;
        if count == 1 || self.partitions.has_guests() {
            return true;
        }
        let volatile = self.settings.policy.volatile();
        let candidates =
            |database: &Database| if volatile { database.expires.len() } else { database.index.len() };
        let own = self.used_memory();
        own.saturating_mul(8 * count) >= (own + self.elsewhere.memory).saturating_mul(7)
            && self
                .partitions()
                .flat_map(|partition| &partition.databases)
                .any(|database| candidates(database) > 0)
    }

    fn victim(&mut self, now: Now) -> Option<(usize, Box<[u8]>)> {
        match self.settings.policy {
            Policy::NoEviction => None,
            Policy::VolatileTtl => self
                .partitions()
                .flat_map(|partition| partition.databases.iter().enumerate())
                .filter_map(|(number, database)| {
                    let found = |&expiry: &(u64, u64)| Some((expiry.0, database.expiring_key(expiry)?));
                    let (deadline, key) = database.expires.iter().find_map(found)?;
                    Some((deadline, number, key))
                })
                .min_by_key(|&(deadline, ..)| deadline)
                .map(|(_, number, key)| (number, key.into())),
            Policy::AllKeysRandom | Policy::VolatileRandom => {
                let start = self.random.word() as usize;
                let count = self.database_count();
                (0..count).map(|offset| (start.wrapping_add(offset)) % count).find_map(|database| {
                    self.sample(database, now).map(|candidate| (database, candidate.key))
                })
            }
            _ => self.idlest(now),
        }
    }

    /// A random entry that the policy allows to evict.
    fn sample(&mut self, database: usize, now: Now) -> Option<Candidate> {
        let policy = self.settings.policy;
        let Self { partitions, random, .. } = self;
        let chosen = partitions.random(random, |partition| {
            let Database { index, expires, .. } = &partition.databases[database];
            if policy.volatile() { expires.len() } else { index.len() }
        });
        let Database { index, expires, .. } = &chosen.databases[database];
        let candidate = |entry: &Entry| Candidate {
            idleness: if policy.counts_frequency() {
                u64::from(255 - entry.frequency(now))
            } else {
                entry.idle_ms(now)
            },
            database,
            key: entry.key().into(),
        };
        if !policy.volatile() {
            return index.random(&mut || random.word()).map(candidate);
        }
        let (first, _) = *expires.first()?;
        let (last, _) = *expires.last()?;
        for _ in 0..VOLATILE_TRIES {
            if let Some(entry) = index.random(&mut || random.word())
                && entry.expire_at() != NEVER
            {
                return Some(candidate(entry));
            }
        }
        // Few keys have an expiry: take one whose deadline follows a random point of time.
        let from = first + random.word() % (last - first).saturating_add(1).max(1);
        let &(deadline, hash) = expires.range((from, 0)..).next()?;
        index.find_hashed(hash, |entry| entry.expire_at() == deadline).map(candidate)
    }

    fn idlest(&mut self, now: Now) -> Option<(usize, Box<[u8]>)> {
        for _ in 0..CANDIDATES {
            for database in 0..self.database_count() {
                if self.len(database) == 0 {
                    continue;
                }
                for _ in 0..self.settings.maxmemory_samples {
                    if let Some(candidate) = self.sample(database, now) {
                        self.own_mut().candidates.offer(candidate);
                    }
                }
            }
            while let Some(best) = self.own_mut().candidates.pop() {
                let here = self.find(best.database, &best.key);
                let allowed = !self.settings.policy.volatile();
                if here.is_some_and(|entry| allowed || entry.expire_at() != NEVER) {
                    return Some((best.database, best.key));
                }
            }
            if self.keys() == 0 {
                return None;
            }
        }
        None
    }
}
