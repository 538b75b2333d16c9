//! A queue of payloads for several consumers, with acknowledgement: what was sent is delivered until somebody has
//! acknowledged it, whatever crashes meanwhile.
//!
//! 1. The log holds what happened, as typed records: an *entry* was sent, entries were *handed* to consumers (how often, each), entries
//!    were *acknowledged*. An entry's id is the sequence of its record. The state in memory is what replaying them makes.
//! 2. [`Queue::receive`] hands out the oldest entry that is ready and durable, under a lease. When the lease ends, or the
//!    consumer gives the entry back, or goes away, it is ready again: each entry is delivered at least once. Time is passed in.
//! 3. [`Queue::acknowledge`] takes entries out. That is for good once the sequence it returns is durable; a crash before may bring them
//!    back. A receipt is good until the entry is handed out again.
//! 4. Deliveries are counted, so that an entry that kills its consumers can be told. A crash of the machine can lose the count of
//!    deliveries of the last turn, never the entry.
//! 5. The head of the log is given up when nothing before it is needed. Where an old entry that nobody acknowledges holds it, the entries
//!    that are left are written as a snapshot, a slice a turn. While a snapshot holds entries the head stays: an
//!    acknowledgement that is given up would bring its entry back from the snapshot.
//! 6. Memory is bounded ([`QueueOptions::memory`], [`MAX_ENTRIES`]), and so is the area: sending to a full queue is refused, and
//!    acknowledging always has room.
//!
//! ```
//! use sietch_disk::MemoryQueue;
//! use sietch_persist::{FormatOptions, Queue, QueueOptions};
//!
//! const SECOND: u64 = 1_000_000_000;
//! let mut disk = MemoryQueue::new(1 << 20);
//! Queue::format(&mut disk, FormatOptions::new(42))?;
//! let (mut queue, _) = Queue::open(disk, QueueOptions::default())?;
//! let id = queue.send(b"spice")?;
//! let (mut now, consumer) = (0, 1);
//! while queue.poll(now)? < id {}
//! let receipt = queue.receive(consumer, now, 5 * SECOND).map(|delivery| delivery.receipt);
//!
//! // The consumer dies. After its lease another one gets the entry, and acknowledges it.
//! now += 5 * SECOND;
//! queue.poll(now)?;
//! let delivery = queue.receive(2, now, 5 * SECOND).expect("its lease is over");
//! assert_eq!((delivery.payload, delivery.deliveries), (&b"spice"[..], 2));
//! let receipt = delivery.receipt;
//! let done = queue.acknowledge(&[receipt])?;
//! while queue.poll(now)? < done {}
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod record;

use std::collections::{BTreeMap, BTreeSet};

use sietch_disk::DiskQueue;
use zerocopy::IntoBytes;

use crate::compaction::{Compaction, SLICE};
use crate::error::{AppendError, Failure, FormatError, OpenError, QueueError, ResizeError, SnapshotError};
use crate::layout::Content;
use crate::log::{FormatOptions, Log, Options, Sequence, Waiter};
use crate::scan::{Applied, Entry as LogEntry, RecoveryReport};
use crate::typed::typed;
use record::{Acknowledged, Change, Handed, Sent, read};

/// Version of the queue's records.
pub const QUEUE_VERSION: u32 = 1;

/// Entries of a queue at most: what is kept of each beside its payload takes less than 200 bytes.
pub const MAX_ENTRIES: usize = 1 << 24;

/// How a queue is driven.
#[derive(Clone, Copy, Debug)]
pub struct QueueOptions {
    /// How its log is driven.
    pub log: Options,
    /// Bytes of payloads that may be in the queue: they are held in memory.
    pub memory: usize,
}

impl Default for QueueOptions {
    fn default() -> Self {
        Self { log: Options::default(), memory: 256 << 20 }
    }
}

/// Names one delivery of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Receipt {
    /// The entry.
    pub id: Sequence,
    /// Which delivery of it.
    pub delivery: u32,
}

/// An entry in the hands of a consumer.
#[derive(Debug)]
pub struct Delivery<'a> {
    /// What to acknowledge it with.
    pub receipt: Receipt,
    /// What was sent.
    pub payload: &'a [u8],
    /// How often it was delivered, this time included.
    pub deliveries: u32,
}

/// What a queue has done since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueMetrics {
    /// Entries sent.
    pub sent: u64,
    /// Deliveries.
    pub delivered: u64,
    /// Deliveries of entries that had been delivered before.
    pub redelivered: u64,
    /// Entries acknowledged.
    pub acknowledged: u64,
    /// Leases that ended without an acknowledgement.
    pub expired: u64,
    /// Entries refused because the queue was full.
    pub full: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Ready,
    /// In the hands of a consumer until then.
    Leased {
        consumer: u64,
        until: u64,
    },
    /// Given back, to be ready again then.
    Delayed {
        until: u64,
    },
}

struct Entry {
    payload: Box<[u8]>,
    deliveries: u32,
    state: State,
}

/// The entries, as replaying makes them.
#[derive(Default)]
struct Entries {
    by_id: BTreeMap<Sequence, Entry>,
    ready: BTreeSet<Sequence>,
    /// When leases and delays end.
    deadlines: BTreeSet<(u64, Sequence)>,
    bytes: usize,
}

impl Entries {
    fn insert(&mut self, id: Sequence, deliveries: u32, payload: &[u8]) {
        self.remove(id);
        self.bytes += payload.len();
        self.by_id.insert(id, Entry { payload: payload.into(), deliveries, state: State::Ready });
        self.ready.insert(id);
    }

    fn remove(&mut self, id: Sequence) {
        if let Some(entry) = self.by_id.remove(&id) {
            self.bytes -= entry.payload.len();
            self.leave(id, entry.state);
        }
    }

    /// Takes an entry out of the set that its state has put it in.
    fn leave(&mut self, id: Sequence, state: State) {
        match state {
            State::Ready => {
                self.ready.remove(&id);
            }
            State::Leased { until, .. } | State::Delayed { until } => {
                self.deadlines.remove(&(until, id));
            }
        }
    }

    fn change(&mut self, id: Sequence, to: State) {
        let Some(entry) = self.by_id.get_mut(&id) else { return };
        let from = std::mem::replace(&mut entry.state, to);
        self.leave(id, from);
        match to {
            State::Ready => {
                self.ready.insert(id);
            }
            State::Leased { until, .. } | State::Delayed { until } => {
                self.deadlines.insert((until, id));
            }
        }
    }

    fn replay(&mut self, sequence: Option<Sequence>, payload: &[u8]) -> Applied {
        match read(payload)? {
            Change::Sent(sent, payload) => {
                let id = sequence.unwrap_or(sent.id.get());
                self.insert(id, sent.deliveries.get(), payload);
            }
            Change::Handed(list) => {
                for handed in list {
                    if let Some(entry) = self.by_id.get_mut(&handed.id.get()) {
                        entry.deliveries = entry.deliveries.max(handed.deliveries.get());
                    }
                }
            }
            Change::Acknowledged(list) => {
                for id in list {
                    self.remove(id.get());
                }
            }
        }
        Ok(())
    }
}

/// See the module's account.
pub struct Queue<D: DiskQueue> {
    log: Log<D>,
    entries: Entries,
    memory: usize,
    /// Deliveries that the log does not know of yet.
    handed: Vec<Handed>,
    compaction: Compaction<Sequence>,
    /// Something was refused for want of room.
    pressed: bool,
    metrics: QueueMetrics,
}

impl<D: DiskQueue> Queue<D> {
    /// Makes an empty queue of the whole area. Whatever it held is lost.
    ///
    /// # Errors
    /// See [`FormatError`].
    pub fn format(disk: &mut D, options: FormatOptions) -> Result<(), FormatError> {
        Log::format_as(disk, options, Content::QUEUE)
    }

    /// Opens the queue of an area. Every entry is ready: who had it before a crash no longer has.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(disk: D, options: QueueOptions) -> Result<(Self, RecoveryReport), OpenError> {
        let mut entries = Entries::default();
        let (log, report) = Log::open_as(disk, options.log, Content::QUEUE, &mut |record, _| match record {
            LogEntry::Snapshot(payload) => entries.replay(None, payload),
            LogEntry::Record(sequence, payload) => entries.replay(Some(sequence), payload),
        })?;
        let queue = Self {
            log,
            entries,
            memory: options.memory,
            handed: Vec::new(),
            compaction: Compaction::default(),
            pressed: false,
            metrics: QueueMetrics::default(),
        };
        Ok((queue, report))
    }

    /// Sends an entry. It is durable, and can be received, once [`Queue::poll`] returns at least the id that this returns.
    ///
    /// # Errors
    /// See [`QueueError`]; nothing was sent.
    pub fn send(&mut self, payload: &[u8]) -> Result<Sequence, QueueError> {
        let (held, entries) = (self.entries.bytes + payload.len(), self.entries.by_id.len());
        if held > self.memory || entries >= MAX_ENTRIES {
            self.metrics.full += 1;
            return Err(QueueError::Full { entries, bytes: self.entries.bytes, limit: self.memory });
        }
        let sent = Sent { id: 0.into(), deliveries: 0.into(), reserved: 0.into() };
        let appended = self.log.append_parts(&[&typed::<Sent>(), sent.as_bytes(), payload]);
        let id = appended.inspect_err(|error| {
            let full = matches!(error, AppendError::Full { .. });
            self.metrics.full += u64::from(full);
            self.pressed |= full;
        })?;
        self.entries.insert(id, 0, payload);
        self.metrics.sent += 1;
        Ok(id)
    }

    /// Hands the oldest entry that is ready to `consumer`, for `lease` nanoseconds. `None`: none is ready.
    pub fn receive(&mut self, consumer: u64, now: u64, lease: u64) -> Option<Delivery<'_>> {
        self.expire(now);
        let id = self.entries.ready.first().copied().filter(|&id| id <= self.log.durable())?;
        self.entries.change(id, State::Leased { consumer, until: now.saturating_add(lease) });
        let entry = self.entries.by_id.get_mut(&id)?;
        entry.deliveries = entry.deliveries.saturating_add(1);
        let deliveries = entry.deliveries;
        self.metrics.delivered += 1;
        self.metrics.redelivered += u64::from(deliveries > 1);
        self.handed.push(Handed { id: id.into(), deliveries: deliveries.into(), reserved: 0.into() });
        let receipt = Receipt { id, delivery: deliveries };
        Some(Delivery { receipt, payload: &entry.payload, deliveries })
    }

    /// Acknowledges deliveries, all or none. They are gone for good once [`Queue::poll`] returns at least the sequence that
    /// this returns.
    ///
    /// # Errors
    /// [`QueueError::Stale`]: somebody else has one of them now, or has acknowledged it.
    pub fn acknowledge(&mut self, receipts: &[Receipt]) -> Result<Sequence, QueueError> {
        if receipts.is_empty() {
            return Ok(self.log.last());
        }
        for receipt in receipts {
            self.holds(*receipt)?;
        }
        let ids: Vec<Acknowledged> = receipts.iter().map(|receipt| Acknowledged::of(receipt.id)).collect();
        let header = typed::<Acknowledged>();
        let sequence = self.log.append_shrinking_parts(&[&header, ids.as_bytes()])?;
        for receipt in receipts {
            self.entries.remove(receipt.id);
        }
        self.metrics.acknowledged += receipts.len() as u64;
        Ok(sequence)
    }

    /// Gives a delivery back: the entry is ready again after `delay` nanoseconds.
    ///
    /// # Errors
    /// [`QueueError::Stale`].
    pub fn give_back(&mut self, receipt: Receipt, now: u64, delay: u64) -> Result<(), QueueError> {
        self.holds(receipt)?;
        let until = now.saturating_add(delay);
        let to = if delay == 0 { State::Ready } else { State::Delayed { until } };
        self.entries.change(receipt.id, to);
        Ok(())
    }

    /// A consumer is gone: what it had is ready again. Returns how many entries that were.
    pub fn release(&mut self, consumer: u64) -> usize {
        let mine = |entry: &Entry| matches!(entry.state, State::Leased { consumer: c, .. } if c == consumer);
        let entries = &mut self.entries;
        let had: Vec<Sequence> = entries
            .deadlines
            .iter()
            .map(|&(_, id)| id)
            .filter(|id| entries.by_id.get(id).is_some_and(mine))
            .collect();
        for &id in &had {
            entries.change(id, State::Ready);
        }
        had.len()
    }

    /// Whether a receipt is good.
    fn holds(&self, receipt: Receipt) -> Result<(), QueueError> {
        let entry = self.entries.by_id.get(&receipt.id);
        let holds = entry.is_some_and(|entry| entry.deliveries == receipt.delivery && receipt.delivery > 0);
        if holds { Ok(()) } else { Err(QueueError::Stale { id: receipt.id }) }
    }

    /// Makes entries ready whose lease or delay is over.
    fn expire(&mut self, now: u64) {
        while let Some(&(until, id)) = self.entries.deadlines.first()
            && until <= now
        {
            let leased = self.entries.by_id.get(&id).map(|entry| entry.state);
            self.metrics.expired += u64::from(matches!(leased, Some(State::Leased { .. })));
            self.entries.change(id, State::Ready);
        }
    }

    /// Whether [`Queue::receive`] would hand out an entry, leases and delays that are over by then aside.
    pub fn is_ready(&self) -> bool {
        self.entries.ready.first().is_some_and(|&id| id <= self.log.durable())
    }

    /// Asks for everything to be made durable, where the log's durability is deferred; see [`Log::flush`].
    ///
    /// # Errors
    /// The log has failed.
    pub fn flush(&mut self) -> Result<(), Failure> {
        self.log.submit()?;
        self.log.flush()
    }

    /// When [`Queue::poll`] has something to do even if the disk has not, in the time that is passed in.
    pub fn next_deadline(&self) -> Option<u64> {
        self.entries.deadlines.first().map(|&(until, _)| until)
    }

    /// Writes what was sent and acknowledged, takes what the disk has finished, ends leases, and does a slice of compaction. Returns the
    /// sequence up to which everything is durable. Never waits.
    ///
    /// # Errors
    /// The log has failed: nothing beyond what was returned before may be relied on.
    pub fn poll(&mut self, now: u64) -> Result<Sequence, Failure> {
        self.expire(now);
        if !self.handed.is_empty() {
            // If there is no room the counts are not kept; the entries are.
            let appended = self.log.append_parts(&[&typed::<Handed>(), self.handed.as_bytes()]);
            self.handed.clear();
            if let Err(AppendError::Failed(failure)) = appended {
                return Err(failure);
            }
        }
        self.log.submit()?;
        let durable = self.log.poll()?;
        self.tidy()?;
        Ok(durable)
    }

    /// Gives the head of the log up, or works on a snapshot.
    fn tidy(&mut self) -> Result<(), Failure> {
        if let Some(from) = self.compaction.next(&self.log) {
            return self.compact(from);
        }
        let (head, oldest) = (self.log.head(), self.entries.by_id.keys().next().copied());
        // What a snapshot holds lies before the head.
        if oldest.is_none_or(|oldest| oldest >= head) {
            let keep = oldest.unwrap_or(self.log.last() + 1);
            if self.log.is_worth_truncating(keep) {
                // It is idle, and there is such a record: what remains is a failure.
                return match self.log.truncate_and(keep, true) {
                    Err(crate::TruncateError::Failed(failure)) => Err(failure),
                    _ => Ok(()),
                };
            }
        }
        let (bytes, count) = (self.entries.bytes, self.entries.by_id.len());
        if self.log.should_compact() || self.log.is_mostly_dead(bytes, count, self.pressed) {
            self.pressed = false;
            self.compaction.begin(&mut self.log, 0);
        }
        Ok(())
    }

    /// Writes entries from `from` on into the snapshot, as many as a turn may.
    fn compact(&mut self, from: Sequence) -> Result<(), Failure> {
        let (mut written, end) = (0, self.compaction.start());
        for (&id, entry) in self.entries.by_id.range(from..end.max(from)) {
            if written >= SLICE || self.log.snapshot_room() == 0 {
                self.compaction.go_on(id);
                return Ok(());
            }
            let sent = Sent { id: id.into(), deliveries: entry.deliveries.into(), reserved: 0.into() };
            let payload: [&[u8]; 3] = [&typed::<Sent>(), sent.as_bytes(), &entry.payload];
            match self.log.snapshot_append_parts(&payload) {
                Ok(()) => written += entry.payload.len() + 64,
                Err(SnapshotError::Failed(failure)) => return Err(failure),
                Err(_) => {
                    self.compaction.abort(&mut self.log);
                    return Ok(());
                }
            }
        }
        self.compaction.finish(&mut self.log)
    }

    /// Entries in the queue, whoever has them.
    pub fn len(&self) -> usize {
        self.entries.by_id.len()
    }

    /// Whether there is no entry.
    pub fn is_empty(&self) -> bool {
        self.entries.by_id.is_empty()
    }

    /// Entries, with what was sent and how often they were delivered, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = (Sequence, &[u8], u32)> {
        self.entries.by_id.iter().map(|(id, entry)| (*id, &*entry.payload, entry.deliveries))
    }

    /// Has `waiter` told once everything up to `sequence` is durable, or never will be; see [`Log::when_durable`].
    pub fn when_durable(&mut self, sequence: Sequence, waiter: Waiter) {
        self.log.when_durable(sequence, waiter);
    }

    /// Uses more of the area while the queue goes on; see [`Log::grow`].
    ///
    /// # Errors
    /// See [`ResizeError`].
    pub fn grow(&mut self, capacity: u64) -> Result<(), ResizeError> {
        self.log.grow(capacity)
    }

    /// Moves everything before byte `capacity` of the area and gives the rest up; see [`Log::shrink_to`]. [`Queue::poll`] moves what is
    /// in the way.
    ///
    /// # Errors
    /// See [`ResizeError`]. After [`ResizeError::Live`] the log is compacted as far as that frees anything: try again then.
    pub fn shrink_to(&mut self, capacity: u64) -> Result<(), ResizeError> {
        self.log.shrink_to(capacity).inspect_err(|error| {
            self.pressed |= matches!(error, ResizeError::Live { .. });
        })
    }

    /// Gives a change of size up; see [`Log::keep_size`].
    pub fn keep_size(&mut self) -> bool {
        self.log.keep_size()
    }

    /// Goes on through another queue over the same area; see [`Log::replace_disk`].
    ///
    /// # Errors
    /// See [`ResizeError`].
    pub fn replace_disk(&mut self, disk: D) -> Result<(), ResizeError> {
        self.log.replace_disk(disk)
    }

    /// The log underneath, for its counters and its disk queue.
    pub fn log(&self) -> &Log<D> {
        &self.log
    }

    /// What the queue has done since it was opened.
    pub fn metrics(&self) -> QueueMetrics {
        self.metrics
    }

    /// Gives the disk queue back without closing in order, as a crash would.
    pub fn into_disk(self) -> D {
        self.log.into_disk()
    }

    /// Makes everything durable and closes in order.
    ///
    /// # Errors
    /// The log has failed; the next opening recovers as after a crash.
    pub fn close(mut self, now: u64) -> Result<D, Failure> {
        self.poll(now)?;
        self.log.close()
    }
}
