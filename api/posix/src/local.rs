//! Whether a destination is on this host, so that asking the service pays.
//!
//! 1. Loopback addresses and the unspecified one (which Linux takes for loopback) are.
//! 2. For others the kernel's routing decides: a UDP socket that is connected there (no packet leaves) gets as its own name the
//!    destination itself, if that is local.

use std::ffi::c_int;
use std::net::{IpAddr, SocketAddr};

use sietch_protocol::socket_service::Name;

use crate::sys::{self, address, address_mut, signed};

/// Reads a `sockaddr` that the program gave. None: neither IPv4 nor IPv6, or too short.
///
/// # Safety
/// `from` may be read for `length` bytes.
pub unsafe fn name(from: *const libc::sockaddr, length: libc::socklen_t) -> Option<Name> {
    if from.is_null() || (length as usize) < 16 {
        return None;
    }
    // SAFETY: the caller's; at least sixteen bytes, of any alignment.
    let family = c_int::from(unsafe { from.cast::<u16>().read_unaligned() });
    let bytes = match family {
        libc::AF_INET => 16,
        libc::AF_INET6 if length >= 28 => 28,
        // The kernel takes an IPv6 name without the scope.
        libc::AF_INET6 if length >= 24 => 24,
        _ => return None,
    };
    let mut name = Name { bytes: [0; 28], length: if family == libc::AF_INET { 16 } else { 28 } };
    // SAFETY: the caller's: `bytes <= length`.
    unsafe { std::ptr::copy_nonoverlapping(from.cast::<u8>(), name.bytes.as_mut_ptr(), bytes) };
    if family == libc::AF_INET {
        // Padding, which some programs leave uninitialised.
        name.bytes[8..16].fill(0);
    }
    Some(name)
}

/// Whether packets to this name stay on this host.
pub fn is_local(name: &Name) -> bool {
    let Some(address) = name.address() else { return false };
    let ip = address.ip().to_canonical();
    if ip.is_loopback() || ip.is_unspecified() {
        return true;
    }
    if ip.is_multicast() || matches!(ip, IpAddr::V4(ip) if ip.is_broadcast()) {
        return false;
    }
    routed_here(name, address).unwrap_or(false)
}

fn routed_here(name: &Name, destination: SocketAddr) -> Option<bool> {
    let domain = if destination.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let socket = sys::socket(domain, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0).ok()?;
    let fd = c_int::try_from(socket).ok()?;
    let mut own = Name::NONE;
    own.length = 28;
    let (to, length) = (address(name.bytes.as_ptr()), name.length as usize);
    // SAFETY: the kernel reads the name.
    let connected = unsafe { sys::ask(libc::SYS_connect, [signed(fd), to, length, 0, 0, 0]) };
    let (out, size) = (address_mut(own.bytes.as_mut_ptr()), address_mut(&raw mut own.length));
    // SAFETY: the kernel writes at most 28 bytes, and the length.
    let named =
        connected.and_then(|_| unsafe { sys::ask(libc::SYS_getsockname, [signed(fd), out, size, 0, 0, 0]) });
    let _ = sys::close(fd);
    named.ok()?;
    Some(own.address()?.ip() == destination.ip())
}
