//! Ports of the host that lead to ports of the program: `sietch run --publish`.
//!
//! 1. When a program listens on a published port, the library makes a kernel socket of the same
//!    family for each published name, and listens there. The right to do so is the program's own,
//!    and so is the error: `listen` fails with it.
//! 2. The sockets go to the service together with the listener, and stay open as long as it does
//!    ([`crate::service::client::listen`]). Nothing of them stays here; a listener that is made
//!    again makes them again.
//! 3. A name that is in use may belong to a listener of ours that was closed just now. The service
//!    is given time to see that.

use std::ffi::c_int;
use std::os::fd::{FromRawFd as _, OwnedFd};
use std::sync::atomic::Ordering::Relaxed;

use sietch_protocol::socket_service::{self as protocol, Name, SocketFamily};

use crate::context::Context;
use crate::descriptor::description::Held;
use crate::service::client::{self, PublishedSockets};
use crate::system::kernel;
use crate::system::sys::{self, Errno, address, signed};

/// Listens on every name of the host that leads to the port of `name`. `flags` are those of the
/// program's socket, as in the protocol.
///
/// # Errors
/// As `bind(2)` and `listen(2)`; `EMFILE`. Nothing is open then.
pub(crate) fn open(
    context: &Context,
    held: &Held,
    flags: u32,
    name: &Name,
    backlog: u32,
) -> Result<PublishedSockets, Errno> {
    let mut opened = PublishedSockets::default();
    let port = name.address().map_or(0, |name| name.port());
    let six = held.socket.domain.load(Relaxed).cast_signed() == libc::AF_INET6;
    let only_six = six && flags & protocol::ONLY_IPV6 != 0;
    let shared = flags & protocol::SHARED_PORT != 0;
    let family = match (six, only_six) {
        (false, _) => SocketFamily::Ipv4,
        (true, true) => SocketFamily::Ipv6Only,
        (true, false) => SocketFamily::DualStack,
    };
    let names = context.published(port).filter_map(|found| found.in_family(family));
    for (place, name) in opened.0.iter_mut().zip(names) {
        let name = Name::from(name);
        let made =
            client::retrying_bind(Some(context), Some(name), || listening(&name, only_six, shared, backlog));
        *place = Some(made?);
    }
    Ok(opened)
}

fn listening(name: &Name, only_six: bool, shared: bool, backlog: u32) -> Result<OwnedFd, Errno> {
    let domain = c_int::from(u16::from_ne_bytes([name.bytes[0], name.bytes[1]]));
    let fd = kernel::socket(domain, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0)? as c_int;
    // SAFETY: it was just opened, and has no other owner.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    if shared {
        kernel::set_socket_option(fd, libc::SOL_SOCKET, libc::SO_REUSEPORT, 1)?;
    }
    if domain == libc::AF_INET6 {
        kernel::set_socket_option(fd, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, c_int::from(only_six))?;
    }
    listen_at(fd, name, backlog)?;
    Ok(socket)
}

/// Has a kernel socket listen at a name, also while earlier connections are still closing there.
///
/// # Errors
/// As `bind(2)` and `listen(2)`.
pub(crate) fn listen_at(kernel: c_int, name: &Name, backlog: u32) -> Result<(), Errno> {
    kernel::set_socket_option(kernel, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1)?;
    bind(kernel, name)?;
    // SAFETY: touches no memory.
    unsafe { sys::syscall(libc::SYS_listen, [signed(kernel), backlog as usize, 0, 0, 0, 0]) }?;
    Ok(())
}

/// Binds a kernel socket.
///
/// # Errors
/// As `bind(2)`.
pub(crate) fn bind(kernel: c_int, name: &Name) -> Result<(), Errno> {
    let arguments = [signed(kernel), address(name.bytes.as_ptr()), name.length as usize, 0, 0, 0];
    // SAFETY: the kernel reads the name.
    unsafe { sys::syscall(libc::SYS_bind, arguments) }.map(|_| ())
}
