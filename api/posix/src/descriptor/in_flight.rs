//! In-flight descriptors: descriptors that running calls hold, and that do not belong to the
//! program.
//!
//! 1. *Reserved*: Linux reserves the number of the next connection before `accept` sleeps, so that
//!    descriptors opened meanwhile get other numbers. Here a descriptor without function takes the
//!    number (`O_PATH`: nearly every call on it gives EBADF, as on a number that is not open). The
//!    connection is then put in its place.
//! 2. *Outliving*: on Linux a call that sleeps on a descriptor keeps its file, also when another
//!    thread closes the number. Here the closing thread leaves the sleeper a second descriptor of
//!    the placeholder, above the numbers that programs use. The last sleeper closes it
//!    ([`crate::connection::blocked`]).
//! 3. *Sleeping*: the epolls of [`crate::connection::edges`].
//! 4. All are recorded in [`ENTRIES`]: a child of fork, in which those calls do not run, has to
//!    close them, and the program must not close them by accident. There is room for
//!    [`MAX_ENTRIES`]; a call beyond that has no reserved number.

use std::ffi::c_int;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use std::sync::atomic::{AtomicI32, AtomicU32};

use crate::system::kernel;
use crate::system::sys::{self, Errno, address, signed};

/// Calls that sleep in accept, and closes under sleepers, at one time. A scan through all of them
/// is paid only while there is one.
const MAX_ENTRIES: usize = 64;

/// Descriptors plus one; 0 is free.
static ENTRIES: [AtomicI32; MAX_ENTRIES] = [const { AtomicI32::new(0) }; MAX_ENTRIES];

/// Places that are taken.
static COUNT: AtomicU32 = AtomicU32::new(0);

/// A descriptor that is closed when this is dropped.
#[derive(Debug)]
pub(crate) struct InFlight {
    entry: &'static AtomicI32,
    fd: c_int,
}

impl InFlight {
    /// Records a new descriptor; closes it if there is no free entry.
    fn of(fd: c_int) -> Option<Self> {
        let free = |entry: &&AtomicI32| entry.compare_exchange(0, fd + 1, AcqRel, Relaxed).is_ok();
        match ENTRIES.iter().find(free) {
            Some(entry) => {
                COUNT.fetch_add(1, AcqRel);
                Some(Self { entry, fd })
            }
            None => {
                let _ = kernel::close(fd);
                None
            }
        }
    }

    /// Takes the lowest free number. None: the call has no reserved number.
    ///
    /// # Errors
    /// `EMFILE`, `ENFILE`: there is none.
    pub(crate) fn lowest() -> Result<Option<Self>, Errno> {
        let flags = libc::O_PATH | libc::O_CLOEXEC;
        let arguments = [signed(libc::AT_FDCWD), address(c"/".as_ptr()), signed(flags), 0, 0, 0];
        // SAFETY: the kernel reads the path.
        match unsafe { sys::syscall(libc::SYS_openat, arguments) } {
            Ok(fd) => Ok(Self::of(fd as c_int)),
            Err(errno @ (libc::EMFILE | libc::ENFILE)) => Err(errno),
            // A sandbox.
            Err(_) => Ok(None),
        }
    }

    /// A second descriptor of what `fd` is, in the upper half of the numbers that the process may
    /// have.
    pub(crate) fn high_duplicate(fd: c_int) -> Option<Self> {
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

    /// Puts `new` in its entry: the number is the program's now.
    pub(crate) fn give_to_program(self, new: c_int) -> c_int {
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
        release(self.entry);
        std::mem::forget(self);
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        release(self.entry);
        let _ = kernel::close(self.fd);
    }
}

fn release(entry: &AtomicI32) {
    entry.store(0, Relaxed);
    COUNT.fetch_sub(1, AcqRel);
}

/// Closes a descriptor of [`InFlight::into_number`].
pub(crate) fn close(fd: c_int) {
    if let Some(entry) = ENTRIES.iter().find(|entry| entry.load(Acquire) == fd + 1) {
        drop(InFlight { entry, fd });
    }
}

/// Whether a number is held by a call in flight. One load if there is no such call.
#[inline]
pub(crate) fn is_in_flight(fd: c_int) -> bool {
    COUNT.load(Acquire) != 0
        && fd >= 0
        && ENTRIES.iter().any(|entry| entry.load(Acquire) == fd.wrapping_add(1))
}

/// In the child of a fork: the calls that held them are not here.
pub(crate) fn after_fork() {
    for entry in &ENTRIES {
        let fd = entry.swap(0, AcqRel) - 1;
        if fd >= 0 {
            let _ = kernel::close(fd);
        }
    }
    COUNT.store(0, Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_open(fd: c_int) -> bool {
        kernel::fcntl(fd, libc::F_GETFD, 0).is_ok()
    }

    #[test]
    fn a_number_is_reserved_and_then_given_to_the_program() {
        let in_flight = InFlight::lowest().expect("a number").expect("a entry");
        let fd = in_flight.fd();
        assert!(is_in_flight(fd) && is_open(fd));
        assert_eq!(
            kernel::receive(fd, &mut [0], libc::MSG_DONTWAIT),
            Err(libc::EBADF),
            "as if it were not open"
        );
        let new = kernel::socket(libc::AF_UNIX, libc::SOCK_STREAM, 0).expect("a socket") as c_int;
        assert_eq!(in_flight.give_to_program(new), fd);
        assert!(!is_in_flight(fd) && is_open(fd));
        assert_eq!(
            kernel::receive(fd, &mut [0], libc::MSG_DONTWAIT),
            Err(libc::EINVAL),
            "an unconnected socket"
        );
        kernel::close(fd).expect("it is open");
    }

    #[test]
    fn a_second_descriptor_has_a_high_number_and_is_closed() {
        let fd = kernel::socket(libc::AF_UNIX, libc::SOCK_STREAM, 0).expect("a socket") as c_int;
        let second = InFlight::high_duplicate(fd).expect("a number").into_number();
        assert!(second > fd && is_in_flight(second) && is_open(second));
        close(second);
        assert!(!is_in_flight(second) && !is_open(second));
        kernel::close(fd).expect("it is open");
    }
}
