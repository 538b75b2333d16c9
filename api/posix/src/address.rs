//! Socket names (`sockaddr`) in the program's memory, and those of kernel sockets.

use std::ffi::c_int;
use std::net::IpAddr;

use libc::{sockaddr, socklen_t};
use sietch_protocol::socket_service::Name;

use crate::signal::user_memory::{self, copy_in};
use crate::system::sys::{self, Outcome, address_mut, signed};

/// Reads a `sockaddr` that the program connects to. None: neither IPv4 nor IPv6, too short, or not
/// there.
///
/// The unspecified address becomes the loopback address that Linux takes it for.
pub(crate) fn parse_destination(from: *const libc::sockaddr, length: libc::socklen_t) -> Option<Name> {
    let Name { mut bytes, length } = parse(from, length)?;
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
pub(crate) fn parse(from: *const libc::sockaddr, length: libc::socklen_t) -> Option<Name> {
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

/// The name of a kernel socket.
pub(crate) fn kernel_name(fd: c_int) -> Option<Name> {
    let mut name = Name { bytes: [0; 28], length: 28 };
    let (to, length) = (address_mut(name.bytes.as_mut_ptr()), address_mut(&raw mut name.length));
    // SAFETY: the kernel writes at most 28 bytes, and the length.
    unsafe { sys::syscall(libc::SYS_getsockname, [signed(fd), to, length, 0, 0, 0]) }.ok()?;
    name.address().map(|_| name)
}

/// Writes a name as the kernel does: as much as there is room for, and its whole length.
///
/// # Safety
/// `length` may be read and written, `to` written for as many bytes as it says.
pub(crate) unsafe fn write_name(name: &Name, to: *mut sockaddr, length: *mut socklen_t) -> Outcome {
    if length.is_null() {
        return Err(libc::EFAULT);
    }
    // SAFETY: the caller upholds this function's contract.
    let room = unsafe { user_memory::read(length) }?;
    if room.cast_signed() < 0 {
        return Err(libc::EINVAL);
    }
    let bytes = room.min(name.length).min(28) as usize;
    // SAFETY: the caller upholds this function's contract: `bytes` is at most what `length` said.
    unsafe {
        user_memory::write_bytes(to.cast(), name.bytes.as_ptr(), bytes)?;
        user_memory::write(length, name.length)?;
    }
    Ok(0)
}
