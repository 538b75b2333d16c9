//! Flags that this crate keeps in the private page of an end.

use sietch_ring::stream::flag;

/// In [`Private::flags`]: bytes were sent after the other had closed, which answered with a reset
/// that is (or was) an `EPIPE`.
pub(crate) const SENT_AFTER_CLOSE: u32 = flag::FREE;

/// In [`Private::flags`]: the other has shut down both ways. Linux answers what is sent to such a
/// side with a reset.
pub(crate) const PEER_SHUT_READ: u32 = flag::FREE << 1;
