//! The beginning and the end of a process, and its children.
//!
//! 1. [`begin`] is the constructor: look up the C library's functions, read the environment, adopt
//!    what exec left open.
//! 2. A child of fork has a copy of everything; its thread has another id ([`child`]). `vfork`
//!    becomes `fork`: a child that shares its parent's memory would take descriptors out of the
//!    parent's table.
//! 3. [`end`] leaves the hints that closing would have left.

use std::ffi::c_int;

use sietch_ring::stream;

use crate::{adopt, context, descriptor, exec, load, real, renewal, sys};

extern "C" fn parent() {
    renewal::before_fork();
    crate::wait::before_fork();
}

extern "C" fn child() {
    stream::after_fork();
    descriptor::after_fork();
    crate::wait::after_fork();
}

/// The constructor.
pub fn begin() {
    real::resolve();
    crate::action::resolve();
    load::resolve();
    crate::jump::resolve();
    context::begin();
    exec::begin();
    if context::get().is_some() {
        let before = sys::errno();
        stream::look_at_overcommit();
        // SAFETY: the function lives as long as the process.
        unsafe { libc::pthread_atfork(Some(parent), None, Some(child)) };
        adopt::inherited();
        sys::set_errno(before);
    }
}

/// The destructor.
pub fn end() {
    descriptor::leave();
}

/// `fork(2)`, and `vfork(2)`.
///
/// # Safety
/// As `fork(2)`.
pub unsafe fn fork() -> c_int {
    // SAFETY: the caller's.
    unsafe { real::fork() }
}

/// `_exit(2)`.
pub fn exit(status: c_int) -> ! {
    descriptor::leave();
    loop {
        // SAFETY: touches no memory, and does not return.
        unsafe { sys::call(libc::SYS_exit_group, [sys::signed(status), 0, 0, 0, 0, 0]) };
    }
}
