//! The log writer: appends the shard's effects, and releases replies once they are durable.
//!
//! Each iteration:
//!
//! 1. The effects of the batch are appended as one record, and its write starts at once. A few
//!    writes may be in flight; effects of that time go into the next one: group commit without a
//!    timer. With `interval` and `never`, replies do not wait for the disk, and records are batched
//!    for up to 20 ms. Only WAIT waits there: it has the log flushed at once.
//! 2. All replies made so far are sealed behind the last record. With `always` they leave when it
//!    is durable, otherwise at once.
//! 3. When the log should be compacted, or a command requests it, a snapshot of the shard is
//!    written beside the appends, a slice per iteration. When it is durable, the log drops the
//!    records that it replaces.
//!
//! Exceptional states:
//!
//! - The disk is slower than the clients: the log is *blocked*, and the event loop runs no command
//!   until it accepts records again.
//! - The area is full: the current record goes into the log's reserve, and the event loop waits for
//!   a compaction. If that makes no room, commands that need room are refused with the reason.
//!   Deletions are still accepted, and a later compaction ends the refusal.
//! - The current record has no room in the reserve either, or is larger than a record may be (the
//!   effects of a batch, of expiry and of eviction have no bound). The log is blocked, and a
//!   snapshot *covers* the record: it includes the record's effects and replaces it. This cannot
//!   fail, because the shard refuses commands that would make its state too large for a snapshot.
//! - The log has failed: writes are refused for good, and no reply that waits for durability is
//!   sent.

use sietch::disk::DiskQueue;
use sietch::persist::{AppendError, Failure, Log, SnapshotError};

use crate::foundation::settings::Durability;
use crate::shard::{Now, Shard};

/// Bytes of a snapshot that one iteration writes: 2600 keys with values of 64 bytes, about half a
/// millisecond of work. With less, the log would grow faster than the snapshot that is to replace
/// it.
const SLICE_BYTES: usize = 256 << 10;

/// Nanoseconds between two flushes with `--durability interval`.
const FLUSH_INTERVAL: u64 = 1_000_000_000;

/// With `interval` and `never`, bytes that are batched before they are written: no reply waits for
/// them, and one large write costs little more than a small one.
const LAZY_BYTES: usize = 256 << 10;

/// With `interval` and `never`, longest batching in nanoseconds: a killed process may lose that
/// much.
const LAZY_INTERVAL: u64 = 20_000_000;

/// Nanoseconds before a compaction that found no room is tried again.
const RETRY: u64 = 5_000_000_000;

/// Share of the capacity that is kept for the log (one part of this many); the state may take the
/// rest.
const LOG_SHARE: u64 = 8;

/// After a compaction, a full area accepts growth again if one part of this many is free: with less
/// it would be full at once.
const ROOMY: u64 = 16;

/// The state of a compaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Compaction {
    Idle,
    /// Slices of the snapshot are being dumped.
    Dumping,
    /// Everything is dumped; some records wait for room in the log's queue.
    Draining,
    /// The log switches to the snapshot.
    Finishing,
}

/// Writes the log of a shard.
pub struct LogWriter<D: DiskQueue> {
    log: Log<D>,
    durability: Durability,
    /// The sequence of the last record.
    last: u64,
    compaction: Compaction,
    /// Snapshot records that the log's queue had no room for yet.
    waiting: std::collections::VecDeque<Vec<u8>>,
    /// A compaction was requested.
    requested: bool,
    /// The current compaction failed.
    given_up: bool,
    /// The current compaction ends without a result, for whatever reason.
    abandoned: bool,
    /// The last compaction made no room: the last sequence and the bytes in use then. Another one
    /// is useless until something is appended.
    futile: Option<(u64, u64)>,
    /// The current record is not in the log yet.
    blocked: bool,
    /// The current record has no room in the log: a snapshot must replace it.
    overflow: bool,
    /// The running snapshot includes the effects of the current record.
    covering: bool,
    /// The area is full except for the reserve.
    full: bool,
    /// A compaction made no room: the shard refuses commands that need room.
    refusing: bool,
    failed: bool,
    flush_due: Option<u64>,
    /// Clients wait for a flush (WAIT).
    syncing: bool,
    /// When the batched records must be written.
    write_due: Option<u64>,
    retry_at: u64,
}

impl<D: DiskQueue> std::fmt::Debug for LogWriter<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LogWriter")
            .field("last", &self.last)
            .field("compaction", &self.compaction)
            .finish_non_exhaustive()
    }
}

impl<D: DiskQueue> LogWriter<D> {
    /// Writes a shard's effects to `log`, which has been replayed to its end.
    pub fn new(log: Log<D>, durability: Durability) -> Self {
        Self {
            last: log.last(),
            log,
            durability,
            compaction: Compaction::Idle,
            waiting: std::collections::VecDeque::new(),
            requested: false,
            given_up: false,
            abandoned: false,
            futile: None,
            blocked: false,
            overflow: false,
            covering: false,
            full: false,
            refusing: false,
            failed: false,
            flush_due: None,
            syncing: false,
            write_due: None,
            retry_at: 0,
        }
    }

    /// The log, for its counters.
    pub fn log(&self) -> &Log<D> {
        &self.log
    }

    /// The log itself, to be closed.
    pub fn into_log(self) -> Log<D> {
        self.log
    }

    /// Whether the log cannot take the effects of commands that have already run.
    pub fn is_blocked(&self) -> bool {
        self.blocked
    }

    /// Whether the log has failed for good.
    pub fn has_failed(&self) -> bool {
        self.failed
    }

    /// Whether the area is full and a running compaction may make room. No command runs until it
    /// ends.
    pub fn is_compacting_for_room(&self) -> bool {
        self.full && !self.refusing && !self.failed
    }

    /// Whether replies wait for the disk, or commands for room in the log.
    pub fn is_awaited(&self) -> bool {
        let replies = self.durability == Durability::Always && self.log.durable() < self.last;
        !self.failed && (self.blocked || self.is_compacting_for_room() || replies || self.syncing)
    }

    /// Whether everything appended is as durable as it can become.
    pub fn is_settled(&self) -> bool {
        self.failed || (!self.blocked && self.log.is_idle())
    }

    /// Whether no reply waits for the log.
    pub fn is_caught_up(&self) -> bool {
        let durable = self.durability != Durability::Always || self.log.durable() >= self.last;
        self.failed || (!self.blocked && durable)
    }

    /// When the next iteration is due even if nothing happens, in monotonic nanoseconds. A blocked
    /// log waits for the disk alone, unless a snapshot must be taken.
    pub fn next_deadline(&self) -> Option<u64> {
        if self.failed || (self.blocked && !self.overflow) {
            return None;
        }
        let wanted = self.requested || (self.full && self.is_useful());
        let retry = (wanted && self.compaction == Compaction::Idle).then_some(self.retry_at);
        let dump = (self.compaction == Compaction::Dumping && self.waiting.is_empty()).then_some(0);
        [retry, dump, self.flush_due, self.write_due, self.log.next_deadline()].into_iter().flatten().min()
    }

    /// Does the log's part of an iteration; returns whether anything progressed.
    pub fn iterate(&mut self, shard: &mut Shard, now: Now) -> bool {
        if self.failed {
            shard.journal().clear();
            shard.seal(self.last);
            return false;
        }
        match self.try_iterate(shard, now) {
            Ok(busy) => busy,
            Err(reason) => {
                tracing::error!("{reason}");
                self.failed = true;
                shard.persistence_mut().failed = true;
                shard.persistence_mut().abandon_compaction(self.compaction != Compaction::Idle);
                let behind = self.log.durable() < self.last || !shard.journal().is_empty();
                shard.fail_writes(&reason, behind && self.durability == Durability::Always);
                shard.seal(self.last);
                true
            }
        }
    }

    fn try_iterate(&mut self, shard: &mut Shard, now: Now) -> Result<bool, String> {
        let mut busy = self.append(shard, now)?;
        let durable = self.log.poll().map_err(|cause| cause.to_string())?;
        self.log.write_due_proof(now.monotonic_ns).map_err(|cause| cause.to_string())?;
        shard.limit_snapshot(self.most_dumped());
        if busy || durable > shard.persistence().durable_sequence || self.compaction != Compaction::Idle {
            self.update_status(shard, durable, now);
        }
        if self.blocked {
            // Replies to commands whose effects are not in the log must not leave. They are sealed
            // once the record is appended.
            busy |= shard_durable(shard, durable);
            if self.overflow {
                busy |= self.cover(shard, now)?;
            }
            return Ok(busy);
        }
        if self.durability == Durability::Always {
            shard.seal(self.last);
            busy |= shard_durable(shard, durable);
        } else {
            shard.seal(0);
            if shard.begin_syncs(self.last) {
                self.write_due = None;
                self.log.submit().and_then(|()| self.log.flush()).map_err(|cause| cause.to_string())?;
            }
            self.write_lazily(busy, now).map_err(|cause| cause.to_string())?;
            if shard.has_syncs() {
                busy |= shard_durable(shard, durable);
                // What has ended is sent in the next iteration, or at once if others end.
                shard.seal(0);
            }
            self.syncing = shard.has_syncs();
        }
        busy |= self.compact(shard, now)?;
        Ok(busy)
    }

    /// Most bytes of a snapshot that leave room for the log.
    fn most_dumped(&self) -> u64 {
        self.log.capacity() - self.log.capacity() / LOG_SHARE
    }

    /// Advances the snapshot that replaces the current record.
    fn cover(&mut self, shard: &mut Shard, now: Now) -> Result<bool, String> {
        match self.compaction {
            Compaction::Idle => {
                self.covering = true;
                self.requested = true;
                self.retry_at = 0;
                let moved = self.compact(shard, now)?;
                if self.compaction == Compaction::Idle && !self.log.is_snapshotting() {
                    return Err(self.uncovered());
                }
                Ok(moved)
            }
            Compaction::Dumping | Compaction::Draining if !self.covering => {
                // This snapshot has older states of the keys that the record changes.
                self.abandon(shard, now, 0);
                Ok(true)
            }
            _ => {
                let moved = self.compact(shard, now)?;
                if self.compaction == Compaction::Idle && self.covering {
                    self.covering = false;
                    if self.given_up {
                        return Err(self.uncovered());
                    }
                    if !self.abandoned {
                        shard.journal().clear();
                        self.blocked = false;
                        self.overflow = false;
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

    /// Initialises the state that INFO persistence shows, and the shard's limit, before the first
    /// iteration.
    pub fn initialize(&self, shard: &mut Shard) {
        shard.limit_snapshot(self.most_dumped());
        self.update_status(shard, self.log.durable(), Now::default());
        shard.persistence_mut().base_bytes = self.log.used();
    }

    /// Updates the state that INFO persistence shows.
    fn update_status(&self, shard: &mut Shard, durable: u64, now: Now) {
        let status = shard.persistence_mut();
        status.log = self.log.metrics();
        status.used_bytes = self.log.used();
        status.capacity_bytes = self.log.capacity();
        status.queued_bytes = self.log.queued() as u64;
        status.last_sequence = self.last;
        status.durable_sequence = durable;
        status.full = self.refusing;
        status.compaction_wanted = self.requested;
        status.commits.submitted(self.log.submitted(), now.monotonic_ns);
        if let Some(times) = status.commits.committed(durable, now.monotonic_ns) {
            shard.note_commit(times);
        }
    }

    /// Appends the batch's effects and starts their write.
    fn append(&mut self, shard: &mut Shard, now: Now) -> Result<bool, String> {
        let Some(record) = shard.journal().record() else {
            self.blocked = false;
            return Ok(false);
        };
        if self.covering {
            return Ok(false);
        }
        let outcome = match self.log.append(record) {
            Err(AppendError::Full { .. }) => {
                let appended = self.log.append_shrinking(record);
                self.full |= appended.is_ok();
                appended
            }
            other => other,
        };
        match outcome {
            Ok(sequence) => {
                self.last = sequence;
                self.blocked = false;
                self.overflow = false;
                shard.journal().clear();
                shard.persistence_mut().commits.appended(sequence, now.monotonic_ns);
                if self.durability == Durability::Always {
                    self.log.submit().map_err(|cause| cause.to_string())?;
                }
                if self.refusing {
                    shard.refuse_growth(Some(&self.full_reason()));
                }
                Ok(true)
            }
            Err(AppendError::Busy { .. }) => {
                self.blocked = true;
                Ok(false)
            }
            Err(AppendError::Full { .. } | AppendError::TooLarge { .. }) => {
                self.blocked = true;
                self.overflow = true;
                Ok(false)
            }
            Err(cause) => Err(cause.to_string()),
        }
    }

    fn full_reason(&self) -> String {
        format!(
            "the storage area is full: {} of {} bytes are used; delete data, or make the area larger",
            self.log.used(),
            self.log.capacity()
        )
    }

    /// Writes the batched records once they are large or old enough, and flushes at intervals.
    fn write_lazily(&mut self, appended: bool, now: Now) -> Result<(), Failure> {
        let due = |at: Option<u64>| at.is_some_and(|at| at <= now.monotonic_ns);
        if self.log.queued() >= LAZY_BYTES || due(self.write_due) {
            self.write_due = None;
            self.log.submit()?;
        } else if appended && self.write_due.is_none() {
            self.write_due = Some(now.monotonic_ns.saturating_add(LAZY_INTERVAL));
        }
        if self.durability == Durability::Interval {
            if due(self.flush_due) {
                self.flush_due = None;
                self.log.flush()?;
            }
            if appended && self.flush_due.is_none() {
                self.flush_due = Some(now.monotonic_ns.saturating_add(FLUSH_INTERVAL));
            }
        }
        Ok(())
    }

    /// Whether a compaction might make room.
    fn is_useful(&self) -> bool {
        self.futile.is_none_or(|(sequence, _)| sequence != self.last)
    }

    /// Advances a compaction by a slice, or starts one that is due.
    fn compact(&mut self, shard: &mut Shard, now: Now) -> Result<bool, String> {
        match self.compaction {
            Compaction::Idle => {
                self.requested |= shard.compaction_requested();
                shard.persistence_mut().compaction_wanted = self.requested;
                let due = self.requested || (self.is_useful() && (self.full || self.log.should_compact()));
                // Deletions use up the reserve: then the compaction must not pause.
                let urgent = self.is_compacting_for_room()
                    || self.futile.is_some_and(|(_, used)| self.log.used() > used);
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
                    }
                    Err(SnapshotError::Failed(cause)) => return Err(cause.to_string()),
                    Err(_) => {
                        shard.persistence_mut().abandon_compaction(true);
                        shard.snapshot_failed();
                        self.futile = Some((self.last, self.log.used()));
                        self.refuse(shard);
                        self.retry_at = now.monotonic_ns.saturating_add(RETRY);
                    }
                }
                Ok(true)
            }
            Compaction::Dumping => {
                let before = self.waiting.len();
                if self.drain(shard, now)? && self.compaction == Compaction::Dumping {
                    self.dump(shard, now)?;
                    return Ok(true);
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
            Compaction::Finishing => {
                if self.log.is_snapshotting() {
                    return Ok(false);
                }
                self.compaction = Compaction::Idle;
                if !self.abandoned {
                    shard.snapshot_finished(now);
                    shard.persistence_mut().finish_compaction(now.monotonic_ns, self.log.used());
                }
                // If the snapshot is hardly smaller than the records that it replaces, the area is
                // still full.
                let free = self.log.capacity().saturating_sub(self.log.used());
                let roomy = free >= self.log.capacity() / ROOMY;
                if self.full && !self.given_up && roomy {
                    self.full = false;
                    self.refusing = false;
                    shard.refuse_growth(None);
                } else if self.full && (self.given_up || !self.abandoned) {
                    self.refuse(shard);
                    self.retry_at = self.retry_at.max(now.monotonic_ns.saturating_add(RETRY));
                    self.futile = Some((self.last, self.log.used()));
                }
                Ok(true)
            }
        }
    }

    /// Makes the shard refuse commands that need room, if the area is full.
    fn refuse(&mut self, shard: &mut Shard) {
        if self.full {
            self.refusing = true;
            shard.refuse_growth(Some(&self.full_reason()));
        }
    }

    fn dump(&mut self, shard: &mut Shard, now: Now) -> Result<(), String> {
        if shard.snapshot_aborted() {
            self.abandon(shard, now, 0);
            return Ok(());
        }
        let waiting = &mut self.waiting;
        let done =
            shard.snapshot_slice(self.last, SLICE_BYTES, &mut |record| waiting.push_back(record.to_vec()));
        if shard.snapshot_aborted() {
            self.abandon(shard, now, 0);
        } else if done {
            self.compaction = Compaction::Draining;
        }
        self.drain(shard, now).map(drop)
    }

    /// Appends waiting snapshot records to the log; true when none is left.
    fn drain(&mut self, shard: &mut Shard, now: Now) -> Result<bool, String> {
        while let Some(record) = self.waiting.front() {
            match self.log.snapshot_append(record) {
                Ok(()) => {
                    self.waiting.pop_front();
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
        if self.given_up {
            shard.snapshot_failed();
        }
        // The request stays, unless the area has no room.
        self.requested |= !self.given_up;
        self.abandoned = true;
        self.log.abort_snapshot();
        self.waiting.clear();
        self.compaction = Compaction::Finishing;
        self.retry_at = now.monotonic_ns.saturating_add(pause);
    }
}

/// Passes the durable sequence to the shard; returns whether it has advanced.
fn shard_durable(shard: &mut Shard, durable: u64) -> bool {
    let advanced = durable > shard.durable_up_to();
    shard.durable(durable);
    advanced
}
