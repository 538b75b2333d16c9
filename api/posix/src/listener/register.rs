//! Passing a listening socket to the service, and naming sockets on a VNIC.

use std::ffi::c_int;
use std::sync::atomic::Ordering::Relaxed;

use sietch_protocol::socket_service::{self as protocol, Name};

use crate::address::kernel_name;

use crate::context::Context;
use crate::descriptor::description::{Held, listener_name, set_listener_name};
use crate::listener::kernel_socket;
use crate::options::inherit;
use crate::readiness::replace::{replace, replaced};
use crate::service::client::{self, PublishedSockets};
use crate::service::{publish, reservation};
use crate::system::kernel;
use crate::system::sys::{Errno, Outcome};

/// Flags of a request about a socket's own name on a VNIC.
fn name_flags(fd: c_int) -> u32 {
    let is_set = |level, name| kernel::socket_option(fd, level, name).is_ok_and(|value| value != 0);
    let flag = |level, name, flag| if is_set(level, name) { flag } else { 0 };
    flag(libc::SOL_SOCKET, libc::SO_REUSEPORT, protocol::SHARED_PORT)
        | flag(libc::SOL_SOCKET, libc::SO_REUSEADDR, protocol::REUSED_ADDRESS)
        | flag(libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, protocol::ONLY_IPV6)
}

/// Binds a socket to a name of the VNIC.
pub(crate) fn bind_on_vnic(context: &Context, fd: c_int, held: &Held, name: Name) -> Outcome {
    if listener_name(held).length != 0 || !family_fits(held, &name) {
        return Err(libc::EINVAL);
    }
    let (bound, reservation) = client::bind(context, name, name_flags(fd))?;
    reservation::keep(&held.socket, reservation);
    set_listener_name(held, &bound);
    Ok(0)
}

/// Whether a socket's own name is one of the VNIC: it is bound there, or nowhere.
pub(crate) fn is_on_vnic(context: &Context, fd: c_int, held: &Held) -> bool {
    let of_kernel = || kernel_name(fd).and_then(|name| name.canonical()).is_some_and(|(_, port)| port != 0);
    context.vnic().is_some() && (listener_name(held).length != 0 || !of_kernel())
}

/// `listen(2)` on a VNIC.
pub(crate) fn listen_on_vnic(context: &Context, fd: c_int, held: &Held, backlog: u32) -> Outcome {
    if listener_name(held).length == 0 {
        let mut any = kernel_name(fd).ok_or(libc::ENOTSOCK)?;
        any.bytes[2..].fill(0);
        bind_on_vnic(context, fd, held, any)?;
    }
    let (reservation, name, flags) = (reservation::of(&held.socket), listener_name(held), name_flags(fd));
    let published = publish::open(context, held, flags, &name, backlog)?;
    let placeholder = client::listen(context, reservation, name, backlog, flags, &published)?;
    reservation::release(&held.socket);
    inherit::remember(fd, held);
    held.socket.backlog.store(backlog, Relaxed);
    replace(fd, held, placeholder);
    held.become_listener();
    replaced(fd, held);
    Ok(0)
}

/// Ports of the host that lead to the port of a listener of the host. With a VNIC they lead to the
/// VNIC's ports alone.
///
/// # Errors
/// As [`publish::open`].
pub(crate) fn publish_on_host(
    context: &Context,
    fd: c_int,
    held: &Held,
    backlog: u32,
) -> Result<PublishedSockets, Errno> {
    match kernel_name(fd) {
        Some(name) if context.vnic().is_none() => {
            publish::open(context, held, name_flags(fd), &name, backlog)
        }
        _ => Ok(PublishedSockets::default()),
    }
}

/// Passes a kernel's listening socket to the service, and puts the placeholder in its place.
pub(crate) fn pass_to_service(
    context: &Context,
    fd: c_int,
    held: &Held,
    backlog: u32,
    published: &PublishedSockets,
) -> Result<(), Errno> {
    let name = kernel_name(fd).ok_or(libc::ENOTSOCK)?;
    let placeholder = client::listen(context, Some(fd), name, backlog, 0, published)?;
    inherit::remember(fd, held);
    set_listener_name(held, &name);
    held.socket.backlog.store(backlog, Relaxed);
    kernel_socket::keep_socket(held, fd);
    kernel_socket::record_owner(held);
    replace(fd, held, placeholder);
    inherit::set_accept_timeout(fd, held);
    held.become_listener();
    replaced(fd, held);
    Ok(())
}

pub(crate) fn family_fits(held: &Held, name: &Name) -> bool {
    let family = u32::from(u16::from_ne_bytes([name.bytes[0], name.bytes[1]]));
    family == held.socket.domain.load(Relaxed)
}
