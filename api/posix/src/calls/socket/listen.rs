//! `listen`: the kernel listens first, then the service takes the listening socket over.
//!
//! Errors of names are therefore the kernel's. The placeholder that the service returns takes the
//! socket's place at every descriptor. If the service refuses, the socket stays the kernel's.

use std::ffi::c_int;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

use sietch_protocol::socket_service as protocol;

use crate::context;
use crate::descriptor::description::{Kind, socket_flag};
use crate::descriptor::table;
use crate::listener::register::{is_on_vnic, listen_on_vnic, pass_to_service, publish_on_host};
use crate::listener::reregister;
use crate::system::kernel::shutdown;
use crate::system::originals;
use crate::system::sys::{self, signed};

/// `listen(2)`.
pub fn listen(fd: c_int, backlog: c_int) -> c_int {
    let found = table::find(fd);
    let Some((held, context)) = found.as_ref().zip(context::get()) else {
        // SAFETY: touches no memory.
        return unsafe { originals::listen(fd, backlog) };
    };
    match held.kind() {
        Kind::Pending => {}
        Kind::Stream => return sys::to_c_int(Err(libc::EINVAL)),
        Kind::Listener => {
            held.socket.backlog.store(backlog.cast_unsigned(), Relaxed);
            if held.socket.flags.load(Acquire) & socket_flag::STOPPED != 0 {
                return sys::to_c_int(reregister::listen_again(fd, held));
            }
            // SAFETY: the descriptor is open for the time of the call.
            let _ = protocol::change_backlog(
                unsafe { std::os::fd::BorrowedFd::borrow_raw(fd) },
                backlog.cast_unsigned(),
            );
            return 0;
        }
        // SAFETY: touches no memory.
        _ => return unsafe { originals::listen(fd, backlog) },
    }
    if is_on_vnic(context, fd, held) {
        return sys::to_c_int(listen_on_vnic(context, fd, held, backlog.cast_unsigned()));
    }
    let published = match publish_on_host(context, fd, held, backlog.cast_unsigned()) {
        Ok(published) => published,
        Err(errno) => return sys::to_c_int(Err(errno)),
    };
    // SAFETY: touches no memory.
    let listening = unsafe { sys::syscall(libc::SYS_listen, [signed(fd), signed(backlog), 0, 0, 0, 0]) };
    if listening.is_ok()
        && let Err(errno) = pass_to_service(context, fd, held, backlog.cast_unsigned(), &published)
    {
        if errno == libc::EACCES {
            // The service's rules forbid it. The socket, which listens in the kernel by now, is
            // shut down; its name stays bound.
            let _ = shutdown(fd, libc::SHUT_RDWR);
            return sys::to_c_int(Err(errno));
        }
        context::debug_line("the socket service refused a listener; it stays on kernel TCP", errno);
        drop(table::remove(fd));
    }
    sys::to_c_int(listening)
}
