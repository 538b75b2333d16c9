//! Calls by which another process gets descriptions of this one, past `fork(2)` and
//! `posix_spawn(3)`: messages, and the C library's own children (`system(3)`, `popen(3)`).

use std::ffi::{c_char, c_int, c_uint, c_void};

use libc::{mmsghdr, msghdr, ssize_t};

use crate::calls::data;
use crate::files::mounts;
use crate::files::state::{State, with};
use crate::signal::user_memory;
use crate::system::originals;

/// Most messages of a call (`UIO_MAXIOV`).
const MAX_MESSAGES: usize = 1024;

/// Notes what a message carries. Memory that cannot be read is for the kernel to refuse.
fn note(message: &msghdr) {
    if message.msg_controllen == 0 || !user_memory::is_readable(message.msg_control, message.msg_controllen) {
        return;
    }
    // SAFETY: the control data can be read, and the macros stay within its length.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(message);
        while let Some(this) = header.as_ref() {
            if this.cmsg_level == libc::SOL_SOCKET && this.cmsg_type == libc::SCM_RIGHTS {
                note_descriptors(message, this);
            }
            header = libc::CMSG_NXTHDR(message, header);
        }
    }
}

/// # Safety
/// The header is within the control data of the message, which can be read.
unsafe fn note_descriptors(message: &msghdr, header: &libc::cmsghdr) {
    // SAFETY: an address within the control data, or just behind it.
    let data = unsafe { libc::CMSG_DATA(header) }.cast_const();
    let end = message.msg_control.addr() + message.msg_controllen;
    let said = header.cmsg_len.saturating_sub(data.addr() - std::ptr::from_ref(header).addr());
    let bytes = said.min(end.saturating_sub(data.addr()));
    for index in 0..bytes / size_of::<c_int>() {
        // SAFETY: within the control data.
        let fd = unsafe { data.cast::<[u8; size_of::<c_int>()]>().add(index).read_unaligned() };
        with(|state| state.share_one(c_int::from_ne_bytes(fd)));
    }
}

/// `sendmsg(2)`.
///
/// # Safety
/// As `sendmsg(2)`.
pub unsafe fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    if mounts::are_any() && user_memory::is_readable(message, size_of::<msghdr>()) {
        // SAFETY: it was found to be readable.
        note(&unsafe { message.read_unaligned() });
    }
    // SAFETY: the caller upholds this function's contract.
    unsafe { data::sendmsg(fd, message, flags) }
}

/// `sendmmsg(2)`.
///
/// # Safety
/// As `sendmmsg(2)`.
pub unsafe fn sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int {
    let most = (count as usize).min(MAX_MESSAGES);
    if mounts::are_any() && user_memory::is_readable(messages, most * size_of::<mmsghdr>()) {
        for index in 0..most {
            // SAFETY: it was found to be readable.
            note(&unsafe { messages.add(index).read_unaligned() }.msg_hdr);
        }
    }
    // SAFETY: the caller upholds this function's contract.
    unsafe { data::sendmmsg(fd, messages, count, flags) }
}

/// `system(3)`.
///
/// # Safety
/// As `system(3)`.
pub unsafe fn system(command: *const c_char) -> c_int {
    if mounts::are_any() {
        with(State::share);
    }
    // SAFETY: the caller upholds this function's contract.
    unsafe { originals::system(command) }
}

/// `popen(3)`.
///
/// # Safety
/// As `popen(3)`.
pub unsafe fn popen(command: *const c_char, kind: *const c_char) -> *mut c_void {
    if mounts::are_any() {
        with(State::share);
    }
    // SAFETY: the caller upholds this function's contract.
    unsafe { originals::popen(command, kind) }
}
