//! Frames of IPv6.

use std::net::Ipv6Addr;

use super::{HOST_MAC, MAC, OTHER_MAC, changed, ethernet, ports, prefixes, spec};
use crate::xdp::frame::Direction;
use crate::xdp::{Ipv6Prefix, Reason, VnicSpec};

pub(crate) const ADDRESS: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 7, 0, 0, 0, 2);
/// What MAC 02:00:00:00:00:01 makes (RFC 4291 appendix A).
const LINK_LOCAL: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0xff, 0xfe00, 1);
const PEER: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 7, 0, 0, 0, 1);
pub(crate) const NON_PEER: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 9);
const PEER_LOCAL: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0xff, 0xfe00, 0xfe);
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
const ALL_ROUTERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 2);
/// Where [`ADDRESS`] and [`PEER`] are solicited.
const ASKED: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00, 2);
const ASKED_PEER: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00, 1);

/// The rules with an IPv6 address.
pub(crate) fn spec6() -> VnicSpec {
    VnicSpec { address6: Some(ADDRESS), ..spec() }
}

/// A list with [`PEER`] and without [`NON_PEER`].
pub(crate) fn prefixes6() -> Vec<Ipv6Prefix> {
    vec![Ipv6Prefix::new(PEER, 64).unwrap(), Ipv6Prefix::new("2001:db8::7".parse().unwrap(), 128).unwrap()]
}

/// With and without an uplink and peer lists.
pub(crate) fn rules6(uplink: u32) -> [VnicSpec; 5] {
    let base = spec6();
    [
        VnicSpec { uplink: Some(uplink), ..base.clone() },
        VnicSpec { peers: prefixes(), ..base.clone() },
        VnicSpec { peers6: prefixes6(), ..base.clone() },
        VnicSpec { peers: prefixes(), peers6: prefixes6(), uplink: Some(uplink), ..base.clone() },
        base,
    ]
}

fn packet(protocol: u8, hops: u8, from: Ipv6Addr, to: Ipv6Addr, payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x60, 0, 0, 0];
    packet.extend_from_slice(&(payload.len() as u16).to_be_bytes());
    packet.extend_from_slice(&[protocol, hops]);
    packet.extend_from_slice(&from.octets());
    packet.extend_from_slice(&to.octets());
    packet.extend_from_slice(payload);
    packet
}

/// A frame between the VNIC and the other side; to a group in the MAC of the group.
fn frame(
    direction: Direction,
    protocol: u8,
    hops: u8,
    own: Ipv6Addr,
    other: Ipv6Addr,
    payload: &[u8],
) -> Vec<u8> {
    let (from, to, source, destination) = match direction {
        Direction::Receive => (other, own, HOST_MAC, MAC),
        Direction::Transmit => (own, other, MAC, HOST_MAC),
    };
    let [.., a, b, c, d] = to.octets();
    let destination = if to.is_multicast() { [0x33, 0x33, a, b, c, d] } else { destination };
    ethernet(destination, source, 0x86dd, &packet(protocol, hops, from, to, payload))
}

pub(crate) fn talk(direction: Direction, protocol: u8, own_port: u16) -> Vec<u8> {
    let length = if protocol == 6 { 20 } else { 8 };
    let payload = match direction {
        Direction::Receive => ports(5, own_port, length),
        Direction::Transmit => ports(own_port, 5, length),
    };
    frame(direction, protocol, 64, ADDRESS, PEER, &payload)
}

/// A message about a packet that was sent to `about`.
fn error(kind: u8, about: Ipv6Addr) -> Vec<u8> {
    let mut message = vec![0; 60];
    message[0] = kind;
    message[8] = 0x60;
    message[32..48].copy_from_slice(&about.octets());
    message
}

/// A message of neighbour discovery; its option is left out without a MAC.
fn discovery(kind: u8, target: Ipv6Addr, mac: Option<[u8; 6]>) -> Vec<u8> {
    let mut message = vec![kind, 0, 0, 0, 0, 0, 0, 0];
    message.extend_from_slice(&target.octets());
    if let Some(mac) = mac {
        message.extend_from_slice(&[kind - 134, 1]);
        message.extend_from_slice(&mac);
    }
    message
}

pub(crate) fn legal(direction: Direction) -> Vec<Vec<u8>> {
    let message = |own, other, bytes: &[u8]| frame(direction, 58, 255, own, other, bytes);
    let mut frames = vec![
        talk(direction, 6, 6379),
        talk(direction, 6, 40_007),
        talk(direction, 17, 53),
        talk(direction, 17, 65_535),
        message(ADDRESS, PEER, &error(128, PEER)),
        message(LINK_LOCAL, PEER_LOCAL, &error(129, PEER)),
        message(ADDRESS, PEER, &error(1, ADDRESS)),
        message(ADDRESS, PEER, &error(4, LINK_LOCAL)),
    ];
    match direction {
        Direction::Receive => frames.extend([
            message(ADDRESS, PEER, &error(2, ADDRESS)),
            message(ADDRESS, PEER, &error(3, ADDRESS)),
            message(ASKED, PEER, &discovery(135, ADDRESS, Some(HOST_MAC))),
            message(ASKED, Ipv6Addr::UNSPECIFIED, &discovery(135, ADDRESS, None)),
            message(ASKED_PEER, PEER_LOCAL, &discovery(135, LINK_LOCAL, Some(HOST_MAC))),
            message(ADDRESS, PEER, &discovery(136, PEER, Some(HOST_MAC))),
            message(ALL_NODES, PEER, &discovery(136, PEER, Some(HOST_MAC))),
        ]),
        Direction::Transmit => frames.extend([
            message(ADDRESS, ASKED_PEER, &discovery(135, PEER, Some(MAC))),
            message(LINK_LOCAL, PEER_LOCAL, &discovery(135, PEER_LOCAL, None)),
            message(Ipv6Addr::UNSPECIFIED, ASKED, &discovery(135, ADDRESS, None)),
            message(ADDRESS, PEER, &discovery(136, ADDRESS, Some(MAC))),
            message(LINK_LOCAL, ALL_NODES, &discovery(136, LINK_LOCAL, None)),
        ]),
    }
    // Padding behind the packet is legal.
    let mut padded = talk(direction, 17, 53);
    padded.resize(80, 0);
    frames.push(padded);
    frames
}

/// Named attacks, and the reason for which each is dropped under [`spec6`].
pub(crate) fn hostile(direction: Direction) -> Vec<(&'static str, Vec<u8>, Reason)> {
    let tcp = talk(direction, 6, 6379);
    let message = |own, other, bytes: &[u8]| frame(direction, 58, 255, own, other, bytes);
    let own = if direction == Direction::Receive { 38 } else { 22 };
    let mut frames = vec![
        ("foreign TCP port", talk(direction, 6, 6380), Reason::Port),
        ("a TCP port over UDP", talk(direction, 17, 6379), Reason::Port),
        ("foreign address", changed(&tcp, own, &PEER_LOCAL.octets()), Reason::Address),
        ("an IPv4 header", changed(&tcp, 14, &[0x45]), Reason::Header),
        ("longer than the frame", changed(&tcp, 18, &[0, 21]), Reason::Header),
        ("TCP header cut off", changed(&tcp, 18, &[0, 19]), Reason::Header),
        ("a fragment", changed(&tcp, 20, &[44]), Reason::Fragment),
        ("hop-by-hop options", changed(&tcp, 20, &[0]), Reason::Protocol),
        ("a routing header", changed(&tcp, 20, &[43]), Reason::Protocol),
        ("a destination option", changed(&tcp, 20, &[60]), Reason::Protocol),
        ("ICMP of IPv4", changed(&tcp, 20, &[1]), Reason::Protocol),
        ("a redirect", message(ADDRESS, PEER, &error(137, ADDRESS)), Reason::Icmp),
        ("a router's advertisement", message(ADDRESS, PEER, &error(134, ADDRESS)), Reason::Icmp),
        (
            "discovery from far away",
            frame(direction, 58, 254, ADDRESS, PEER, &discovery(135, PEER, None)),
            Reason::Icmp,
        ),
    ];
    match direction {
        Direction::Receive => frames.extend([
            ("another's MAC", changed(&tcp, 0, &OTHER_MAC), Reason::DestinationMac),
            ("a broadcast", changed(&tcp, 0, &[0xff; 6]), Reason::DestinationMac),
            ("an echo to all", message(ALL_NODES, PEER, &error(128, PEER)), Reason::Address),
            ("a foreign group", message(ALL_ROUTERS, PEER, &discovery(135, PEER, None)), Reason::Address),
            ("UDP to all", frame(direction, 17, 1, ALL_NODES, PEER, &ports(1, 53, 8)), Reason::Address),
        ]),
        Direction::Transmit => frames.extend([
            ("forged MAC", changed(&tcp, 6, &OTHER_MAC), Reason::SourceMac),
            ("past the host", changed(&tcp, 0, &OTHER_MAC), Reason::DestinationMac),
            ("to one, in a group's frame", changed(&tcp, 0, &[0x33, 0x33]), Reason::DestinationMac),
            ("UDP to all", frame(direction, 17, 1, ADDRESS, ALL_NODES, &ports(53, 1, 8)), Reason::Peer),
            ("an echo to all", message(ADDRESS, ALL_NODES, &error(128, PEER)), Reason::Peer),
            ("from the unspecified address", changed(&tcp, 22, &[0; 16]), Reason::Address),
            ("too big", message(ADDRESS, PEER, &error(2, ADDRESS)), Reason::Icmp),
            ("an error about another", message(ADDRESS, PEER, &error(1, PEER)), Reason::Icmp),
            ("another's address", message(ADDRESS, PEER, &discovery(136, PEER, Some(MAC))), Reason::Icmp),
            (
                "another's MAC advertised",
                message(ADDRESS, PEER, &discovery(136, ADDRESS, Some(OTHER_MAC))),
                Reason::Icmp,
            ),
            (
                "another's MAC asking",
                message(ADDRESS, PEER, &discovery(135, PEER, Some(OTHER_MAC))),
                Reason::Icmp,
            ),
            (
                "a trial with a MAC",
                message(Ipv6Addr::UNSPECIFIED, ASKED, &discovery(135, ADDRESS, Some(MAC))),
                Reason::Icmp,
            ),
            (
                "a trial of another's address",
                message(Ipv6Addr::UNSPECIFIED, ASKED_PEER, &discovery(135, PEER, None)),
                Reason::Icmp,
            ),
            (
                "an advertisement from the unspecified address",
                message(Ipv6Addr::UNSPECIFIED, ALL_NODES, &discovery(136, ADDRESS, Some(MAC))),
                Reason::Address,
            ),
        ]),
    }
    frames
}
