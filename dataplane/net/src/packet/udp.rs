//! UDP (RFC 768).
//!
//! ```text
//!  0        2             4        6          8
//!  | source | destination | length | checksum | payload
//! ```

use super::{Address, Checks, Malformed, Payload, checksum, ipv4};

/// Bytes in a UDP header.
pub const HEADER: usize = 8;

/// A datagram as received.
#[derive(Clone, Copy, Debug)]
pub struct Datagram<'a> {
    /// Sender's port.
    pub source: u16,
    /// Receiver's port.
    pub destination: u16,
    /// What it carries.
    pub payload: Payload<'a>,
}

impl<'a> Datagram<'a> {
    /// Reads a datagram between two addresses. A checksum of zero means that its sender made none,
    /// which IPv6 forbids (RFC 8200 section 8.1); `checks` says what it must be otherwise.
    ///
    /// # Errors
    /// Too short, or a wrong checksum.
    pub fn parse(
        packet: impl Into<Payload<'a>>,
        source: &Address,
        destination: &Address,
        checks: impl Into<Checks>,
    ) -> Result<Self, Malformed> {
        let packet = packet.into();
        let header = packet.head.first_chunk::<HEADER>().ok_or(Malformed::Header)?;
        let length = u16::from_be_bytes([header[4], header[5]]);
        if usize::from(length) < HEADER || usize::from(length) > packet.len() {
            return Err(Malformed::Header);
        }
        let packet = packet.take(usize::from(length));
        let checks = checks.into();
        if checks != Checks::Trust && (header[6..8] != [0, 0] || !source.is_v4()) {
            let pseudo = checksum::pseudo_header(source, destination, ipv4::UDP, u32::from(length));
            if !checks.pass([header[6], header[7]], pseudo, &packet) {
                return Err(Malformed::Checksum);
            }
        }
        Ok(Self {
            source: u16::from_be_bytes([header[0], header[1]]),
            destination: u16::from_be_bytes([header[2], header[3]]),
            payload: packet.skip(HEADER),
        })
    }
}

/// Writes a datagram; `out` has room for the header and `payload`. Without `checksums` it says that
/// it has none.
///
/// # Panics
/// If `out` is not exactly that long.
pub fn emit(
    out: &mut [u8],
    addresses: (&Address, &Address),
    ports: (u16, u16),
    payload: &[u8],
    checksums: bool,
) {
    let length = u16::try_from(out.len()).unwrap_or(u16::MAX);
    out[..2].copy_from_slice(&ports.0.to_be_bytes());
    out[2..4].copy_from_slice(&ports.1.to_be_bytes());
    out[4..6].copy_from_slice(&length.to_be_bytes());
    out[6..8].fill(0);
    out[HEADER..].copy_from_slice(payload);
    if !checksums {
        return;
    }
    let sum =
        checksum::pseudo_header(addresses.0, addresses.1, ipv4::UDP, u32::from(length)) + checksum::sum(out);
    let check = match checksum::finish(sum) {
        [0, 0] => [0xff, 0xff],
        check => check,
    };
    out[6..8].copy_from_slice(&check);
}
