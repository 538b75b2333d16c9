//! `sendfile`, `splice` and `copy_file_range`: the kernel moves the bytes. It may not know how long
//! a file is that this process has written, and asks the mount first ([`mounts::refresh`]).

use std::ffi::{c_int, c_uint};

use libc::{off_t, size_t, ssize_t};

use crate::calls::data;
use crate::files::mounts;
use crate::system::originals;

fn refresh(fd: c_int) {
    // Also where the library does not know the descriptor: it was inherited, or is a stream's.
    if mounts::identify(fd).is_some() {
        mounts::refresh(fd);
    }
}

/// `sendfile(2)`.
///
/// # Safety
/// As `sendfile(2)`.
pub unsafe fn sendfile(out: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t {
    refresh(from);
    refresh(out);
    // SAFETY: the caller upholds this function's contract.
    unsafe { data::sendfile(out, from, offset, count) }
}

/// `splice(2)`.
///
/// # Safety
/// As `splice(2)`.
pub unsafe fn splice(
    from: c_int,
    from_offset: *mut i64,
    to: c_int,
    to_offset: *mut i64,
    length: size_t,
    flags: c_uint,
) -> ssize_t {
    refresh(from);
    refresh(to);
    // SAFETY: the caller upholds this function's contract.
    unsafe { data::splice(from, from_offset, to, to_offset, length, flags) }
}

/// `copy_file_range(2)`.
///
/// # Safety
/// As `copy_file_range(2)`.
pub unsafe fn copy_file_range(
    from: c_int,
    from_offset: *mut i64,
    to: c_int,
    to_offset: *mut i64,
    length: size_t,
    flags: c_uint,
) -> ssize_t {
    refresh(from);
    refresh(to);
    // SAFETY: the caller upholds this function's contract.
    unsafe { originals::copy_file_range(from, from_offset, to, to_offset, length, flags) }
}
