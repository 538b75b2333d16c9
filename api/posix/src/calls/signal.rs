//! `sigaction`, `signal` and the older calls that install signal handlers.

use std::ffi::c_int;

use crate::context;
use crate::files::mounts;
use crate::signal::{disposition, handlers};
use crate::system::sys::{Errno, set_errno, to_c_int};

pub use crate::signal::longjmp::jump as longjmp;

/// `sigaction(2)`.
///
/// # Safety
/// As `sigaction(2)`.
pub unsafe fn sigaction(signal: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int {
    // SAFETY: the caller upholds this function's contract.
    to_c_int(unsafe {
        if context::get().is_some() || mounts::are_any() {
            handlers::action(signal, new, old)
        } else {
            disposition::original(signal, new, old)
        }
    })
}

fn give_handler(answer: Result<usize, Errno>) -> usize {
    answer.unwrap_or_else(|errno| {
        set_errno(errno);
        libc::SIG_ERR
    })
}

/// `signal(3)`, `bsd_signal(3)`.
pub fn signal(signal: c_int, handler: usize) -> usize {
    give_handler(handlers::bsd_signal(signal, handler))
}

/// `sysv_signal(3)`.
pub fn sysv_signal(signal: c_int, handler: usize) -> usize {
    give_handler(handlers::sysv_signal(signal, handler))
}

/// `sigset(3)`.
pub fn sigset(signal: c_int, handler: usize) -> usize {
    give_handler(handlers::sigset(signal, handler))
}

/// `siginterrupt(3)`.
pub fn siginterrupt(signal: c_int, on: c_int) -> c_int {
    to_c_int(handlers::interrupt(signal, on != 0))
}
