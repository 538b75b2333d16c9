//! Wire formats: what is read leniently is a parsed value that borrows the frame; what is written is legal by
//! construction. Nothing here panics on any received byte. Every checksum is verified, but for those of TCP and UDP on a medium that
//! makes them unnecessary ([`sietch_nic::Offloads`]).

pub mod address;
pub mod arp;
pub mod checksum;
pub mod ethernet;
pub mod icmp;
pub mod icmpv6;
pub mod ipv4;
pub mod ipv6;
pub mod payload;
pub mod tcp;
pub mod template;
pub mod udp;

pub use address::Address;
pub use payload::Payload;
pub use template::{Path, Template};

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
