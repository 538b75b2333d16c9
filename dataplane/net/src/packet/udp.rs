//! UDP (RFC 768).
//!
//! ```text
//!  0        2             4        6          8
//!  | source | destination | length | checksum | payload
//! ```

use super::{Malformed, checksum, ipv4};

/// Bytes in a UDP header.
pub const HEADER: usize = 8;

/// A datagram as received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datagram<'a> {
    /// Sender's port.
    pub source: u16,
    /// Receiver's port.
    pub destination: u16,
    /// What it carries.
    pub payload: &'a [u8],
}

impl<'a> Datagram<'a> {
    /// Reads a datagram between two addresses. A checksum of zero means that its sender made none.
    ///
    /// # Errors
    /// Too short, or a wrong checksum.
    pub fn parse(bytes: &'a [u8], source: u32, destination: u32) -> Result<Self, Malformed> {
        let header = bytes.first_chunk::<HEADER>().ok_or(Malformed::Header)?;
        let length = u16::from_be_bytes([header[4], header[5]]);
        if usize::from(length) < HEADER || usize::from(length) > bytes.len() {
            return Err(Malformed::Header);
        }
        let bytes = &bytes[..usize::from(length)];
        if header[6..8] != [0, 0] {
            let pseudo = checksum::pseudo_header(source, destination, ipv4::UDP, length);
            if !checksum::is_valid(pseudo + checksum::sum(bytes)) {
                return Err(Malformed::Checksum);
            }
        }
        Ok(Self {
            source: u16::from_be_bytes([header[0], header[1]]),
            destination: u16::from_be_bytes([header[2], header[3]]),
            payload: &bytes[HEADER..],
        })
    }
}

/// Writes a datagram; `out` has room for the header and `payload`.
///
/// # Panics
/// If `out` is not exactly that long.
pub fn emit(out: &mut [u8], addresses: (u32, u32), ports: (u16, u16), payload: &[u8]) {
    let length = u16::try_from(out.len()).unwrap_or(u16::MAX);
    out[..2].copy_from_slice(&ports.0.to_be_bytes());
    out[2..4].copy_from_slice(&ports.1.to_be_bytes());
    out[4..6].copy_from_slice(&length.to_be_bytes());
    out[6..8].fill(0);
    out[HEADER..].copy_from_slice(payload);
    let sum = checksum::pseudo_header(addresses.0, addresses.1, ipv4::UDP, length) + checksum::sum(out);
    let check = match checksum::finish(sum) {
        [0, 0] => [0xff, 0xff],
        check => check,
    };
    out[6..8].copy_from_slice(&check);
}
