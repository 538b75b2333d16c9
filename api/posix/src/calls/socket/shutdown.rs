//! `shutdown` of connections and listeners.

use std::ffi::c_int;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use rustix::io::Errno as Error;
use rustix::net::Shutdown;
use sietch_ring::stream::Endpoint;
use sietch_stream::outcome;

use crate::connection::placeholder::Number;
use crate::descriptor::description::{Held, Kind, socket_flag};
use crate::descriptor::table;
use crate::listener::kernel_socket;
use crate::service::arrival;
use crate::signal::handlers;
use crate::system::sys::{self, Outcome};
use crate::system::{kernel, originals};

/// `shutdown(2)`.
pub fn shutdown(fd: c_int, how: c_int) -> c_int {
    let held = match table::find(fd) {
        Some(held) if matches!(held.kind(), Kind::Stream | Kind::Listener) => held,
        // SAFETY: touches no memory.
        _ => return unsafe { originals::shutdown(fd, how) },
    };
    if !matches!(how, libc::SHUT_RD | libc::SHUT_WR | libc::SHUT_RDWR) {
        return sys::to_c_int(Err(libc::EINVAL));
    }
    match held.end() {
        Some(end) => {
            let outcome = shut(fd, end, how);
            if outcome.is_ok() {
                // A connect that did not wait does not report its result any more either.
                held.socket.flags.fetch_and(!socket_flag::CONNECTING, Relaxed);
            }
            sys::to_c_int(outcome)
        }
        None => {
            if held.socket.flags.load(Acquire) & socket_flag::STOPPED != 0 {
                return sys::to_c_int(Err(libc::ENOTCONN));
            }
            if how != libc::SHUT_WR {
                stop_listening(fd, &held);
            }
            0
        }
    }
}

/// A listener stops listening. A call that sleeps in accept returns EINVAL.
pub(crate) fn stop_listening(fd: c_int, held: &Held) {
    if held.socket.flags.fetch_or(socket_flag::STOPPED, AcqRel) & socket_flag::STOPPED != 0 {
        return;
    }
    let _ = kernel::shutdown(fd, libc::SHUT_RDWR);
    arrival::refuse_all(fd);
    kernel_socket::stop(fd, held);
    // A `listen` of another thread came in between: what it made is shut down too.
    held.socket.flags.fetch_or(socket_flag::STOPPED, Release);
}

fn shut(fd: c_int, end: &Endpoint, how: c_int) -> Outcome {
    let how = match how {
        libc::SHUT_RD => Shutdown::Read,
        libc::SHUT_WR => Shutdown::Write,
        _ => Shutdown::Both,
    };
    // No handler jumps out of it and leaves a lock.
    let in_section = |change: &dyn Fn()| {
        let _section = handlers::Section::enter();
        change();
    };
    outcome::shut_down(Number(fd, end), end, how, in_section).map(|()| 0).map_err(Error::raw_os_error)
}
