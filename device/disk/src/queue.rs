//! The queue-pair seam between a persistent structure and a device.
//!
//! 1. Requests carry their buffer by value and bring it back in the [`Completion`]: while the device may
//!    touch it, nobody else can.
//! 2. [`DiskQueue::submit`] queues; [`DiskQueue::ring`] hands everything queued to the device with at most one
//!    system call; [`DiskQueue::complete`] takes what has finished without waiting. Completions come in any order.
//! 3. A write with `durable: true` completes after the data would survive power loss (FUA, or write and
//!    cache flush: `RWF_DSYNC`). A write without it promises nothing until a later [`Operation::Flush`], submitted after
//!    that write *completed*, has completed.
//! 4. Offsets and lengths are multiples of [`DiskQueue::block_size`] and lie inside [`DiskQueue::capacity`]. Anything
//!    else is refused at submission: a request for what is outside the area never reaches the device.
//! 5. An error is an error for good: the queue never retries on its own. What a failed or torn write left
//!    behind is undefined within its range.

use std::io;
use std::time::Duration;

/// Alignment of buffers, in bytes: enough for O_DIRECT on every device in use.
pub const BLOCK: usize = 4096;

/// A heap buffer aligned to [`BLOCK`], zeroed when made. Its length is a multiple of [`BLOCK`].
pub struct Buffer {
    blocks: Box<[AlignedBlock]>,
}

#[derive(Clone)]
#[repr(C, align(4096))]
struct AlignedBlock([u8; BLOCK]);

impl Buffer {
    /// A zeroed buffer of at least `length` bytes, rounded up to whole blocks.
    pub fn new(length: usize) -> Self {
        Self { blocks: vec![AlignedBlock([0; BLOCK]); length.div_ceil(BLOCK)].into_boxed_slice() }
    }

    /// Bytes in the buffer.
    pub fn len(&self) -> usize {
        self.blocks.len() * BLOCK
    }

    /// Whether the buffer has no bytes.
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }
}

impl std::ops::Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the blocks are contiguous, initialised bytes without padding (`repr(C)`, size equal to
        // alignment), and the borrow of `self` keeps them alive and unaliased by writers.
        unsafe { std::slice::from_raw_parts(self.blocks.as_ptr().cast::<u8>(), self.len()) }
    }
}

impl std::ops::DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        let length = self.len();
        // SAFETY: as in `deref`; the exclusive borrow of `self` rules out any other access.
        unsafe { std::slice::from_raw_parts_mut(self.blocks.as_mut_ptr().cast::<u8>(), length) }
    }
}

impl std::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Buffer").field("len", &self.len()).finish()
    }
}

/// One request.
#[derive(Debug)]
pub enum Operation {
    /// Fills the first `length` bytes of `buffer` from `offset`.
    Read {
        /// First byte in the area.
        offset: u64,
        /// Bytes to read; at most the buffer's.
        length: usize,
        /// Where they go.
        buffer: Buffer,
    },
    /// Writes the first `length` bytes of `buffer` at `offset`.
    Write {
        /// First byte in the area.
        offset: u64,
        /// Bytes to write; at most the buffer's.
        length: usize,
        /// Where they come from.
        buffer: Buffer,
        /// Complete only once the bytes survive power loss.
        durable: bool,
    },
    /// Makes every write that had completed before this was submitted survive power loss.
    Flush,
}

impl Operation {
    /// Whether the request lies inside an area of `capacity` bytes, is aligned to `block_size`, is not empty and
    /// fits its buffer. Every queue refuses anything else before it reaches the device.
    pub fn is_within(&self, capacity: u64, block_size: usize) -> bool {
        let (offset, length, buffer) = match self {
            Self::Read { offset, length, buffer } | Self::Write { offset, length, buffer, .. } => {
                (*offset, *length, buffer)
            }
            Self::Flush => return true,
        };
        length > 0
            && length <= MAX_REQUEST
            && length <= buffer.len()
            && length.is_multiple_of(block_size)
            && offset.is_multiple_of(block_size as u64)
            && offset.checked_add(length as u64).is_some_and(|end| end <= capacity)
    }
}

/// Longest request, in bytes: Linux cuts a longer one short (`MAX_RW_COUNT` is 2 GiB less one page), and a
/// power of two keeps it block aligned.
pub const MAX_REQUEST: usize = 1 << 30;

/// A finished request.
#[derive(Debug)]
pub struct Completion {
    /// What the submitter gave.
    pub token: u64,
    /// `Ok` means all of it: a short read or write is an error.
    pub result: io::Result<()>,
    /// The request's buffer, if it had one.
    pub buffer: Option<Buffer>,
}

/// Why a request was not taken. The operation comes back whole.
#[derive(Debug)]
pub enum SubmitError {
    /// The queue holds as many requests as it can; take completions and retry.
    Full(Operation),
    /// Outside the area, or not aligned to the block size.
    OutOfRange(Operation),
}

/// One queue pair over one area. One thread owns it.
pub trait DiskQueue {
    /// Bytes in the area.
    fn capacity(&self) -> u64;

    /// The alignment of requests, in bytes: 512 or 4096, which a disk does not tear, or 64 for memory, which may tear at any word.
    fn block_size(&self) -> usize;

    /// Requests that may be in flight together.
    fn depth(&self) -> usize;

    /// Queues `operation`; `token` comes back in its completion.
    ///
    /// # Errors
    /// See [`SubmitError`].
    fn submit(&mut self, token: u64, operation: Operation) -> Result<(), SubmitError>;

    /// Hands everything queued to the device.
    ///
    /// # Errors
    /// The queue itself is broken (not one request: those fail in their completions).
    fn ring(&mut self) -> io::Result<()>;

    /// Appends what has finished to `out` and returns how many; never waits.
    fn complete(&mut self, out: &mut Vec<Completion>) -> usize;

    /// Rings, then waits until at least one completion can be taken, nothing is in flight, or `timeout` has passed. For
    /// start-up and shutdown; the data path sleeps on the doorbell instead.
    ///
    /// # Errors
    /// As [`DiskQueue::ring`].
    fn wait(&mut self, timeout: Duration) -> io::Result<()>;

    /// Requests submitted whose completion has not been taken.
    fn in_flight(&self) -> usize;
}
