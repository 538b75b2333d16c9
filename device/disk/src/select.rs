//! Choosing how an area's file is driven.
//!
//! 1. Sealed memory, and a file with direct access (DAX), are driven by loads and stores
//!    ([`NvmQueue`]).
//! 2. Any other file is driven by io_uring ([`UringQueue`]).
//! 3. Where io_uring is refused, or the caller waits for each request anyway, blocking calls serve
//!    it ([`BlockingQueue`]), and the description says why.
//!
//! [`AreaQueue`] is an enum, so the data path has no virtual call.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::fs::{AtFlags, StatxAttributes, StatxFlags};

use crate::broker::BrokerQueue;
use crate::nvm::{Mapped, Model, is_sealed_memory};
use crate::uring::{Mode, UringOptions};
use crate::{
    BlockingQueue, Completion, DiskQueue, Feature, MemoryQueue, NvmQueue, OpenError, Operation, Priority,
    SubmitError, UringQueue,
};

/// Any of the queues, chosen at run time and dispatched by a match: no virtual call on the data
/// path.
pub enum AreaQueue {
    /// io_uring. Boxed: it is three times as large as the others.
    Uring(Box<UringQueue>),
    /// `pwritev2(2)`, and why not io_uring.
    Blocking(BlockingQueue, String),
    /// Persistent memory, or sealed memory that stands in for it.
    Nvm(NvmQueue),
    /// Shared memory to a service core. Boxed, as above.
    Broker(Box<BrokerQueue>),
    /// DRAM.
    Memory(MemoryQueue),
}

/// A queue over the first `capacity` bytes of `fd`. It uses loads and stores where that is sealed
/// memory or a file with direct access. Else it uses io_uring, or blocking calls where that is
/// refused. [`AreaQueue::description`] says which and why.
///
/// # Errors
/// See [`OpenError`]; never [`OpenError::Unavailable`].
pub fn open_area(fd: OwnedFd, capacity: u64) -> Result<AreaQueue, OpenError> {
    if is_memory(&fd) {
        return open_without_ring(fd, capacity);
    }
    let spare = fd
        .try_clone()
        .map_err(|source| OpenError::Io { action: "duplicate the area's descriptor", source })?;
    match UringQueue::open(fd, capacity, UringOptions::default()) {
        Ok(queue) => Ok(AreaQueue::Uring(Box::new(queue))),
        Err(OpenError::Unavailable { cause }) => {
            Ok(AreaQueue::Blocking(BlockingQueue::open(spare, capacity)?, cause))
        }
        Err(other) => Err(other),
    }
}

/// As [`open_area`], without io_uring: with one descriptor, `fd`, and no memory that a child of
/// fork would share. It is also the faster one for a thread that makes one durable write at a time
/// and sleeps until that is done. A device without FUA is flushed after the write. Through
/// io_uring, a worker of the kernel does that, and on a busy machine it waits for its turn: durable
/// writes of 8 KiB beside two compilers took 4 ms, and blocking calls 0.2 ms.
///
/// # Errors
/// See [`open_area`].
pub fn open_without_ring(fd: OwnedFd, capacity: u64) -> Result<AreaQueue, OpenError> {
    if is_sealed_memory(&fd) {
        return open_memory(fd, capacity, None);
    }
    if is_dax(&fd) {
        return Ok(AreaQueue::Nvm(NvmQueue::over(Mapped::dax(fd, capacity)?, None)));
    }
    Ok(AreaQueue::Blocking(BlockingQueue::open(fd, capacity)?, "not asked for".to_owned()))
}

fn is_memory(fd: &OwnedFd) -> bool {
    is_sealed_memory(fd) || is_dax(fd)
}

/// A queue over the first `capacity` bytes of sealed memory, as slow as `model` says.
///
/// # Errors
/// See [`OpenError`].
pub fn open_memory(fd: OwnedFd, capacity: u64, model: Option<Model>) -> Result<AreaQueue, OpenError> {
    Ok(AreaQueue::Nvm(NvmQueue::over(Mapped::memory(fd, capacity)?, model)))
}

/// A queue over what the control plane grants: one descriptor, or several parts of sealed memory,
/// so many bytes of each. `model` is how slow memory makes itself; files have none.
///
/// # Errors
/// See [`OpenError`]; [`OpenError::Unsealed`] if one of several is no sealed memory.
pub fn open_parts(mut parts: Vec<(OwnedFd, u64)>, model: Option<Model>) -> Result<AreaQueue, OpenError> {
    match (parts.pop(), parts.is_empty()) {
        (Some((fd, capacity)), true) if !is_sealed_memory(&fd) => open_area(fd, capacity),
        (last, _) => {
            parts.extend(last);
            Ok(AreaQueue::Nvm(NvmQueue::over(Mapped::parts(&parts)?, model)))
        }
    }
}

/// Whether the file's bytes are memory (`STATX_ATTR_DAX`, Linux 5.8).
fn is_dax(fd: impl AsFd) -> bool {
    rustix::fs::statx(fd, c"", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS)
        .is_ok_and(|statx| statx.stx_attributes.contains(StatxAttributes::DAX))
}

impl AreaQueue {
    /// How requests reach the device, for people.
    pub fn description(&self) -> String {
        match self {
            Self::Uring(queue) => queue.description(),
            Self::Blocking(queue, why) => {
                format!("{} (without io_uring: {why})", queue.description())
            }
            Self::Nvm(queue) => queue.description(),
            Self::Broker(queue) => queue.description().into(),
            Self::Memory(_) => "memory: nothing survives this process".into(),
        }
    }

    /// Whether the area is reached through a service core that has ended or taken it away.
    /// Everything fails from then on.
    pub fn is_over(&self) -> bool {
        matches!(self, Self::Broker(queue) if queue.is_over())
    }

    /// What was found out about kernel and device when the queue was opened, and is made use of or
    /// not. Queues in memory and behind a broker have nothing to find out.
    pub fn features(&self) -> Vec<Feature> {
        match self {
            Self::Uring(queue) => queue.features(),
            Self::Blocking(queue, why) => {
                let mut features = vec![Feature::unused("io_uring", why.as_str())];
                features.extend(queue.features());
                features
            }
            Self::Nvm(_) | Self::Broker(_) | Self::Memory(_) => Vec::new(),
        }
    }

    /// What to sleep on until a completion can be taken: readable when there is one. `None` for
    /// queues whose completions are there as soon as [`DiskQueue::notify`] returns, and for
    /// [`Mode::Deferred`].
    pub fn doorbell(&self) -> Option<BorrowedFd<'_>> {
        match self {
            // No thread is woken by it in that mode.
            Self::Uring(queue) if queue.mode() == Mode::Deferred => None,
            Self::Uring(queue) => Some(queue.as_fd()),
            Self::Broker(queue) => Some(queue.as_fd()),
            Self::Blocking(..) | Self::Nvm(_) | Self::Memory(_) => None,
        }
    }
}

macro_rules! dispatch {
    ($self:ident, $queue:ident => $call:expr) => {
        match $self {
            AreaQueue::Uring($queue) => $call,
            AreaQueue::Blocking($queue, _) => $call,
            AreaQueue::Nvm($queue) => $call,
            AreaQueue::Broker($queue) => $call,
            AreaQueue::Memory($queue) => $call,
        }
    };
}

impl DiskQueue for AreaQueue {
    fn capacity(&self) -> u64 {
        dispatch!(self, queue => queue.capacity())
    }

    fn block_size(&self) -> usize {
        dispatch!(self, queue => queue.block_size())
    }

    fn physical_block_size(&self) -> usize {
        dispatch!(self, queue => queue.physical_block_size())
    }

    fn depth(&self) -> usize {
        dispatch!(self, queue => queue.depth())
    }

    fn submit_with(
        &mut self,
        token: u64,
        operation: Operation,
        priority: Priority,
    ) -> Result<(), SubmitError> {
        dispatch!(self, queue => queue.submit_with(token, operation, priority))
    }

    fn notify(&mut self) -> io::Result<()> {
        dispatch!(self, queue => queue.notify())
    }

    fn complete(&mut self, out: &mut Vec<Completion>) -> usize {
        dispatch!(self, queue => queue.complete(out))
    }

    fn wait(&mut self, timeout: Duration) -> io::Result<()> {
        dispatch!(self, queue => queue.wait(timeout))
    }

    fn in_flight(&self) -> usize {
        dispatch!(self, queue => queue.in_flight())
    }

    fn read_now(&mut self, offset: u64, out: &mut [u8]) -> bool {
        dispatch!(self, queue => queue.read_now(offset, out))
    }
}
