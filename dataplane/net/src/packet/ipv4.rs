//! IPv4 (RFC 791).
//!
//! ```text
//!  0     1     2        4    6              8     9          10         12       16            20
//!  | 4:5 | TOS | length | id | flags:offset | TTL | protocol | checksum | source | destination |
//! ```
//!
//! Options follow the destination. Routers never fragment our packets (DF is set), so their
//! identification means nothing and is zero (RFC 6864).

use super::{Malformed, Payload, checksum};

/// Bytes in a header without options.
pub const HEADER: usize = 20;
/// Protocol number of ICMP.
pub const ICMP: u8 = 1;
/// Protocol number of TCP.
pub const TCP: u8 = 6;
/// Protocol number of UDP.
pub const UDP: u8 = 17;
/// Hops that our packets may travel (RFC 1700).
pub const TTL: u8 = 64;

/// The bits that only fragments have: "more fragments", and the offset.
pub const FRAGMENT: u16 = 0x3fff;

/// The ECN field of a packet that met congestion (RFC 3168 section 5).
pub(crate) const CONGESTION_EXPERIENCED: u8 = 3;

/// What an IPv4 header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Sender.
    pub source: u32,
    /// Receiver.
    pub destination: u32,
    /// Protocol of the payload.
    pub protocol: u8,
    /// Whether this is a fragment.
    pub fragment: bool,
    /// Bytes in the header, options included.
    pub header_length: usize,
    /// The two bits of explicit congestion notification (RFC 3168).
    pub ecn: u8,
}

impl Header {
    /// Reads a header and returns it with its payload, without the padding that a link may have
    /// added.
    ///
    /// # Errors
    /// Too short, not version 4, lengths that do not fit, or a wrong checksum.
    #[inline]
    pub fn parse<'a>(packet: impl Into<Payload<'a>>) -> Result<(Self, Payload<'a>), Malformed> {
        let packet = packet.into();
        let bytes = packet.head;
        let fixed = bytes.first_chunk::<HEADER>().ok_or(Malformed::Header)?;
        let header_length = usize::from(fixed[0] & 0x0f) * 4;
        let total = usize::from(u16::from_be_bytes([fixed[2], fixed[3]]));
        if fixed[0] >> 4 != 4
            || header_length < HEADER
            || total < header_length
            || packet.len() < total
            || bytes.len() < header_length
        {
            return Err(Malformed::Header);
        }
        if !checksum::is_valid(checksum::sum(&bytes[..header_length])) {
            return Err(Malformed::Checksum);
        }
        let header = Self {
            source: u32::from_be_bytes([fixed[12], fixed[13], fixed[14], fixed[15]]),
            destination: u32::from_be_bytes([fixed[16], fixed[17], fixed[18], fixed[19]]),
            protocol: fixed[9],
            fragment: u16::from_be_bytes([fixed[6], fixed[7]]) & FRAGMENT != 0,
            header_length,
            ecn: fixed[1] & 3,
        };
        Ok((header, packet.take(total).skip(header_length)))
    }
}

/// Writes a header without options for `payload` bytes of `protocol`.
#[inline]
pub fn emit(out: &mut [u8; HEADER], source: u32, destination: u32, protocol: u8, payload: usize) {
    let total = u16::try_from(HEADER + payload).unwrap_or(u16::MAX).to_be_bytes();
    let [s0, s1, s2, s3] = source.to_be_bytes();
    let [d0, d1, d2, d3] = destination.to_be_bytes();
    *out = [0x45, 0, total[0], total[1], 0, 0, 0x40, 0, TTL, protocol, 0, 0, s0, s1, s2, s3, d0, d1, d2, d3];
    let check = checksum::finish(checksum::sum(out));
    out[10] = check[0];
    out[11] = check[1];
}

/// Sets the ECN field (RFC 3168 section 5) of a header without options.
pub fn set_ecn(header: &mut [u8; HEADER], ecn: u8) {
    header[1] = header[1] & !3 | ecn & 3;
    header[10..12].fill(0);
    let check = checksum::finish(checksum::sum(header));
    header[10..12].copy_from_slice(&check);
}

/// Gives a header without options another number of hops.
pub(crate) fn set_ttl(header: &mut [u8; HEADER], hops: u8) {
    header[8] = hops;
    header[10..12].fill(0);
    let check = checksum::finish(checksum::sum(header));
    header[10..12].copy_from_slice(&check);
}
