//! An end of a pair of sockets over which an untrusted process sends bytes alone.

use std::io::IoSliceMut;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::LazyLock;

use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvFlags, ReturnFlags, recv, recvmsg};

use super::{Closer, SentDescriptor};

/// Closes the ends of all pairs of this process.
static PEERS: LazyLock<Closer> = LazyLock::new(Closer::default);

/// An end whose other end has a process that is not trusted: a doorbell, a placeholder.
#[derive(Debug)]
pub enum PeerSocket {
    /// The kernel refuses descriptors over it (since Linux 6.16).
    Refusing(OwnedFd),
    /// Descriptors may be queued in it. They are never received, and closed with it, by a thread
    /// that may hang.
    Accepting(SentDescriptor),
}

impl PeerSocket {
    /// `refuses`: whether descriptors over `socket` are refused, as
    /// `sietch_ring::socket_pair::refuses_descriptors` reports. `uid`: the user at the other end,
    /// one of whose threads closes what he sent.
    pub fn new(socket: OwnedFd, refuses: bool, uid: u32) -> Self {
        if refuses {
            return Self::Refusing(socket);
        }
        Self::Accepting(SentDescriptor::new(socket, uid, &PEERS))
    }

    /// Returns the number of such ends of this process that wait to be closed, or whose close
    /// hangs.
    pub fn waiting() -> usize {
        PEERS.waiting()
    }

    /// Returns the same number of one user.
    pub fn waiting_of(uid: u32) -> usize {
        PEERS.waiting_of(uid)
    }

    /// From now on, `uid` counts as the user at the other end.
    #[must_use]
    pub fn charged_to(self, uid: u32) -> Self {
        match self {
            Self::Refusing(socket) => Self::Refusing(socket),
            Self::Accepting(socket) => Self::Accepting(socket.charged_to(uid)),
        }
    }

    /// Takes bytes, without waiting; 0 is the end. Where descriptors are queued, nothing is taken.
    ///
    /// # Errors
    /// `EPROTO`: descriptors are queued. `EAGAIN`, and others of `recv(2)`.
    pub fn take(&self, out: &mut [u8]) -> Result<usize, Errno> {
        let mut wanted = out.len();
        if let Self::Accepting(_) = self {
            // A peek without room for descriptors takes none out, and the kernel reports the
            // truncation. It looks through the whole queue for the first of them (Linux 6.18).
            let flags = RecvFlags::DONTWAIT | RecvFlags::PEEK;
            let mut nothing = RecvAncillaryBuffer::default();
            let seen = recvmsg(self, &mut [IoSliceMut::new(out)], &mut nothing, flags)?;
            if seen.flags.contains(ReturnFlags::CTRUNC) {
                return Err(Errno::PROTO);
            }
            // No more than was seen: what has come since may have descriptors, and a read ends
            // where they begin.
            wanted = seen.bytes.min(wanted);
            if wanted == 0 {
                return Ok(0);
            }
        }
        recv(self, &mut out[..wanted], RecvFlags::DONTWAIT).map(|(taken, _)| taken)
    }
}

impl AsFd for PeerSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Refusing(socket) => socket.as_fd(),
            Self::Accepting(socket) => socket.as_fd(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use rustix::net::SendFlags;

    use super::super::limits;
    use super::super::tests::lingering;
    use super::*;
    use crate::socket_service::send_message;

    #[test]
    fn descriptors_on_a_pair_are_neither_received_nor_closed_by_its_reader() {
        let (one, other) = UnixStream::pair().expect("descriptors");
        let reader = PeerSocket::new(other.into(), false, 7);
        let (lingers, peer) = lingering();
        let (mut bytes, now) = ([0; 8], SendFlags::DONTWAIT);
        assert_eq!(reader.take(&mut bytes), Err(Errno::AGAIN));
        send_message(one.as_fd(), b"ab", &[], now).expect("room");
        assert_eq!((reader.take(&mut bytes), &bytes[..2]), (Ok(2), &b"ab"[..]));
        send_message(one.as_fd(), b"cd", &[lingers.as_fd()], now).expect("room");
        drop(lingers);
        // The last reference is in the queue: a reader that took it out would sleep in its close.
        assert_eq!(
            (reader.take(&mut bytes), reader.take(&mut bytes)),
            (Err(Errno::PROTO), Err(Errno::PROTO))
        );
        drop(reader);
        drop(peer);
    }

    #[test]
    fn the_ends_of_one_user_share_its_threads() {
        let uid = 4242;
        let ends = 2 * limits::CLOSERS_PER_USER;
        let hanging: Vec<_> = (0..ends)
            .map(|_| {
                let (one, other) = UnixStream::pair().expect("descriptors");
                let (lingers, peer) = lingering();
                let now = SendFlags::DONTWAIT;
                send_message(one.as_fd(), b"x", &[lingers.as_fd()], now).expect("room");
                drop((lingers, PeerSocket::new(other.into(), false, 1).charged_to(uid)));
                peer
            })
            .collect();
        assert_eq!(PEERS.waiting_of(uid), ends);
        let busy = PEERS.queue().users.get(&uid).map_or(0, |user| user.busy);
        assert!(busy <= limits::CLOSERS_PER_USER, "{busy}");
        drop(hanging);
        while PEERS.waiting_of(uid) > 0 {
            std::thread::yield_now();
        }
    }

    #[test]
    fn the_end_of_a_pair_is_no_byte() {
        for refuses in [false, true] {
            let (one, other) = UnixStream::pair().expect("descriptors");
            let reader = PeerSocket::new(other.into(), refuses, 7);
            drop(one);
            assert_eq!(reader.take(&mut [0; 8]), Ok(0));
        }
    }
}
