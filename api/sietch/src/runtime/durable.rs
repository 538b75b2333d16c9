//! Persistent structures for tasks: a change is a future that resolves when it is durable.
//!
//! 1. [`Net::log`], [`Net::queue`], [`Net::map`] and [`Net::stored_map`] take a structure. A future
//!    that changes it resolves when the change survives power loss. Changes of one iteration are
//!    written together at its end: group commit without a timer.
//! 2. Dropping a future undoes nothing: the change is in the structure.
//! 3. [`Durable::with`] borrows the structure itself, for calls that do not wait.
//! 4. An area may change its size meanwhile. [`Durable::replace_disk`] takes a queue over the area
//!    in its new size, [`Durable::grow`] uses the added bytes, and [`Durable::shrink_to`] moves
//!    everything out of the bytes that are to be cut off. Changes continue all the while.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use sietch_persist::{
    Durability, Failure, Fetch, Fetched, Log, Map, Queue, Receipt, ResizeError, Sequence, StoredMap, Value,
};

use super::state::{Driver, Net, duplicate_doorbell};
use crate::device::DiskDoorbell;

/// A structure that a loop can drive.
pub trait Structure: sealed::Drive {}

impl<S: sealed::Drive> Structure for S {}

mod sealed {
    use super::{DiskDoorbell, Failure, Log, ResizeError, Sequence};

    /// What the loop needs of a structure.
    pub trait Drive {
        type Disk: DiskDoorbell;
        fn log(&self) -> &Log<Self::Disk>;
        fn grow(&mut self, capacity: u64) -> Result<(), ResizeError>;
        fn shrink_to(&mut self, capacity: u64) -> Result<(), ResizeError>;
        fn replace_disk(&mut self, disk: Self::Disk) -> Result<(), ResizeError>;
        fn flush(&mut self) -> Result<(), Failure>;
        /// Submits changes and takes completions.
        fn poll(&mut self, now: u64);
        fn durable(&self) -> Sequence {
            self.log().durable()
        }
        fn failed(&self) -> Option<&Failure> {
            self.log().failed()
        }
        fn is_idle(&self) -> bool {
            self.log().is_idle()
        }
        /// When it has work to do even if no request completes.
        fn next_deadline(&self) -> Option<u64> {
            self.log().next_deadline()
        }
        /// Whether a task that waits for an entry would get one.
        fn is_ready(&self) -> bool {
            false
        }
    }
}

use sealed::Drive;

impl<D: DiskDoorbell> Drive for Log<D> {
    type Disk = D;

    fn log(&self) -> &Log<D> {
        self
    }

    fn grow(&mut self, capacity: u64) -> Result<(), ResizeError> {
        Log::grow(self, capacity)
    }

    fn shrink_to(&mut self, capacity: u64) -> Result<(), ResizeError> {
        Log::shrink_to(self, capacity)
    }

    fn replace_disk(&mut self, disk: D) -> Result<(), ResizeError> {
        Log::replace_disk(self, disk)
    }

    fn flush(&mut self) -> Result<(), Failure> {
        Log::flush(self)
    }

    fn poll(&mut self, now: u64) {
        if self.failed().is_none() {
            // The log keeps a failure, and `State::poll` wakes every task that waits.
            let _ = self.submit();
            let _ = self.poll();
            let _ = self.write_due_proof(now);
        }
    }
}

impl<D: DiskDoorbell> Drive for Map<D> {
    type Disk = D;

    fn log(&self) -> &Log<D> {
        Map::log(self)
    }

    fn grow(&mut self, capacity: u64) -> Result<(), ResizeError> {
        Map::grow(self, capacity)
    }

    fn shrink_to(&mut self, capacity: u64) -> Result<(), ResizeError> {
        Map::shrink_to(self, capacity)
    }

    fn replace_disk(&mut self, disk: D) -> Result<(), ResizeError> {
        Map::replace_disk(self, disk)
    }

    fn flush(&mut self) -> Result<(), Failure> {
        Map::flush(self)
    }

    fn poll(&mut self, now: u64) {
        if self.failed().is_none() {
            // As for a log.
            let _ = self.poll();
            let _ = self.write_due_proof(now);
        }
    }
}

impl<D: DiskDoorbell> Drive for StoredMap<D> {
    type Disk = D;

    fn log(&self) -> &Log<D> {
        StoredMap::log(self)
    }

    fn grow(&mut self, capacity: u64) -> Result<(), ResizeError> {
        StoredMap::grow(self, capacity)
    }

    fn shrink_to(&mut self, capacity: u64) -> Result<(), ResizeError> {
        StoredMap::shrink_to(self, capacity)
    }

    fn replace_disk(&mut self, disk: D) -> Result<(), ResizeError> {
        StoredMap::replace_disk(self, disk)
    }

    fn flush(&mut self) -> Result<(), Failure> {
        StoredMap::flush(self)
    }

    fn poll(&mut self, now: u64) {
        if self.failed().is_none() {
            // As for a log.
            let _ = self.poll();
            let _ = self.write_due_proof(now);
        }
    }
}

impl<D: DiskDoorbell> Drive for Queue<D> {
    type Disk = D;

    fn log(&self) -> &Log<D> {
        Queue::log(self)
    }

    fn grow(&mut self, capacity: u64) -> Result<(), ResizeError> {
        Queue::grow(self, capacity)
    }

    fn shrink_to(&mut self, capacity: u64) -> Result<(), ResizeError> {
        Queue::shrink_to(self, capacity)
    }

    fn replace_disk(&mut self, disk: D) -> Result<(), ResizeError> {
        Queue::replace_disk(self, disk)
    }

    fn flush(&mut self) -> Result<(), Failure> {
        Queue::flush(self)
    }

    fn poll(&mut self, now: u64) {
        if self.failed().is_none() {
            // As for a log.
            let _ = self.poll(now);
        }
    }

    fn next_deadline(&self) -> Option<u64> {
        Queue::next_deadline(self)
    }

    fn is_ready(&self) -> bool {
        Queue::is_ready(self)
    }
}

struct State<S> {
    structure: RefCell<S>,
    waiting: RefCell<BTreeMap<(Sequence, u64), Waker>>,
    /// Tasks that wait for an entry of a queue.
    receivers: RefCell<Vec<Waker>>,
    next: Cell<u64>,
    /// Tasks that wait for a value from the area, and the number of reads that had completed when
    /// they were last woken.
    readers: RefCell<Vec<Waker>>,
    read: Cell<u64>,
    /// Tasks that wait for a change of size.
    resizing: RefCell<Vec<Waker>>,
    /// See [`duplicate_doorbell`].
    doorbell: RefCell<Option<Rc<OwnedFd>>>,
    /// Another disk queue, with its own doorbell, is about to replace this one.
    replacing: Cell<bool>,
}

impl<S: Structure> State<S> {
    /// Whether a task waits for written changes that only a flush makes durable.
    fn needs_flush(&self, structure: &S) -> bool {
        let log = structure.log();
        let deferred = log.durability() == Durability::Deferred && log.failed().is_none();
        let waiting = || {
            let waiting = self.waiting.borrow();
            let first = waiting.first_key_value().map(|((sequence, _), _)| *sequence);
            first.is_some_and(|sequence| sequence > log.durable()) || !self.receivers.borrow().is_empty()
        };
        deferred && !log.is_flushing() && log.written() > log.durable() && waiting()
    }
}

impl<S: Structure> Driver for State<S> {
    fn poll(&self, now: u64) -> io::Result<bool> {
        let mut structure = self.structure.borrow_mut();
        structure.poll(now);
        if self.needs_flush(&structure) {
            // The log keeps a failure.
            let _ = structure.flush();
        }
        let (durable, failed) = (structure.durable(), structure.failed().is_some());
        let ready = structure.is_ready() || failed;
        let sized = !structure.log().is_resizing() || failed;
        let done = structure.log().metrics().reads_done;
        let read = self.read.replace(done) != done || failed;
        if self.replacing.get() && !structure.log().is_replacing() {
            *self.doorbell.borrow_mut() = duplicate_doorbell(structure.log().disk())?;
            self.replacing.set(false);
        }
        drop(structure);
        let mut woken = false;
        loop {
            let mut waiting = self.waiting.borrow_mut();
            let Some(first) = waiting.first_entry() else { break };
            if first.key().0 > durable && !failed {
                break;
            }
            first.remove().wake();
            woken = true;
        }
        let lists = [(ready, &self.receivers), (sized, &self.resizing), (read, &self.readers)];
        for (_, list) in lists.into_iter().filter(|(due, _)| *due) {
            for waker in list.borrow_mut().drain(..) {
                waker.wake();
                woken = true;
            }
        }
        Ok(woken)
    }

    fn must_poll(&self) -> bool {
        self.doorbell.borrow().is_none() && !self.structure.borrow().is_idle()
    }

    fn next_deadline(&self) -> Option<u64> {
        self.structure.borrow().next_deadline()
    }

    fn doorbell(&self) -> Option<Rc<OwnedFd>> {
        self.doorbell.borrow().clone()
    }
}

/// A structure for tasks; see [`Net::log`], [`Net::queue`] and [`Net::map`]. Clones share one
/// structure.
pub struct Durable<S: Structure> {
    state: Rc<State<S>>,
    net: Net,
}

/// A log for tasks.
pub type DurableLog<D> = Durable<Log<D>>;
/// A queue for tasks.
pub type DurableQueue<D> = Durable<Queue<D>>;
/// A map for tasks.
pub type DurableMap<D> = Durable<Map<D>>;
/// A map for tasks whose values stay in the area.
pub type DurableStoredMap<D> = Durable<StoredMap<D>>;

impl<S: Structure> Clone for Durable<S> {
    fn clone(&self) -> Self {
        Self { state: Rc::clone(&self.state), net: self.net.clone() }
    }
}

impl<S: Structure> std::fmt::Debug for Durable<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Durable").finish_non_exhaustive()
    }
}

impl<S: Structure> Durable<S> {
    /// Calls `access` with the structure itself.
    ///
    /// # Panics
    /// `access` must not use this structure through a [`Durable`]: it is borrowed.
    pub fn with<R>(&self, access: impl FnOnce(&mut S) -> R) -> R {
        access(&mut self.state.structure.borrow_mut())
    }

    /// Waits until everything up to `sequence` is durable. A structure that was opened with
    /// deferred durability is flushed for it.
    ///
    /// # Errors
    /// The structure has failed: whether the change survives a restart is then unknown.
    pub async fn reached(&self, sequence: Sequence) -> io::Result<()> {
        let mut wait = DurableWait { state: &*self.state, key: None };
        std::future::poll_fn(|context| wait.poll(sequence, context)).await
    }

    /// Continues through `disk`, a queue over the same area as it is now. Resolves when the
    /// previous queue is dropped. Changes that are made meanwhile wait in memory until its requests
    /// have completed.
    ///
    /// # Errors
    /// `disk` does not suit, no file descriptor is left, or the structure has failed.
    pub async fn replace_disk(&self, disk: S::Disk) -> io::Result<()> {
        self.with(|structure| structure.replace_disk(disk)).map_err(io::Error::other)?;
        self.state.replacing.set(true);
        self.resized().await
    }

    /// Extends the structure to the first `capacity` bytes of the area, which is larger. Resolves
    /// when they are in use. Changes continue meanwhile.
    ///
    /// # Errors
    /// The disk queue does not reach so far ([`Durable::replace_disk`]), or the structure has
    /// failed.
    pub async fn grow(&self, capacity: u64) -> io::Result<()> {
        self.with(|structure| structure.grow(capacity)).map_err(io::Error::other)?;
        self.resized().await
    }

    /// Moves everything below byte `capacity` of the area. Resolves when the rest may be cut off.
    /// Changes continue meanwhile. A log is moved by its application: with a snapshot when
    /// [`Log::should_compact`] requests one, or by truncation. Dropping the future does not cancel
    /// this; see [`Log::keep_size`].
    ///
    /// # Errors
    /// The contents would not fit, or the structure has failed.
    pub async fn shrink_to(&self, capacity: u64) -> io::Result<()> {
        self.with(|structure| structure.shrink_to(capacity)).map_err(io::Error::other)?;
        self.resized().await
    }

    /// Waits until no change of size is pending.
    async fn resized(&self) -> io::Result<()> {
        std::future::poll_fn(|context| {
            let structure = self.state.structure.borrow();
            if let Some(failure) = structure.failed() {
                return Poll::Ready(Err(io::Error::other(failure.to_string())));
            }
            if !structure.log().is_resizing() {
                return Poll::Ready(Ok(()));
            }
            self.state.resizing.borrow_mut().push(context.waker().clone());
            Poll::Pending
        })
        .await
    }
}

impl<D: DiskDoorbell> Durable<Log<D>> {
    /// Appends `payload`. Resolves when the record is as durable as the log was opened to be. The
    /// record is in the log even if the future is dropped.
    ///
    /// # Errors
    /// The record does not fit, or the log has failed: whether the record survives a restart is
    /// then unknown.
    pub async fn append(&self, payload: &[u8]) -> io::Result<Sequence> {
        let sequence = self.with(|log| log.append(payload)).map_err(io::Error::other)?;
        self.reached(sequence).await?;
        Ok(sequence)
    }
}

impl<D: DiskDoorbell> Durable<Map<D>> {
    /// Sets the value of a key. Resolves when it is durable.
    ///
    /// # Errors
    /// It does not fit, or the map has failed.
    pub async fn put(&self, key: &[u8], value: &[u8]) -> io::Result<()> {
        let sequence = self.with(|map| map.put(key, value)).map_err(io::Error::other)?;
        self.reached(sequence).await
    }

    /// Deletes a key. Resolves when that is durable. Returns whether the key existed.
    ///
    /// # Errors
    /// As for [`Durable::put`].
    pub async fn delete(&self, key: &[u8]) -> io::Result<bool> {
        let Some(sequence) = self.with(|map| map.delete(key)).map_err(io::Error::other)? else {
            return Ok(false);
        };
        self.reached(sequence).await?;
        Ok(true)
    }
}

impl<D: DiskDoorbell> Durable<StoredMap<D>> {
    /// Sets the value of a key. Resolves when it is durable.
    ///
    /// # Errors
    /// It does not fit, or the map has failed.
    pub async fn put(&self, key: &[u8], value: &[u8]) -> io::Result<()> {
        let sequence = self.with(|map| map.put(key, value)).map_err(io::Error::other)?;
        self.reached(sequence).await
    }

    /// Deletes a key. Resolves when that is durable. Returns whether the key existed.
    ///
    /// # Errors
    /// As for [`Durable::put`].
    pub async fn delete(&self, key: &[u8]) -> io::Result<bool> {
        let Some(sequence) = self.with(|map| map.delete(key)).map_err(io::Error::other)? else {
            return Ok(false);
        };
        self.reached(sequence).await?;
        Ok(true)
    }

    /// The value of a key, durable or not, from memory or from the area.
    ///
    /// # Errors
    /// It cannot be read, or the map has failed.
    pub async fn get(&self, key: &[u8]) -> io::Result<Option<Vec<u8>>> {
        let found = self.with(|map| match map.get(key) {
            None => Err(None),
            Some(Value::Here(value)) => Err(Some(value.to_vec())),
            Some(Value::Stored(fetch)) => Ok(fetch),
        });
        match found {
            Ok(mut fetch) => std::future::poll_fn(|context| self.poll_fetch(&mut fetch, context)).await,
            Err(here) => Ok(here),
        }
    }

    fn poll_fetch(&self, fetch: &mut Fetch, context: &Context<'_>) -> Poll<io::Result<Option<Vec<u8>>>> {
        match self.state.structure.borrow_mut().fetch(fetch) {
            Ok(Fetched::Value(value)) => Poll::Ready(Ok(Some(value.to_vec()))),
            Ok(Fetched::Deleted) => Poll::Ready(Ok(None)),
            Ok(Fetched::Waiting) => {
                self.state.readers.borrow_mut().push(context.waker().clone());
                Poll::Pending
            }
            Err(error) => Poll::Ready(Err(io::Error::other(error))),
        }
    }
}

/// An entry that a task has received from a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueEntry {
    /// What to acknowledge it with.
    pub receipt: Receipt,
    /// What was sent.
    pub payload: Vec<u8>,
    /// How often it was delivered, this time included.
    pub deliveries: u32,
}

impl<D: DiskDoorbell> Durable<Queue<D>> {
    /// Sends an entry. Resolves when it is durable.
    ///
    /// # Errors
    /// The queue is full, or has failed.
    pub async fn send(&self, payload: &[u8]) -> io::Result<Sequence> {
        let id = self.with(|queue| queue.send(payload)).map_err(io::Error::other)?;
        self.reached(id).await?;
        Ok(id)
    }

    /// Waits for an entry, and reserves it for `consumer` for `lease` nanoseconds.
    ///
    /// # Errors
    /// The queue has failed.
    pub async fn receive(&self, consumer: u64, lease: u64) -> io::Result<QueueEntry> {
        std::future::poll_fn(|context| self.poll_receive(consumer, lease, context)).await
    }

    fn poll_receive(&self, consumer: u64, lease: u64, context: &Context<'_>) -> Poll<io::Result<QueueEntry>> {
        let mut queue = self.state.structure.borrow_mut();
        if let Some(failure) = queue.log().failed() {
            return Poll::Ready(Err(io::Error::other(failure.to_string())));
        }
        match queue.receive(consumer, self.net.now(), lease) {
            Some(delivery) => Poll::Ready(Ok(QueueEntry {
                receipt: delivery.receipt,
                payload: delivery.payload.to_vec(),
                deliveries: delivery.deliveries,
            })),
            None => {
                self.state.receivers.borrow_mut().push(context.waker().clone());
                Poll::Pending
            }
        }
    }

    /// Acknowledges deliveries, all or none. Resolves when their removal is durable.
    ///
    /// # Errors
    /// Another consumer has received one of them since, or the queue has failed.
    pub async fn acknowledge(&self, receipts: &[Receipt]) -> io::Result<()> {
        let sequence = self.with(|queue| queue.acknowledge(receipts)).map_err(io::Error::other)?;
        self.reached(sequence).await
    }
}

/// A task's entry among those that wait for a sequence to become durable.
struct DurableWait<'a, S> {
    state: &'a State<S>,
    key: Option<(Sequence, u64)>,
}

impl<S: Structure> DurableWait<'_, S> {
    fn poll(&mut self, sequence: Sequence, context: &Context<'_>) -> Poll<io::Result<()>> {
        let structure = self.state.structure.borrow();
        if structure.durable() >= sequence {
            return Poll::Ready(Ok(()));
        }
        if let Some(failure) = structure.failed() {
            return Poll::Ready(Err(io::Error::other(failure.to_string())));
        }
        let key = *self.key.get_or_insert_with(|| {
            self.state.next.set(self.state.next.get() + 1);
            (sequence, self.state.next.get())
        });
        self.state.waiting.borrow_mut().insert(key, context.waker().clone());
        Poll::Pending
    }
}

impl<S> Drop for DurableWait<'_, S> {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            self.state.waiting.borrow_mut().remove(&key);
        }
    }
}

impl Net {
    /// Drives `log` in this loop.
    ///
    /// # Errors
    /// No file descriptor is left for its doorbell.
    pub fn log<D: DiskDoorbell + 'static>(&self, log: Log<D>) -> io::Result<DurableLog<D>> {
        self.structure(log)
    }

    /// Drives `queue` in this loop.
    ///
    /// # Errors
    /// No file descriptor is left for its doorbell.
    pub fn queue<D: DiskDoorbell + 'static>(&self, queue: Queue<D>) -> io::Result<DurableQueue<D>> {
        self.structure(queue)
    }

    /// Drives `map` in this loop.
    ///
    /// # Errors
    /// No file descriptor is left for its doorbell.
    pub fn map<D: DiskDoorbell + 'static>(&self, map: Map<D>) -> io::Result<DurableMap<D>> {
        self.structure(map)
    }

    /// Drives `map`, whose values stay in the area, in this loop.
    ///
    /// # Errors
    /// No file descriptor is left for its doorbell.
    pub fn stored_map<D: DiskDoorbell + 'static>(
        &self,
        map: StoredMap<D>,
    ) -> io::Result<DurableStoredMap<D>> {
        self.structure(map)
    }

    fn structure<S: Structure + 'static>(&self, structure: S) -> io::Result<Durable<S>> {
        let doorbell = duplicate_doorbell(structure.log().disk())?;
        let state = Rc::new(State {
            structure: RefCell::new(structure),
            waiting: RefCell::default(),
            receivers: RefCell::default(),
            next: Cell::new(0),
            readers: RefCell::default(),
            read: Cell::new(0),
            resizing: RefCell::default(),
            doorbell: RefCell::new(doorbell),
            replacing: Cell::new(false),
        });
        self.0.drivers.borrow_mut().push(Rc::clone(&state) as Rc<dyn Driver>);
        Ok(Durable { state, net: self.clone() })
    }
}
