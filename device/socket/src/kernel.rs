//! Facts about a socket that only the kernel knows and no wrapper requests.

use std::io;
use std::os::fd::{AsFd, AsRawFd as _, FromRawFd as _, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Pid;

/// The cookie of the network namespace in which a socket was made (`SO_NETNS_COOKIE`, Linux 5.14).
/// It is equal for two sockets if and only if they share one, whichever process holds them.
///
/// # Errors
/// `ENOTSOCK`, `ENOPROTOOPT`, as `getsockopt(2)`.
pub fn namespace_cookie(socket: impl AsFd) -> io::Result<u64> {
    let mut cookie = 0_u64;
    let mut length: libc::socklen_t = 8;
    // SAFETY: the kernel writes at most `length` bytes, which `cookie` has; both live over the
    // call.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_NETNS_COOKIE,
            (&raw mut cookie).cast(),
            &raw mut length,
        )
    };
    if result == 0 { Ok(cookie) } else { Err(io::Error::last_os_error()) }
}

/// The process at the other end of a Unix socket, as it was when it connected or listened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its number; `None`: it runs outside the PID namespace of this process, and has none here.
    pub pid: Option<Pid>,
    /// Its user.
    pub uid: u32,
}

/// The process at the other end of a Unix socket (`SO_PEERCRED`). The kernel says pid 0 of a
/// process that has no number here; `rustix::net::UCred` has no value for that.
///
/// # Errors
/// `ENOTSOCK`, `ENODATA`: there is no other end, or the kernel does not know it.
pub fn peer(socket: impl AsFd) -> io::Result<Peer> {
    const UNKNOWN: libc::uid_t = libc::uid_t::MAX;
    let mut found = libc::ucred { pid: 0, uid: UNKNOWN, gid: libc::gid_t::MAX };
    let mut length = size_of_val(&found) as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes, which `found` has, and any bytes are three
    // integers; both live over the call.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut found).cast(),
            &raw mut length,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    // What is not connected has no other end.
    if found.uid == UNKNOWN {
        return Err(io::Error::from_raw_os_error(libc::ENODATA));
    }
    Ok(Peer { pid: Pid::from_raw(found.pid), uid: found.uid })
}

/// The state of a listening TCP socket in `struct tcp_info` (`TCP_LISTEN`).
const LISTENING: u8 = 10;
/// Where `struct tcp_info` of a listening socket has the length of its queue (`tcpi_unacked`) and
/// its backlog (`tcpi_sacked`), in words of 4 bytes.
const QUEUED: usize = 6;
const BACKLOG: usize = 7;

/// The accept queue of a listening TCP socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AcceptQueue {
    /// Established connections that wait to be accepted.
    pub length: u32,
    /// What `listen` was given, within `net.core.somaxconn`: one connection more than this fits.
    pub backlog: u32,
}

/// The accept queue of a TCP socket (`TCP_INFO`); `None`: the socket does not listen.
///
/// # Errors
/// `ENOTSOCK`, `ENOPROTOOPT`, as `getsockopt(2)`.
pub fn accept_queue(socket: impl AsFd) -> io::Result<Option<AcceptQueue>> {
    let mut words = [0_u32; BACKLOG + 1];
    let mut length = size_of_val(&words) as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes, which `words` has; both live over the call.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            words.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    let queue = AcceptQueue { length: words[QUEUED], backlog: words[BACKLOG] };
    Ok((words[0].to_ne_bytes()[0] == LISTENING).then_some(queue))
}

/// The interface that a socket is bound to (`SO_BINDTODEVICE`, a VRF, the scope of a link-local
/// name); 0: none.
///
/// # Errors
/// `ENOTSOCK`, `ENOPROTOOPT`, as `getsockopt(2)`.
pub fn bound_interface(socket: impl AsFd) -> io::Result<u32> {
    const SO_BINDTOIFINDEX: libc::c_int = 62;
    let mut index: libc::c_int = 0;
    let mut length = size_of_val(&index) as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes, which `index` has; both live over the call.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            SO_BINDTOIFINDEX,
            (&raw mut index).cast(),
            &raw mut length,
        )
    };
    if result == 0 { Ok(index.cast_unsigned()) } else { Err(io::Error::last_os_error()) }
}

/// The network namespace of a socket (`SIOCGSKNS`).
///
/// # Errors
/// `EPERM` without CAP_NET_ADMIN there, and others of `ioctl(2)`.
pub fn namespace(socket: impl AsFd) -> io::Result<OwnedFd> {
    const SIOCGSKNS: libc::Ioctl = 0x894c;
    // SAFETY: this request takes no argument; it returns a new descriptor, which nothing else owns.
    let fd = unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), SIOCGSKNS, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just opened it for this call.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// How much of the messages sent on a Unix socket is not received yet, in the kernel's own measure
/// (`SIOCOUTQ`: memory, not payload). Zero: everything is received.
///
/// # Errors
/// `ENOTTY` and others of `ioctl(2)`.
pub fn unreceived(socket: impl AsFd) -> io::Result<u32> {
    let mut amount: libc::c_int = 0;
    // SAFETY: this request writes one `int` to the address, and nothing else.
    let result = unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), libc::TIOCOUTQ, &raw mut amount) };
    if result == 0 { Ok(u32::try_from(amount).unwrap_or(0)) } else { Err(io::Error::last_os_error()) }
}

/// Whether the other end of a connected Unix socket has no holder left, or was shut down. The
/// kernel says so from the last close on, before any event of it is read.
pub fn is_hung_up(socket: impl AsFd) -> bool {
    let mut polled = [PollFd::new(&socket, PollFlags::empty())];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut polled, Some(&now)).is_ok() && polled[0].revents().contains(PollFlags::HUP)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_of_one_namespace_have_one_cookie() {
        let first = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        let second = std::net::UdpSocket::bind("127.0.0.1:0").expect("a free port");
        let cookie = namespace_cookie(&first).expect("Linux 5.14 or later");
        assert_eq!(cookie, namespace_cookie(&second).expect("the same kernel"));
        let file = std::fs::File::open("/dev/null").expect("it is there");
        assert!(namespace_cookie(&file).is_err());
    }

    #[test]
    fn only_a_connected_socket_names_its_peer() {
        let (one, _other) = std::os::unix::net::UnixStream::pair().expect("descriptors");
        let found = peer(&one).expect("a pair");
        assert_eq!(found.pid, Some(rustix::process::getpid()));
        assert_eq!(found.uid, rustix::process::geteuid().as_raw());
        let alone = std::os::unix::net::UnixDatagram::unbound().expect("a descriptor");
        let said = peer(&alone).map_err(|error| error.raw_os_error());
        assert_eq!(said, Err(Some(libc::ENODATA)));
    }

    #[test]
    fn a_queue_counts_the_connections_that_were_not_accepted() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        rustix::net::listen(&listener, 3).expect("it listens already");
        let address = listener.local_addr().expect("bound");
        let client = std::net::TcpStream::connect(address).expect("it listens");
        let queue = accept_queue(&listener).expect("a TCP socket");
        assert_eq!(queue, Some(AcceptQueue { length: 1, backlog: 3 }));
        assert_eq!(accept_queue(&client).expect("a TCP socket"), None);
        assert_eq!(bound_interface(&listener).expect("a socket"), 0);
    }

    #[test]
    fn messages_count_until_they_are_received() {
        let (one, other) = std::os::unix::net::UnixDatagram::pair().expect("descriptors");
        assert_eq!(unreceived(&one).expect("a Unix socket"), 0);
        one.send(b"x").expect("room");
        let first = unreceived(&one).expect("a Unix socket");
        one.send(b"x").expect("room");
        assert_eq!(unreceived(&one).expect("a Unix socket"), 2 * first);
        other.recv(&mut [0; 8]).expect("it is there");
        assert_eq!(unreceived(&one).expect("a Unix socket"), first);
    }
}
