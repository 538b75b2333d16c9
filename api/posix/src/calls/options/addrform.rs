//! `IPV6_ADDRFORM`: a connection between mapped addresses becomes one of IPv4. Programs that serve
//! both families by one listener set it.
//!
//! Linux allows it for a TCP connection in TCP_ESTABLISHED whose peer is `::ffff:a.b.c.d`. From
//! then on the socket is of AF_INET for all its holders, also after fork and exec: the end
//! remembers it among its options ([`crate::connection::names`]).

use std::ffi::{c_int, c_void};
use std::sync::atomic::Ordering::{Acquire, Release};

use libc::socklen_t;
use sietch_protocol::socket_service::Name;
use sietch_ring::stream::{Endpoint, flag, option, state};

use crate::connection::names::{INDEX, follow, unmapped};
use crate::connection::{option_words, status};
use crate::descriptor::description::Held;
use crate::signal::user_memory;
use crate::system::sys::{Errno, Outcome};

/// Whether the connection's state is Linux's TCP_ESTABLISHED.
fn is_established(end: &Endpoint) -> bool {
    end.private().state.load(Acquire) == state::ESTABLISHED
        && end.private().flags.load(Acquire) & (flag::SHUT_WR | flag::HUNG_UP | flag::RESET) == 0
        && !end.finished_by_peer()
}

/// `setsockopt` of it on a connection of IPv6.
///
/// # Errors
/// As `setsockopt(2)`.
pub(crate) fn set(
    fd: c_int,
    held: &Held,
    end: &Endpoint,
    value: *const c_void,
    length: socklen_t,
) -> Outcome {
    if (length as usize) < size_of::<c_int>() {
        return Err(libc::EINVAL);
    }
    let mut family = [0; size_of::<c_int>()];
    user_memory::copy_in(value.cast(), &mut family)?;
    if c_int::from_ne_bytes(family) != libc::AF_INET {
        return Err(libc::EINVAL);
    }
    status::refresh(fd, held);
    check_convertible(end)?;
    end.private().options[INDEX].store(option::SET | 1, Release);
    follow(held);
    Ok(0)
}

fn check_convertible(end: &Endpoint) -> Result<(), Errno> {
    if !is_established(end) {
        return Err(libc::ENOTCONN);
    }
    let names = end.names();
    let peer = Name { bytes: names.peer, length: names.peer_length };
    let alone = option_words::get(end, option_words::ONLY_IPV6).is_some_and(|only| only != 0);
    if alone || unmapped(&peer).is_none() { Err(libc::EADDRNOTAVAIL) } else { Ok(()) }
}

/// The value that `getsockopt` returns for it: the family.
///
/// # Errors
/// `ENOTCONN`.
pub(crate) fn get(end: &Endpoint) -> Result<c_int, Errno> {
    if is_established(end) { Ok(libc::AF_INET6) } else { Err(libc::ENOTCONN) }
}
