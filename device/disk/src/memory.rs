//! An area in DRAM: durable for as long as the process runs, no longer.
//!
//! 1. [`DiskQueue::submit`] queues; nothing touches the area before [`DiskQueue::notify`].
//! 2. [`DiskQueue::notify`] executes in order of submission, so that a test sees the same thing
//!    each time.
//! 3. [`MemoryQueue::into_bytes`] and [`MemoryQueue::from_bytes`] stand for a restart.

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use crate::{BLOCK, Completion, DEFAULT_DEPTH, DiskQueue, Operation, Part, Priority, SubmitError};

/// See the module's account.
pub struct MemoryQueue {
    bytes: Vec<u8>,
    queued: VecDeque<(u64, Operation)>,
    done: VecDeque<Completion>,
}

impl MemoryQueue {
    /// A zeroed area of `capacity` bytes, rounded up to whole blocks of [`BLOCK`].
    pub fn new(capacity: usize) -> Self {
        Self::from_bytes(vec![0; capacity.next_multiple_of(BLOCK)])
    }

    /// An area that holds `bytes`, padded with zeros to whole blocks of [`BLOCK`].
    pub fn from_bytes(mut bytes: Vec<u8>) -> Self {
        bytes.resize(bytes.len().next_multiple_of(BLOCK), 0);
        Self {
            bytes,
            queued: VecDeque::with_capacity(DEFAULT_DEPTH),
            done: VecDeque::with_capacity(DEFAULT_DEPTH),
        }
    }

    /// What the area holds. Requests that were not notified are not in it.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Gives the area's bytes back.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    fn execute(&mut self, token: u64, mut operation: Operation) {
        // Submission checked that the range is inside the area, which fits in memory.
        let mut start = operation.offset() as usize;
        match &mut operation {
            Operation::Read { length, buffer, .. } => {
                buffer[..*length].copy_from_slice(&self.bytes[start..start + *length]);
            }
            Operation::Write { length, buffer, .. } => {
                self.bytes[start..start + *length].copy_from_slice(&buffer[..*length]);
            }
            Operation::Flush => {}
            Operation::ReadVectored { parts, .. } => {
                for Part { buffer, length } in parts {
                    buffer[..*length].copy_from_slice(&self.bytes[start..start + *length]);
                    start += *length;
                }
            }
            Operation::WriteVectored { parts, .. } => {
                for Part { buffer, length } in parts {
                    self.bytes[start..start + *length].copy_from_slice(&buffer[..*length]);
                    start += *length;
                }
            }
            Operation::Discard { length, .. } => self.bytes[start..start + *length as usize].fill(0),
        }
        self.done.push_back(Completion::of(token, operation, Ok(())));
    }
}

impl DiskQueue for MemoryQueue {
    fn capacity(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn block_size(&self) -> usize {
        512
    }

    fn physical_block_size(&self) -> usize {
        // Nothing of it outlives the process.
        self.block_size()
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
        if !operation.is_within(self.capacity(), self.block_size()) {
            return Err(SubmitError::OutOfRange(operation));
        }
        if self.in_flight() >= self.depth() {
            return Err(SubmitError::Full(operation));
        }
        self.queued.push_back((token, operation));
        Ok(())
    }

    fn notify(&mut self) -> io::Result<()> {
        while let Some((token, operation)) = self.queued.pop_front() {
            self.execute(token, operation);
        }
        Ok(())
    }

    fn complete(&mut self, out: &mut Vec<Completion>) -> usize {
        let taken = self.done.len();
        out.extend(self.done.drain(..));
        taken
    }

    fn wait(&mut self, _timeout: Duration) -> io::Result<()> {
        self.notify()
    }

    fn in_flight(&self) -> usize {
        self.queued.len() + self.done.len()
    }
}
