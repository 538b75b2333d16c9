//! IPv6 (RFC 8200).
//!
//! ```text
//!  0               4        6             7            8        24            40
//!  | 6:class:label | length | next header | hop limit  | source | destination | extension headers, payload
//! ```

use super::{Address, Malformed};

/// Bytes in the fixed header.
pub const HEADER: usize = 40;
/// Next header: ICMPv6.
pub const ICMP: u8 = 58;
/// The smallest MTU that a link may have (RFC 8200 section 5).
pub const MINIMUM_MTU: usize = 1280;
/// Hops that our packets may travel.
pub const HOP_LIMIT: u8 = 64;

/// What the fixed header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Sender.
    pub source: Address,
    /// Receiver.
    pub destination: Address,
    /// What follows the fixed header.
    pub next_header: u8,
    /// Hops that were left.
    pub hop_limit: u8,
    /// The two bits of explicit congestion notification (RFC 3168).
    pub ecn: u8,
}

impl Header {
    /// Reads the fixed header and returns it with what follows, without the padding that a link may have added.
    ///
    /// # Errors
    /// Too short, not version 6, a length that does not fit, or an IPv4 address in disguise.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<(Self, &[u8]), Malformed> {
        let (fixed, rest) = bytes.split_first_chunk::<HEADER>().ok_or(Malformed::Header)?;
        let length = usize::from(u16::from_be_bytes([fixed[4], fixed[5]]));
        if fixed[0] >> 4 != 6 || length > rest.len() {
            return Err(Malformed::Header);
        }
        let mut source = [0; 16];
        let mut destination = [0; 16];
        source.copy_from_slice(&fixed[8..24]);
        destination.copy_from_slice(&fixed[24..40]);
        let header = Self {
            source: Address::from_octets(source),
            destination: Address::from_octets(destination),
            next_header: fixed[6],
            hop_limit: fixed[7],
            ecn: fixed[1] >> 4 & 3,
        };
        if header.source.is_v4() || header.destination.is_v4() {
            return Err(Malformed::Header);
        }
        Ok((header, &rest[..length]))
    }
}

/// Writes a fixed header before `payload` bytes of `next_header`.
#[inline]
pub fn emit(
    out: &mut [u8; HEADER],
    source: &Address,
    destination: &Address,
    next_header: u8,
    hop_limit: u8,
    payload: usize,
) {
    let length = u16::try_from(payload).unwrap_or(u16::MAX).to_be_bytes();
    out[..8].copy_from_slice(&[0x60, 0, 0, 0, length[0], length[1], next_header, hop_limit]);
    out[8..24].copy_from_slice(source.octets());
    out[24..].copy_from_slice(destination.octets());
}
