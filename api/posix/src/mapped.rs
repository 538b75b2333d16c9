//! `IPV6_ADDRFORM`: a connection between mapped addresses becomes one of IPv4, as programs ask for
//! it that serve both families by one listener.
//!
//! 1. Linux does it for a TCP connection in TCP_ESTABLISHED whose peer is `::ffff:a.b.c.d`. From
//!    then on the socket is one of AF_INET, for everybody who holds it.
//! 2. It is remembered among the options of the end, so that it outlives fork and exec. Names are
//!    told in the other form; those in the end's page stay.

use std::ffi::{c_int, c_void};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use libc::socklen_t;
use sietch_protocol::socket_service::Name;
use sietch_ring::stream::option;

use crate::end::{End, flag, state};
use crate::sys::{Errno, Outcome};
use crate::table::Held;
use crate::{local, options, socket};

/// The place of the option: the last one, which no option that is told back has.
const PLACE: usize = option::COUNT - 1;

/// The first twelve bytes of a mapped address.
const PREFIX: [u8; 12] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];

/// Whether a connection has become one of IPv4.
fn is_ipv4(end: &End) -> bool {
    options::of_end(end, PLACE).is_some()
}

/// Takes note of what another holder of the end has done.
pub fn follow(held: &Held) {
    if held.end().is_some_and(is_ipv4) {
        held.facts.domain.store(libc::AF_INET.cast_unsigned(), Relaxed);
    }
}

/// A name of a connection as it is told.
pub fn told(end: &End, name: Name) -> Name {
    if is_ipv4(end) { unmapped(&name).unwrap_or(name) } else { name }
}

/// The `sockaddr_in` of a `sockaddr_in6` with a mapped address, or with none at all.
fn unmapped(name: &Name) -> Option<Name> {
    let family = c_int::from(u16::from_ne_bytes([name.bytes[0], name.bytes[1]]));
    if family != libc::AF_INET6 || name.bytes[8..20] != PREFIX {
        return None;
    }
    let mut bytes = [0; 28];
    bytes[..2].copy_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
    bytes[2..4].copy_from_slice(&name.bytes[2..4]);
    bytes[4..8].copy_from_slice(&name.bytes[20..24]);
    Some(Name { bytes, length: 16 })
}

/// Whether the connection's state is Linux's TCP_ESTABLISHED.
fn is_established(end: &End) -> bool {
    end.private().state.load(Acquire) == state::ESTABLISHED
        && end.private().flags.load(Acquire) & (flag::SHUT_WR | flag::HUNG_UP | flag::RESET) == 0
        && !end.finished_by_peer()
}

/// `setsockopt` of it on a connection of IPv6.
///
/// # Errors
/// As `setsockopt(2)`.
pub fn set(fd: c_int, held: &Held, end: &End, value: *const c_void, length: socklen_t) -> Outcome {
    if (length as usize) < size_of::<c_int>() {
        return Err(libc::EINVAL);
    }
    let mut family = [0; size_of::<c_int>()];
    local::copy_in(value.cast(), &mut family)?;
    if c_int::from_ne_bytes(family) != libc::AF_INET {
        return Err(libc::EINVAL);
    }
    socket::look_again(fd, held);
    may_become(end)?;
    end.private().options[PLACE].store(option::SET | 1, Release);
    follow(held);
    Ok(0)
}

fn may_become(end: &End) -> Result<(), Errno> {
    if !is_established(end) {
        return Err(libc::ENOTCONN);
    }
    let names = end.names();
    let peer = Name { bytes: names.peer, length: names.peer_length };
    let alone = options::of_end(end, options::ONLY_IPV6).is_some_and(|only| only != 0);
    if alone || unmapped(&peer).is_none() { Err(libc::EADDRNOTAVAIL) } else { Ok(()) }
}

/// What `getsockopt` says of it: the family.
///
/// # Errors
/// `ENOTCONN`.
pub fn get(end: &End) -> Result<c_int, Errno> {
    if is_established(end) { Ok(libc::AF_INET6) } else { Err(libc::ENOTCONN) }
}
