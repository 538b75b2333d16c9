//! Giving up the head of the log, without a snapshot.
//!
//! 1. The log remembers positions at which a payload begins at the start of a block: a sparse
//!    index. [`Log::truncate`] takes the last entry at or before the record to keep. Recovery skips
//!    the records between the two, because the superblock names the record too.
//! 2. Everything appended so far becomes durable first. Records that carry on what is given up (an
//!    entry written again, an acknowledgement) must not be lost while the head is given up. With
//!    deferred durability that takes a flush.
//! 3. Then both superblock copies of the next generation are written durably, and only then are the
//!    segments before that entry free. A crash finds the old head with everything behind it, or the
//!    new one.
//! 4. One superblock is in the making at a time: a truncation and a snapshot wait for each other.

use sietch_disk::{Buffer, DiskQueue, Operation};

use super::Log;
use super::options::{Durability, Sequence};
use super::state::requests::{CLASS_TRUNCATE_FLUSH, CLASS_TRUNCATE_SUPERBLOCK, token};
use super::state::truncation::{Phase, Truncation};
use crate::error::{Failure, TruncateError};
use crate::layout::{Run, Superblock};
use crate::limits::{MAX_RUNS, SUPERBLOCK};

impl<D: DiskQueue> Log<D> {
    /// The first sequence that recovery would deliver, and that a [`super::Cursor`] can read.
    pub fn head(&self) -> Sequence {
        self.superblock.runs.first().map_or(1, |run| run.first).max(self.superblock.head)
    }

    /// Gives up every record before `keep`, which may be one past the last. The snapshot, if there
    /// is one, stays. It takes effect asynchronously, after everything appended so far is durable:
    /// [`Log::is_truncating`] becomes false, and the space is free by whole segments.
    ///
    /// # Errors
    /// See [`TruncateError`].
    pub fn truncate(&mut self, keep: Sequence) -> Result<(), TruncateError> {
        self.truncate_and(keep, false)
    }

    /// Whether giving up everything before `keep`, the snapshot included, would free half of what
    /// is used, and that is a quarter of the room or more.
    pub(crate) fn is_worth_truncating(&self, keep: Sequence) -> bool {
        let live = self.live_segments();
        if self.truncation.is_some() || !self.snapshot.is_idle() || live * 4 < self.space.budget() {
            return false;
        }
        let index = self.stream.sparse_index();
        let entry = index.get(index.partition_point(|entry| entry.first <= keep).wrapping_sub(1));
        let segments = self.stream.segments();
        let kept = match entry {
            _ if keep > self.last() => 1,
            Some(entry) => segments.iter().rev().take_while(|&&segment| segment != entry.segment).count() + 1,
            None => segments.len(),
        };
        // Segments have 32 bits.
        live > 1 && kept as u32 * 2 <= live
    }

    /// Whether a truncation is on its way.
    pub fn is_truncating(&self) -> bool {
        self.truncation.is_some()
    }

    /// [`Log::truncate`], and the snapshot is given up too if `drops_snapshot`.
    pub(crate) fn truncate_and(&mut self, keep: Sequence, drops_snapshot: bool) -> Result<(), TruncateError> {
        self.check()?;
        if self.truncation.is_some() || !self.snapshot.is_idle() || self.is_switching_size() {
            return Err(TruncateError::InProgress);
        }
        let last = self.last();
        if keep > last + 1 {
            return Err(TruncateError::Beyond { keep, last });
        }
        let drops_snapshot = drops_snapshot && self.superblock.snapshot.is_some();
        if keep <= self.head() && !drops_snapshot {
            return Ok(());
        }
        let truncation = self.prepare(keep.max(self.head()), drops_snapshot);
        self.truncation = Some(Box::new(truncation));
        self.pump()?;
        Ok(self.notify()?)
    }

    fn prepare(&mut self, keep: Sequence, drops_snapshot: bool) -> Truncation {
        // Without a free segment the log stays as it is, and the next truncation or snapshot tries
        // again.
        let headed = self.take_a_head().is_some();
        let epoch = self.superblock.epoch;
        let next_sequence = self.stream.next();
        let start = if keep == next_sequence && headed {
            let (segment, position) = self.stream.position();
            Some(Run { epoch, segment, position, first: next_sequence })
        } else {
            let index = self.stream.sparse_index();
            let after = index.partition_point(|entry| entry.first <= keep);
            after.checked_sub(1).and_then(|place| index.get(place)).copied()
        };
        let mut runs = self.superblock.runs.clone();
        if let Some(start) = start {
            runs.retain(|run| run.epoch > start.epoch);
            runs.insert(0, start);
        }
        let mut heads = runs.last().is_some_and(|run| run.epoch == epoch);
        if headed && !heads && runs.len() < MAX_RUNS {
            let (segment, position) = self.stream.position();
            runs.push(Run { epoch, segment, position, first: next_sequence });
            heads = true;
        }
        let mut next = Superblock {
            generation: self.superblock.generation + 1,
            head: keep,
            runs,
            ..self.superblock.clone()
        };
        if drops_snapshot {
            next.snapshot = None;
        }
        let replaces = start
            .and_then(|start| self.stream.segments().iter().position(|&segment| segment == start.segment));
        self.submit_wanted |= self.stream.has_open();
        let (phase, end) = (Phase::Draining, next_sequence - 1);
        let replaces = replaces.unwrap_or_default();
        Truncation { phase, end, next, replaces, drops_snapshot, heads }
    }

    /// Takes the next step of a truncation.
    pub(super) fn pump_truncation(&mut self) -> Result<(), Failure> {
        let Some(mut truncation) = self.truncation.take() else { return Ok(()) };
        let pumped = self.step_truncation(&mut truncation);
        if truncation.phase == (Phase::Switching { unsent: 0, flying: 0 }) {
            self.finish_truncation(*truncation);
        } else {
            self.truncation = Some(truncation);
        }
        pumped
    }

    fn step_truncation(&mut self, truncation: &mut Truncation) -> Result<(), Failure> {
        if truncation.phase == Phase::Draining && self.stream.written() >= truncation.end {
            truncation.phase = match self.durability {
                Durability::Always => Phase::Switching { unsent: 2, flying: 0 },
                Durability::Deferred => Phase::FlushWanted,
            };
        }
        if truncation.phase == Phase::FlushWanted
            && self.start(token(CLASS_TRUNCATE_FLUSH, 0), Operation::Flush)?.is_none()
        {
            truncation.phase = Phase::Flushing;
        }
        while let Phase::Switching { unsent, flying } = truncation.phase
            && unsent > 0
            // One superblock is in the making at a time.
            && self.proof_write.is_none()
        {
            if unsent == 2 {
                // A proof may have been written since.
                let Superblock { generation, proven, .. } = self.successor();
                (truncation.next.generation, truncation.next.proven) = (generation, proven);
            }
            let offset = Superblock::copy_offset(truncation.next.generation, unsent - 1);
            let mut buffer = Buffer::new(SUPERBLOCK);
            truncation.next.write(&mut buffer);
            let write = Operation::Write { offset, length: SUPERBLOCK, buffer, durable: true };
            if self.start(token(CLASS_TRUNCATE_SUPERBLOCK, offset), write)?.is_some() {
                break;
            }
            truncation.phase = Phase::Switching { unsent: unsent - 1, flying: flying + 1 };
        }
        Ok(())
    }

    /// Takes a completion of the truncation's.
    pub(super) fn finish_truncation_request(&mut self, class: u64) {
        let Some(truncation) = &mut self.truncation else { return };
        truncation.phase = match (class, truncation.phase) {
            (CLASS_TRUNCATE_FLUSH, Phase::Flushing) => Phase::Switching { unsent: 2, flying: 0 },
            (CLASS_TRUNCATE_SUPERBLOCK, Phase::Switching { unsent, flying }) => {
                Phase::Switching { unsent, flying: flying.saturating_sub(1) }
            }
            (_, phase) => phase,
        };
    }

    /// The new superblock is durable: frees what only the old one named.
    fn finish_truncation(&mut self, truncation: Truncation) {
        self.superblock = truncation.next;
        for segment in self.stream.segments_mut().drain(..truncation.replaces) {
            self.space.release(segment);
        }
        if truncation.drops_snapshot {
            for segment in self.snapshot_segments.drain(..) {
                self.space.release(segment);
            }
        }
        self.headless &= !truncation.heads;
        self.forget_marks(self.superblock.runs.first().map_or(0, |run| run.first));
        self.durable = self.durable.max(truncation.end);
        self.metrics.truncations += 1;
    }

    /// Forgets the places of records before `first`.
    pub(super) fn forget_marks(&mut self, first: Sequence) {
        while self.stream.sparse_index().front().is_some_and(|entry| entry.first < first) {
            self.stream.sparse_index_mut().pop_front();
        }
    }
}
