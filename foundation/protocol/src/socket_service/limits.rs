//! Sizes, limits and names of the protocol.

/// "SKT5", little endian: the first word of each message.
pub(super) const MAGIC: u32 = u32::from_le_bytes(*b"SKT5");
/// The version of the messages. A service answers another version with
/// [`super::ReplyKind::Refused`] and `EPROTO`.
pub const VERSION: u16 = 1;
/// Bytes of a request.
pub const REQUEST_BYTES: usize = 256;
/// Bytes of a reply.
pub const REPLY_BYTES: usize = 256;
/// Bytes of an arrival.
pub const ARRIVAL_BYTES: usize = 128;
/// The most descriptors on any message.
pub const MAX_DESCRIPTORS: usize = 4;
/// Milliseconds after which a service that does not answer counts as absent. It answers in tens of
/// microseconds. A stopped service must not block a program for ever; the program then uses the
/// kernel.
pub const ANSWER_MS: u64 = 5000;
/// The name of the service's socket, in the run directory beside the daemon's.
pub const SOCKET_NAME: &str = "sockets.sock";
/// The variable that names the service's socket to a program under `sietch run`.
pub const SOCKET_VARIABLE: &str = "SIETCH_SOCKETS";
/// The variable with the application's id: 32 hexadecimal digits.
pub const APPLICATION_VARIABLE: &str = "SIETCH_APPLICATION";

/// The variable that names the mounts whose files a program reads and writes itself, with colons
/// between them.
pub const FILES_VARIABLE: &str = "SIETCH_FILES";

/// The variable that leaves short-lived connections to kernel TCP, where setup is cheaper.
pub const SHORT_LIVED_VARIABLE: &str = "SIETCH_SHORT_LIVED";
/// The variable that names the VNIC; not set in host addressing.
pub const VNIC_VARIABLE: &str = "SIETCH_VNIC";
