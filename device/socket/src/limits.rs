//! Bounds of the socket queues, each with its reason.

/// Bytes taken from one connection in one go: one receive buffer.
pub const RECEIVE_BYTES: usize = 16 * 1024;

/// Bytes that one connection may have waiting for the kernel beyond those it is sending. Two
/// megabyte-sized replies overlap, and a peer that never reads holds no more.
pub(crate) const SEND_QUEUE_BYTES: usize = 256 * 1024;

/// Pending connections that the kernel keeps for a listener; it caps this by `net.core.somaxconn`.
pub const BACKLOG: i32 = 4096;

/// How long the kernel keeps trying to deliver the last bytes of a closed connection, in
/// milliseconds. A peer that stopped reading must not hold them for ever.
pub(crate) const LAST_BYTES_MS: u32 = 30_000;
