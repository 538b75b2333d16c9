//! Recovery from the log, and the snapshot that lets the log be compacted.
//!
//! 1. A snapshot is taken in slices while commands go on: it walks the databases in the order of
//!    the index, in which no key ever changes its place. A key is dumped whole, together with the
//!    sequence of the log at that moment. A large value is dumped in several slices; what changes
//!    it meanwhile goes into the dump ([`Dumping`]). A key that is made behind the walk is not
//!    dumped: its effects are in the log after the snapshot's begin.
//! 2. Recovery loads the snapshot, then replays the log from the sequence at which the snapshot
//!    began. An effect on a dumped key with a sequence up to that of its dump is in the dump
//!    already and is skipped. This is why effects concern one key.
//! 3. An effect on a key that was deleted before the walk came by can meet another state than it
//!    did at first (nothing instead of a list); whatever it makes is deleted again by an effect
//!    that follows. So a fault of a key that is not in the snapshot is held against it until it is
//!    deleted ([`Suspects`]). Only an effect up to the sequence at which the walk ended can be one
//!    of these. Every other fault, and one that stands when the log is at its end, is damage.
//! 4. FLUSHALL, FLUSHDB and SWAPDB concern many keys: they abort a snapshot, and the loop begins
//!    another.
//! 5. Guards are keyed by 128 bits of hash, for one sequence a key: a collision would need 2^64
//!    keys.

use std::collections::{HashMap, VecDeque};
use std::hash::Hasher;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::Range;

use hashbrown::HashTable;
use siphasher::sip128::{Hasher128, SipHasher13};

use super::Shard;
use crate::client::{Client, ClientId};
use crate::commands::{Command, Context, Fault, Table, flag};
use crate::index::{Keyed as _, SEGMENT_LIMIT};
use crate::journal::{self, EFFECTS, LAST_PART, PART, Reader, ReplayError, SNAPSHOT};
use crate::keyspace::{Data, Dumping, Entry, NEVER, Now, Part, Place, Store};
use crate::resp::Reply;
use crate::value::{Digits, Value};

/// Keys dumped between two looks at the budget, where values are large. Where a segment of the
/// index fits the budget, that is dumped as a whole: to cut it in pieces is to look at all its keys
/// for each of them.
const KEYS_AT_ONCE: usize = 32;
/// Effects that replay decodes before it applies them: enough accesses to memory at once, few
/// enough for the first-level cache.
const AHEAD: usize = 16;
/// Sequence of the first record of a log.
const FIRST_SEQUENCE: u64 = 1;
/// A snapshot record is handed out when it has this many bytes.
const RECORD_BYTES: usize = 64 << 10;

/// Of which keys the snapshot knows more than the log's effects up to a sequence.
pub(super) struct Guards {
    table: HashTable<Guard>,
    seeds: (u64, u64),
}

/// A key's name and the sequence of its dump.
struct Guard {
    name: (u64, u64),
    as_of: u64,
}

impl Guards {
    pub(super) fn new(first: u64, second: u64) -> Self {
        Self { table: HashTable::new(), seeds: (first, second) }
    }

    /// The snapshot has a key as it was when the log's last record had the sequence `as_of`.
    fn put(&mut self, database: u64, key: &[u8], as_of: u64) {
        let name = self.name(database, key);
        match self.table.find_mut(name.0, |guard| guard.name == name) {
            Some(guard) => guard.as_of = as_of,
            None => {
                self.table.insert_unique(name.0, Guard { name, as_of }, |guard| guard.name.0);
            }
        }
    }

    /// Whether the snapshot has a key.
    fn hold(&self, database: u64, key: &[u8]) -> bool {
        let name = self.name(database, key);
        self.table.find(name.0, |guard| guard.name == name).is_some()
    }

    /// Whether the snapshot has what record `sequence` did to a key.
    fn cover(&self, database: u64, key: &[u8], sequence: u64) -> bool {
        if self.table.is_empty() {
            return false;
        }
        let name = self.name(database, key);
        self.table.find(name.0, |guard| guard.name == name).is_some_and(|guard| sequence <= guard.as_of)
    }

    fn name(&self, database: u64, key: &[u8]) -> (u64, u64) {
        let mut hasher = SipHasher13::new_with_keys(self.seeds.0, self.seeds.1);
        hasher.write_u64(database);
        hasher.write(key);
        hasher.finish128().as_u64()
    }
}

/// Effects that could not be applied to keys which the snapshot does not have.
#[derive(Default)]
pub(super) struct Suspects {
    /// By key: the first of each.
    first: HashMap<Place, ReplayError>,
    /// The sequence up to which the snapshot can explain one, once that is known.
    explained: Option<u64>,
}

impl Suspects {
    /// A snapshot record has been loaded, which is its last one if it is `empty`. A snapshot of an
    /// earlier writer has no such record, and does not say where its walk ended.
    fn loaded(&mut self, as_of: u64, empty: bool) {
        self.explained = Some(if empty { as_of } else { u64::MAX });
    }

    /// A record of the log is replayed. Without a snapshot every effect meets the state that it met
    /// at first; a log that begins later had one of an earlier writer, of no keys.
    fn replayed(&mut self, sequence: u64) {
        self.explained.get_or_insert(if sequence == FIRST_SEQUENCE { 0 } else { u64::MAX });
    }

    /// Whether an effect of this record may have failed because the snapshot lacks its key.
    fn explains(&self, sequence: u64) -> bool {
        self.explained.is_some_and(|last| sequence <= last)
    }

    /// What was here is gone or replaced as a whole: no matter how it was made. Whether there was a
    /// suspect.
    fn acquit(&mut self, database: usize, key: &[u8]) -> bool {
        !self.first.is_empty() && self.first.remove(&(database, key.into())).is_some()
    }
}

/// The command that an effect names: one that writes and takes so many arguments.
fn command_of(table: &Table, arguments: &[&[u8]], sequence: u64) -> Result<&'static Command, ReplayError> {
    let found = table.find(arguments[0]);
    let known =
        found.filter(|(_, command)| command.flags.has(flag::WRITE) && command.accepts(arguments.len()));
    known.map(|(_, command)| command).ok_or_else(|| {
        let name = String::from_utf8_lossy(arguments[0]).into_owned();
        ReplayError::Command { sequence, name }
    })
}

/// Bytes of a key that an error shows.
const SHOWN_KEY: usize = 64;

fn refused(sequence: u64, arguments: &[&[u8]], fault: &Fault) -> ReplayError {
    let text = |bytes: &[u8]| String::from_utf8_lossy(&bytes[..bytes.len().min(SHOWN_KEY)]).into_owned();
    ReplayError::Refused {
        sequence,
        effect: text(arguments[0]),
        key: arguments.get(1).map(|key| text(key)).unwrap_or_default(),
        reason: text(&fault.0),
    }
}

/// Where a running snapshot is.
pub(super) struct Snapshot {
    database: usize,
    cursor: u64,
    generation: u64,
    /// Large values that the walk has come by, and that are dumped piece by piece. How far the
    /// first of them is dumped, [`Dumping`] knows.
    large: VecDeque<Place>,
}

/// Bytes of a piece for each byte of its key, which every piece repeats.
const PIECE_KEYS: usize = 16;

impl Shard {
    /// Replays one log record of effects.
    ///
    /// # Errors
    /// The record is damaged, or was written by another program. Some of what it had until then is
    /// applied.
    pub fn replay(&mut self, sequence: u64, record: &[u8], now: Now) -> Result<(), ReplayError> {
        self.now = now;
        let reader = Reader::new(record, EFFECTS, sequence)?;
        self.suspects.replayed(sequence);
        self.replay_effects(reader, sequence, true)
    }

    /// Loads one record of a snapshot.
    ///
    /// # Errors
    /// As [`Shard::replay`].
    pub fn replay_snapshot(&mut self, record: &[u8]) -> Result<(), ReplayError> {
        match record {
            [PART, part @ ..] => {
                self.parts.extend_from_slice(part);
                Ok(())
            }
            [LAST_PART, part @ ..] => {
                let mut whole = std::mem::take(&mut self.parts);
                whole.extend_from_slice(part);
                self.replay_dumped(&whole)
            }
            _ if !self.parts.is_empty() => Err(ReplayError::Truncated { sequence: 0, at: self.parts.len() }),
            _ => self.replay_dumped(record),
        }
    }

    fn replay_dumped(&mut self, record: &[u8]) -> Result<(), ReplayError> {
        let mut reader = Reader::new(record, SNAPSHOT, 0)?;
        let as_of = reader.number()?;
        self.suspects.loaded(as_of, reader.is_at_end());
        self.replay_effects(reader, as_of, false)
    }

    fn replay_effects(
        &mut self,
        mut reader: Reader<'_>,
        sequence: u64,
        guarded: bool,
    ) -> Result<(), ReplayError> {
        self.store.replaying = true;
        let nowhere = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
        let id = ClientId { slot: u32::MAX, generation: 0 };
        let mut client = Client::new(id, 0, nowhere, nowhere, 0);
        let (mut arguments, mut ahead) = (Vec::new(), Vec::with_capacity(AHEAD));
        let mut scratch = Vec::new();
        loop {
            self.read_ahead(&mut reader, sequence, &mut arguments, &mut ahead)?;
            if ahead.is_empty() {
                return Ok(());
            }
            for &(number, begin, end) in &ahead {
                let effect: &[&[u8]] = &arguments[begin..end];
                let key = effect.get(1).copied().unwrap_or_default();
                if !guarded {
                    self.guards.put(number as u64, key, sequence);
                } else if self.guards.cover(number as u64, key, sequence) {
                    continue;
                }
                // What nearly all effects are needs no command.
                if let [b"SET", key, value] = effect {
                    Data::new(&mut self.store, number, self.now).insert_string(key, value);
                    self.acquit(number, key);
                    continue;
                }
                client.database = number;
                scratch.clear();
                scratch = self.replay_effect(&mut client, effect, sequence, scratch, guarded)?;
            }
        }
    }

    /// Decodes the next few effects, each a database and a range of `arguments`, and touches what
    /// they will look for: memory answers for all of them at once.
    fn read_ahead<'a>(
        &mut self,
        reader: &mut Reader<'a>,
        sequence: u64,
        arguments: &mut Vec<&'a [u8]>,
        ahead: &mut Vec<(usize, usize, usize)>,
    ) -> Result<(), ReplayError> {
        arguments.clear();
        ahead.clear();
        let count = self.store.databases().len();
        while ahead.len() < AHEAD {
            let begin = arguments.len();
            let Some(database) = reader.effect_behind(arguments)? else { break };
            let number = usize::try_from(database)
                .ok()
                .filter(|&number| number < count)
                .ok_or(ReplayError::Database { sequence, database })?;
            ahead.push((number, begin, arguments.len()));
        }
        self.store.metrics.replayed += ahead.len() as u64;
        for &(number, begin, _) in ahead.iter() {
            self.store.touch(number, arguments[begin..].iter().skip(1).take(1));
        }
        Ok(())
    }

    fn replay_effect(
        &mut self,
        client: &mut Client,
        arguments: &[&[u8]],
        sequence: u64,
        scratch: Vec<u8>,
        guarded: bool,
    ) -> Result<Vec<u8>, ReplayError> {
        let command = command_of(&self.table, arguments, sequence)?;
        let database = client.database;
        let mut context = Context {
            data: Data::new(&mut self.store, database, self.now),
            reply: Reply::new(scratch, false),
            random: &mut self.random,
            client,
            peers: &mut self.peers,
            table: &self.table,
            command,
            failed: None,
            undone: false,
            pushed: Vec::new(),
            must_not_block: true,
        };
        let outcome = (command.handler)(&mut context, arguments);
        let bytes = context.reply.bytes;
        let key = arguments.get(1).copied();
        if let Err(fault) = outcome {
            let refused = refused(sequence, arguments, &fault);
            match key {
                Some(key)
                    if guarded
                        && self.suspects.explains(sequence)
                        && !self.guards.hold(database as u64, key) =>
                {
                    self.suspects.first.entry((database, key.into())).or_insert(refused);
                }
                _ => return Err(refused),
            }
        } else if let (b"DEL", Some(key)) = (arguments[0], key) {
            self.acquit(database, key);
        }
        Ok(bytes)
    }

    fn acquit(&mut self, database: usize, key: &[u8]) {
        self.store.metrics.replay_skipped += u64::from(self.suspects.acquit(database, key));
    }

    /// Recovery is over: clients may come, keys expire again.
    ///
    /// # Errors A key is left to which an effect could not be applied, and nothing that followed
    /// says that this does not matter.
    pub fn finish_recovery(&mut self) -> Result<(), ReplayError> {
        self.store.replaying = false;
        self.guards.table = HashTable::new();
        self.store.ready.clear();
        if !self.parts.is_empty() {
            return Err(ReplayError::Truncated { sequence: 0, at: self.parts.len() });
        }
        let suspects = std::mem::take(&mut self.suspects).first;
        self.store.metrics.replay_skipped += suspects.len() as u64;
        let here = |(database, key): &Place| self.store.databases()[*database].index().contains(key);
        let left = suspects.into_iter().filter(|(place, _)| here(place)).map(|(_, cause)| cause);
        left.min_by_key(ReplayError::sequence).map_or(Ok(()), Err)
    }

    /// Begins a snapshot. Every effect so far must have been taken from the journal and appended to
    /// the log.
    pub fn begin_snapshot(&mut self) {
        self.snapshot_aborted = false;
        self.store.dumping = None;
        self.snapshot = Some(Snapshot {
            database: 0,
            cursor: 0,
            generation: self.store.generation,
            large: VecDeque::new(),
        });
    }

    /// Dumps about `budget_bytes` more as records to `out`; true when the snapshot is complete (or
    /// was aborted, see [`Shard::snapshot_aborted`]). `as_of` is the sequence of the last record of
    /// the log; the journal must be empty, or what it holds must never be appended: the dump has
    /// it.
    pub fn snapshot_slice(&mut self, as_of: u64, budget_bytes: usize, out: &mut dyn FnMut(&[u8])) -> bool {
        let Some(mut snapshot) = self.snapshot.take() else {
            return true;
        };
        if snapshot.generation != self.store.generation {
            self.snapshot_aborted = true;
            return true;
        }
        let most = self.largest_record;
        let mut record = Dump { bytes: Vec::new(), as_of, total: 0, most, out };
        let most = self.large_value;
        while snapshot.database < self.store.databases().len() || !snapshot.large.is_empty() {
            if !snapshot.large.is_empty() {
                dump_large(&mut self.store, &mut snapshot, &mut record, budget_bytes);
            } else {
                let database = snapshot.database;
                let index = self.store.databases()[database].index();
                let large = &mut snapshot.large;
                let mut dump = |entry: &Entry| {
                    let divisible = entry.value.free_effort() > 1 || matches!(entry.value, Value::String(_));
                    if entry.dumped() > most && divisible {
                        large.push_back((database, entry.key().into()));
                    } else {
                        entry.rebuild(&mut |arguments| record.effect(database, arguments));
                    }
                };
                let average = self.store.databases()[database].average();
                snapshot.cursor = if average * SEGMENT_LIMIT <= budget_bytes {
                    index.scan_segment(snapshot.cursor, &mut dump)
                } else {
                    index.scan(snapshot.cursor, KEYS_AT_ONCE, &mut dump)
                };
                if snapshot.cursor == 0 {
                    snapshot.database += 1;
                }
            }
            let over = snapshot.database == self.store.databases().len() && snapshot.large.is_empty();
            if record.total + record.bytes.len() >= budget_bytes && !over {
                record.flush();
                self.snapshot = Some(snapshot);
                return false;
            }
        }
        record.end();
        true
    }

    /// Whether the last snapshot was aborted because the data set was flushed meanwhile; begin
    /// another.
    pub fn snapshot_aborted(&self) -> bool {
        self.snapshot_aborted
            || self.snapshot.as_ref().is_some_and(|snapshot| snapshot.generation != self.store.generation)
    }

    /// Gives a running snapshot up.
    pub fn abort_snapshot(&mut self) {
        self.snapshot = None;
        self.store.dumping = None;
    }
}

/// Dumps a piece of the large value that is first in the queue.
fn dump_large(store: &mut Store, snapshot: &mut Snapshot, record: &mut Dump<'_>, budget: usize) {
    let Some((database, key)) = snapshot.large.front().cloned() else { return };
    let dumping = store.dumping.take();
    let begun = dumping.is_some();
    let (mut part, mut piece) = (None, budget.max(key.len().saturating_mul(PIECE_KEYS)).max(1));
    if let Some(dumping) = dumping {
        record.encoded(&dumping.effects);
        piece = piece.saturating_add(dumping.brought);
        part = Some(dumping.part).filter(|part| *part != Part::Spoilt);
    }
    let entry = store.databases()[database].index().get(&key);
    if begun && (part.is_none() || (entry.is_none() && part != Some(Part::Whole))) {
        // What there is of it in the snapshot is as it never was.
        record.effect(database, &[b"DEL", &key]);
        part = None;
    }
    let next = entry.and_then(|entry| dump_piece(entry, (database, &key), part, piece, record));
    if let Some(next) = next {
        store.dumping = Some(Dumping::new((database, key), next));
        return;
    }
    match entry {
        // An effect even if there is nothing to say: the last one tells as of when the dump is.
        Some(entry) if begun && entry.expire_at() == NEVER => record.effect(database, &[b"PERSIST", &key]),
        Some(entry) => entry.rebuild_expiry(&mut |arguments| record.effect(database, arguments)),
        None => {}
    }
    snapshot.large.pop_front();
}

/// Dumps about `piece` bytes of what the snapshot does not have of a value; what it has then,
/// unless that is all.
fn dump_piece(
    entry: &Entry,
    (database, key): (usize, &[u8]),
    part: Option<Part>,
    piece: usize,
    record: &mut Dump<'_>,
) -> Option<Part> {
    let done = match part {
        Some(Part::Whole) => return None,
        Some(Part::Collection(progress)) => Some(progress),
        part => {
            if let Value::String(value) = &entry.value {
                let mut digits = Digits::default();
                let cut = StringCut { database, key, bytes: value.bytes(&mut digits), piece };
                return cut.dump(part, record);
            }
            None
        }
    };
    let mut emit = |arguments: &[&[u8]]| record.effect(database, arguments);
    entry.value.commands_from(key, done.as_ref(), piece, &mut emit).map(Part::Collection)
}

/// A string that is dumped in pieces: first its end, so that it has its length at once, and then
/// the rest from the beginning.
struct StringCut<'a> {
    database: usize,
    key: &'a [u8],
    bytes: &'a [u8],
    /// Bytes of a piece.
    piece: usize,
}

impl StringCut<'_> {
    fn range(&self, range: Range<usize>, record: &mut Dump<'_>) {
        if !range.is_empty() {
            let mut digits = Digits::default();
            let offset = digits.write(range.start as i64);
            record.effect(self.database, &[b"SETRANGE", self.key, offset, &self.bytes[range]]);
        }
    }

    /// The next piece; what is dumped then. Before it the bytes that may have been spoilt.
    fn dump(&self, part: Option<Part>, record: &mut Dump<'_>) -> Option<Part> {
        let length = self.bytes.len();
        let Some(Part::String { at, end, margin }) = part else {
            if length <= self.piece {
                record.effect(self.database, &[b"SET", self.key, self.bytes]);
                return None;
            }
            let end = length - self.piece;
            self.range(end..length, record);
            return Some(Part::String { at: 0, end, margin: 0 });
        };
        self.range(at.saturating_sub(margin)..at, record);
        self.range(end..end.saturating_add(margin).min(length), record);
        let next = at.saturating_add(self.piece).min(end);
        self.range(at..next, record);
        (next < end).then_some(Part::String { at: next, end, margin: 0 })
    }
}

/// Gathers effects into snapshot records.
struct Dump<'a> {
    bytes: Vec<u8>,
    as_of: u64,
    total: usize,
    /// Bytes that a record may have.
    most: usize,
    out: &'a mut dyn FnMut(&[u8]),
}

impl Dump<'_> {
    fn begin(&mut self) {
        if self.bytes.is_empty() {
            self.bytes.push(SNAPSHOT);
            journal::number(&mut self.bytes, self.as_of);
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

    /// The walk is over: a record without effects says as of when.
    fn end(&mut self) {
        self.flush();
        self.begin();
        self.flush();
    }

    /// Hands a record out in parts: it holds an effect that is larger than a record may be.
    fn flush_parts(&mut self) {
        let mut parts = self.bytes.chunks(self.most - 1).peekable();
        while let Some(part) = parts.next() {
            let kind = if parts.peek().is_some() { PART } else { LAST_PART };
            (self.out)(&[&[kind], part].concat());
        }
    }
}
