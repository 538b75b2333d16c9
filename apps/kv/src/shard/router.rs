//! Recovery of several shards from one log: which shard replays which effects.
//!
//! 1. The log does not know how many shards there were. A [`Router`] decodes each record, and gives
//!    each effect to the shard that owns its key. FLUSHALL, FLUSHDB and SWAPDB concern all shards.
//! 2. The effects for one shard gather in a [`Batch`] until it is worth a message to its thread.
//! 3. What a record is as a whole is decided here: its kind, the parts of one that was too large,
//!    and how far a missing key of the snapshot explains faults. What an effect does is decided by
//!    the shard.
//! 4. Records are counted, so that the first fault of several threads is known.

use super::deferred_faults::DeferredFaults;
use super::snapshot_parts::SnapshotParts;
use crate::data::journal::{EFFECTS, Reader, ReplayError, SNAPSHOT};
use crate::foundation::placement::Placement;

/// Bytes of effects from which on a batch is complete: half a millisecond of work.
const BATCH_BYTES: usize = 256 << 10;

/// Effects that concern the keys of all shards.
const OF_ALL: [&[u8]; 3] = [b"FLUSHALL", b"FLUSHDB", b"SWAPDB"];

/// The share of one shard in a record.
#[derive(Debug)]
pub struct Share<'a> {
    /// Counts the records that were read, from 1 on.
    pub record: u64,
    /// Of the record; of a snapshot record, that as of which it is true.
    pub(super) sequence: u64,
    /// Whether the record is of the log, so that the snapshot may include its effects.
    pub(super) guarded: bool,
    /// The last sequence whose faults a missing key of the snapshot can explain.
    pub(super) explained: Option<u64>,
    /// The record, or effects of it without its head.
    pub(super) bytes: &'a [u8],
    /// Where its effects begin.
    pub(super) begin: usize,
}

#[derive(Debug)]
struct Head {
    record: u64,
    sequence: u64,
    guarded: bool,
    explained: Option<u64>,
    /// Where its effects begin, behind the end of the share before.
    begin: usize,
    /// Where its effects end.
    end: usize,
}

/// Shares of one shard.
#[derive(Debug, Default)]
pub struct Batch {
    heads: Vec<Head>,
    bytes: Vec<u8>,
}

impl Batch {
    /// How many records of the log it was made of; none if it begins with the snapshot.
    pub(crate) fn log_records(&self) -> Option<u64> {
        let (first, last) = (self.heads.first()?, self.heads.last()?);
        first.guarded.then(|| last.record - first.record + 1)
    }

    /// Bytes of its effects.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// The shares, in the order of the log.
    pub(crate) fn shares(&self) -> impl Iterator<Item = Share<'_>> {
        let mut end = 0;
        self.heads.iter().map(move |head| {
            let bytes = &self.bytes[end..head.end];
            end = head.end;
            let Head { record, sequence, guarded, explained, begin, .. } = *head;
            Share { record, sequence, guarded, explained, bytes, begin }
        })
    }

    /// Adds a copy of a share, which is one of another record than the last.
    pub(super) fn push_share(&mut self, share: &Share<'_>) {
        let Share { record, sequence, guarded, explained, bytes, begin } = *share;
        self.bytes.extend_from_slice(bytes);
        let end = self.bytes.len();
        self.heads.push(Head { record, sequence, guarded, explained, begin, end });
    }

    /// Drops all shares, and keeps the memory.
    pub(crate) fn clear(&mut self) {
        self.heads.clear();
        self.bytes.clear();
    }

    fn push(&mut self, head: Head, effect: &[u8]) {
        self.bytes.extend_from_slice(effect);
        let end = self.bytes.len();
        match self.heads.last_mut() {
            Some(last) if last.record == head.record => last.end = end,
            _ => self.heads.push(Head { end, ..head }),
        }
    }
}

/// Divides the records of a log among shards; see the module documentation.
pub struct Router {
    placement: Placement,
    batches: Vec<Batch>,
    /// Records read.
    records: u64,
    /// The parts read so far of a snapshot record that is stored in parts.
    parts: SnapshotParts,
    faults: DeferredFaults,
}

impl Router {
    /// For so many shards.
    pub(crate) fn new(shards: usize) -> Self {
        Self {
            placement: Placement::new(0, shards),
            batches: (0..shards).map(|_| Batch::default()).collect(),
            records: 0,
            parts: SnapshotParts::default(),
            faults: DeferredFaults::default(),
        }
    }

    /// Records read so far.
    pub(crate) fn records(&self) -> u64 {
        self.records
    }

    /// Reads a record of the log.
    ///
    /// # Errors
    /// The record is damaged, or was written by another program. Its effects before the fault are
    /// in the batches.
    pub(crate) fn record(&mut self, sequence: u64, record: &[u8]) -> Result<(), ReplayError> {
        self.records += 1;
        let reader = Reader::new(record, EFFECTS, sequence)?;
        self.faults.record_replayed(sequence);
        self.divide(reader, record, sequence, true)
    }

    /// Reads a record of a snapshot.
    ///
    /// # Errors
    /// As [`Router::record`].
    pub(crate) fn snapshot(&mut self, record: &[u8]) -> Result<(), ReplayError> {
        self.records += 1;
        match self.parts.take(record)? {
            Some(whole) => self.dumped(&whole),
            None => Ok(()),
        }
    }

    fn dumped(&mut self, record: &[u8]) -> Result<(), ReplayError> {
        let mut reader = Reader::new(record, SNAPSHOT, 0)?;
        let as_of = reader.number()?;
        self.faults.snapshot_loaded(as_of, reader.is_at_end());
        self.divide(reader, record, as_of, false)
    }

    fn divide(
        &mut self,
        mut reader: Reader<'_>,
        record: &[u8],
        sequence: u64,
        guarded: bool,
    ) -> Result<(), ReplayError> {
        let explained = self.faults.explained().filter(|_| guarded);
        let mut arguments = Vec::new();
        let mut begin = reader.position();
        while reader.effect(&mut arguments)?.is_some() {
            let effect = &record[begin..reader.position()];
            begin = reader.position();
            let head = || Head { record: self.records, sequence, guarded, explained, begin: 0, end: 0 };
            if OF_ALL.iter().any(|name| arguments[0].eq_ignore_ascii_case(name)) {
                for batch in &mut self.batches {
                    batch.push(head(), effect);
                }
                continue;
            }
            let key = arguments.get(1).copied().unwrap_or_default();
            self.batches[self.placement.shard_of(key)].push(head(), effect);
        }
        Ok(())
    }

    /// Whether the batch of a shard is large enough.
    pub(crate) fn is_full(&self, shard: usize) -> bool {
        self.batches[shard].bytes.len() >= BATCH_BYTES
    }

    /// The batch of a shard, in the place of which comes an empty one.
    pub(crate) fn exchange(&mut self, shard: usize, empty: Batch) -> Batch {
        std::mem::replace(&mut self.batches[shard], empty)
    }

    /// What is left of each shard, in order.
    ///
    /// # Errors
    /// The snapshot ends within a record.
    pub(crate) fn finish(self) -> (Vec<Batch>, Result<(), ReplayError>) {
        let whole = self.parts.end();
        (self.batches, whole)
    }
}
