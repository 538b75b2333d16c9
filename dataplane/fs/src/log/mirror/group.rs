//! A group on its way to the disk.
//!
//! The thread that has it writes it, while others append to the log and ask for more. It reads its
//! own bytes of the log, which stay as they are until the digest has them. A group of one request
//! is one durable write. A longer one is plain writes, and one flush when all of them are done: a
//! device without FUA would be flushed for each durable write.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use sietch_disk::nvm::Medium;
use sietch_disk::{Buffer, Completion, DiskQueue, Operation, SubmitError};

use crate::log::ring::Ring;

/// Bytes of one request: a disk is at its full bandwidth well below, and copies are bounded.
pub(super) const REQUEST: usize = 256 << 10;

/// Requests in flight together: with their buffers they take 4 MiB.
const IN_FLIGHT: usize = 16;

/// Why the mirror cannot make anything durable.
#[derive(Clone, Debug, thiserror::Error)]
pub enum MirrorError {
    /// The disk and the log do not fit.
    #[error("the disk cannot mirror the log: {cause}")]
    Misfit {
        /// What does not fit.
        cause: &'static str,
    },
    /// A request failed; nothing is made durable from then on.
    #[error(
        "the mirror of the log: {action} {length} bytes at {offset}: {source}; what was acknowledged before is safe, restart with another disk"
    )]
    Failed {
        /// "write", "flush", "read" or "notify".
        action: &'static str,
        /// First byte on the disk.
        offset: u64,
        /// Bytes.
        length: usize,
        /// What the disk says.
        source: Arc<io::Error>,
    },
}

/// A disk's queue, with buffers that are used again.
#[derive(Debug)]
pub(super) struct Disk<D> {
    queue: D,
    spare: Vec<Buffer>,
    completions: Vec<Completion>,
}

impl<D> Disk<D> {
    pub(super) fn new(queue: D) -> Self {
        Self { queue, spare: Vec::new(), completions: Vec::new() }
    }
}

/// The module's header describes it.
#[derive(Debug)]
pub struct Group<D: DiskQueue> {
    disk: Disk<D>,
    ring: Ring,
    /// First position that was not submitted yet, and the first behind the group.
    next: u64,
    end: u64,
    /// The last record in it.
    sequence: u64,
    in_flight: usize,
    /// The flush behind the writes, if they are not durable by themselves.
    flush: Flush,
    failure: Option<MirrorError>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flush {
    /// The writes are durable.
    None,
    /// Not submitted yet.
    Due,
    InFlight,
    Done,
}

impl<D: DiskQueue> Group<D> {
    pub(super) fn new(disk: Disk<D>, ring: Ring, (next, end): (u64, u64), sequence: u64) -> Self {
        let is_one = end - next <= ring.contiguous(next).min(REQUEST as u64);
        let flush = if is_one { Flush::None } else { Flush::Due };
        Self { disk, ring, next, end, sequence, in_flight: 0, flush, failure: None }
    }

    /// Everything before this position is durable, if it is, when the group is.
    pub fn end(&self) -> u64 {
        self.end
    }

    pub(super) fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Whether all of it is durable.
    pub fn is_durable(&self) -> bool {
        let is_flushed = matches!(self.flush, Flush::None | Flush::Done);
        self.failure.is_none() && self.in_flight == 0 && self.next == self.end && is_flushed
    }

    /// Whether a request failed: nothing says what the disk has.
    pub fn has_failed(&self) -> bool {
        self.failure.is_some()
    }

    /// The disk, which may still have requests of a group that failed.
    pub(super) fn into_parts(self) -> (Disk<D>, Option<MirrorError>) {
        (self.disk, self.failure)
    }

    /// Takes what the disk has done and submits what is next; whether nothing is left to be done:
    /// the group is durable, or has failed. `medium` is the memory of the log.
    pub fn poll<M: Medium>(&mut self, medium: &M) -> bool {
        self.take_completions();
        if self.failure.is_none() && self.next < self.end {
            self.submit(medium);
        } else if self.failure.is_none() && self.in_flight == 0 && self.flush == Flush::Due {
            self.submit_flush();
        }
        self.has_failed() || self.is_durable()
    }

    /// Waits until the disk has done something, at most `timeout`.
    pub fn wait(&mut self, timeout: Duration) {
        let waited = self.disk.queue.wait(timeout);
        self.check_queue(waited);
    }

    fn check_queue(&mut self, result: io::Result<()>) {
        if let Err(source) = result {
            self.fail("notify", self.next, 0, source);
        }
    }

    fn fail(&mut self, action: &'static str, position: u64, length: usize, source: io::Error) {
        let offset = self.ring.place(position) as u64;
        let failure = MirrorError::Failed { action, offset, length, source: Arc::new(source) };
        self.failure.get_or_insert(failure);
    }

    fn take_completions(&mut self) {
        let mut completions = std::mem::take(&mut self.disk.completions);
        self.disk.queue.complete(&mut completions);
        for completion in completions.drain(..) {
            self.in_flight -= 1;
            self.disk.spare.extend(completion.buffer);
            let is_flush = self.flush == Flush::InFlight;
            if is_flush {
                self.flush = Flush::Done;
            }
            if let Err(source) = completion.result {
                let action = if is_flush { "flush" } else { "write" };
                let length = self.request_length(completion.token);
                self.fail(action, completion.token, length, source);
            }
        }
        self.disk.completions = completions;
    }

    fn submit<M: Medium>(&mut self, medium: &M) {
        let most = IN_FLIGHT.min(self.disk.queue.depth());
        while self.in_flight < most && self.next < self.end {
            let place = self.ring.place(self.next);
            let length = self.request_length(self.next);
            let buffer = self.disk.spare.pop().filter(|buffer| buffer.len() >= length);
            let mut buffer = buffer.unwrap_or_else(|| Buffer::new(length));
            medium.load(place, &mut buffer[..length]);
            let durable = self.flush == Flush::None;
            let write = Operation::Write { offset: place as u64, length, buffer, durable };
            match self.disk.queue.submit(self.next, write) {
                Ok(()) => {}
                // Others use the queue: the next poll tries again.
                Err(SubmitError::Full(write)) => {
                    self.disk.spare.extend(write.into_buffers().0);
                    break;
                }
                Err(SubmitError::OutOfRange(_)) => {
                    let source = io::Error::other("the queue refused a request inside its area");
                    return self.fail("write", self.next, length, source);
                }
            }
            self.in_flight += 1;
            self.next += length as u64;
        }
        let notified = self.disk.queue.notify();
        self.check_queue(notified);
    }

    /// Makes the writes durable, all of which are done.
    fn submit_flush(&mut self) {
        // Others use the queue: the next poll tries again.
        if self.disk.queue.submit(self.end, Operation::Flush).is_ok() {
            (self.flush, self.in_flight) = (Flush::InFlight, 1);
        }
        let notified = self.disk.queue.notify();
        self.check_queue(notified);
    }

    /// Bytes of the request that begins at `position`; none behind the end.
    fn request_length(&self, position: u64) -> usize {
        // No more than the constant.
        (self.end - position).min(self.ring.contiguous(position)).min(REQUEST as u64) as usize
    }
}
