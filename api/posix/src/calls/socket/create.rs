//! `socket`: a TCP socket is the kernel's, remembered as pending until `connect` or `listen`.

use std::ffi::c_int;
use std::sync::atomic::Ordering::Relaxed;

use crate::address::kernel_name;
use crate::calls::socket::bind::note_name;
use crate::context;
use crate::descriptor::description::{self, Kind};
use crate::descriptor::table::{self, forget_stale};
use crate::options::inherit;
use crate::system::{kernel, sys};

/// `socket(2)`.
pub fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    let outcome = kernel::socket(domain, kind, protocol);
    let tcp = matches!(domain, libc::AF_INET | libc::AF_INET6)
        && kind & !(libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK) == libc::SOCK_STREAM
        && matches!(protocol, 0 | libc::IPPROTO_TCP);
    if let (Ok(fd), true, true) = (outcome, tcp, context::get().is_some()) {
        remember(fd as c_int, domain);
    } else if let Ok(fd) = outcome {
        forget_stale(fd as c_int);
    }
    sys::to_c_int(outcome)
}

fn remember(fd: c_int, domain: c_int) {
    if let Some(held) = description::describe(Kind::Pending, None) {
        held.socket.domain.store(domain.cast_unsigned(), Relaxed);
        table::put(fd, &held);
    }
}

/// The same for a socket that another program made, and may have bound.
pub(crate) fn remember_inherited(fd: c_int, domain: c_int) {
    remember(fd, domain);
    if let Some(held) = table::find(fd) {
        inherit::inherit(fd, &held);
        note_name(&held, kernel_name(fd));
    }
}
