//! ICMPv6 (RFC 4443) with the messages of neighbour discovery (RFC 4861).
//!
//! ```text
//!  0      1      2          4                8
//!  | type | code | checksum | rest of header | payload
//!
//!  neighbour solicitation, advertisement:
//!  0        1   2          4                           8        24
//!  | 135/6  | 0 | checksum | router:solicited:override | target | options ...
//!
//!  option:  | type | length in units of eight bytes | value |
//! ```
//!
//! The parser also checks the options behind the one that it needs: a length of zero makes the
//! message void (RFC 4861 section 7.1).

use super::icmp::Message;
use super::{Address, Malformed, Payload, checksum, icmp, ipv6};

/// Bytes in an ICMPv6 header.
pub const HEADER: usize = icmp::HEADER;
/// Type of "destination unreachable".
pub const UNREACHABLE: u8 = 1;
/// Type of "packet too big".
pub(crate) const TOO_BIG: u8 = 2;
/// Type of "time exceeded".
pub(crate) const TIME_EXCEEDED: u8 = 3;
/// Type of "parameter problem".
pub const PARAMETER_PROBLEM: u8 = 4;
/// Type of an echo request.
pub const ECHO_REQUEST: u8 = 128;
/// Type of a query for groups (RFC 3810).
pub(crate) const GROUP_QUERY: u8 = 130;
/// Type of an echo reply.
pub const ECHO_REPLY: u8 = 129;
/// Type of a neighbour solicitation.
pub(crate) const NEIGHBOUR_SOLICITATION: u8 = 135;
/// Type of a neighbour advertisement.
pub(crate) const NEIGHBOUR_ADVERTISEMENT: u8 = 136;
/// Type of a redirect.
pub const REDIRECT: u8 = 137;
/// Code of "port unreachable".
pub(crate) const PORT_UNREACHABLE: u8 = 4;
/// The hop limit of neighbour discovery: what has come through a router has less.
pub(crate) const LINK_HOP_LIMIT: u8 = 255;
/// An advertisement answers a solicitation.
pub(crate) const SOLICITED: u32 = 1 << 30;
/// An advertisement overrides a cached entry.
pub const OVERRIDE: u32 = 1 << 29;

const SOURCE_LINK_ADDRESS: u8 = 1;
const TARGET_LINK_ADDRESS: u8 = 2;

/// Reads a message between two addresses.
///
/// # Errors
/// Too short, or a wrong checksum.
pub fn parse<'a>(
    packet: impl Into<Payload<'a>>,
    source: &Address,
    destination: &Address,
) -> Result<Message<'a>, Malformed> {
    let packet = packet.into();
    let header = packet.head.first_chunk::<HEADER>().ok_or(Malformed::Header)?;
    let length = u32::try_from(packet.len()).map_err(|_| Malformed::Header)?;
    let pseudo = checksum::pseudo_header(source, destination, ipv6::ICMP, length);
    if !checksum::is_valid(pseudo + packet.sum()) {
        return Err(Malformed::Checksum);
    }
    Ok(Message {
        kind: header[0],
        code: header[1],
        rest: u32::from_be_bytes([header[4], header[5], header[6], header[7]]),
        payload: packet.skip(HEADER),
    })
}

/// Writes a message whose payload is already in place behind the header.
///
/// # Panics
/// If `out` is shorter than a header.
pub fn emit(out: &mut [u8], addresses: (&Address, &Address), kind: u8, code: u8, rest: u32) {
    out[0] = kind;
    out[1] = code;
    out[2..4].fill(0);
    out[4..8].copy_from_slice(&rest.to_be_bytes());
    let pseudo = checksum::pseudo_header(addresses.0, addresses.1, ipv6::ICMP, out.len() as u32);
    let check = checksum::finish(pseudo + checksum::sum(out));
    out[2..4].copy_from_slice(&check);
}

/// A neighbour solicitation or advertisement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// Whose link address it is about.
    pub target: Address,
    /// The sender's link address (solicitation) or the target's (advertisement), if it is given.
    pub mac: Option<[u8; 6]>,
}

impl Neighbour {
    /// Reads what follows the header of a message of either type. `None` if RFC 4861 section 7.1
    /// says to discard it; hop limit and addresses are for the caller to check.
    pub fn parse(message: &Message<'_>) -> Option<Self> {
        let (target, mut options) = message.payload.head.split_first_chunk::<16>()?;
        let wanted =
            if message.kind == NEIGHBOUR_SOLICITATION { SOURCE_LINK_ADDRESS } else { TARGET_LINK_ADDRESS };
        let target = Address::from_octets(*target);
        let whole = message.payload.tail.is_empty();
        if message.code != 0 || target.is_multicast() || target.is_v4() || !whole {
            return None;
        }
        let mut mac = None;
        while let [kind, units, ..] = *options {
            let length = usize::from(units) * 8;
            if length == 0 {
                return None;
            }
            let value = options.get(2..length)?;
            if kind == wanted {
                mac = mac.or_else(|| value.first_chunk::<6>().copied());
            }
            options = &options[length..];
        }
        options.is_empty().then_some(Self { target, mac })
    }
}

/// What follows the header of a solicitation or an advertisement with its sender's link address.
pub(crate) fn neighbour_payload(kind: u8, target: &Address, mac: [u8; 6]) -> Vec<u8> {
    let option = if kind == NEIGHBOUR_SOLICITATION { SOURCE_LINK_ADDRESS } else { TARGET_LINK_ADDRESS };
    [&target.octets()[..], &[option, 1], &mac].concat()
}
