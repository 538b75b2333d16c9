//! The name that a socket has on a VNIC between `bind` and `listen` or `connect`.
//!
//! 1. The service answers a bind with a descriptor; closing it frees the name. The library keeps it
//!    as a hidden descriptor ([`crate::descriptor::hidden`]) for as long as any descriptor of this
//!    process refers to the socket. A child of fork has a copy, as it has of the socket.
//! 2. It is closed on exec: the next program finds a kernel socket without a name.
//! 3. If the program has closed it by number, the name is free.

use std::ffi::c_int;

use crate::descriptor::description::SocketState;
use crate::descriptor::table::forget_stale;
use crate::system::kernel;

/// Keeps a reservation with the socket that it is for.
pub(crate) fn keep(socket: &SocketState, reservation: c_int) {
    if socket.reservation.keep_copy(reservation) {
        let _ = kernel::close(reservation);
    } else {
        socket.reservation.keep(reservation);
    }
    if let Some(kept) = socket.reservation.number() {
        forget_stale(kept);
    }
}

/// The reservation of a socket, if it has one still.
pub(crate) fn of(socket: &SocketState) -> Option<c_int> {
    socket.reservation.get()
}

/// Releases it: something else holds the name, or it is not needed any more.
pub(crate) fn release(socket: &SocketState) {
    socket.reservation.close();
}
