//! What the kernel keeps for a file of a mount: the position; and the time.

use std::ffi::c_int;

use libc::off_t;
use sietch_fs::inode::Timestamp;

use crate::system::sys::{self, Outcome, signed};

/// `lseek(2)`, the kernel's.
pub(crate) fn seek(fd: c_int, offset: off_t, whence: c_int) -> Outcome {
    // SAFETY: touches no memory.
    unsafe { sys::syscall(libc::SYS_lseek, [signed(fd), offset as usize, signed(whence), 0, 0, 0]) }
}

/// Now, as files have it.
pub(crate) fn now() -> Timestamp {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the clock writes the time there.
    unsafe { libc::clock_gettime(libc::CLOCK_REALTIME, &raw mut time) };
    Timestamp { seconds: time.tv_sec, nanoseconds: time.tv_nsec as u32 }
}
