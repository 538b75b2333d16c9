//! `dup`, `dup2` and `dup3`: the kernel duplicates the placeholder, the table follows.
//!
//! Both happen in one [`Change`]: no other thread gives `old` another file in between, and a call
//! of another thread on the new number waits.

use std::ffi::c_int;

use crate::calls::descriptor::close::{is_closed_listener, take};
use crate::descriptor::change::Change;
use crate::descriptor::in_flight;
use crate::descriptor::kernel_calls;
use crate::descriptor::table::{self, forget_stale};
use crate::listener::kernel_socket;
use crate::system::sys::{self, Outcome, address, signed};
use crate::system::{kernel, seccomp};

/// How often a duplicate is made again because its file may not be that of `old`. Each time, a new
/// file was opened at that number.
const RETRIES: u32 = 8;

/// The kernel has made a new descriptor for what `old` is.
fn follow(old: c_int, new: Outcome) -> Outcome {
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

/// A duplicate at the lowest free number from `lowest` on; `make` is the kernel's call for it.
pub(crate) fn duplicate(old: c_int, lowest: usize, flags: c_int, make: impl Fn() -> Outcome) -> Outcome {
    let _change = Change::begin();
    for _ in 0..RETRIES {
        let before = table::word(old);
        let reserved = if before == 0 { None } else { reserve(lowest) };
        let new = match reserved {
            Some(new) => kernel::dup3(old, new, flags).inspect_err(|_| {
                let _ = kernel::close(new);
                table::settle(new);
            }),
            None => make(),
        };
        if new.is_err() || table::word(old) == before {
            return follow(old, new);
        }
        // Another thread has opened a socket at that number.
        let fd = new.map_or(-1, |new| new as c_int);
        let _ = kernel::close(fd);
        table::settle(fd);
    }
    Err(libc::EBADF)
}

/// Takes the lowest free number from `lowest` on, and makes its word busy. Until the duplicate is
/// there a call by that number finds nothing open (`O_PATH`). None: the kernel chooses the number.
fn reserve(lowest: usize) -> Option<c_int> {
    if seccomp::is_restricted() {
        return None;
    }
    let flags = libc::O_PATH | libc::O_CLOEXEC;
    let arguments = [signed(libc::AT_FDCWD), address(c"/".as_ptr()), signed(flags), 0, 0, 0];
    // SAFETY: the kernel reads the path.
    let mut new = unsafe { sys::syscall(libc::SYS_openat, arguments) }.ok()?;
    if new < lowest {
        let from = kernel::fcntl(new as c_int, libc::F_DUPFD_CLOEXEC, lowest);
        let _ = kernel::close(new as c_int);
        new = from.ok()?;
    }
    drop(table::withdraw(new as c_int));
    kernel_calls::wait(new as c_int);
    Some(new as c_int)
}

/// `dup(2)`.
pub fn dup(old: c_int) -> c_int {
    if in_flight::is_in_flight(old) {
        return sys::to_c_int(Err(libc::EBADF));
    }
    // SAFETY: touches no memory.
    let make = || unsafe { sys::syscall(libc::SYS_dup, [signed(old), 0, 0, 0, 0, 0]) };
    sys::to_c_int(duplicate(old, 0, 0, make))
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
    let change = Change::begin();
    // A failing dup3 must leave `new` alone: what can fail is checked before its word is taken.
    let valid = old != new && kernel::fcntl(old, libc::F_GETFD, 0).is_ok();
    let changes = valid && (table::is_ours(old) || table::is_ours(new));
    let before = if changes { take(new) } else { None };
    if table::is_ours(old) && before.as_ref().is_none_or(|held| held.end().is_none()) {
        kernel_calls::wait(new);
    }
    let outcome = kernel::dup3(old, new, flags);
    if outcome.is_err() && changes {
        match &before {
            Some(held) if table::put(new, held) => {}
            _ => table::settle(new),
        }
    }
    let answer = follow(old, outcome);
    drop(change);
    if let Some(held) = before.as_ref().filter(|held| is_closed_listener(held)) {
        kernel_socket::wait_until_released(held);
    }
    sys::to_c_int(answer)
}
