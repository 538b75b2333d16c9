//! Writing the state of a structure as a snapshot of its log, a slice an iteration.
//!
//! 1. [`Compaction::begin`] notes the position of the log. Each iteration writes a slice of the
//!    state as it is *then*. What has changed since the beginning is in the log after it, and
//!    replaying it again changes nothing.
//! 2. [`Compaction::finish`] leaves the rest to the log, which waits for every record that the
//!    snapshot may hold traces of.
//! 3. Any failure gives the snapshot up and leaves the log as it was.

use sietch_disk::DiskQueue;

use crate::error::{Failure, SnapshotError};
use crate::log::{Log, Sequence};

/// Bytes of the state written an iteration: a few hundred microseconds of copying at most.
pub(crate) const SLICE: usize = 256 << 10;

/// A snapshot in progress, if there is one, and the place of type `P` at which it continues.
#[derive(Default)]
pub(crate) struct Compaction<P> {
    at: Option<P>,
    start: Sequence,
    /// How far the log was when the last attempt found no room.
    refused: Sequence,
}

impl<P: Copy> Compaction<P> {
    /// Begins at `place`, if the log has room for a snapshot.
    pub(crate) fn begin<D: DiskQueue>(&mut self, log: &mut Log<D>, place: P) {
        // Trying again before anything has changed would fail again.
        if self.refused == log.last() {
            return;
        }
        match log.begin_snapshot() {
            Ok(start) => (self.at, self.start) = (Some(place), start),
            Err(_) => self.refused = log.last(),
        }
    }

    /// Where to continue in this iteration.
    pub(crate) fn next<D: DiskQueue>(&self, log: &Log<D>) -> Option<P> {
        self.at.filter(|_| log.is_snapshotting())
    }

    /// Records before this one are in the snapshot.
    pub(crate) fn start(&self) -> Sequence {
        self.start
    }

    /// The next iteration continues at `place`.
    pub(crate) fn go_on(&mut self, place: P) {
        self.at = Some(place);
    }

    /// There is no room for the snapshot.
    pub(crate) fn abort<D: DiskQueue>(&mut self, log: &mut Log<D>) {
        log.abort_snapshot();
        self.at = None;
        self.refused = log.last();
    }

    /// All of it was written.
    pub(crate) fn finish<D: DiskQueue>(&mut self, log: &mut Log<D>) -> Result<(), Failure> {
        self.at = None;
        match log.finish_snapshot() {
            Err(SnapshotError::Failed(failure)) => Err(failure),
            _ => Ok(()),
        }
    }
}
