//! The queue of a granted VNIC: an AF_XDP socket, or one end of a link of shared memory.
//!
//! 1. Programs are written against [`VnicQueue`] and run on either: `sietch.toml` decides which
//!    device a name means.
//! 2. Each call costs one branch, which always goes the same way for one device. A program that
//!    knows its device can match on the variant once: both are public.

use std::io;
use std::os::fd::BorrowedFd;

use sietch_nic::capture::{Tap, Tapped};
use sietch_nic::{Frame, NicQueue, Offloads, TransmitError, Untrusted, af_xdp, shm};

use super::doorbell::Doorbell;

/// The queue of a granted VNIC.
#[derive(Debug)]
pub enum VnicQueue {
    /// An AF_XDP socket: the kernel enforces what was granted.
    AfXdp(Box<Tapped<af_xdp::Queue>>),
    /// An end of a link over shared memory, to another application or to the switch.
    Link(Box<Tapped<shm::Endpoint>>),
}

macro_rules! either {
    ($self:ident, $queue:ident => $action:expr) => {
        match $self {
            Self::AfXdp($queue) => $action,
            Self::Link($queue) => $action,
        }
    };
}

impl VnicQueue {
    /// The name of the medium: `af_xdp` or `shm`.
    pub const fn medium(&self) -> &'static str {
        match self {
            Self::AfXdp(_) => "af_xdp",
            Self::Link(_) => "shm",
        }
    }
}

impl From<af_xdp::Queue> for VnicQueue {
    fn from(queue: af_xdp::Queue) -> Self {
        Self::AfXdp(Box::new(Tapped::new(queue)))
    }
}

impl From<shm::Endpoint> for VnicQueue {
    fn from(endpoint: shm::Endpoint) -> Self {
        Self::Link(Box::new(Tapped::new(endpoint)))
    }
}

impl NicQueue for VnicQueue {
    fn mac(&self) -> [u8; 6] {
        either!(self, queue => queue.mac())
    }

    fn mtu(&self) -> usize {
        either!(self, queue => queue.mtu())
    }

    fn receive(&mut self, out: &mut Vec<Frame>, limit: usize) -> usize {
        either!(self, queue => queue.receive(out, limit))
    }

    fn bytes(&self, frame: &Frame) -> &[u8] {
        either!(self, queue => queue.bytes(frame))
    }

    fn tail(&self, frame: &Frame) -> Untrusted<'_> {
        either!(self, queue => queue.tail(frame))
    }

    fn bytes_mut(&mut self, frame: &mut Frame) -> &mut [u8] {
        either!(self, queue => queue.bytes_mut(frame))
    }

    fn allocate(&mut self, length: usize) -> Option<Frame> {
        either!(self, queue => queue.allocate(length))
    }

    fn offloads(&self) -> Offloads {
        either!(self, queue => queue.offloads())
    }

    fn release(&mut self, frame: Frame) {
        either!(self, queue => queue.release(frame));
    }

    fn transmit(&mut self, frame: Frame) -> Result<(), TransmitError> {
        either!(self, queue => queue.transmit(frame))
    }

    fn flush(&mut self) -> io::Result<()> {
        either!(self, queue => queue.flush())
    }

    fn free_buffers(&self) -> usize {
        either!(self, queue => queue.free_buffers())
    }

    fn must_flush_again(&self) -> bool {
        either!(self, queue => queue.must_flush_again())
    }
}

impl Doorbell for VnicQueue {
    fn doorbell(&self) -> Option<BorrowedFd<'_>> {
        either!(self, queue => Doorbell::doorbell(&**queue))
    }

    fn arm(&mut self) -> bool {
        either!(self, queue => Doorbell::arm(&mut **queue))
    }

    fn disarm(&mut self) {
        either!(self, queue => Doorbell::disarm(&mut **queue));
    }

    fn tap(&mut self) -> Option<&mut Option<Box<Tap>>> {
        either!(self, queue => Some(queue.slot()))
    }
}
