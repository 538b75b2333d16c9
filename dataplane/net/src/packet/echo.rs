//! Echo requests (RFC 792, RFC 4443) that become replies in place.

use super::{checksum, icmp, icmpv6};

/// Turns a request of either family in place into its reply (RFC 792: only the type changes, and
/// the checksum by as much, RFC 1624; the pseudo-header of ICMPv6 has the same sum with its
/// addresses exchanged). What is beyond `out`, in the tail of the frame, need not be read.
///
/// # Panics
/// If `out` is shorter than a header.
pub(crate) fn reply_in_place(out: &mut [u8]) {
    let reply = if out[0] == icmp::ECHO_REQUEST { icmp::ECHO_REPLY } else { icmpv6::ECHO_REPLY };
    let sum = u64::from(!u16::from_ne_bytes([out[2], out[3]]))
        + u64::from(!u16::from_ne_bytes([out[0], out[1]]))
        + u64::from(u16::from_ne_bytes([reply, out[1]]));
    out[0] = reply;
    out[2..4].copy_from_slice(&checksum::finish(sum));
}
