//! A disk queue for tasks.
//!
//! 1. [`Net::disk`] takes a disk queue. A request's future gives its buffer to the queue and gets
//!    it back when the request is done. A future that is dropped abandons its request: the device
//!    finishes it, and the buffer is dropped then.
//! 2. The loop takes completions once an iteration, and sleeps on the queue's doorbell too.
//! 3. Persistent structures over a disk queue are in [`super::durable`].

use std::cell::RefCell;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use sietch_disk::{Buffer, Completion, Operation, Part, Priority, SubmitError};

use super::state::{Driver, Net, duplicate_doorbell};
use crate::device::DiskDoorbell;

enum Request {
    Waiting(Option<Waker>),
    Done(Completion),
    /// Its future was dropped.
    Abandoned,
}

struct Requests {
    slots: Vec<Option<Request>>,
    free: Vec<usize>,
}

struct DiskState<D> {
    queue: RefCell<D>,
    requests: RefCell<Requests>,
    /// Tasks that found the queue full.
    waiting: RefCell<Vec<Waker>>,
    completions: RefCell<Vec<Completion>>,
    /// See [`duplicate_doorbell`].
    doorbell: Option<Rc<OwnedFd>>,
}

impl<D: DiskDoorbell> Driver for DiskState<D> {
    fn poll(&self, _now: u64) -> io::Result<bool> {
        let mut completions = std::mem::take(&mut *self.completions.borrow_mut());
        {
            let mut queue = self.queue.borrow_mut();
            queue.notify()?;
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

    fn must_poll(&self) -> bool {
        self.doorbell.is_none() && self.queue.borrow().in_flight() > 0
    }

    fn doorbell(&self) -> Option<Rc<OwnedFd>> {
        self.doorbell.clone()
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
    /// Fills the first `length` bytes of `buffer` from `offset`, both multiples of the queue's
    /// block size in bytes. Returns the buffer with the result.
    ///
    /// # Errors
    /// Those of the device; `InvalidInput` for a request outside the area.
    pub async fn read(&self, offset: u64, length: usize, buffer: Buffer) -> (io::Result<()>, Buffer) {
        let (result, buffer) = self.run(Operation::Read { offset, length, buffer }).await;
        (result, buffer.unwrap_or_else(|| Buffer::new(0)))
    }

    /// Writes the first `length` bytes of `buffer` at `offset`; with `durable`, done means that
    /// they survive power loss.
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

    /// Fills the parts, one after another, from the range at `offset`.
    ///
    /// # Errors
    /// As for [`Disk::read`].
    pub async fn read_vectored(&self, offset: u64, parts: Vec<Part>) -> (io::Result<()>, Vec<Part>) {
        let done = self.finish(Operation::ReadVectored { offset, parts }, Priority::Latency).await;
        (done.result, done.parts)
    }

    /// Writes the parts, one after another, to the range at `offset`; with `durable`, done means
    /// that they survive power loss.
    ///
    /// # Errors
    /// As for [`Disk::read`].
    pub async fn write_vectored(
        &self,
        offset: u64,
        parts: Vec<Part>,
        durable: bool,
    ) -> (io::Result<()>, Vec<Part>) {
        let done = self.finish(Operation::WriteVectored { offset, parts, durable }, Priority::Latency).await;
        (done.result, done.parts)
    }

    /// Makes every completed write and discard survive power loss.
    ///
    /// # Errors
    /// Those of the device.
    pub async fn flush(&self) -> io::Result<()> {
        self.run(Operation::Flush).await.0
    }

    /// Makes the range read as zeros and frees its blocks where the medium supports that; see
    /// [`Operation::Discard`].
    ///
    /// # Errors
    /// Those of the device; `Unsupported` where the medium cannot, and `InvalidInput` for a range
    /// outside the area.
    pub async fn discard(&self, offset: u64, length: u64) -> io::Result<()> {
        self.finish(Operation::Discard { offset, length }, Priority::Bulk).await.result
    }

    async fn run(&self, operation: Operation) -> (io::Result<()>, Option<Buffer>) {
        let done = self.finish(operation, Priority::Latency).await;
        (done.result, done.buffer)
    }

    /// Runs one request, of any kind and priority. The completion's token is the loop's own.
    pub async fn finish(&self, operation: Operation, priority: Priority) -> Completion {
        let mut operation = Some(operation);
        let submitted =
            std::future::poll_fn(|context| self.poll_submit(&mut operation, priority, context)).await;
        let index = match submitted {
            Ok(index) => index,
            Err(refused) => return *refused,
        };
        let in_flight = InFlight { state: &*self.state, index };
        std::future::poll_fn(|context| in_flight.poll(context)).await
    }

    fn poll_submit(
        &self,
        operation: &mut Option<Operation>,
        priority: Priority,
        context: &Context<'_>,
    ) -> Poll<Result<usize, Box<Completion>>> {
        // Polled again only after the operation was returned.
        let wanted = operation.take().unwrap_or(Operation::Flush);
        let mut requests = self.state.requests.borrow_mut();
        let index = requests.free.pop().unwrap_or_else(|| {
            requests.slots.push(None);
            requests.slots.len() - 1
        });
        match self.state.queue.borrow_mut().submit_with(index as u64, wanted, priority) {
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
                let cause = io::Error::new(
                    io::ErrorKind::InvalidInput,
                    "the request is outside the area, or is not a multiple of its block size",
                );
                Poll::Ready(Err(Box::new(Completion::of(index as u64, back, Err(cause)))))
            }
        }
    }
}

impl<D: DiskDoorbell> InFlight<'_, D> {
    fn poll(&self, context: &Context<'_>) -> Poll<Completion> {
        let mut requests = self.state.requests.borrow_mut();
        let slot = &mut requests.slots[self.index];
        match slot.take() {
            Some(Request::Done(completion)) => Poll::Ready(completion),
            _ => {
                *slot = Some(Request::Waiting(Some(context.waker().clone())));
                Poll::Pending
            }
        }
    }
}

impl Net {
    /// Drives `queue` in this loop.
    ///
    /// # Errors
    /// No file descriptor is left for its doorbell.
    pub fn disk<D: DiskDoorbell + 'static>(&self, queue: D) -> io::Result<Disk<D>> {
        let doorbell = duplicate_doorbell(&queue)?;
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
}
