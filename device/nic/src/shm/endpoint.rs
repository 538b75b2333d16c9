//! One end of a link as a queue.
//!
//! 1. *Allocate* reserves bytes in this side's own region, first in first out. Frames are one
//!    behind the other, each on a cache line of its own start, none across the end. While little is
//!    in flight only the first [`WARM`] bytes are used, which then stay in the cache. The engine
//!    writes the frame in place; no other process can write it.
//! 2. *Transmit* puts offset and length into the ring, in the order of the calls. *Flush* publishes
//!    all of it with one store and notifies the peer if it requests that. Frames released unsent
//!    never get a slot.
//! 3. What the peer has consumed is read when memory runs short. Bytes are freed in the order
//!    of allocation.
//! 4. *Receive* copies each descriptor once and checks the copy: length and bounds. A frame of at
//!    most [`COPIED`] bytes is copied whole into a private chunk, the one used last, and its slot
//!    is free at once. Of a larger frame the first [`LEAST_HEAD`] bytes are copied. The rest is an
//!    untrusted tail, and the slot stays taken until the frame is released. Slots are returned to
//!    the peer in order.
//! 5. A received frame that is transmitted is copied into this side's region.
//! 6. A wrong descriptor costs its frame. An impossible producer or consumer word, the word
//!    `revoked`, or a doorbell that the peer has closed end the link. Then nothing more is
//!    received, and every flush fails.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{SendFlags, send};
use sietch_protocol::closer::PeerSocket;
use sietch_ring::{
    BufferPool, Consumer, Mapping, Owner, Producer, SplitOwnershipRing, Untrusted, UntrustedMapping,
    need_wakeup,
};

use super::grant::{EndpointFds, OpenError, open};
use super::layout::{self, ALIGNMENT, LinkLayout, NEED_WAKEUP_WORD, REVOKED};
use crate::queue::{ETHERNET_HEADER, Frame, LEAST_HEAD, NicQueue, Offloads, TransmitError};

/// Bytes of a private chunk: a frame that fits is copied whole. Copying 2 KiB costs less than
/// holding a slot for it, and what most links carry (MTU 1500) fits.
const COPIED: usize = 2048;
/// Bytes of the own region that a light load stays within: a quarter of a common second-level
/// cache, because each of the two sides uses as much.
const WARM: u64 = 128 << 10;
/// The bit of a frame's chunk that says that it is in the own region.
const OURS: u32 = 1 << 31;

/// What an endpoint has done since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EndpointCounters {
    /// Frames given to the engine.
    pub rx_frames: u64,
    /// Their bytes.
    pub rx_bytes: u64,
    /// Frames published to the peer.
    pub tx_frames: u64,
    /// Their bytes.
    pub tx_bytes: u64,
    /// Times the peer was notified.
    pub notifications: u64,
    /// Allocations refused because the peer holds all slots or bytes.
    pub tx_backpressure: u64,
    /// Frames dropped at transmit because they were shorter than an Ethernet header.
    pub tx_runts: u64,
    /// Frames dropped because the peer's descriptor was wrong.
    pub invalid_descriptors: u64,
    /// Words of the peer that were impossible.
    pub ring_violations: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Free,
    Engine,
    Queued,
}

/// Bytes of the own region that are allocated.
#[derive(Clone, Copy, Debug)]
struct Allocation {
    /// Where in the endless sequence of allocated bytes it ends.
    end: u64,
    offset: u32,
    length: u32,
    state: State,
}

/// Where a received frame came from.
#[derive(Clone, Copy, Debug, Default)]
struct Arrival {
    index: u32,
    offset: u32,
    length: u32,
    /// Its slot is held, for its tail.
    held: bool,
}

/// One end of a link. One thread owns it; it may move to another.
#[derive(Debug)]
pub struct Endpoint {
    mac: [u8; 6],
    mtu: usize,
    layout: LinkLayout,
    generation: u64,
    mine: Arc<Mapping>,
    theirs: Arc<UntrustedMapping>,

    producer: Producer<u64, SplitOwnershipRing>,
    allocations: Box<[Allocation]>,
    /// Running number of the next allocation, and of the oldest whose bytes are not free.
    next: u32,
    oldest: u32,
    /// Bytes allocated and freed since the start.
    head: u64,
    tail: u64,
    /// The allocation behind each slot of the ring.
    order: Box<[u32]>,
    /// Running index of the next slot, and up to which the peer's consumption was noted.
    pushed: u32,
    noted: u32,
    unpublished_bytes: u64,

    consumer: Consumer<u64, SplitOwnershipRing>,
    chunks: Box<[u8]>,
    pool: BufferPool,
    arrivals: Box<[Arrival]>,
    /// Slots whose frames are still in use.
    held: Box<[bool]>,
    popped: u32,
    returned: u32,

    doorbell: PeerSocket,
    /// The value of the peer's word for which it was last notified.
    notified: u32,
    /// The error after which every call fails.
    failure: Option<Errno>,
    counters: EndpointCounters,
}

impl Endpoint {
    /// Opens what the control plane granted, as the station with address `mac` on a link of `mtu`
    /// bytes.
    ///
    /// # Errors
    /// [`OpenError`] if the grant is not what it should be, or was opened before.
    pub fn open(fds: EndpointFds, layout: LinkLayout, mac: [u8; 6], mtu: usize) -> Result<Self, OpenError> {
        let opened = open(fds, layout, mtu)?;
        let slots = layout.slots as usize;
        let unused = Allocation { end: 0, offset: 0, length: 0, state: State::Free };
        Ok(Self {
            mac,
            mtu,
            layout,
            generation: opened.generation,
            mine: opened.mine,
            theirs: opened.theirs,
            producer: Producer::attach(opened.outgoing).map_err(|_| OpenError::Header("consumer word"))?,
            allocations: vec![unused; slots].into_boxed_slice(),
            next: 0,
            oldest: 0,
            head: 0,
            tail: 0,
            order: vec![0; slots].into_boxed_slice(),
            pushed: 0,
            noted: 0,
            unpublished_bytes: 0,
            consumer: Consumer::attach(opened.incoming).map_err(|_| OpenError::Header("producer word"))?,
            chunks: vec![0; slots * COPIED].into_boxed_slice(),
            pool: BufferPool::new(layout.slots),
            arrivals: vec![Arrival::default(); slots].into_boxed_slice(),
            held: vec![false; slots].into_boxed_slice(),
            popped: 0,
            returned: 0,
            doorbell: opened.doorbell,
            notified: 0,
            failure: None,
            counters: EndpointCounters::default(),
        })
    }

    /// What the endpoint has done.
    pub fn counters(&self) -> EndpointCounters {
        self.counters
    }

    /// Generation of the grant.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Requests a notification from the peer when it sends. Returns whether something is there
    /// already: then do not sleep.
    pub fn arm(&mut self) -> bool {
        self.mine.word(NEED_WAKEUP_WORD).inspect(|word| need_wakeup::arm_counted(word));
        self.is_over() || self.consumer.ready(1) > 0
    }

    /// Takes the request back, and makes the descriptor unreadable again.
    pub fn disarm(&mut self) {
        self.mine.word(NEED_WAKEUP_WORD).inspect(|word| need_wakeup::disarm_counted(word));
        // One call takes every byte that an honest peer can have written. A peer that writes more
        // causes more wake-ups, as sending more would.
        match self.doorbell.take(&mut [0_u8; 256]) {
            Ok(0) => self.failure = self.failure.or(Some(Errno::PIPE)),
            Ok(_) | Err(Errno::AGAIN | Errno::INTR) => {}
            Err(error) => self.failure = self.failure.or(Some(error)),
        }
    }

    /// Whether the link is whole: not revoked, and the peer alive. A system call: not for the data
    /// path.
    pub fn is_alive(&mut self) -> bool {
        let mut entries = [PollFd::new(&self.doorbell, PollFlags::empty())];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let hung = poll(&mut entries, Some(&now)).is_ok()
            && entries[0].revents().intersects(PollFlags::HUP.union(PollFlags::ERR));
        if hung {
            self.failure = self.failure.or(Some(Errno::PIPE));
        }
        !self.is_over()
    }

    /// Ends the link from this side, at the control plane's request.
    pub(crate) fn cut(&mut self) {
        self.failure = self.failure.or(Some(Errno::NETDOWN));
    }

    #[inline]
    fn is_over(&mut self) -> bool {
        // Only the control plane and this process can write this word.
        let revoked = self.mine.word(REVOKED).is_some_and(|word| word.load(Ordering::Relaxed) != 0);
        if revoked {
            self.cut();
        }
        self.failure.is_some()
    }

    #[inline]
    fn note_violations(&mut self) {
        let violations = self.producer.violations() + self.consumer.violations();
        if violations > self.counters.ring_violations {
            self.counters.ring_violations = violations;
            self.failure = self.failure.or(Some(Errno::PROTO));
        }
    }

    #[inline]
    fn mask(&self) -> u32 {
        self.layout.slots - 1
    }

    #[cfg(test)]
    pub(super) fn reclaim_for_test(&mut self) {
        self.reclaim();
    }

    /// Takes back what the peer has consumed.
    fn reclaim(&mut self) {
        let consumed = self.producer.consumed();
        self.note_violations();
        let mask = self.mask();
        while self.noted != consumed {
            let number = self.order[(self.noted & mask) as usize];
            self.allocations[number as usize].state = State::Free;
            self.noted = self.noted.wrapping_add(1);
        }
        self.settle_allocations();
    }

    #[inline]
    fn settle_allocations(&mut self) {
        let mask = self.mask();
        while self.oldest != self.next {
            let allocation = &self.allocations[(self.oldest & mask) as usize];
            if allocation.state != State::Free {
                break;
            }
            self.tail = allocation.end;
            self.oldest = self.oldest.wrapping_add(1);
        }
    }

    /// Where `size` bytes can go: their offset, and `head` after them.
    #[inline]
    fn place(&self, size: u64) -> Option<(u32, u64)> {
        if self.next.wrapping_sub(self.oldest) >= self.layout.slots {
            return None;
        }
        let data = u64::from(self.layout.data);
        let (position, used) = (self.head & (data - 1), self.head - self.tail);
        let rest = data - position;
        if (size > rest || position >= WARM) && used + rest + size <= data {
            return Some((0, self.head + rest + size));
        }
        // Below 2^30.
        (size <= rest && used + size <= data).then_some((position as u32, self.head + size))
    }

    #[inline]
    fn reserve(&mut self, length: usize) -> Option<u32> {
        let size = length.max(1).next_multiple_of(ALIGNMENT as usize) as u64;
        if self.next.wrapping_sub(self.oldest) >= self.layout.slots / 2 || self.head - self.tail >= WARM / 2 {
            self.reclaim();
        }
        let mut place = self.place(size);
        if place.is_none() {
            self.reclaim();
            place = self.place(size);
        }
        let Some((offset, end)) = place else {
            self.counters.tx_backpressure += 1;
            return None;
        };
        let number = self.next & self.mask();
        self.allocations[number as usize] =
            Allocation { end, offset, length: length as u32, state: State::Engine };
        self.head = end;
        self.next = self.next.wrapping_add(1);
        Some(number)
    }

    #[inline]
    fn queue(&mut self, number: u32, length: u32) -> bool {
        let allocation = &mut self.allocations[number as usize];
        let descriptor = layout::descriptor(allocation.offset, length);
        if self.producer.push(descriptor).is_err() {
            return false; // Not reached: an allocation is the right to a slot.
        }
        allocation.state = State::Queued;
        self.order[(self.pushed & (self.layout.slots - 1)) as usize] = number;
        self.pushed = self.pushed.wrapping_add(1);
        self.unpublished_bytes += u64::from(length);
        true
    }

    /// Sends a received frame: a copy of it, in the own region.
    fn transmit_arrival(&mut self, frame: Frame) -> Result<(), TransmitError> {
        let Some(number) = self.reserve(frame.len()) else { return Err(TransmitError::RingFull(frame)) };
        let (head, tail) = (self.bytes(&frame), self.tail(&frame));
        let start = self.layout.data_start() + self.allocations[number as usize].offset as usize;
        // SAFETY: these bytes of the own region were reserved just now: no frame has them, and no
        // other process writes them. The reference ends before anything else is done with the
        // region.
        let out = unsafe { self.mine.bytes_mut(start..start + head.len() + tail.len()) };
        let (near, far) = out.split_at_mut(head.len());
        near.copy_from_slice(head);
        tail.copy_to(0, far);
        let length = (head.len() + tail.len()) as u32;
        if !self.queue(number, length) {
            self.allocations[number as usize].state = State::Free;
            self.settle_allocations();
            return Err(TransmitError::RingFull(frame));
        }
        self.release(frame);
        Ok(())
    }

    /// Gives slots back to the peer, as far as all before them are.
    #[inline]
    fn settle_slots(&mut self) {
        let (mask, before) = (self.mask(), self.returned);
        while self.returned != self.popped && !self.held[(self.returned & mask) as usize] {
            self.returned = self.returned.wrapping_add(1);
        }
        self.consumer.release_oldest(self.returned.wrapping_sub(before));
    }

    /// Takes `ready` frames, which are there.
    fn receive_some(&mut self, out: &mut Vec<Frame>, ready: u32) -> usize {
        if self.is_over() {
            return 0;
        }
        let before = out.len();
        for _ in 0..ready.min(self.layout.slots) {
            let Some(chunk) = self.pool.take(Owner::Engine) else { break };
            let Some(descriptor) = self.consumer.pop() else {
                let _ = self.pool.put(chunk, Owner::Engine);
                break;
            };
            let index = self.popped;
            self.popped = index.wrapping_add(1);
            match self.accept(descriptor, chunk, index) {
                Some(frame) => out.push(frame),
                None => {
                    let _ = self.pool.put(chunk, Owner::Engine);
                }
            }
        }
        self.settle_slots();
        self.note_violations();
        out.len() - before
    }

    /// The frame that `descriptor` announces, in private chunk `chunk`, or `None` if it is invalid.
    #[inline]
    fn accept(&mut self, descriptor: u64, chunk: u32, index: u32) -> Option<Frame> {
        let (offset, length) = layout::frame_range(descriptor);
        let sound = length as usize >= ETHERNET_HEADER
            && length as usize <= self.mtu + ETHERNET_HEADER
            && u64::from(offset) + u64::from(length) <= u64::from(self.layout.data);
        if !sound {
            self.counters.invalid_descriptors += 1;
            return None;
        }
        let held = length as usize > COPIED;
        let head = if held { LEAST_HEAD } else { length as usize };
        let from = self.layout.data_start() + offset as usize;
        let to = chunk as usize * COPIED;
        self.theirs.bytes(from..from + head).copy_to(0, &mut self.chunks[to..to + head]);
        self.held[(index & self.mask()) as usize] = held;
        self.arrivals[chunk as usize] = Arrival { index, offset, length, held };
        self.counters.rx_frames += 1;
        self.counters.rx_bytes += u64::from(length);
        Some(Frame::from_parts(chunk, 0, length).with_head(head as u32))
    }

    /// The engine's allocation behind a frame.
    ///
    /// # Panics
    /// If the frame is not the engine's, or not of this queue: then its bytes may be on their way
    /// to the peer.
    #[inline]
    fn locate(&self, frame: &Frame) -> std::ops::Range<usize> {
        let allocation = &self.allocations[((frame.chunk & !OURS) & self.mask()) as usize];
        assert!(allocation.state == State::Engine, "frame {frame:?} is not the engine's");
        let start = self.layout.data_start() + allocation.offset as usize;
        start..start + frame.length.min(allocation.length) as usize
    }

    /// The private bytes of a received frame.
    #[inline]
    fn chunk(&self, frame: &Frame) -> std::ops::Range<usize> {
        assert!(self.pool.owner(frame.chunk) == Some(Owner::Engine), "frame {frame:?} is not the engine's");
        let start = frame.chunk as usize * COPIED;
        start..start + (frame.head as usize).min(COPIED)
    }

    fn notify(&mut self) -> io::Result<()> {
        let theirs = &self.theirs;
        if !need_wakeup::claim_counted(|| theirs.load(NEED_WAKEUP_WORD), &mut self.notified) {
            return Ok(());
        }
        self.counters.notifications += 1;
        match send(&self.doorbell, &[1], SendFlags::DONTWAIT.union(SendFlags::NOSIGNAL)) {
            // A full socket is readable already.
            Ok(_) | Err(Errno::AGAIN | Errno::NOBUFS | Errno::INTR) => Ok(()),
            Err(error) => {
                self.failure = self.failure.or(Some(error));
                Err(error.into())
            }
        }
    }
}

impl AsFd for Endpoint {
    /// Readable (POLLIN) when the peer has notified, POLLHUP when it is dead. See
    /// [`Endpoint::arm`].
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.doorbell.as_fd()
    }
}

impl NicQueue for Endpoint {
    #[inline]
    fn mac(&self) -> [u8; 6] {
        self.mac
    }

    fn mtu(&self) -> usize {
        self.mtu
    }

    #[inline]
    fn offloads(&self) -> Offloads {
        Offloads { checksums: true, unfinished: false }
    }

    #[inline]
    fn receive(&mut self, out: &mut Vec<Frame>, limit: usize) -> usize {
        let wanted = u32::try_from(limit).unwrap_or(u32::MAX);
        let ready = self.consumer.ready(wanted).min(wanted);
        if ready == 0 {
            self.note_violations();
            return 0;
        }
        self.receive_some(out, ready)
    }

    #[inline]
    fn bytes(&self, frame: &Frame) -> &[u8] {
        if frame.chunk & OURS == 0 {
            return &self.chunks[self.chunk(frame)];
        }
        // SAFETY: the engine's allocation (`locate`) in the own region, which no other process
        // writes but for the words of the first page.
        unsafe { self.mine.bytes(self.locate(frame)) }
    }

    #[inline]
    fn tail(&self, frame: &Frame) -> Untrusted<'_> {
        if frame.chunk & OURS != 0 || frame.tail_len() == 0 {
            return Untrusted::EMPTY;
        }
        assert!(self.pool.owner(frame.chunk) == Some(Owner::Engine), "frame {frame:?} is not the engine's");
        let arrival = &self.arrivals[frame.chunk as usize];
        let start = self.layout.data_start() + arrival.offset as usize;
        let (from, to) = (frame.head.min(arrival.length), frame.length.min(arrival.length));
        if !arrival.held || to <= from {
            return Untrusted::EMPTY;
        }
        self.theirs.bytes(start + from as usize..start + to as usize)
    }

    #[inline]
    fn bytes_mut(&mut self, frame: &mut Frame) -> &mut [u8] {
        if frame.chunk & OURS == 0 {
            let range = self.chunk(frame);
            return &mut self.chunks[range];
        }
        // SAFETY: as in `bytes`, and the reference to `self` is exclusive. The peer can read these
        // bytes at any time, which is harmless.
        unsafe { self.mine.bytes_mut(self.locate(frame)) }
    }

    #[inline]
    fn allocate(&mut self, length: usize) -> Option<Frame> {
        let limit = self.mtu + ETHERNET_HEADER;
        assert!(length <= limit, "a frame of {length} bytes exceeds the {limit} that the MTU allows");
        // Fits a u32: below the limit.
        self.reserve(length).map(|number| Frame::from_parts(number | OURS, 0, length as u32))
    }

    #[inline]
    fn release(&mut self, frame: Frame) {
        if frame.chunk & OURS != 0 {
            let allocation =
                &mut self.allocations[((frame.chunk & !OURS) & (self.layout.slots - 1)) as usize];
            debug_assert!(allocation.state == State::Engine, "a frame was released that is not the engine's");
            if allocation.state == State::Engine {
                allocation.state = State::Free;
                self.settle_allocations();
            }
            return;
        }
        let freed = self.pool.put(frame.chunk, Owner::Engine);
        debug_assert!(freed, "chunk {} was released but is not the engine's", frame.chunk);
        if freed && std::mem::take(&mut self.arrivals[frame.chunk as usize].held) {
            let slot = self.arrivals[frame.chunk as usize].index & self.mask();
            self.held[slot as usize] = false;
            self.settle_slots();
        }
    }

    #[inline]
    fn transmit(&mut self, frame: Frame) -> Result<(), TransmitError> {
        if frame.len() < ETHERNET_HEADER {
            self.counters.tx_runts += 1;
            self.release(frame);
            return Ok(());
        }
        if frame.chunk & OURS == 0 {
            return self.transmit_arrival(frame);
        }
        let number = (frame.chunk & !OURS) & self.mask();
        let allocation = &self.allocations[number as usize];
        debug_assert!(allocation.state == State::Engine, "a frame was transmitted that is not the engine's");
        if allocation.state != State::Engine {
            return Ok(());
        }
        let length = frame.length.min(allocation.length);
        if self.queue(number, length) { Ok(()) } else { Err(TransmitError::RingFull(frame)) }
    }

    #[inline]
    fn flush(&mut self) -> io::Result<()> {
        if self.is_over() {
            return Err(self.failure.unwrap_or(Errno::NETDOWN).into());
        }
        let published = self.producer.submit();
        if published == 0 {
            return Ok(());
        }
        self.counters.tx_frames += u64::from(published);
        self.counters.tx_bytes += std::mem::take(&mut self.unpublished_bytes);
        self.notify()
    }

    fn free_buffers(&self) -> usize {
        self.pool.free() + (self.layout.slots - self.next.wrapping_sub(self.oldest)) as usize
    }
}
