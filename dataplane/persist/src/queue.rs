//! A queue of payloads for several consumers, with acknowledgement: an entry is delivered until a
//! consumer has acknowledged it, whatever crashes meanwhile.
//!
//! 1. The log holds typed records of three events: an *entry* was sent, entries were *delivered* to
//!    consumers (how often, each), entries were *acknowledged*. An entry's id is the sequence of
//!    its record. Replaying the records makes the state in memory.
//! 2. [`Queue::receive`] delivers the oldest entry that is ready and durable, under a lease. When
//!    the lease ends, or the consumer gives the entry back or ends, the entry is ready again: each
//!    entry is delivered at least once. Time is passed in.
//! 3. [`Queue::acknowledge`] takes entries out. That is for good once the sequence it returns is
//!    durable; a crash before may bring them back. A receipt is good until the entry is delivered
//!    again.
//! 4. Deliveries are counted, so that an entry that kills its consumers is recognizable. A crash of
//!    the machine can lose the count of deliveries of the last iteration, never the entry.
//! 5. The head of the log is given up when nothing before it is needed. Where an old entry that is
//!    never acknowledged holds it, the entries that are left are written as a snapshot, a slice an
//!    iteration. While a snapshot holds entries the head stays: an acknowledgement that is given up
//!    would bring its entry back from the snapshot.
//! 6. Memory is bounded ([`QueueOptions::memory`], [`MAX_ENTRIES`]), and so is the area: sending to
//!    a full queue is refused, and acknowledging always has room. With [`Queue::open_stored`]
//!    memory is a window on the entries, and the others are in the area.
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
//! // The consumer ends. After its lease another one gets the entry, and acknowledges it.
//! now += 5 * SECOND;
//! queue.poll(now)?;
//! let delivery = queue.receive(2, now, 5 * SECOND).expect("its lease is over");
//! assert_eq!((delivery.payload, delivery.deliveries), (&b"spice"[..], 2));
//! let receipt = delivery.receipt;
//! let done = queue.acknowledge(&[receipt])?;
//! while queue.poll(now)? < done {}
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod entries;
mod payloads;
mod record;
mod stored;

use sietch_disk::DiskQueue;
use zerocopy::IntoBytes;

use crate::compaction::Compaction;
use crate::error::{AppendError, Failure, FormatError, OpenError, QueueError, ResizeError};
use crate::layout::Content;
use crate::log::{FormatOptions, Log, Options, Sequence, Waiter};
use crate::scan::{Entry as LogEntry, RecoveryReport};
use crate::typed::typed;
use entries::{Entries, Entry, State};
use payloads::Stored;
use record::{Acknowledged, DeliveryCount, Sent};

/// Entries of a queue at most: each takes less than 200 bytes of memory beside its payload.
pub const MAX_ENTRIES: usize = 1 << 24;

/// How a queue is driven.
#[derive(Clone, Copy, Debug)]
pub struct QueueOptions {
    /// How its log is driven.
    pub log: Options,
    /// Bytes of payloads held in memory. A queue of [`Queue::open`] holds no more than that; one of
    /// [`Queue::open_stored`] keeps the others in the area.
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

/// An entry that is delivered to a consumer.
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
    /// Entries that could not be read from the area, each time.
    pub damaged: u64,
}

/// See the module's account.
pub struct Queue<D: DiskQueue> {
    log: Log<D>,
    entries: Entries,
    memory: usize,
    /// Deliveries that are not in the log yet.
    delivery_counts: Vec<DeliveryCount>,
    compaction: Compaction<Sequence>,
    stored: Stored,
    /// The time that was passed in last.
    now: u64,
    /// A change was refused for lack of room.
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

    /// Opens the queue of an area. Every entry is ready: leases end with a crash.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(disk: D, options: QueueOptions) -> Result<(Self, RecoveryReport), OpenError> {
        Self::open_with(disk, options, None)
    }

    /// As [`Queue::open`], for a queue that may hold more than memory does. Payloads beyond
    /// [`QueueOptions::memory`] bytes stay in the area, and are read before they are delivered.
    /// [`Queue::receive`] has nothing while the next one is on its way.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open_stored(disk: D, options: QueueOptions) -> Result<(Self, RecoveryReport), OpenError> {
        Self::open_with(disk, options, Some(options.memory))
    }

    fn open_with(
        disk: D,
        options: QueueOptions,
        window: Option<usize>,
    ) -> Result<(Self, RecoveryReport), OpenError> {
        let mut entries = Entries::default();
        let (log, report) =
            Log::open_as(disk, options.log, Content::QUEUE, &mut |record, spot| match record {
                LogEntry::Snapshot(payload) => entries.replay(None, payload, spot, window),
                LogEntry::Record(sequence, payload) => entries.replay(Some(sequence), payload, spot, window),
            })?;
        let queue = Self {
            log,
            entries,
            memory: options.memory,
            delivery_counts: Vec::new(),
            compaction: Compaction::default(),
            stored: Stored::new(window),
            now: 0,
            pressed: false,
            metrics: QueueMetrics::default(),
        };
        Ok((queue, report))
    }

    /// Sends an entry. It is durable, and can be received, once [`Queue::poll`] returns at least
    /// the id that this returns.
    ///
    /// # Errors
    /// See [`QueueError`]; nothing was sent.
    pub fn send(&mut self, payload: &[u8]) -> Result<Sequence, QueueError> {
        let (held, entries) = (self.entries.bytes + payload.len(), self.entries.by_id.len());
        let full = !self.stored.is_window() && held > self.memory;
        if full || entries >= MAX_ENTRIES {
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
        self.entries.insert(id, 0, payload, self.log.placed(), true);
        self.stored.sent(id);
        self.metrics.sent += 1;
        Ok(id)
    }

    /// Delivers the oldest entry that is ready to `consumer`, for `lease` nanoseconds. `None`: none
    /// is ready.
    pub fn receive(&mut self, consumer: u64, now: u64, lease: u64) -> Option<Delivery<'_>> {
        self.expire(now);
        let id = self.entries.ready.first().copied().filter(|&id| id <= self.log.durable())?;
        if self.entries.by_id.get(&id)?.payload.is_none() {
            self.load();
            return None;
        }
        self.entries.change(id, State::Leased { consumer, until: now.saturating_add(lease) });
        self.stored.delivered(id);
        let entry = self.entries.by_id.get_mut(&id)?;
        entry.deliveries = entry.deliveries.saturating_add(1);
        let deliveries = entry.deliveries;
        self.metrics.delivered += 1;
        self.metrics.redelivered += u64::from(deliveries > 1);
        self.delivery_counts.push(DeliveryCount {
            id: id.into(),
            deliveries: deliveries.into(),
            reserved: 0.into(),
        });
        let receipt = Receipt { id, delivery: deliveries };
        Some(Delivery { receipt, payload: entry.payload.as_deref()?, deliveries })
    }

    /// Acknowledges deliveries, all or none. They are removed for good once [`Queue::poll`] returns
    /// at least the sequence that this returns.
    ///
    /// # Errors
    /// [`QueueError::Stale`]: another consumer has one of them now, or has acknowledged it.
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
        self.load();
        Ok(())
    }

    /// A consumer has ended: its entries are ready again. Returns how many entries that were.
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
        self.load();
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
        self.now = now;
        while let Some(&(until, id)) = self.entries.deadlines.first()
            && until <= now
        {
            let leased = self.entries.by_id.get(&id).map(|entry| entry.state);
            self.metrics.expired += u64::from(matches!(leased, Some(State::Leased { .. })));
            self.entries.change(id, State::Ready);
        }
    }

    /// Whether [`Queue::receive`] would deliver an entry, not counting leases and delays that end
    /// until then.
    pub fn is_ready(&self) -> bool {
        let next = self.entries.ready.first();
        next.is_some_and(|id| *id <= self.log.durable() && !self.entries.far.contains(id))
    }

    /// Requests that everything be made durable, where the log's durability is deferred; see
    /// [`Log::flush`].
    ///
    /// # Errors
    /// The log has failed.
    pub fn flush(&mut self) -> Result<(), Failure> {
        self.log.submit()?;
        self.log.flush()
    }

    /// When [`Queue::poll`] has something to do even if the disk has not, in the time that is
    /// passed in.
    pub fn next_deadline(&self) -> Option<u64> {
        let lease = self.entries.deadlines.first().map(|&(until, _)| until);
        [lease, self.log.next_deadline()].into_iter().flatten().min()
    }

    /// Writes what was sent and acknowledged, takes what the disk has finished, ends leases, and
    /// does a slice of compaction. Returns the sequence up to which everything is durable. Never
    /// waits. `now` is in nanoseconds.
    ///
    /// # Errors
    /// The log has failed: nothing beyond what was returned before may be relied on.
    pub fn poll(&mut self, now: u64) -> Result<Sequence, Failure> {
        self.expire(now);
        if !self.delivery_counts.is_empty() {
            // If there is no room the counts are not kept; the entries are.
            let appended =
                self.log.append_parts(&[&typed::<DeliveryCount>(), self.delivery_counts.as_bytes()]);
            self.delivery_counts.clear();
            if let Err(AppendError::Failed(failure)) = appended {
                return Err(failure);
            }
        }
        self.log.submit()?;
        let durable = self.log.poll()?;
        self.log.write_due_proof(now)?;
        self.settle();
        self.load();
        self.tidy()?;
        Ok(durable)
    }

    /// Gives the head of the log up, or works on a snapshot.
    fn tidy(&mut self) -> Result<(), Failure> {
        if let Some(from) = self.compaction.next(&self.log) {
            return self.compact(from);
        }
        let (head, oldest) = (self.log.head(), self.entries.by_id.keys().next().copied());
        // What a snapshot holds is before the head.
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
        let worth = self.log.should_compact() || self.log.is_mostly_dead(bytes, count, self.pressed);
        if worth && !self.stored.switching {
            self.pressed = false;
            self.compaction.begin(&mut self.log, 0);
        }
        Ok(())
    }

    /// Entries in the queue, leased or not.
    pub fn len(&self) -> usize {
        self.entries.by_id.len()
    }

    /// Whether there is no entry.
    pub fn is_empty(&self) -> bool {
        self.entries.by_id.is_empty()
    }

    /// Entries, with what was sent and how often they were delivered, oldest first. Of a queue of
    /// [`Queue::open_stored`] those whose payload is in memory.
    pub fn iter(&self) -> impl Iterator<Item = (Sequence, &[u8], u32)> {
        let entries = self.entries.by_id.iter();
        entries.filter_map(|(id, entry)| Some((*id, entry.payload.as_deref()?, entry.deliveries)))
    }

    /// Bytes of all payloads, and of those in memory.
    pub fn bytes(&self) -> (usize, usize) {
        (self.entries.bytes, self.entries.held)
    }

    /// Notifies `waiter` once everything up to `sequence` is durable, or never will be; see
    /// [`Log::when_durable`].
    pub fn when_durable(&mut self, sequence: Sequence, waiter: Waiter) {
        self.log.when_durable(sequence, waiter);
    }

    /// Uses more of the area while the queue continues; see [`Log::grow`].
    ///
    /// # Errors
    /// See [`ResizeError`].
    pub fn grow(&mut self, capacity: u64) -> Result<(), ResizeError> {
        self.log.grow(capacity)
    }

    /// Moves everything before byte `capacity` of the area and gives the rest up; see
    /// [`Log::shrink_to`]. [`Queue::poll`] moves what is in the way.
    ///
    /// # Errors
    /// See [`ResizeError`]. After [`ResizeError::Live`] the log is compacted as far as that frees
    /// anything: try again then.
    pub fn shrink_to(&mut self, capacity: u64) -> Result<(), ResizeError> {
        self.log.shrink_to(capacity).inspect_err(|error| {
            self.pressed |= matches!(error, ResizeError::Live { .. });
        })
    }

    /// Gives a change of size up; see [`Log::keep_size`].
    pub fn keep_size(&mut self) -> bool {
        self.log.keep_size()
    }

    /// Continues through another queue over the same area; see [`Log::replace_disk`].
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

    /// Returns the disk queue without closing in order, as a crash would.
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
