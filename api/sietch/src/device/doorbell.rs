//! Doorbells: the descriptors on which a data loop sleeps.
//!
//! 1. A loop that found nothing to do *arms* the doorbell of its queue. If something has arrived
//!    meanwhile, the loop does not sleep.
//! 2. It sleeps on the descriptor, which is readable as long as frames or completions wait.
//! 3. Awake again, it disarms the doorbell, so that the peer sends no notifications while it works.

use std::os::fd::{AsFd, BorrowedFd};

use sietch_disk::{AreaQueue, DiskQueue, MemoryQueue};
use sietch_nic::NicQueue;
use sietch_nic::capture::{Tap, Tapped};
use sietch_nic::wire::WireQueue;

/// A queue of frames that a loop can sleep on.
pub trait Doorbell: NicQueue {
    /// The descriptor that is readable when frames have arrived. A queue without one is polled.
    fn doorbell(&self) -> Option<BorrowedFd<'_>>;

    /// Requests notifications. Returns false if something has arrived already: then do not sleep.
    fn arm(&mut self) -> bool {
        true
    }

    /// Stops notifications.
    fn disarm(&mut self) {}

    /// The slot for the tap of `sietch capture`. A queue without one cannot be captured.
    fn tap(&mut self) -> Option<&mut Option<Box<Tap>>> {
        None
    }
}

impl<Q: Doorbell> Doorbell for Tapped<Q> {
    fn doorbell(&self) -> Option<BorrowedFd<'_>> {
        (**self).doorbell()
    }

    fn arm(&mut self) -> bool {
        Doorbell::arm(&mut **self)
    }

    fn disarm(&mut self) {
        Doorbell::disarm(&mut **self);
    }

    fn tap(&mut self) -> Option<&mut Option<Box<Tap>>> {
        Some(self.slot())
    }
}

impl Doorbell for sietch_nic::af_xdp::Queue {
    fn doorbell(&self) -> Option<BorrowedFd<'_>> {
        // The kernel notifies at every frame, and the descriptor stays readable until the ring is
        // empty: nothing to arm.
        Some(self.as_fd())
    }
}

impl Doorbell for sietch_nic::shm::Endpoint {
    fn doorbell(&self) -> Option<BorrowedFd<'_>> {
        Some(self.as_fd())
    }

    fn arm(&mut self) -> bool {
        !Self::arm(self)
    }

    fn disarm(&mut self) {
        Self::disarm(self);
    }
}

impl Doorbell for WireQueue {
    fn doorbell(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// A disk queue that a loop can sleep on.
pub trait DiskDoorbell: DiskQueue {
    /// The descriptor that is readable when a request has completed. A queue without one is polled
    /// while requests are in flight.
    fn doorbell(&self) -> Option<BorrowedFd<'_>>;
}

impl DiskDoorbell for AreaQueue {
    fn doorbell(&self) -> Option<BorrowedFd<'_>> {
        AreaQueue::doorbell(self)
    }
}

impl DiskDoorbell for MemoryQueue {
    fn doorbell(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}
