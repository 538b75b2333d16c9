//! `getsockopt` and `setsockopt`, by descriptor.

use std::ffi::{c_int, c_void};

use libc::socklen_t;

use crate::table::{self, Kind};
use crate::{options, real, sys};

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
        // SAFETY: the caller's.
        Some(held) => sys::give_int(unsafe { options::get(fd, &held, level, name, value, length) }),
        // SAFETY: the caller's.
        None => unsafe { real::getsockopt(fd, level, name, value, length) },
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
        // SAFETY: the caller's.
        Some(held) => sys::give_int(unsafe { options::set(fd, &held, level, name, value, length) }),
        // SAFETY: the caller's.
        None => unsafe { real::setsockopt(fd, level, name, value, length) },
    }
}
