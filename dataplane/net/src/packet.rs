//! Wire formats. Parsers are lenient and return a value that borrows the frame; writers produce
//! only legal packets. Nothing here panics on any received byte. Every checksum is verified,
//! but for those of TCP and UDP on a medium that makes them unnecessary ([`Checks`]).

pub mod address;
pub mod arp;
pub mod checksum;
pub(crate) mod echo;
pub mod ecn;
pub mod ethernet;
pub(crate) mod group_report;
pub mod icmp;
pub mod icmpv6;
pub mod ipv4;
pub mod ipv6;
pub mod payload;
pub(crate) mod sequence;
pub mod tcp;
pub mod template;
pub mod udp;

pub use address::Address;
pub(crate) use address::AddressIndex;
pub use ecn::EcnCodepoint;
pub use payload::Payload;
pub(crate) use template::network_header;
pub use template::{Path, Template};

/// How to check the checksum of a TCP segment or UDP datagram that came in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Checks {
    /// It must be right.
    #[default]
    Verify,
    /// It must be right, or the sum of the pseudo-header: then a kernel of this machine made the
    /// packet or verified it ([`sietch_nic::Offloads::unfinished`]).
    Unfinished,
    /// It is not checked: the medium protects it.
    Trust,
}

impl Checks {
    /// The policy for a medium.
    pub const fn of(offloads: sietch_nic::Offloads) -> Self {
        match offloads {
            sietch_nic::Offloads { checksums: true, .. } => Self::Trust,
            sietch_nic::Offloads { unfinished: true, .. } => Self::Unfinished,
            _ => Self::Verify,
        }
    }

    /// Whether a packet with this checksum `field` passes; `pseudo` is the sum of its
    /// pseudo-header.
    #[inline]
    pub(crate) fn pass(self, field: [u8; 2], pseudo: u64, packet: &Payload<'_>) -> bool {
        (self == Self::Unfinished && checksum::fold(pseudo).to_ne_bytes() == field)
            || checksum::is_valid(pseudo + packet.sum())
    }
}

impl From<bool> for Checks {
    /// `true`: the medium protects the packet.
    fn from(trusted: bool) -> Self {
        if trusted { Self::Trust } else { Self::Verify }
    }
}

/// Why a packet was not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// It is too short, or its lengths contradict each other.
    #[error("the header is cut short or contradicts itself")]
    Header,
    /// Its checksum is wrong.
    #[error("the checksum is wrong")]
    Checksum,
}

#[cfg(test)]
mod tests;
