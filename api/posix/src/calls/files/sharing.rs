//! Calls by which another process gets descriptions of this one, past `fork(2)` and
//! `posix_spawn(3)`: messages, and the C library's own children (`system(3)`, `popen(3)`).

use std::ffi::{c_char, c_int, c_uint, c_void};

use libc::{mmsghdr, msghdr, ssize_t};

use crate::calls::data;
use crate::calls::data::control_data::ControlMessages;
use crate::calls::descriptor::adopt::MAX_DESCRIPTORS;
use crate::files::mounts;
use crate::files::state::{spawning, with};
use crate::signal::user_memory;
use crate::system::originals;

/// Most messages of a call (`UIO_MAXIOV`).
const MAX_MESSAGES: usize = 1024;

/// Notes what a message carries. Memory that cannot be read is for the kernel to refuse.
fn note(message: &msghdr) {
    // SAFETY: the program has given the addresses for this.
    for control in unsafe { ControlMessages::new(message) }.map_while(Result::ok) {
        if control.level != libc::SOL_SOCKET || control.kind != libc::SCM_RIGHTS {
            continue;
        }
        for index in 0..(control.length / size_of::<c_int>()).min(MAX_DESCRIPTORS) {
            // SAFETY: as above.
            let fd = unsafe { user_memory::read(control.data.cast::<c_int>().wrapping_add(index)) };
            let Ok(fd) = fd else { return };
            with(|state| state.share_one(fd));
        }
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
    // SAFETY: the caller upholds this function's contract.
    spawning(|| unsafe { originals::system(command) })
}

/// `popen(3)`.
///
/// # Safety
/// As `popen(3)`.
pub unsafe fn popen(command: *const c_char, kind: *const c_char) -> *mut c_void {
    // SAFETY: the caller upholds this function's contract.
    spawning(|| unsafe { originals::popen(command, kind) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_data_whose_length_wraps_are_left_to_the_kernel() {
        let mut control = [usize::MAX, 1 << 32 | 1, 0, 0];
        // SAFETY: zeros are a message without anything.
        let mut message = unsafe { std::mem::zeroed::<msghdr>() };
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = size_of_val(&control);
        note(&message);
    }
}
