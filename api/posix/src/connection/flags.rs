//! The ends of connections: what the calls need of the memory that two programs share, and what
//! this crate keeps there itself.

use sietch_ring::stream::flag;

/// In [`Private::flags`]: bytes were sent after the other had closed, which answered with a reset
/// that is (or was) an `EPIPE`.
pub(crate) const SENT_AFTER_CLOSE: u32 = flag::FREE;

/// In [`Private::flags`]: the other has shut down both ways. Linux answers what is sent to such a
/// side with a reset.
pub(crate) const PEER_SHUT_READ: u32 = flag::FREE << 1;
