//! The ends of connections: what the calls need of the memory that two programs share, and what
//! this crate keeps there itself.

pub use sietch_ring::stream::{Due, Edge, End, Hangup, Private, Want, flag, state};

/// In [`Private::flags`]: bytes were sent after the other had closed, which answered with a reset
/// that is (or was) an `EPIPE`.
pub const SENT_TO_NOBODY: u32 = flag::FREE;
/// In [`Private::flags`]: the other has shut down both ways. Linux answers what is sent to such a
/// side with a reset.
pub const PEER_IS_DEAF: u32 = flag::FREE << 1;
