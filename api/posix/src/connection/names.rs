//! Names of a connection's two ends, as the program sees them.
//!
//! A connection whose option `IPV6_ADDRFORM` was set is one of IPv4
//! ([`crate::calls::options::addrform`]): its names are reported in that form. The names in the
//! end's page stay as they were.

use std::ffi::c_int;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

use sietch_protocol::socket_service::Name;
use sietch_ring::stream::{Endpoint, option, state};

use crate::connection::option_words;
use crate::connection::status::is_over;
use crate::descriptor::description::Held;

/// The index of the option: the last one, which no option that `getsockopt` returns has.
pub(crate) const INDEX: usize = option::COUNT - 1;

/// The first twelve bytes of a mapped address.
const PREFIX: [u8; 12] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];

/// Whether a connection has become one of IPv4.
fn is_ipv4(end: &Endpoint) -> bool {
    option_words::get(end, INDEX).is_some()
}

/// Takes note of what another holder of the end has done.
pub(crate) fn follow(held: &Held) {
    if held.end().is_some_and(is_ipv4) {
        held.socket.domain.store(libc::AF_INET.cast_unsigned(), Relaxed);
    }
}

/// A name of a connection in the form that the program sees.
pub(crate) fn reported(end: &Endpoint, name: Name) -> Name {
    if is_ipv4(end) { unmapped(&name).unwrap_or(name) } else { name }
}

/// The `sockaddr_in` of a `sockaddr_in6` with a mapped address, or with none at all.
pub(crate) fn unmapped(name: &Name) -> Option<Name> {
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

/// The name of the peer, if this is an established connection.
pub(crate) fn peer_of(held: &Held) -> Option<([u8; 28], u32)> {
    let end = held.end()?;
    let names = end.names();
    let peer = reported(end, Name { bytes: names.peer, length: names.peer_length });
    (end.private().state.load(Acquire) == state::ESTABLISHED && !is_over(end))
        .then_some((peer.bytes, peer.length))
}
