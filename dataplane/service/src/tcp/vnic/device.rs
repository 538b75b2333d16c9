//! The queue of a VNIC, as the TCP host drives it.

use std::os::fd::{AsFd as _, BorrowedFd};

use sietch_net::Engine;
use sietch_nic::NicQueue;

/// The queue of a VNIC, with what the thread that serves it needs.
pub trait Device: NicQueue {
    /// Returns the descriptor that becomes readable when frames arrive. Without one the queue is
    /// polled.
    fn doorbell(&self) -> Option<BorrowedFd<'_>>;

    /// Requests a notification. Returns false if something has arrived already.
    fn arm(&mut self) -> bool {
        true
    }

    /// Withdraws that request.
    fn disarm(&mut self) {}

    /// Returns the descriptor that becomes readable when [`Device::answer_diagnostics`] has
    /// something to do.
    fn diagnostics(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Answers diagnostic requests of the control plane about the VNIC. Cheap when there are none.
    fn answer_diagnostics(&mut self, _engine: &Engine) {}

    /// Returns whether the control plane has revoked the VNIC.
    fn is_revoked(&mut self) -> bool {
        false
    }
}

impl Device for sietch_nic::shm::Endpoint {
    fn doorbell(&self) -> Option<BorrowedFd<'_>> {
        Some(self.as_fd())
    }

    fn arm(&mut self) -> bool {
        !Self::arm(self)
    }

    fn disarm(&mut self) {
        Self::disarm(self);
    }

    fn is_revoked(&mut self) -> bool {
        !self.is_alive()
    }
}
