//! Persistent structures in the loop: what they promise, as futures.
//!
//! 1. [`Net::log`], [`Net::queue`] and [`Net::map`] take a structure. A future that changes it resolves when the change survives power loss.
//!    Changes of one turn go out as one write at its end: group commit without a timer.
//! 2. A future that is dropped takes nothing back: the change is in the structure.
//! 3. [`Durable::with`] lends the structure itself, for what needs no waiting.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use sietch_persist::{Failure, Log, Map, Queue, Receipt, Sequence};

use super::Net;
use super::storage::Driver;
use crate::doorbell::DiskDoorbell;

/// A structure that a loop can drive.
pub trait Structure: sealed::Drive {}

impl<S: sealed::Drive> Structure for S {}

mod sealed {
    use super::{DiskDoorbell, Failure, Sequence};

    /// What the loop needs of a structure.
    pub trait Drive {
        type Disk: DiskDoorbell;
        fn disk(&self) -> &Self::Disk;
        /// Hands on what was changed and takes what has finished.
        fn turn(&mut self, now: u64);
        fn durable(&self) -> Sequence;
        fn failed(&self) -> Option<&Failure>;
        fn is_idle(&self) -> bool;
        /// When it has something to do even if the disk has not.
        fn next_deadline(&self) -> Option<u64> {
            None
        }
        /// Whether somebody who waits for an entry would get one.
        fn is_ready(&self) -> bool {
            false
        }
    }
}

use sealed::Drive;

impl<D: DiskDoorbell> Drive for Log<D> {
    type Disk = D;

    fn disk(&self) -> &D {
        Log::disk(self)
    }

    fn turn(&mut self, _now: u64) {
        if self.failed().is_none() {
            // A failure is kept by the log, and told to everyone who waits.
            let _ = self.submit();
            let _ = self.poll();
        }
    }

    fn durable(&self) -> Sequence {
        Log::durable(self)
    }

    fn failed(&self) -> Option<&Failure> {
        Log::failed(self)
    }

    fn is_idle(&self) -> bool {
        Log::is_idle(self)
    }
}

impl<D: DiskDoorbell> Drive for Map<D> {
    type Disk = D;

    fn disk(&self) -> &D {
        self.log().disk()
    }

    fn turn(&mut self, _now: u64) {
        if self.failed().is_none() {
            // As for a log.
            let _ = self.poll();
        }
    }

    fn durable(&self) -> Sequence {
        self.log().durable()
    }

    fn failed(&self) -> Option<&Failure> {
        self.log().failed()
    }

    fn is_idle(&self) -> bool {
        self.log().is_idle()
    }
}

impl<D: DiskDoorbell> Drive for Queue<D> {
    type Disk = D;

    fn disk(&self) -> &D {
        self.log().disk()
    }

    fn turn(&mut self, now: u64) {
        if self.failed().is_none() {
            // As for a log.
            let _ = self.poll(now);
        }
    }

    fn durable(&self) -> Sequence {
        self.log().durable()
    }

    fn failed(&self) -> Option<&Failure> {
        self.log().failed()
    }

    fn is_idle(&self) -> bool {
        self.log().is_idle()
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
    /// Who waits for an entry of a queue.
    receivers: RefCell<Vec<Waker>>,
    next: Cell<u64>,
    /// The disk queue's doorbell, by a descriptor of our own.
    doorbell: Option<std::os::fd::OwnedFd>,
}

impl<S: Structure> Driver for State<S> {
    fn turn(&self, now: u64) -> io::Result<bool> {
        let mut structure = self.structure.borrow_mut();
        structure.turn(now);
        let (durable, failed) = (structure.durable(), structure.failed().is_some());
        let ready = structure.is_ready() || failed;
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
        if ready {
            for receiver in self.receivers.borrow_mut().drain(..) {
                receiver.wake();
                woken = true;
            }
        }
        Ok(woken)
    }

    fn must_turn(&self) -> bool {
        self.doorbell.is_none() && !self.structure.borrow().is_idle()
    }

    fn next_deadline(&self) -> Option<u64> {
        self.structure.borrow().next_deadline()
    }

    fn doorbell(&self) -> Option<BorrowedFd<'_>> {
        self.doorbell.as_ref().map(|doorbell| doorbell.as_fd())
    }
}

/// A structure for tasks; see [`Net::log`], [`Net::queue`] and [`Net::map`]. Clones name the same one.
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
    /// Lets `look` use the structure itself.
    pub fn with<R>(&self, look: impl FnOnce(&mut S) -> R) -> R {
        look(&mut self.state.structure.borrow_mut())
    }

    /// Waits until everything up to `sequence` is durable, as the structure was opened to be.
    ///
    /// # Errors
    /// The structure has failed: then nobody knows whether the change will be there after a restart.
    pub async fn reached(&self, sequence: Sequence) -> io::Result<()> {
        let mut place = Waits { state: &*self.state, key: None };
        std::future::poll_fn(|context| place.poll(sequence, context)).await
    }
}

impl<D: DiskDoorbell> Durable<Log<D>> {
    /// Appends `payload`; done means that it is durable as the log was opened to be. The record is in the log even if the future is dropped.
    ///
    /// # Errors
    /// It does not fit, or the log has failed: then nobody knows whether the record will be there after a restart.
    pub async fn append(&self, payload: &[u8]) -> io::Result<Sequence> {
        let sequence = self.with(|log| log.append(payload)).map_err(io::Error::other)?;
        self.reached(sequence).await?;
        Ok(sequence)
    }
}

impl<D: DiskDoorbell> Durable<Map<D>> {
    /// Gives a key a value; done means that it is durable.
    ///
    /// # Errors
    /// It does not fit, or the map has failed.
    pub async fn put(&self, key: &[u8], value: &[u8]) -> io::Result<()> {
        let sequence = self.with(|map| map.put(key, value)).map_err(io::Error::other)?;
        self.reached(sequence).await
    }

    /// Deletes a key; done means that it is durable. Returns whether there was one.
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

/// An entry of a queue in a task's hands.
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
    /// Sends an entry; done means that it is durable.
    ///
    /// # Errors
    /// The queue is full, or has failed.
    pub async fn send(&self, payload: &[u8]) -> io::Result<Sequence> {
        let id = self.with(|queue| queue.send(payload)).map_err(io::Error::other)?;
        self.reached(id).await?;
        Ok(id)
    }

    /// Waits for an entry, and takes it for `lease` nanoseconds.
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

    /// Acknowledges deliveries, all or none; done means that they are gone for good.
    ///
    /// # Errors
    /// One of them is another's now, or the queue has failed.
    pub async fn acknowledge(&self, receipts: &[Receipt]) -> io::Result<()> {
        let sequence = self.with(|queue| queue.acknowledge(receipts)).map_err(io::Error::other)?;
        self.reached(sequence).await
    }
}

/// A place among those who wait for a structure.
struct Waits<'a, S> {
    state: &'a State<S>,
    key: Option<(Sequence, u64)>,
}

impl<S: Structure> Waits<'_, S> {
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

impl<S> Drop for Waits<'_, S> {
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

    fn structure<S: Structure + 'static>(&self, structure: S) -> io::Result<Durable<S>> {
        let doorbell =
            structure.disk().doorbell().map(|doorbell| doorbell.try_clone_to_owned()).transpose()?;
        let state = Rc::new(State {
            structure: RefCell::new(structure),
            waiting: RefCell::default(),
            receivers: RefCell::default(),
            next: Cell::new(0),
            doorbell,
        });
        self.0.drivers.borrow_mut().push(Rc::clone(&state) as Rc<dyn Driver>);
        Ok(Durable { state, net: self.clone() })
    }
}
