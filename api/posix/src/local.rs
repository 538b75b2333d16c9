//! Whether a destination is on this host, so that asking the service pays.
//!
//! 1. Loopback addresses and the unspecified one (which Linux takes for loopback) are.
//! 2. For others the kernel's routing decides: a UDP socket that is connected there (no packet
//!    leaves) gets as its own name the destination itself, if that is local.

use std::ffi::c_int;
use std::net::{IpAddr, SocketAddr};

use sietch_protocol::socket_service::Name;

use crate::sys::{self, Errno, address, address_mut, signed};

/// Copies what a program points at, which may be nothing.
///
/// # Errors
/// `EFAULT`.
#[allow(
    clippy::not_unsafe_ptr_arg_deref,
    reason = "an address of a program, which may be any; only a sandbox makes this code read it"
)]
pub fn copy_in(from: *const u8, to: &mut [u8]) -> Result<(), Errno> {
    let own = libc::iovec { iov_base: to.as_mut_ptr().cast(), iov_len: to.len() };
    let foreign = libc::iovec { iov_base: from.cast_mut().cast(), iov_len: to.len() };
    // SAFETY: touches no memory.
    let process = unsafe { sys::call(libc::SYS_getpid, [0; 6]) }.cast_unsigned();
    let arguments = [process, address(&raw const own), 1, address(&raw const foreign), 1, 0];
    // SAFETY: the kernel writes `to.len()` bytes to `to`; what it reads it judges itself.
    match unsafe { sys::ask(libc::SYS_process_vm_readv, arguments) } {
        Ok(bytes) if bytes == to.len() => Ok(()),
        Ok(_) | Err(libc::EFAULT) => Err(libc::EFAULT),
        // A sandbox forbids the call: then as any function of the C library.
        Err(_) if !from.is_null() => {
            // SAFETY: the caller of the C library's function promised it.
            unsafe { std::ptr::copy_nonoverlapping(from, to.as_mut_ptr(), to.len()) };
            Ok(())
        }
        Err(_) => Err(libc::EFAULT),
    }
}

/// Reads a `sockaddr` that the program connects to. None: neither IPv4 nor IPv6, too short, or not
/// there.
///
/// The unspecified address is put as the loopback address that Linux takes it for.
pub fn name(from: *const libc::sockaddr, length: libc::socklen_t) -> Option<Name> {
    let Name { mut bytes, length } = given(from, length)?;
    match (Name { bytes, length }).address().map(|name| name.ip()) {
        Some(IpAddr::V4(ip)) if ip.is_unspecified() => bytes[4..8].copy_from_slice(&[127, 0, 0, 1]),
        Some(IpAddr::V6(ip)) if ip.is_unspecified() => bytes[23] = 1,
        Some(IpAddr::V6(ip)) if ip.to_ipv4_mapped().is_some_and(|ip| ip.is_unspecified()) => {
            bytes[20..24].copy_from_slice(&[127, 0, 0, 1]);
        }
        _ => {}
    }
    Some(Name { bytes, length })
}

/// The same as it was given.
pub fn given(from: *const libc::sockaddr, length: libc::socklen_t) -> Option<Name> {
    if (length as usize) < 16 {
        return None;
    }
    let mut bytes = [0; 28];
    // The kernel takes an IPv6 name without the scope.
    let there = (length as usize).min(28);
    copy_in(from.cast(), bytes.get_mut(..there)?).ok()?;
    let family = c_int::from(u16::from_ne_bytes([bytes[0], bytes[1]]));
    match family {
        libc::AF_INET => {
            // Padding, which some programs leave uninitialised.
            bytes[8..].fill(0);
            Some(Name { bytes, length: 16 })
        }
        libc::AF_INET6 if there >= 24 => Some(Name { bytes, length: 28 }),
        _ => None,
    }
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
