//! IPv6 of the attacker: an honest datagram, and forgeries of addresses, ports, headers and
//! neighbours.

use std::net::Ipv6Addr;

use super::{FORGED, HONEST, Link};

/// The attacker's own address, its gateway (the host), and the address of its neighbour, the store.
const ADDRESS: Ipv6Addr = Ipv6Addr::new(0xfd84, 1, 0, 0, 0, 0, 0, 2);
const GATEWAY: Ipv6Addr = Ipv6Addr::new(0xfd84, 1, 0, 0, 0, 0, 0, 1);
const NEIGHBOUR: Ipv6Addr = Ipv6Addr::new(0xfd84, 0, 0, 0, 0, 0, 0, 2);
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

const UDP: u8 = 17;
const ICMP: u8 = 58;
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;

/// Frames that the attacker may send.
pub(crate) fn honest(link: Link) -> Vec<u8> {
    packet(link, ADDRESS, GATEWAY, UDP, &datagram(7000, HONEST))
}

/// Frames that it may not send.
pub(super) fn forged(link: Link) -> Vec<Vec<u8>> {
    let plain = |source, port| packet(link, source, GATEWAY, UDP, &datagram(port, FORGED));
    let changed = |at: usize, bytes: &[u8]| {
        let mut frame = plain(ADDRESS, 7000);
        frame[at..at + bytes.len()].copy_from_slice(bytes);
        frame
    };
    let message = |from, to, kind, target, mac| {
        let mut frame = packet(link, from, to, ICMP, &neighbour(kind, target, mac));
        // Behind the message, as padding.
        frame.extend_from_slice(FORGED);
        frame
    };
    let unknown = [link.own[0], link.own[1], 9, 9, 9, 9];
    // The link-local address of another host.
    let [a, b, c, d, e, f] = unknown.map(u16::from);
    let foreign = Ipv6Addr::new(0xfe80, 0, 0, 0, (a ^ 2) << 8 | b, c << 8 | 0xff, 0xfe00 | d, e << 8 | f);
    let mut frames = vec![
        // Spoofed MACs, and addresses: the neighbour's, the host's, loopback, unspecified, a
        // group's, another link-local one.
        changed(6, &unknown),
        changed(6, &link.host),
        plain(NEIGHBOUR, 7000),
        plain(GATEWAY, 7000),
        plain(Ipv6Addr::LOCALHOST, 7000),
        plain(Ipv6Addr::UNSPECIFIED, 7000),
        plain(ALL_NODES, 7000),
        plain(foreign, 7000),
        // IPv4-mapped addresses.
        plain(Ipv6Addr::new(0, 0, 0, 0, 0, 0xffff, 0x0a54, 0x0102), 7000),
        // Foreign ports, and the granted one of another protocol.
        plain(ADDRESS, 53),
        plain(ADDRESS, 7010),
        changed(20, &[6]),
        // Extension headers: hop by hop, routing, destination, a fragment; protocols that no VNIC
        // speaks.
        changed(20, &[0]),
        changed(20, &[43]),
        changed(20, &[60]),
        changed(20, &[44]),
        changed(20, &[132]),
        changed(20, &[41]),
        // Broken headers.
        changed(14, &[0x45]),
        changed(18, &[0xff, 0xff]),
        changed(18, &[0, 7]),
        // To groups.
        packet(link, ADDRESS, ALL_NODES, UDP, &datagram(7000, FORGED)),
        // A unicast frame to a group's address, which all members would accept.
        changed(0, &[0x33, 0x33, 0, 0, 0, 1]),
    ];
    // ICMPv6: a router's advertisement, a redirect, a report of groups, too big, an error about
    // another host's connection.
    for kind in [134, 137, 143, 2, 1] {
        let mut body = neighbour(kind, NEIGHBOUR, link.own);
        body.extend_from_slice(&[0; 40]);
        body.extend_from_slice(FORGED);
        frames.push(packet(link, ADDRESS, GATEWAY, ICMP, &body));
    }
    for to in [GATEWAY, ALL_NODES] {
        // It claims another host's address, or another MAC for its own address, which would disturb
        // that host.
        for target in [NEIGHBOUR, GATEWAY, foreign] {
            frames.push(message(ADDRESS, to, ADVERTISEMENT, target, link.own));
        }
        frames.push(message(ADDRESS, to, ADVERTISEMENT, ADDRESS, unknown));
        // In the name of another host.
        frames.push(message(NEIGHBOUR, to, ADVERTISEMENT, NEIGHBOUR, link.own));
        frames.push(message(Ipv6Addr::UNSPECIFIED, to, ADVERTISEMENT, ADDRESS, link.own));
    }
    // Solicitations that carry another host's address or MAC, and messages that came through a
    // router.
    frames.push(message(GATEWAY, NEIGHBOUR, SOLICITATION, NEIGHBOUR, link.own));
    frames.push(message(ADDRESS, GATEWAY, SOLICITATION, GATEWAY, unknown));
    let mut far = message(ADDRESS, GATEWAY, SOLICITATION, GATEWAY, link.own);
    far[21] = 254;
    frames.push(far);
    frames
}

fn datagram(port: u16, mark: &[u8]) -> Vec<u8> {
    let length = u16::try_from(8 + mark.len()).unwrap();
    // (Its checksum is wrong, so that no socket gets it; filters do not check it.)
    [&port.to_be_bytes()[..], &9999_u16.to_be_bytes(), &length.to_be_bytes(), &[1, 1], mark].concat()
}

/// A message of neighbour discovery with the one option that VNICs may send.
fn neighbour(kind: u8, target: Ipv6Addr, mac: [u8; 6]) -> Vec<u8> {
    let option = if kind == SOLICITATION { 1 } else { 2 };
    [&[kind, 0, 1, 1, 0x20, 0, 0, 0][..], &target.octets(), &[option, 1], &mac].concat()
}

fn packet(link: Link, from: Ipv6Addr, to: Ipv6Addr, protocol: u8, payload: &[u8]) -> Vec<u8> {
    let [.., a, b, c, d] = to.octets();
    let destination = if to.is_multicast() { [0x33, 0x33, a, b, c, d] } else { link.host };
    let length = u16::try_from(payload.len()).unwrap().to_be_bytes();
    let mut frame = [&destination[..], &link.own, &[0x86, 0xdd, 0x60, 0, 0, 0], &length].concat();
    frame.extend_from_slice(&[protocol, 255]);
    frame.extend_from_slice(&from.octets());
    frame.extend_from_slice(&to.octets());
    frame.extend_from_slice(payload);
    frame
}
