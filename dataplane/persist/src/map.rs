//! A map from keys to values: a hash index in memory over a log.
//!
//! 1. [`Map::put`] and [`Map::delete`] append a typed record each. Memory holds an entry as its
//!    record's payload, byte for byte as it is in the area: header, key, value. Nothing is
//!    encoded or decoded.
//! 2. Entries are in numbered slots and never move; a hash table finds the slot of a key.
//!    [`Map::get`] touches no disk.
//! 3. [`Map::poll`] writes and returns up to where changes are durable. The order of changes is the
//!    order of the log. After a crash the map is as it was after some change, no earlier than the
//!    last one that was known to be durable.
//! 4. When the log has grown past its state, the entries are written as a snapshot, slot by slot, a
//!    slice an iteration, while changes continue. A change behind or ahead of the walk is in the
//!    log after the snapshot's beginning, and replaying it again makes the same state.
//! 5. Values are in memory, so that reading never waits: for a state that fits there. Where only
//!    the keys fit, [`StoredMap`] opens the same area.
//! 6. Recovery reads snapshot and log once, several reads in flight, and builds the index as it
//!    reads.
//!
//! ```
//! use sietch_disk::MemoryQueue;
//! use sietch_persist::{FormatOptions, Map, Options};
//!
//! let mut disk = MemoryQueue::new(1 << 20);
//! Map::format(&mut disk, FormatOptions::new(42))?;
//! let (mut map, _) = Map::open(disk, Options::default())?;
//! map.put(b"melange", b"10")?;
//! let done = map.put(b"melange", b"9")?;
//! while map.poll()? < done {}
//!
//! let (map, _) = Map::open(map.into_disk(), Options::default())?;
//! assert_eq!(map.get(b"melange"), Some(&b"9"[..]));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod record;
mod stored;

use std::hash::BuildHasher;

use foldhash::fast::RandomState;
use hashbrown::HashTable;
use sietch_disk::DiskQueue;
use zerocopy::IntoBytes;

use crate::compaction::{Compaction, SLICE};
use crate::error::{AppendError, Failure, FormatError, OpenError, ResizeError, SnapshotError};
use crate::layout::Content;
use crate::log::{FormatOptions, Log, Options, Sequence, Waiter};
use crate::scan::{Applied, Entry as LogEntry, RecoveryReport};
use crate::typed::typed;
pub use stored::{Fetch, Fetched, StoredMap, StoredMapOptions, Value};

use record::{Change, Deleted, KEY_START, Put, key_of, read, value_of};

/// What a map has done since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MapMetrics {
    /// Values put.
    pub puts: u64,
    /// Keys deleted.
    pub deletes: u64,
    /// Changes refused because the area was full.
    pub full: u64,
    /// Compactions given up because a value could not be read ([`StoredMap`]).
    pub damaged: u64,
}

/// The entries in memory.
#[derive(Default)]
struct Index {
    /// Payloads of records, as they are in the area.
    slots: Vec<Option<Box<[u8]>>>,
    free: Vec<u32>,
    table: HashTable<u32>,
    hasher: RandomState,
    bytes: usize,
}

impl Index {
    fn find(&self, key: &[u8]) -> Option<u32> {
        let is = |slot: &u32| self.slot(*slot).is_some_and(|record| key_of(record) == key);
        self.table.find(self.hasher.hash_one(key), is).copied()
    }

    fn slot(&self, slot: u32) -> Option<&[u8]> {
        self.slots.get(slot as usize)?.as_deref()
    }

    /// Takes the payload of a put record.
    fn put(&mut self, record: Box<[u8]>) {
        self.bytes += record.len();
        if let Some(slot) = self.find(key_of(&record)) {
            let old = self.slots[slot as usize].replace(record);
            self.bytes -= old.map_or(0, |old| old.len());
            return;
        }
        let hash = self.hasher.hash_one(key_of(&record));
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            // Memory ends before 2^32 records of 48 bytes and more.
            (self.slots.len() - 1) as u32
        });
        self.slots[slot as usize] = Some(record);
        let (slots, hasher) = (&self.slots, &self.hasher);
        self.table.insert_unique(hash, slot, |slot| {
            hasher.hash_one(slots[*slot as usize].as_deref().map_or(&[][..], key_of))
        });
    }

    fn delete(&mut self, key: &[u8]) {
        let (slots, hash) = (&self.slots, self.hasher.hash_one(key));
        let is = |slot: &u32| slots[*slot as usize].as_deref().is_some_and(|record| key_of(record) == key);
        if let Ok(found) = self.table.find_entry(hash, is) {
            let (slot, _) = found.remove();
            let old = self.slots[slot as usize].take();
            self.bytes -= old.map_or(0, |old| old.len());
            self.free.push(slot);
        }
    }

    fn replay(&mut self, payload: &[u8]) -> Applied {
        match read(payload)? {
            Change::Put => self.put(payload.into()),
            Change::Deleted(key) => self.delete(key),
        }
        Ok(())
    }
}

/// See the module's account.
pub struct Map<D: DiskQueue> {
    log: Log<D>,
    index: Index,
    compaction: Compaction<u32>,
    /// A change was refused for lack of room.
    pressed: bool,
    metrics: MapMetrics,
}

impl<D: DiskQueue> Map<D> {
    /// Makes an empty map of the whole area. Whatever it held is lost.
    ///
    /// # Errors
    /// See [`FormatError`].
    pub fn format(disk: &mut D, options: FormatOptions) -> Result<(), FormatError> {
        Log::format_as(disk, options, Content::MAP)
    }

    /// Opens the map of an area.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(disk: D, options: Options) -> Result<(Self, RecoveryReport), OpenError> {
        let mut index = Index::default();
        let (log, report) = Log::open_as(disk, options, Content::MAP, &mut |entry, _| match entry {
            LogEntry::Snapshot(payload) | LogEntry::Record(_, payload) => index.replay(payload),
        })?;
        let (compaction, metrics) = (Compaction::default(), MapMetrics::default());
        Ok((Self { log, index, compaction, pressed: false, metrics }, report))
    }

    /// The value of a key, as it was last put, durable or not.
    pub fn get(&self, key: &[u8]) -> Option<&[u8]> {
        self.index.slot(self.index.find(key)?).map(value_of)
    }

    /// Gives a key a value. It is durable once [`Map::poll`] returns at least the sequence that
    /// this returns.
    ///
    /// # Errors
    /// See [`AppendError`]; nothing has changed.
    pub fn put(&mut self, key: &[u8], value: &[u8]) -> Result<Sequence, AppendError> {
        let Ok(key_length) = u32::try_from(key.len()) else {
            return Err(AppendError::TooLarge { length: key.len(), limit: crate::MAX_RECORD });
        };
        let put = Put { key_length: key_length.into(), reserved: 0.into() };
        let mut record = Vec::with_capacity(KEY_START + key.len() + value.len());
        record.extend_from_slice(&typed::<Put>());
        record.extend_from_slice(put.as_bytes());
        record.extend_from_slice(key);
        record.extend_from_slice(value);
        let sequence = self.log.append(&record).inspect_err(|error| {
            let full = matches!(error, AppendError::Full { .. });
            self.metrics.full += u64::from(full);
            self.pressed |= full;
        })?;
        self.index.put(record.into_boxed_slice());
        self.metrics.puts += 1;
        Ok(sequence)
    }

    /// Deletes a key. `Ok(None)`: there is none. It is durable once [`Map::poll`] returns at least
    /// the sequence. Deleting has room in a full map.
    ///
    /// # Errors
    /// See [`AppendError`]; nothing has changed.
    pub fn delete(&mut self, key: &[u8]) -> Result<Option<Sequence>, AppendError> {
        if self.index.find(key).is_none() {
            return Ok(None);
        }
        let sequence = self.log.append_shrinking_parts(&[&typed::<Deleted>(), key])?;
        self.index.delete(key);
        self.metrics.deletes += 1;
        Ok(Some(sequence))
    }

    /// Every key with its value, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.index.slots.iter().flatten().map(|record| (key_of(record), value_of(record)))
    }

    /// Keys in the map.
    pub fn len(&self) -> usize {
        self.index.table.len()
    }

    /// Whether there is no key.
    pub fn is_empty(&self) -> bool {
        self.index.table.is_empty()
    }

    /// Bytes of the entries in memory, as they are in the area.
    pub fn bytes(&self) -> usize {
        self.index.bytes
    }

    /// Writes what has changed, takes what the disk has finished, and does a slice of compaction.
    /// Returns the sequence up to which everything is durable. Never waits.
    ///
    /// # Errors
    /// The log has failed: nothing beyond what was returned before may be relied on.
    pub fn poll(&mut self) -> Result<Sequence, Failure> {
        self.log.submit()?;
        let durable = self.log.poll()?;
        if let Some(slot) = self.compaction.next(&self.log) {
            self.compact(slot)?;
        } else if self.log.should_compact()
            || self.log.is_mostly_dead(self.index.bytes, self.index.table.len(), self.pressed)
        {
            self.pressed = false;
            self.compaction.begin(&mut self.log, 0);
        }
        Ok(durable)
    }

    /// Proves on the medium which records are durable, when that is due: see
    /// [`Log::write_due_proof`].
    ///
    /// # Errors
    /// The log has failed.
    pub fn write_due_proof(&mut self, now: u64) -> Result<(), Failure> {
        self.log.write_due_proof(now)
    }

    /// Requests that everything be made durable, where the log's durability is deferred; see
    /// [`Log::flush`].
    ///
    /// # Errors
    /// The log has failed.
    pub fn flush(&mut self) -> Result<(), Failure> {
        self.log.submit()?;
        self.log.flush()
    }

    /// Writes the entries from slot `from` on into the snapshot, as many as one iteration may.
    fn compact(&mut self, from: u32) -> Result<(), Failure> {
        let mut written = 0;
        for (slot, record) in self.index.slots.iter().enumerate().skip(from as usize) {
            if written >= SLICE || self.log.snapshot_room() == 0 {
                // A slot's number has 32 bits.
                self.compaction.go_on(slot as u32);
                return Ok(());
            }
            let Some(record) = record else {
                // Empty slots take time too.
                written += 8;
                continue;
            };
            match self.log.snapshot_append(record) {
                Ok(()) => written += record.len() + 48,
                Err(SnapshotError::Failed(failure)) => return Err(failure),
                Err(_) => {
                    self.compaction.abort(&mut self.log);
                    return Ok(());
                }
            }
        }
        self.compaction.finish(&mut self.log)
    }

    /// Notifies `waiter` once everything up to `sequence` is durable, or never will be; see
    /// [`Log::when_durable`].
    pub fn when_durable(&mut self, sequence: Sequence, waiter: Waiter) {
        self.log.when_durable(sequence, waiter);
    }

    /// Uses more of the area while the map continues; see [`Log::grow`].
    ///
    /// # Errors
    /// See [`ResizeError`].
    pub fn grow(&mut self, capacity: u64) -> Result<(), ResizeError> {
        self.log.grow(capacity)
    }

    /// Moves everything before byte `capacity` of the area and gives the rest up; see
    /// [`Log::shrink_to`]. [`Map::poll`] moves what is in the way.
    ///
    /// # Errors
    /// See [`ResizeError`]. After [`ResizeError::Live`] the log is compacted as far as that frees
    /// anything: try again then.
    pub fn shrink_to(&mut self, capacity: u64) -> Result<(), ResizeError> {
        self.log.shrink_to(capacity).inspect_err(|error| {
            self.pressed |= matches!(error, ResizeError::Live { .. });
        })
    }

    /// Gives a change of size up; see [`Log::keep_size`].
    pub fn keep_size(&mut self) -> bool {
        self.log.keep_size()
    }

    /// Continues through another queue over the same area; see [`Log::replace_disk`].
    ///
    /// # Errors
    /// See [`ResizeError`].
    pub fn replace_disk(&mut self, disk: D) -> Result<(), ResizeError> {
        self.log.replace_disk(disk)
    }

    /// The log underneath, for its counters and its disk queue.
    pub fn log(&self) -> &Log<D> {
        &self.log
    }

    /// What the map has done since it was opened.
    pub fn metrics(&self) -> MapMetrics {
        self.metrics
    }

    /// Returns the disk queue without closing in order, as a crash would.
    pub fn into_disk(self) -> D {
        self.log.into_disk()
    }

    /// Makes everything durable and closes in order.
    ///
    /// # Errors
    /// The log has failed; the next opening recovers as after a crash.
    pub fn close(self) -> Result<D, Failure> {
        self.log.close()
    }
}
