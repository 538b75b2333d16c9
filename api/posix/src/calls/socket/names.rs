//! `getsockname` and `getpeername`.

use std::ffi::c_int;

use libc::{sockaddr, socklen_t};
use sietch_protocol::socket_service::Name;

use crate::address::write_name;
use crate::connection::names::{self, peer_of};
use crate::connection::status::refresh;
use crate::descriptor::description::{Kind, listener_name};
use crate::descriptor::table;
use crate::system::{originals, sys};

/// `getsockname(2)`.
///
/// # Safety
/// As `getsockname(2)`.
pub unsafe fn getsockname(fd: c_int, name: *mut sockaddr, length: *mut socklen_t) -> c_int {
    let Some(held) = table::find(fd) else {
        // SAFETY: the caller upholds this function's contract.
        return unsafe { originals::getsockname(fd, name, length) };
    };
    let own = match (held.kind(), held.end()) {
        (Kind::Stream, Some(_)) if listener_name(&held).length != 0 => listener_name(&held),
        (Kind::Stream, Some(end)) => {
            let names = end.names();
            names::reported(end, Name { bytes: names.local, length: names.local_length })
        }
        (Kind::Listener, _) => listener_name(&held),
        (Kind::Pending, _) if listener_name(&held).length != 0 => listener_name(&held),
        // SAFETY: the caller upholds this function's contract.
        _ => return unsafe { originals::getsockname(fd, name, length) },
    };
    // SAFETY: the caller upholds this function's contract.
    sys::to_c_int(unsafe { write_name(&own, name, length) })
}

/// `getpeername(2)`.
///
/// # Safety
/// As `getpeername(2)`.
pub unsafe fn getpeername(fd: c_int, name: *mut sockaddr, length: *mut socklen_t) -> c_int {
    let held = match table::find(fd) {
        Some(held) if matches!(held.kind(), Kind::Stream | Kind::Listener) => held,
        // SAFETY: the caller upholds this function's contract.
        _ => return unsafe { originals::getpeername(fd, name, length) },
    };
    refresh(fd, &held);
    let outcome = match peer_of(&held) {
        // SAFETY: the caller upholds this function's contract.
        Some((bytes, peer_length)) => unsafe {
            write_name(&Name { bytes, length: peer_length }, name, length)
        },
        None => Err(libc::ENOTCONN),
    };
    sys::to_c_int(outcome)
}
