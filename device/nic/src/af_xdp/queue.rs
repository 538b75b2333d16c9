//! The application's side: a [`NicQueue`] over a granted AF_XDP socket.
//!
//! 1. Every chunk of the UMEM has one owner ([`BufferPool`]): free, the engine (as a [`Frame`]),
//!    the kernel to receive into, or the kernel to send. A descriptor that comes out of a ring is
//!    copied and validated. It must name a chunk that is the kernel's for that very purpose;
//!    otherwise it is counted and dropped.
//! 2. *Receive*: take back what was sent, pop at most `limit` descriptors, give their slots back,
//!    then top up the fill ring with free chunks. As many chunks as the fill ring has slots (at
//!    most half of all) are kept for receiving. `allocate` does not touch chunks that the fill ring
//!    lacks, so sending cannot starve receiving.
//! 3. *Transmit*: push a descriptor; the kernel does not see it yet. *Flush*: publish them all in
//!    one store, and if the kernel requests it (always so on veth) make one `sendto` without data.
//!    The kernel may stop early, for lack of buffers or at the end of its budget. As long as it
//!    makes progress the call is repeated, at most `kick_limit` times. What is left stays in the
//!    ring, and the next flush kicks again.
//! 4. A frame larger than a chunk is received in a chain of chunks ([`super::chain`]): its head is
//!    the first, its tail the others. It is allocated as a run of neighbours ([`super::runs`]), and
//!    sent as one descriptor a chunk. A frame that was received in a chain can be sent as it is,
//!    too.
//! 5. The errors ENXIO and ENODEV are final: the interface is deleted, and the queue says so for
//!    ever. ENETDOWN lasts while the interface is down.
//!
//! Nothing here allocates after [`Queue::open`], and no call does more work than the rings have
//! slots.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{SealFlags, fcntl_get_seals, fstat};
use rustix::io::Errno;
use rustix::net::xdp::XdpDescOptions;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, recv, send, sockopt};
use sietch_ring::{BufferPool, Mapping, Owner, Piece, Untrusted};

use super::chain::Chains;
use super::counters::QueueCounters;
use super::error::{Named, OpenError};
use super::rings::{FrameDescriptor, Rings};
use super::runs::Runs;
use super::{Granted, XskLayout};
use crate::queue::{ETHERNET_HEADER, Frame, NicQueue, Offloads, TransmitError};

/// The bit of a frame's chunk that says that it is the first of a chain.
const CHAIN: u32 = 1 << 31;
/// The bit of a frame's chunk that says that it is the number of a run.
const RUN: u32 = 1 << 30;

/// Frames that the kernel sends in one `sendto` if its budget could not be raised
/// (`TX_BATCH_SIZE`).
const KERNEL_SEND_BATCH: u32 = 32;

/// What the kernel dropped on the way to or from this queue (`XDP_STATISTICS`; it does not count
/// wrong entries of the fill ring).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceDrops {
    /// Received frames without a place to put them, for other reasons than those below.
    pub rx_dropped: u64,
    /// Received frames that met a full receive ring.
    pub rx_ring_full: u64,
    /// Received frames that met an empty fill ring.
    pub rx_fill_empty: u64,
    /// Descriptors of the transmit ring that were wrong.
    pub tx_invalid: u64,
}

/// One granted queue. One thread owns it; it may move to another.
#[derive(Debug)]
pub struct Queue {
    mac: [u8; 6],
    mtu: usize,
    chunk_bits: u32,
    /// Chunks kept for receiving.
    fill_target: u32,
    /// Chunks that are the kernel's to receive into.
    filled: u32,
    /// Frames received in several chunks.
    chains: Chains,
    /// Frames sent from several chunks.
    runs: Runs,
    /// Checksums may be unfinished.
    unfinished: bool,
    /// The kernel took no more at the last flush, and no event says when it does again.
    stuck: bool,
    /// The error after which every call fails.
    failure: Option<i32>,
    /// Frames and bytes pushed and not yet published.
    unpublished_frames: u64,
    unpublished_bytes: u64,
    pool: BufferPool,
    rings: Rings,
    counters: QueueCounters,
    umem: Mapping,
    layout: XskLayout,
    socket: OwnedFd,
}

/// How often one flush requests the kernel to send: often enough to empty the ring in the kernel's
/// smallest batches, and once more for a completion ring that was full.
fn kick_limit(transmit: u32) -> u32 {
    transmit / KERNEL_SEND_BATCH + 2
}

impl Queue {
    /// Opens what the control plane granted, as the station with address `mac` on a link of `mtu`
    /// bytes.
    ///
    /// # Errors
    /// [`OpenError`] if the grant is not what it should be, or was opened before.
    pub fn open(granted: Granted, mac: [u8; 6], mtu: usize) -> Result<Self, OpenError> {
        let Granted { socket, umem, layout } = granted;
        layout.validate()?;
        layout.fits(mtu)?;
        check_socket(socket.as_fd())?;
        check_memory(umem.as_fd(), &layout)?;
        let umem = Mapping::of_file(&umem, 0, layout.umem_bytes()).opening("mapping the UMEM")?;
        // SAFETY: this process owns the socket. Another process that duplicated it and opened it as
        // a queue has moved its producer words, which `map` refuses.
        let rings = unsafe { Rings::map(socket.as_fd(), &layout) }?;
        let single = layout.single_chunks();
        let mut queue = Self {
            mac,
            mtu,
            chunk_bits: layout.chunk_size.trailing_zeros(),
            // What the transmit ring holds is left over, and half if that is more.
            fill_target: layout.fill.min(single - layout.transmit.min(single / 2)),
            filled: 0,
            chains: Chains::new(if layout.runs > 0 { single } else { 0 }),
            runs: Runs::new(&layout),
            unfinished: false,
            stuck: false,
            failure: None,
            unpublished_frames: 0,
            unpublished_bytes: 0,
            pool: BufferPool::new(single),
            rings,
            counters: QueueCounters::default(),
            umem,
            layout,
            socket,
        };
        queue.top_up();
        Ok(queue)
    }

    /// The other end is a kernel that may leave checksums unfinished: see [`Offloads::unfinished`].
    #[must_use]
    pub fn with_unfinished_checksums(mut self, unfinished: bool) -> Self {
        self.unfinished = unfinished;
        self
    }

    /// What the grant said.
    pub fn layout(&self) -> XskLayout {
        self.layout
    }

    /// What the queue has done.
    pub fn counters(&self) -> QueueCounters {
        QueueCounters { ring_violations: self.rings.violations(), ..self.counters }
    }

    /// What the kernel dropped. A system call: not for the data path.
    ///
    /// # Errors
    /// Those of `getsockopt(2)`.
    pub fn device_drops(&self) -> io::Result<DeviceDrops> {
        let statistics = sockopt::xdp_statistics(&self.socket)?;
        Ok(DeviceDrops {
            rx_dropped: statistics.rx_dropped,
            rx_ring_full: statistics.rx_ring_full.unwrap_or(0),
            rx_fill_empty: statistics.rx_fill_ring_empty_descs.unwrap_or(0),
            tx_invalid: statistics.tx_invalid_descs,
        })
    }

    /// Whether the interface is there and up. A system call: not for the data path.
    pub fn is_alive(&self) -> bool {
        if self.failure.is_some() {
            return false;
        }
        // Reads nothing (there is no data to read on such a socket), but the kernel checks the
        // binding first.
        let answer = recv(&self.socket, &mut [0_u8; 1][..], RecvFlags::DONTWAIT);
        !matches!(answer, Err(Errno::NETDOWN | Errno::NXIO | Errno::NODEV | Errno::BADF))
    }

    /// Takes back the chunks of frames that have left.
    fn reclaim(&mut self) -> u32 {
        let completed = self.rings.completion.ready(self.layout.completion);
        for _ in 0..completed {
            let Some(address) = self.rings.completion.pop() else { break };
            let sent = self.chunk_of(address);
            let back = |chunk| self.pool.put(chunk, Owner::Transmit) || self.runs.complete(chunk);
            if !sent.is_some_and(back) {
                self.counters.invalid_descriptors += 1;
            }
        }
        self.rings.completion.release()
    }

    /// Gives the kernel free chunks to receive into, as far as it has fewer than it should.
    fn top_up(&mut self) {
        while self.filled < self.fill_target {
            if self.rings.fill.room(1) == 0 {
                break;
            }
            let Some(chunk) = self.pool.take(Owner::Receive) else { break };
            let address = u64::from(chunk) << self.chunk_bits;
            if self.rings.fill.push(address).is_err() {
                break; // Not reached: there was room, and nothing else takes it.
            }
            self.filled += 1;
        }
        self.rings.fill.submit();
    }

    fn chunk_of(&self, address: u64) -> Option<u32> {
        u32::try_from(address >> self.chunk_bits).ok()
    }

    /// The frame that `descriptor` announces or completes, or `None` if there is none yet or it is
    /// dropped; then its chunks are free again.
    #[inline]
    fn accept(&mut self, descriptor: FrameDescriptor) -> Option<Frame> {
        let chunk = self.chunk_of(descriptor.address);
        let chunk = chunk.filter(|&chunk| self.pool.pass(chunk, Owner::Receive, Owner::Engine));
        self.filled = self.filled.saturating_sub(u32::from(chunk.is_some()));
        let continues = descriptor.options & XdpDescOptions::XDP_PKT_CONTD.bits() != 0;
        if self.chains.joins(continues) {
            return self.join(chunk, descriptor, continues);
        }
        let Some(chunk) = chunk else {
            self.counters.invalid_descriptors += 1;
            return None;
        };
        let (offset, length) = (self.offset_of(descriptor.address), descriptor.length as usize);
        if length > self.frame_limit() {
            self.counters.rx_oversize += 1;
        } else if offset + length > self.layout.chunk_size as usize {
            self.counters.invalid_descriptors += 1;
        } else {
            self.counters.rx_frames += 1;
            self.counters.rx_bytes += length as u64;
            // Both fit: they are below the chunk size.
            return Some(Frame::from_parts(chunk, offset as u32, length as u32));
        }
        self.free(chunk);
        None
    }

    /// One descriptor of a frame that has several. `chunk` is the engine's, if there is one.
    #[inline(never)]
    fn join(&mut self, chunk: Option<u32>, descriptor: FrameDescriptor, continues: bool) -> Option<Frame> {
        let offset = self.offset_of(descriptor.address);
        let inside = offset.saturating_add(descriptor.length as usize) <= self.layout.chunk_size as usize;
        let length = if inside { descriptor.length } else { 0 };
        // A UMEM has less than 4 GiB (`XskLayout::validate`), and the pool knows the chunk.
        let piece = chunk.map(|chunk| Piece { offset: (chunk << self.chunk_bits) + offset as u32, length });
        let (refused, this_too) = self.chains.gather(piece, self.frame_limit());
        for piece in refused.as_slice() {
            self.free(piece.offset >> self.chunk_bits);
        }
        if let Some(chunk) = chunk.filter(|_| this_too) {
            self.free(chunk);
        }
        if continues {
            return None;
        }
        match self.chains.finish(self.chunk_bits) {
            Ok((chunk, pieces)) => {
                let (length, first) = (pieces.total(), *pieces.as_slice().first()?);
                self.counters.rx_frames += 1;
                self.counters.rx_bytes += length as u64;
                let offset = first.offset & (self.layout.chunk_size - 1);
                // Below the frame limit.
                Some(Frame::from_parts(chunk | CHAIN, offset, length as u32).with_head(first.length))
            }
            Err(fault) => {
                fault.count(&mut self.counters);
                None
            }
        }
    }

    /// Frees a chunk of the engine's.
    fn free(&mut self, chunk: u32) {
        let freed = self.pool.put(chunk, Owner::Engine);
        debug_assert!(freed, "chunk {chunk} is not the engine's");
    }

    fn offset_of(&self, address: u64) -> usize {
        (address & (u64::from(self.layout.chunk_size) - 1)) as usize
    }

    /// The longest frame in bytes.
    fn frame_limit(&self) -> usize {
        self.mtu + ETHERNET_HEADER
    }

    /// Where the head of the frame is in the UMEM.
    ///
    /// # Panics
    /// If the frame is not the engine's, or not of this queue: then its bytes may be the kernel's
    /// to write.
    #[inline]
    fn locate(&self, frame: &Frame) -> std::ops::Range<usize> {
        let (chunk, offset, _) = frame.parts();
        if chunk & RUN != 0 {
            return self.locate_run(frame);
        }
        let chunk = chunk & !CHAIN;
        assert!(self.pool.owner(chunk) == Some(Owner::Engine), "frame of chunk {chunk} is not the engine's");
        let (offset, length) = (offset as usize, frame.head_len());
        assert!(
            offset.saturating_add(length) <= self.layout.chunk_size as usize,
            "frame of {length} bytes at {offset} sticks out of its chunk"
        );
        let start = ((chunk as usize) << self.chunk_bits) + offset;
        start..start + length
    }

    fn locate_run(&self, frame: &Frame) -> std::ops::Range<usize> {
        let (run, length) = (frame.parts().0 & !RUN, frame.len());
        assert!(self.runs.is_held(run), "the frame in run {run} is not the engine's");
        assert!(length <= self.runs.capacity(), "a frame of {length} bytes sticks out of its run");
        let start = self.runs.start(run);
        start..start + length
    }

    /// Puts one descriptor in the transmit ring, in which there is room.
    fn push(&mut self, address: u64, length: u32, continues: bool) {
        let options = if continues { XdpDescOptions::XDP_PKT_CONTD.bits() } else { 0 };
        let pushed = self.rings.transmit.push(FrameDescriptor { address, length, options });
        debug_assert!(pushed.is_ok(), "there was room, and nothing else takes it");
        self.unpublished_bytes += u64::from(length);
        self.unpublished_frames += u64::from(!continues);
    }

    /// Sends a frame that is in a run.
    fn transmit_run(&mut self, frame: Frame) -> Result<(), TransmitError> {
        let (run, _, length) = frame.parts();
        let (run, size) = (run & !RUN, self.layout.chunk_size);
        let chunks = length.div_ceil(size);
        if self.rings.transmit.room(chunks) < chunks {
            return Err(TransmitError::RingFull(frame));
        }
        let sent = self.runs.send(run, chunks);
        debug_assert!(sent, "run {run} was transmitted but is not the engine's");
        if sent {
            let start = self.runs.start(run) as u64;
            for from in (0..length).step_by(size as usize) {
                let part = size.min(length - from);
                self.push(start + u64::from(from), part, from + part < length);
            }
        }
        Ok(())
    }

    /// Sends a frame as it was received in a chain. Chunks that it was shortened by are freed.
    fn transmit_chain(&mut self, frame: Frame) -> Result<(), TransmitError> {
        let (chunk, _, mut left) = frame.parts();
        let chunk = chunk & !CHAIN;
        // At most eighteen.
        let most = self.chains.pieces(chunk).map_or(0, |pieces| pieces.as_slice().len()) as u32;
        if self.rings.transmit.room(most) < most {
            return Err(TransmitError::RingFull(frame));
        }
        for piece in self.chains.take(chunk).as_slice() {
            let (chunk, part) = (piece.offset >> self.chunk_bits, piece.length.min(left));
            if part == 0 {
                self.free(chunk);
            } else if self.pool.pass(chunk, Owner::Engine, Owner::Transmit) {
                left -= part;
                self.push(u64::from(piece.offset), part, left > 0);
            }
        }
        Ok(())
    }

    /// Requests the kernel to send what is in the transmit ring.
    fn kick(&mut self) -> io::Result<()> {
        let mut left = self.rings.transmit.in_flight();
        for _ in 0..kick_limit(self.layout.transmit) {
            self.counters.kicks += 1;
            match send(&self.socket, &[], SendFlags::DONTWAIT) {
                Ok(_) | Err(Errno::AGAIN | Errno::NOBUFS | Errno::BUSY | Errno::INTR) => {}
                Err(error) => {
                    if matches!(error, Errno::NXIO | Errno::NODEV) {
                        self.failure = Some(error.raw_os_error());
                    }
                    return Err(error.into());
                }
            }
            let before = std::mem::replace(&mut left, self.rings.transmit.in_flight());
            if left == 0 {
                return Ok(());
            }
            // Without progress only a full completion ring is worth another try.
            if left >= before && self.reclaim() == 0 {
                break;
            }
        }
        self.counters.tx_backpressure += 1;
        self.stuck = true;
        Ok(())
    }
}

fn check_socket(socket: BorrowedFd<'_>) -> Result<(), OpenError> {
    match sockopt::socket_domain(socket) {
        Ok(AddressFamily::XDP) => Ok(()),
        Ok(_) => Err(OpenError::NotAfXdp(None)),
        Err(error) => Err(OpenError::NotAfXdp(Some(error.into()))),
    }
}

fn check_memory(umem: BorrowedFd<'_>, layout: &XskLayout) -> Result<(), OpenError> {
    let seals = fcntl_get_seals(umem).opening("reading the UMEM's seals")?;
    if !seals.contains(SealFlags::SHRINK) {
        return Err(OpenError::NotSealed);
    }
    let status = fstat(umem).opening("reading the UMEM's size")?;
    let (expected, actual) = (layout.umem_bytes() as u64, status.st_size.try_into().unwrap_or(0));
    if actual == expected { Ok(()) } else { Err(OpenError::UmemSize { expected, actual }) }
}

impl AsFd for Queue {
    /// Readable (POLLIN) when frames have arrived. That the interface was deleted is *not* reported
    /// there: bound the sleep and ask [`Queue::is_alive`], or sleep on the control connection too.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl NicQueue for Queue {
    fn mac(&self) -> [u8; 6] {
        self.mac
    }

    fn mtu(&self) -> usize {
        self.mtu
    }

    fn offloads(&self) -> Offloads {
        Offloads { checksums: false, unfinished: self.unfinished }
    }

    fn receive(&mut self, out: &mut Vec<Frame>, limit: usize) -> usize {
        self.reclaim();
        // A frame has one descriptor or many.
        let all = if self.layout.runs > 0 { usize::MAX } else { limit };
        let wanted = u32::try_from(all).unwrap_or(u32::MAX).min(self.layout.receive);
        self.rings.receive.ready(wanted);
        let before = out.len();
        // Dropped frames do not count: less than `limit` means that the ring is empty.
        for _ in 0..self.layout.receive {
            if out.len() - before >= limit {
                break;
            }
            let Some(descriptor) = self.rings.receive.pop() else { break };
            out.extend(self.accept(descriptor));
        }
        self.rings.receive.release();
        self.top_up();
        out.len() - before
    }

    fn bytes(&self, frame: &Frame) -> &[u8] {
        let range = self.locate(frame);
        // SAFETY: the chunk is the engine's (`locate`), so neither the kernel nor another frame
        // writes it as long as the reference to `self` lives; no other process maps the UMEM for
        // writing but the control plane, which does not.
        unsafe { self.umem.bytes(range) }
    }

    fn tail(&self, frame: &Frame) -> Untrusted<'_> {
        let (chunk, ..) = frame.parts();
        if chunk & CHAIN == 0 || frame.tail_len() == 0 {
            return Untrusted::EMPTY;
        }
        let Some(pieces) = self.chains.pieces(chunk & !CHAIN) else { return Untrusted::EMPTY };
        // SAFETY: each piece is in a chunk of the UMEM (`join`), which is the engine's as long as
        // the frame is: as in `bytes`.
        let whole = unsafe { Untrusted::from_pieces(self.umem.as_ptr(), pieces, frame.head_len()) };
        whole.take(frame.tail_len())
    }

    fn bytes_mut(&mut self, frame: &mut Frame) -> &mut [u8] {
        let range = self.locate(frame);
        // SAFETY: as in `bytes`, and the reference to `self` is exclusive.
        unsafe { self.umem.bytes_mut(range) }
    }

    fn allocate(&mut self, length: usize) -> Option<Frame> {
        assert!(
            length <= self.frame_limit(),
            "a frame of {length} bytes exceeds the {} that the MTU allows",
            self.frame_limit()
        );
        if length > self.layout.chunk_size as usize {
            if self.runs.free() == 0 {
                self.reclaim();
            }
            // Below the limit.
            return self.runs.take().map(|run| Frame::from_parts(run | RUN, 0, length as u32));
        }
        let short = self.fill_target.saturating_sub(self.filled) as usize;
        if self.pool.free() <= short {
            self.reclaim();
            if self.pool.free() <= short {
                return None;
            }
        }
        // Fits a u32: below the limit above, which `open` checked against the chunk size.
        self.pool.take(Owner::Engine).map(|chunk| Frame::from_parts(chunk, 0, length as u32))
    }

    fn release(&mut self, frame: Frame) {
        let (chunk, ..) = frame.parts();
        if chunk & RUN != 0 {
            let freed = self.runs.put(chunk & !RUN);
            debug_assert!(freed, "run {} was released but is not the engine's", chunk & !RUN);
        } else if chunk & CHAIN != 0 {
            for piece in self.chains.take(chunk & !CHAIN).as_slice() {
                self.free(piece.offset >> self.chunk_bits);
            }
        } else {
            self.free(chunk);
        }
    }

    fn transmit(&mut self, frame: Frame) -> Result<(), TransmitError> {
        if self.rings.transmit.room(1) == 0 {
            return Err(TransmitError::RingFull(frame));
        }
        let (chunk, offset, length) = frame.parts();
        if (length as usize) < ETHERNET_HEADER {
            // The kernel skips such a descriptor without ever completing it: the chunk would be
            // lost.
            self.counters.tx_runts += 1;
            self.release(frame);
            return Ok(());
        }
        if chunk & RUN != 0 {
            return self.transmit_run(frame);
        }
        if chunk & CHAIN != 0 {
            return self.transmit_chain(frame);
        }
        let passed = self.pool.pass(chunk, Owner::Engine, Owner::Transmit);
        debug_assert!(passed, "chunk {chunk} was transmitted but is not the engine's");
        if passed {
            self.push((u64::from(chunk) << self.chunk_bits) + u64::from(offset), length, false);
        }
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        if let Some(error) = self.failure {
            return Err(io::Error::from_raw_os_error(error));
        }
        self.stuck = false;
        let published = self.rings.transmit.submit();
        self.counters.tx_frames += std::mem::take(&mut self.unpublished_frames);
        self.counters.tx_bytes += std::mem::take(&mut self.unpublished_bytes);
        if published == 0 && self.rings.transmit.in_flight() == 0 {
            return Ok(());
        }
        if self.rings.transmit.needs_wakeup() { self.kick() } else { Ok(()) }
    }

    fn free_buffers(&self) -> usize {
        self.pool.free() + self.runs.free()
    }

    fn must_flush_again(&self) -> bool {
        self.stuck
    }
}
