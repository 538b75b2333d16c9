//! What the control plane has granted on a VNIC: to which user, and for which ports and peers.

use std::net::IpAddr;
use std::ops::RangeInclusive;

/// The user of a VNIC, and what its filters allow.
#[derive(Clone, Debug, Default)]
pub struct Access {
    /// The user whose applications may use it; root's may too.
    pub uid: u32,
    /// Its addresses.
    pub addresses: Vec<IpAddr>,
    /// Local ports that the filters let through.
    pub ports: Vec<RangeInclusive<u16>>,
    /// Networks that its applications may connect to; without any, all. If there are some, but none
    /// of a family, no peer of that family is allowed.
    pub peers: Vec<(IpAddr, u8)>,
}

impl Access {
    pub(super) fn allows_peer(&self, peer: IpAddr) -> bool {
        let inside = |(network, prefix): &(IpAddr, u8)| match (network, peer) {
            (IpAddr::V4(network), IpAddr::V4(peer)) => {
                same_bits(u128::from(network.to_bits()) << 96, u128::from(peer.to_bits()) << 96, *prefix)
            }
            (IpAddr::V6(network), IpAddr::V6(peer)) => same_bits(network.to_bits(), peer.to_bits(), *prefix),
            _ => false,
        };
        self.peers.is_empty() || self.peers.iter().any(inside)
    }
}

/// Returns whether two addresses have the same first `bits`.
fn same_bits(one: u128, other: u128, bits: u8) -> bool {
    bits == 0 || (one ^ other).leading_zeros() >= u32::from(bits)
}
