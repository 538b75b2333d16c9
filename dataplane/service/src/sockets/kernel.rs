//! What the kernel says of a socket that an application sent.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketType, sockopt};
use sietch_socket::kernel::namespace_cookie;

/// A TCP socket of the kernel.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tcp {
    /// Its network namespace.
    pub namespace: u64,
    /// Its own name; port 0 if it is not bound.
    pub name: SocketAddr,
    /// Whether it listens.
    pub listens: bool,
    /// Whether it takes IPv6 alone.
    pub only_ipv6: bool,
}

impl Tcp {
    /// Of a descriptor that claims to be one.
    pub fn of(socket: BorrowedFd<'_>) -> Result<Self, Errno> {
        // First, because it touches nothing but sockets.
        if sockopt::socket_type(socket)? != SocketType::STREAM {
            return Err(Errno::PROTOTYPE);
        }
        let domain = sockopt::socket_domain(socket)?;
        if domain != AddressFamily::INET && domain != AddressFamily::INET6 {
            return Err(Errno::AFNOSUPPORT);
        }
        let protocol = sockopt::socket_protocol(socket)?;
        if protocol.is_some_and(|protocol| protocol != rustix::net::ipproto::TCP) {
            return Err(Errno::PROTONOSUPPORT);
        }
        let name = rustix::net::getsockname(socket)?;
        Ok(Self {
            namespace: namespace_cookie(socket).map_err(|_| Errno::NOTSOCK)?,
            name: SocketAddr::try_from(name).map_err(|_| Errno::AFNOSUPPORT)?,
            listens: sockopt::socket_acceptconn(socket)?,
            only_ipv6: domain == AddressFamily::INET6 && sockopt::ipv6_v6only(socket)?,
        })
    }
}

/// Whether an address is one of the host, in the network namespace of a socket that is not bound yet: the kernel lets it be bound to it. The port that it
/// gets is not used.
pub(super) fn is_local(socket: BorrowedFd<'_>, address: SocketAddr) -> bool {
    // With this option the kernel would let any address through.
    if sockopt::ip_freebind(socket).unwrap_or(false) {
        return false;
    }
    rustix::net::bind(socket, &SocketAddr::new(address.ip(), 0)).is_ok()
}

/// Makes a socket return where it would wait. Its application can undo that.
pub(super) fn do_not_wait(socket: impl AsFd) -> Result<(), Errno> {
    let flags = fcntl_getfl(&socket)?;
    if flags.contains(OFlags::NONBLOCK) { Ok(()) } else { fcntl_setfl(&socket, flags | OFlags::NONBLOCK) }
}

/// Accepts one connection, with nothing of the listener's flags.
pub(super) fn accept(listener: &OwnedFd) -> Result<OwnedFd, Errno> {
    do_not_wait(listener)?;
    rustix::net::accept_with(listener, rustix::net::SocketFlags::CLOEXEC)
}

/// The other end's name, if it has one still.
pub(super) fn peer(socket: impl AsFd) -> Option<SocketAddr> {
    rustix::net::getpeername(socket).ok().flatten().and_then(|name| SocketAddr::try_from(name).ok())
}

/// A socket's own name.
pub(super) fn local(socket: impl AsFd) -> Option<SocketAddr> {
    rustix::net::getsockname(socket).ok().and_then(|name| SocketAddr::try_from(name).ok())
}
