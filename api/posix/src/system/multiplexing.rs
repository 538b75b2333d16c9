//! The kernel's multiplexing calls (epoll, poll), with times in nanoseconds. Those that may sleep
//! are cancellation points.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use crate::system::kernel::MakesCall;
use crate::system::sys::{self, Outcome, SIGNAL_SET as SET, address, address_mut, signed};
use crate::system::{cancellation, kernel, seccomp};

/// Kernels before 5.11 know times in milliseconds only.
static MILLISECONDS_ONLY: AtomicBool = AtomicBool::new(false);

/// How long: nanoseconds, none without limit.
pub(crate) type Timeout = Option<u64>;

/// A program's signal mask for the time of a wait; null for none.
pub(crate) type Mask = *const c_void;

/// A time as the kernel has it.
pub(crate) fn timespec(nanoseconds: u64) -> libc::timespec {
    let seconds = i64::try_from(nanoseconds / 1_000_000_000).unwrap_or(i64::MAX);
    libc::timespec { tv_sec: seconds, tv_nsec: (nanoseconds % 1_000_000_000).cast_signed() }
}

/// How a wait is made.
fn act(timeout: Timeout) -> MakesCall {
    if timeout == Some(0) { sys::syscall } else { cancellation::syscall }
}

/// `epoll_create1(2)`.
pub(crate) fn epoll_create(flags: c_int) -> Outcome {
    // SAFETY: touches no memory.
    unsafe { sys::syscall(libc::SYS_epoll_create1, [signed(flags), 0, 0, 0, 0, 0]) }
}

/// `epoll_ctl(2)`.
///
/// # Safety
/// `event` is readable, null, or for the kernel to refuse.
pub(crate) unsafe fn epoll_ctl(
    epfd: c_int,
    call: c_int,
    fd: c_int,
    event: *const libc::epoll_event,
) -> Outcome {
    // SAFETY: the caller upholds this function's contract.
    unsafe {
        sys::syscall(libc::SYS_epoll_ctl, [signed(epfd), signed(call), signed(fd), address(event), 0, 0])
    }
}

/// `KCMP_EPOLL_TFD` of `linux/kcmp.h`.
const KCMP_EPOLL_TFD: usize = 7;

/// How many files are registered in an epoll under a descriptor's number, whatever that is now;
/// none if the kernel does not say.
pub(crate) fn registrations(epfd: c_int, fd: c_int) -> Option<usize> {
    // SAFETY: touches no memory.
    let process = unsafe { sys::raw_syscall(libc::SYS_getpid, [0; 6]) }.cast_unsigned();
    for count in 0_u32.. {
        let slot = [epfd.cast_unsigned(), fd.cast_unsigned(), count];
        let arguments = [process, process, KCMP_EPOLL_TFD, signed(epfd), address(slot.as_ptr()), 0];
        // SAFETY: the kernel reads three numbers.
        match unsafe { sys::syscall(libc::SYS_kcmp, arguments) } {
            Ok(_) => {}
            Err(libc::ENOENT) => return usize::try_from(count).ok(),
            Err(_) => return None,
        }
    }
    None
}

/// `epoll_pwait2(2)`.
///
/// # Safety
/// `events` is writable for `most` entries, or for the kernel to refuse; `mask` is null or a signal
/// set.
pub(crate) unsafe fn epoll_wait(
    epfd: c_int,
    events: *mut libc::epoll_event,
    most: c_int,
    timeout: Timeout,
    mask: Mask,
) -> Outcome {
    let (to, most) = (address_mut(events), signed(most));
    #[cfg(target_arch = "x86_64")]
    if seccomp::is_restricted() && mask.is_null() {
        let milliseconds = signed(kernel::milliseconds(timeout));
        // SAFETY: the caller upholds this function's contract.
        return unsafe { act(timeout)(libc::SYS_epoll_wait, [signed(epfd), to, most, milliseconds, 0, 0]) };
    }
    if !MILLISECONDS_ONLY.load(Relaxed) {
        let time = timeout.map(timespec);
        let until = time.as_ref().map_or(ptr::null(), ptr::from_ref);
        // SAFETY: the caller upholds this function's contract; the time outlives the call.
        let answer = unsafe {
            act(timeout)(libc::SYS_epoll_pwait2, [signed(epfd), to, most, address(until), address(mask), SET])
        };
        if answer != Err(libc::ENOSYS) {
            return answer;
        }
        MILLISECONDS_ONLY.store(true, Relaxed);
    }
    let milliseconds = kernel::milliseconds(timeout);
    // SAFETY: the caller upholds this function's contract.
    unsafe {
        act(timeout)(
            libc::SYS_epoll_pwait,
            [signed(epfd), to, most, signed(milliseconds), address(mask), SET],
        )
    }
}

/// `ppoll(2)`.
///
/// # Safety
/// `descriptors` is writable for `count` entries, or for the kernel to refuse; `mask` is null or a
/// signal set.
pub(crate) unsafe fn poll(
    descriptors: *mut libc::pollfd,
    count: usize,
    timeout: Timeout,
    mask: Mask,
) -> Outcome {
    #[cfg(target_arch = "x86_64")]
    if seccomp::is_restricted() && mask.is_null() {
        // SAFETY: the caller upholds this function's contract.
        return unsafe { kernel::poll_restricted(act(timeout), address_mut(descriptors), count, timeout) };
    }
    let mut time = timeout.map(timespec);
    let until = time.as_mut().map_or(0, |time| address_mut(time));
    // SAFETY: the caller upholds this function's contract; the kernel writes what is left of the
    // time into the copy.
    unsafe { act(timeout)(libc::SYS_ppoll, [address_mut(descriptors), count, until, address(mask), SET, 0]) }
}
