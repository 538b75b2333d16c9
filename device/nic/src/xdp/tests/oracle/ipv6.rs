//! The page's rules of IPv6.

use std::net::Ipv6Addr;

use super::{be16, ensure, port_granted};
use crate::xdp::frame::Direction;
use crate::xdp::{Reason, VnicSpec};

fn address(bytes: &[u8], at: usize) -> Ipv6Addr {
    let octets: [u8; 16] = bytes[at..at + 16].try_into().unwrap();
    Ipv6Addr::from(octets)
}

/// The granted address, and the one made of the MAC.
fn own(spec: &VnicSpec) -> Vec<Ipv6Addr> {
    let m = spec.mac.map(u16::from);
    let local = Ipv6Addr::new(
        0xfe80,
        0,
        0,
        0,
        (m[0] ^ 2) << 8 | m[1],
        m[2] << 8 | 0xff,
        0xfe00 | m[3],
        m[4] << 8 | m[5],
    );
    spec.address6.into_iter().chain([local]).collect()
}

fn groups(spec: &VnicSpec) -> Vec<Ipv6Addr> {
    let asked = |address: Ipv6Addr| {
        let [.., a, b] = address.segments();
        Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | a & 0xff, b)
    };
    let mut all: Vec<_> = own(spec).into_iter().map(asked).collect();
    all.push("ff02::1".parse().unwrap());
    all
}

/// In the list, if there is one. A list of IPv4 alone that names all addresses stands for all of
/// IPv6 too.
fn is_peer(spec: &VnicSpec, other: Ipv6Addr) -> bool {
    if spec.peers6.is_empty() {
        return spec.peers.is_empty() || spec.peers.iter().any(|prefix| prefix.length() == 0);
    }
    spec.peers6.iter().any(|prefix| prefix.contains(other))
}

/// Judges what follows the Ethernet header.
pub(super) fn judge(spec: &VnicSpec, direction: Direction, frame: &[u8]) -> Result<(), Reason> {
    ensure(frame.len() >= 54, Reason::Short)?;
    let packet = &frame[14..];
    let length = usize::from(be16(packet, 4));
    ensure(packet[0] >> 4 == 6, Reason::Header)?;
    ensure(40 + length <= packet.len(), Reason::Header)?;
    let (protocol, hops, message) = (packet[6], packet[7], &packet[40..40 + length]);
    ensure(protocol != 44, Reason::Fragment)?;
    let (source, destination) = (address(packet, 8), address(packet, 24));
    let group = packet[24] == 0xff;
    let other = if direction == Direction::Receive { source } else { destination };
    let peer = ensure(is_peer(spec, other), Reason::Peer);
    let (ordinary, unspecified) = match direction {
        Direction::Receive => {
            let to_us = own(spec).contains(&destination);
            ensure(to_us || groups(spec).contains(&destination), Reason::Address)?;
            (if to_us { peer } else { Err(Reason::Address) }, false)
        }
        Direction::Transmit => {
            let unspecified = source == Ipv6Addr::UNSPECIFIED;
            ensure(unspecified || own(spec).contains(&source), Reason::Address)?;
            ensure(frame[0] & 1 == 0 || group, Reason::DestinationMac)?;
            let ordinary = if unspecified {
                Err(Reason::Address)
            } else if group {
                Err(Reason::Peer)
            } else {
                peer
            };
            (ordinary, unspecified)
        }
    };
    if protocol == 58 {
        ensure(length >= 8, Reason::Header)?;
        return match (message[0], direction) {
            (135 | 136, Direction::Receive) => ensure(hops == 255, Reason::Icmp),
            (_, Direction::Receive) => {
                ordinary?;
                ensure(matches!(message[0], 1 | 2 | 3 | 4 | 128 | 129), Reason::Icmp)
            }
            (_, Direction::Transmit) => sent(spec, message, hops, ordinary, unspecified),
        };
    }
    ordinary?;
    ensure(protocol == 6 || protocol == 17, Reason::Protocol)?;
    ensure(length >= if protocol == 6 { 20 } else { 8 }, Reason::Header)?;
    let port = be16(message, if direction == Direction::Receive { 2 } else { 0 });
    ensure(port_granted(spec, protocol, port), Reason::Port)
}

fn sent(
    spec: &VnicSpec,
    message: &[u8],
    hops: u8,
    ordinary: Result<(), Reason>,
    unspecified: bool,
) -> Result<(), Reason> {
    let option_is = |kind: u8| {
        message.len() == 24
            || (message.len() == 32 && message[24..26] == [kind, 1] && message[26..] == spec.mac)
    };
    match message[0] {
        135 => {
            ensure(hops == 255, Reason::Icmp)?;
            ensure(!unspecified || message.len() == 24, Reason::Icmp)?;
            ensure(!unspecified || own(spec).contains(&address(message, 8)), Reason::Icmp)?;
            ensure(option_is(1), Reason::Icmp)
        }
        136 => {
            ensure(!unspecified, Reason::Address)?;
            ensure(hops == 255 && message.len() >= 24, Reason::Icmp)?;
            ensure(own(spec).contains(&address(message, 8)) && option_is(2), Reason::Icmp)
        }
        128 | 129 => ordinary,
        kind => {
            ordinary?;
            let about_us = || message.len() >= 48 && own(spec).contains(&address(message, 32));
            ensure(matches!(kind, 1 | 4) && about_us(), Reason::Icmp)
        }
    }
}
