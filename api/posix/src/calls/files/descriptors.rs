//! What happens to descriptors: begin, close, dup, fcntl, fork.

use std::ffi::{c_char, c_int, c_uint, c_void};

use crate::calls::files::open::forget;
use crate::calls::process::List;
use crate::calls::process::credentials::giving_up;
use crate::calls::{data, descriptor, process};
use crate::context;
use crate::files::state::{self, with};
use crate::files::{mounts, words};
use crate::system::{originals, sys};

/// The constructor, after that of the sockets.
pub fn begin() {
    let Some(list) = context::variable(mounts::VARIABLE) else { return };
    mounts::begin(list);
    if mounts::are_any() {
        // SAFETY: the functions are mapped as long as the process runs.
        unsafe {
            libc::pthread_atfork(Some(before_fork), Some(after_fork_in_parent), Some(after_fork_in_child))
        };
    }
}

extern "C" fn before_fork() {
    state::before_fork();
}

extern "C" fn after_fork_in_parent() {
    state::after_fork_in_parent();
}

extern "C" fn after_fork_in_child() {
    state::after_fork_in_child();
}

/// `close(2)`. A descriptor of this library is none of the program's.
#[inline]
pub fn close(fd: c_int) -> c_int {
    match words::get(fd) {
        0 => {}
        words::HIDDEN => return sys::to_c_int(Err(libc::EBADF)),
        _ => forget(fd),
    }
    descriptor::close(fd)
}

/// The program takes these numbers for something else.
fn take_back(first: c_uint, last: c_uint) {
    let mut has_hidden = false;
    for fd in words::range(first, last) {
        match words::get(fd) {
            0 => {}
            words::HIDDEN => has_hidden = true,
            _ => forget(fd),
        }
    }
    if has_hidden {
        let last = c_int::try_from(last).unwrap_or(c_int::MAX);
        with(|state| state.give_up(first.cast_signed()..=last));
    }
}

/// `close_range(2)`.
pub fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    let closes = flags & libc::CLOSE_RANGE_CLOEXEC.cast_signed() == 0;
    if closes && first <= last && mounts::are_any() {
        take_back(first, last);
    }
    let call = || descriptor::close_range(first, last, flags);
    if flags & libc::CLOSE_RANGE_UNSHARE.cast_signed() == 0 { call() } else { giving_up(call) }
}

/// `closefrom(3)`.
pub fn closefrom(first: c_int) {
    if mounts::are_any() {
        take_back(first.max(0).cast_unsigned(), c_uint::MAX);
    }
    descriptor::closefrom(first);
}

/// Duplicates a descriptor by `duplicate`. A file keeps its number under the lock: a close or a
/// `dup2` takes the lock before the kernel's call.
fn duplicated(old: c_int, duplicate: impl Fn() -> c_int) -> c_int {
    if !mounts::are_any() {
        return duplicate();
    }
    if words::get(old) == 0 {
        let new = duplicate();
        if new < 0 {
            return new;
        }
        forget(new);
        if words::get(old) == 0 {
            return new;
        }
        // Another thread has opened a file at that number meanwhile: this may be it.
        descriptor::close(new);
    }
    with(|state| {
        let number = state.of(old);
        let new = duplicate();
        if new >= 0 {
            state.close(words::take(new));
            number.into_iter().for_each(|number| state.duplicate(number, new));
        }
        new
    })
}

/// `dup(2)`.
pub fn dup(old: c_int) -> c_int {
    duplicated(old, || descriptor::dup(old))
}

/// A descriptor takes the place of another one by `duplicate`. No read or write of this process is
/// between its two ends then: its position would be that of another file.
fn replaced(old: c_int, new: c_int, duplicate: impl FnOnce() -> c_int) -> c_int {
    if words::get(new) == words::HIDDEN {
        take_back(new.cast_unsigned(), new.cast_unsigned());
    }
    if old == new || words::get(old) == 0 && words::get(new) == 0 {
        return duplicate();
    }
    with(|state| {
        let (before, number) = (words::take(new), state.of(old));
        let answer = duplicate();
        if answer >= 0 {
            state.close(before);
            number.into_iter().for_each(|number| state.duplicate(number, new));
        } else if before != 0 {
            words::set(new, before);
        }
        answer
    })
}

/// `dup2(2)`.
pub fn dup2(old: c_int, new: c_int) -> c_int {
    replaced(old, new, || descriptor::dup2(old, new))
}

/// `dup3(2)`.
pub fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int {
    replaced(old, new, || descriptor::dup3(old, new, flags))
}

/// `fcntl(2)`.
///
/// # Safety
/// As `fcntl(2)`.
pub unsafe fn fcntl(fd: c_int, command: c_int, argument: usize) -> c_int {
    // SAFETY: the caller upholds this function's contract.
    let call = || unsafe { descriptor::fcntl(fd, command, argument) };
    if matches!(command, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC) {
        return duplicated(fd, call);
    }
    let answer = call();
    if answer >= 0 && command == libc::F_SETFL && words::get(fd) != 0 {
        with(|state| {
            let appends = argument as c_int & libc::O_APPEND != 0;
            if let Some(file) = state.of(fd).and_then(|number| state.file(number)) {
                file.appends = appends;
            }
        });
    }
    answer
}

/// `fdopen(3)`: the C library then uses and closes the descriptor past this library.
///
/// # Safety
/// As `fdopen(3)`.
pub unsafe fn fdopen(fd: c_int, mode: *const c_char) -> *mut c_void {
    if words::get(fd) != 0 {
        // Duplicates stay.
        with(|state| state.share_one(fd));
    }
    forget_file(fd);
    // SAFETY: the caller upholds this function's contract.
    unsafe { data::fdopen(fd, mode) }
}

/// `fclose(3)`: the C library closes the descriptor past this library. The number may have become a
/// file's that the program opened.
///
/// # Safety
/// As `fclose(3)`.
pub unsafe fn fclose(stream: *mut c_void) -> c_int {
    if mounts::are_any() && !stream.is_null() {
        // SAFETY: the caller upholds this function's contract.
        forget_file(unsafe { libc::fileno(stream.cast()) });
    }
    // SAFETY: the caller upholds this function's contract.
    unsafe { originals::fclose(stream) }
}

fn forget_file(fd: c_int) {
    if words::get(fd) != words::HIDDEN {
        forget(fd);
    }
}

/// `posix_spawn(3)` and `posix_spawnp(3)`: the child has the descriptors, and no handler of a fork
/// runs.
///
/// # Safety
/// As `posix_spawn(3)`.
pub unsafe fn posix_spawn(
    searches: bool,
    child: *mut libc::pid_t,
    path: *const c_char,
    actions: [*const c_void; 2],
    arguments: List,
    environment: List,
) -> c_int {
    // SAFETY: the caller upholds this function's contract.
    let spawn = || unsafe { process::posix_spawn(searches, child, path, actions, arguments, environment) };
    state::spawning(spawn)
}
