//! The queue-pair seam between an engine and a device.
//!
//! 1. Buffers move by value: a [`Frame`] is the *ownership* of one buffer of the queue's pool. It
//!    is not `Clone`; it is returned with [`NicQueue::release`] or [`NicQueue::transmit`].
//! 2. Receive: [`NicQueue::receive`] takes what has arrived, up to a bound. It never waits and
//!    never makes a system call that could block.
//! 3. Transmit: [`NicQueue::allocate`] a frame of the length that it is to have, fill
//!    [`NicQueue::bytes_mut`], [`NicQueue::transmit`] it. Nothing reaches the device before
//!    [`NicQueue::flush`]: one doorbell a batch.
//! 4. A received frame has a *head*, in memory that no other process writes ([`NicQueue::bytes`]).
//!    It is all of a small frame, at least the first [`LEAST_HEAD`] bytes of a large one. What is
//!    missing is its *tail* ([`NicQueue::tail`]). That is in memory that the sender may still
//!    write, so it is copied out once and never read in place. Only queues over shared memory have
//!    tails.
//! 5. A received frame may be changed in its head, shortened ([`Frame::truncate`]) and transmitted
//!    again.
//! 6. A frame that is dropped without being returned leaks one buffer of the pool and nothing else.
//!    Engines must not do it, and [`NicQueue::free_buffers`] lets a test see it.
//!
//! It must never allocate, log or read a clock per frame, nor give the same buffer out twice.

use std::io;

use sietch_ring::Untrusted;

/// Bytes of an Ethernet header: destination, source, type.
pub const ETHERNET_HEADER: usize = 14;

/// Bytes in the head of a received frame, at least, unless the frame itself is shorter. All headers
/// that an engine reads fit: Ethernet 14, IPv6 40 or IPv4 60, TCP 60, and as much again for what
/// may come between.
pub const LEAST_HEAD: usize = 256;

/// What the medium makes unnecessary.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offloads {
    /// The medium is memory: what arrives is what was sent. Checksums of TCP and UDP need be
    /// neither filled in (they are zero) nor verified, as on Linux' loopback. Those of IPv4 headers
    /// and of ICMP are filled in as everywhere.
    pub checksums: bool,
    /// The other end is a kernel of this machine that may leave the checksums of TCP and UDP
    /// unfinished, counting on a receiver that knows (`CHECKSUM_PARTIAL`). In place of the checksum
    /// there is the sum of the pseudo-header, not inverted. A packet with that in it has not been
    /// on any wire since it was made or verified. All others carry true checksums, and sent packets
    /// must too.
    pub unfinished: bool,
}

/// Ownership of one buffer of a queue's pool, and where in it the bytes of a frame are.
///
/// All lengths are in bytes. A received frame starts at its Ethernet header and has no frame check
/// sequence.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a frame owns a buffer: release or transmit it"]
pub struct Frame {
    /// Index of the buffer in the pool.
    pub(crate) chunk: u32,
    /// Bytes between the start of the buffer and the first byte of the frame.
    pub(crate) offset: u32,
    /// Bytes in the frame.
    pub(crate) length: u32,
    /// How many of them are in the buffer; the rest are the tail.
    pub(crate) head: u32,
}

impl Frame {
    /// A frame over buffer `chunk`, without a tail. For implementations of [`NicQueue`] alone:
    /// the caller asserts that the buffer has no other owner.
    pub const fn from_parts(chunk: u32, offset: u32, length: u32) -> Self {
        Self { chunk, offset, length, head: length }
    }

    /// The same frame, of which only the first `head` bytes are in the buffer. For implementations
    /// of [`NicQueue`].
    pub(crate) const fn with_head(self, head: u32) -> Self {
        let head = if head < self.length { head } else { self.length };
        Self { chunk: self.chunk, offset: self.offset, length: self.length, head }
    }

    /// `(chunk, offset, length)`. For implementations of [`NicQueue`].
    pub const fn parts(&self) -> (u32, u32, u32) {
        (self.chunk, self.offset, self.length)
    }

    /// Bytes in the frame.
    pub const fn len(&self) -> usize {
        self.length as usize
    }

    /// Whether the frame has no bytes.
    pub const fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Bytes in the head: all of them unless the frame has a tail.
    pub const fn head_len(&self) -> usize {
        self.head as usize
    }

    /// Bytes in the tail.
    pub const fn tail_len(&self) -> usize {
        (self.length - self.head) as usize
    }

    /// Drops the bytes from `length` on. Does nothing if the frame is not longer.
    pub const fn truncate(&mut self, length: usize) {
        if length < self.length as usize {
            // Below a u32.
            self.length = length as u32;
            if self.head > self.length {
                self.head = self.length;
            }
        }
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

    /// The largest IP packet, in bytes, that a frame of this queue carries (without the Ethernet
    /// header).
    fn mtu(&self) -> usize;

    /// Appends at most `limit` arrived frames to `out`, oldest first, and returns how many. Also
    /// takes back the buffers of frames whose transmission has completed.
    fn receive(&mut self, out: &mut Vec<Frame>, limit: usize) -> usize;

    /// The head of a frame: all its bytes, unless it has a tail.
    fn bytes(&self, frame: &Frame) -> &[u8];

    /// What the head lacks: [`Frame::tail_len`] bytes.
    fn tail(&self, frame: &Frame) -> Untrusted<'_> {
        debug_assert!(frame.tail_len() == 0, "a queue whose frames have tails says where they are");
        Untrusted::EMPTY
    }

    /// The head of a frame, to be written. In an allocated frame that is the whole; what is in it
    /// is unspecified, so the caller writes every byte.
    ///
    /// # Panics
    /// If the frame did not come from this queue.
    fn bytes_mut(&mut self, frame: &mut Frame) -> &mut [u8];

    /// A frame of exactly `length` bytes to fill, or `None` while the pool is exhausted.
    ///
    /// # Panics
    /// If `length` exceeds `mtu() + 14`.
    fn allocate(&mut self, length: usize) -> Option<Frame>;

    /// What the medium makes unnecessary.
    fn offloads(&self) -> Offloads {
        Offloads::default()
    }

    /// Returns a frame to the pool.
    fn release(&mut self, frame: Frame);

    /// Queues a frame for sending. It leaves at the next [`NicQueue::flush`].
    ///
    /// # Errors
    /// [`TransmitError::RingFull`] returns the frame.
    fn transmit(&mut self, frame: Frame) -> Result<(), TransmitError>;

    /// Passes everything queued to the device and notifies it at most once. Does nothing when
    /// nothing is queued.
    ///
    /// # Errors
    /// The device is unusable (revoked, interface deleted). A full device is no error: frames stay
    /// queued.
    fn flush(&mut self) -> io::Result<()>;

    /// Buffers that neither the device nor a frame owns. For tests and metrics.
    fn free_buffers(&self) -> usize;

    /// Whether the last [`NicQueue::flush`] left frames that only another flush sends: no doorbell
    /// announces them.
    fn must_flush_again(&self) -> bool {
        false
    }
}
