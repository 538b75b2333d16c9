//! The walk of a snapshot over the keys of one shard, a slice at a time while commands go on.
//!
//! 1. The walk follows the order of the index, in which a key never changes its position. A key is
//!    dumped whole, together with the sequence of the log at that moment.
//! 2. A large value is dumped in several slices ([`PartialDump`]); effects that change it meanwhile
//!    go into the dump.
//! 3. A key that is created behind the walk is not dumped: its effects are in the log after the
//!    begin of the snapshot.
//! 4. FLUSHALL, FLUSHDB and SWAPDB concern many keys. They change the generation of the
//!    partition, which aborts the snapshot; the server begins another one.

use std::collections::VecDeque;
use std::ops::Range;

use crate::data::index::{Keyed as _, SEGMENT_LIMIT};
use crate::data::journal::{self, LAST_PART, PART, SNAPSHOT};
use crate::data::keyspace::{DatabaseKey, DumpedPart, Entry, NEVER, PartialDump, Partition};
use crate::data::value::ValueRef;
use crate::foundation::text::number::Digits;

/// Keys dumped between two checks of the budget, where values are large. A segment of the index
/// that fits the budget is dumped as a whole: a piece of it costs a visit of all its keys.
const KEYS_AT_ONCE: usize = 32;
/// Bytes of a snapshot record at which it is complete.
const RECORD_BYTES: usize = 64 << 10;
/// Least bytes of a piece for each byte of its key, which every piece repeats.
const PIECE_KEYS: usize = 16;

/// The position of a running snapshot.
pub(super) struct SnapshotWalk {
    database: usize,
    cursor: u64,
    generation: u64,
    /// Large values that the walk has reached and that are dumped piece by piece. How far the first
    /// of them is dumped is in [`PartialDump`].
    large: VecDeque<DatabaseKey>,
}

impl SnapshotWalk {
    /// A walk over a partition of this generation.
    pub(super) fn new(generation: u64) -> Self {
        Self { database: 0, cursor: 0, generation, large: VecDeque::new() }
    }

    /// The generation of the partition when the walk began.
    pub(super) fn generation(&self) -> u64 {
        self.generation
    }

    /// Dumps about `budget` bytes more; true when the walk is complete. Values of more than
    /// `large_value` bytes are dumped in pieces.
    pub(super) fn dump_slice(
        &mut self,
        partition: &mut Partition,
        record: &mut SnapshotRecords<'_>,
        large_value: usize,
        budget: usize,
    ) -> bool {
        while self.database < partition.databases().len() || !self.large.is_empty() {
            if self.large.is_empty() {
                self.dump_keys(partition, record, large_value, budget);
            } else {
                dump_large(partition, &mut self.large, record, budget);
            }
            let over = self.database == partition.databases().len() && self.large.is_empty();
            if record.len() >= budget && !over {
                record.flush();
                return false;
            }
        }
        record.end();
        true
    }

    /// Dumps the next keys, but queues those with large values.
    fn dump_keys(
        &mut self,
        partition: &Partition,
        record: &mut SnapshotRecords<'_>,
        large_value: usize,
        budget: usize,
    ) {
        let database = self.database;
        let index = partition.databases()[database].index();
        let large = &mut self.large;
        let mut dump = |entry: &Entry| {
            let divisible = entry.value().free_effort() > 1 || matches!(entry.value(), ValueRef::String(_));
            if entry.dumped() > large_value && divisible {
                large.push_back((database, entry.key().into()));
            } else {
                entry.rebuild(&mut |arguments| record.effect(database, arguments));
            }
        };
        let average = partition.databases()[database].average();
        self.cursor = if average * SEGMENT_LIMIT <= budget {
            index.scan_segment(self.cursor, &mut dump)
        } else {
            index.scan(self.cursor, KEYS_AT_ONCE, &mut dump)
        };
        if self.cursor == 0 {
            self.database += 1;
        }
    }
}

/// Dumps a piece of the first large value in the queue.
fn dump_large(
    partition: &mut Partition,
    large: &mut VecDeque<DatabaseKey>,
    record: &mut SnapshotRecords<'_>,
    budget: usize,
) {
    let Some((database, key)) = large.front().cloned() else { return };
    let dump = partition.partial_dump.take();
    let begun = dump.is_some();
    let (mut part, mut piece) = (None, budget.max(key.len().saturating_mul(PIECE_KEYS)).max(1));
    if let Some(dump) = dump {
        record.encoded(&dump.effects);
        piece = piece.saturating_add(dump.added_bytes);
        part = Some(dump.part).filter(|part| *part != DumpedPart::Invalid);
    }
    let entry = partition.databases()[database].index().get(&key);
    if begun && (part.is_none() || (entry.is_none() && part != Some(DumpedPart::Whole))) {
        // The dumped part matches no state that the value ever had.
        record.effect(database, &[b"DEL", &key]);
        part = None;
    }
    let next = entry.and_then(|entry| dump_piece(entry, (database, &key), part, piece, record));
    if let Some(next) = next {
        partition.partial_dump = Some(PartialDump::new((database, key), next));
        return;
    }
    match entry {
        // Even a key without expiry gets an effect: the last effect fixes the sequence of the dump.
        Some(entry) if begun && entry.expire_at() == NEVER => record.effect(database, &[b"PERSIST", &key]),
        Some(entry) => entry.rebuild_expiry(&mut |arguments| record.effect(database, arguments)),
        None => {}
    }
    large.pop_front();
}

/// Dumps about `piece` bytes of a value that the snapshot does not have yet. Returns what it has
/// then, or `None` once it has all.
fn dump_piece(
    entry: &Entry,
    (database, key): (usize, &[u8]),
    part: Option<DumpedPart>,
    piece: usize,
    record: &mut SnapshotRecords<'_>,
) -> Option<DumpedPart> {
    let done = match part {
        Some(DumpedPart::Whole) => return None,
        Some(DumpedPart::Collection(progress)) => Some(progress),
        part => {
            if let ValueRef::String(value) = entry.value() {
                let mut digits = Digits::default();
                let cut = StringDump { database, key, bytes: value.bytes(&mut digits), piece };
                return cut.dump(part, record);
            }
            None
        }
    };
    let mut emit = |arguments: &[&[u8]]| record.effect(database, arguments);
    entry.value().commands_from(key, done.as_ref(), piece, &mut emit).map(DumpedPart::Collection)
}

/// A string that is dumped in pieces: first its end, so that the copy has its full length at once,
/// and then the rest from the beginning.
struct StringDump<'a> {
    database: usize,
    key: &'a [u8],
    bytes: &'a [u8],
    /// Bytes of a piece.
    piece: usize,
}

impl StringDump<'_> {
    fn range(&self, range: Range<usize>, record: &mut SnapshotRecords<'_>) {
        if !range.is_empty() {
            let mut digits = Digits::default();
            let offset = digits.write(range.start as i64);
            record.effect(self.database, &[b"SETRANGE", self.key, offset, &self.bytes[range]]);
        }
    }

    /// Dumps the bytes that effects may have invalidated, and the next piece. Returns what is
    /// dumped then.
    fn dump(&self, part: Option<DumpedPart>, record: &mut SnapshotRecords<'_>) -> Option<DumpedPart> {
        let length = self.bytes.len();
        let Some(DumpedPart::String { at, end, margin }) = part else {
            if length <= self.piece {
                record.effect(self.database, &[b"SET", self.key, self.bytes]);
                return None;
            }
            let end = length - self.piece;
            self.range(end..length, record);
            return Some(DumpedPart::String { at: 0, end, margin: 0 });
        };
        self.range(at.saturating_sub(margin)..at, record);
        self.range(end..end.saturating_add(margin).min(length), record);
        let next = at.saturating_add(self.piece).min(end);
        self.range(at..next, record);
        (next < end).then_some(DumpedPart::String { at: next, end, margin: 0 })
    }
}

/// Makes snapshot records of a piece ([`Shard::snapshot_pieces`](super::Shard::snapshot_pieces)) of
/// a data set as it is after the record `as_of` of the log. An empty piece makes the record that
/// ends a snapshot.
pub(crate) fn stamp(as_of: u64, piece: &[u8], most: usize, out: &mut dyn FnMut(&[u8])) {
    let mut record = SnapshotRecords::new(as_of, most, out);
    record.encoded(piece);
    if piece.is_empty() {
        record.begin();
    }
    record.flush();
}

/// Gathers effects into snapshot records.
pub(super) struct SnapshotRecords<'a> {
    bytes: Vec<u8>,
    /// The sequence in the head of each record; without one, records are pieces, which have no head
    /// and no end, and get both in [`stamp`].
    as_of: Option<u64>,
    total: usize,
    /// Bytes that a record may have.
    most: usize,
    out: &'a mut dyn FnMut(&[u8]),
}

impl<'a> SnapshotRecords<'a> {
    /// Records of at most `most` bytes, of a data set as it is after the record `as_of` of the log.
    pub(super) fn new(as_of: u64, most: usize, out: &'a mut dyn FnMut(&[u8])) -> Self {
        Self { bytes: Vec::new(), as_of: Some(as_of), total: 0, most, out }
    }

    /// Pieces without heads, of any size.
    pub(super) fn pieces(out: &'a mut dyn FnMut(&[u8])) -> Self {
        Self { bytes: Vec::new(), as_of: None, total: 0, most: usize::MAX, out }
    }

    /// Bytes gathered and emitted so far.
    fn len(&self) -> usize {
        self.total + self.bytes.len()
    }

    fn begin(&mut self) {
        if self.bytes.is_empty()
            && let Some(as_of) = self.as_of
        {
            self.bytes.push(SNAPSHOT);
            journal::number(&mut self.bytes, as_of);
        }
    }

    /// Effects as the journal encodes them.
    fn encoded(&mut self, effects: &[u8]) {
        if !effects.is_empty() {
            self.begin();
            self.bytes.extend_from_slice(effects);
        }
    }

    fn effect(&mut self, database: usize, arguments: &[&[u8]]) {
        self.begin();
        journal::encode(&mut self.bytes, database, arguments);
        if self.bytes.len() >= RECORD_BYTES {
            self.flush();
        }
    }

    fn flush(&mut self) {
        if self.bytes.len() > self.most {
            self.flush_parts();
        } else if !self.bytes.is_empty() {
            (self.out)(&self.bytes);
        }
        self.total += self.bytes.len();
        self.bytes.clear();
    }

    /// Ends the snapshot with a record without effects, which has the sequence of the walk's end.
    /// Pieces have none: other walks may go on.
    fn end(&mut self) {
        self.flush();
        self.begin();
        self.flush();
    }

    /// Emits a record in parts: it holds an effect that is larger than a record may be.
    fn flush_parts(&mut self) {
        let mut parts = self.bytes.chunks(self.most - 1).peekable();
        while let Some(part) = parts.next() {
            let kind = if parts.peek().is_some() { PART } else { LAST_PART };
            (self.out)(&[&[kind], part].concat());
        }
    }
}
