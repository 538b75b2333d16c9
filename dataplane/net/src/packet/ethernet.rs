//! Ethernet II.
//!
//! ```text
//!  0           6          12     14
//!  | destination | source | type | payload ...
//! ```

/// Bytes in an Ethernet header.
pub const HEADER: usize = 14;
/// EtherType of IPv4.
pub const IPV4: u16 = 0x0800;
/// EtherType of IPv6.
pub const IPV6: u16 = 0x86dd;
/// EtherType of ARP.
pub const ARP: u16 = 0x0806;
/// The broadcast address.
pub const BROADCAST: [u8; 6] = [0xff; 6];

/// What an Ethernet header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The receiver's address.
    pub destination: [u8; 6],
    /// The sender's address.
    pub source: [u8; 6],
    /// The type of the payload.
    pub ethertype: u16,
}

impl Header {
    /// Reads a header and returns it with what follows.
    #[inline]
    pub fn parse(frame: &[u8]) -> Option<(Self, &[u8])> {
        let (header, payload) = frame.split_first_chunk::<HEADER>()?;
        let [d0, d1, d2, d3, d4, d5, s0, s1, s2, s3, s4, s5, t0, t1] = *header;
        let parsed = Self {
            destination: [d0, d1, d2, d3, d4, d5],
            source: [s0, s1, s2, s3, s4, s5],
            ethertype: u16::from_be_bytes([t0, t1]),
        };
        Some((parsed, payload))
    }

    /// Writes the header.
    #[inline]
    pub fn emit(&self, out: &mut [u8; HEADER]) {
        out[..6].copy_from_slice(&self.destination);
        out[6..12].copy_from_slice(&self.source);
        out[12..].copy_from_slice(&self.ethertype.to_be_bytes());
    }
}
