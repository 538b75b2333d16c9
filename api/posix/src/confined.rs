//! Programs that give up system calls (seccomp): OpenSSH's and vsftpd's processes before the login,
//! and whatever a service manager confines.
//!
//! Their filters let through what a program needs on sockets of the kernel, mostly `read`, `write`
//! and a call of the `poll` family, and kill it for anything else. This library would use others on
//! their behalf.
//!
//! 1. Filters are installed with `prctl` or `seccomp`, which are looked at here. From the first one
//!    on this process is *confined*, and so are its children until they exec. What is asked only
//!    once (the thread's number, how many processors there are) is asked beforehand.
//! 2. A confined process reads and writes its placeholders with `read` and `write`, having asked
//!    `poll` where they might sleep or SIGPIPE would end it, does not give the processor away, and
//!    waits with the oldest calls of their kind.
//! 3. That costs a system call more for each wake-up, and nothing for bytes in memory.
//!
//! A filter that was there before the program began (a service manager's) is not seen. Such filters
//! answer with an error number in most cases, which is taken for "no".

use std::ffi::{c_int, c_ulong};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use sietch_ring::stream;

use crate::faults;
use crate::sys::{self, Outcome, signed};
use crate::wait::spin;

static CONFINED: AtomicBool = AtomicBool::new(false);

/// Whether SIGPIPE ended the process when it gave up system calls. Servers ignore it.
static DIES_OF_PIPE: AtomicBool = AtomicBool::new(true);

/// Whether this process has given up system calls.
#[inline]
pub fn is_confined() -> bool {
    CONFINED.load(Relaxed)
}

fn begin() {
    stream::confine();
    faults::confine();
    spin::processors();
    // SAFETY: an action of zeros is a value of it; the kernel writes the present one there.
    let dies = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        libc::sigaction(libc::SIGPIPE, std::ptr::null(), &raw mut action) != 0
            || action.sa_sigaction == libc::SIG_DFL
    };
    restrict(dies);
}

/// The process gives up system calls; `dies`: SIGPIPE would end it.
pub fn restrict(dies: bool) {
    DIES_OF_PIPE.store(dies, Relaxed);
    CONFINED.store(true, Relaxed);
}

/// Whether SIGPIPE would end the process.
pub fn dies_of_pipe() -> bool {
    DIES_OF_PIPE.load(Relaxed)
}

/// `prctl(2)`.
///
/// # Safety
/// As `prctl(2)`.
pub unsafe fn prctl(option: c_int, arguments: [c_ulong; 4]) -> c_int {
    if option == libc::PR_SET_SECCOMP {
        begin();
    }
    let [a, b, c, d] = arguments.map(|argument| argument as usize);
    // SAFETY: the caller's.
    sys::give_int(unsafe { sys::ask(libc::SYS_prctl, [signed(option), a, b, c, d, 0]) })
}

/// `seccomp(2)`.
///
/// # Safety
/// As `seccomp(2)`.
pub unsafe fn seccomp(operation: usize, flags: usize, arguments: usize) -> c_int {
    if matches!(u32::try_from(operation), Ok(libc::SECCOMP_SET_MODE_FILTER | libc::SECCOMP_SET_MODE_STRICT)) {
        begin();
    }
    // SAFETY: the caller's.
    sys::give_int(unsafe { sys::ask(libc::SYS_seccomp, [operation, flags, arguments, 0, 0, 0]) })
}

/// What of `wanted`, or of a hang-up, holds for a descriptor at this moment.
fn now(fd: c_int, wanted: i16) -> Result<i16, sys::Errno> {
    let mut entry = [libc::pollfd { fd, events: wanted, revents: 0 }];
    sys::poll(&mut entry, Some(libc::timespec { tv_sec: 0, tv_nsec: 0 })).map(|_| entry[0].revents)
}

/// `recv(2)` from a placeholder.
#[cold]
pub(crate) fn receive(fd: c_int, out: &mut [u8], flags: c_int) -> Outcome {
    if flags & libc::MSG_DONTWAIT != 0 && now(fd, libc::POLLIN)? == 0 {
        return Err(libc::EAGAIN);
    }
    // SAFETY: the kernel writes at most `out.len()` bytes there.
    unsafe { sys::ask(libc::SYS_read, [signed(fd), sys::address_mut(out.as_mut_ptr()), out.len(), 0, 0, 0]) }
}

/// `send(2)` to a placeholder, without sleeping and without a signal.
#[cold]
pub(crate) fn send(fd: c_int, bytes: &[u8]) -> Outcome {
    // Whether the other has shut down reading cannot be asked in this way.
    if bytes.is_empty() {
        return Ok(0);
    }
    if dies_of_pipe() {
        let found = now(fd, libc::POLLOUT)?;
        if found & (libc::POLLHUP | libc::POLLERR) != 0 {
            return Err(libc::EPIPE);
        }
    }
    // SAFETY: the kernel reads `bytes.len()` bytes there.
    unsafe { sys::ask(libc::SYS_write, [signed(fd), sys::address(bytes.as_ptr()), bytes.len(), 0, 0, 0]) }
}

/// Whole milliseconds for the calls that know no others: at least as long.
pub(crate) fn milliseconds(nanoseconds: Option<u64>) -> c_int {
    nanoseconds.map_or(-1, |time| c_int::try_from(time.div_ceil(1_000_000)).unwrap_or(c_int::MAX))
}

/// `poll(2)`, where there is one.
///
/// # Safety
/// `descriptors` is writable for `count` entries, or for the kernel to refuse.
#[cfg(target_arch = "x86_64")]
#[cold]
pub(crate) unsafe fn poll(descriptors: usize, count: usize, timeout: Option<u64>) -> Outcome {
    // SAFETY: the caller's.
    unsafe { sys::ask(libc::SYS_poll, [descriptors, count, signed(milliseconds(timeout)), 0, 0, 0]) }
}
