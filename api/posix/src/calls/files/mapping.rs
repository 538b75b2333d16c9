//! `mmap`: a file that is mapped is the kernel's. Its pages are the mount's, and a write of a
//! client would not be seen in them.

use std::ffi::{c_int, c_void};

use libc::{off_t, size_t};

use crate::files::mounts;
use crate::files::state::with;
use crate::system::originals;
use crate::system::sys;

/// `mmap(2)`.
///
/// # Safety
/// As `mmap(2)`.
pub unsafe fn mmap(
    at: *mut c_void,
    length: size_t,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: off_t,
) -> *mut c_void {
    if fd >= 0
        && flags & libc::MAP_ANONYMOUS == 0
        && let Some(identity) = mounts::identify(fd)
    {
        let before = sys::errno();
        with(|state| state.map(identity));
        mounts::say_mapped(fd);
        // The kernel may not know yet how long the file is: a page beyond that is a fault.
        mounts::refresh(fd);
        sys::set_errno(before);
    }
    // SAFETY: the caller upholds this function's contract.
    unsafe { originals::mmap(at, length, protection, flags, fd, offset) }
}
