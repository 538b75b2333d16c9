//! The state of a connection as Linux would describe it: pending errors, and whether it is over.

use std::ffi::c_int;
use std::sync::atomic::Ordering::Acquire;

use sietch_ring::stream::{Endpoint, flag};

use crate::connection::peer;
use crate::descriptor::description::Held;
use crate::system::sys::Errno;

/// Returns the pending error, and clears it.
pub(crate) fn take_error(end: &Endpoint) -> Option<Errno> {
    let private = end.private();
    let error = private.take_error();
    if error != 0 {
        return Some(error.cast_signed());
    }
    let flags = private.flags.load(Acquire);
    if flags & flag::RESET == 0 || flags & flag::RESET_REPORTED != 0 {
        return None;
    }
    if private.set(flag::RESET_REPORTED) & flag::RESET_REPORTED != 0 {
        return None;
    }
    // Linux's tcp_reset(): a side that had received FIN is in CLOSE_WAIT, and gets EPIPE.
    Some(if end.finished_by_peer() { libc::EPIPE } else { libc::ECONNRESET })
}

/// Whether calls of this socket do not sleep.
#[inline]
pub(crate) fn is_nonblocking(end: &Endpoint, flags: c_int) -> bool {
    flags & libc::MSG_DONTWAIT != 0 || end.private().has(flag::NONBLOCKING)
}

/// Checks whether a process still holds the peer's end, if there is a hint of that.
pub(crate) fn refresh(fd: c_int, held: &Held) {
    if let Some(end) = held.end().filter(|end| end.is_worth_asking()) {
        peer::check_peer_gone(fd, end);
    }
}

/// Whether the connection's state is Linux's TCP_CLOSE.
pub(crate) fn is_over(end: &Endpoint) -> bool {
    let private = end.private();
    private.has(flag::RESET)
        || private.has(flag::HUNG_UP | flag::SHUT_WR)
        || (private.has(flag::SHUT_WR) && end.finished_by_peer())
}

/// Whether there is an engine behind this connection.
pub(crate) fn is_served(held: &Held) -> bool {
    held.end().is_some_and(|end| end.private().has(flag::SERVED))
}
