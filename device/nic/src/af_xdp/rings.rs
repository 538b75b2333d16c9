//! The four rings of an AF_XDP socket, mapped.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use rustix::net::sockopt;
use rustix::net::xdp::{
    XDP_PGOFF_RX_RING, XDP_PGOFF_TX_RING, XDP_UMEM_PGOFF_COMPLETION_RING, XDP_UMEM_PGOFF_FILL_RING,
    XdpRingOffset,
};
use sietch_ring::mapped::LayoutError;
use sietch_ring::{Consumer, Descriptor, MappedRing, Mapping, Producer, RingLayout, RingMemory};

use super::XskLayout;
use super::error::{Named, OpenError};

/// `struct xdp_desc`: one frame in the receive or transmit ring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(super) struct FrameDescriptor {
    /// Bytes from the start of the UMEM.
    pub(super) address: u64,
    /// Bytes in the frame.
    pub(super) length: u32,
    /// `XDP_PKT_CONTD` and others.
    pub(super) options: u32,
}

const _: () = assert!(size_of::<FrameDescriptor>() == 16);

// SAFETY: three integers, eight-byte aligned, without padding (asserted above).
unsafe impl Descriptor for FrameDescriptor {}

/// A ring that the application produces into.
pub(super) type ToKernel<T> = Producer<T, MappedRing<T>>;
/// A ring that the application consumes from.
pub(super) type FromKernel<T> = Consumer<T, MappedRing<T>>;

/// All four, freshly bound and never used.
#[derive(Debug)]
pub(super) struct Rings {
    /// Chunks for the kernel to receive into.
    pub(super) fill: ToKernel<u64>,
    /// Chunks that the kernel has sent.
    pub(super) completion: FromKernel<u64>,
    /// Frames received.
    pub(super) receive: FromKernel<FrameDescriptor>,
    /// Frames to send.
    pub(super) transmit: ToKernel<FrameDescriptor>,
}

impl Rings {
    /// Maps the rings of `socket`.
    ///
    /// # Safety
    /// No other `Rings` of this process use this socket.
    pub(super) unsafe fn map(socket: BorrowedFd<'_>, layout: &XskLayout) -> Result<Self, OpenError> {
        let offsets = sockopt::xdp_mmap_offsets(socket).opening("asking the kernel for the ring offsets")?;
        // SAFETY: each ring is mapped once, by the caller's word.
        let (fill, completion, receive, transmit) = unsafe {
            (
                map_ring::<u64>(socket, "fill", &offsets.fr, XDP_UMEM_PGOFF_FILL_RING, layout.fill)?,
                map_ring::<u64>(
                    socket,
                    "completion",
                    &offsets.cr,
                    XDP_UMEM_PGOFF_COMPLETION_RING,
                    layout.completion,
                )?,
                map_ring(socket, "receive", &offsets.rx, XDP_PGOFF_RX_RING, layout.receive)?,
                map_ring(socket, "transmit", &offsets.tx, XDP_PGOFF_TX_RING, layout.transmit)?,
            )
        };
        // The kernel moves nothing before this process fills or transmits. So a producer word that
        // has moved was moved by a previous user, whose chunks are unknown.
        if index(fill.producer()) != 0 || index(transmit.producer()) != 0 {
            return Err(OpenError::AlreadyUsed);
        }
        let named = |ring| move |source| OpenError::Inconsistent { ring, source };
        Ok(Self {
            fill: Producer::attach(fill).map_err(named("fill"))?,
            completion: Consumer::attach(completion).map_err(named("completion"))?,
            receive: Consumer::attach(receive).map_err(named("receive"))?,
            transmit: Producer::attach(transmit).map_err(named("transmit"))?,
        })
    }

    /// Times the kernel's words were impossible: never, unless something in this process scribbled
    /// over them.
    pub(super) fn violations(&self) -> u64 {
        self.fill.violations()
            + self.completion.violations()
            + self.receive.violations()
            + self.transmit.violations()
    }
}

fn index(word: &std::sync::atomic::AtomicU32) -> u32 {
    word.load(std::sync::atomic::Ordering::Relaxed)
}

/// Maps one ring.
///
/// # Safety
/// It is the only one of this process over this ring.
unsafe fn map_ring<T: Descriptor>(
    socket: BorrowedFd<'_>,
    ring: &'static str,
    offset: &XdpRingOffset,
    page_offset: u64,
    capacity: u32,
) -> Result<MappedRing<T>, OpenError> {
    let misplaced = |source| OpenError::RingLayout { ring, source };
    let place = |offset: u64| usize::try_from(offset).unwrap_or(usize::MAX);
    let layout = RingLayout {
        producer: place(offset.producer),
        consumer: place(offset.consumer),
        // Every kernel with XDP_USE_NEED_WAKEUP reports it.
        flags: offset.flags.map_or(usize::MAX, place),
        slots: place(offset.desc),
        capacity,
    };
    let length = layout.end::<T>().ok_or_else(|| misplaced(LayoutError::Misplaced { layout, length: 0 }))?;
    let mapping = Mapping::of_file(socket, page_offset, length).opening("mapping a ring")?;
    // SAFETY: the caller says so.
    unsafe { MappedRing::new(Arc::new(mapping), layout) }.map_err(misplaced)
}
