//! Connections, and what the owner of a queue does with what happens on them.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use sietch_structures::Key;

/// A connection. The id of one that is closed is recognised as stale and ignored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ConnectionId(pub(crate) Key);

/// What a handler makes of a new connection.
#[derive(Debug, Clone, Copy)]
pub enum Verdict {
    /// Take it. The word comes back with everything about the connection.
    Accept(u64),
    /// Say these last words and close it.
    Refuse(&'static [u8]),
    /// Give its socket to the handler, with [`Handler::released`].
    Release,
}

/// Whether a connection should be read further.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Appetite {
    /// Continue reading.
    More,
    /// Stop until [`crate::SocketQueue::resume`].
    Enough,
}

/// What the owner of a queue does with what happens on it. `user` is the word given at acceptance.
pub trait Handler {
    /// A peer has connected.
    fn accepted(&mut self, id: ConnectionId, peer: SocketAddr, local: SocketAddr) -> Verdict;

    /// The socket of a new connection after [`Verdict::Release`]. Another queue may adopt it.
    fn released(&mut self, socket: OwnedFd) {
        drop(socket);
    }

    /// Bytes have arrived.
    fn received(&mut self, user: u64, bytes: &[u8]) -> Appetite;

    /// The peer will send nothing more; it may still read.
    fn ended(&mut self, user: u64);

    /// The connection is closed and its id is dead.
    fn broken(&mut self, user: u64);

    /// There is room again after a [`crate::SocketQueue::send`] that took less than it was given.
    fn writable(&mut self, user: u64);

    /// A watched descriptor has become readable.
    fn doorbell(&mut self, token: u64);
}
