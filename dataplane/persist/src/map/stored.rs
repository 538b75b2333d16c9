//! A map whose values stay in the area: memory holds keys, and where the values are.
//!
//! 1. The records are those of [`Map`](super::Map), so either opens what the other wrote. A record
//!    of more than [`StoredMapOptions::inline`] bytes is held as its place: the stream, the
//!    sequence, segment and position of its first fragment.
//! 2. A value that was just put stays in memory until it is written; then memory holds its place.
//! 3. [`StoredMap::get`] answers from memory, or with a [`Fetch`]. [`StoredMap::fetch`] drives
//!    that: a single read of the record's own bytes, which validate themselves.
//! 4. Compaction reads the values that it copies, [`COPIES`] at a time, and notes where they are in
//!    the snapshot. When the snapshot has taken effect, each entry that has not changed since it
//!    was copied gets its new place. Until then the old places are good.
//! 5. A fetch whose record was given up meanwhile finds the wrong record there. It then finds its
//!    key in the index again, and continues at the new place.
//!
//! ```
//! use sietch_disk::MemoryQueue;
//! use sietch_persist::{Fetched, FormatOptions, StoredMap, StoredMapOptions, Value};
//!
//! let mut disk = MemoryQueue::new(1 << 20);
//! StoredMap::format(&mut disk, FormatOptions::new(42))?;
//! let (mut map, _) = StoredMap::open(disk, StoredMapOptions::default())?;
//! let done = map.put(b"stillsuit", &[7; 5000])?;
//! while map.poll()? < done {}
//!
//! let Some(Value::Stored(mut fetch)) = map.get(b"stillsuit") else { panic!("it was written") };
//! let value = loop {
//!     match map.fetch(&mut fetch)? {
//!         Fetched::Waiting => {}
//!         Fetched::Value(value) => break value.to_vec(),
//!         Fetched::Deleted => panic!("no client deletes it"),
//!     }
//!     map.poll()?;
//! };
//! assert_eq!(value, [7; 5000]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::collections::VecDeque;
use std::hash::BuildHasher;

use foldhash::fast::RandomState;
use hashbrown::HashTable;
use sietch_disk::DiskQueue;
use zerocopy::IntoBytes;

use super::MapMetrics;
use super::record::{Change, Deleted, KEY_START, Put, key_of, read, value_of};
use crate::compaction::{Compaction, SLICE};
use crate::error::{AppendError, Failure, FormatError, OpenError, ReadError, ResizeError, SnapshotError};
use crate::layout::{Content, RecordLocation};
use crate::log::{Cursor, FormatOptions, Log, Options, Sequence, Waiter};
use crate::scan::{Applied, Entry as LogEntry, RecoveryReport};
use crate::typed::typed;

/// Values that a compaction reads at a time: enough for the bandwidth of a disk, and half of
/// [`crate::limits::MAX_READS`] stays for others.
const COPIES: usize = 8;

/// How a map with values in the area is driven.
#[derive(Clone, Copy, Debug)]
pub struct StoredMapOptions {
    /// How its log is driven.
    pub log: Options,
    /// The longest record (16 bytes, key and value) that memory holds whole.
    pub inline: usize,
}

impl Default for StoredMapOptions {
    fn default() -> Self {
        // A place, its table entry and a read cost more than so many bytes.
        Self { log: Options::default(), inline: 128 }
    }
}

/// A value, or how to get it.
#[derive(Debug)]
pub enum Value<'a> {
    /// It is in memory.
    Here(&'a [u8]),
    /// It is in the area; see [`StoredMap::fetch`].
    Stored(Fetch),
}

/// A value on its way from the area.
#[derive(Debug)]
pub struct Fetch {
    key: Box<[u8]>,
    spot: RecordLocation,
    cursor: Box<Cursor>,
}

/// The state of a fetch.
#[derive(Debug, PartialEq, Eq)]
pub enum Fetched<'a> {
    /// Its bytes are on their way: poll the map, and call again.
    Waiting,
    /// The value.
    Value(&'a [u8]),
    /// The key was deleted meanwhile.
    Deleted,
}

/// How memory holds an entry.
enum Held {
    /// All of its record.
    Near(Box<[u8]>),
    /// Its record, which is not written yet, and where that is.
    Fresh(Box<[u8]>, RecordLocation),
    /// Its key, the bytes of its record, and where that is.
    Far(Box<[u8]>, usize, RecordLocation),
}

impl Held {
    fn key(&self) -> &[u8] {
        match self {
            Self::Near(record) | Self::Fresh(record, _) => key_of(record),
            Self::Far(key, ..) => key,
        }
    }

    /// Bytes of its record.
    fn length(&self) -> usize {
        match self {
            Self::Near(record) | Self::Fresh(record, _) => record.len(),
            Self::Far(_, length, _) => *length,
        }
    }

    fn spot(&self) -> Option<RecordLocation> {
        match self {
            Self::Near(_) => None,
            Self::Fresh(_, spot) | Self::Far(.., spot) => Some(*spot),
        }
    }

    /// Bytes in memory beside the slot.
    fn heap(&self) -> usize {
        match self {
            Self::Near(bytes) | Self::Fresh(bytes, _) | Self::Far(bytes, ..) => bytes.len(),
        }
    }
}

/// The entries, by slots that do not move.
#[derive(Default)]
struct Index {
    slots: Vec<Option<Held>>,
    free: Vec<u32>,
    table: HashTable<u32>,
    hasher: RandomState,
    /// Bytes of all records, and of the records in memory.
    bytes: usize,
    heap: usize,
}

impl Index {
    fn find(&self, key: &[u8]) -> Option<u32> {
        let is = |slot: &u32| self.held(*slot).is_some_and(|held| held.key() == key);
        self.table.find(self.hasher.hash_one(key), is).copied()
    }

    fn held(&self, slot: u32) -> Option<&Held> {
        self.slots.get(slot as usize)?.as_ref()
    }

    /// Replaces what a slot holds of its key.
    fn replace(&mut self, slot: u32, held: Held) {
        self.bytes += held.length();
        self.heap += held.heap();
        if let Some(old) = self.slots[slot as usize].replace(held) {
            self.bytes -= old.length();
            self.heap -= old.heap();
        }
    }

    fn put(&mut self, held: Held) -> u32 {
        if let Some(slot) = self.find(held.key()) {
            self.replace(slot, held);
            return slot;
        }
        let hash = self.hasher.hash_one(held.key());
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            // Memory ends long before 2^32 slots.
            (self.slots.len() - 1) as u32
        });
        self.replace(slot, held);
        let (slots, hasher) = (&self.slots, &self.hasher);
        self.table.insert_unique(hash, slot, |slot| {
            hasher.hash_one(slots[*slot as usize].as_ref().map_or(&[][..], Held::key))
        });
        slot
    }

    fn delete(&mut self, key: &[u8]) {
        let (slots, hash) = (&self.slots, self.hasher.hash_one(key));
        let is = |slot: &u32| slots[*slot as usize].as_ref().is_some_and(|held| held.key() == key);
        if let Ok(found) = self.table.find_entry(hash, is) {
            let (slot, _) = found.remove();
            if let Some(old) = self.slots[slot as usize].take() {
                self.bytes -= old.length();
                self.heap -= old.heap();
            }
            self.free.push(slot);
        }
    }

    /// Whether a slot still holds the record at `spot`.
    fn is_at(&self, slot: u32, spot: RecordLocation) -> bool {
        self.held(slot).and_then(Held::spot) == Some(spot)
    }

    fn replay(&mut self, payload: &[u8], spot: RecordLocation, inline: usize) -> Applied {
        match read(payload)? {
            Change::Put if payload.len() <= inline => drop(self.put(Held::Near(payload.into()))),
            Change::Put => drop(self.put(Held::Far(key_of(payload).into(), payload.len(), spot))),
            Change::Deleted(key) => self.delete(key),
        }
        Ok(())
    }
}

/// A value that a compaction reads.
struct Copied {
    slot: u32,
    spot: RecordLocation,
    cursor: Cursor,
}

/// See the module's account.
pub struct StoredMap<D: DiskQueue> {
    log: Log<D>,
    inline: usize,
    index: Index,
    /// Records in memory until the log has written them.
    fresh: VecDeque<(Sequence, u32, RecordLocation)>,
    compaction: Compaction<u32>,
    copies: VecDeque<Copied>,
    /// Copied into the snapshot: slots, the old place, and the new place.
    moved: Vec<(u32, RecordLocation, RecordLocation)>,
    /// The snapshot is complete, and takes effect when the log is done with it.
    switching: bool,
    /// A change was refused for lack of room.
    pressed: bool,
    metrics: MapMetrics,
}

impl<D: DiskQueue> StoredMap<D> {
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
    pub fn open(disk: D, options: StoredMapOptions) -> Result<(Self, RecoveryReport), OpenError> {
        let (mut index, inline) = (Index::default(), options.inline);
        let (log, report) = Log::open_as(disk, options.log, Content::MAP, &mut |entry, spot| {
            let (LogEntry::Snapshot(payload) | LogEntry::Record(_, payload)) = entry;
            index.replay(payload, spot, inline)
        })?;
        let map = Self {
            log,
            inline,
            index,
            fresh: VecDeque::new(),
            compaction: Compaction::default(),
            copies: VecDeque::new(),
            moved: Vec::new(),
            switching: false,
            pressed: false,
            metrics: MapMetrics::default(),
        };
        Ok((map, report))
    }

    /// The value of a key, as it was last put, durable or not; or how to fetch it.
    pub fn get(&self, key: &[u8]) -> Option<Value<'_>> {
        Some(match self.index.held(self.index.find(key)?)? {
            Held::Near(record) | Held::Fresh(record, _) => Value::Here(value_of(record)),
            Held::Far(key, length, spot) => Value::Stored(Fetch {
                key: key.clone(),
                spot: *spot,
                cursor: Box::new(self.log.cursor_at(*spot, *length)),
            }),
        })
    }

    /// Continues fetching a value: as it was when the fetch began, or as it is now.
    ///
    /// # Errors
    /// The device failed to read it, or it read other bytes than were written; the map continues.
    pub fn fetch<'a>(&'a mut self, fetch: &'a mut Fetch) -> Result<Fetched<'a>, ReadError> {
        loop {
            match self.log.read_at(&mut fetch.cursor) {
                Ok(true) => return Ok(Fetched::Value(value_of(fetch.cursor.payload()))),
                Ok(false) => return Ok(Fetched::Waiting),
                Err(error) => {
                    let Some(slot) = self.index.find(&fetch.key) else { return Ok(Fetched::Deleted) };
                    match self.index.held(slot) {
                        // Its segment was given up while it was read.
                        Some(Held::Far(_, length, spot)) if *spot != fetch.spot => {
                            (fetch.spot, *fetch.cursor) = (*spot, self.log.cursor_at(*spot, *length));
                        }
                        Some(Held::Far(..)) => return Err(error),
                        _ => return Ok(self.value_in_memory(slot)),
                    }
                }
            }
        }
    }

    fn value_in_memory(&self, slot: u32) -> Fetched<'_> {
        match self.index.held(slot) {
            Some(Held::Near(record) | Held::Fresh(record, _)) => Fetched::Value(value_of(record)),
            _ => Fetched::Deleted,
        }
    }

    /// Gives a key a value. It is durable once [`StoredMap::poll`] returns at least the sequence
    /// that this returns.
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
        let record = record.into_boxed_slice();
        if record.len() <= self.inline {
            self.index.put(Held::Near(record));
        } else {
            let spot = self.log.placed();
            let slot = self.index.put(Held::Fresh(record, spot));
            self.fresh.push_back((sequence, slot, spot));
        }
        self.metrics.puts += 1;
        Ok(sequence)
    }

    /// Deletes a key. `Ok(None)`: there is none. It is durable once [`StoredMap::poll`] returns at
    /// least the sequence. Deleting has room in a full map.
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

    /// Every key, in no order.
    pub fn keys(&self) -> impl Iterator<Item = &[u8]> {
        self.index.slots.iter().flatten().map(Held::key)
    }

    /// Keys in the map.
    pub fn len(&self) -> usize {
        self.index.table.len()
    }

    /// Whether there is no key.
    pub fn is_empty(&self) -> bool {
        self.index.table.is_empty()
    }

    /// Bytes of the entries' records.
    pub fn bytes(&self) -> usize {
        self.index.bytes
    }

    /// Bytes of memory that the entries take: their slots and table, keys, and records held in
    /// memory.
    pub fn memory(&self) -> usize {
        let slot = size_of::<Option<Held>>();
        // A table has a byte and four for each place, an eighth of which stays empty.
        self.index.heap + self.index.slots.capacity() * slot + self.index.table.capacity() * 6
    }

    /// Writes what has changed, takes what the disk has finished, and does a slice of compaction.
    /// Returns the sequence up to which everything is durable. Never waits.
    ///
    /// # Errors
    /// The log has failed: nothing beyond what was returned before may be relied on.
    pub fn poll(&mut self) -> Result<Sequence, Failure> {
        self.log.submit()?;
        let durable = self.log.poll()?;
        self.settle();
        if let Some(slot) = self.compaction.next(&self.log) {
            self.compact(slot)?;
        } else if !self.switching
            && (self.log.should_compact()
                || self.log.is_mostly_dead(self.index.bytes, self.index.table.len(), self.pressed))
        {
            self.pressed = false;
            self.compaction.begin(&mut self.log, 0);
        }
        Ok(durable)
    }

    /// Proves on the medium what is durable, when that is due: see [`Log::write_due_proof`].
    ///
    /// # Errors
    /// The log has failed.
    pub fn write_due_proof(&mut self, now: u64) -> Result<(), Failure> {
        self.log.write_due_proof(now)
    }

    /// Drops values that are written from memory, and takes new places when a snapshot has taken
    /// effect.
    fn settle(&mut self) {
        if self.switching && !self.log.is_snapshotting() {
            self.switching = false;
            for (slot, old, new) in std::mem::take(&mut self.moved) {
                if self.index.is_at(slot, old)
                    && let Some(held) = self.index.held(slot)
                {
                    // A fresh record is written by now: the snapshot waits for all of the log.
                    let far = Held::Far(held.key().into(), held.length(), new);
                    self.index.replace(slot, far);
                }
            }
        }
        // A record that moves is dropped at its new place.
        while let Some(&(sequence, slot, spot)) = self.fresh.front()
            && sequence <= self.log.written()
        {
            self.fresh.pop_front();
            if self.index.is_at(slot, spot)
                && let Some(Held::Fresh(record, _)) = self.index.held(slot)
            {
                let far = Held::Far(key_of(record).into(), record.len(), spot);
                self.index.replace(slot, far);
            }
        }
    }

    /// Writes the entries from slot `from` on into the snapshot, as many as one iteration may.
    fn compact(&mut self, from: u32) -> Result<(), Failure> {
        let mut at = from as usize;
        let mut written = 0;
        while written < SLICE && self.log.snapshot_room() > 0 {
            let done = match self.copies.front_mut() {
                Some(copied) => self.log.read_at(&mut copied.cursor).unwrap_or(true),
                None => false,
            };
            if done && let Some(copied) = self.copies.pop_front() {
                let Copied { slot, spot, cursor } = copied;
                if !self.index.is_at(slot, spot) {
                    // The entry was changed since, which is in the log after the snapshot's
                    // beginning.
                    continue;
                }
                // Nothing was read: the record is damaged, and the snapshot must not be without it.
                let payload = cursor.payload();
                let appended = if payload.is_empty() {
                    self.metrics.damaged += 1;
                    Err(SnapshotError::NoRoom)
                } else {
                    self.log.snapshot_append(payload)
                };
                written += payload.len() + 48;
                if !self.was_copied(appended, slot, Some(spot))? {
                    return Ok(());
                }
                continue;
            }
            if self.copies.len() >= COPIES || at >= self.index.slots.len() {
                break;
            }
            // A slot's number has 32 bits.
            let slot = at as u32;
            at += 1;
            match self.index.held(slot) {
                // Empty slots take time too.
                None => written += 8,
                Some(Held::Near(record) | Held::Fresh(record, _)) => {
                    let spot = self.index.held(slot).and_then(Held::spot);
                    written += record.len() + 48;
                    let appended = self.log.snapshot_append(record);
                    if !self.was_copied(appended, slot, spot)? {
                        return Ok(());
                    }
                }
                Some(Held::Far(_, length, spot)) => {
                    let (spot, cursor) = (*spot, self.log.cursor_at(*spot, *length));
                    self.copies.push_back(Copied { slot, spot, cursor });
                    self.start_copies();
                }
            }
        }
        self.start_copies();
        if at >= self.index.slots.len() && self.copies.is_empty() {
            self.switching = true;
            return self.compaction.finish(&mut self.log);
        }
        self.compaction.go_on(at as u32);
        Ok(())
    }

    /// Starts the read of every copy.
    fn start_copies(&mut self) {
        for copied in &mut self.copies {
            // The results are checked in order.
            let _ = self.log.read_at(&mut copied.cursor);
        }
    }

    /// Notes where a copy is; `false`: there was no room for it, and the snapshot is given up.
    fn was_copied(
        &mut self,
        appended: Result<(), SnapshotError>,
        slot: u32,
        old: Option<RecordLocation>,
    ) -> Result<bool, Failure> {
        match appended {
            Ok(()) => {
                if let (Some(old), Some(new)) = (old, self.log.snapshot_placed()) {
                    self.moved.push((slot, old, new));
                }
                Ok(true)
            }
            Err(SnapshotError::Failed(failure)) => Err(failure),
            Err(_) => {
                self.copies.clear();
                self.moved.clear();
                self.compaction.abort(&mut self.log);
                Ok(false)
            }
        }
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

    /// As [`Map::shrink_to`](super::Map::shrink_to).
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
