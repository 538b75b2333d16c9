//! The beginning and the end of a process, and its children.
//!
//! 1. [`begin`] is the constructor: look up the C library's functions, read the environment, adopt
//!    what exec left open.
//! 2. A child of fork has a copy of everything; its thread has another id ([`child`]). `vfork`
//!    becomes `fork`, and `clone` with CLONE_VM and CLONE_VFORK, but without CLONE_FILES, becomes
//!    one with CLONE_VFORK ([`apart`]): a child that shares its parent's memory would remove
//!    descriptors from the parent's table.
//! 3. A child in which no handler of a fork runs (`_Fork`, `clone`, `syscall`) closes what its
//!    parent has open as a client of a file system, before code of the program runs. `clone` runs
//!    the handlers of this library for sockets.
//! 4. [`end`] leaves the hints that closing would have left.

use std::ffi::{c_int, c_long, c_void};
use std::sync::atomic::Ordering::{AcqRel, Relaxed};

use sietch_ring::stream;

use crate::calls::descriptor::adopt;
use crate::calls::process::credentials::{apart, giving_up, shares_in_part};
use crate::calls::process::{dlopen, exec};
use crate::connection::edges::Edges;
use crate::connection::peer::announce_close;
use crate::context;
use crate::descriptor::description::socket_flag;
use crate::descriptor::{change, in_flight, room, table};
use crate::files::{mounts, state};
use crate::listener::reregister;
use crate::readiness::hooks;
use crate::signal::{disposition, longjmp};
use crate::system::{cancellation, fork, originals, sys};

extern "C" fn parent() {
    before_fork();
    change::before_fork();
}

fn before_fork() {
    reregister::before_fork();
    hooks::before_fork();
}

extern "C" fn parent_after() {
    change::after_fork();
}

extern "C" fn child() {
    stream::after_fork();
    change::after_fork();
    after_fork();
    hooks::after_fork();
}

/// The constructor.
pub fn begin() {
    originals::resolve();
    disposition::resolve();
    dlopen::resolve();
    longjmp::resolve();
    cancellation::resolve(originals::look_up);
    context::begin();
    exec::begin();
    if context::get().is_some() {
        let before = sys::errno();
        stream::check_overcommit();
        // A filter for system calls may allow no new memory later.
        fork::own_word();
        // SAFETY: the function is mapped as long as the process runs.
        unsafe { libc::pthread_atfork(Some(parent), Some(parent_after), Some(child)) };
        adopt::adopt_inherited();
        sys::set_errno(before);
    }
}

/// The destructor.
pub fn end() {
    announce_end();
}

/// `fork(2)`, and `vfork(2)`.
///
/// # Safety
/// As `fork(2)`.
pub unsafe fn fork() -> c_int {
    // SAFETY: the caller upholds this function's contract.
    unsafe { originals::fork() }
}

/// `_Fork(3)`: a fork without its handlers.
///
/// # Safety
/// As `_Fork(3)`.
pub unsafe fn bare_fork() -> c_int {
    // SAFETY: the caller upholds this function's contract.
    let child = unsafe { originals::bare_fork() };
    if child == 0 {
        state::leave_if_child();
    }
    child
}

/// What a child of `clone(2)` runs.
pub type Run = unsafe extern "C" fn(*mut c_void) -> c_int;

/// What it would run, for [`in_child`].
struct Start {
    run: Run,
    argument: *mut c_void,
}

unsafe extern "C" fn in_child(start: *mut c_void) -> c_int {
    // SAFETY: a copy of the frame of `clone`, which is in the child's memory.
    let Start { run, argument } = unsafe { start.cast::<Start>().read() };
    state::leave_if_child();
    if context::get().is_some() {
        child();
    } else {
        change::after_fork();
    }
    // SAFETY: the caller of `clone` upholds its contract.
    unsafe { run(argument) }
}

/// `clone(2)`, the C library's function. `more`: where the kernel writes the thread's number, its
/// storage, and where it clears the number.
///
/// # Safety
/// As `clone(2)`.
pub unsafe fn clone(
    run: Run,
    stack: *mut c_void,
    flags: c_int,
    argument: *mut c_void,
    more: [*mut c_void; 3],
) -> c_int {
    let is_active = context::get().is_some() || mounts::are_any();
    let flags = if is_active { apart(flags) } else { flags };
    let mut start = Start { run, argument };
    // A child that has a copy of the memory has one of this frame.
    let forks = flags & libc::CLONE_VM == 0;
    let (run, argument) = if forks {
        if context::get().is_some() {
            before_fork();
        }
        (in_child as Run, (&raw mut start).cast())
    } else {
        (run, argument)
    };
    let call = || {
        if forks {
            change::before_fork();
        }
        // SAFETY: the caller upholds this function's contract.
        let child = unsafe { originals::clone(run, stack, flags, argument, more) };
        if forks {
            change::after_fork();
        }
        child
    };
    if shares_in_part(flags) { giving_up(call) } else { call() }
}

/// A child that `syscall(2)` has made, or its parent.
pub(crate) fn forked(number: c_long, answer: c_long) -> c_long {
    if answer == 0 && is_fork(number) {
        state::leave_if_child();
    }
    answer
}

fn is_fork(number: c_long) -> bool {
    #[cfg(target_arch = "x86_64")]
    if number == libc::SYS_fork {
        return true;
    }
    matches!(number, libc::SYS_clone | libc::SYS_clone3)
}

/// A system call, by number, of which a child has its own memory ([`apart`]).
pub(crate) fn apart_by_number(number: c_long, mut arguments: [usize; 6]) -> (c_long, [usize; 6]) {
    #[cfg(target_arch = "x86_64")]
    if number == libc::SYS_vfork {
        return (libc::SYS_fork, arguments);
    }
    if number == libc::SYS_clone {
        arguments[0] = apart(arguments[0] as c_int).cast_unsigned() as usize;
    }
    (number, arguments)
}

/// `_exit(2)`.
pub fn exit(status: c_int) -> ! {
    announce_end();
    loop {
        // SAFETY: touches no memory, and does not return.
        unsafe { sys::raw_syscall(libc::SYS_exit_group, [sys::signed(status), 0, 0, 0, 0, 0]) };
    }
}

/// In the child of a fork: work that other threads of the parent had begun does not continue here.
pub(crate) fn after_fork() {
    in_flight::after_fork();
    Edges::forget_all();
    room::after_fork();
    for fd in 0..table::highest() {
        if table::is_ours(fd)
            && let Some(held) = table::find(fd)
        {
            held.socket.flags.fetch_and(!socket_flag::REREGISTERING, AcqRel);
            held.sleepers.store(0, Relaxed);
            held.spare.store(0, Relaxed);
        }
    }
}

/// Before the process ends: leaves the hints that closing its descriptors would have left.
pub(crate) fn announce_end() {
    if context::get().is_none() {
        return;
    }
    for fd in 0..table::highest() {
        if table::is_ours(fd)
            && let Some(held) = table::find(fd)
        {
            announce_close(&held);
        }
    }
}
