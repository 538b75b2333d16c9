//! Storage in the same loop: a disk queue, and a durable log.
//!
//! 1. [`Net::disk`] takes a disk queue. A request's future gives its buffer to the queue and gets it back when it is done. A future
//!    that is dropped abandons its request: the device finishes it, and the buffer goes then.
//! 2. [`Net::log`] takes a log. [`DurableLog::append`] resolves when the record survives power loss. Appends of one turn go out as one
//!    write at its end: group commit without a timer.
//! 3. The loop looks at what has finished once a turn, and sleeps on the queue's doorbell too.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use sietch_disk::{Buffer, Completion, Operation, SubmitError};
use sietch_persist::{Log, Sequence};

use super::Net;
use crate::doorbell::DiskDoorbell;

/// What the loop turns beside the network.
pub(super) trait Driver {
    /// Takes what has finished and hands on what was queued. Returns whether anything has finished.
    fn turn(&self) -> io::Result<bool>;

    /// Requests are in flight, and no doorbell tells when they are done.
    fn must_turn(&self) -> bool;

    /// Lets `see` have what becomes readable when something has finished.
    fn doorbell(&self) -> Option<BorrowedFd<'_>>;
}

enum Request {
    Waiting(Option<Waker>),
    Done(Completion),
    /// Nobody waits for it any more.
    Abandoned,
}

struct Requests {
    slots: Vec<Option<Request>>,
    free: Vec<usize>,
}

struct DiskState<D> {
    queue: RefCell<D>,
    requests: RefCell<Requests>,
    /// Who found the queue full.
    waiting: RefCell<Vec<Waker>>,
    completions: RefCell<Vec<Completion>>,
    /// The queue's doorbell, by a descriptor of our own: the queue is borrowed while it works.
    doorbell: Option<std::os::fd::OwnedFd>,
}

impl<D: DiskDoorbell> Driver for DiskState<D> {
    fn turn(&self) -> io::Result<bool> {
        let mut completions = std::mem::take(&mut *self.completions.borrow_mut());
        {
            let mut queue = self.queue.borrow_mut();
            queue.ring()?;
            queue.complete(&mut completions);
        }
        let busy = !completions.is_empty();
        for completion in completions.drain(..) {
            self.finish(completion);
        }
        *self.completions.borrow_mut() = completions;
        if busy {
            for waker in self.waiting.borrow_mut().drain(..) {
                waker.wake();
            }
        }
        Ok(busy)
    }

    fn must_turn(&self) -> bool {
        self.doorbell.is_none() && self.queue.borrow().in_flight() > 0
    }

    fn doorbell(&self) -> Option<BorrowedFd<'_>> {
        use std::os::fd::AsFd as _;
        self.doorbell.as_ref().map(|doorbell| doorbell.as_fd())
    }
}

impl<D> DiskState<D> {
    fn finish(&self, completion: Completion) {
        let mut requests = self.requests.borrow_mut();
        let Ok(index) = usize::try_from(completion.token) else { return };
        let Some(slot) = requests.slots.get_mut(index) else { return };
        match slot.take() {
            Some(Request::Waiting(waker)) => {
                *slot = Some(Request::Done(completion));
                if let Some(waker) = waker {
                    waker.wake();
                }
            }
            _ => requests.free.push(index),
        }
    }
}

/// A disk queue for tasks; see [`Net::disk`]. Clones name the same queue.
pub struct Disk<D: DiskDoorbell> {
    state: Rc<DiskState<D>>,
}

impl<D: DiskDoorbell> Clone for Disk<D> {
    fn clone(&self) -> Self {
        Self { state: Rc::clone(&self.state) }
    }
}

impl<D: DiskDoorbell> std::fmt::Debug for Disk<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Disk").finish_non_exhaustive()
    }
}

/// Abandons a request whose future is dropped.
struct InFlight<'a, D: DiskDoorbell> {
    state: &'a DiskState<D>,
    index: usize,
}

impl<D: DiskDoorbell> Drop for InFlight<'_, D> {
    fn drop(&mut self) {
        let mut requests = self.state.requests.borrow_mut();
        match requests.slots[self.index].take() {
            Some(Request::Waiting(_)) => requests.slots[self.index] = Some(Request::Abandoned),
            _ => requests.free.push(self.index),
        }
    }
}

impl<D: DiskDoorbell> Disk<D> {
    /// Fills the first `length` bytes of `buffer` from `offset`, both multiples of the queue's block size.
    ///
    /// # Errors
    /// With the result comes the buffer back. A request outside the area is `InvalidInput`.
    pub async fn read(&self, offset: u64, length: usize, buffer: Buffer) -> (io::Result<()>, Buffer) {
        let (result, buffer) = self.run(Operation::Read { offset, length, buffer }).await;
        (result, buffer.unwrap_or_else(|| Buffer::new(0)))
    }

    /// Writes the first `length` bytes of `buffer` at `offset`; with `durable`, done means that they survive power loss.
    ///
    /// # Errors
    /// As for [`Disk::read`].
    pub async fn write(
        &self,
        offset: u64,
        length: usize,
        buffer: Buffer,
        durable: bool,
    ) -> (io::Result<()>, Buffer) {
        let (result, buffer) = self.run(Operation::Write { offset, length, buffer, durable }).await;
        (result, buffer.unwrap_or_else(|| Buffer::new(0)))
    }

    /// Makes every write that is done survive power loss.
    ///
    /// # Errors
    /// Those of the device.
    pub async fn flush(&self) -> io::Result<()> {
        self.run(Operation::Flush).await.0
    }

    async fn run(&self, operation: Operation) -> (io::Result<()>, Option<Buffer>) {
        let mut operation = Some(operation);
        let submitted = std::future::poll_fn(|context| self.poll_submit(&mut operation, context)).await;
        let index = match submitted {
            Ok(index) => index,
            Err(refused) => {
                let cause = io::Error::new(
                    io::ErrorKind::InvalidInput,
                    "the request lies outside the area, or is not a multiple of its block size",
                );
                return (Err(cause), refused);
            }
        };
        let in_flight = InFlight { state: &*self.state, index };
        std::future::poll_fn(|context| in_flight.poll(context)).await
    }

    fn poll_submit(
        &self,
        operation: &mut Option<Operation>,
        context: &Context<'_>,
    ) -> Poll<Result<usize, Option<Buffer>>> {
        let Some(wanted) = operation.take() else { return Poll::Ready(Err(None)) };
        let mut requests = self.state.requests.borrow_mut();
        let index = requests.free.pop().unwrap_or_else(|| {
            requests.slots.push(None);
            requests.slots.len() - 1
        });
        match self.state.queue.borrow_mut().submit(index as u64, wanted) {
            Ok(()) => {
                requests.slots[index] = Some(Request::Waiting(None));
                Poll::Ready(Ok(index))
            }
            Err(SubmitError::Full(back)) => {
                requests.free.push(index);
                *operation = Some(back);
                self.state.waiting.borrow_mut().push(context.waker().clone());
                Poll::Pending
            }
            Err(SubmitError::OutOfRange(back)) => {
                requests.free.push(index);
                Poll::Ready(Err(match back {
                    Operation::Read { buffer, .. } | Operation::Write { buffer, .. } => Some(buffer),
                    Operation::Flush => None,
                }))
            }
        }
    }
}

impl<D: DiskDoorbell> InFlight<'_, D> {
    fn poll(&self, context: &Context<'_>) -> Poll<(io::Result<()>, Option<Buffer>)> {
        let mut requests = self.state.requests.borrow_mut();
        let slot = &mut requests.slots[self.index];
        match slot.take() {
            Some(Request::Done(completion)) => Poll::Ready((completion.result, completion.buffer)),
            _ => {
                *slot = Some(Request::Waiting(Some(context.waker().clone())));
                Poll::Pending
            }
        }
    }
}

struct LogState<D: DiskDoorbell> {
    log: RefCell<Log<D>>,
    waiting: RefCell<BTreeMap<(Sequence, u64), Waker>>,
    next: Cell<u64>,
    doorbell: Option<std::os::fd::OwnedFd>,
}

impl<D: DiskDoorbell> Driver for LogState<D> {
    fn turn(&self) -> io::Result<bool> {
        let mut log = self.log.borrow_mut();
        if log.failed().is_none() {
            // A failure is kept by the log, and told to everyone who waits.
            let _ = log.submit();
            let _ = log.poll();
        }
        let (durable, failed) = (log.durable(), log.failed().is_some());
        drop(log);
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
        Ok(woken)
    }

    fn must_turn(&self) -> bool {
        self.doorbell.is_none() && !self.log.borrow().is_idle()
    }

    fn doorbell(&self) -> Option<BorrowedFd<'_>> {
        use std::os::fd::AsFd as _;
        self.doorbell.as_ref().map(|doorbell| doorbell.as_fd())
    }
}

/// A log for tasks; see [`Net::log`]. Clones name the same log.
pub struct DurableLog<D: DiskDoorbell> {
    state: Rc<LogState<D>>,
}

impl<D: DiskDoorbell> Clone for DurableLog<D> {
    fn clone(&self) -> Self {
        Self { state: Rc::clone(&self.state) }
    }
}

impl<D: DiskDoorbell> std::fmt::Debug for DurableLog<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DurableLog").finish_non_exhaustive()
    }
}

impl<D: DiskDoorbell> DurableLog<D> {
    /// Appends `payload`; done means that it is durable as the log was opened to be. The record is in the log even if the future is dropped.
    ///
    /// # Errors
    /// It does not fit, or the log has failed: then nobody knows whether the record will be there after a restart.
    pub async fn append(&self, payload: &[u8]) -> io::Result<Sequence> {
        let sequence = self.state.log.borrow_mut().append(payload).map_err(io::Error::other)?;
        let mut place = Waits { state: &*self.state, key: None };
        std::future::poll_fn(|context| place.poll(sequence, context)).await?;
        Ok(sequence)
    }

    /// Lets `look` use the log itself, for snapshots and counters.
    pub fn with<R>(&self, look: impl FnOnce(&mut Log<D>) -> R) -> R {
        look(&mut self.state.log.borrow_mut())
    }
}

/// A place among those who wait for the log.
struct Waits<'a, D: DiskDoorbell> {
    state: &'a LogState<D>,
    key: Option<(Sequence, u64)>,
}

impl<D: DiskDoorbell> Waits<'_, D> {
    fn poll(&mut self, sequence: Sequence, context: &Context<'_>) -> Poll<io::Result<()>> {
        let log = self.state.log.borrow();
        if log.durable() >= sequence {
            return Poll::Ready(Ok(()));
        }
        if let Some(failure) = log.failed() {
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

impl<D: DiskDoorbell> Drop for Waits<'_, D> {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            self.state.waiting.borrow_mut().remove(&key);
        }
    }
}

impl Net {
    /// Drives `queue` in this loop.
    ///
    /// # Errors
    /// No file descriptor is left for its doorbell.
    pub fn disk<D: DiskDoorbell + 'static>(&self, queue: D) -> io::Result<Disk<D>> {
        let doorbell = queue.doorbell().map(|doorbell| doorbell.try_clone_to_owned()).transpose()?;
        let state = Rc::new(DiskState {
            queue: RefCell::new(queue),
            requests: RefCell::new(Requests { slots: Vec::new(), free: Vec::new() }),
            waiting: RefCell::default(),
            completions: RefCell::default(),
            doorbell,
        });
        self.0.drivers.borrow_mut().push(Rc::clone(&state) as Rc<dyn Driver>);
        Ok(Disk { state })
    }

    /// Drives `log` in this loop.
    ///
    /// # Errors
    /// No file descriptor is left for its doorbell.
    pub fn log<D: DiskDoorbell + 'static>(&self, log: Log<D>) -> io::Result<DurableLog<D>> {
        let doorbell = log.disk().doorbell().map(|doorbell| doorbell.try_clone_to_owned()).transpose()?;
        let state = Rc::new(LogState {
            log: RefCell::new(log),
            waiting: RefCell::default(),
            next: Cell::new(0),
            doorbell,
        });
        self.0.drivers.borrow_mut().push(Rc::clone(&state) as Rc<dyn Driver>);
        Ok(DurableLog { state })
    }
}
