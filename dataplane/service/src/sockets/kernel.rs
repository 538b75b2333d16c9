//! What the kernel says of a socket that an application sent, and what the service changes on one.
//!
//! 1. A descriptor is first checked to be a socket. Calls on any other file could reach the
//!    sender's own file system.
//! 2. The kernel's answers decide about type, network namespace, name and route. A value that the
//!    application sends never does.
//! 3. An address belongs to the host if the kernel's route leads to itself, in the namespace of the
//!    socket ([`is_local`]).
//!
//! Calls that take the lock of such a socket may block: [`blocking_calls`] makes them.

pub(super) mod blocking_calls;
pub(super) mod users;

use std::io::IoSliceMut;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvFlags, ReturnFlags, Shutdown, SocketFlags, SocketType, sockopt,
};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use sietch_socket::kernel::{accept_queue, bound_interface, namespace as namespace_of, namespace_cookie};
use sietch_socket::patience::accept_waiting;

use super::limits;

/// A TCP socket of the kernel.
#[derive(Debug, Clone, Copy)]
pub(super) struct TcpSocket {
    /// Its network namespace.
    pub namespace: u64,
    /// Its own name; the port is 0 if it is not bound.
    pub name: SocketAddr,
    /// Whether it listens.
    pub listens: bool,
    /// Whether it takes only IPv6.
    pub only_ipv6: bool,
    /// Whether it is bound to an interface or a VRF, which its name does not show.
    pub is_bound_to_interface: bool,
}

/// Checks that a descriptor is a socket. Nothing else may be duplicated here: every close of a file
/// reaches its file system, which may be the sender's own, while only the last close of a socket
/// can take long.
///
/// # Errors
/// `ENOTSOCK`, `EBADF`.
pub(super) fn check_socket(sent: &OwnedFd) -> Result<(), Errno> {
    sockopt::socket_type(sent).map(drop)
}

impl TcpSocket {
    /// Reads what the kernel says of a descriptor.
    ///
    /// # Errors
    /// It is no TCP socket of the kernel.
    pub(super) fn of(socket: BorrowedFd<'_>) -> Result<Self, Errno> {
        // First, because this call has no effect on other files.
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
        let name = SocketAddr::try_from(name).map_err(|_| Errno::AFNOSUPPORT)?;
        Ok(Self {
            namespace: namespace_cookie(socket).map_err(|_| Errno::NOTSOCK)?,
            name,
            listens: sockopt::socket_acceptconn(socket)?,
            only_ipv6: takes_only_ipv6(socket, name)?,
            is_bound_to_interface: is_bound_to_interface(socket, name),
        })
    }
}

/// Returns whether an address belongs to the host, in the network namespace of a socket.
///
/// The kernel's routes decide: an unbound socket that is connected to an address of the host (no
/// packet leaves) gets that very address as its own. Socket options and `ip_nonlocal_bind` let a
/// program bind to an address of another host, but they do not change the route.
pub(super) fn is_local(socket: BorrowedFd<'_>, namespace: u64, address: SocketAddr) -> bool {
    if super::table::canonical_name::is_loopback(address.ip()) {
        return true;
    }
    match is_routed_here(Some(namespace), address) {
        Ok(local) => local,
        // Another namespace: a thread enters it, if this process may.
        Err(Errno::XDEV) => std::thread::scope(|scope| {
            // Without a thread the address counts as foreign.
            let there = std::thread::Builder::new().spawn_scoped(scope, || {
                let namespace = namespace_of(socket).map_err(|_| Errno::PERM)?;
                move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
                is_routed_here(None, address)
            });
            there.is_ok_and(|there| matches!(there.join(), Ok(Ok(true))))
        }),
        Err(_) => false,
    }
}

/// Does the work of [`is_local`] in the namespace of this thread.
///
/// # Errors
/// `EXDEV`: this thread is not in the given namespace. Those of `connect(2)`: there is no route.
fn is_routed_here(namespace: Option<u64>, address: SocketAddr) -> Result<bool, Errno> {
    /// Any port will do, because nothing is sent.
    const DISCARD: u16 = 9;
    let mut address = match address {
        SocketAddr::V6(six) => match six.ip().to_ipv4_mapped() {
            Some(four) => SocketAddr::new(four.into(), 0),
            None => address,
        },
        SocketAddr::V4(_) => address,
    };
    address.set_port(DISCARD);
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = rustix::net::socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    if namespace.is_some_and(|wanted| namespace_cookie(&socket).ok() != Some(wanted)) {
        return Err(Errno::XDEV);
    }
    rustix::net::connect(&socket, &address)?;
    Ok(local(&socket).is_some_and(|own| own.ip() == address.ip()))
}

/// Returns whether a socket is bound to an interface or a VRF by more than the scope of its name.
fn is_bound_to_interface(socket: impl AsFd, name: SocketAddr) -> bool {
    let scope = match name {
        SocketAddr::V6(six) => six.scope_id(),
        SocketAddr::V4(_) => 0,
    };
    // If the call fails, the socket is left to the kernel.
    bound_interface(socket).map_or(true, |index| index != 0 && index != scope)
}

/// Returns whether a socket with this name takes no IPv4 because of IPV6_V6ONLY.
fn takes_only_ipv6(socket: impl AsFd, name: SocketAddr) -> Result<bool, Errno> {
    Ok(name.is_ipv6() && sockopt::ipv6_v6only(socket)?)
}

/// Returns whether a socket listens at this name now, and takes IPv4 if and only if it did. Its
/// program may have changed it since: it can shut the socket down, bind it again, then also with
/// another IPV6_V6ONLY, and bind it to an interface. Its namespace and protocol never change.
pub(super) fn listens_at(socket: impl AsFd, name: SocketAddr, only_ipv6: bool) -> bool {
    // A program can change the socket between two of these calls, and so show to each what it
    // expects. It delays only the one for the name, which waits for the socket's lock. So the
    // others come in pairs on both sides of it: IPV6_V6ONLY changes only while the socket does not
    // listen. An interface comes last: only CAP_NET_RAW unbinds a socket from one.
    let listens = || {
        sockopt::socket_acceptconn(&socket).unwrap_or(false)
            && takes_only_ipv6(&socket, name) == Ok(only_ipv6)
    };
    listens() && local(&socket) == Some(name) && listens() && !is_bound_to_interface(&socket, name)
}

/// Gives a listening socket another backlog. Returns what the kernel makes of it. A socket that its
/// program has shut down stays so; it is found before the next connection.
pub(super) fn set_backlog(listening: BorrowedFd<'_>, backlog: u32) -> u32 {
    // Linux has no other call for the backlog, and this one makes a closed socket listen again. A
    // shutdown between the two calls is lost; there is no call that does both.
    if sockopt::socket_acceptconn(listening).unwrap_or(false) {
        let _ = rustix::net::listen(listening, backlog.cast_signed());
    }
    let queue = accept_queue(listening).ok().flatten();
    queue.map_or(backlog.min(limits::MOST_BACKLOG), |queue| queue.backlog)
}

/// Makes a socket of this service non-blocking.
pub(super) fn set_nonblocking(socket: impl AsFd) -> Result<(), Errno> {
    let flags = fcntl_getfl(&socket)?;
    if flags.contains(OFlags::NONBLOCK) { Ok(()) } else { fcntl_setfl(&socket, flags | OFlags::NONBLOCK) }
}

/// Shuts a connection to this service down, and returns whether no descriptors are queued in it.
/// Messages without descriptors are discarded. Later sends fail with `EPIPE`.
pub(super) fn holds_nothing(connection: &OwnedFd) -> bool {
    /// A program sends one message. The loop's thread does not walk through many.
    const MOST: usize = 2;
    // A peek without room for descriptors takes none out; the kernel reports the truncation.
    let is_truncated = || {
        let mut byte = [0; 1];
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        let mut nothing = RecvAncillaryBuffer::default();
        let message =
            rustix::net::recvmsg(connection, &mut [IoSliceMut::new(&mut byte)], &mut nothing, flags);
        message.map(|message| message.flags.contains(ReturnFlags::CTRUNC))
    };
    // With credentials every message is truncated, and the end of the stream is not.
    let with_credentials = |on| sockopt::set_socket_passcred(connection, on);
    if rustix::net::shutdown(connection, Shutdown::Both).is_err() {
        return false;
    }
    for _ in 0..MOST {
        match with_credentials(true).and_then(|()| is_truncated()) {
            Ok(false) => return true,
            Ok(true) => {}
            Err(_) => return false,
        }
        if with_credentials(false).and_then(|()| is_truncated()) != Ok(false)
            || rustix::net::recv(connection, &mut [0; 1][..], RecvFlags::DONTWAIT).is_err()
        {
            return false;
        }
    }
    false
}

/// Accepts one connection without changing the listener's flags: others may hold the socket, and
/// block in `accept`.
pub(super) fn accept(listener: impl AsFd) -> Result<OwnedFd, Errno> {
    accept_waiting(listener)
        .map_err(|error| error.raw_os_error().map_or(Errno::INVAL, Errno::from_raw_os_error))
}

/// Makes the last close of an accepted connection a reset, as of one in the kernel's queue. Returns
/// false if the socket keeps the setting that it has from its listener (SO_LINGER).
pub(super) fn reset_on_close(accepted: &OwnedFd) -> bool {
    matches!(sockopt::socket_linger(accepted), Ok(None))
        && sockopt::set_socket_linger(accepted, Some(Duration::ZERO)).is_ok()
}

/// Restores the backlog of a listening socket that others may still use. A socket that was shut
/// down stays so.
pub(super) fn restore_backlog(listening: BorrowedFd<'_>, backlog: u32) {
    if let Ok(Some(queue)) = accept_queue(listening)
        && queue.backlog != backlog
    {
        let _ = rustix::net::listen(listening, backlog.cast_signed());
    }
}

/// Returns the name of the other end, if it is still connected.
pub(super) fn peer(socket: impl AsFd) -> Option<SocketAddr> {
    rustix::net::getpeername(socket).ok().flatten().and_then(|name| SocketAddr::try_from(name).ok())
}

/// Returns a socket's own name.
pub(super) fn local(socket: impl AsFd) -> Option<SocketAddr> {
    rustix::net::getsockname(socket).ok().and_then(|name| SocketAddr::try_from(name).ok())
}

#[cfg(test)]
mod tests {
    use rustix::net::SendFlags;
    use sietch_protocol::socket_service::send_message;

    use super::*;

    /// A connection with these messages queued: bytes, and whether a descriptor comes along.
    fn with(messages: &[(&str, bool)]) -> [OwnedFd; 2] {
        let pair =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
        let (own, other) = pair.expect("descriptors");
        let null = std::fs::File::open("/dev/null").expect("it is there");
        for (bytes, descriptor) in messages {
            let sent = [null.as_fd()];
            let sent = if *descriptor { &sent[..] } else { &[] };
            send_message(other.as_fd(), bytes.as_bytes(), sent, SendFlags::empty()).expect("room");
        }
        [own, other]
    }

    #[test]
    fn another_backlog_does_not_make_a_socket_listen_that_was_shut_down() {
        let socket = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        assert_eq!(set_backlog(socket.as_fd(), 7), 7);
        rustix::net::shutdown(&socket, Shutdown::Both).expect("it listens");
        set_backlog(socket.as_fd(), 8);
        assert_eq!(sockopt::socket_acceptconn(&socket), Ok(false));
    }

    #[test]
    fn queued_descriptors_are_detected() {
        for messages in [&[][..], &[("", false)], &[("request", false)]] {
            let [own, other] = with(messages);
            assert!(holds_nothing(&own), "{messages:?}");
            let sent = send_message(other.as_fd(), b"x", &[], SendFlags::NOSIGNAL);
            assert_eq!(sent, Err(Errno::PIPE), "nothing more can arrive");
        }
        for messages in [&[("x", true)][..], &[("", true)], &[("", false), ("", true)]] {
            let [own, _other] = with(messages);
            assert!(!holds_nothing(&own), "{messages:?}");
        }
        // Many messages are not walked through, even if none has a descriptor.
        let [own, _other] = with(&[("x", false); 100]);
        assert!(!holds_nothing(&own), "many messages count as descriptors");
        let next = || rustix::net::recv(&own, &mut [0; 1][..], RecvFlags::DONTWAIT).map_or(0, |(_, got)| got);
        assert!((0..100).take_while(|_| next() == 1).count() >= 98, "too many messages were taken out");
    }
}
