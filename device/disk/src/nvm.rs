//! An area in byte-addressable persistent memory, or in DRAM that stands in for it.
//!
//! 1. The area is a mapping: a DAX file (`MAP_SYNC`, so that no block of it can get lost behind the
//!    application's back), or sealed memory. The capability is the mapping: nothing outside the
//!    area has an address.
//! 2. [`DiskQueue::submit`] queues. [`DiskQueue::notify`] executes in order: a write is copied by
//!    stores that bypass the caches, a read is copied out. No system call.
//! 3. One fence behind the last write of a batch orders them all, if one of them is durable or a
//!    flush was requested. Bytes stored before a fence survive power loss on memory that does (ADR:
//!    the memory controller's queues are drained by the power supply's last energy). Any part of
//!    the other bytes may be there, in pieces of [`TEAR`] bytes.
//! 4. A request is complete when [`DiskQueue::notify`] returns, unless a [`Model`] says when slower
//!    memory would have done it; then [`DiskQueue::complete`] returns it no earlier.
//! 5. [`DiskQueue::read_now`] copies at once, past the queue: without a model, a reader then needs
//!    no buffer of its own.
//! 6. All stores and fences pass through [`Medium`], so that the simulator can take the power away
//!    between any two of them.
//!
//! What it must never do: hold a reference into the mapping (others may map it too), or say durable
//! before the fence.

mod mapped;
mod medium;
mod model;

use std::collections::VecDeque;
use std::io;
use std::time::{Duration, Instant};

use crate::{Completion, DEFAULT_DEPTH, DiskQueue, Operation, Part, Priority, SubmitError};

pub use mapped::Mapped;
pub(crate) use mapped::is_sealed_memory;
pub(crate) use medium::LINE;
pub use medium::{Medium, TEAR};
pub use model::{Model, Seek};

/// Zeros that a discard stores at a time.
const ZEROS: [u8; 4096] = [0; 4096];

/// Waits that are shorter do not sleep: the kernel would wake the thread later than that.
const SPINS: Duration = Duration::from_micros(200);

/// See the module's account.
pub struct NvmQueue<M: Medium = Mapped> {
    medium: M,
    model: Option<Model>,
    queued: VecDeque<(u64, Operation)>,
    /// Finished, with the time from which they may be seen (none without a model).
    done: VecDeque<(Option<Instant>, Completion)>,
    /// With a model: until when the memory is busy.
    busy_until: Option<Instant>,
    /// With a model: where the last request ended.
    head: u64,
}

impl<M: Medium> NvmQueue<M> {
    /// A queue over `medium`, as slow as `model` says.
    pub fn over(medium: M, model: Option<Model>) -> Self {
        Self {
            medium,
            model,
            queued: VecDeque::with_capacity(DEFAULT_DEPTH),
            done: VecDeque::with_capacity(DEFAULT_DEPTH),
            busy_until: None,
            head: 0,
        }
    }

    /// How the memory is reached and how slow it is made, for people.
    pub fn description(&self) -> String {
        let medium = self.medium.description();
        self.model.map_or_else(|| medium.to_owned(), |model| format!("{medium}, {model}"))
    }

    /// Does what one request asks; a write is not durable before the fence that follows.
    fn execute(&mut self, operation: &mut Operation) {
        // Submission checked that ranges are inside the area, which fits in memory, and inside the
        // buffers.
        let mut at = operation.offset() as usize;
        match operation {
            Operation::Read { length, buffer, .. } => self.medium.load(at, &mut buffer[..*length]),
            Operation::Write { length, buffer, .. } => self.medium.store(at, &buffer[..*length]),
            Operation::Flush => {}
            Operation::ReadVectored { parts, .. } => {
                for Part { buffer, length } in parts {
                    self.medium.load(at, &mut buffer[..*length]);
                    at += *length;
                }
            }
            Operation::WriteVectored { parts, .. } => {
                for Part { buffer, length } in parts {
                    self.medium.store(at, &buffer[..*length]);
                    at += *length;
                }
            }
            Operation::Discard { length, .. } => {
                let end = at + *length as usize;
                while at < end {
                    let piece = ZEROS.len().min(end - at);
                    self.medium.store(at, &ZEROS[..piece]);
                    at += piece;
                }
            }
        }
    }

    /// When a request that moves `bytes` from `offset` on would be done in the memory that the
    /// model describes.
    fn ready(&mut self, is_read: bool, (offset, bytes): (u64, u64), now: Instant) -> Option<Instant> {
        let model = self.model?;
        let start = self.busy_until.map_or(now, |busy| busy.max(now));
        let mut end = start + model.transfer(bytes);
        // A flush moves no head.
        if bytes > 0 {
            end += model.position(self.medium.len() as u64, self.head, offset);
            self.head = offset + bytes;
        }
        self.busy_until = Some(end);
        Some(end + if is_read { model.read_latency } else { model.write_latency })
    }
}

impl<M: Medium> DiskQueue for NvmQueue<M> {
    fn capacity(&self) -> u64 {
        self.medium.len() as u64
    }

    fn block_size(&self) -> usize {
        LINE
    }

    fn physical_block_size(&self) -> usize {
        LINE
    }

    fn depth(&self) -> usize {
        DEFAULT_DEPTH
    }

    fn submit_with(
        &mut self,
        token: u64,
        operation: Operation,
        _priority: Priority,
    ) -> Result<(), SubmitError> {
        if !operation.is_within(self.capacity(), LINE) {
            return Err(SubmitError::OutOfRange(operation));
        }
        if self.in_flight() >= DEFAULT_DEPTH {
            return Err(SubmitError::Full(operation));
        }
        self.queued.push_back((token, operation));
        Ok(())
    }

    fn notify(&mut self) -> io::Result<()> {
        if self.queued.is_empty() {
            return Ok(());
        }
        let now = self.model.map(|_| Instant::now());
        let mut fence = false;
        while let Some((token, mut operation)) = self.queued.pop_front() {
            let is_read = match &operation {
                Operation::Read { .. } | Operation::ReadVectored { .. } => true,
                Operation::Write { durable, .. } | Operation::WriteVectored { durable, .. } => {
                    fence |= *durable;
                    false
                }
                Operation::Flush => {
                    fence = true;
                    false
                }
                Operation::Discard { .. } => false,
            };
            let ready = now.and_then(|now| self.ready(is_read, (operation.offset(), operation.bytes()), now));
            self.execute(&mut operation);
            self.done.push_back((ready, Completion::of(token, operation, Ok(()))));
        }
        // Nothing of this batch can be taken before this call returns, so one fence serves all of
        // it.
        if fence {
            self.medium.fence();
        }
        Ok(())
    }

    fn complete(&mut self, out: &mut Vec<Completion>) -> usize {
        let before = out.len();
        if self.model.is_none() {
            out.extend(self.done.drain(..).map(|(_, completion)| completion));
        } else if !self.done.is_empty() {
            let now = Instant::now();
            while let Some((ready, _)) = self.done.front()
                && ready.is_none_or(|ready| ready <= now)
            {
                out.extend(self.done.pop_front().map(|(_, completion)| completion));
            }
        }
        out.len() - before
    }

    fn wait(&mut self, timeout: Duration) -> io::Result<()> {
        self.notify()?;
        if let Some((Some(ready), _)) = self.done.front() {
            let limit = Instant::now() + timeout;
            let until = limit.min(*ready);
            // Of memory there are microseconds left: nothing to sleep for.
            while let Some(left) = until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())
            {
                match left.checked_sub(SPINS) {
                    Some(long) => std::thread::sleep(long),
                    None => std::hint::spin_loop(),
                }
            }
        }
        Ok(())
    }

    fn in_flight(&self) -> usize {
        self.queued.len() + self.done.len()
    }

    fn read_now(&mut self, offset: u64, out: &mut [u8]) -> bool {
        let end = offset.checked_add(out.len() as u64);
        if self.model.is_some() || !self.queued.is_empty() || end.is_none_or(|end| end > self.capacity()) {
            return false;
        }
        // Inside the area, which fits in memory.
        self.medium.load(offset as usize, out);
        true
    }
}
