//! A file through `preadv2(2)` and `pwritev2(2)`: for machines that refuse io_uring.
//!
//! 1. [`DiskQueue::submit`] queues; [`DiskQueue::notify`] executes everything queued, one system
//!    call a request, and returns when all of it is done. Completions are there right after it:
//!    there is nothing to poll for.
//! 2. A durable write is a write with `RWF_DSYNC`; a flush is `fdatasync(2)`; a discard is
//!    `fallocate(2)` (see `file`).
//! 3. A write that the kernel cuts short is an error, as everywhere. Priorities mean nothing: there
//!    is only one request at a time.

use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::io::ReadWriteFlags;

use crate::file::{self, FileAccess};
use crate::{
    Completion, DEFAULT_DEPTH, DiskQueue, Feature, OpenError, Operation, Part, Priority, SubmitError,
};

/// See the module's account.
pub struct BlockingQueue {
    fd: OwnedFd,
    capacity: u64,
    access: FileAccess,
    queued: VecDeque<(u64, Operation)>,
    done: VecDeque<Completion>,
}

impl BlockingQueue {
    /// A queue over the first `capacity` bytes of `fd`, which must be open for reading and writing.
    ///
    /// # Errors
    /// See [`OpenError`]; never [`OpenError::Unavailable`].
    pub fn open(fd: OwnedFd, capacity: u64) -> Result<Self, OpenError> {
        let access = file::prepare(fd.as_fd(), capacity)?;
        Ok(Self {
            fd,
            capacity,
            access,
            queued: VecDeque::with_capacity(DEFAULT_DEPTH),
            done: VecDeque::with_capacity(DEFAULT_DEPTH),
        })
    }

    /// How requests reach the device, for people.
    pub fn description(&self) -> &'static str {
        if self.access.direct {
            "pwritev2, O_DIRECT, RWF_DSYNC"
        } else {
            "pwritev2, buffered (O_DIRECT refused), RWF_DSYNC"
        }
    }

    /// What was found out about file and device when the queue was opened, and is made use of or
    /// not.
    pub fn features(&self) -> Vec<Feature> {
        let mut features = self.access.features(self.fd.as_fd());
        if let Some(priorities) = features.iter_mut().find(|finding| finding.what == "order by priority") {
            *priorities = Feature::unused(priorities.what, "one request at a time");
        }
        features
    }

    fn execute(&self, operation: &mut Operation) -> io::Result<()> {
        let flags = |durable: bool| if durable { ReadWriteFlags::DSYNC } else { ReadWriteFlags::empty() };
        let (fd, wanted) = (&self.fd, operation.bytes());
        let moved = match operation {
            Operation::Read { offset, length, buffer } => retry(|| {
                let slice = IoSliceMut::new(&mut buffer[..*length]);
                rustix::io::preadv2(fd, &mut [slice], *offset, ReadWriteFlags::empty())
            }),
            Operation::Write { offset, length, buffer, durable } => retry(|| {
                let slice = IoSlice::new(&buffer[..*length]);
                rustix::io::pwritev2(fd, &[slice], *offset, flags(*durable))
            }),
            Operation::ReadVectored { offset, parts } => {
                let slices = parts.iter_mut();
                let slices = slices.map(|Part { buffer, length }| IoSliceMut::new(&mut buffer[..*length]));
                let mut slices: Vec<IoSliceMut<'_>> = slices.collect();
                retry(|| rustix::io::preadv2(fd, &mut slices, *offset, ReadWriteFlags::empty()))
            }
            Operation::WriteVectored { offset, parts, durable } => {
                let slices: Vec<IoSlice<'_>> =
                    parts.iter().map(|part| IoSlice::new(&part.buffer[..part.length])).collect();
                retry(|| rustix::io::pwritev2(fd, &slices, *offset, flags(*durable)))
            }
            Operation::Flush => return Ok(rustix::fs::fdatasync(fd)?),
            Operation::Discard { offset, length } => {
                let discard = || rustix::fs::fallocate(fd, self.access.discard.flags(), *offset, *length);
                return Ok(retry(|| discard().map(|()| 0)).map(drop)?);
            }
        };
        whole(moved, wanted)
    }
}

/// Runs a system call again for as long as a signal interrupts it before it did anything.
fn retry(mut call: impl FnMut() -> rustix::io::Result<usize>) -> rustix::io::Result<usize> {
    loop {
        match call() {
            Err(rustix::io::Errno::INTR) => {}
            other => return other,
        }
    }
}

/// Returns an error for a short transfer.
fn whole(result: rustix::io::Result<usize>, length: u64) -> io::Result<()> {
    let moved = result? as u64;
    if moved == length { Ok(()) } else { Err(short(moved, length)) }
}

pub(crate) fn short(moved: u64, length: u64) -> io::Error {
    io::Error::other(format!(
        "short transfer: {moved} of {length} bytes; the area's file was cut short, or its file system is full"
    ))
}

impl DiskQueue for BlockingQueue {
    fn capacity(&self) -> u64 {
        self.capacity
    }

    fn block_size(&self) -> usize {
        self.access.block_size
    }

    fn physical_block_size(&self) -> usize {
        self.access.physical
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
        if !operation.is_within(self.capacity, self.access.block_size) {
            return Err(SubmitError::OutOfRange(operation));
        }
        if self.in_flight() >= self.depth() {
            return Err(SubmitError::Full(operation));
        }
        self.queued.push_back((token, operation));
        Ok(())
    }

    fn notify(&mut self) -> io::Result<()> {
        while let Some((token, mut operation)) = self.queued.pop_front() {
            let result = self.execute(&mut operation);
            self.done.push_back(Completion::of(token, operation, result));
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
