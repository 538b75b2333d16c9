//! ARP for IPv4 over Ethernet (RFC 826).
//!
//! ```text
//!  0       2       4    5    6       8            14         18           24        28
//!  | htype | ptype | 6  | 4  | oper  | sender MAC | sender IP | target MAC | target IP |
//! ```

use super::ethernet;

/// Bytes in an ARP packet.
pub const LENGTH: usize = 28;
const FIXED: [u8; 6] = [0, 1, 8, 0, 6, 4];

/// A request or a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Whether it is a request; otherwise a reply.
    pub request: bool,
    /// The sender's link address.
    pub sender_mac: [u8; 6],
    /// The sender's address.
    pub sender: u32,
    /// The target's link address; zero in a request.
    pub target_mac: [u8; 6],
    /// The target's address.
    pub target: u32,
}

impl Packet {
    /// Reads a packet; `None` if it is not ARP for IPv4 over Ethernet.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let bytes = bytes.first_chunk::<LENGTH>()?;
        if bytes[..6] != FIXED {
            return None;
        }
        let request = match u16::from_be_bytes([bytes[6], bytes[7]]) {
            1 => true,
            2 => false,
            _ => return None,
        };
        let mac = |at: usize| {
            [bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3], bytes[at + 4], bytes[at + 5]]
        };
        let address =
            |at: usize| u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        Some(Self {
            request,
            sender_mac: mac(8),
            sender: address(14),
            target_mac: mac(18),
            target: address(24),
        })
    }

    /// Writes the packet.
    pub fn emit(&self, out: &mut [u8; LENGTH]) {
        out[..6].copy_from_slice(&FIXED);
        out[6..8].copy_from_slice(&(if self.request { 1u16 } else { 2 }).to_be_bytes());
        out[8..14].copy_from_slice(&self.sender_mac);
        out[14..18].copy_from_slice(&self.sender.to_be_bytes());
        out[18..24].copy_from_slice(&self.target_mac);
        out[24..28].copy_from_slice(&self.target.to_be_bytes());
    }

    /// Writes the packet with its Ethernet header.
    pub(crate) fn emit_frame(&self, bytes: &mut [u8], destination: [u8; 6]) {
        let header = ethernet::Header { destination, source: self.sender_mac, ethertype: ethernet::ARP };
        if let Some((link, rest)) = bytes.split_first_chunk_mut()
            && let Some(body) = rest.first_chunk_mut()
        {
            header.emit(link);
            self.emit(body);
        }
    }
}
