//! `shutdown` of connections and listeners.

use std::ffi::c_int;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use sietch_ring::stream::{Endpoint, flag, state};

use crate::connection::peer;
use crate::connection::status::is_over;
use crate::descriptor::description::{Kind, socket_flag};
use crate::descriptor::table;
use crate::listener::kept;
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
                // Linux stops listening; a call that sleeps in accept returns EINVAL.
                held.socket.flags.fetch_or(socket_flag::STOPPED, Release);
                let _ = kernel::shutdown(fd, libc::SHUT_RDWR);
                kept::stop(&held);
                arrival::refuse_all(fd);
            }
            0
        }
    }
}

fn shut(fd: c_int, end: &Endpoint, how: c_int) -> Outcome {
    let private = end.private();
    if end.is_worth_asking() {
        peer::check_peer_gone(fd, end);
    }
    if private.state.load(Acquire) == state::FAILED || is_over(end) {
        return Err(libc::ENOTCONN);
    }
    if how != libc::SHUT_RD {
        // No handler jumps out of it and leaves a lock.
        let section = handlers::Section::enter();
        end.finish();
        drop(section);
        peer::notify(fd, end, end.data_notification());
    }
    if how != libc::SHUT_WR {
        private.set(flag::SHUT_RD);
        // Wakes all threads that sleep on the placeholder here. The peer sees that bytes are
        // refused, checks whether a process holds this end, and learns that one does.
        let _ = kernel::shutdown(fd, libc::SHUT_RD);
    }
    // Linux wakes all pollers of the socket, whether or not this changed anything.
    private.wake_watchers();
    if private.has(flag::SHUT_RD | flag::SHUT_WR) {
        // The peer asks the kernel, and finds that bytes are refused here.
        let _section = handlers::Section::enter();
        end.closing();
    }
    Ok(0)
}
