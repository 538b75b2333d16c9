//! DCTCP (RFC 8257): reduces by the share of bytes that met a queue.
//!
//! 1. The receiver echoes exactly which packets were CE-marked (section 3.2). `slow/ecn` does that
//!    for flows with this algorithm if ECN was negotiated.
//! 2. Once a window of data, the share of CE-marked bytes goes into a running estimate, `alpha`,
//!    with weight 1/16 (section 3.3).
//! 3. At the first mark of a window the congestion window is multiplied by 1 - alpha / 2. A short
//!    queue costs little, a long one as much as a loss. Losses are handled as in NewReno.

use super::control::{Acknowledged, CongestionControl, Moment};
use super::window::Window;

/// One, for `alpha`.
const ONE: u32 = 1 << 16;
/// The weight of a window in the estimate, `g`, as a power of two.
const WEIGHT_BITS: u32 = 4;

/// The state of DCTCP.
#[derive(Clone, Copy, Debug)]
pub struct Dctcp {
    pub(super) window: Window,
    /// The running share of CE-marked bytes, in 1/65536.
    alpha: u32,
    /// Bytes acknowledged and bytes CE-marked in this window of data.
    acknowledged: u32,
    ce_marked: u32,
    /// Bytes whose acknowledgement ends it.
    left: u32,
}

impl Dctcp {
    /// Starts with the initial window, and as if everything were marked.
    pub const fn new(mss: u32) -> Self {
        Self { window: Window::new(mss), alpha: ONE, acknowledged: 0, ce_marked: 0, left: 0 }
    }

    /// The running share of CE-marked bytes, in 1/65536.
    pub const fn alpha(&self) -> u32 {
        self.alpha
    }

    fn end_window(&mut self, in_flight: u32) {
        let acknowledged = u64::from(self.acknowledged.max(1));
        let share = (u64::from(self.ce_marked.min(self.acknowledged)) * u64::from(ONE) / acknowledged) as u32;
        // Rounded down, because a share below 1/4096 counts as zero.
        self.alpha =
            self.alpha - self.alpha.div_ceil(1 << WEIGHT_BITS).min(self.alpha) + (share >> WEIGHT_BITS);
        (self.acknowledged, self.ce_marked) = (0, 0);
        self.left = in_flight;
    }
}

impl CongestionControl for Dctcp {
    #[inline]
    fn acknowledged(&mut self, what: &Acknowledged) {
        self.acknowledged = self.acknowledged.saturating_add(what.bytes);
        self.ce_marked = self.ce_marked.saturating_add(what.ce_marked);
        if self.left > what.bytes {
            self.left -= what.bytes;
        } else {
            self.end_window(what.in_flight.saturating_sub(what.bytes));
        }
        // RFC 8257 section 3.3: the window does not grow by marked bytes.
        if what.grow && what.ce_marked == 0 {
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
        let cut = u64::from(self.window.size) * u64::from(self.alpha) / u64::from(2 * ONE);
        self.window.reduce(self.window.size - cut as u32, at.mss);
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
