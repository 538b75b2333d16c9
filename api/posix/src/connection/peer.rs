//! The other end of a connection, by the number of this end's placeholder: the rules of
//! [`sietch_stream::peer`], with this library's system calls.

use std::ffi::c_int;

use sietch_ring::stream::{Endpoint, Notification};
use sietch_stream::peer;

use crate::connection::placeholder::Number;
use crate::descriptor::description::Held;
use crate::signal::handlers;
use crate::system::{kernel, seccomp};

pub(crate) use sietch_stream::peer::{data_ready, is_set_up, room_ready};

/// Writes the byte that is due to the sleepers at the other end.
#[inline]
pub(crate) fn notify(fd: c_int, end: &Endpoint, due: Notification) {
    peer::notify(Number(fd, end), end, due);
}

/// After sending: wakes the sleepers at the other end.
#[inline(always)]
pub(crate) fn notify_data(fd: c_int, end: &Endpoint) {
    peer::notify_data(Number(fd, end), end);
}

/// After urgent data were sent: has the kernel send SIGURG to the owner of the other end, if there
/// is one ([`crate::connection::owner`]).
#[cold]
pub(crate) fn signal_urgent(fd: c_int, end: &Endpoint) {
    if end.peer_wants_urgent_signals() && !seccomp::is_restricted() {
        let flags = libc::MSG_OOB | libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        end.write_counted(|| kernel::send(fd, &[0], flags).is_ok());
    }
}

/// Writes a byte for a service core that has to check something else than bytes.
pub(crate) fn notify_always(fd: c_int, end: &Endpoint) {
    peer::notify_always(Number(fd, end));
}

/// Asks the kernel whether any process still holds the other end, and records the answer. True:
/// none does.
pub(crate) fn check_peer_closed(fd: c_int, end: &Endpoint) -> bool {
    peer::check_peer_closed(Number(fd, end), end)
}

/// Leaves the peer a hint that this process is about to close the end.
pub(crate) fn announce_close(held: &Held) {
    if let Some(end) = held.end() {
        // No handler jumps out of it and leaves a lock.
        let _section = handlers::Section::enter();
        end.closing();
    }
}
