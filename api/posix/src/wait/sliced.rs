//! Waits of the kernel, cut into slices while listeners wait for a service.
//!
//! After each slice all such listeners are offered to the service again
//! ([`crate::listener::reregister`]).

use std::ffi::c_int;

use crate::listener::reregister;
use crate::system::multiplexing::{self, Mask, Timeout};
use crate::system::sys::Outcome;
use crate::system::{kernel, seccomp};

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
    // SAFETY: the caller upholds this function's contract.
    in_slices(timeout, |timeout| unsafe { multiplexing::epoll_wait(epfd, events, most, timeout, mask) })
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
    // SAFETY: the caller upholds this function's contract.
    in_slices(timeout, |timeout| unsafe { multiplexing::poll(descriptors, count, timeout, mask) })
}

/// One sleep; or several short ones, each followed by a request to the socket service, while
/// listeners wait for it to be back.
fn in_slices(timeout: Timeout, sleep: impl Fn(Timeout) -> Outcome) -> Outcome {
    // A sandbox may end a process that makes sockets.
    if timeout == Some(0) || !reregister::any_on_kernel() || seccomp::is_restricted() {
        return sleep(timeout);
    }
    let until = timeout.map(|timeout| kernel::now().saturating_add(timeout));
    loop {
        let left = until.map(|until| until.saturating_sub(kernel::now()));
        let slice = reregister::any_on_kernel().then(reregister::slice);
        let sliced = slice.filter(|slice| left.is_none_or(|left| left > *slice));
        match sleep(sliced.or(left)) {
            Ok(0) if sliced.is_some() => reregister::return_to_service(),
            answer => return answer,
        }
    }
}
