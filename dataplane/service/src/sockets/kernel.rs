//! What the kernel says of a socket that an application sent.

use std::io::IoSliceMut;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvFlags, ReturnFlags, Shutdown, SocketFlags, SocketType, sockopt,
};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use sietch_socket::kernel::{accept_queue, bound_interface, namespace as namespace_of, namespace_cookie};
use sietch_socket::patience::accept_waiting;

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
    /// Whether it is bound to an interface or a VRF, which the addresses alone do not tell.
    pub of_interface: bool,
}

/// Whether a descriptor is a socket. Nothing else is to be duplicated here: each close of a file is
/// told to its file system, which may be its sender's, and only the last one of a socket can take
/// long.
///
/// # Errors
/// `ENOTSOCK`, `EBADF`.
pub(super) fn check_socket(sent: &OwnedFd) -> Result<(), Errno> {
    sockopt::socket_type(sent).map(drop)
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
        let name = SocketAddr::try_from(name).map_err(|_| Errno::AFNOSUPPORT)?;
        Ok(Self {
            namespace: namespace_cookie(socket).map_err(|_| Errno::NOTSOCK)?,
            name,
            listens: sockopt::socket_acceptconn(socket)?,
            only_ipv6: domain == AddressFamily::INET6 && sockopt::ipv6_v6only(socket)?,
            of_interface: is_of_interface(socket, name),
        })
    }
}

/// Whether an address is one of the host, in the network namespace of a socket.
///
/// The kernel's routes say so: a socket without a name that is connected to an address of the host
/// (no packet leaves) gets that very address as its own. Neither the options of a program's socket
/// nor `ip_nonlocal_bind` change that, by which a socket can be bound to an address of another
/// host.
pub(super) fn is_local(socket: BorrowedFd<'_>, namespace: u64, address: SocketAddr) -> bool {
    if super::table::is_loopback(address.ip()) {
        return true;
    }
    match is_routed_here(Some(namespace), address) {
        Ok(local) => local,
        // Of another namespace: a thread goes there, if this process may.
        Err(Errno::XDEV) => std::thread::scope(|scope| {
            // Where there are no threads left nothing is known.
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

/// See [`is_local`]; in the namespace of this thread, which must be the one that is given.
///
/// # Errors
/// `EXDEV`: it is another one. That no route leads there, and others of `connect(2)`.
fn is_routed_here(namespace: Option<u64>, address: SocketAddr) -> Result<bool, Errno> {
    /// Any port; nothing is sent.
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

/// Whether a socket is bound to an interface or a VRF by more than the scope of its own name.
fn is_of_interface(socket: impl AsFd, name: SocketAddr) -> bool {
    let scope = match name {
        SocketAddr::V6(six) => six.scope_id(),
        SocketAddr::V4(_) => 0,
    };
    // A socket that cannot be asked is left to the kernel.
    bound_interface(socket).map_or(true, |index| index != 0 && index != scope)
}

/// Whether a socket listens at this name now. What its program has told once may have changed
/// since: it can shut the socket down, bind it anew, and bind it to an interface.
pub(super) fn listens_at(socket: impl AsFd, name: SocketAddr) -> bool {
    sockopt::socket_acceptconn(&socket).unwrap_or(false)
        && local(&socket) == Some(name)
        && !is_of_interface(&socket, name)
}

/// Gives a listening socket another backlog; what the kernel makes of it.
pub(super) fn set_backlog(listening: BorrowedFd<'_>, backlog: u32) -> u32 {
    // What does not listen any more is found out elsewhere.
    let _ = rustix::net::listen(listening, backlog.cast_signed());
    let queue = accept_queue(listening).ok().flatten();
    queue.map_or(backlog.min(super::limits::MOST_BACKLOG), |queue| queue.backlog)
}

/// Makes a socket of this service return where it would wait.
pub(super) fn do_not_wait(socket: impl AsFd) -> Result<(), Errno> {
    let flags = fcntl_getfl(&socket)?;
    if flags.contains(OFlags::NONBLOCK) { Ok(()) } else { fcntl_setfl(&socket, flags | OFlags::NONBLOCK) }
}

/// Whether nothing lies in a connection to this service that would have to be closed with it, and
/// nothing can come any more. Messages without descriptors are thrown away; who sends anything from
/// now on fails (`EPIPE`).
pub(super) fn holds_nothing(connection: &OwnedFd) -> bool {
    /// A program sends one message; a crowd of others is not for the thread of the loop to walk
    /// through.
    const MOST: usize = 2;
    // Without room for descriptors none is taken out; the kernel says that there was something for
    // which there was no room.
    let is_cut = || {
        let mut byte = [0; 1];
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        let mut nothing = RecvAncillaryBuffer::default();
        let message =
            rustix::net::recvmsg(connection, &mut [IoSliceMut::new(&mut byte)], &mut nothing, flags);
        message.map(|message| message.flags.contains(ReturnFlags::CTRUNC))
    };
    // With credentials that is so of every message, and of the end it is not.
    let with_credentials = |on| sockopt::set_socket_passcred(connection, on);
    if rustix::net::shutdown(connection, Shutdown::Both).is_err() {
        return false;
    }
    for _ in 0..MOST {
        match with_credentials(true).and_then(|()| is_cut()) {
            Ok(false) => return true,
            Ok(true) => {}
            Err(_) => return false,
        }
        if with_credentials(false).and_then(|()| is_cut()) != Ok(false)
            || rustix::net::recv(connection, &mut [0; 1][..], RecvFlags::DONTWAIT).is_err()
        {
            return false;
        }
    }
    false
}

/// Accepts one connection, with nothing of the listener's flags, and without setting any of them:
/// others may hold the socket, and wait in `accept`.
pub(super) fn accept(listener: impl AsFd) -> Result<OwnedFd, Errno> {
    accept_waiting(listener)
        .map_err(|error| error.raw_os_error().map_or(Errno::INVAL, Errno::from_raw_os_error))
}

/// Gives a listening socket that others may go on with the backlog that its program wanted. One
/// that was shut down stays so.
pub(super) fn restore_backlog(listening: BorrowedFd<'_>, backlog: u32) {
    if let Ok(Some(queue)) = accept_queue(listening)
        && queue.backlog != backlog
    {
        let _ = rustix::net::listen(listening, backlog.cast_signed());
    }
}

/// The other end's name, if it has one still.
pub(super) fn peer(socket: impl AsFd) -> Option<SocketAddr> {
    rustix::net::getpeername(socket).ok().flatten().and_then(|name| SocketAddr::try_from(name).ok())
}

/// A socket's own name.
pub(super) fn local(socket: impl AsFd) -> Option<SocketAddr> {
    rustix::net::getsockname(socket).ok().and_then(|name| SocketAddr::try_from(name).ok())
}

#[cfg(test)]
mod tests {
    use rustix::net::SendFlags;
    use sietch_protocol::socket_service::send_message;

    use super::*;

    /// A connection with these messages in it: bytes, and whether a descriptor comes along.
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
    fn a_connection_with_descriptors_in_it_is_told_from_one_without() {
        for messages in [&[][..], &[("", false)], &[("request", false)]] {
            let [own, other] = with(messages);
            assert!(holds_nothing(&own), "{messages:?}");
            let sent = send_message(other.as_fd(), b"x", &[], SendFlags::NOSIGNAL);
            assert_eq!(sent, Err(Errno::PIPE), "nothing comes any more");
        }
        for messages in [&[("x", true)][..], &[("", true)], &[("", false), ("", true)]] {
            let [own, _other] = with(messages);
            assert!(!holds_nothing(&own), "{messages:?}");
        }
        // Nobody's crowd of messages is walked through: it may be full of nothing.
        let [own, _other] = with(&[("x", false); 100]);
        assert!(!holds_nothing(&own), "it counts as one that holds something");
        let next = || rustix::net::recv(&own, &mut [0; 1][..], RecvFlags::DONTWAIT).map_or(0, |(_, got)| got);
        assert!((0..100).take_while(|_| next() == 1).count() >= 98, "it has been walked through");
    }
}
