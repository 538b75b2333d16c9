//! `getsockopt` and `setsockopt`, by descriptor.
//!
//! Setting `SO_ZEROCOPY` is refused for every TCP socket, as by a kernel that lacks it. Nothing is
//! ever sent without a copy, and a program that was granted the option would wait for completions.
//! Whether a socket becomes ours is not known when the option is set.

use std::ffi::{c_int, c_void};
use std::sync::atomic::Ordering::Relaxed;

use libc::socklen_t;

use crate::connection::names;
use crate::descriptor::description::{Held, Kind};
use crate::descriptor::table;
use crate::signal::user_memory;
use crate::system::originals;
use crate::system::sys::{self, Outcome};

pub(crate) mod addrform;
pub(crate) mod get;
pub(crate) mod set;

/// `SO_ZEROCOPY` of the kernel's headers.
const ZEROCOPY: c_int = 60;

/// `getsockopt(2)`.
///
/// # Safety
/// As `getsockopt(2)`.
pub unsafe fn getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    length: *mut socklen_t,
) -> c_int {
    match table::find(fd).filter(|held| held.kind() != Kind::Epoll) {
        // SAFETY: the caller upholds this function's contract.
        Some(held) => sys::to_c_int(unsafe { get_option(fd, &held, level, name, value, length) }),
        // SAFETY: the caller upholds this function's contract.
        None => unsafe { originals::getsockopt(fd, level, name, value, length) },
    }
}

/// `setsockopt(2)`.
///
/// # Safety
/// As `setsockopt(2)`.
pub unsafe fn setsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    length: socklen_t,
) -> c_int {
    match table::find(fd).filter(|held| held.kind() != Kind::Epoll) {
        // SAFETY: the caller upholds this function's contract.
        Some(held) => sys::to_c_int(unsafe { set_option(fd, &held, level, name, value, length) }),
        // SAFETY: the caller upholds this function's contract.
        None => unsafe { originals::setsockopt(fd, level, name, value, length) },
    }
}

/// # Safety
/// As `getsockopt(2)`.
unsafe fn get_option(
    fd: c_int,
    held: &Held,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    length: *mut socklen_t,
) -> Outcome {
    names::follow(held);
    match (level, name, held.end()) {
        (libc::IPPROTO_IPV6, libc::IPV6_ADDRFORM, Some(end)) if is_ipv6(held) => {
            let family = addrform::get(end)?;
            // SAFETY: the caller upholds this function's contract.
            unsafe { get::write_number(value, length, family) }
        }
        // SAFETY: the caller upholds this function's contract.
        _ => unsafe { get::get(fd, held, level, name, value, length) },
    }
}

/// # Safety
/// As `setsockopt(2)`.
unsafe fn set_option(
    fd: c_int,
    held: &Held,
    level: c_int,
    name: c_int,
    value: *const c_void,
    length: socklen_t,
) -> Outcome {
    names::follow(held);
    match (level, name, held.end()) {
        (libc::SOL_SOCKET, ZEROCOPY, _) if length >= 4 => {
            let mut number = [0; 4];
            user_memory::copy_in(value.cast(), &mut number)?;
            if c_int::from_ne_bytes(number) == 1 {
                return Err(libc::ENOPROTOOPT);
            }
            // SAFETY: the caller upholds this function's contract.
            unsafe { set::set(fd, held, level, name, value, length) }
        }
        (libc::IPPROTO_IPV6, libc::IPV6_ADDRFORM, Some(end)) if is_ipv6(held) => {
            addrform::set(fd, held, end, value, length)
        }
        // SAFETY: the caller upholds this function's contract.
        _ => unsafe { set::set(fd, held, level, name, value, length) },
    }
}

fn is_ipv6(held: &Held) -> bool {
    held.socket.domain.load(Relaxed) == libc::AF_INET6.cast_unsigned()
}
