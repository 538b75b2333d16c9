//! `prctl` and `seccomp`: programs that restrict their own system calls.

use std::ffi::{c_int, c_ulong};

use sietch_ring::stream;

use crate::calls::process::credentials::giving_up;
use crate::files::state;
use crate::signal::faults;
use crate::system::processor;
use crate::system::seccomp::restrict;
use crate::system::sys::{self, signed};

fn begin() {
    // Threads and messages of clients may be forbidden.
    state::retire();
    stream::restrict_system_calls();
    faults::restrict();
    processor::processors();
    // SAFETY: an action of zeros is a value of it; the kernel writes the present one there.
    let sigpipe_ends_process = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        libc::sigaction(libc::SIGPIPE, std::ptr::null(), &raw mut action) != 0
            || action.sa_sigaction == libc::SIG_DFL
    };
    restrict(sigpipe_ends_process);
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
    // SAFETY: the caller upholds this function's contract.
    let call = || sys::to_c_int(unsafe { sys::syscall(libc::SYS_prctl, [signed(option), a, b, c, d, 0]) });
    if option == libc::PR_CAPBSET_DROP { giving_up(call) } else { call() }
}

/// `seccomp(2)`.
///
/// # Safety
/// As `seccomp(2)`.
pub(crate) unsafe fn seccomp(operation: usize, flags: usize, arguments: usize) -> c_int {
    if matches!(u32::try_from(operation), Ok(libc::SECCOMP_SET_MODE_FILTER | libc::SECCOMP_SET_MODE_STRICT)) {
        begin();
    }
    // SAFETY: the caller upholds this function's contract.
    sys::to_c_int(unsafe { sys::syscall(libc::SYS_seccomp, [operation, flags, arguments, 0, 0, 0]) })
}
