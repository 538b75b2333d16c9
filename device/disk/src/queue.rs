//! The queue-pair seam between a persistent structure and a device (docs/spec/vsic.md).
//!
//! 1. Requests carry their buffers by value and bring them back in the [`Completion`]: while the
//!    device may use them, nothing else can.
//! 2. [`DiskQueue::submit`] queues; [`DiskQueue::notify`] passes everything queued to the device
//!    with at most one system call; [`DiskQueue::complete`] takes what has finished without
//!    waiting. Completions come in any order.
//! 3. A write with `durable: true` completes after the data would survive power loss (FUA, or write
//!    and cache flush: `RWF_DSYNC`). A write without it, and a discard, promise nothing until a
//!    later [`Operation::Flush`], submitted after they *completed*, has completed.
//! 4. Offsets and lengths are multiples of [`DiskQueue::block_size`] and are inside
//!    [`DiskQueue::capacity`]. Anything else is refused at submission: a request for what is
//!    outside the area never reaches the device.
//! 5. A vectored request moves one contiguous range of the area to or from several buffers, in
//!    their order. It is one request: one slot, one token, one completion.
//! 6. A discarded range reads as zeros until it is written again, and its blocks may be returned.
//! 7. Each request has a [`Priority`]. It never changes what a request does, only which of two
//!    waiting ones goes first, where something below can distinguish them.
//! 8. An error is an error for good: the queue never retries on its own. What a failed or torn
//!    write or discard left behind is undefined within its range, and nowhere else. After a write
//!    that power loss interrupts it is undefined within the pieces of
//!    [`DiskQueue::physical_block_size`] that it touches.

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
        // SAFETY: the blocks are contiguous, initialised bytes without padding (`repr(C)`, size
        // equal to alignment), and the borrow of `self` keeps them alive and unaliased by writers.
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

/// One of the buffers of a vectored request.
#[derive(Debug)]
pub struct Part {
    /// The bytes come from here, or go here.
    pub buffer: Buffer,
    /// How many of its first bytes: a multiple of the queue's block size, not zero.
    pub length: usize,
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
    /// Makes every write and discard that had completed before this was submitted survive power
    /// loss.
    Flush,
    /// Fills the parts, one after another, from the contiguous range that begins at `offset`.
    ReadVectored {
        /// First byte in the area.
        offset: u64,
        /// Where they go: 1 to [`MAX_PARTS`].
        parts: Vec<Part>,
    },
    /// Writes the parts, one after another, to the contiguous range that begins at `offset`.
    WriteVectored {
        /// First byte in the area.
        offset: u64,
        /// Where they come from: 1 to [`MAX_PARTS`].
        parts: Vec<Part>,
        /// Complete only once the bytes of all parts survive power loss.
        durable: bool,
    },
    /// Makes the range read as zeros, from completion until something is written there, and gives
    /// its blocks back where the medium can. A later write there may have to find new blocks, and
    /// then fail for lack of space. Until a flush, a power loss leaves each block as it was or
    /// zeroed. Where the medium cannot do it the request fails with [`io::ErrorKind::Unsupported`],
    /// and nothing has changed.
    Discard {
        /// First byte in the area.
        offset: u64,
        /// Bytes; not limited by [`MAX_REQUEST`].
        length: u64,
    },
}

// Requests are moved into queues and slots: the rare ones must not make the common ones larger.
const _: () = assert!(size_of::<Operation>() == 40);

impl Operation {
    /// Whether the request is inside an area of `capacity` bytes, is aligned to `block_size`, is
    /// not empty and fits its buffers. Every queue refuses anything else before it reaches the
    /// device.
    pub fn is_within(&self, capacity: u64, block_size: usize) -> bool {
        let (offset, length) = match self {
            Self::Read { offset, length, buffer } | Self::Write { offset, length, buffer, .. } => {
                if *length > MAX_REQUEST || *length > buffer.len() {
                    return false;
                }
                (*offset, *length as u64)
            }
            Self::Flush => return true,
            Self::ReadVectored { offset, parts } | Self::WriteVectored { offset, parts, .. } => {
                let Some(length) = vector_length(parts, block_size) else { return false };
                (*offset, length as u64)
            }
            Self::Discard { offset, length } => (*offset, *length),
        };
        length > 0
            && length.is_multiple_of(block_size as u64)
            && offset.is_multiple_of(block_size as u64)
            && offset.checked_add(length).is_some_and(|end| end <= capacity)
    }

    /// First byte in the area; 0 for a flush.
    pub fn offset(&self) -> u64 {
        match self {
            Self::Read { offset, .. }
            | Self::Write { offset, .. }
            | Self::ReadVectored { offset, .. }
            | Self::WriteVectored { offset, .. }
            | Self::Discard { offset, .. } => *offset,
            Self::Flush => 0,
        }
    }

    /// Bytes of the area that the request names; 0 for a flush. Right for requests that
    /// [`Operation::is_within`] holds for.
    pub fn bytes(&self) -> u64 {
        match self {
            Self::Read { length, .. } | Self::Write { length, .. } => *length as u64,
            Self::ReadVectored { parts, .. } | Self::WriteVectored { parts, .. } => {
                parts.iter().fold(0, |sum, part| sum.saturating_add(part.length as u64))
            }
            Self::Discard { length, .. } => *length,
            Self::Flush => 0,
        }
    }

    /// Whether it may change what the area holds.
    pub fn changes(&self) -> bool {
        matches!(self, Self::Write { .. } | Self::WriteVectored { .. } | Self::Discard { .. })
    }

    /// Gives the request's buffers back: that of a plain one, or the parts of a vectored one.
    pub fn into_buffers(self) -> (Option<Buffer>, Vec<Part>) {
        match self {
            Self::Read { buffer, .. } | Self::Write { buffer, .. } => (Some(buffer), Vec::new()),
            Self::ReadVectored { parts, .. } | Self::WriteVectored { parts, .. } => (None, parts),
            Self::Flush | Self::Discard { .. } => (None, Vec::new()),
        }
    }
}

/// Bytes of all parts, if there are some but not too many and each is whole blocks and fits its
/// buffer.
fn vector_length(parts: &[Part], block_size: usize) -> Option<usize> {
    if parts.is_empty() || parts.len() > MAX_PARTS {
        return None;
    }
    let mut total = 0usize;
    for Part { buffer, length } in parts {
        if *length == 0 || *length > buffer.len() || !length.is_multiple_of(block_size) {
            return None;
        }
        total = total.checked_add(*length).filter(|total| *total <= MAX_REQUEST)?;
    }
    Some(total)
}

/// Longest read or write, in bytes, all parts together. Linux cuts a longer one short
/// (`MAX_RW_COUNT` is 2 GiB less one page), and a power of two keeps it block aligned.
pub const MAX_REQUEST: usize = 1 << 30;

/// Most buffers of a vectored request: the kernel takes no more (`UIO_MAXIOV`).
pub const MAX_PARTS: usize = 1024;

/// What a request is for. A queue pair over a device that can distinguish requests serves them by
/// it; others ignore it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Priority {
    /// A client waits for this very request: a commit, a read. Served first.
    #[default]
    Latency = 0,
    /// A client waits for the sum of many: recovery, a scan. Served after [`Priority::Latency`],
    /// without being starved by it.
    Throughput = 1,
    /// Nothing waits for it: compaction, zeroing, copies. Served when there is nothing else, or
    /// when it has waited long.
    Bulk = 2,
}

/// A finished request.
#[derive(Debug)]
pub struct Completion {
    /// What the submitter gave.
    pub token: u64,
    /// `Ok` means all of it: a short read or write is an error.
    pub result: io::Result<()>,
    /// The request's buffer, if it was a plain read or write.
    pub buffer: Option<Buffer>,
    /// The request's buffers, if it was a vectored one; none (and no memory) for others.
    pub parts: Vec<Part>,
}

impl Completion {
    /// The end of `operation`, whose buffers go back to its submitter.
    pub fn of(token: u64, operation: Operation, result: io::Result<()>) -> Self {
        let (buffer, parts) = operation.into_buffers();
        Self { token, result, buffer, parts }
    }
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

    /// The alignment of requests, in bytes: 512 or 4096, which a disk does not tear, or 64 for
    /// memory, which may tear at any word.
    fn block_size(&self) -> usize;

    /// Bytes that the medium writes in one piece, as far as is known; [`BLOCK`] where it is not. A
    /// power loss during a write may destroy the rest of the pieces that it touches. For example, a
    /// disk of 4096-byte sectors that takes requests of 512 reads a sector, changes it and writes
    /// it back. Acknowledged bytes must not share a piece with bytes that are written later.
    fn physical_block_size(&self) -> usize {
        self.block_size().max(BLOCK)
    }

    /// Requests that may be in flight together.
    fn depth(&self) -> usize;

    /// Queues `operation`, for which a client waits ([`Priority::Latency`]); `token` comes back in
    /// its completion.
    ///
    /// # Errors
    /// See [`SubmitError`].
    #[inline]
    fn submit(&mut self, token: u64, operation: Operation) -> Result<(), SubmitError> {
        self.submit_with(token, operation, Priority::Latency)
    }

    /// Queues `operation`, to be served by its `priority`; `token` comes back in its completion.
    ///
    /// # Errors
    /// See [`SubmitError`].
    fn submit_with(
        &mut self,
        token: u64,
        operation: Operation,
        priority: Priority,
    ) -> Result<(), SubmitError>;

    /// Submits everything queued to the device.
    ///
    /// # Errors
    /// The queue itself is broken (not one request: those fail in their completions).
    fn notify(&mut self) -> io::Result<()>;

    /// Appends what has finished to `out` and returns how many; never waits.
    fn complete(&mut self, out: &mut Vec<Completion>) -> usize;

    /// Notifies the device, then waits until at least one completion can be taken, nothing is in
    /// flight, or `timeout` has passed. For start-up and shutdown; the data path sleeps on the
    /// doorbell instead.
    ///
    /// # Errors
    /// As [`DiskQueue::notify`].
    fn wait(&mut self, timeout: Duration) -> io::Result<()>;

    /// Requests submitted whose completion has not been taken.
    fn in_flight(&self) -> usize;

    /// Copies what is at `offset` into `out` at once, without a request. It does so only where the
    /// device is memory that needs no time, and nothing is queued. Returns whether it did.
    fn read_now(&mut self, offset: u64, out: &mut [u8]) -> bool {
        let _ = (offset, out);
        false
    }
}
