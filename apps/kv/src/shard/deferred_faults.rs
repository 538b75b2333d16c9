//! Faults of replayed effects that a later effect may still explain.
//!
//! A key that was deleted before the snapshot's walk reached it is not in the snapshot. Its earlier
//! effects then meet no key where they met one at first, and may fail. The log also holds the
//! deletion, so such a fault counts only if no deletion follows it.

use std::collections::HashMap;

use crate::data::journal::ReplayError;
use crate::data::keyspace::DatabaseKey;

/// Sequence of the first record of a log.
const FIRST_SEQUENCE: u64 = 1;

/// Faults of effects on keys that the snapshot does not hold.
#[derive(Default)]
pub(super) struct DeferredFaults {
    /// The first fault of each key.
    first: HashMap<DatabaseKey, ReplayError>,
    /// The last sequence whose faults a missing key of the snapshot can explain, once it is known.
    explained: Option<u64>,
}

impl DeferredFaults {
    /// Notes a loaded snapshot record; an `empty` one is the last. Earlier writers wrote no such
    /// record, so their snapshots do not say where the walk ended.
    pub(super) fn snapshot_loaded(&mut self, as_of: u64, empty: bool) {
        self.explained = Some(if empty { as_of } else { u64::MAX });
    }

    /// Notes a record of the log that is replayed. Without a snapshot every effect meets the state
    /// that it met at first. A log that begins later had an empty snapshot of an earlier writer.
    pub(super) fn record_replayed(&mut self, sequence: u64) {
        self.explained.get_or_insert(if sequence == FIRST_SEQUENCE { 0 } else { u64::MAX });
    }

    /// The last sequence whose faults a missing key of the snapshot can explain is known.
    pub(super) fn explain_up_to(&mut self, sequence: u64) {
        self.explained = Some(sequence);
    }

    /// The same, once all records of the snapshot were read and one of the log.
    pub(super) fn explained(&self) -> Option<u64> {
        self.explained
    }

    /// Whether an effect of this record may have failed because the snapshot lacks its key.
    pub(super) fn explains(&self, sequence: u64) -> bool {
        self.explained.is_some_and(|last| sequence <= last)
    }

    /// Defers the fault of an effect on a key; the first one counts.
    pub(super) fn defer(&mut self, key: DatabaseKey, fault: ReplayError) {
        self.first.entry(key).or_insert(fault);
    }

    /// Drops the fault of a key that was deleted or replaced: how it had been built is irrelevant
    /// now. Returns whether there was one.
    pub(super) fn resolve(&mut self, database: usize, key: &[u8]) -> bool {
        !self.first.is_empty() && self.first.remove(&(database, key.into())).is_some()
    }

    /// The faults that nothing has resolved.
    pub(super) fn into_unresolved(self) -> HashMap<DatabaseKey, ReplayError> {
        self.first
    }
}
