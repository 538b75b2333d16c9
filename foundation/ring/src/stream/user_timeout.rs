//! `TCP_USER_TIMEOUT` of a connection between two applications.
//!
//! 1. Linux ends a connection with ETIMEDOUT when there are bytes to send and the peer's window has
//!    been closed for that time. A ring has no window. Here the peer counts as one with a closed
//!    window while more than [`WINDOW`] bytes are unread and it reads nothing.
//! 2. There is no timer. The private page says since when the peer has read nothing, and what it
//!    had read then. A caller that sends, or that is about to sleep, calls
//!    [`Endpoint::user_timeout_left`], which keeps both words, and ends the connection once the
//!    time is over. A sleep lasts until then at most.
//! 3. The peer's head is not trusted: a peer that moves it without reading keeps its own connection
//!    open.
//!
//! The engine behind a VNIC has the timer itself.

use rustix::io::Errno;

use super::clock::{MILLISECOND, now};
use super::endpoint::Endpoint;
use super::private::{flag, option};
use crate::sync::Ordering;

/// Unread bytes that a peer is allowed: the window that Linux offers for a socket buffer of the
/// default size (`net.ipv4.tcp_rmem`).
const WINDOW: usize = 65_536;

impl Endpoint {
    /// Nanoseconds until the peer must have read something; none if there is no such time. When it
    /// is over, the connection is reset, and its pending error is ETIMEDOUT.
    #[inline]
    pub fn user_timeout_left(&self) -> Option<u64> {
        if self.private().has(flag::USER_TIMEOUT) { self.stall_left() } else { None }
    }

    /// Whether the time runs.
    pub fn is_stalled(&self) -> bool {
        self.private().stalled_since.load(Ordering::Acquire) != 0
    }

    #[cold]
    fn stall_left(&self) -> Option<u64> {
        let private = self.private();
        let timeout = private.options[option::USER_TIMEOUT].load(Ordering::Relaxed) & !option::SET;
        let over = private.flags.load(Ordering::Acquire) & (flag::HUNG_UP | flag::RESET) != 0;
        if over || self.unread_by_peer() <= WINDOW {
            private.stalled_since.store(0, Ordering::Release);
            return None;
        }
        let (head, now) = (self.read_by_peer(), now().max(1));
        // The position before the time: it is stored after it.
        let at = private.stalled_at.load(Ordering::Acquire);
        let since = private.stalled_since.load(Ordering::Acquire);
        if since == 0 || at != head {
            // In this order: another thread that finds the new position finds a new time.
            private.stalled_since.store(now, Ordering::Release);
            private.stalled_at.store(head, Ordering::Release);
            return Some(timeout.saturating_mul(MILLISECOND));
        }
        let left = timeout.saturating_sub(now.saturating_sub(since));
        if left == 0 {
            private.error.store(Errno::TIMEDOUT.raw_os_error().cast_unsigned(), Ordering::Release);
            self.reset();
        }
        Some(left.saturating_mul(MILLISECOND))
    }
}
