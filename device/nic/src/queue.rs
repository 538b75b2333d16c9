//! The queue-pair seam between an engine and a device.
//!
//! 1. Buffers move, they are not borrowed: a [`Frame`] is the *ownership* of one buffer of the queue's
//!    pool. It is not `Clone`; it is given back with [`NicQueue::release`] or [`NicQueue::transmit`].
//! 2. Receive: [`NicQueue::receive`] takes what has arrived, up to a bound. It never waits and never makes
//!    a system call that could block.
//! 3. Transmit: [`NicQueue::allocate`] a frame, fill [`NicQueue::bytes_mut`], [`NicQueue::transmit`] it. Nothing
//!    reaches the device before [`NicQueue::flush`]: one doorbell a batch.
//! 4. A frame that is dropped without being given back leaks one buffer of the pool and nothing else;
//!    engines must not do it, and [`NicQueue::free_buffers`] lets a test see it.
//!
//! What it must never do: allocate, log or read a clock per frame; hand the same buffer out twice.

use std::io;

/// Bytes of an Ethernet header: destination, source, type.
pub const ETHERNET_HEADER: usize = 14;

/// Ownership of one buffer of a queue's pool, and where in it the bytes of a frame lie.
///
/// All lengths are in bytes. A received frame starts at its Ethernet header and has no frame check
/// sequence. An allocated frame has `length` 0.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a frame owns a buffer: release or transmit it"]
pub struct Frame {
    /// Index of the buffer in the pool.
    pub(crate) chunk: u32,
    /// Bytes between the start of the buffer and the first byte of the frame.
    pub(crate) offset: u32,
    /// Bytes in the frame.
    pub(crate) length: u32,
}

impl Frame {
    /// A frame over buffer `chunk`. For implementations of [`NicQueue`] alone: whoever calls it asserts
    /// that nobody else owns that buffer.
    pub const fn from_parts(chunk: u32, offset: u32, length: u32) -> Self {
        Self { chunk, offset, length }
    }

    /// `(chunk, offset, length)`. For implementations of [`NicQueue`].
    pub const fn parts(&self) -> (u32, u32, u32) {
        (self.chunk, self.offset, self.length)
    }

    /// Bytes in the frame.
    pub const fn len(&self) -> usize {
        self.length as usize
    }

    /// Whether the frame has no bytes yet.
    pub const fn is_empty(&self) -> bool {
        self.length == 0
    }
}

/// Why a frame was not queued. The frame comes back: the caller still owns it.
#[derive(Debug)]
pub enum TransmitError {
    /// The submission ring is full; flush, poll again and retry.
    RingFull(Frame),
}

impl TransmitError {
    /// The frame that was not queued.
    pub fn into_frame(self) -> Frame {
        match self {
            Self::RingFull(frame) => frame,
        }
    }
}

/// One queue pair with its buffer pool. One thread owns it.
pub trait NicQueue {
    /// The queue's Ethernet address.
    fn mac(&self) -> [u8; 6];

    /// The largest IP packet, in bytes, that a frame of this queue carries (without the Ethernet header).
    fn mtu(&self) -> usize;

    /// Appends at most `limit` arrived frames to `out`, oldest first, and returns how many. Also takes
    /// back the buffers of frames whose transmission has completed.
    fn receive(&mut self, out: &mut Vec<Frame>, limit: usize) -> usize;

    /// The bytes of a frame.
    fn bytes(&self, frame: &Frame) -> &[u8];

    /// Sets the frame's length to `length` and returns its bytes to be written. What was beyond the
    /// former length is unspecified, so the caller writes every byte.
    ///
    /// # Panics
    /// If `length` exceeds `mtu() + 14`, or the frame did not come from this queue.
    fn bytes_mut(&mut self, frame: &mut Frame, length: usize) -> &mut [u8];

    /// An empty frame to fill, or `None` while the pool is exhausted.
    fn allocate(&mut self) -> Option<Frame>;

    /// Gives a frame back to the pool.
    fn release(&mut self, frame: Frame);

    /// Queues a frame for sending. It leaves at the next [`NicQueue::flush`].
    ///
    /// # Errors
    /// [`TransmitError::RingFull`] hands the frame back.
    fn transmit(&mut self, frame: Frame) -> Result<(), TransmitError>;

    /// Hands everything queued to the device and rings its doorbell at most once. Does nothing when nothing
    /// is queued.
    ///
    /// # Errors
    /// The device is gone (revoked, interface deleted). A full device is no error: frames stay queued.
    fn flush(&mut self) -> io::Result<()>;

    /// Buffers that neither the device nor a frame owns. For tests and metrics.
    fn free_buffers(&self) -> usize;

    /// Whether the last [`NicQueue::flush`] left frames that only another one gets moving: no doorbell rings for them.
    fn must_flush_again(&self) -> bool {
        false
    }
}
