//! Hidden descriptors: descriptors of this library that belong to a socket of the program. They
//! have numbers that the program does not use, and each use checks that the file is still the same.
//!
//! 1. They are placed at numbers from [`LOWEST_HIDDEN`] up, are closed on exec, and are copied by
//!    fork, as the socket is.
//! 2. Programs close numbers that they did not open (`for fd in 3..1024`), and open others there.
//!    So the library also remembers the socket's cookie. A number that has become another file is
//!    left alone.

use std::ffi::c_int;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64};

use crate::system::sys::{self, address_mut, signed};
use crate::system::{kernel, seccomp};

/// Above the numbers of most programs, and within the soft limit that most have (1024).
const LOWEST_HIDDEN: usize = 512;

/// The number that the kernel gives to this socket and to no other.
pub(crate) fn cookie(fd: c_int) -> Option<u64> {
    let mut value = 0_u64;
    let mut length = size_of_val(&value) as libc::socklen_t;
    let (to, size) = (address_mut(&raw mut value), address_mut(&raw mut length));
    let arguments = [signed(fd), signed(libc::SOL_SOCKET), signed(libc::SO_COOKIE), to, size, 0];
    // SAFETY: the kernel writes eight bytes, and the length.
    unsafe { sys::syscall(libc::SYS_getsockopt, arguments) }.ok().map(|_| value)
}

/// A place for one.
#[derive(Debug)]
pub(crate) struct HiddenDescriptor {
    /// The number plus one; 0 for none.
    number: AtomicU32,
    cookie: AtomicU64,
}

impl HiddenDescriptor {
    /// Forgets what an earlier socket had here.
    pub(crate) fn clear(&self) {
        self.number.store(0, Relaxed);
    }

    /// Keeps a copy of a socket, in place of what was kept before. False: no number from
    /// [`LOWEST_HIDDEN`] up is free; nothing is kept then.
    pub(crate) fn keep_copy(&self, socket: c_int) -> bool {
        let Some(cookie) = cookie(socket) else { return false };
        if self.get().is_some() && self.cookie.load(Acquire) == cookie {
            return true;
        }
        self.close();
        let Ok(copy) = kernel::fcntl(socket, libc::F_DUPFD_CLOEXEC, LOWEST_HIDDEN) else { return false };
        self.store(copy as c_int, cookie);
        true
    }

    /// Keeps a socket at the number that it has. A file that is no socket cannot be checked later,
    /// and stays the caller's.
    pub(crate) fn keep(&self, socket: c_int) {
        if let Some(cookie) = cookie(socket) {
            self.store(socket, cookie);
        }
    }

    fn store(&self, socket: c_int, cookie: u64) {
        self.cookie.store(cookie, Release);
        self.number.store(socket.cast_unsigned() + 1, Release);
    }

    /// The number at which a descriptor was kept, even if the number names another file now.
    pub(crate) fn number(&self) -> Option<c_int> {
        self.number.load(Acquire).checked_sub(1).map(u32::cast_signed)
    }

    /// The kept descriptor, if it is still the same file.
    pub(crate) fn get(&self) -> Option<c_int> {
        let number = self.number()?;
        (cookie(number)? == self.cookie.load(Acquire)).then_some(number)
    }

    /// Closes it.
    pub(crate) fn close(&self) {
        // A filter may forbid the check; such a process is one of many, and soon ends.
        if self.number.load(Relaxed) == 0 || seccomp::is_restricted() {
            return;
        }
        let kept = self.get();
        if self.number.swap(0, AcqRel) != 0
            && let Some(number) = kept
        {
            let _ = kernel::close(number);
        }
    }
}
