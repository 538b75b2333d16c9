//! `dup`, `dup2` and `dup3`: the kernel duplicates the placeholder, the table follows.

use std::ffi::c_int;

use crate::calls::descriptor::close::{is_closed_listener, take};
use crate::descriptor::in_flight;
use crate::descriptor::table::{self, forget_stale};
use crate::listener::kernel_socket;
use crate::system::kernel;
use crate::system::sys::{self, Outcome, signed};

/// The kernel has made a new descriptor for what `old` is.
pub(crate) fn follow(old: c_int, new: Outcome) -> Outcome {
    if let Ok(number) = new {
        let fd = number as c_int;
        match table::find(old) {
            Some(held) if table::put(fd, &held) => {}
            // Beyond the table it would be a placeholder that the library does not know.
            Some(_) => {
                let _ = kernel::close(fd);
                return Err(libc::EMFILE);
            }
            None => forget_stale(fd),
        }
    }
    new
}

/// `dup(2)`.
pub fn dup(old: c_int) -> c_int {
    if in_flight::is_in_flight(old) {
        return sys::to_c_int(Err(libc::EBADF));
    }
    // SAFETY: touches no memory.
    sys::to_c_int(follow(old, unsafe { sys::syscall(libc::SYS_dup, [signed(old), 0, 0, 0, 0, 0]) }))
}

/// `dup2(2)`.
pub fn dup2(old: c_int, new: c_int) -> c_int {
    if old == new {
        return sys::to_c_int(kernel::fcntl(old, libc::F_GETFD, 0).map(|_| new.cast_unsigned() as usize));
    }
    dup3(old, new, 0)
}

/// `dup3(2)`.
pub fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int {
    if in_flight::is_in_flight(old) {
        return sys::to_c_int(Err(libc::EBADF));
    }
    if in_flight::is_in_flight(new) {
        // As Linux returns for a number that another thread is about to fill.
        return sys::to_c_int(Err(libc::EBUSY));
    }
    // A failing dup3 must leave `new` alone: what can fail is checked before its word is taken.
    let valid = old != new && kernel::fcntl(old, libc::F_GETFD, 0).is_ok();
    let before = if valid && table::is_ours(new) { take(new) } else { None };
    let outcome = kernel::dup3(old, new, flags);
    if outcome.is_err()
        && let Some(held) = &before
    {
        table::put(new, held);
    }
    let answer = follow(old, outcome);
    if let Some(held) = before.as_ref().filter(|held| is_closed_listener(held)) {
        kernel_socket::wait_until_released(held);
    }
    sys::to_c_int(answer)
}
