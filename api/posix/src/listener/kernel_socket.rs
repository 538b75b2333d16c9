//! The kernel's listening socket behind a listener, which the program keeps open.
//!
//! It has a number out of the program's way ([`crate::descriptor::hidden`]). The port and the
//! queue of connections survive the service, and the processes of a fork continue to share the
//! socket.

use std::ffi::c_int;
use std::sync::atomic::Ordering::{AcqRel, Relaxed};

use crate::context;
use crate::descriptor::description::{Held, listener_name, socket_flag};
use crate::descriptor::table::forget_stale;
use crate::readiness::replace::{replace, replaced};
use crate::service::client;
use crate::system::{kernel, seccomp};

/// Attempts to listen on a name that was just released, or to see it free, one each millisecond.
pub(crate) const RETRIES: u32 = 100;

/// Keeps a copy of the kernel's listening socket of a listener open; the caller keeps its own
/// descriptor.
pub(crate) fn keep_socket(held: &Held, kernel: c_int) {
    // Without one the socket is made again.
    if held.socket.listening_socket.keep_copy(kernel)
        && let Some(copy) = held.socket.listening_socket.number()
    {
        forget_stale(copy);
    }
}

/// Closes the kept socket: the listener is closed here, or listens no more.
pub(crate) fn close_socket(held: &Held) {
    held.socket.listening_socket.close();
}

/// A listener was shut down here: clients cannot connect from now on, though the service sees that
/// only later. From now on it polls as a socket of the kernel that does not listen, because it is
/// one.
pub(crate) fn stop(fd: c_int, held: &Held) {
    // A sandbox may forbid these calls; then only the service's answer counts.
    if !seccomp::is_restricted() {
        if let Some(kernel) = held.socket.listening_socket.get() {
            let _ = kernel::shutdown(kernel, libc::SHUT_RDWR);
        }
        let domain = held.socket.domain.load(Relaxed).cast_signed();
        if let Ok(fresh) = kernel::socket(domain, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) {
            held.socket.flags.fetch_and(!socket_flag::ON_KERNEL, AcqRel);
            replace(fd, held, fresh as c_int);
            replaced(fd, held);
        }
    }
    close_socket(held);
}

/// This process has made a listener of a socket.
pub(crate) fn record_owner(held: &Held) {
    held.socket.process.store(kernel::process(), Relaxed);
}

/// A listener was closed here. Its name is free when the service has seen that too. The process
/// that made the listener waits for that; a child of fork closes only what its parent still uses.
pub(crate) fn wait_until_released(held: &Held) {
    let name = listener_name(held);
    // A sandbox may forbid the request.
    if held.socket.process.load(Relaxed) == kernel::process()
        && !seccomp::is_restricted()
        && let Some(context) = context::get().filter(|context| !client::is_of_vnic(context, &name))
    {
        for _ in 0..RETRIES {
            // The service is still closing sockets of this user, and this listener's may be among
            // them.
            if client::release_stale_name(context, name) != Ok(true) {
                break;
            }
            pause();
        }
    }
}

/// The program has set or cleared O_NONBLOCK of a listener.
pub(crate) fn note_nonblocking(held: &Held, yes: bool) {
    if yes {
        held.socket.flags.fetch_and(!socket_flag::BLOCKING, AcqRel);
    } else {
        held.socket.flags.fetch_or(socket_flag::BLOCKING, AcqRel);
    }
}

/// A millisecond.
pub(crate) fn pause() {
    let _ = kernel::poll(&mut [], Some(libc::timespec { tv_sec: 0, tv_nsec: 1_000_000 }));
}
