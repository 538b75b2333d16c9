//! System calls that the library makes for itself, past the C library.
//!
//! A process that is restricted by seccomp receives, sends and polls with the oldest calls of their
//! kind, which the filters of servers let through ([`crate::system::seccomp`]).

use std::ffi::{c_int, c_long, c_void};

use crate::system::cancellation;
use crate::system::seccomp::{self, sigpipe_ends_process};
use crate::system::sys::{self, Errno, Outcome, raw_syscall, signed, syscall};

/// Sets O_NONBLOCK on a socket.
pub(crate) fn set_nonblocking(fd: c_int) {
    let _ = fcntl(fd, libc::F_SETFL, (libc::O_RDWR | libc::O_NONBLOCK) as usize);
}

/// Whether O_NONBLOCK is set on a descriptor.
pub(crate) fn is_nonblocking(fd: c_int) -> bool {
    fcntl(fd, libc::F_GETFL, 0).is_ok_and(|flags| flags as c_int & libc::O_NONBLOCK != 0)
}

pub(crate) fn shutdown(fd: c_int, how: c_int) -> Outcome {
    // SAFETY: touches no memory.
    unsafe { sys::syscall(libc::SYS_shutdown, [signed(fd), signed(how), 0, 0, 0, 0]) }
}

/// `close(2)`, the kernel's.
pub(crate) fn close(fd: c_int) -> Outcome {
    // SAFETY: closing a number touches no memory of ours.
    unsafe { syscall(libc::SYS_close, [signed(fd), 0, 0, 0, 0, 0]) }
}

/// `fcntl(2)` with a number, the kernel's.
pub(crate) fn fcntl(fd: c_int, command: c_int, argument: usize) -> Outcome {
    // SAFETY: used with commands whose argument is a number.
    unsafe { syscall(libc::SYS_fcntl, [signed(fd), signed(command), argument, 0, 0, 0]) }
}

/// `dup3(2)`, the kernel's.
pub(crate) fn dup3(old: c_int, new: c_int, flags: c_int) -> Outcome {
    // SAFETY: touches no memory.
    unsafe { syscall(libc::SYS_dup3, [signed(old), signed(new), signed(flags), 0, 0, 0]) }
}

/// `socket(2)`, the kernel's.
pub(crate) fn socket(domain: c_int, kind: c_int, protocol: c_int) -> Outcome {
    // SAFETY: touches no memory.
    unsafe { syscall(libc::SYS_socket, [signed(domain), signed(kind), signed(protocol), 0, 0, 0]) }
}

/// `recvfrom(2)` of a placeholder without a name, the kernel's, into `out`. If it may sleep, it is
/// a cancellation point.
pub(crate) fn receive(fd: c_int, out: &mut [u8], flags: c_int) -> Outcome {
    if seccomp::is_restricted() {
        return receive_restricted(fd, out, flags);
    }
    let to = out.as_mut_ptr().expose_provenance();
    let arguments = [signed(fd), to, out.len(), signed(flags), 0, 0];
    // SAFETY: the kernel writes at most `out.len()` bytes there; a call that may sleep only looks.
    unsafe {
        match flags & libc::MSG_DONTWAIT {
            0 => cancellation::syscall(libc::SYS_recvfrom, arguments),
            _ => syscall(libc::SYS_recvfrom, arguments),
        }
    }
}

/// `sendto(2)` of a placeholder without a name, the kernel's.
pub(crate) fn send(fd: c_int, bytes: &[u8], flags: c_int) -> Outcome {
    if seccomp::is_restricted() {
        return send_restricted(fd, bytes);
    }
    let from = bytes.as_ptr().expose_provenance();
    // SAFETY: the kernel reads `bytes.len()` bytes there.
    unsafe { syscall(libc::SYS_sendto, [signed(fd), from, bytes.len(), signed(flags), 0, 0]) }
}

/// Leaves the processor for a moment.
pub(crate) fn pause() {
    let _ = poll(&mut [], Some(libc::timespec { tv_sec: 0, tv_nsec: 1_000_000 }));
}

/// `ppoll(2)` of some descriptors, at most for `timeout` (none: without limit). A cancellation
/// point, unless it only checks, or waits for nothing but the time.
pub(crate) fn poll(descriptors: &mut [libc::pollfd], timeout: Option<libc::timespec>) -> Outcome {
    let mut timeout = timeout;
    let until = timeout.as_mut().map_or(0, |time| std::ptr::from_mut(time).expose_provenance());
    let first = descriptors.as_mut_ptr().expose_provenance();
    let is_check = timeout.is_some_and(|time| time.tv_sec == 0 && time.tv_nsec == 0);
    let act: MakesCall = if is_check || descriptors.is_empty() { syscall } else { cancellation::syscall };
    #[cfg(target_arch = "x86_64")]
    if seccomp::is_restricted() {
        let nanoseconds = timeout.map(|time| {
            let seconds = time.tv_sec.cast_unsigned().saturating_mul(1_000_000_000);
            seconds.saturating_add(time.tv_nsec.cast_unsigned())
        });
        // SAFETY: the kernel writes into the entries.
        return unsafe { poll_restricted(act, first, descriptors.len(), nanoseconds) };
    }
    // SAFETY: the kernel writes into the entries and the time, both of which outlive the call.
    unsafe { act(libc::SYS_ppoll, [first, descriptors.len(), until, 0, 8, 0]) }
}

/// `setsockopt(2)`, the kernel's.
///
/// # Safety
/// As `setsockopt(2)`.
pub(crate) unsafe fn setsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    length: libc::socklen_t,
) -> Outcome {
    let arguments = [signed(fd), signed(level), signed(name), sys::address(value), length as usize, 0];
    // SAFETY: the caller upholds this function's contract.
    unsafe { syscall(libc::SYS_setsockopt, arguments) }
}

/// `getsockopt(2)`, the kernel's.
///
/// # Safety
/// As `getsockopt(2)`.
pub(crate) unsafe fn getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    length: *mut libc::socklen_t,
) -> Outcome {
    let (to, size) = (sys::address_mut(value), sys::address_mut(length));
    // SAFETY: the caller upholds this function's contract.
    unsafe { syscall(libc::SYS_getsockopt, [signed(fd), signed(level), signed(name), to, size, 0]) }
}

/// `getsockopt(2)` of an `int`, the kernel's.
pub(crate) fn socket_option(fd: c_int, level: c_int, name: c_int) -> Result<c_int, Errno> {
    let mut value: c_int = 0;
    let mut length: libc::socklen_t = 4;
    let (to, size) = (
        std::ptr::from_mut(&mut value).expose_provenance(),
        std::ptr::from_mut(&mut length).expose_provenance(),
    );
    // SAFETY: the kernel writes at most `length` bytes to `value`, and the length.
    unsafe { syscall(libc::SYS_getsockopt, [signed(fd), signed(level), signed(name), to, size, 0]) }
        .map(|_| value)
}

/// `setsockopt(2)` of an `int`, the kernel's.
pub(crate) fn set_socket_option(fd: c_int, level: c_int, name: c_int, value: c_int) -> Outcome {
    let from = std::ptr::from_ref(&value).expose_provenance();
    // SAFETY: the kernel reads four bytes there.
    unsafe { syscall(libc::SYS_setsockopt, [signed(fd), signed(level), signed(name), from, 4, 0]) }
}

/// `getpid(2)`.
pub(crate) fn process() -> u32 {
    // SAFETY: touches no memory.
    unsafe { raw_syscall(libc::SYS_getpid, [0; 6]) }.cast_unsigned() as u32
}

/// `gettid(2)`.
pub(crate) fn thread() -> u32 {
    // SAFETY: touches no memory.
    unsafe { raw_syscall(libc::SYS_gettid, [0; 6]) }.cast_unsigned() as u32
}

/// Nanoseconds of the monotonic clock.
pub(crate) fn now() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the vDSO's clock writes the time there.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned()
}

/// Sends `SIGPIPE` to the calling thread, as the kernel does for a write without a reader.
pub(crate) fn raise_sigpipe() {
    // SAFETY: touches no memory.
    unsafe {
        let process = raw_syscall(libc::SYS_getpid, [0; 6]).cast_unsigned();
        let thread = raw_syscall(libc::SYS_gettid, [0; 6]).cast_unsigned();
        raw_syscall(libc::SYS_tgkill, [process, thread, signed(libc::SIGPIPE), 0, 0, 0]);
    }
}

/// Which of `wanted`, or a hang-up, a descriptor has at this moment.
fn ready_now(fd: c_int, wanted: i16) -> Result<i16, sys::Errno> {
    let mut entry = [libc::pollfd { fd, events: wanted, revents: 0 }];
    poll(&mut entry, Some(libc::timespec { tv_sec: 0, tv_nsec: 0 })).map(|_| entry[0].revents)
}

/// `recv(2)` from a placeholder.
#[cold]
pub(crate) fn receive_restricted(fd: c_int, out: &mut [u8], flags: c_int) -> Outcome {
    if flags & libc::MSG_DONTWAIT != 0 && ready_now(fd, libc::POLLIN)? == 0 {
        return Err(libc::EAGAIN);
    }
    let arguments = [signed(fd), sys::address_mut(out.as_mut_ptr()), out.len(), 0, 0, 0];
    // SAFETY: the kernel writes at most `out.len()` bytes there. They mean "check again".
    unsafe {
        match flags & libc::MSG_DONTWAIT {
            0 => cancellation::syscall(libc::SYS_read, arguments),
            _ => syscall(libc::SYS_read, arguments),
        }
    }
}

/// `send(2)` to a placeholder, without sleeping and without a signal.
#[cold]
pub(crate) fn send_restricted(fd: c_int, bytes: &[u8]) -> Outcome {
    // Whether the peer has shut down reading cannot be found out in this way.
    if bytes.is_empty() {
        return Ok(0);
    }
    if sigpipe_ends_process() {
        let found = ready_now(fd, libc::POLLOUT)?;
        if found & (libc::POLLHUP | libc::POLLERR) != 0 {
            return Err(libc::EPIPE);
        }
    }
    // SAFETY: the kernel reads `bytes.len()` bytes there.
    unsafe { sys::syscall(libc::SYS_write, [signed(fd), sys::address(bytes.as_ptr()), bytes.len(), 0, 0, 0]) }
}

/// Whole milliseconds, rounded up, for calls without a finer time.
pub(crate) fn milliseconds(nanoseconds: Option<u64>) -> c_int {
    nanoseconds.map_or(-1, |time| c_int::try_from(time.div_ceil(1_000_000)).unwrap_or(c_int::MAX))
}

/// A way to make a system call.
pub(crate) type MakesCall = unsafe fn(c_long, [usize; 6]) -> Outcome;

/// `poll(2)`, where there is one.
///
/// # Safety
/// `descriptors` is writable for `count` entries, or for the kernel to refuse.
#[cfg(target_arch = "x86_64")]
#[cold]
pub(crate) unsafe fn poll_restricted(
    act: MakesCall,
    descriptors: usize,
    count: usize,
    timeout: Option<u64>,
) -> Outcome {
    // SAFETY: the caller upholds this function's contract.
    unsafe { act(libc::SYS_poll, [descriptors, count, signed(milliseconds(timeout)), 0, 0, 0]) }
}
