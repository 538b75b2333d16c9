//! Pairs of Unix sockets between two processes that do not trust each other: doorbells and
//! placeholders.
//!
//! 1. Over such a pair come bytes alone. But a holder of an end may send descriptors as well, and
//!    the last close of one takes as long as its sender likes: a TCP socket may linger, a file may
//!    be of a file system that the sender serves. The kernel closes it in the thread that takes the
//!    byte beside it, also if that thread has no room for descriptors.
//! 2. So neither end of a pair accepts descriptors ([`pair`], [`refuse_descriptors`]): their sender
//!    gets `EPERM`. Linux has that since 6.16.
//! 3. Before, a reader examines the queue first, and takes nothing while a descriptor is in it. A
//!    thread that may hang closes the end, because its queue is closed with it
//!    (`sietch_protocol::closer::PeerSocket`).

use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::sync::LazyLock;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

/// Of `asm-generic/socket.h`, as on every architecture that Sietch is built for.
const SO_PASSRIGHTS: libc::c_int = 83;

/// Two connected stream sockets, close-on-exec and as `flags` say. Neither accepts descriptors, if
/// the kernel can refuse them.
///
/// # Errors
/// As `socketpair(2)`.
pub fn pair(flags: SocketFlags) -> Result<(OwnedFd, OwnedFd), Errno> {
    let flags = flags | SocketFlags::CLOEXEC;
    let (first, second) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    // An older kernel returns an error. Readers find out then ([`refuses_descriptors`]).
    let _ = refuse_descriptors(&first).and_then(|()| refuse_descriptors(&second));
    Ok((first, second))
}

/// Refuses descriptors over a Unix socket from now on: a sender of some has `EPERM`
/// (`SO_PASSRIGHTS`, Linux 6.16). What is in it stays. Connections to a listener inherit it.
///
/// # Errors
/// `ENOPROTOOPT` before Linux 6.16, and others of `setsockopt(2)`.
pub fn refuse_descriptors(socket: impl AsFd) -> Result<(), Errno> {
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
    if result == 0 { Ok(()) } else { Err(last_error()) }
}

/// Whether the pairs of this process refuse descriptors.
pub fn pairs_refuse_descriptors() -> bool {
    static REFUSE: LazyLock<bool> =
        LazyLock::new(|| pair(SocketFlags::empty()).is_ok_and(|(one, _)| refuses_descriptors(&one)));
    *REFUSE
}

/// Whether descriptors over this socket are refused. False on a kernel that cannot refuse them.
pub fn refuses_descriptors(socket: impl AsFd) -> bool {
    let mut passes: libc::c_int = 1;
    let mut length: libc::socklen_t = 4;
    // SAFETY: the kernel writes at most `length` bytes to `passes`, and the length; both live over
    // the call.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PASSRIGHTS,
            (&raw mut passes).cast(),
            &raw mut length,
        )
    };
    result == 0 && passes == 0
}

fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL)
}

// Miri has no options of sockets.
#[cfg(all(test, not(miri)))]
mod tests {
    use std::io::IoSlice;
    use std::mem::MaybeUninit;

    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

    use super::*;

    fn send(socket: &OwnedFd, bytes: &[u8], descriptors: bool) -> Result<usize, Errno> {
        let sent = [socket.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if descriptors {
            assert!(control.push(SendAncillaryMessage::ScmRights(&sent)));
        }
        sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::DONTWAIT)
    }

    #[test]
    fn both_ends_of_a_pair_refuse_descriptors_and_pass_bytes() {
        let (one, other) = pair(SocketFlags::empty()).expect("descriptors");
        if !refuses_descriptors(&one) {
            return eprintln!("SKIPPED: needs Linux 6.16, to refuse descriptors");
        }
        for (from, to) in [(&one, &other), (&other, &one)] {
            assert_eq!(send(from, b"x", true), Err(Errno::PERM));
            assert_eq!(send(from, b"x", false), Ok(1));
            assert_eq!(rustix::io::read(to, &mut [0; 8]), Ok(1));
        }
    }

    #[test]
    fn connections_to_a_listener_that_refuses_inherit_it() {
        let listener = rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None).expect("a socket");
        if refuse_descriptors(&listener).is_err() {
            return eprintln!("SKIPPED: needs Linux 6.16, to refuse descriptors");
        }
        let name = rustix::net::SocketAddrUnix::new_abstract_name(
            format!("sietch-inherit-{}", std::process::id()).as_bytes(),
        );
        let name = name.expect("it is short");
        rustix::net::bind(&listener, &name).expect("it is free");
        rustix::net::listen(&listener, 1).expect("bound");
        let client = rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None).expect("a socket");
        rustix::net::connect(&client, &name).expect("it listens");
        // Before it is accepted.
        assert_eq!(send(&client, b"x", true), Err(Errno::PERM));
        assert!(refuses_descriptors(rustix::net::accept(&listener).expect("it waits")));
    }
}
