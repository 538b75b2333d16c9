//! Payloads that are in the area alone: reading what will be delivered next, and what a compaction
//! copies.
//!
//! 1. A queue of [`Queue::open_stored`] holds payloads of about [`super::QueueOptions::memory`]
//!    bytes. A payload sent beyond that is dropped from memory once it is written. When memory is
//!    short, payloads that are leased to consumers go first.
//! 2. Each iteration reads the oldest ready entries ahead, [`READS`] at a time, as far as memory
//!    allows; the very next one always.
//! 3. A compaction reads what it copies, and notes where it is in the snapshot; when that has
//!    taken effect, the entries get their new places. A read whose record was given up meanwhile is
//!    repeated at the new place.
//! 4. An entry that cannot be read is put off for [`RETRY`] and counted; the others continue. No
//!    snapshot is made without it.

use std::collections::VecDeque;

use sietch_disk::DiskQueue;
use zerocopy::IntoBytes;

use super::Queue;
use super::entries::State;
use super::payloads::{PAYLOAD, Reading, reading};
use super::record::Sent;
use crate::compaction::SLICE;
use crate::error::{Failure, SnapshotError};
use crate::log::Sequence;
use crate::typed::typed;

/// Payloads read ahead at a time, and copied at a time: each is half of
/// [`crate::limits::MAX_READS`].
const READS: usize = 8;

/// How long an entry is put off that cannot be read, in nanoseconds: a disk that recovers does so
/// within seconds.
const RETRY: u64 = 1_000_000_000;

impl<D: DiskQueue> Queue<D> {
    /// Takes new places, and drops payloads that memory is too short for.
    pub(super) fn settle(&mut self) {
        if self.stored.switching && !self.log.is_snapshotting() {
            self.stored.switching = false;
            for (id, old, new) in std::mem::take(&mut self.stored.moved) {
                if let Some(entry) = self.entries.by_id.get_mut(&id).filter(|entry| entry.spot == old) {
                    entry.spot = new;
                }
            }
        }
        let Some(window) = self.stored.window else { return };
        while let Some(&id) = self.stored.fresh.front()
            && id <= self.log.written()
        {
            self.stored.fresh.pop_front();
            if self.entries.held > window || !self.entries.far.is_empty() {
                self.entries.release_payload(id);
            }
        }
        while self.entries.held > window
            && let Some(id) = self.stored.out.pop_front()
        {
            let leased = |id| self.entries.by_id.get(id).is_some_and(|entry| entry.state != State::Ready);
            if leased(&id) {
                self.entries.release_payload(id);
            }
        }
        if self.stored.out.len() > 64 + 2 * self.entries.by_id.len() {
            let entries = &self.entries;
            self.stored.out.retain(|id| entries.by_id.contains_key(id));
        }
    }

    /// Takes what was read, and reads ahead.
    pub(super) fn load(&mut self) {
        let Some(window) = self.stored.window.filter(|_| self.log.failed().is_none()) else { return };
        let mut waiting = VecDeque::new();
        for mut reading in std::mem::take(&mut self.stored.loads) {
            match self.log.read_at(&mut reading.cursor) {
                Ok(false) => waiting.push_back(reading),
                Ok(true) if self.entries.spot(reading.id).is_some() => {
                    // The record of an id is the same wherever it is.
                    self.entries.restore_payload(reading.id, &reading.cursor.payload()[PAYLOAD..]);
                }
                Ok(true) => {}
                Err(_) => self.missed(reading, &mut waiting),
            }
        }
        self.stored.loads = waiting;
        let mut coming: usize = self.stored.loads.iter().map(|reading| reading.length).sum();
        let next = self.entries.ready.first().copied();
        let wanted: Vec<Sequence> = self.entries.far.iter().take(2 * READS).copied().collect();
        for id in wanted {
            let Some(entry) = self.entries.by_id.get(&id) else { continue };
            let fits = self.entries.held + coming + entry.length <= window || Some(id) == next;
            let known = self.stored.loads.iter().any(|reading| reading.id == id);
            if !fits || self.stored.loads.len() >= READS {
                break;
            }
            if !known {
                coming += entry.length;
                let mut reading = reading(&self.log, id, entry.spot, entry.length);
                // The result is checked in the next iteration.
                let _ = self.log.read_at(&mut reading.cursor);
                self.stored.loads.push_back(reading);
            }
        }
    }

    /// A record was not where it should be: it has moved, or it is damaged.
    fn missed(&mut self, missed: Reading, waiting: &mut VecDeque<Reading>) {
        let Some(spot) = self.entries.spot(missed.id) else { return };
        if spot != missed.spot {
            waiting.push_back(reading(&self.log, missed.id, spot, missed.length));
            return;
        }
        self.metrics.damaged += 1;
        let until = self.now.saturating_add(RETRY);
        self.entries.change(missed.id, State::Delayed { until });
    }

    /// Writes entries from `from` on into the snapshot, as many as one iteration may.
    pub(super) fn compact(&mut self, from: Sequence) -> Result<(), Failure> {
        let (mut written, mut at, end) = (0, from, self.compaction.start());
        while written < SLICE && self.log.snapshot_room() > 0 {
            let done = match self.stored.copies.front_mut() {
                Some(copied) => self.log.read_at(&mut copied.cursor).unwrap_or(true),
                None => false,
            };
            if done && let Some(copied) = self.stored.copies.pop_front() {
                // A removed entry was acknowledged since, which is in the log after the snapshot's
                // beginning.
                if self.entries.spot(copied.id) == Some(copied.spot) {
                    written += copied.length + 64;
                    if !self.copy(copied.id, copied.cursor.payload().get(PAYLOAD..))? {
                        return Ok(());
                    }
                }
                continue;
            }
            let next = self.entries.by_id.range(at..end.max(at)).next();
            let Some((&id, entry)) = next.filter(|_| self.stored.copies.len() < READS) else { break };
            at = id + 1;
            if entry.payload.is_some() {
                written += entry.length + 64;
                if !self.copy(id, None)? {
                    return Ok(());
                }
            } else {
                let mut reading = reading(&self.log, id, entry.spot, entry.length);
                // As above.
                let _ = self.log.read_at(&mut reading.cursor);
                self.stored.copies.push_back(reading);
            }
        }
        for copied in &mut self.stored.copies {
            // The results are checked in order.
            let _ = self.log.read_at(&mut copied.cursor);
        }
        if self.stored.copies.is_empty() && self.entries.by_id.range(at..end.max(at)).next().is_none() {
            self.stored.switching = true;
            return self.compaction.finish(&mut self.log);
        }
        self.compaction.go_on(at);
        Ok(())
    }

    /// Writes one entry into the snapshot, with the payload that was read or that is in memory;
    /// `false`: the snapshot is given up.
    fn copy(&mut self, id: Sequence, read: Option<&[u8]>) -> Result<bool, Failure> {
        let Some(entry) = self.entries.by_id.get(&id) else { return Ok(true) };
        let sent = Sent { id: id.into(), deliveries: entry.deliveries.into(), reserved: 0.into() };
        let appended = match read.or(entry.payload.as_deref()) {
            Some(payload) => self.log.snapshot_append_parts(&[&typed::<Sent>(), sent.as_bytes(), payload]),
            None => {
                self.metrics.damaged += 1;
                Err(SnapshotError::NoRoom)
            }
        };
        match appended {
            Ok(()) => {
                if self.stored.window.is_some()
                    && let Some(new) = self.log.snapshot_placed()
                {
                    self.stored.moved.push((id, entry.spot, new));
                }
                Ok(true)
            }
            Err(SnapshotError::Failed(failure)) => Err(failure),
            Err(_) => {
                self.stored.copies.clear();
                self.stored.moved.clear();
                self.compaction.abort(&mut self.log);
                Ok(false)
            }
        }
    }
}
