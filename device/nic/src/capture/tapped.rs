//! A queue beside which a [`Tap`] can be put.

use std::io;
use std::ops::{Deref, DerefMut};

use rustix::time::{ClockId, clock_gettime};
use sietch_ring::Untrusted;

use super::{Direction, Tap};
use crate::queue::{Frame, NicQueue, Offloads, TransmitError};

/// A queue that copies its frames while a capture runs.
#[derive(Debug)]
pub struct Tapped<Q> {
    queue: Q,
    tap: Option<Box<Tap>>,
}

impl<Q> Tapped<Q> {
    /// `queue`, without a capture.
    pub const fn new(queue: Q) -> Self {
        Self { queue, tap: None }
    }

    /// Where to put the tap, or to take it away.
    pub const fn slot(&mut self) -> &mut Option<Box<Tap>> {
        &mut self.tap
    }
}

impl<Q> Deref for Tapped<Q> {
    type Target = Q;

    fn deref(&self) -> &Q {
        &self.queue
    }
}

impl<Q> DerefMut for Tapped<Q> {
    fn deref_mut(&mut self) -> &mut Q {
        &mut self.queue
    }
}

/// Nanoseconds since 1970.
fn now() -> u64 {
    let time = clock_gettime(ClockId::Realtime);
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0)
}

/// Copies a frame into the ring, head and tail.
#[cold]
fn copy<Q: NicQueue>(tap: &mut Tap, queue: &Q, frame: &Frame, direction: Direction, time: u64) {
    let (head, tail) = (queue.bytes(frame), queue.tail(frame));
    let original = u32::try_from(head.len() + tail.len()).unwrap_or(u32::MAX);
    tap.stage(direction, time, original, |offset| {
        let (start, mut word) = (offset as usize, [0; 4]);
        let from_head = head.get(start..).unwrap_or_default();
        let first = from_head.len().min(4);
        word[..first].copy_from_slice(&from_head[..first]);
        let from = (start + first).saturating_sub(head.len());
        let rest = (4 - first).min(tail.len().saturating_sub(from));
        if rest > 0 {
            tail.copy_to(from, &mut word[first..first + rest]);
        }
        u32::from_ne_bytes(word)
    });
}

impl<Q: NicQueue> NicQueue for Tapped<Q> {
    #[inline]
    fn mac(&self) -> [u8; 6] {
        self.queue.mac()
    }

    #[inline]
    fn mtu(&self) -> usize {
        self.queue.mtu()
    }

    #[inline]
    fn receive(&mut self, out: &mut Vec<Frame>, limit: usize) -> usize {
        let before = out.len();
        let count = self.queue.receive(out, limit);
        if let Some(tap) = &mut self.tap
            && count > 0
        {
            let time = now();
            for frame in out.get(before..).unwrap_or_default() {
                copy(tap, &self.queue, frame, Direction::Received, time);
            }
            tap.publish();
        }
        count
    }

    #[inline]
    fn bytes(&self, frame: &Frame) -> &[u8] {
        self.queue.bytes(frame)
    }

    #[inline]
    fn tail(&self, frame: &Frame) -> Untrusted<'_> {
        self.queue.tail(frame)
    }

    #[inline]
    fn bytes_mut(&mut self, frame: &mut Frame) -> &mut [u8] {
        self.queue.bytes_mut(frame)
    }

    #[inline]
    fn allocate(&mut self, length: usize) -> Option<Frame> {
        self.queue.allocate(length)
    }

    #[inline]
    fn offloads(&self) -> Offloads {
        self.queue.offloads()
    }

    #[inline]
    fn release(&mut self, frame: Frame) {
        self.queue.release(frame);
    }

    #[inline]
    fn transmit(&mut self, frame: Frame) -> Result<(), TransmitError> {
        let Some(tap) = &mut self.tap else { return self.queue.transmit(frame) };
        copy(tap, &self.queue, &frame, Direction::Sent, now());
        let sent = self.queue.transmit(frame);
        // A frame that comes back will be offered again.
        if sent.is_ok() {
            tap.publish();
        } else {
            tap.discard();
        }
        sent
    }

    #[inline]
    fn flush(&mut self) -> io::Result<()> {
        self.queue.flush()
    }

    #[inline]
    fn free_buffers(&self) -> usize {
        self.queue.free_buffers()
    }

    #[inline]
    fn must_flush_again(&self) -> bool {
        self.queue.must_flush_again()
    }
}
