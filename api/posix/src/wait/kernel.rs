//! The kernel's waiting calls, with times in nanoseconds.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use crate::sys::{self, Outcome, address, address_mut, signed};

/// Bytes of a signal set, as the kernel has it.
const SET: usize = 8;

/// Kernels before 5.11 know times in milliseconds only.
static COARSE: AtomicBool = AtomicBool::new(false);

/// How long: nanoseconds, none for ever.
pub type Timeout = Option<u64>;

/// A program's signal mask for the time of a wait; null for none.
pub type Mask = *const c_void;

/// A time as the kernel has it.
pub fn timespec(nanoseconds: u64) -> libc::timespec {
    let seconds = i64::try_from(nanoseconds / 1_000_000_000).unwrap_or(i64::MAX);
    libc::timespec { tv_sec: seconds, tv_nsec: (nanoseconds % 1_000_000_000).cast_signed() }
}

/// `epoll_create1(2)`.
pub fn epoll_create(flags: c_int) -> Outcome {
    // SAFETY: touches no memory.
    unsafe { sys::ask(libc::SYS_epoll_create1, [signed(flags), 0, 0, 0, 0, 0]) }
}

/// `epoll_ctl(2)`.
///
/// # Safety
/// `event` is readable, null, or for the kernel to refuse.
pub unsafe fn epoll_ctl(epfd: c_int, call: c_int, fd: c_int, event: *const libc::epoll_event) -> Outcome {
    // SAFETY: the caller's promise.
    unsafe { sys::ask(libc::SYS_epoll_ctl, [signed(epfd), signed(call), signed(fd), address(event), 0, 0]) }
}

/// `epoll_pwait2(2)`.
///
/// # Safety
/// `events` is writable for `most` entries, or for the kernel to refuse; `mask` is null or a signal set.
pub unsafe fn epoll_wait(
    epfd: c_int,
    events: *mut libc::epoll_event,
    most: c_int,
    timeout: Timeout,
    mask: Mask,
) -> Outcome {
    let (to, most) = (address_mut(events), signed(most));
    if !COARSE.load(Relaxed) {
        let time = timeout.map(timespec);
        let until = time.as_ref().map_or(ptr::null(), ptr::from_ref);
        // SAFETY: the caller's promise; the time outlives the call.
        let answer = unsafe {
            sys::ask(libc::SYS_epoll_pwait2, [signed(epfd), to, most, address(until), address(mask), SET])
        };
        if answer != Err(libc::ENOSYS) {
            return answer;
        }
        COARSE.store(true, Relaxed);
    }
    let milliseconds =
        timeout.map_or(-1, |time| c_int::try_from(time.div_ceil(1_000_000)).unwrap_or(c_int::MAX));
    // SAFETY: the caller's promise.
    unsafe {
        sys::ask(libc::SYS_epoll_pwait, [signed(epfd), to, most, signed(milliseconds), address(mask), SET])
    }
}

/// `ppoll(2)`.
///
/// # Safety
/// `descriptors` is writable for `count` entries, or for the kernel to refuse; `mask` is null or a signal set.
pub unsafe fn poll(descriptors: *mut libc::pollfd, count: usize, timeout: Timeout, mask: Mask) -> Outcome {
    let mut time = timeout.map(timespec);
    let until = time.as_mut().map_or(0, |time| address_mut(time));
    // SAFETY: the caller's promise; the kernel writes what is left of the time into the copy.
    unsafe { sys::ask(libc::SYS_ppoll, [address_mut(descriptors), count, until, address(mask), SET, 0]) }
}
