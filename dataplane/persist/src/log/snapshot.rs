//! Compaction: a snapshot of the application's state takes the place of the log before it.
//!
//! 1. [`Log::begin_snapshot`] seals the open batch and notes where the next one goes. The snapshot
//!    stands for everything appended before. Records appended from now on will be replayed after
//!    it.
//! 2. [`Log::snapshot_append`] writes into free segments while the log continues. Where commits are
//!    durable writes, so are those of the snapshot: a device with a volatile cache makes everything
//!    in it durable with a commit, which then finds no more of the snapshot there than is in
//!    flight. Otherwise they are plain writes.
//! 3. [`Log::finish_snapshot`] seals it. Then [`Log::poll`] drives these steps, one after the
//!    other. All its writes complete, and all of the log up to here. (A snapshot that is taken
//!    while the log continues holds traces of later records. If one of those were lost, recovery
//!    would build a state that never was.) A flush makes them durable. Both superblock copies of
//!    the next generation are written durably. Only then are the old segments free.
//! 4. A crash at any point finds either the old superblock with everything that it names untouched,
//!    or the new one with everything that it names durable.

use sietch_disk::{Buffer, DiskQueue, Operation};

use super::Log;
use super::options::{Durability, Sequence};
use super::state::requests::{CLASS_SNAPSHOT, CLASS_SNAPSHOT_FLUSH, CLASS_SUPERBLOCK, no_segment, token};
use super::state::snapshot::{Building, Phase};
use crate::error::{Failure, SnapshotError};
use crate::layout::{KIND_SNAPSHOT, RecordLocation, Run, SnapshotLocation, Superblock, log_stream};
use crate::limits::{MAX_QUEUED, MAX_RECORD, SNAPSHOT_IN_FLIGHT, SUPERBLOCK};
use crate::stream::Stream;

impl<D: DiskQueue> Log<D> {
    /// Begins a snapshot of the state as it is after everything appended so far. Returns the first
    /// sequence that it does *not* stand for: records from there on are replayed after it.
    ///
    /// # Errors
    /// See [`SnapshotError`].
    pub fn begin_snapshot(&mut self) -> Result<Sequence, SnapshotError> {
        self.check()?;
        if !self.snapshot.is_idle() || self.truncation.is_some() {
            return Err(SnapshotError::InProgress);
        }
        if self.space.free() < 2 {
            return Err(SnapshotError::NoRoom);
        }
        let Some(begun) = self.snapshot.begun.checked_add(1) else {
            return Err(SnapshotError::NoRoom);
        };
        if self.take_a_head().is_none() {
            return Err(SnapshotError::NoRoom);
        }
        let Some(segment) = self.space.take() else { return Err(SnapshotError::NoRoom) };
        self.snapshot.begun = begun;
        let id = log_stream(self.superblock.epoch) | u64::from(begun);
        let stream = Stream::new(&self.superblock, KIND_SNAPSHOT, id, 1, segment);
        let start = self.stream.next();
        let (segment, position) = self.stream.position();
        let epoch = self.superblock.epoch;
        self.snapshot.building = Some(Box::new(Building {
            stream,
            phase: Phase::Writing,
            start: Run { epoch, segment, position, first: start },
            end: start - 1,
            replaces: self.stream.segments().len() - 1,
            next: None,
        }));
        Ok(start)
    }

    /// Bytes that [`Log::snapshot_append`] takes before it says that it is busy; 0 without a
    /// snapshot in progress.
    pub fn snapshot_room(&self) -> usize {
        match &self.snapshot.building {
            Some(building) if building.phase == Phase::Writing => {
                MAX_QUEUED.saturating_sub(building.stream.queued())
            }
            _ => 0,
        }
    }

    /// Where the payload begins that was appended last to the snapshot in progress.
    pub(crate) fn snapshot_placed(&self) -> Option<RecordLocation> {
        self.snapshot.building.as_ref().map(|building| building.stream.placed())
    }

    /// Whether a snapshot is in progress, from begin until the old segments are free.
    pub fn is_snapshotting(&self) -> bool {
        !self.snapshot.is_idle()
    }

    /// Appends a payload to the snapshot. [`Log::poll`] writes it.
    ///
    /// # Errors
    /// See [`SnapshotError`]; the payload was not appended. After [`SnapshotError::NoRoom`] the
    /// snapshot must be aborted.
    pub fn snapshot_append(&mut self, payload: &[u8]) -> Result<(), SnapshotError> {
        self.snapshot_append_parts(&[payload])
    }

    /// As [`Log::snapshot_append`], for a payload that is in several pieces.
    ///
    /// # Errors
    /// As [`Log::snapshot_append`].
    pub(crate) fn snapshot_append_parts(&mut self, payload: &[&[u8]]) -> Result<(), SnapshotError> {
        self.check()?;
        let length: usize = payload.iter().map(|part| part.len()).sum();
        // The log may still grow up to its budget: that much stays free.
        let reserved = self.space.budget().saturating_sub(self.live_segments());
        let durable = self.durable;
        let Some(building) =
            self.snapshot.building.as_mut().filter(|building| building.phase == Phase::Writing)
        else {
            return Err(SnapshotError::NotBegun);
        };
        if length > MAX_RECORD {
            return Err(SnapshotError::TooLarge { length, limit: MAX_RECORD });
        }
        let queued = building.stream.queued();
        if queued >= MAX_QUEUED {
            return Err(SnapshotError::Busy { queued });
        }
        let needed = building.stream.segments_needed(length);
        if needed > 0 && needed.saturating_add(reserved) > self.space.free() {
            return Err(SnapshotError::NoRoom);
        }
        match building.stream.append(payload, durable, &mut self.space, &mut self.pool) {
            Some(_) => Ok(()),
            None => Err(self.fail("allocating a segment", 0, no_segment()).into()),
        }
    }

    /// Says that the snapshot is complete. It takes effect asynchronously; [`Log::is_snapshotting`]
    /// becomes false when the old segments are free.
    ///
    /// # Errors
    /// See [`SnapshotError`].
    pub fn finish_snapshot(&mut self) -> Result<(), SnapshotError> {
        self.check()?;
        let Some(building) =
            self.snapshot.building.as_mut().filter(|building| building.phase == Phase::Writing)
        else {
            return Err(SnapshotError::NotBegun);
        };
        building.stream.seal();
        building.phase = Phase::Draining;
        building.end = self.stream.next() - 1;
        self.submit_wanted |= self.stream.has_open();
        self.pump()?;
        Ok(self.notify()?)
    }

    /// Gives the snapshot up. The log is as it was. Does nothing when no snapshot is in
    /// progress, or when it is finished and cannot be stopped any more.
    pub fn abort_snapshot(&mut self) {
        if let Some(building) = self.snapshot.building.as_mut()
            && building.phase == Phase::Writing
        {
            building.stream.seal();
            building.phase = Phase::Aborting;
        }
    }

    /// Starts whatever the snapshot may start, and takes its next step.
    pub(super) fn pump_snapshot(&mut self) -> Result<(), Failure> {
        let Some(mut building) = self.snapshot.building.take() else { return Ok(()) };
        let pumped = self.pump_building(&mut building);
        let done = match building.phase {
            Phase::Aborting if building.stream.is_idle() => {
                for &segment in building.stream.segments() {
                    self.space.release(segment);
                }
                true
            }
            Phase::Switching { unsent: 0, flying: 0 } => {
                self.switch(&mut building);
                true
            }
            _ => false,
        };
        if !done {
            self.snapshot.building = Some(building);
        }
        pumped
    }

    fn pump_building(&mut self, building: &mut Building) -> Result<(), Failure> {
        let durable = self.durability == Durability::Always;
        while building.stream.in_flight() < SNAPSHOT_IN_FLIGHT {
            let Some((ticket, write)) = building.stream.next_write(durable) else { break };
            if let Some(refused) = self.start(token(CLASS_SNAPSHOT, ticket), write)? {
                building.stream.take_back(refused);
                break;
            }
        }
        if building.phase == Phase::Draining
            && building.stream.is_idle()
            && self.stream.written() >= building.end
        {
            building.phase = Phase::FlushWanted;
        }
        if building.phase == Phase::FlushWanted
            && self.start(token(CLASS_SNAPSHOT_FLUSH, 0), Operation::Flush)?.is_none()
        {
            building.phase = Phase::Flushing;
        }
        while let Phase::Switching { unsent, flying } = building.phase
            && unsent > 0
            // One superblock is in the making at a time.
            && !self.is_switching_size()
            && self.proof_write.is_none()
        {
            let next =
                building.next.get_or_insert_with(|| self.next_superblock(building.start, &building.stream));
            let offset = Superblock::copy_offset(next.generation, unsent - 1);
            let mut buffer = Buffer::new(SUPERBLOCK);
            next.write(&mut buffer);
            let write = Operation::Write { offset, length: SUPERBLOCK, buffer, durable: true };
            if self.start(token(CLASS_SUPERBLOCK, offset), write)?.is_some() {
                break;
            }
            building.phase = Phase::Switching { unsent: unsent - 1, flying: flying + 1 };
        }
        Ok(())
    }

    /// The superblock that names the finished snapshot.
    fn next_superblock(&self, start: Run, stream: &Stream) -> Superblock {
        Superblock {
            snapshot: Some(SnapshotLocation {
                stream: stream.id(),
                segment: stream.segments().front().copied().unwrap_or_default(),
                last: stream.next() - 1,
            }),
            runs: vec![start],
            ..self.successor()
        }
    }

    /// The new superblock is durable: frees what the old one named.
    fn switch(&mut self, building: &mut Building) {
        if let Some(next) = building.next.take() {
            self.superblock = next;
        }
        for segment in self.stream.segments_mut().drain(..building.replaces) {
            self.space.release(segment);
        }
        let fresh = std::mem::take(building.stream.segments_mut());
        for segment in std::mem::replace(&mut self.snapshot_segments, fresh.into()) {
            self.space.release(segment);
        }
        self.forget_marks(building.start.first);
        self.headless = false;
        // The snapshot is durable and stands for everything before it; the rest was written before
        // it was flushed.
        self.durable = self.durable.max(building.end);
        self.metrics.snapshots += 1;
    }

    /// Takes a completion of the snapshot's.
    pub(super) fn finish_snapshot_request(&mut self, class: u64, ticket: u64, buffer: Option<Buffer>) {
        let Some(building) = self.snapshot.building.as_mut() else { return };
        match (class, building.phase) {
            (CLASS_SNAPSHOT, _) => {
                building.stream.complete(ticket);
                self.pool.recycle(buffer);
            }
            (CLASS_SNAPSHOT_FLUSH, Phase::Flushing) => {
                building.phase = Phase::Switching { unsent: 2, flying: 0 };
            }
            (CLASS_SUPERBLOCK, Phase::Switching { unsent, flying }) => {
                building.phase = Phase::Switching { unsent, flying: flying.saturating_sub(1) };
            }
            _ => {}
        }
    }

    /// Closes in order: makes everything durable, and notes in the superblock that the log ends
    /// here. So the loss of even the last record is noticed. A snapshot in progress that is not
    /// finished is given up.
    ///
    /// # Errors
    /// The log has failed; the next opening recovers as after a crash.
    pub fn close(mut self) -> Result<D, Failure> {
        self.abort_snapshot();
        self.submit()?;
        while !self.is_idle() {
            self.wait(std::time::Duration::from_secs(1))?;
        }
        super::open::settle(&mut self.disk)?;
        self.superblock = self.successor();
        (self.superblock.closed, self.superblock.clean) = (true, self.last());
        super::open::write_superblock(&mut self.disk, &self.superblock)?;
        Ok(self.disk)
    }
}
