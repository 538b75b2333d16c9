//! The log writer: appends the effects of all shards, and releases replies once they are durable.
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
//!    written beside the appends, a slice per iteration ([`compaction`]). When it is durable, the
//!    log drops the records that it replaces.
//! 4. With several cores, effects and dumps of the members wait in one queue ([`order`]). What this
//!    core has recorded itself follows what has arrived before.
//!
//! Exceptional states:
//!
//! - The disk is slower than the clients: the log is *blocked*, and the event loop runs no command
//!   until it accepts records again.
//! - The area is full: the current record goes into the log's reserve, and the event loop waits for
//!   a compaction. If that makes no room, commands that need room are refused with the reason.
//!   Deletions are still accepted, and a later compaction ends the refusal.
//! - A record has no room in the reserve either, or is larger than a record may be (the effects of
//!   a batch, of expiry and of eviction have no bound). The log is blocked, and a snapshot *covers*
//!   the record and everything that waits behind it: it includes their effects and replaces them.
//!   This cannot fail, because shards refuse commands that would make the data set too large for a
//!   snapshot. With several cores, all shards must be here until it is durable.
//! - The log has failed: writes are refused for good, and no reply that waits for durability is
//!   sent.

use std::collections::VecDeque;

use sietch::disk::DiskQueue;
use sietch::persist::{AppendError, Failure, Log};

use crate::foundation::settings::Durability;
use crate::shard::{Now, Shard};

mod compaction;
mod dumps;
mod log_state;
mod order;

pub(super) use dumps::SLICE_BYTES;
pub(super) use log_state::LogState;
pub(super) use order::{Progress, Queued};

use dumps::{Compaction, Dump, Walks};
use order::Positions;

/// Nanoseconds between two flushes with `--durability interval`.
const FLUSH_INTERVAL: u64 = 1_000_000_000;

/// With `interval` and `never`, bytes that are batched before they are written: no reply waits for
/// them, and one large write costs little more than a small one.
const LAZY_BYTES: usize = 256 << 10;

/// With `interval` and `never`, longest batching in nanoseconds: a killed process may lose that
/// much.
const LAZY_INTERVAL: u64 = 20_000_000;

/// Share of the capacity that is kept for the log (one part of this many); the state may take the
/// rest.
const LOG_SHARE: u64 = 8;

/// Writes the log of a store.
pub struct LogWriter<D: DiskQueue> {
    log: Log<D>,
    durability: Durability,
    /// How many cores the store has.
    cores: usize,
    /// The sequence of the last record.
    last: u64,
    /// The last one whose write was begun.
    begun: u64,
    /// The sequence of the last record with effects that replies of this core may show.
    own: u64,
    /// What waits to go into the log. With one core it is one record, if the log is blocked.
    queue: VecDeque<Queued>,
    positions: Positions,
    /// Changes of the log's state that the members have not received yet.
    states: Vec<LogState>,
    compaction: Compaction,
    /// The number of the last snapshot.
    snapshot: u64,
    walks: Walks,
    /// Snapshot records that the log's queue had no room for yet.
    waiting: VecDeque<Dump>,
    /// A compaction was requested.
    requested: bool,
    /// The current compaction failed.
    given_up: bool,
    /// The current compaction ends without a result, for whatever reason.
    abandoned: bool,
    /// The last compaction made no room: the last sequence and the bytes in use then. Another one
    /// is useless until something is appended.
    futile: Option<(u64, u64)>,
    /// The first record of the queue has no room in the log: a snapshot must replace it.
    overflow: bool,
    /// The running snapshot includes the effects of all records of the queue.
    covering: bool,
    /// The area is full except for the reserve.
    full: bool,
    /// A compaction made no room: the shard refuses commands that need room.
    refusing: bool,
    failed: bool,
    /// Whether the log has said that the area is full.
    shows_full: bool,
    /// Whether the members know that no command runs.
    held: bool,
    flush_due: Option<u64>,
    /// Clients wait for a flush (WAIT).
    syncing: bool,
    /// Such clients of members have come: the log is to be flushed.
    flush_wanted: bool,
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
    pub(crate) fn new(log: Log<D>, durability: Durability) -> Self {
        Self {
            last: log.last(),
            begun: log.last(),
            own: log.last(),
            log,
            durability,
            cores: 1,
            queue: VecDeque::new(),
            positions: Positions::default(),
            states: Vec::new(),
            compaction: Compaction::Idle,
            snapshot: 0,
            walks: Walks::default(),
            waiting: VecDeque::new(),
            requested: false,
            given_up: false,
            abandoned: false,
            futile: None,
            overflow: false,
            covering: false,
            full: false,
            refusing: false,
            failed: false,
            shows_full: false,
            held: false,
            flush_due: None,
            syncing: false,
            flush_wanted: false,
            write_due: None,
            retry_at: 0,
        }
    }

    /// Writes the effects of so many cores.
    pub(super) fn serve_cores(&mut self, cores: usize) {
        self.cores = cores;
        self.positions = Positions::new(cores);
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
        !self.queue.is_empty()
    }

    /// The sequence behind which replies of this core are sealed, and the last that is durable.
    /// `None` while it has effects that are not in the log.
    pub(super) fn own_position(&self) -> Option<(u64, u64)> {
        if self.failed || self.durability != Durability::Always {
            return Some((0, u64::MAX));
        }
        (!self.is_blocked()).then(|| (self.own, self.log.durable()))
    }

    /// Whether all shards must be here, for a snapshot that covers what waits.
    pub(super) fn needs_all_shards(&self) -> bool {
        self.overflow && !self.failed
    }

    /// Puts what another core has done behind everything that has come before.
    pub(super) fn push(&mut self, queued: Queued) {
        if !self.failed {
            self.queue.push_back(queued);
        }
    }

    /// Puts what the shard has recorded behind everything that has come before.
    pub(super) fn push_own(&mut self, shard: &mut Shard) {
        if let Some(record) = shard.journal().take() {
            self.push(Queued::Own(record));
        }
    }

    /// Requests a compaction, as a command of this core's shard does.
    pub(super) fn request_compaction(&mut self) {
        self.requested = true;
    }

    /// Changes of the log's state since the last call, for the members.
    pub(super) fn take_states(&mut self) -> Vec<LogState> {
        std::mem::take(&mut self.states)
    }

    /// The progress of a member, if it has changed since the last call.
    pub(super) fn take_progress(&mut self, member: usize) -> Option<Progress> {
        self.positions.take_news(member)
    }

    /// Records a change of the log's state for the members.
    fn report(&mut self, state: LogState) {
        if self.cores > 1 {
            self.states.push(state);
        }
    }

    /// Whether the log has failed for good.
    pub(crate) fn has_failed(&self) -> bool {
        self.failed
    }

    /// Whether the area is full and a running compaction may make room. No command runs until it
    /// ends.
    pub(crate) fn is_compacting_for_room(&self) -> bool {
        self.full && !self.refusing && !self.failed
    }

    /// Whether replies wait for the disk, or commands for room in the log.
    pub(crate) fn is_awaited(&self) -> bool {
        let replies = self.durability == Durability::Always && self.log.durable() < self.last;
        !self.failed && (self.is_blocked() || self.is_compacting_for_room() || replies || self.syncing)
    }

    /// Whether everything appended is as durable as it can become.
    pub fn is_settled(&self) -> bool {
        self.failed || (!self.is_blocked() && self.log.is_idle())
    }

    /// Whether no reply waits for the log.
    pub(crate) fn is_caught_up(&self) -> bool {
        let durable = self.durability != Durability::Always || self.log.durable() >= self.last;
        self.failed || (!self.is_blocked() && durable)
    }

    /// When the next iteration is due even if nothing happens, in monotonic nanoseconds. A blocked
    /// log waits for the disk alone, unless a snapshot must be taken.
    pub(crate) fn next_deadline(&self) -> Option<u64> {
        if self.failed || (self.is_blocked() && !self.overflow) {
            return None;
        }
        let wanted = self.requested || (self.full && self.is_useful());
        let retry = (wanted && self.compaction == Compaction::Idle).then_some(self.retry_at);
        let dumps = self.compaction == Compaction::Dumping && self.waiting.is_empty();
        let dump = (dumps && !self.waits_for_walks()).then_some(0);
        [retry, dump, self.flush_due, self.write_due, self.log.next_deadline()].into_iter().flatten().min()
    }

    /// Does the log's part of an iteration of the only core; returns whether anything progressed.
    pub fn iterate(&mut self, shard: &mut Shard, now: Now) -> bool {
        self.iterate_with(shard, &mut [], now)
    }

    /// The same of the first core of several. `others` are the shards of all members, if they are
    /// here.
    pub(super) fn iterate_with(&mut self, shard: &mut Shard, others: &mut [Box<Shard>], now: Now) -> bool {
        if self.failed {
            shard.journal().clear();
            shard.seal(self.last);
            return false;
        }
        match self.try_iterate(shard, others, now) {
            Ok(busy) => busy,
            Err(reason) => {
                self.fail(shard, &reason);
                true
            }
        }
    }

    fn fail(&mut self, shard: &mut Shard, reason: &str) {
        tracing::error!("{reason}");
        self.failed = true;
        shard.persistence_mut().failed = true;
        shard.persistence_mut().abandon_compaction(self.compaction != Compaction::Idle);
        let behind = self.log.durable() < self.last || self.is_blocked() || !shard.journal().is_empty();
        let unlogged = behind && self.durability == Durability::Always;
        self.queue.clear();
        shard.fail_writes(reason, unlogged);
        shard.seal(self.last);
        self.report(LogState::Failed { reason: reason.to_owned(), unlogged });
    }

    fn try_iterate(
        &mut self,
        shard: &mut Shard,
        others: &mut [Box<Shard>],
        now: Now,
    ) -> Result<bool, String> {
        let mut busy = self.append(shard, now)?;
        let durable = self.log.poll().map_err(|cause| cause.to_string())?;
        self.log.write_due_proof(now.monotonic_ns).map_err(|cause| cause.to_string())?;
        self.positions.durable(durable);
        shard.limit_snapshot(self.most_dumped());
        if busy || durable > shard.persistence().durable_sequence || self.compaction != Compaction::Idle {
            self.update_status(shard, durable, now);
        }
        self.show_full(shard);
        if self.is_blocked() {
            // Replies to commands whose effects are not in the log must not leave. They are sealed
            // once the record is appended.
            busy |= shard_durable(shard, durable);
            if self.overflow && others.len() + 1 == self.cores {
                busy |= self.cover(shard, others, now)?;
            }
            self.tell_held();
            return Ok(busy);
        }
        if self.durability == Durability::Always {
            shard.seal(self.own);
            busy |= shard_durable(shard, durable);
        } else {
            busy |= self.seal_and_sync(shard, durable, busy, now).map_err(|cause| cause.to_string())?;
        }
        busy |= self.compact(shard, others, now)?;
        self.tell_held();
        Ok(busy)
    }

    /// Seals replies that do not wait for the disk, except those of WAIT.
    fn seal_and_sync(
        &mut self,
        shard: &mut Shard,
        durable: u64,
        appended: bool,
        now: Now,
    ) -> Result<bool, Failure> {
        let mut busy = false;
        shard.seal(0);
        if shard.begin_syncs(self.last) || std::mem::take(&mut self.flush_wanted) {
            self.write_due = None;
            self.log.submit().and_then(|()| self.log.flush())?;
        }
        self.write_lazily(appended, now)?;
        if shard.has_syncs() {
            busy = shard_durable(shard, durable);
            // What has ended is sent in the next iteration, or at once if others end.
            shard.seal(0);
        }
        self.syncing = shard.has_syncs() || self.positions.is_awaited();
        Ok(busy)
    }

    /// Whether writes are refused because the area is full.
    pub(crate) fn is_full(&self, shard: &Shard) -> bool {
        self.refusing || shard.lacks_room()
    }

    /// Says in the log that the area is full, and that it no longer is, once each.
    fn show_full(&mut self, shard: &Shard) {
        let full = self.is_full(shard);
        if full != std::mem::replace(&mut self.shows_full, full) {
            match full {
                true => tracing::warn!("writes are refused: {}", self.full_reason()),
                false => tracing::info!("the storage area has room again; writes are accepted"),
            }
        }
    }

    /// Tells the members whether commands run.
    fn tell_held(&mut self) {
        let held = self.is_compacting_for_room();
        if self.held != held {
            self.held = held;
            self.report(LogState::Held(held));
        }
    }

    /// Most bytes of a snapshot that leave room for the log.
    pub(super) fn most_dumped(&self) -> u64 {
        self.log.capacity() - self.log.capacity() / LOG_SHARE
    }

    /// Initialises the state that INFO persistence shows, and the shard's limit, before the first
    /// iteration.
    pub(crate) fn initialize(&self, shard: &mut Shard) {
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

    /// Appends what other cores have sent, before any command runs: the log is blocked only if it
    /// has no room for that. The write starts with that of the batch's effects.
    pub(super) fn append_arrived(&mut self, shard: &mut Shard) {
        if !self.failed
            && !self.covering
            && let Err(reason) = self.append_queue()
        {
            self.fail(shard, &reason);
        }
    }

    /// Appends what waits, then the batch's effects, and starts the write of all that is new.
    fn append(&mut self, shard: &mut Shard, now: Now) -> Result<bool, String> {
        if !self.queue.is_empty() {
            self.push_own(shard);
            if self.covering {
                return Ok(false);
            }
            self.append_queue()?;
        } else if let Some(record) = shard.journal().record() {
            if self.append_record(record)? {
                self.own = self.last;
                shard.journal().clear();
            } else {
                self.push_own(shard);
            }
        }
        if self.last == self.begun {
            return Ok(false);
        }
        self.begun = self.last;
        shard.persistence_mut().commits.appended(self.last, now.monotonic_ns);
        if self.durability == Durability::Always {
            self.log.submit().map_err(|cause| cause.to_string())?;
        }
        if self.refusing {
            shard.refuse_growth(Some(&self.full_reason()));
        }
        Ok(true)
    }

    /// Appends what waits, in order, as far as there is room.
    fn append_queue(&mut self) -> Result<(), String> {
        while let Some(queued) = self.queue.pop_front() {
            if let Queued::Own(record) | Queued::Record { record, .. } = &queued
                && !self.append_record(record)?
            {
                self.queue.push_front(queued);
                break;
            }
            self.note_turn(queued);
        }
        Ok(())
    }

    /// Notes that everything before `queued`, and its own record, is in the log.
    fn note_turn(&mut self, queued: Queued) {
        match queued {
            Queued::Own(_) => self.own = self.last,
            Queued::Record { member, number, .. } => {
                self.positions.appended(member, number);
                self.mark(member, number);
            }
            Queued::Section(numbers) => {
                self.own = self.last;
                for (member, number) in numbers.into_iter().enumerate().skip(1) {
                    self.positions.appended(member, number);
                    self.mark(member, number);
                }
            }
            Queued::Sync { member, number } => {
                self.positions.mark(self.last, member, number);
                self.flush_wanted = true;
            }
            Queued::Dumped { member, snapshot, pieces, complete } => {
                self.take_dumped(member, snapshot, &pieces, complete);
            }
        }
    }

    /// Has a member notified once everything up to here is durable, if its replies wait for that.
    fn mark(&mut self, member: usize, number: u64) {
        if self.durability == Durability::Always {
            self.positions.mark(self.last, member, number);
        }
    }

    /// Appends a record; false if there is no room for it now.
    fn append_record(&mut self, record: &[u8]) -> Result<bool, String> {
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
                self.overflow = false;
                Ok(true)
            }
            Err(AppendError::Busy { .. }) => Ok(false),
            Err(AppendError::Full { .. } | AppendError::TooLarge { .. }) => {
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
}

/// Passes the durable sequence to the shard; returns whether it has advanced.
fn shard_durable(shard: &mut Shard, durable: u64) -> bool {
    let advanced = durable > shard.durable_up_to();
    shard.durable(durable);
    advanced
}
