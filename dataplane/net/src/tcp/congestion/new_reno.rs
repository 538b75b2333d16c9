//! NewReno: RFC 5681 with the byte counting of RFC 3465. Retransmission (RFC 6582, 6675) is not
//! part of it.

use super::control::{Acknowledged, CongestionControl, Moment};
use super::window::Window;

/// The state of NewReno.
#[derive(Clone, Copy, Debug)]
pub struct NewReno {
    pub(super) window: Window,
}

impl NewReno {
    /// Starts with the initial window.
    pub const fn new(mss: u32) -> Self {
        Self { window: Window::new(mss) }
    }
}

impl CongestionControl for NewReno {
    #[inline]
    fn acknowledged(&mut self, what: &Acknowledged) {
        if what.grow {
            self.window.grow_as_reno(what.bytes, what.mss);
        }
    }

    fn enter_recovery(&mut self, at: Moment) {
        self.window.reduce(at.in_flight / 2, at.mss);
    }

    fn exit_recovery(&mut self) {
        self.window.leave_recovery();
    }

    fn ce_marked(&mut self, at: Moment) {
        // RFC 3168 section 6.1.2: as for a loss.
        self.window.reduce(self.window.size / 2, at.mss);
    }

    fn timed_out(&mut self, at: Moment) {
        self.window.collapse(at.in_flight / 2, at.mss);
    }

    fn undo(&mut self) {
        self.window.undo();
    }

    fn restart(&mut self, at: Moment) {
        self.window.restart(at.mss);
    }
}
