//! Bounds of the engine host, with their reasons. Times are in nanoseconds.

/// Nanoseconds in a second.
const SECOND: u64 = 1_000_000_000;

/// Connections of one application over one VNIC: its descriptors end sooner (`ulimit -n` is 1024 by
/// default, 16 times less), and an application that makes them without end leaves three quarters of
/// an engine's flows to others.
pub const CONNECTIONS_OF_APPLICATION: u32 = 16_384;
/// Ports of a VNIC that are reserved or listened on, of all applications: as many as an engine has
/// listeners.
pub const CLAIMS: usize = 1024;
/// The same of one application, so that one alone cannot take them all.
pub const CLAIMS_OF_APPLICATION: u32 = 256;
/// The most connections that wait at one listener, whatever it asks for: `net.core.somaxconn` of
/// Linux.
pub const BACKLOG: u32 = 4096;
/// Bytes moved for one connection in one turn, each way: a few large segments, and the smallest
/// batch that hides the cost of a turn.
pub const TURN_BYTES: usize = 128 << 10;
/// Bytes moved for all connections of one application in one turn, each way: at 10 GB/s of copying
/// a turn is a tenth of a millisecond, and others wait no longer than that.
pub const APPLICATION_TURN_BYTES: usize = 1 << 20;
/// How long a connection on which nothing moves is looked at before it has to ring. Ringing costs
/// its application a system call: a request every millisecond never does.
pub const WARM: u64 = 1_000_000;
/// Emissions in which the resets of all connections leave when a VNIC ends: each takes hundreds of
/// frames, and a device that takes none any more must not hold up the end.
pub const LAST_TURNS: usize = 1024;
/// How long a cork holds what was written: as long as Linux does (tcp(7)), for an application that
/// forgets it.
pub const CORKED: u64 = SECOND / 5;
/// How long what an application has sent before it ended may take to be handed to the engine: a
/// peer that takes nothing holds memory no longer than connections of an engine that nobody owns
/// (its probes are given up after about as long).
pub const LAST_BYTES: u64 = 60 * SECOND;
/// How long what came before a reset is kept for an application that reads nothing of it: an
/// application that stops for a debugger or a long collection of garbage finds it still.
pub const UNREAD: u64 = 600 * SECOND;
/// Arrivals of a VNIC that ended before they were accepted and wait on: as many as the longest
/// queue.
pub const ENDED_ARRIVALS: usize = BACKLOG as usize;
/// What a VNIC keeps of that, for all its applications: ten connections with the largest windows.
pub const UNREAD_BYTES: usize = 64 << 20;
/// The same for one application, so that one alone cannot take it all.
pub const UNREAD_BYTES_OF_APPLICATION: usize = 16 << 20;
