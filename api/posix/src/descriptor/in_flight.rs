//! Descriptors that calls under way hold, and that are none of the program's.
//!
//! 1. *Reserved*: Linux sets the number of the next connection aside before `accept` sleeps, so
//!    that whatever is opened meanwhile gets others. Here the number is taken by a descriptor that
//!    can do nothing (`O_PATH`: nearly every call on it is EBADF, as on a number that is not open),
//!    and the connection is put in its place.
//! 2. *Outliving*: a call that sleeps on a descriptor keeps what it sleeps on, on Linux, whoever
//!    closes the number. Here who closes it leaves the sleeper a second descriptor of the
//!    placeholder, beyond the numbers that programs use, which the last sleeper closes
//!    (`crate::connection::blocked`).
//! 3. *Sleeping*: the epolls of `crate::connection::doorbell`.
//! 4. All are written down in [`PLACES`], because a child of fork, in which those calls are not,
//!    has to close them, and because the program must not close them by accident. There is room for
//!    [`MOST`]; beyond that a call does without.

use std::ffi::c_int;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use std::sync::atomic::{AtomicI32, AtomicU32};

use crate::system::kernel;
use crate::system::sys::{self, Errno, address, signed};

/// Calls that sleep in accept, and closes under sleepers, at one time: a look through all of them
/// is paid only while there is one.
const MOST: usize = 64;

/// Descriptors plus one; 0 is free.
static PLACES: [AtomicI32; MOST] = [const { AtomicI32::new(0) }; MOST];

/// Places that are taken.
static TAKEN: AtomicU32 = AtomicU32::new(0);

/// A descriptor that is closed when this is dropped.
#[derive(Debug)]
pub(crate) struct Borrowed {
    place: &'static AtomicI32,
    fd: c_int,
}

impl Borrowed {
    /// Writes a new descriptor down; closed again if there is no place.
    fn of(fd: c_int) -> Option<Self> {
        let free = |place: &&AtomicI32| place.compare_exchange(0, fd + 1, AcqRel, Relaxed).is_ok();
        match PLACES.iter().find(free) {
            Some(place) => {
                TAKEN.fetch_add(1, AcqRel);
                Some(Self { place, fd })
            }
            None => {
                let _ = kernel::close(fd);
                None
            }
        }
    }

    /// Takes the lowest free number. None: it does without.
    ///
    /// # Errors
    /// `EMFILE`, `ENFILE`: there is none.
    pub(crate) fn lowest() -> Result<Option<Self>, Errno> {
        let flags = libc::O_PATH | libc::O_CLOEXEC;
        let arguments = [signed(libc::AT_FDCWD), address(c"/".as_ptr()), signed(flags), 0, 0, 0];
        // SAFETY: the kernel reads the path.
        match unsafe { sys::ask(libc::SYS_openat, arguments) } {
            Ok(fd) => Ok(Self::of(fd as c_int)),
            Err(errno @ (libc::EMFILE | libc::ENFILE)) => Err(errno),
            // A sandbox.
            Err(_) => Ok(None),
        }
    }

    /// A second descriptor of what `fd` is, in the upper half of the numbers that the process may
    /// have.
    pub(crate) fn second(fd: c_int) -> Option<Self> {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: the kernel writes a limit there.
        unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
        let lowest = usize::try_from(limit.rlim_cur / 2).unwrap_or(0);
        let new = kernel::fcntl(fd, libc::F_DUPFD_CLOEXEC, lowest).ok()?;
        Self::of(new as c_int)
    }

    /// Its number.
    pub(crate) fn fd(&self) -> c_int {
        self.fd
    }

    /// Puts `new` in its place: the number is the program's now.
    pub(crate) fn become_of_program(self, new: c_int) -> c_int {
        if kernel::dup3(new, self.fd, libc::O_CLOEXEC).is_err() {
            return new;
        }
        let _ = kernel::close(new);
        let fd = self.fd;
        self.forget();
        fd
    }

    /// As a number, to be given to [`close`].
    pub(crate) fn into_number(self) -> c_int {
        let fd = self.fd;
        std::mem::forget(self);
        fd
    }

    fn forget(self) {
        release(self.place);
        std::mem::forget(self);
    }
}

impl Drop for Borrowed {
    fn drop(&mut self) {
        release(self.place);
        let _ = kernel::close(self.fd);
    }
}

fn release(place: &AtomicI32) {
    place.store(0, Relaxed);
    TAKEN.fetch_sub(1, AcqRel);
}

/// Closes a descriptor of [`Borrowed::into_number`].
pub(crate) fn close(fd: c_int) {
    if let Some(place) = PLACES.iter().find(|place| place.load(Acquire) == fd + 1) {
        drop(Borrowed { place, fd });
    }
}

/// Whether a number is held by a call under way. One load if there is no such call.
#[inline]
pub(crate) fn is_borrowed(fd: c_int) -> bool {
    TAKEN.load(Acquire) != 0
        && fd >= 0
        && PLACES.iter().any(|place| place.load(Acquire) == fd.wrapping_add(1))
}

/// In the child of a fork: the calls that held them are not here.
pub(crate) fn after_fork() {
    for place in &PLACES {
        let fd = place.swap(0, AcqRel) - 1;
        if fd >= 0 {
            let _ = kernel::close(fd);
        }
    }
    TAKEN.store(0, Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_open(fd: c_int) -> bool {
        kernel::fcntl(fd, libc::F_GETFD, 0).is_ok()
    }

    #[test]
    fn a_number_is_set_aside_and_then_the_programs() {
        let borrowed = Borrowed::lowest().expect("a number").expect("a place");
        let fd = borrowed.fd();
        assert!(is_borrowed(fd) && is_open(fd));
        assert_eq!(
            kernel::receive(fd, &mut [0], libc::MSG_DONTWAIT),
            Err(libc::EBADF),
            "as if it were not open"
        );
        let new = kernel::socket(libc::AF_UNIX, libc::SOCK_STREAM, 0).expect("a socket") as c_int;
        assert_eq!(borrowed.become_of_program(new), fd);
        assert!(!is_borrowed(fd) && is_open(fd));
        assert_eq!(
            kernel::receive(fd, &mut [0], libc::MSG_DONTWAIT),
            Err(libc::EINVAL),
            "an unconnected socket"
        );
        kernel::close(fd).expect("it is open");
    }

    #[test]
    fn a_second_one_lies_out_of_the_way_and_is_closed() {
        let fd = kernel::socket(libc::AF_UNIX, libc::SOCK_STREAM, 0).expect("a socket") as c_int;
        let second = Borrowed::second(fd).expect("a number").into_number();
        assert!(second > fd && is_borrowed(second) && is_open(second));
        close(second);
        assert!(!is_borrowed(second) && !is_open(second));
        kernel::close(fd).expect("it is open");
    }
}
