//! `dlopen`: a library that a program loads uses the same calls as the program.
//!
//! 1. With `RTLD_DEEPBIND` the loader searches a library's own dependencies first, and so finds the
//!    C library before this one. PHP opens each of its extensions in this way. Such a library would
//!    read and write the placeholders of connections. So the flag is removed, in the namespace of
//!    the program.
//! 2. The loader identifies its caller by the return address, for `RUNPATH` and `$ORIGIN`. So the
//!    exported functions jump to the C library's (`api/posix/preload/src/dlopen.rs`), and this
//!    module provides the target.
//! 3. `dlmopen` with a namespace of its own loads another C library there, which no library of the
//!    program precedes.

use std::ffi::c_void;
use std::sync::atomic::AtomicPtr;
use std::sync::atomic::Ordering::{Acquire, Release};

use sietch_protocol::socket_service::{FILES_VARIABLE, SOCKET_VARIABLE};

use crate::context;
use crate::system::originals;

/// Where an exported function jumps to, and the bits of the program's mode that it keeps.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// The C library's function.
    pub function: *mut c_void,
    /// The mask of the mode.
    pub keeps: usize,
}

static DLOPEN: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

static DLMOPEN: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

/// Looks up the C library's functions. To be called once, before `main`.
pub(crate) fn resolve() {
    DLOPEN.store(originals::look_up("dlopen\0"), Release);
    DLMOPEN.store(originals::look_up("dlmopen\0"), Release);
}

/// The target of a function; a constructor of another library may call it before [`resolve`].
fn target(pointer: &AtomicPtr<c_void>, name: &str) -> Target {
    let mut function = pointer.load(Acquire);
    if function.is_null() {
        function = originals::look_up(name);
        if function.is_null() {
            function = missing as extern "C" fn() -> *mut c_void as *mut c_void;
        }
    }
    // Before the constructor has run, only the environment says so.
    let is_set = |name| context::variable(name).is_some();
    let under_sietch = context::get().is_some() || is_set(SOCKET_VARIABLE) || is_set(FILES_VARIABLE);
    Target { function, keeps: kept(under_sietch) }
}

fn kept(under_sietch: bool) -> usize {
    let all = usize::MAX;
    if under_sietch { all & !(libc::RTLD_DEEPBIND as usize) } else { all }
}

/// The result of a C library without the function.
extern "C" fn missing() -> *mut c_void {
    std::ptr::null_mut()
}

/// For the exported `dlopen`.
pub extern "C" fn target_of_dlopen() -> Target {
    target(&DLOPEN, "dlopen\0")
}

/// For the exported `dlmopen`.
pub extern "C" fn target_of_dlmopen() -> Target {
    target(&DLMOPEN, "dlmopen\0")
}
