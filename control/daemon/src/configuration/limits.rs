//! Limits of `sietch.toml`, and why they are what they are.

/// The most VNICs and the most VSAs: a Status of all of them fits a frame.
pub(crate) const MAX_DEVICES: usize = 64;
/// The most `[sockets] rules`: they travel on a command line, and each is checked for each
/// connection.
pub(crate) const MAX_SOCKET_RULES: usize = 256;
/// The most port ranges a VNIC may have for one protocol: a grant with all of them fits a frame
/// many times over.
pub(crate) const MAX_PORT_RANGES: usize = 64;
/// The most peer networks a VNIC may have, for the same reason.
pub(crate) const MAX_PEERS: usize = 64;
/// The smallest MTU: what every IPv4 host must accept (RFC 791).
pub(crate) const MIN_MTU: u32 = 576;
/// The largest MTU: the longest IPv4 packet. An uplink, and kernels before 6.6, allow less: then
/// the VNIC has what they allow.
pub(crate) const MAX_MTU: u32 = 65_535;
/// The MTU of a VNIC that has none: its frames take up sixteen pages when sent, and seventeen
/// pieces of 3840 bytes when received, none of them nearly empty. Packets that continue to narrower
/// networks are no larger than those take (RFC 1191, RFC 8201).
pub(crate) const USUAL_VNIC_MTU: u32 = 65_264;
/// The user that kv runs as when the daemon is root: outside what distributions give out, and
/// without a login.
pub(crate) const KV_UID: u32 = 61870;
/// The most shards of kv, as kv itself has it.
pub const MAX_KV_SHARDS: u16 = 64;
/// The largest `sietch.toml` in bytes: 128 devices take a tenth of it.
pub(super) const MAX_TEXT: u64 = 1 << 20;
/// The unit of a VSA's size, in bytes.
pub(super) const BLOCK: u64 = sietch_disk::BLOCK as u64;
/// The MTU of a VNIC of the switch that has none.
pub(super) const USUAL_PORT_MTU: u32 = 1500;
/// The smallest MTU with IPv6 (RFC 8200 section 5).
pub(super) const MIN_MTU6: u32 = 1280;
