//! `open` and its relatives: the kernel opens, and a file of a mount gets a word.

use std::ffi::{c_char, c_int};

use crate::files::state::{File, with};
use crate::files::{mounts, words};
use crate::signal::handlers;
use crate::system::originals;

/// `openat(2)`.
///
/// # Safety
/// As `openat(2)`.
pub unsafe fn openat(folder: c_int, path: *const c_char, flags: c_int, mode: usize) -> c_int {
    // SAFETY: the caller upholds this function's contract.
    let fd = unsafe { originals::openat(folder, path, flags, mode) };
    adopt(fd, flags);
    fd
}

/// `open(2)`.
///
/// # Safety
/// As `open(2)`.
pub unsafe fn open(path: *const c_char, flags: c_int, mode: usize) -> c_int {
    // SAFETY: the caller upholds this function's contract.
    unsafe { openat(libc::AT_FDCWD, path, flags, mode) }
}

/// `mkostemps(3)`; the caller adopts the descriptor.
///
/// # Safety
/// As `mkostemps(3)`.
pub unsafe fn mkostemps(template: *mut c_char, suffix: c_int, flags: c_int) -> c_int {
    // SAFETY: the caller upholds this function's contract.
    unsafe { originals::mkostemps(template, suffix, flags) }
}

/// Takes a descriptor that the kernel has just opened, or an error.
pub fn adopt(fd: c_int, flags: c_int) {
    if fd < 0 || !mounts::are_any() {
        return;
    }
    forget(fd);
    if flags & libc::O_PATH != 0 || handlers::is_running() {
        return;
    }
    let Some(identity) = mounts::identify(fd) else { return };
    let mode = flags & libc::O_ACCMODE;
    let file = File::new(
        identity,
        (mode != libc::O_WRONLY, mode != libc::O_RDONLY),
        (flags & libc::O_APPEND != 0, flags & libc::O_DSYNC != 0),
    );
    with(|state| state.put(fd, file));
}

/// The number of a descriptor is another file's now, or will be used past this library.
pub(crate) fn forget(fd: c_int) {
    let word = words::take(fd);
    if word != 0 {
        with(|state| state.close(word));
    }
}
