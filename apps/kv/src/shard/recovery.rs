//! Recovery from the log, and the snapshot that lets the log be compacted.
//!
//! 1. A snapshot is taken in slices while commands go on ([`SnapshotWalk`]). Each key is dumped
//!    with the sequence of the log at that moment.
//! 2. Recovery loads the snapshot, then replays the log from the sequence at which the snapshot
//!    began. The dump of a key already includes the effects up to its sequence, so replay skips
//!    them ([`SnapshotKeys`](super::snapshot_keys::SnapshotKeys)). This is why an effect concerns
//!    one key.
//! 3. An effect on a key that was deleted before the walk reached it can meet another state than it
//!    did at first: no key instead of a list. Whatever it builds, a later effect deletes. So a
//!    fault of a key that is not in the snapshot is deferred until the key is deleted
//!    ([`DeferredFaults`](super::deferred_faults::DeferredFaults)). Only effects up to the sequence
//!    at which the walk ended can fail so. Every other fault is damage, and so is a deferred one at
//!    the end of the log.

use sietch::persist::{Applied, Entry};

use super::Shard;
use super::replay::SHOWN_KEY;
use super::snapshot::{SnapshotRecords, SnapshotWalk};
use crate::data::journal::{Reader, ReplayError, SNAPSHOT};
use crate::data::keyspace::{DatabaseKey, Now};

/// Bytes beside those of the area that data may take which a log builds: two of the largest values.
/// A log of few bytes can build one, and an area may have been shortened around it.
const BESIDE_AREA: u64 = if cfg!(test) { 1 << 20 } else { 1 << 30 };

/// Most bytes that the data of a store with an area of this size may take in a snapshot, for a
/// reader that does not trust the log.
pub(crate) fn most_replayed(area: u64) -> u64 {
    area.saturating_add(BESIDE_AREA)
}

/// Passes the entries that `read` delivers to `replay`. Returns what `read` does, and the fault
/// with which `replay` has ended it.
pub(crate) fn replay_entries<T>(
    mut replay: impl FnMut(Entry<'_>) -> Result<(), ReplayError>,
    read: impl FnOnce(&mut dyn FnMut(Entry<'_>) -> Applied) -> T,
) -> (T, Option<ReplayError>) {
    let mut fault = None;
    let outcome = read(&mut |entry| rejected(replay(entry), &mut fault));
    (outcome, fault)
}

/// Tells the reader of a log about a fault, and keeps it.
pub(crate) fn rejected(replayed: Result<(), ReplayError>, fault: &mut Option<ReplayError>) -> Applied {
    replayed.map_err(|cause| {
        let text = cause.to_string();
        *fault = Some(cause);
        text.into()
    })
}

impl Shard {
    /// Replays one entry of a log.
    ///
    /// # Errors
    /// As [`Shard::replay`].
    pub(crate) fn replay_entry(&mut self, entry: Entry<'_>, now: Now) -> Result<(), ReplayError> {
        match entry {
            Entry::Snapshot(payload) => self.replay_snapshot(payload),
            Entry::Record(sequence, payload) => self.replay(sequence, payload, now),
        }
    }

    /// Has replay fail once the data would take more than so many bytes in a snapshot.
    pub(crate) fn limit_replay(&mut self, bytes: u64) {
        self.most_replayed = bytes;
    }

    /// Replays one log record of effects.
    ///
    /// # Errors
    /// The record is damaged, or was written by another program. Its effects before the fault are
    /// applied.
    pub fn replay(&mut self, sequence: u64, record: &[u8], now: Now) -> Result<(), ReplayError> {
        self.now = now;
        let share = self.share_of_log(sequence, record)?;
        self.replay_shares([share].into_iter()).map_err(|(_, cause)| cause)
    }

    /// Loads one record of a snapshot.
    ///
    /// # Errors
    /// As [`Shard::replay`].
    pub fn replay_snapshot(&mut self, record: &[u8]) -> Result<(), ReplayError> {
        match self.parts.take(record)? {
            Some(whole) => self.replay_dumped(&whole),
            None => Ok(()),
        }
    }

    /// Loads one record of a snapshot that others may have made up: each effect must build a key of
    /// the bytes that it has.
    ///
    /// # Errors
    /// As [`Shard::replay`].
    pub(crate) fn replay_dump(&mut self, record: &[u8]) -> Result<(), ReplayError> {
        let Some(whole) = self.parts.take(record)? else { return Ok(()) };
        let mut reader = Reader::new(&whole, SNAPSHOT, 0)?;
        reader.number()?;
        let mut arguments = Vec::new();
        while reader.effect(&mut arguments)?.is_some() {
            let builds = match arguments[0] {
                b"SET" | b"PEXPIREAT" => arguments.len() == 3,
                b"RPUSH" | b"SADD" | b"HSET" | b"ZADD" => arguments.len() > 2,
                _ => false,
            };
            if !builds {
                let name = String::from_utf8_lossy(arguments[0]).chars().take(SHOWN_KEY).collect();
                return Err(ReplayError::Command { sequence: 0, name });
            }
        }
        self.replay_dumped(&whole)
    }

    /// Dumps everything at once, as records of a snapshot that is true as of the record `as_of`.
    /// Nothing may change meanwhile, so no value is dumped in pieces.
    /// A record has at most `most` bytes.
    pub(crate) fn dump_whole(&mut self, as_of: u64, most: usize, out: &mut dyn FnMut(&[u8])) {
        (self.large_value, self.largest_record) = (usize::MAX, most);
        self.begin_snapshot();
        while !self.snapshot_slice(as_of, usize::MAX, out) {}
    }

    fn replay_dumped(&mut self, record: &[u8]) -> Result<(), ReplayError> {
        let share = self.share_of_snapshot(record)?;
        self.replay_shares([share].into_iter()).map_err(|(_, cause)| cause)
    }

    /// Begins a replay, at this time.
    pub(crate) fn begin_replay(&mut self, now: Now) {
        self.now = now;
        self.store.replaying = true;
    }

    /// Prepares for `times` as many keys as have been replayed so far.
    pub(crate) fn expect_keys(&mut self, times: usize) {
        self.store.expect(times);
    }

    /// Ends recovery: clients may connect, and keys expire again.
    ///
    /// # Errors
    /// The fault of an effect was deferred, and its key still exists.
    pub fn finish_recovery(&mut self) -> Result<(), ReplayError> {
        self.store.replaying = false;
        self.store.end_expecting();
        self.snapshot_keys.clear();
        self.store.clear_ready();
        self.parts.end()?;
        let unresolved = std::mem::take(&mut self.deferred_faults).into_unresolved();
        self.store.metrics.replay_skipped += unresolved.len() as u64;
        let here = |(database, key): &DatabaseKey| self.store.find(*database, key).is_some();
        let left =
            unresolved.into_iter().filter(|(database_key, _)| here(database_key)).map(|(_, cause)| cause);
        left.min_by_key(ReplayError::sequence).map_or(Ok(()), Err)
    }

    /// Begins a snapshot. Every effect so far must have been taken from the journal and appended to
    /// the log.
    pub fn begin_snapshot(&mut self) {
        self.snapshot_aborted = false;
        self.store.own_mut().partial_dump = None;
        self.snapshot = Some(SnapshotWalk::new(self.store.own().generation()));
    }

    /// Dumps about `budget_bytes` more as records to `out`. Returns true when the snapshot is
    /// complete, or was aborted ([`Shard::snapshot_aborted`]). `as_of` is the sequence of the last
    /// record of the log. The journal must be empty, or its effects must never be appended: the
    /// dump includes them.
    pub fn snapshot_slice(&mut self, as_of: u64, budget_bytes: usize, out: &mut dyn FnMut(&[u8])) -> bool {
        let mut records = SnapshotRecords::new(as_of, self.largest_record, out);
        self.walk(&mut records, budget_bytes)
    }

    /// As [`Shard::snapshot_slice`], where the sequence of the log is not known here: each piece
    /// becomes a record in [`stamp`](super::snapshot::stamp). All effects so far must be in the log
    /// up to the sequence that it is stamped with, and none that follow.
    pub(crate) fn snapshot_pieces(&mut self, budget_bytes: usize, out: &mut dyn FnMut(&[u8])) -> bool {
        self.walk(&mut SnapshotRecords::pieces(out), budget_bytes)
    }

    fn walk(&mut self, records: &mut SnapshotRecords<'_>, budget_bytes: usize) -> bool {
        let Some(mut walk) = self.snapshot.take() else {
            return true;
        };
        if walk.generation() != self.store.own().generation() {
            self.snapshot_aborted = true;
            return true;
        }
        let complete = walk.dump_slice(self.store.own_mut(), records, self.large_value, budget_bytes);
        if !complete {
            self.snapshot = Some(walk);
        }
        complete
    }

    /// Whether the last snapshot was aborted because the data set was flushed meanwhile. The caller
    /// begins another.
    pub fn snapshot_aborted(&self) -> bool {
        self.snapshot_aborted
            || self.snapshot.as_ref().is_some_and(|walk| walk.generation() != self.store.own().generation())
    }

    /// Aborts a running snapshot.
    pub(crate) fn abort_snapshot(&mut self) {
        self.snapshot = None;
        self.store.own_mut().partial_dump = None;
    }
}
