//! The C library's streams (`FILE`) over our sockets.
//!
//! The C library reads and writes the descriptor of a `FILE` by itself, without a call that could
//! be intercepted. So `fdopen` of a connection returns a `FILE` of callbacks (`fopencookie`), whose
//! descriptor is written into it afterwards, for `fileno`.

use std::ffi::{c_char, c_int, c_void};

use libc::{off64_t, size_t, ssize_t};

use crate::calls::data::transfer;
use crate::descriptor::description::Kind;
use crate::descriptor::table;
use crate::system::{cancellation, originals, sys};

#[repr(C)]
struct Callbacks {
    read: Option<unsafe extern "C-unwind" fn(*mut c_void, *mut c_char, size_t) -> ssize_t>,
    write: Option<unsafe extern "C-unwind" fn(*mut c_void, *const c_char, size_t) -> ssize_t>,
    seek: Option<unsafe extern "C" fn(*mut c_void, *mut off64_t, c_int) -> c_int>,
    close: Option<unsafe extern "C" fn(*mut c_void) -> c_int>,
}

unsafe extern "C" {
    fn fopencookie(cookie: *mut c_void, mode: *const c_char, callbacks: Callbacks) -> *mut c_void;
    static mut stdin: *mut c_void;
    static mut stdout: *mut c_void;
    static mut stderr: *mut c_void;
    fn setvbuf(file: *mut c_void, buffer: *mut c_char, mode: c_int, size: size_t) -> c_int;
}

/// Where glibc keeps the descriptor in a `FILE` (`_fileno`), on 64-bit machines.
const FILENO: usize = 112;

fn fd_of(cookie: *mut c_void) -> c_int {
    cookie.addr() as c_int - 1
}

unsafe extern "C-unwind" fn read(cookie: *mut c_void, to: *mut c_char, length: size_t) -> ssize_t {
    // SAFETY: the C library's buffer. Its functions that call this may be unwound.
    unsafe {
        let before = cancellation::enter();
        let answer = transfer::read(fd_of(cookie), to.cast(), length);
        cancellation::leave(before);
        answer
    }
}

unsafe extern "C-unwind" fn write(cookie: *mut c_void, from: *const c_char, length: size_t) -> ssize_t {
    // SAFETY: as above.
    let written = unsafe {
        let before = cancellation::enter();
        let answer = transfer::write(fd_of(cookie), from.cast(), length);
        cancellation::leave(before);
        answer
    };
    // Here an error is 0, not -1.
    written.max(0)
}

unsafe extern "C" fn close(cookie: *mut c_void) -> c_int {
    crate::calls::descriptor::close::close(fd_of(cookie))
}

/// `fdopen(3)`.
///
/// # Safety
/// As `fdopen(3)`.
pub unsafe fn fdopen(fd: c_int, mode: *const c_char) -> *mut c_void {
    match table::find(fd).map(|held| held.kind()) {
        Some(Kind::Stream) => {
            // SAFETY: the caller upholds this function's contract.
            let file = unsafe { of_stream(fd, mode) };
            if file.is_null() {
                sys::set_errno(libc::EINVAL);
            }
            file
        }
        kind => {
            if kind == Some(Kind::Pending) {
                // The C library will use it without this library, so it has to stay the kernel's.
                drop(table::remove(fd));
            }
            // SAFETY: the caller upholds this function's contract.
            unsafe { originals::fdopen(fd, mode) }
        }
    }
}

/// # Safety
/// `mode` is a text.
unsafe fn of_stream(fd: c_int, mode: *const c_char) -> *mut c_void {
    let callbacks = Callbacks { read: Some(read), write: Some(write), seek: None, close: Some(close) };
    let cookie = std::ptr::without_provenance_mut(fd.cast_unsigned() as usize + 1);
    // SAFETY: the caller upholds this function's contract; the callbacks are functions.
    let file = unsafe { fopencookie(cookie, mode, callbacks) };
    if !file.is_null() {
        // SAFETY: glibc's FILE is longer than that, and has an int there.
        unsafe { file.byte_add(FILENO).cast::<c_int>().write(fd) };
    }
    file
}

/// Puts a stream that was inherited at 0, 1 or 2 behind `stdin`, `stdout` or `stderr`.
pub(crate) fn replace_standard(fd: c_int) {
    let mode = if fd == 0 { c"r" } else { c"w" };
    // SAFETY: before `main`, with nothing else running; the variables are the C library's.
    unsafe {
        let file = of_stream(fd, mode.as_ptr());
        if file.is_null() {
            return;
        }
        match fd {
            0 => stdin = file,
            1 => stdout = file,
            _ => {
                setvbuf(file, std::ptr::null_mut(), libc::_IONBF, 0);
                stderr = file;
            }
        }
    }
}
