//! The C library's `epoll_*`, `poll` and `select`.
//!
//! 1. A call that concerns our sockets is handled here (`crate::wait`). Every other call goes to
//!    the original, which is a cancellation point.
//! 2. Times are converted to nanoseconds. The kernel or the C library refuses an invalid one, so
//!    that the error is theirs.
//! 3. A wait in an epoll of kernel descriptors alone sleeps in the C library's call, and is counted
//!    meanwhile (`crate::wait::kernel_only`): another thread may register a stream in it.
//! 4. `select` writes the remaining time, as on Linux; `pselect` and `ppoll` leave theirs
//!    unchanged.

use std::ffi::c_int;
use std::ptr;

use libc::{epoll_event, fd_set, nfds_t, pollfd, sigset_t, timespec, timeval};

use crate::readiness::control;
use crate::signal::user_memory;
use crate::system::multiplexing::{Mask, Timeout, timespec as composed};
use crate::system::sys::{self, Errno, set_errno, to_c_int};
use crate::system::{cancellation, kernel, originals};
use crate::wait::output::Output;
use crate::wait::select::{self, Sets};
use crate::wait::{epoll, kernel_only, poll};

/// `epoll_create1(2)`.
pub fn epoll_create1(flags: c_int) -> c_int {
    to_c_int(control::create(flags))
}

/// `epoll_create(2)`.
pub fn epoll_create(size: c_int) -> c_int {
    to_c_int(control::create_sized(size))
}

/// `epoll_ctl(2)`.
///
/// # Safety
/// As `epoll_ctl(2)`.
pub unsafe fn epoll_ctl(epfd: c_int, call: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
    // SAFETY: the caller upholds this function's contract.
    to_c_int(unsafe { control::control(epfd, call, fd, event) })
}

/// `epoll_wait(2)` and `epoll_pwait(2)`.
///
/// # Safety
/// As `epoll_pwait(2)`.
pub unsafe fn epoll_pwait(
    epfd: c_int,
    events: *mut epoll_event,
    most: c_int,
    timeout: c_int,
    mask: *const sigset_t,
) -> c_int {
    let time = poll::milliseconds(timeout);
    // SAFETY: the caller upholds this function's contract.
    if let Some(answer) = unsafe { epoll::wait_if_ours(epfd, events, most, time, mask.cast()) } {
        return to_c_int(answer);
    }
    // SAFETY: the caller upholds this function's contract.
    unsafe {
        wait_in_kernel_only(epfd, events, most, time, mask, || {
            originals::epoll_pwait(epfd, events, most, timeout, mask)
        })
    }
}

/// Waits with `call`, which calls the C library's function, in an epoll of kernel descriptors.
/// Streams may be registered in it meanwhile.
///
/// # Safety
/// As `epoll_pwait(2)`; `call` makes that call.
unsafe fn wait_in_kernel_only(
    epfd: c_int,
    events: *mut epoll_event,
    most: c_int,
    time: Timeout,
    mask: *const sigset_t,
    call: impl FnOnce() -> c_int + Copy,
) -> c_int {
    let Some(waiter) = kernel_only::KernelOnlyWaiter::begin(epfd, time) else {
        // SAFETY: the caller upholds this function's contract.
        return match unsafe { epoll::wait_if_ours(epfd, events, most, time, mask.cast()) } {
            Some(answer) => to_c_int(answer),
            None => {
                let answer = call();
                // SAFETY: the kernel has written so many.
                unsafe { Output::restore_data(events, usize::try_from(answer).unwrap_or(0)) };
                answer
            }
        };
    };
    let registered = waiter.registered();
    // SAFETY: the C library's function may be unwound.
    let answer = unsafe { cancellation::catch(call) };
    drop(registered);
    let answer = answer.unwrap_or_else(|errno| to_c_int(Err(errno)));
    let before = sys::errno();
    // SAFETY: the caller upholds this function's contract.
    match unsafe { waiter.ended(answer, events, most, time, mask.cast()) } {
        Some(answer) => to_c_int(answer),
        None => {
            // SAFETY: the kernel has written so many.
            unsafe { Output::restore_data(events, usize::try_from(answer).unwrap_or(0)) };
            set_errno(before);
            answer
        }
    }
}

/// `epoll_pwait2(2)`.
///
/// # Safety
/// As `epoll_pwait2(2)`.
pub unsafe fn epoll_pwait2(
    epfd: c_int,
    events: *mut epoll_event,
    most: c_int,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the caller upholds this function's contract.
    let Ok(time) = (unsafe { nanoseconds(timeout) }) else {
        // SAFETY: the caller upholds this function's contract; the kernel refuses the time.
        return unsafe { originals::epoll_pwait2(epfd, events, most, timeout, mask) };
    };
    // SAFETY: the caller upholds this function's contract.
    match unsafe { epoll::wait_if_ours(epfd, events, most, time, mask.cast()) } {
        Some(answer) => to_c_int(answer),
        // SAFETY: the caller upholds this function's contract.
        None => unsafe {
            wait_in_kernel_only(epfd, events, most, time, mask, || {
                originals::epoll_pwait2(epfd, events, most, timeout, mask)
            })
        },
    }
}

/// A `timespec`, null forever; an error for what the kernel refuses.
///
/// # Safety
/// Null or readable.
unsafe fn nanoseconds(time: *const timespec) -> Result<Timeout, Errno> {
    if time.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller upholds this function's contract.
    let time = unsafe { user_memory::read(time) }?;
    let (seconds, rest) = (u64::try_from(time.tv_sec), u64::try_from(time.tv_nsec));
    match (seconds, rest) {
        (Ok(seconds), Ok(rest)) if rest < 1_000_000_000 => {
            Ok(Some(seconds.saturating_mul(1_000_000_000).saturating_add(rest)))
        }
        _ => Err(libc::EINVAL),
    }
}

/// `poll(2)`.
///
/// # Safety
/// As `poll(2)`.
pub unsafe fn poll(descriptors: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
    let time = poll::milliseconds(timeout);
    let until = time.map(composed);
    let until = until.as_ref().map_or(ptr::null(), ptr::from_ref);
    // SAFETY: the caller upholds this function's contract.
    unsafe { poll_or_original(descriptors, count, time, until, ptr::null()) }
}

/// `ppoll(2)`.
///
/// # Safety
/// As `ppoll(2)`.
pub unsafe fn ppoll(
    descriptors: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the caller upholds this function's contract.
    match unsafe { nanoseconds(timeout) } {
        // SAFETY: the caller upholds this function's contract.
        Ok(time) => unsafe { poll_or_original(descriptors, count, time, timeout, mask) },
        // SAFETY: the caller upholds this function's contract; the C library refuses the time.
        Err(_) => unsafe { originals::ppoll(descriptors, count, timeout, mask) },
    }
}

unsafe fn poll_or_original(
    descriptors: *mut pollfd,
    count: nfds_t,
    time: Timeout,
    until: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    let entries = usize::try_from(count).unwrap_or(usize::MAX);
    // SAFETY: the caller upholds this function's contract.
    if unsafe { poll::names_ours(descriptors, entries) } {
        // SAFETY: the caller upholds this function's contract.
        return to_c_int(unsafe { poll::poll(descriptors, entries, time, mask.cast()) });
    }
    // SAFETY: the caller upholds this function's contract.
    unsafe { originals::ppoll(descriptors, count, until, mask) }
}

/// `select(2)`: writes the remaining time, as Linux does.
///
/// # Safety
/// As `select(2)`.
pub unsafe fn select(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    // SAFETY: the caller upholds this function's contract.
    let given = (!timeout.is_null()).then(|| unsafe { user_memory::read(timeout) });
    let time = match given {
        None => None,
        Some(Err(errno)) => {
            set_errno(errno);
            return -1;
        }
        Some(Ok(time)) => match (u64::try_from(time.tv_sec), u64::try_from(time.tv_usec)) {
            (Ok(seconds), Ok(micros)) => {
                Some(seconds.saturating_mul(1_000_000_000).saturating_add(micros.saturating_mul(1000)))
            }
            _ => {
                set_errno(libc::EINVAL);
                return -1;
            }
        },
    };
    let began = if time.is_some_and(|time| time != 0) { kernel::now() } else { 0 };
    let until = time.map(composed);
    let until = until.as_ref().map_or(ptr::null(), ptr::from_ref);
    // SAFETY: the caller upholds this function's contract.
    let answer = unsafe { select_or_original(count, [read, write, except], time, until, ptr::null()) };
    if let Some(time) = time
        && time != 0
    {
        let left = time.saturating_sub(kernel::now().saturating_sub(began));
        let (seconds, rest) = (left / 1_000_000_000, left % 1_000_000_000 / 1000);
        let left = timeval { tv_sec: seconds.cast_signed(), tv_usec: rest.cast_signed() };
        // Where it cannot be written, Linux leaves it.
        // SAFETY: a time was given.
        let _ = unsafe { user_memory::write(timeout, left) };
    }
    answer
}

/// `pselect(2)`.
///
/// # Safety
/// As `pselect(2)`.
pub unsafe fn pselect(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    let sets = [read, write, except];
    // SAFETY: the caller upholds this function's contract.
    match unsafe { nanoseconds(timeout) } {
        // SAFETY: the caller upholds this function's contract.
        Ok(time) => unsafe { select_or_original(count, sets, time, timeout, mask) },
        // SAFETY: the caller upholds this function's contract; the C library refuses the time.
        Err(_) => unsafe { originals::pselect(count, read, write, except, timeout, mask) },
    }
}

unsafe fn select_or_original(
    count: c_int,
    sets: Sets,
    time: Timeout,
    until: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    let mask_address: Mask = mask.cast();
    // SAFETY: the caller upholds this function's contract.
    if unsafe { select::names_ours(count, sets) } {
        // SAFETY: the caller upholds this function's contract.
        return to_c_int(unsafe { select::select(count, sets, time, mask_address) });
    }
    let [read, write, except] = sets;
    // SAFETY: the caller upholds this function's contract.
    unsafe { originals::pselect(count, read, write, except, until, mask) }
}
