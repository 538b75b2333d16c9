//! The owner of a descriptor (`F_SETOWN`), to which the kernel sends SIGURG.
//!
//! 1. The owner is a property of the kernel's file, which is the placeholder. A Unix socket that
//!    receives urgent data of its own sends SIGURG to its owner. So a peer that sends urgent data
//!    writes its doorbell byte as urgent, if this end has an owner.
//! 2. Such a byte is read like the others because SO_OOBINLINE is set on the placeholder.

use std::ffi::c_int;

use sietch_ring::stream::Endpoint;

use crate::system::sys::{address, address_mut};
use crate::system::{kernel, seccomp};

/// `F_SETOWN_EX` and `F_GETOWN_EX` of `asm-generic/fcntl.h`.
const SET_OWNER: c_int = 15;
const GET_OWNER: c_int = 16;

/// Whether a command of `fcntl` gives a descriptor its owner.
pub(crate) const fn sets_owner(command: c_int) -> bool {
    matches!(command, libc::F_SETOWN | SET_OWNER)
}

/// An end has got an owner.
pub(crate) fn note(fd: c_int, end: &Endpoint) {
    if !seccomp::is_restricted()
        && kernel::set_socket_option(fd, libc::SOL_SOCKET, libc::SO_OOBINLINE, 1).is_ok()
    {
        end.want_urgent_signals();
    }
}

/// A placeholder takes the place of the socket `from`, and its owner.
pub(crate) fn carry_over(from: c_int, to: c_int, end: &Endpoint) {
    if seccomp::is_restricted() {
        return;
    }
    // `struct f_owner_ex`: the kind of number, and the number.
    let mut owner = [0_i32; 2];
    if kernel::fcntl(from, GET_OWNER, address_mut(owner.as_mut_ptr())).is_ok()
        && owner[1] != 0
        && kernel::fcntl(to, SET_OWNER, address(owner.as_ptr())).is_ok()
    {
        note(to, end);
    }
}
