//! Flags of this protocol in the private page of an end.

use sietch_ring::stream::flag;

/// In [`Private::flags`](sietch_ring::stream::Private::flags): bytes were sent after the peer had
/// closed. It answered with a reset, which is (or was) an `EPIPE`.
pub(crate) const SENT_AFTER_CLOSE: u32 = flag::FREE;

/// In [`Private::flags`](sietch_ring::stream::Private::flags): the peer has shut down both ways.
/// Linux answers bytes that are sent to such a peer with a reset.
pub const PEER_SHUT_READ: u32 = flag::FREE << 1;
