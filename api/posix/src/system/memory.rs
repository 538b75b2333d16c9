//! Anonymous memory, mapped without an allocator.

use std::ffi::c_int;
use std::ptr::NonNull;

/// Anonymous memory of zeros: anywhere or, with `MAP_FIXED`, in the place of the mapping at
/// `place`, which the caller owns.
pub(crate) fn map(place: *mut u8, length: usize, sharing: c_int) -> Option<NonNull<u8>> {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let flags = sharing | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping, or one in the place of the caller's own.
    let start = unsafe { libc::mmap(place.cast(), length, access, flags, -1, 0) };
    if start == libc::MAP_FAILED { None } else { NonNull::new(start.cast()) }
}
