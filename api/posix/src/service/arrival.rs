//! Connections that arrive at a listener: taking one where a single descriptor is free, and
//! resetting all that wait.
//!
//! 1. A connection arrives as three descriptors, of which one stays; the kernel's `accept` needs
//!    one. Only one may be free, and the limit may not be raised. Then a child with a copy of the
//!    descriptor table ([`crate::descriptor::copied_table`]) reads the arrival without taking it
//!    (MSG_PEEK). The child maps the memory of the connection. Then the caller takes the arrival
//!    with room for its first descriptor; the kernel drops the others
//!    ([`take_with_one_descriptor`]).
//! 2. Another thread or process that accepts from the same listener may have been faster. So the
//!    socket that was seen and the one that was taken are compared. If they differ, the one that
//!    was taken cannot be used. It is closed, which resets that connection, as Linux may end a
//!    connection before it is accepted.

use std::ffi::c_int;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, IntoRawFd as _, OwnedFd};

use rustix::net::RecvFlags;
use sietch_protocol::socket_service::{
    self as protocol, ARRIVAL_BYTES, Arrival, ArrivalKind, Descriptors, Incoming,
};
use sietch_ring::stream::Endpoint;

use crate::descriptor::copied_table::in_child;
use crate::descriptor::hidden;
use crate::system::sys::Errno;

/// Drops the connections that wait to be accepted, which resets them.
pub(crate) fn refuse_all(fd: c_int) {
    let mut received = Descriptors::default();
    // SAFETY: the descriptor is open for the time of the call.
    let placeholder = unsafe { BorrowedFd::borrow_raw(fd) };
    let flags = RecvFlags::DONTWAIT;
    while let Ok(Incoming::Arrived(_) | Incoming::Damaged | Incoming::NoRoom) =
        protocol::receive_arrival(placeholder, flags, &mut received)
    {}
}

/// The result of the child.
enum Peeked {
    /// A kernel socket, or something that is no connection.
    Nothing,
    Stream {
        end: Endpoint,
        /// Of its placeholder.
        cookie: u64,
    },
}

/// The connection that was taken.
#[derive(Debug)]
pub(crate) enum Received {
    /// A connection with its placeholder, and its end.
    Stream(Arrival, Endpoint),
    /// The placeholder of a connection for which this process has no memory.
    Unmapped(OwnedFd),
    /// As [`protocol::receive_arrival`]: whatever needs no more than one descriptor.
    Other(Incoming),
}

/// Takes what waits at a listener, with one free descriptor, without sleeping.
///
/// # Errors
/// `EAGAIN`: nothing waits. `EMFILE`: no descriptor is free, or no child could be made.
/// `ECONNABORTED`: another was faster.
pub(crate) fn take_with_one_descriptor(
    listener: BorrowedFd<'_>,
    received: &mut Descriptors,
) -> Result<Received, Errno> {
    let mapped = match in_child(listener.as_raw_fd(), || peek(listener))? {
        Ok(Peeked::Nothing) => {
            let incoming = protocol::receive_arrival(listener, RecvFlags::DONTWAIT, received);
            return incoming.map(Received::Other).map_err(|errno| errno.raw_os_error());
        }
        Ok(Peeked::Stream { end, cookie }) => Some((end, cookie)),
        Err(libc::ENOMEM) => None,
        Err(errno) => return Err(errno),
    };
    let (arrival, placeholder) =
        protocol::receive_first(listener, RecvFlags::DONTWAIT).map_err(|errno| errno.raw_os_error())?;
    let Some(placeholder) = placeholder else { return Err(libc::EMFILE) };
    let Some((end, cookie)) = mapped else { return Ok(Received::Unmapped(placeholder)) };
    if arrival.kind() != ArrivalKind::Stream || hidden::cookie(placeholder.as_raw_fd()) != Some(cookie) {
        return Err(libc::ECONNABORTED);
    }
    received[0] = Some(placeholder);
    Ok(Received::Stream(arrival, end))
}

/// Reads the waiting message without taking it.
fn peek(listener: BorrowedFd<'_>) -> Result<Peeked, Errno> {
    let mut received = Descriptors::default();
    let mut bytes = [0; ARRIVAL_BYTES];
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    let found = protocol::receive_all(listener, &mut bytes, &mut received, flags, leak);
    let seen = match found {
        Ok((length, complete)) => match Arrival::parse(bytes.get(..length).unwrap_or_default()) {
            Ok(arrival) if arrival.kind() == ArrivalKind::Stream && complete => map(&received),
            Ok(arrival) if arrival.kind() == ArrivalKind::Stream => Err(libc::EMFILE),
            _ => Ok(Peeked::Nothing),
        },
        Err(errno) => Err(errno.raw_os_error()),
    };
    received.into_iter().flatten().for_each(leak);
    seen
}

/// Leaves a descriptor open until the child ends: its number is of the child's table, and the
/// library's `close` would forget what the program has at that number.
fn leak(descriptor: OwnedFd) {
    let _ = descriptor.into_raw_fd();
}

fn map(received: &Descriptors) -> Result<Peeked, Errno> {
    let [Some(placeholder), Some(common), Some(private), _] = received else {
        return Err(libc::ECONNABORTED);
    };
    let cookie = hidden::cookie(placeholder.as_raw_fd()).ok_or(libc::ECONNABORTED)?;
    let end = Endpoint::attach(common.as_fd(), private.as_fd()).map_err(|_| libc::ENOMEM)?;
    Ok(Peeked::Stream { end, cookie })
}
