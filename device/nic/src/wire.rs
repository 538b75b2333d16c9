//! Queues joined in memory: no kernel, no clock, no threads.
//!
//! 1. A *cable* is a bounded list of frames in flight in one direction. A queue writes one and
//!    reads another.
//! 2. [`pair`] joins two queues back to back: what one flushes the other receives, in order and
//!    without loss.
//! 3. [`tapped`] gives one queue and its [`WireTap`]. The holder of the tap takes each frame that
//!    the queue sent, and decides what the queue receives. A simulator loses, repeats, reorders,
//!    changes and delays there.
//! 4. A cable that holds as many frames as its queue has buffers is a full device: frames stay
//!    queued at the sender until a later flush. [`WireTap::deliver`] drops instead, as a NIC
//!    without buffers does.
//! 5. A wire that [`pair_with`] or [`tapped_with`] makes behaves as other media do. It shows only
//!    the first bytes of a frame in its head, or says that checksums are unnecessary ([`Medium`]).
//! 6. A cut wire ([`WireTap::cut`]) is a revoked device: every flush fails from then on.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::rc::Rc;

use sietch_ring::{BufferPool, Owner, Untrusted};

use crate::queue::{ETHERNET_HEADER, Frame, LEAST_HEAD, NicQueue, Offloads, TransmitError};

#[cfg(test)]
mod tests;

/// What the wire is to be like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Medium {
    /// What the queues say of it.
    pub offloads: Offloads,
    /// Most bytes in the head of a received frame, at least [`LEAST_HEAD`]; the rest is its tail.
    /// `None`: no frame has a tail.
    pub head: Option<usize>,
}

impl Medium {
    /// As shared memory is: checksums are unnecessary, and large frames have a tail.
    pub const SHARED_MEMORY: Self =
        Self { offloads: Offloads { checksums: true, unfinished: false }, head: Some(LEAST_HEAD) };
}

/// Frames in flight in one direction.
#[derive(Debug)]
struct Cable {
    frames: VecDeque<Vec<u8>>,
    /// Emptied storage of frames that arrived, so that a running wire does not allocate.
    spare: Vec<Vec<u8>>,
    capacity: usize,
}

impl Cable {
    fn new(capacity: usize) -> Rc<RefCell<Self>> {
        Rc::new(RefCell::new(Self { frames: VecDeque::new(), spare: Vec::new(), capacity }))
    }

    fn push(&mut self, bytes: &[u8]) -> bool {
        if self.frames.len() >= self.capacity {
            return false;
        }
        let mut frame = self.spare.pop().unwrap_or_default();
        frame.clear();
        frame.extend_from_slice(bytes);
        self.frames.push_back(frame);
        true
    }
}

/// One end of a wire.
#[derive(Debug)]
pub struct WireQueue {
    mac: [u8; 6],
    mtu: usize,
    chunk_size: usize,
    memory: Vec<u8>,
    pool: BufferPool,
    pending: VecDeque<Frame>,
    outbound: Rc<RefCell<Cable>>,
    inbound: Rc<RefCell<Cable>>,
    cut: Rc<Cell<bool>>,
    medium: Medium,
}

/// The far end of a [`WireQueue`], which a test holds.
#[derive(Debug)]
pub struct WireTap {
    from_queue: Rc<RefCell<Cable>>,
    to_queue: Rc<RefCell<Cable>>,
    frame_limit: usize,
    cut: Rc<Cell<bool>>,
}

/// Two queues back to back, each with `buffers` buffers of its own.
pub fn pair(mac_a: [u8; 6], mac_b: [u8; 6], mtu: usize, buffers: u32) -> (WireQueue, WireQueue) {
    pair_with(mac_a, mac_b, mtu, buffers, Medium::default())
}

/// As [`pair`], on a given medium.
pub fn pair_with(
    mac_a: [u8; 6],
    mac_b: [u8; 6],
    mtu: usize,
    buffers: u32,
    medium: Medium,
) -> (WireQueue, WireQueue) {
    let a_to_b = Cable::new(buffers as usize);
    let b_to_a = Cable::new(buffers as usize);
    let cut = Rc::new(Cell::new(false));
    (
        WireQueue::new(mac_a, mtu, buffers, [&a_to_b, &b_to_a], &cut, medium),
        WireQueue::new(mac_b, mtu, buffers, [&b_to_a, &a_to_b], &cut, medium),
    )
}

/// A queue with `buffers` buffers, and the tap at the far end of its wire.
pub fn tapped(mac: [u8; 6], mtu: usize, buffers: u32) -> (WireQueue, WireTap) {
    tapped_with(mac, mtu, buffers, Medium::default())
}

/// As [`tapped`], on a given medium.
pub fn tapped_with(mac: [u8; 6], mtu: usize, buffers: u32, medium: Medium) -> (WireQueue, WireTap) {
    let from_queue = Cable::new(buffers as usize);
    let to_queue = Cable::new(buffers as usize);
    let cut = Rc::new(Cell::new(false));
    let queue = WireQueue::new(mac, mtu, buffers, [&from_queue, &to_queue], &cut, medium);
    (queue, WireTap { from_queue, to_queue, frame_limit: mtu + ETHERNET_HEADER, cut })
}

impl WireTap {
    /// The oldest frame that the queue has flushed and that was not taken yet.
    pub fn take_transmitted(&self) -> Option<Vec<u8>> {
        self.from_queue.borrow_mut().frames.pop_front()
    }

    /// Puts a frame before the queue, which sees it at its next `receive`. Returns false if the
    /// frame was dropped: too long for the queue's buffers, or as many frames already wait there as
    /// the queue has buffers.
    pub fn deliver(&self, bytes: &[u8]) -> bool {
        bytes.len() <= self.frame_limit && self.to_queue.borrow_mut().push(bytes)
    }

    /// Frames that the queue has flushed and that were not taken yet.
    pub fn transmitted(&self) -> usize {
        self.from_queue.borrow().frames.len()
    }

    /// Lets at most `frames` flushed frames wait to be taken: a slow device. Zero stops it.
    pub fn limit_transmitted(&self, frames: usize) {
        self.from_queue.borrow_mut().capacity = frames;
    }

    /// Takes the device away: every flush of the queue fails from now on.
    pub fn cut(&self) {
        self.cut.set(true);
    }
}

impl WireQueue {
    fn new(
        mac: [u8; 6],
        mtu: usize,
        buffers: u32,
        [outbound, inbound]: [&Rc<RefCell<Cable>>; 2],
        cut: &Rc<Cell<bool>>,
        medium: Medium,
    ) -> Self {
        let chunk_size = mtu + ETHERNET_HEADER;
        Self {
            mac,
            mtu,
            chunk_size,
            memory: vec![0; chunk_size * buffers as usize],
            pool: BufferPool::new(buffers),
            pending: VecDeque::with_capacity(buffers as usize),
            outbound: Rc::clone(outbound),
            inbound: Rc::clone(inbound),
            cut: Rc::clone(cut),
            medium,
        }
    }
}

/// Where a frame, tail and all, is in the queue's memory.
fn span(frame: &Frame, chunk_size: usize) -> std::ops::Range<usize> {
    let (chunk, offset, length) = frame.parts();
    let start = chunk as usize * chunk_size + offset as usize;
    start..start + length as usize
}

/// Where its head is.
fn head_span(frame: &Frame, chunk_size: usize) -> std::ops::Range<usize> {
    let span = span(frame, chunk_size);
    span.start..span.start + frame.head_len()
}

impl NicQueue for WireQueue {
    fn mac(&self) -> [u8; 6] {
        self.mac
    }

    fn mtu(&self) -> usize {
        self.mtu
    }

    fn receive(&mut self, out: &mut Vec<Frame>, limit: usize) -> usize {
        let mut cable = self.inbound.borrow_mut();
        let mut taken = 0;
        while taken < limit && !cable.frames.is_empty() {
            let Some(chunk) = self.pool.take(Owner::Engine) else {
                break;
            };
            let Some(arrived) = cable.frames.pop_front() else {
                break;
            };
            // No longer than a buffer: the other end's buffers are of the same size, and a tap
            // checks.
            let frame = Frame::from_parts(chunk, 0, arrived.len() as u32);
            self.memory[span(&frame, self.chunk_size)].copy_from_slice(&arrived);
            cable.spare.push(arrived);
            out.push(match self.medium.head {
                // As above, it fits a u32.
                Some(head) => frame.with_head(head.clamp(LEAST_HEAD, self.chunk_size.max(LEAST_HEAD)) as u32),
                None => frame,
            });
            taken += 1;
        }
        taken
    }

    fn bytes(&self, frame: &Frame) -> &[u8] {
        &self.memory[head_span(frame, self.chunk_size)]
    }

    fn tail(&self, frame: &Frame) -> Untrusted<'_> {
        Untrusted::from_slice(&self.memory[span(frame, self.chunk_size)][frame.head_len()..])
    }

    fn bytes_mut(&mut self, frame: &mut Frame) -> &mut [u8] {
        &mut self.memory[head_span(frame, self.chunk_size)]
    }

    fn allocate(&mut self, length: usize) -> Option<Frame> {
        assert!(
            length <= self.chunk_size,
            "a frame of {length} bytes exceeds the {} of a buffer",
            self.chunk_size
        );
        self.pool.take(Owner::Engine).map(|chunk| Frame::from_parts(chunk, 0, length as u32))
    }

    fn offloads(&self) -> Offloads {
        self.medium.offloads
    }

    fn release(&mut self, frame: Frame) {
        let (chunk, _, _) = frame.parts();
        let freed = self.pool.put(chunk, Owner::Engine);
        debug_assert!(freed, "buffer {chunk} was released but is not the engine's");
    }

    fn transmit(&mut self, frame: Frame) -> Result<(), TransmitError> {
        if self.pending.len() >= self.pool.capacity() {
            return Err(TransmitError::RingFull(frame));
        }
        let (chunk, _, _) = frame.parts();
        let passed = self.pool.pass(chunk, Owner::Engine, Owner::Transmit);
        debug_assert!(passed, "buffer {chunk} was transmitted but is not the engine's");
        if passed {
            self.pending.push_back(frame);
        }
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.cut.get() {
            return Err(io::Error::from_raw_os_error(libc::ENETDOWN));
        }
        let mut cable = self.outbound.borrow_mut();
        while let Some(frame) = self.pending.front() {
            if !cable.push(&self.memory[span(frame, self.chunk_size)]) {
                break;
            }
            let (chunk, _, _) = frame.parts();
            let freed = self.pool.put(chunk, Owner::Transmit);
            debug_assert!(freed, "pending buffer {chunk} is not the device's");
            self.pending.pop_front();
        }
        Ok(())
    }

    fn free_buffers(&self) -> usize {
        self.pool.free()
    }
}
