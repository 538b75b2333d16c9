//! Facts about a socket that only the kernel knows and no wrapper asks for.

use std::io;
use std::os::fd::{AsFd, AsRawFd as _};

/// The cookie of the network namespace in which a socket was made (`SO_NETNS_COOKIE`, Linux 5.14): equal for two sockets if and only if they share
/// one, whichever process holds them.
///
/// # Errors
/// `ENOTSOCK`, `ENOPROTOOPT`, as `getsockopt(2)`.
pub fn namespace_cookie(socket: impl AsFd) -> io::Result<u64> {
    let mut cookie = 0_u64;
    let mut length: libc::socklen_t = 8;
    // SAFETY: the kernel writes at most `length` bytes, which `cookie` has; both live over the call.
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

/// Lets no descriptors come over a Unix socket from now on: who sends some has `EPERM` (`SO_PASSRIGHTS`, Linux 6.16). What lies in it stays.
///
/// # Errors
/// `ENOPROTOOPT` before Linux 6.16, and others of `setsockopt(2)`.
pub fn refuse_descriptors(socket: impl AsFd) -> io::Result<()> {
    const SO_PASSRIGHTS: libc::c_int = 83;
    let no: libc::c_int = 0;
    // SAFETY: the kernel reads four bytes of `no`, which lives over the call.
    let result = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PASSRIGHTS,
            (&raw const no).cast(),
            4,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// What of the messages sent on a Unix socket nobody has received yet, in the kernel's own measure (`SIOCOUTQ`: memory, not payload). Zero: everything is
/// received.
///
/// # Errors
/// `ENOTTY` and others of `ioctl(2)`.
pub fn unreceived(socket: impl AsFd) -> io::Result<u32> {
    let mut amount: libc::c_int = 0;
    // SAFETY: this request writes one `int` to the address, and nothing else.
    let result = unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), libc::TIOCOUTQ, &raw mut amount) };
    if result == 0 { Ok(u32::try_from(amount).unwrap_or(0)) } else { Err(io::Error::last_os_error()) }
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
    fn what_nobody_has_received_counts_until_it_is() {
        let (one, other) = std::os::unix::net::UnixDatagram::pair().expect("descriptors");
        assert_eq!(unreceived(&one).expect("a Unix socket"), 0);
        one.send(b"x").expect("room");
        let first = unreceived(&one).expect("a Unix socket");
        one.send(b"x").expect("room");
        assert_eq!(unreceived(&one).expect("a Unix socket"), 2 * first);
        other.recv(&mut [0; 8]).expect("it lies there");
        assert_eq!(unreceived(&one).expect("a Unix socket"), first);
    }
}
