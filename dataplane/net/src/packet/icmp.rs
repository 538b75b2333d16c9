//! ICMP (RFC 792): echo, and the errors that concern a flow.
//!
//! ```text
//!  0      1      2          4                8
//!  | type | code | checksum | rest of header | payload
//! ```
//!
//! The payload of an error is the IPv4 header and 8 bytes of the packet that caused it.

use super::{Address, Malformed, Payload, checksum, ipv4, ipv6};

/// Bytes in an ICMP header.
pub const HEADER: usize = 8;
/// Type of an echo reply.
pub const ECHO_REPLY: u8 = 0;
/// Type of "destination unreachable".
pub const UNREACHABLE: u8 = 3;
/// Type of an echo request.
pub const ECHO_REQUEST: u8 = 8;
/// Type of "time exceeded".
pub(crate) const TIME_EXCEEDED: u8 = 11;
/// Type of "parameter problem".
pub const PARAMETER_PROBLEM: u8 = 12;
/// Code of "protocol unreachable".
pub(crate) const PROTOCOL_UNREACHABLE: u8 = 2;
/// Code of "port unreachable".
pub(crate) const PORT_UNREACHABLE: u8 = 3;
/// Code of "fragmentation needed and DF set" (RFC 1191).
pub(crate) const FRAGMENTATION_NEEDED: u8 = 4;

/// A message as received.
#[derive(Clone, Copy, Debug)]
pub struct Message<'a> {
    /// Type.
    pub kind: u8,
    /// Code within the type.
    pub code: u8,
    /// The rest of the header: identifier and sequence number, or the next hop's MTU in the low
    /// half.
    pub rest: u32,
    /// What follows.
    pub payload: Payload<'a>,
}

impl<'a> Message<'a> {
    /// Reads a message.
    ///
    /// # Errors
    /// Too short, or a wrong checksum.
    pub fn parse(packet: impl Into<Payload<'a>>) -> Result<Self, Malformed> {
        let packet = packet.into();
        let header = packet.head.first_chunk::<HEADER>().ok_or(Malformed::Header)?;
        if !checksum::is_valid(packet.sum()) {
            return Err(Malformed::Checksum);
        }
        Ok(Self {
            kind: header[0],
            code: header[1],
            rest: u32::from_be_bytes([header[4], header[5], header[6], header[7]]),
            payload: packet.skip(HEADER),
        })
    }
}

/// The packet of ours that an error quotes, of either family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Quote {
    /// Its source address: ours, if the error is honest.
    pub source: Address,
    /// Its destination.
    pub destination: Address,
    /// Its protocol.
    pub protocol: u8,
    /// Its length as its header has it.
    pub length: usize,
    /// Its ports.
    pub ports: (u16, u16),
    /// Its sequence number, for TCP.
    pub sequence: u32,
}

impl Quote {
    /// Reads the quoted packet. Its checksum cannot be verified: it was cut. What we send has no
    /// extension headers.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let first = *bytes.first()?;
        let word = |at: usize| Some(usize::from(u16::from_be_bytes([*bytes.get(at)?, *bytes.get(at + 1)?])));
        let (source, destination, protocol, length, header) = match first >> 4 {
            4 => {
                let fixed = bytes.first_chunk::<{ ipv4::HEADER }>()?;
                let address =
                    |at: usize| u32::from_be_bytes([fixed[at], fixed[at + 1], fixed[at + 2], fixed[at + 3]]);
                let header = usize::from(first & 0x0f) * 4;
                if header < ipv4::HEADER {
                    return None;
                }
                (Address::v4(address(12)), Address::v4(address(16)), fixed[9], word(2)?, header)
            }
            6 => {
                let fixed = bytes.first_chunk::<{ ipv6::HEADER }>()?;
                let address = |at: usize| fixed[at..].first_chunk().copied().map(Address::from_octets);
                let (source, destination) = (address(8)?, address(24)?);
                if source.is_v4() || destination.is_v4() {
                    return None;
                }
                (source, destination, fixed[6], ipv6::HEADER + word(4)?, ipv6::HEADER)
            }
            _ => return None,
        };
        let [a, b, c, d, e, f, g, h] = *bytes.get(header..)?.first_chunk::<8>()?;
        Some(Self {
            source,
            destination,
            protocol,
            length,
            ports: (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d])),
            sequence: u32::from_be_bytes([e, f, g, h]),
        })
    }
}

/// Writes a message whose payload is already in place behind the header.
///
/// # Panics
/// If `out` is shorter than a header.
pub fn emit(out: &mut [u8], kind: u8, code: u8, rest: u32) {
    out[0] = kind;
    out[1] = code;
    out[2..4].fill(0);
    out[4..8].copy_from_slice(&rest.to_be_bytes());
    seal(out);
}

fn seal(out: &mut [u8]) {
    let check = checksum::finish(checksum::sum(out));
    out[2..4].copy_from_slice(&check);
}
