//! `sendto` with `MSG_FASTOPEN` on a socket that is not connected.

use std::ffi::c_int;

use libc::{sockaddr, socklen_t};

use crate::calls::data::send;
use crate::calls::socket::connect::connect;
use crate::descriptor::table;
use crate::system::originals;
use crate::system::sys::{self, address};

/// `sendto` with a name on a socket that is not connected, with MSG_FASTOPEN: connect, then send.
///
/// # Safety
/// As `sendto(2)`.
pub(crate) unsafe fn send_fast(
    fd: c_int,
    vectors: &[libc::iovec],
    flags: c_int,
    to: *const sockaddr,
    length: socklen_t,
) -> isize {
    // SAFETY: the caller upholds this function's contract.
    if unsafe { connect(fd, to, length) } != 0 {
        return -1;
    }
    let held = table::find(fd);
    if let Some((held, end)) = held.as_ref().and_then(|held| held.end().map(|end| (held, end))) {
        // SAFETY: the caller upholds this function's contract.
        return sys::to_c(unsafe { send::send(fd, held, end, vectors, flags & !libc::MSG_FASTOPEN) });
    }
    let message = libc::msghdr {
        msg_name: std::ptr::null_mut(),
        msg_namelen: 0,
        msg_iov: vectors.as_ptr().cast_mut(),
        msg_iovlen: vectors.len(),
        msg_control: std::ptr::null_mut(),
        msg_controllen: 0,
        msg_flags: 0,
    };
    // SAFETY: the caller upholds this function's contract.
    unsafe {
        originals::sendmsg(
            fd,
            address(&raw const message) as *const libc::msghdr,
            flags & !libc::MSG_FASTOPEN,
        )
    }
}
