//! `bind`: in host addressing the kernel assigns names, on a VNIC the service.

use std::ffi::c_int;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

use libc::{sockaddr, socklen_t};
use sietch_protocol::socket_service::Name;
use sietch_ring::stream::{flag, state};

use crate::address::{self, kernel_name};
use crate::connection::status::{is_over, refresh};
use crate::context;
use crate::descriptor::description::{Held, Kind, listener_name, set_listener_name, socket_flag};
use crate::descriptor::{room, table};
use crate::listener::register::bind_on_vnic;
use crate::options::inherit;
use crate::service::client;
use crate::system::sys::{self, Outcome, address, signed};

/// `bind(2)`. In host addressing the kernel assigns names, on a VNIC the service. A name that is in
/// use may belong to a listener of ours that was closed just now. The service, which holds its
/// kernel socket too, is given the time to see that.
///
/// # Safety
/// As `bind(2)`.
pub unsafe fn bind(fd: c_int, name: *const sockaddr, length: socklen_t) -> c_int {
    let found = table::find(fd);
    if let Some((held, context)) =
        found.as_ref().filter(|held| held.kind() == Kind::Pending).zip(context::get())
    {
        let name = address::parse(name, length);
        if let Some(name) = name.filter(|name| client::is_of_vnic(context, name)) {
            return sys::to_c_int(bind_on_vnic(context, fd, held, name));
        }
    }
    let ours = found.as_ref().filter(|held| matches!(held.kind(), Kind::Stream | Kind::Listener));
    let outcome = match ours {
        None => {
            // SAFETY: the caller upholds this function's contract.
            let outcome = unsafe { bind_with_retries(fd, name, length) };
            if let (Ok(_), Some(held)) = (outcome, &found) {
                note_name(held, address::parse(name, length));
            }
            outcome
        }
        // It has a name already: EINVAL, unless the new name is invalid in itself, which a fresh
        // socket finds out.
        Some(held) => room::with_kernel_socket(held, |kernel| {
            let nameless = is_nameless(fd, held);
            // SAFETY: the caller upholds this function's contract.
            match unsafe { kernel_bind(kernel, name, length) } {
                Ok(_) if nameless => kernel_name(kernel).map_or(Ok(0), |name| {
                    set_listener_name(held, &name);
                    Ok(0)
                }),
                Ok(_) | Err(libc::EADDRINUSE) if !nameless => Err(libc::EINVAL),
                other => other,
            }
        }),
    };
    sys::to_c_int(outcome)
}

/// A pending socket was bound to `name`: records what still matters when it becomes ours.
pub(crate) fn note_name(held: &Held, name: Option<Name>) {
    if held.kind() != Kind::Pending {
        return;
    }
    inherit::note_bound(held);
    if name.and_then(|name| name.canonical()).is_some_and(|(_, port)| port != 0) {
        held.socket.flags.fetch_or(socket_flag::BOUND, Relaxed);
    }
}

/// Whether Linux has released a connection's port: the connection is over, and the program had not
/// requested that port. Such a socket may be bound once more (and do nothing with its name).
fn is_nameless(fd: c_int, held: &Held) -> bool {
    let Some(end) = held.end() else { return false };
    refresh(fd, held);
    let unrequested =
        held.socket.flags.load(Relaxed) & socket_flag::BOUND == 0 && listener_name(held).length == 0;
    unrequested
        && end.private().state.load(Acquire) == state::ESTABLISHED
        && is_over(end)
        // A FIN behind more than a window of bytes that are still to be read has not come yet.
        && (end.private().has(flag::RESET) || end.readable() < 1 << 16)
}

/// # Safety
/// As `bind(2)`.
unsafe fn bind_with_retries(fd: c_int, name: *const sockaddr, length: socklen_t) -> Outcome {
    // SAFETY: the caller upholds this function's contract.
    let attempt = || unsafe { kernel_bind(fd, name, length) };
    client::retrying_bind(context::get(), address::parse(name, length), attempt)
}

/// # Safety
/// As `bind(2)`.
unsafe fn kernel_bind(fd: c_int, name: *const sockaddr, length: socklen_t) -> Outcome {
    // SAFETY: the caller upholds this function's contract.
    unsafe { sys::syscall(libc::SYS_bind, [signed(fd), address(name), length as usize, 0, 0, 0]) }
}
