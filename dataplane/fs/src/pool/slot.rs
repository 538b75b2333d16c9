//! The queue of a slot: that of its medium, or none.

use std::io;
use std::time::Duration;

use sietch_disk::{BLOCK, Completion, DiskQueue, Operation, Priority, SubmitError};

/// See the module's account.
pub(super) enum Slot<D> {
    Filled(D),
    /// It has no block, and refuses every request.
    Empty,
}

impl<D> Slot<D> {
    pub(super) fn into_disk(self) -> Option<D> {
        match self {
            Self::Filled(disk) => Some(disk),
            Self::Empty => None,
        }
    }
}

impl<D: DiskQueue> DiskQueue for Slot<D> {
    fn capacity(&self) -> u64 {
        match self {
            Self::Filled(disk) => disk.capacity(),
            Self::Empty => 0,
        }
    }

    fn block_size(&self) -> usize {
        match self {
            Self::Filled(disk) => disk.block_size(),
            Self::Empty => BLOCK,
        }
    }

    fn physical_block_size(&self) -> usize {
        match self {
            Self::Filled(disk) => disk.physical_block_size(),
            Self::Empty => BLOCK,
        }
    }

    fn depth(&self) -> usize {
        match self {
            Self::Filled(disk) => disk.depth(),
            Self::Empty => 0,
        }
    }

    fn submit_with(&mut self, token: u64, operation: Operation, by: Priority) -> Result<(), SubmitError> {
        match self {
            Self::Filled(disk) => disk.submit_with(token, operation, by),
            Self::Empty => Err(SubmitError::OutOfRange(operation)),
        }
    }

    fn notify(&mut self) -> io::Result<()> {
        match self {
            Self::Filled(disk) => disk.notify(),
            Self::Empty => Ok(()),
        }
    }

    fn complete(&mut self, out: &mut Vec<Completion>) -> usize {
        match self {
            Self::Filled(disk) => disk.complete(out),
            Self::Empty => 0,
        }
    }

    fn wait(&mut self, timeout: Duration) -> io::Result<()> {
        match self {
            Self::Filled(disk) => disk.wait(timeout),
            Self::Empty => Ok(()),
        }
    }

    fn in_flight(&self) -> usize {
        match self {
            Self::Filled(disk) => disk.in_flight(),
            Self::Empty => 0,
        }
    }

    fn read_now(&mut self, offset: u64, out: &mut [u8]) -> bool {
        match self {
            Self::Filled(disk) => disk.read_now(offset, out),
            Self::Empty => false,
        }
    }
}
