//! Addresses of IPv6 of VNICs behind a veth pair, and networks of either family that a VNIC may
//! talk to.
//!
//! 1. `address6` and `host_address6` come together: VNIC and host are two hosts of one network. The
//!    link-local address beside the granted one follows from the MAC and is not written.
//! 2. `peers` names networks of both families in one list. A family that it does not name has no
//!    peers, but for the usual list, everybody of IPv4: it means everybody.

use std::net::{IpAddr, Ipv6Addr};

use serde::Deserialize;
use sietch_protocol::types::{Network, Network6};

use super::links::is_host;
use super::{Vnic, VnicText};

/// The smallest MTU of a VNIC with IPv6 (RFC 8200 section 5).
const MIN_MTU_IPV6: u32 = 1280;

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
pub(super) fn everyone() -> Vec<Peer> {
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

/// Whether it can be the granted address of a host: the first half of nobody's, the loopback's and
/// those that stand for IPv4 addresses is zero, and link-local ones follow from the MAC.
pub(super) fn is_granted6(address: Ipv6Addr) -> bool {
    is_host(IpAddr::V6(address)) && !address.is_unicast_link_local() && address.segments()[..4] != [0; 4]
}

/// The IPv6 address of a VNIC behind a veth pair and that of its host; or what is wrong with them,
/// and the fix.
pub(super) fn pair6(
    vnic: &VnicText,
    mtu: u32,
    others: &[Vnic],
) -> Result<Option<(Network6, Ipv6Addr)>, (String, &'static str)> {
    let (own, host) = match (vnic.address6.as_ref().map(|own| *own.get_ref()), vnic.host_address6) {
        (None, None) => return Ok(None),
        (Some(own), Some(host)) => (own, host),
        _ => return Err(("address6 or host_address6 alone".to_owned(), "write both, or none")),
    };
    if !is_granted6(own.address) || !is_granted6(host) || own.address == host {
        let cause = format!("{} and {host} are not addresses of two hosts", own.address);
        return Err((cause, "give VNIC and host one unicast address each, as in fd00::2/64 and fd00::1"));
    }
    if !own.contains(host) {
        return Err((format!("{host} is not in {own}"), "choose a host_address6 of that network"));
    }
    let taken = |other: &&Vnic| other.ipv6.is_some_and(|(taken, _)| taken.address == own.address);
    if let Some(other) = others.iter().find(taken) {
        let cause = format!("{} is VNIC {}'s address too", own.address, other.name);
        return Err((cause, "give each VNIC its own address"));
    }
    if mtu < MIN_MTU_IPV6 {
        let cause = format!("an mtu of {mtu} is too small for IPv6");
        return Err((cause, "give it 1280 or more, or leave out address6"));
    }
    Ok(Some((own, host)))
}
