//! Networks of either family that a VNIC may talk to, and IPv6 addresses that it may be granted.
//!
//! 1. The link-local address beside the granted one follows from the MAC and is not written.
//! 2. `peers` names networks of both families in one list. A family that it does not name has no
//!    peers. The exception is the default list, all of IPv4: it means both families.

use std::net::{IpAddr, Ipv6Addr};

use serde::Deserialize;
use sietch_protocol::types::{Network, Network6};

use super::rules::is_host;

/// A network that a VNIC may talk to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(super) enum Peer {
    V4(Network),
    V6(Network6),
}

impl TryFrom<String> for Peer {
    type Error = sietch_protocol::types::ParseError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        if !text.contains(':') {
            return text.parse().map(Self::V4);
        }
        match text.parse::<Ipv6Addr>() {
            Ok(address) => Ok(Self::V6(Network6 { address, prefix: 128 })),
            Err(_) => text.parse().map(Self::V6),
        }
    }
}

/// The default.
pub(super) fn all_peers() -> Vec<Peer> {
    vec![Peer::V4(Network::EVERYONE)]
}

/// The networks of each family.
pub(super) fn by_family(peers: &[Peer]) -> (Vec<Network>, Vec<Network6>) {
    let (mut four, mut six) = (Vec::new(), Vec::new());
    for peer in peers {
        match peer {
            Peer::V4(network) => four.push(*network),
            Peer::V6(network) => six.push(*network),
        }
    }
    (four, six)
}

/// Whether `address` can be granted to a host. The unspecified address, the loopback address and
/// IPv4-mapped addresses cannot: their first half is zero. Link-local addresses cannot either,
/// because they follow from the MAC.
pub(super) fn is_granted6(address: Ipv6Addr) -> bool {
    is_host(IpAddr::V6(address)) && !address.is_unicast_link_local() && address.segments()[..4] != [0; 4]
}
