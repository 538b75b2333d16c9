//! The state of a connection as Linux would describe it: the rules of [`sietch_stream::outcome`],
//! with the errors of the C library.

use std::ffi::c_int;

use rustix::io::Errno as Error;
use sietch_ring::stream::{Endpoint, flag};
use sietch_stream::outcome;

use crate::connection::peer;
use crate::descriptor::description::Held;
use crate::system::sys::Errno;

pub(crate) use sietch_stream::outcome::is_over;

/// Returns the pending error, and clears it.
pub(crate) fn take_error(end: &Endpoint) -> Option<Errno> {
    outcome::take_error(end).map(Error::raw_os_error)
}

/// Whether calls of this socket do not sleep.
#[inline]
pub(crate) fn is_nonblocking(end: &Endpoint, flags: c_int) -> bool {
    flags & libc::MSG_DONTWAIT != 0 || end.private().has(flag::NONBLOCKING)
}

/// Checks whether a process still holds the peer's end, if there is a hint of that.
pub(crate) fn refresh(fd: c_int, held: &Held) {
    if let Some(end) = held.end().filter(|end| end.is_worth_polling()) {
        peer::check_peer_closed(fd, end);
    }
}

/// Whether there is an engine behind this connection.
pub(crate) fn is_served(held: &Held) -> bool {
    held.end().is_some_and(|end| end.private().has(flag::SERVED))
}
