//! A simulated disk that can break its most important promise.

use std::io;
use std::time::Duration;

use sietch_disk::{Completion, DiskQueue, Operation, Priority, SubmitError};
use sietch_sim::SimDisk;

/// A [`SimDisk`]. If it is weak, durable writes are volatile: the tests must notice.
pub(crate) struct Disk {
    inner: SimDisk,
    weak: bool,
}

impl Disk {
    pub(crate) fn new(inner: SimDisk, weak: bool) -> Self {
        Self { inner, weak }
    }
}

impl DiskQueue for Disk {
    fn capacity(&self) -> u64 {
        self.inner.capacity()
    }

    fn block_size(&self) -> usize {
        self.inner.block_size()
    }

    fn physical_block_size(&self) -> usize {
        self.inner.physical_block_size()
    }

    fn depth(&self) -> usize {
        self.inner.depth()
    }

    fn submit_with(
        &mut self,
        token: u64,
        mut operation: Operation,
        priority: Priority,
    ) -> Result<(), SubmitError> {
        if let Operation::Write { durable, .. } | Operation::WriteVectored { durable, .. } = &mut operation {
            *durable &= !self.weak;
        }
        self.inner.submit_with(token, operation, priority)
    }

    fn notify(&mut self) -> io::Result<()> {
        self.inner.notify()
    }

    fn complete(&mut self, out: &mut Vec<Completion>) -> usize {
        self.inner.complete(out)
    }

    fn wait(&mut self, timeout: Duration) -> io::Result<()> {
        self.inner.wait(timeout)
    }

    fn in_flight(&self) -> usize {
        self.inner.in_flight()
    }
}
