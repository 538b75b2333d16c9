//! The log: appends records, makes them durable, and says how far they are.
//!
//! 1. [`Log::append`] copies a payload into the open batch. [`Log::submit`] writes the batch unless
//!    as many writes as allowed are in flight. Then the batch keeps growing (group commit) and
//!    [`Log::poll`] writes it as soon as one completes.
//! 2. [`Log::poll`] takes completions in any order and advances the durable sequence over the
//!    contiguous prefix. The next [`Log::open`] finds every record up to it again.
//! 3. With [`Durability::Always`] each write is durable by itself. With [`Durability::Deferred`]
//!    only [`Log::flush`] advances the durable sequence; [`Log::written`] says what a crash of the
//!    process alone cannot take away.
//! 4. The first request that fails stops the log for good ([`Failure`]).
//! 5. Opening starts a new epoch, durably and before the first append, and a fresh segment. Writes
//!    that an earlier epoch left in flight may land at any time: their records belong to sequences
//!    that are no longer its own.
//! 6. The head is given up by [`Log::truncate`] (`truncate`), or by a snapshot that stands for it
//!    (`snapshot`).
//! 7. Records are read back through a [`Cursor`] while the log continues (`read`). A [`Waiter`] is
//!    called when a record is durable.
//! 8. There is always room for the next snapshot (`space`), so a full log refuses appends *before*
//!    they are acknowledged.
//! 9. The medium holds proof of how far the log is durable, written when the log is idle and at
//!    intervals (`proof`).
//! 10. The area may grow and shrink while the log runs (`resize`).

mod metrics;
mod open;
mod options;
mod proof;
mod read;
mod resize;
mod snapshot;
mod state;
mod truncate;
mod verify;

use std::time::Duration;

use sietch_disk::{Completion, DiskQueue, Operation, SubmitError};

use crate::disk_request::{failure, refused};
use crate::error::{AppendError, Failure};
use crate::layout::{Superblock, log_stream};
use crate::limits::{MANY_RUNS, MAX_QUEUED, MAX_RECORD};
use crate::space::Space;
use crate::stream::{Pool, Stream};
use crate::typed::{Record, typed};
use state::proof::{ProofSchedule, ProofWrite};
use state::reads::Reads;
use state::requests::{
    CLASS_FLUSH, CLASS_LOG, CLASS_PROOF_SUPERBLOCK, CLASS_READ, CLASS_RESIZE_SUPERBLOCK, CLASS_SHIFT,
    CLASS_SNAPSHOT, CLASS_SUPERBLOCK, CLASS_TRUNCATE_FLUSH, CLASS_TRUNCATE_SUPERBLOCK, no_segment, token,
};
use state::resize::Resize;
use state::snapshot::Snapshot;
use state::truncation::Truncation;
use state::waiters::Waiters;

pub use metrics::LogMetrics;
pub use open::{FormatOptions, check, expected_records, is_formatted};
pub use options::{Durability, Options, Sequence};
pub use read::{Cursor, Read};
pub use state::waiters::Waiter;
pub use verify::verify;

/// A flush of a log with deferred durability.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flush {
    Idle,
    /// One should be started when the queue has room.
    Wanted,
    /// In flight; it covers records up to `covers`. `again`: another one was requested meanwhile.
    Flying {
        covers: Sequence,
        again: bool,
    },
}

/// See the module's account.
pub struct Log<D: DiskQueue> {
    disk: D,
    durability: Durability,
    in_flight: usize,
    superblock: Superblock,
    space: Space,
    pool: Pool,
    stream: Stream,
    /// No run for this epoch is in the superblock: appends wait for a snapshot.
    headless: bool,
    durable: Sequence,
    /// A batch should be written as soon as a write completes.
    submit_wanted: bool,
    flush: Flush,
    snapshot: Snapshot,
    snapshot_segments: Vec<u32>,
    truncation: Option<Box<Truncation>>,
    resize: Option<Box<Resize>>,
    proof_write: Option<Box<ProofWrite>>,
    proof_schedule: Option<ProofSchedule>,
    /// The disk queue that takes over when nothing is in flight.
    replacement: Option<Box<D>>,
    reads: Reads,
    waiters: Waiters,
    completions: Vec<Completion>,
    failure: Option<Failure>,
    metrics: LogMetrics,
}

impl<D: DiskQueue> Log<D> {
    /// Appends a payload. It is in the open batch now; [`Log::submit`] writes it, and it is durable
    /// once [`Log::poll`] returns at least the sequence that this returns.
    ///
    /// # Errors
    /// See [`AppendError`]; the payload was not appended, not even in part.
    pub fn append(&mut self, payload: &[u8]) -> Result<Sequence, AppendError> {
        self.append_parts(&[payload])
    }

    /// As [`Log::append`], for a payload that is in several pieces: a header and what follows it.
    ///
    /// # Errors
    /// As [`Log::append`].
    pub fn append_parts(&mut self, payload: &[&[u8]]) -> Result<Sequence, AppendError> {
        self.append_within(payload, self.growing_limit())
    }

    /// Appends a typed record with a tail (which may be empty).
    ///
    /// # Errors
    /// As [`Log::append`].
    pub fn append_record<R: Record>(&mut self, record: &R, tail: &[u8]) -> Result<Sequence, AppendError> {
        self.append_parts(&[&typed::<R>(), record.as_bytes(), tail])
    }

    /// Appends several payloads, or none of them if not all have room. Returns the sequence of the
    /// last. A crash may leave the first few of them.
    ///
    /// # Errors
    /// As [`Log::append`].
    pub fn append_batch(&mut self, payloads: &[&[u8]]) -> Result<Sequence, AppendError> {
        let limit = self.growing_limit();
        let longest = payloads.iter().map(|payload| payload.len()).max().unwrap_or_default();
        let total = payloads.iter().map(|payload| self.stream.cost(payload.len())).sum();
        self.admit(longest, self.stream.segments_for(total), limit)?;
        let mut last = self.last();
        for payload in payloads {
            last = self.put(&[payload])?;
        }
        Ok(last)
    }

    fn growing_limit(&self) -> u32 {
        self.space.budget().saturating_sub(self.space.shrink_reserve())
    }

    /// As [`Log::append`], for records that make the state smaller (deletions). They may use a
    /// reserve that is kept for them, so that a full store can be emptied.
    ///
    /// # Errors
    /// As [`Log::append`].
    pub fn append_shrinking(&mut self, payload: &[u8]) -> Result<Sequence, AppendError> {
        self.append_shrinking_parts(&[payload])
    }

    /// As [`Log::append_shrinking`], for a payload that is in several pieces.
    ///
    /// # Errors
    /// As [`Log::append`].
    pub(crate) fn append_shrinking_parts(&mut self, payload: &[&[u8]]) -> Result<Sequence, AppendError> {
        self.append_within(payload, self.space.budget())
    }

    fn append_within(&mut self, payload: &[&[u8]], limit: u32) -> Result<Sequence, AppendError> {
        let length = payload.iter().map(|part| part.len()).sum();
        self.admit(length, self.stream.segments_needed(length), limit)?;
        self.put(payload)
    }

    /// Whether there is room for records that need this many segments, the longest being of
    /// `length` bytes.
    fn admit(&mut self, length: usize, needed: u32, limit: u32) -> Result<(), AppendError> {
        self.check()?;
        if length > MAX_RECORD {
            return Err(AppendError::TooLarge { length, limit: MAX_RECORD });
        }
        let queued = self.stream.queued();
        if queued >= MAX_QUEUED {
            self.metrics.busy += 1;
            return Err(AppendError::Busy { queued });
        }
        let fits = !self.headless && self.live_segments() + needed <= limit && needed <= self.space.free();
        if !fits {
            self.metrics.full += 1;
            return Err(AppendError::Full { used: self.used(), limit: self.segment_bytes(limit) });
        }
        Ok(())
    }

    fn put(&mut self, payload: &[&[u8]]) -> Result<Sequence, AppendError> {
        let durable = self.durable;
        let Some(sequence) = self.stream.append(payload, durable, &mut self.space, &mut self.pool) else {
            // Unreachable while `segments_needed` is an upper bound; half a payload must not be
            // followed by others.
            return Err(self.fail("allocating a segment", 0, no_segment()).into());
        };
        self.metrics.appends += 1;
        self.metrics.appended_bytes += payload.iter().map(|part| part.len() as u64).sum::<u64>();
        Ok(sequence)
    }

    /// Writes what was appended, or, while as many writes as allowed are in flight, has
    /// [`Log::poll`] write it as soon as one completes. At most one system call. Does nothing when
    /// nothing was appended.
    ///
    /// # Errors
    /// The log has failed.
    pub fn submit(&mut self) -> Result<(), Failure> {
        let mut result = self.check();
        if result.is_ok() && self.stream.queued() > 0 {
            self.submit_wanted = true;
            result = self.pump().and_then(|()| self.notify());
        }
        if result.is_err() {
            self.waiters.notify(self.durable, self.failure.as_ref());
        }
        result
    }

    /// Requests that everything written so far be made durable; [`Log::poll`] returns when it is.
    /// With [`Durability::Always`] this is what [`Log::submit`] does.
    ///
    /// # Errors
    /// The log has failed.
    pub fn flush(&mut self) -> Result<(), Failure> {
        self.check()?;
        if self.durability == Durability::Always {
            return self.submit();
        }
        self.flush = match self.flush {
            Flush::Idle | Flush::Wanted => Flush::Wanted,
            Flush::Flying { covers, .. } => Flush::Flying { covers, again: true },
        };
        self.pump()?;
        self.notify()
    }

    /// Takes what the device has finished, continues with what waited for it, and returns the
    /// sequence up to which everything is durable. Never waits.
    ///
    /// # Errors
    /// The log has failed: nothing beyond what was returned before may be acknowledged.
    pub fn poll(&mut self) -> Result<Sequence, Failure> {
        if self.failure.is_none() && self.disk.in_flight() > 0 {
            let mut completions = std::mem::take(&mut self.completions);
            self.disk.complete(&mut completions);
            for completion in completions.drain(..) {
                self.finish(completion);
            }
            self.completions = completions;
        }
        self.exchange();
        let result = self.check().and_then(|()| self.pump()).and_then(|()| self.notify());
        self.waiters.notify(self.durable, self.failure.as_ref());
        result.map(|()| self.durable)
    }

    /// Waits until a request completes or `timeout` has passed, then polls. For start-up, shutdown
    /// and tests.
    ///
    /// # Errors
    /// As [`Log::poll`].
    pub fn wait(&mut self, timeout: Duration) -> Result<Sequence, Failure> {
        self.poll()?;
        if self.disk.in_flight() > 0 {
            self.disk.wait(timeout).map_err(|e| self.fail("waiting for the disk", 0, e))?;
        }
        self.poll()
    }

    /// [`Log::poll`] notifies `waiter` once everything up to `sequence` is durable, or the log has
    /// failed. If that is so already, this call notifies it at once.
    pub fn when_durable(&mut self, sequence: Sequence, waiter: Waiter) {
        self.waiters.insert(sequence, waiter);
        if sequence <= self.durable || self.failure.is_some() {
            self.waiters.notify(self.durable, self.failure.as_ref());
        }
    }

    /// The sequence up to which everything is durable.
    pub fn durable(&self) -> Sequence {
        self.durable
    }

    /// When its records become durable.
    pub fn durability(&self) -> Durability {
        self.durability
    }

    /// Whether a [`Log::flush`] is on its way.
    pub fn is_flushing(&self) -> bool {
        self.flush != Flush::Idle
    }

    /// The sequence up to which everything was written: it survives the process, but not power
    /// loss.
    pub fn written(&self) -> Sequence {
        self.stream.written()
    }

    /// The sequence up to which the device has the writes, or has done them.
    pub fn submitted(&self) -> Sequence {
        self.stream.submitted()
    }

    /// The sequence of the last record appended (or of the last one recovered).
    pub fn last(&self) -> Sequence {
        self.stream.next() - 1
    }

    /// Whether nothing is queued or in flight: no call to [`Log::poll`] would change anything.
    pub fn is_idle(&self) -> bool {
        self.stream.is_idle()
            && self.flush == Flush::Idle
            && self.snapshot.is_idle()
            && self.truncation.is_none()
            && !self.is_resizing()
            && self.proof_write.is_none()
            && self.disk.in_flight() == 0
    }

    /// Bytes appended and not passed to the device yet.
    pub fn queued(&self) -> usize {
        self.stream.queued()
    }

    /// Bytes of the area that log and snapshot use, by whole segments.
    pub fn used(&self) -> u64 {
        self.segment_bytes(self.live_segments())
    }

    /// Bytes that log and snapshot may use together before appends are refused. The state of the
    /// application, as a snapshot, must stay well below it.
    pub fn capacity(&self) -> u64 {
        self.segment_bytes(self.space.budget().saturating_sub(self.space.shrink_reserve()))
    }

    /// Bytes of a record that [`Log::append_shrinking`] certainly has room for now.
    pub fn room(&self) -> u64 {
        let left = self.space.budget().saturating_sub(self.live_segments()).min(self.space.free());
        if self.headless { 0 } else { self.stream.room(left).min(MAX_RECORD as u64) }
    }

    /// Whether it is time to begin a snapshot, in one of four cases. The log is larger than the
    /// snapshot and takes half of its limit; it is nearly full; it must leave the end of an area
    /// that is to shrink; or it has been opened many times.
    pub fn should_compact(&self) -> bool {
        if !self.snapshot.is_idle() || self.truncation.is_some() || self.failure.is_some() {
            return false;
        }
        let budget = self.space.budget();
        let snapshot = self.snapshot_segments.len();
        let log = self.stream.segments().len();
        let live = self.live_segments();
        let large = log > snapshot.max(1) && live * 2 > budget;
        let nearly_full = log > 1 + budget as usize / 32 && live * 8 >= budget * 7;
        self.headless || large || nearly_full || self.must_move() || self.superblock.runs.len() >= MANY_RUNS
    }

    /// Whether a snapshot of `bytes` in `records` would free half of the used bytes, and at least a
    /// quarter of the room. When `pressed` for room: whether it would free anything.
    pub(crate) fn is_mostly_dead(&self, bytes: usize, records: usize, pressed: bool) -> bool {
        if !self.snapshot.is_idle() || self.truncation.is_some() || self.failure.is_some() {
            return false;
        }
        let bytes = bytes as u64 + (records as u64 + 1) * crate::layout::record_size(0) as u64;
        let (live, budget) = (u64::from(self.live_segments()), u64::from(self.space.budget()));
        // The snapshot, the segment where it ends, and the one where the log continues.
        let after = bytes.div_ceil(u64::from(self.superblock.segment_bytes)) + 1;
        after < live && (pressed || after * 2 <= live && live * 4 >= budget)
    }

    /// What the log has done since it was opened.
    pub fn metrics(&self) -> LogMetrics {
        self.metrics
    }

    /// The error that stopped the log, if one has.
    pub fn failed(&self) -> Option<&Failure> {
        self.failure.as_ref()
    }

    /// The epoch that this opening started.
    pub fn epoch(&self) -> u32 {
        self.superblock.epoch
    }

    /// The disk queue, for its doorbell.
    pub fn disk(&self) -> &D {
        &self.disk
    }

    /// Returns the disk queue without closing in order, as a crash would. Requests in flight
    /// stay in it.
    pub fn into_disk(self) -> D {
        self.disk
    }

    fn live_segments(&self) -> u32 {
        // Both are counts of segments, which have 32 bits.
        (self.stream.segments().len() + self.snapshot_segments.len()) as u32
    }

    fn segment_bytes(&self, segments: u32) -> u64 {
        u64::from(segments) * u64::from(self.superblock.segment_bytes)
    }

    fn check(&self) -> Result<(), Failure> {
        self.failure.as_ref().map_or(Ok(()), |failure| Err(failure.clone()))
    }

    /// Stops the log, unless it has stopped; returns why it did.
    fn fail(&mut self, action: &'static str, offset: u64, error: std::io::Error) -> Failure {
        self.failure.get_or_insert_with(|| failure(action, offset, error)).clone()
    }

    fn notify(&mut self) -> Result<(), Failure> {
        self.disk.notify().map_err(|e| self.fail("submitting requests to the disk", 0, e))
    }

    /// If no run of this epoch is in the superblock: continues in a fresh segment, which the next
    /// superblock will name. `None`: no segment is free.
    fn take_a_head(&mut self) -> Option<()> {
        if self.headless {
            let segment = self.space.take()?;
            self.stream.go_on(&self.superblock, log_stream(self.superblock.epoch), segment);
        }
        Some(())
    }

    /// Passes an operation to the queue; `Ok(Some)` when it is full.
    fn start(&mut self, token: u64, operation: Operation) -> Result<Option<Operation>, Failure> {
        if self.replacement.is_some() {
            return Ok(Some(operation));
        }
        let (offset, length, reads) = match &operation {
            Operation::Write { offset, length, .. } => (*offset, *length, false),
            Operation::Read { offset, .. } => (*offset, 0, true),
            // The log moves single buffers.
            _ => (0, 0, false),
        };
        match self.disk.submit(token, operation) {
            Ok(()) if length > 0 => {
                self.metrics.writes += 1;
                self.metrics.written_bytes += length as u64;
                Ok(None)
            }
            Ok(()) if reads => {
                self.metrics.reads += 1;
                Ok(None)
            }
            Ok(()) => {
                self.metrics.flushes += 1;
                Ok(None)
            }
            Err(SubmitError::Full(operation)) => Ok(Some(operation)),
            Err(error) => {
                let refusal = refused("writing", offset, &error);
                Err(self.failure.get_or_insert(refusal).clone())
            }
        }
    }

    /// Starts whatever may be started.
    fn pump(&mut self) -> Result<(), Failure> {
        while self.stream.in_flight() < self.in_flight {
            let durable = self.durability == Durability::Always;
            if let Some((ticket, write)) = self.stream.next_write(durable) {
                if let Some(refused) = self.start(token(CLASS_LOG, ticket), write)? {
                    self.stream.take_back(refused);
                    break;
                }
            } else if self.submit_wanted && self.stream.has_open() {
                self.submit_wanted = false;
                self.stream.seal();
            } else {
                break;
            }
        }
        if self.flush == Flush::Wanted {
            let covers = self.stream.written();
            self.flush = match self.start(token(CLASS_FLUSH, 0), Operation::Flush)? {
                None => Flush::Flying { covers, again: false },
                Some(_) => Flush::Wanted,
            };
        }
        self.pump_proof()?;
        self.pump_snapshot()?;
        self.pump_truncation()?;
        self.pump_resize()
    }

    /// Takes one completion.
    fn finish(&mut self, completion: Completion) {
        let Completion { token, result, buffer, .. } = completion;
        let ticket = token & ((1 << CLASS_SHIFT) - 1);
        let class = token >> CLASS_SHIFT;
        if class == CLASS_READ {
            // A read that fails is its reader's affair.
            self.metrics.reads_done += 1;
            return self.reads.finish(ticket, result, buffer);
        }
        if let Err(error) = result {
            let (action, offset) = match class {
                CLASS_LOG => ("writing the log", self.stream.offset_of(ticket)),
                CLASS_SNAPSHOT => ("writing a snapshot", self.snapshot.offset_of(ticket)),
                CLASS_SUPERBLOCK
                | CLASS_TRUNCATE_SUPERBLOCK
                | CLASS_RESIZE_SUPERBLOCK
                | CLASS_PROOF_SUPERBLOCK => ("writing a superblock", ticket),
                _ => ("flushing", 0),
            };
            self.fail(action, offset, error);
            return;
        }
        match class {
            CLASS_LOG => {
                self.stream.complete(ticket);
                self.pool.recycle(buffer);
                if self.durability == Durability::Always {
                    self.durable = self.stream.written();
                }
            }
            CLASS_FLUSH => {
                if let Flush::Flying { covers, again } = self.flush {
                    self.durable = self.durable.max(covers);
                    self.flush = if again { Flush::Wanted } else { Flush::Idle };
                }
            }
            CLASS_RESIZE_SUPERBLOCK => self.finish_resize_request(),
            CLASS_PROOF_SUPERBLOCK => self.finish_proof_request(),
            CLASS_TRUNCATE_FLUSH | CLASS_TRUNCATE_SUPERBLOCK => self.finish_truncation_request(class),
            _ => self.finish_snapshot_request(class, ticket, buffer),
        }
    }
}
