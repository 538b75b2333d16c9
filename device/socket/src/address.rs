//! Kernel socket calls that both implementations share.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::net::{self, AddressFamily, SocketFlags, SocketType, sockopt};

use crate::limits::{BACKLOG, LAST_BYTES_MS};

/// A listening socket on `address`, and the address it got.
pub(crate) fn listener(address: SocketAddr) -> io::Result<(OwnedFd, SocketAddr)> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = net::socket_with(family, SocketType::STREAM, flags, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    prepare(&socket)?;
    net::bind(&socket, &address)?;
    net::listen(&socket, BACKLOG)?;
    let bound = local(&socket).unwrap_or(address);
    Ok((socket, bound))
}

/// Makes connections send replies when they are written. They inherit it from their listener.
pub(crate) fn prepare(socket: impl AsFd) -> io::Result<()> {
    Ok(sockopt::set_tcp_nodelay(socket, true)?)
}

/// The peer's address; the unspecified one if the peer has already disconnected.
pub(crate) fn peer(socket: impl AsFd) -> SocketAddr {
    net::getpeername(socket)
        .ok()
        .flatten()
        .and_then(|address| SocketAddr::try_from(address).ok())
        .unwrap_or(UNKNOWN)
}

/// The local address of a socket.
pub(crate) fn local(socket: impl AsFd) -> Option<SocketAddr> {
    net::getsockname(socket).ok().and_then(|address| SocketAddr::try_from(address).ok())
}

/// Lets the kernel give up on the last bytes of a connection whose peer has stopped reading.
pub(crate) fn bound_last_bytes(socket: impl AsFd) {
    // A socket that is already dead refuses; then there are no last bytes.
    let _ = sockopt::set_tcp_user_timeout(socket, LAST_BYTES_MS);
}

/// Sets when the connections of `listener`, which inherit it, are probed.
pub(crate) fn set_keepalive(listener: impl AsFd, seconds: u64) {
    // The kernel takes at most 32767 seconds, and refuses nothing below.
    let idle = Duration::from_secs(seconds.clamp(1, 32_767));
    let interval = Duration::from_secs((seconds / 3).clamp(1, 32_767));
    let listener = listener.as_fd();
    let _ = sockopt::set_socket_keepalive(listener, seconds > 0)
        .and_then(|()| sockopt::set_tcp_keepidle(listener, idle))
        .and_then(|()| sockopt::set_tcp_keepintvl(listener, interval))
        .and_then(|()| sockopt::set_tcp_keepcnt(listener, 3));
}

/// Says last words to a peer that is not served, if the kernel takes them at once.
pub(crate) fn refuse(socket: OwnedFd, words: &[u8]) {
    // The peer may be dead: then nothing receives the words.
    let _ = net::send(&socket, words, net::SendFlags::NOSIGNAL | net::SendFlags::DONTWAIT);
}

/// Stands for a peer that disconnected before its address could be read.
const UNKNOWN: SocketAddr = SocketAddr::V4(std::net::SocketAddrV4::new(std::net::Ipv4Addr::UNSPECIFIED, 0));

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_inherit_the_listeners_keepalive() {
        let (socket, address) = listener(SocketAddr::from(([127, 0, 0, 1], 0))).expect("a free port");
        set_keepalive(&socket, 300);
        let accept = || {
            let peer = std::net::TcpStream::connect(address).expect("it listens");
            (net::accept(&socket).expect("a client has connected"), peer)
        };
        let (connection, _peer) = accept();
        assert_eq!(sockopt::socket_keepalive(&connection), Ok(true));
        assert_eq!(sockopt::tcp_keepidle(&connection), Ok(Duration::from_secs(300)));
        assert_eq!(sockopt::tcp_keepintvl(&connection), Ok(Duration::from_secs(100)));
        set_keepalive(&socket, 0);
        let (connection, _peer) = accept();
        assert_eq!(sockopt::socket_keepalive(&connection), Ok(false));
    }
}
