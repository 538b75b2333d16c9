//! Whether a previous service core may still write to a volume.
//!
//! 1. The control plane opens the volume's file anew for a service core. It takes a lock of that
//!    *open file description* (`F_OFD_SETLK`) before it passes the descriptor on. It keeps no copy.
//! 2. The lock lives as long as the description, and a request in flight holds the description. So
//!    a free lock proves that no write of a previous service core can land any more. That holds
//!    even if that core was killed with writes in flight.
//! 3. The lock says nothing to `flock(2)`, by which the control plane holds the volume for itself.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

/// The byte that is locked: the first, of which every volume has one.
const PLACE: libc::off_t = 0;

/// See the module's account.
#[derive(Debug)]
pub struct VolumeLease;

impl VolumeLease {
    /// The file at `path`, opened anew and locked, to be passed to a service core.
    ///
    /// # Errors
    /// Those of `open(2)`; `WouldBlock`: a previous service core has it, or its last requests are
    /// in flight.
    pub fn take(path: &Path) -> io::Result<OwnedFd> {
        let file = File::options().read(true).write(true).open(path)?;
        let request = lock(libc::F_WRLCK);
        // SAFETY: the descriptor is open, and the kernel only reads the structure.
        if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const request) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(file.into())
    }

    /// Whether a service core has the volume whose file `file` is open as well, or requests of one
    /// are in flight.
    ///
    /// # Errors
    /// Those of `fcntl(2)`.
    pub fn is_held(file: impl AsFd) -> io::Result<bool> {
        let mut request = lock(libc::F_WRLCK);
        // SAFETY: the descriptor is open, and the structure is a whole local value.
        if unsafe { libc::fcntl(file.as_fd().as_raw_fd(), libc::F_OFD_GETLK, &raw mut request) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(i32::from(request.l_type) != libc::F_UNLCK)
    }
}

fn lock(kind: libc::c_int) -> libc::flock {
    libc::flock {
        // Small constants of the system's.
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: PLACE,
        l_len: 1,
        // Must be zero for locks of a description.
        l_pid: 0,
    }
}
