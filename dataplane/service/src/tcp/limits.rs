//! Bounds of the TCP host, with their reasons. Times are in nanoseconds.

/// Nanoseconds in a second.
const SECOND: u64 = 1_000_000_000;

/// Connections of one application over one VNIC. Its descriptors run out sooner (`ulimit -n` is
/// 1024 by default, 16 times less), and an application that opens as many as it can leaves three
/// quarters of an engine's flows to others.
pub(super) const CONNECTIONS_PER_APPLICATION: u32 = 16_384;
/// Bound ports of a VNIC, of all applications: as many as an engine has listeners.
pub(super) const BINDINGS: usize = 1024;
/// Bound ports of one application, so that one alone cannot take all.
pub(super) const BINDINGS_PER_APPLICATION: u32 = 256;
/// The most connections that wait at one listener, for any backlog: `net.core.somaxconn` of
/// Linux.
pub(super) const BACKLOG: u32 = 4096;
/// Bytes moved for one connection in one iteration, each way: a few large segments, and the
/// smallest batch that hides the cost of an iteration.
pub(super) const CONNECTION_BYTES: usize = 128 << 10;
/// Bytes moved for all connections of one application in one iteration, each way: copying them
/// takes a tenth of a millisecond at 10 GB/s, and others wait no longer than that.
pub(super) const APPLICATION_BYTES: usize = 1 << 20;
/// How long a connection on which nothing moves is polled before it is armed. A notification costs
/// its application a system call: an application with a request every millisecond never needs one.
pub(super) const ARM_DELAY: u64 = 1_000_000;
/// Emissions that send the resets of all connections when a VNIC ends. Each takes hundreds of
/// frames, and a device that takes no more frames must not delay the end.
pub(super) const FINAL_EMISSIONS: usize = 1024;
/// How long a cork holds back what was written: as long as on Linux (tcp(7)), in case the
/// application never removes it.
pub(super) const CORK_TIMEOUT: u64 = SECOND / 5;
/// How long the engine may take to accept what an application had sent before it ended. A peer that
/// takes nothing holds memory about as long as an orphaned connection of the engine, whose probes
/// are given up then.
pub(super) const FLUSH_TIMEOUT: u64 = 60 * SECOND;
/// How long bytes before a reset are kept for an application that does not read them: long enough
/// for a debugger or a long garbage collection.
pub(super) const UNDELIVERED_TIMEOUT: u64 = 600 * SECOND;
/// Arrivals of a VNIC that ended before they were accepted, and stay: as many as the longest queue.
pub(super) const ENDED_ARRIVALS: usize = BACKLOG as usize;
/// Undelivered bytes of a VNIC, of all its applications: ten connections with the largest windows.
pub(super) const UNDELIVERED_BYTES: usize = 64 << 20;
/// Undelivered bytes of one application, so that one alone cannot take all.
pub(super) const UNDELIVERED_BYTES_PER_APPLICATION: usize = 16 << 20;
