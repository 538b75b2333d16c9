//! Compaction: a snapshot of all shards takes the place of the log before it.
//!
//! 1. This core's shard is dumped a slice per iteration, beside the appends. With several cores,
//!    each member dumps its own part meanwhile, and its dumps come through the queue of records.
//! 2. Each dump has the sequence of the log as of which it is true. The record that ends the
//!    snapshot has that of the last dump.
//! 3. A snapshot that covers what waits in the queue is taken of all shards here, while no command
//!    runs anywhere. The queue is never appended.
//! 4. FLUSHALL, FLUSHDB and SWAPDB abort a snapshot. It begins again.

use sietch::disk::DiskQueue;
use sietch::persist::{MAX_RECORD, SnapshotError};

use super::dumps::{Compaction, Dump, SLICE_BYTES, Walks};
use super::{LogState, LogWriter};
use crate::shard::{Now, Shard, stamp};

/// Nanoseconds before a compaction that found no room is tried again.
const RETRY: u64 = 5_000_000_000;

/// After a compaction, a full area accepts growth again if one part of this many is free: with less
/// it would be full at once.
const ROOMY: u64 = 16;

impl<D: DiskQueue> LogWriter<D> {
    /// Advances the snapshot that replaces what waits.
    pub(super) fn cover(
        &mut self,
        shard: &mut Shard,
        others: &mut [Box<Shard>],
        now: Now,
    ) -> Result<bool, String> {
        match self.compaction {
            Compaction::Idle => {
                self.covering = true;
                self.requested = true;
                self.retry_at = 0;
                let moved = self.compact(shard, others, now)?;
                if self.compaction == Compaction::Idle && !self.log.is_snapshotting() {
                    return Err(self.uncovered());
                }
                Ok(moved)
            }
            Compaction::Dumping | Compaction::Draining if !self.covering => {
                // This snapshot has older states of the keys that the records change.
                self.abandon(shard, now, 0);
                Ok(true)
            }
            _ => {
                let moved = self.compact(shard, others, now)?;
                if self.compaction == Compaction::Idle && self.covering {
                    self.covering = false;
                    if self.given_up {
                        return Err(self.uncovered());
                    }
                    if !self.abandoned {
                        self.overflow = false;
                        for queued in std::mem::take(&mut self.queue) {
                            self.note_turn(queued);
                        }
                    }
                }
                Ok(moved)
            }
        }
    }

    /// Why the log fails when there is room neither for a record nor for a snapshot.
    fn uncovered(&self) -> String {
        format!("{}; the effects of the last commands cannot be logged", self.full_reason())
    }

    /// Begins the running snapshot again if a command aborted it: no dump from before may follow
    /// the command into the log. `others` are the shards that the command could reach.
    pub(in crate::server) fn note_section(&mut self, shard: &mut Shard, others: &[Box<Shard>], now: Now) {
        let aborted = shard.snapshot_aborted() || others.iter().any(|other| other.snapshot_aborted());
        if aborted && self.compaction == Compaction::Dumping {
            self.abandon(shard, now, 0);
        }
    }

    /// Whether a compaction might make room.
    pub(super) fn is_useful(&self) -> bool {
        self.futile.is_none_or(|(sequence, _)| sequence != self.last)
    }

    /// Whether the snapshot waits for dumps of members alone.
    pub(super) fn waits_for_walks(&self) -> bool {
        self.walks.own && self.walks.members > 0
    }

    /// Advances a compaction by a slice, or starts one that is due.
    pub(super) fn compact(
        &mut self,
        shard: &mut Shard,
        others: &mut [Box<Shard>],
        now: Now,
    ) -> Result<bool, String> {
        match self.compaction {
            Compaction::Idle => self.begin_if_due(shard, now),
            Compaction::Dumping => {
                let before = self.waiting.len();
                if self.drain(shard, now)? && self.compaction == Compaction::Dumping {
                    return self.dump(shard, others, now);
                }
                // Otherwise the disk must take some records first.
                Ok(self.waiting.len() != before)
            }
            Compaction::Draining => {
                if self.drain(shard, now)? && self.compaction == Compaction::Draining {
                    self.compaction = Compaction::Finishing;
                    self.log.finish_snapshot().map_err(|cause| cause.to_string())?;
                }
                Ok(false)
            }
            Compaction::Finishing => Ok(self.end_if_durable(shard, now)),
        }
    }

    fn begin_if_due(&mut self, shard: &mut Shard, now: Now) -> Result<bool, String> {
        self.requested |= shard.compaction_requested();
        shard.persistence_mut().compaction_wanted = self.requested;
        let due = self.requested || (self.is_useful() && (self.full || self.log.should_compact()));
        // Deletions use up the reserve: then the compaction must not pause.
        let urgent =
            self.is_compacting_for_room() || self.futile.is_some_and(|(_, used)| self.log.used() > used);
        if !due || (now.monotonic_ns < self.retry_at && !urgent) {
            return Ok(false);
        }
        self.requested = false;
        self.given_up = false;
        self.abandoned = false;
        match self.log.begin_snapshot() {
            Ok(_) => {
                shard.begin_snapshot();
                shard.persistence_mut().begin_compaction(now.monotonic_ns);
                self.compaction = Compaction::Dumping;
                self.snapshot += 1;
                self.walks = Walks { own: false, members: self.cores - 1 };
                self.report(LogState::SnapshotBegun { snapshot: self.snapshot });
            }
            Err(SnapshotError::Failed(cause)) => return Err(cause.to_string()),
            Err(_) => {
                shard.persistence_mut().abandon_compaction(true);
                self.report(LogState::SnapshotAborted);
                self.futile = Some((self.last, self.log.used()));
                self.refuse(shard);
                self.retry_at = now.monotonic_ns.saturating_add(RETRY);
            }
        }
        Ok(true)
    }

    fn end_if_durable(&mut self, shard: &mut Shard, now: Now) -> bool {
        if self.log.is_snapshotting() {
            return false;
        }
        self.compaction = Compaction::Idle;
        if !self.abandoned {
            shard.snapshot_finished(now);
            self.report(LogState::SnapshotFinished { now });
            shard.persistence_mut().finish_compaction(now.monotonic_ns, self.log.used());
        }
        // If the snapshot is hardly smaller than the records that it replaces, the area is still
        // full.
        let free = self.log.capacity().saturating_sub(self.log.used());
        let roomy = free >= self.log.capacity() / ROOMY;
        if self.full && !self.given_up && roomy {
            self.full = false;
            self.refusing = false;
            shard.refuse_growth(None);
            self.report(LogState::Full(None));
        } else if self.full && (self.given_up || !self.abandoned) {
            self.refuse(shard);
            self.retry_at = self.retry_at.max(now.monotonic_ns.saturating_add(RETRY));
            self.futile = Some((self.last, self.log.used()));
        }
        true
    }

    /// Makes the shards refuse commands that need room, if the area is full.
    fn refuse(&mut self, shard: &mut Shard) {
        if self.full {
            self.refusing = true;
            let reason = self.full_reason();
            shard.refuse_growth(Some(&reason));
            self.report(LogState::Full(Some(reason)));
        }
    }

    /// Dumps a slice of this core's shard, and of `others` if the snapshot covers what waits.
    /// Returns whether there was anything to do.
    fn dump(&mut self, shard: &mut Shard, others: &mut [Box<Shard>], now: Now) -> Result<bool, String> {
        if shard.snapshot_aborted() {
            self.abandon(shard, now, 0);
            return Ok(true);
        }
        let (waiting, last) = (&mut self.waiting, self.last);
        let mut keep = |record: &[u8]| waiting.push_back(Dump { record: record.to_vec(), source: None });
        let done = if self.cores == 1 {
            shard.snapshot_slice(last, SLICE_BYTES, &mut keep)
        } else {
            let mut piece = |piece: &[u8]| stamp(last, piece, MAX_RECORD, &mut keep);
            if !self.walks.own {
                self.walks.own = shard.snapshot_pieces(SLICE_BYTES, &mut piece);
            } else if self.covering && self.walks.members > 0 {
                let next = others.len() - self.walks.members;
                let done = others[next].snapshot_pieces(SLICE_BYTES, &mut piece);
                self.walks.members -= usize::from(done);
            } else if self.walks.members > 0 {
                return Ok(false);
            }
            self.walks.own && self.walks.members == 0
        };
        if shard.snapshot_aborted() {
            self.abandon(shard, now, 0);
        } else if done {
            if self.cores > 1 {
                stamp(last, &[], MAX_RECORD, &mut keep);
            }
            self.compaction = Compaction::Draining;
        }
        self.drain(shard, now)?;
        Ok(true)
    }

    /// Takes dumps of a member, all earlier effects of which are in the log.
    pub(super) fn take_dumped(&mut self, member: usize, snapshot: u64, pieces: &[Vec<u8>], complete: bool) {
        let runs = self.compaction == Compaction::Dumping && !self.covering && snapshot == self.snapshot;
        for piece in pieces {
            if !runs {
                self.positions.dumped(member, piece.len());
                continue;
            }
            let waiting = &mut self.waiting;
            let mut keep = |record: &[u8]| waiting.push_back(Dump { record: record.to_vec(), source: None });
            stamp(self.last, piece, MAX_RECORD, &mut keep);
            if let Some(last) = self.waiting.back_mut() {
                last.source = Some((member, piece.len()));
            }
        }
        if runs && complete {
            self.walks.members -= 1;
        }
    }

    /// Appends waiting snapshot records to the log; true when none is left.
    fn drain(&mut self, shard: &mut Shard, now: Now) -> Result<bool, String> {
        while let Some(dump) = self.waiting.front() {
            match self.log.snapshot_append(&dump.record) {
                Ok(()) => {
                    let source = self.waiting.pop_front().and_then(|dump| dump.source);
                    if let Some((member, bytes)) = source {
                        self.positions.dumped(member, bytes);
                    }
                }
                Err(SnapshotError::Busy { .. }) => return Ok(false),
                Err(SnapshotError::Failed(cause)) => return Err(cause.to_string()),
                Err(cause) => {
                    tracing::warn!("compaction abandoned: {cause}");
                    self.given_up = true;
                    self.futile = Some((self.last, self.log.used()));
                    self.abandon(shard, now, RETRY);
                    return Ok(true);
                }
            }
        }
        Ok(true)
    }

    fn abandon(&mut self, shard: &mut Shard, now: Now, pause: u64) {
        shard.abort_snapshot();
        shard.persistence_mut().abandon_compaction(self.given_up);
        self.report(LogState::SnapshotAborted);
        // The request stays, unless the area has no room.
        self.requested |= !self.given_up;
        self.abandoned = true;
        self.log.abort_snapshot();
        for (member, bytes) in self.waiting.drain(..).filter_map(|dump| dump.source) {
            self.positions.dumped(member, bytes);
        }
        self.compaction = Compaction::Finishing;
        self.retry_at = now.monotonic_ns.saturating_add(pause);
    }
}
