//! Frames that a VNIC may meet: legal ones, named hostile ones, and random damage.

use std::net::Ipv4Addr;

use proptest::prelude::*;

use crate::xdp::frame::Direction;
use crate::xdp::{Ipv4Prefix, Reason, VnicSpec};

pub(super) mod ipv6;

pub(super) const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
pub(super) const HOST_MAC: [u8; 6] = [2, 0, 0, 0, 0, 0xfe];
pub(super) const OTHER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 9];
pub(super) const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
pub(super) const PEER: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
pub(super) const NON_PEER: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 9);
const CLIENT_PORT: u16 = 40_007;

pub(super) fn spec() -> VnicSpec {
    VnicSpec {
        mac: MAC,
        address: ADDRESS,
        address6: None,
        tcp_ports: vec![6379..=6379, 40_000..=40_100],
        udp_ports: vec![53..=53, 65_535..=65_535, 0..=0],
        peers: Vec::new(),
        peers6: Vec::new(),
        rate: None,
        burst: 0,
        uplink: None,
        host_mac: HOST_MAC,
        generation: 7,
    }
}

pub(super) fn prefixes() -> Vec<Ipv4Prefix> {
    vec![
        Ipv4Prefix::new(Ipv4Addr::new(10, 77, 0, 77), 24).unwrap(),
        Ipv4Prefix::new(Ipv4Addr::new(192, 0, 2, 7), 32).unwrap(),
    ]
}

pub(super) fn ethernet(destination: [u8; 6], source: [u8; 6], kind: u16, payload: &[u8]) -> Vec<u8> {
    let mut frame = Vec::new();
    frame.extend_from_slice(&destination);
    frame.extend_from_slice(&source);
    frame.extend_from_slice(&kind.to_be_bytes());
    frame.extend_from_slice(payload);
    frame
}

pub(super) fn arp(operation: u16, sender: ([u8; 6], Ipv4Addr), target: ([u8; 6], Ipv4Addr)) -> Vec<u8> {
    let mut packet = vec![0, 1, 8, 0, 6, 4];
    packet.extend_from_slice(&operation.to_be_bytes());
    packet.extend_from_slice(&sender.0);
    packet.extend_from_slice(&sender.1.octets());
    packet.extend_from_slice(&target.0);
    packet.extend_from_slice(&target.1.octets());
    packet
}

pub(super) fn ipv4(
    protocol: u8,
    source: Ipv4Addr,
    destination: Ipv4Addr,
    options: usize,
    payload: &[u8],
) -> Vec<u8> {
    let header = 20 + options;
    let mut packet = vec![0; header];
    packet[0] = 0x40 | (header / 4) as u8;
    packet[2..4].copy_from_slice(&((header + payload.len()) as u16).to_be_bytes());
    packet[6] = 0x40; // Don't fragment.
    packet[8] = 64;
    packet[9] = protocol;
    packet[12..16].copy_from_slice(&source.octets());
    packet[16..20].copy_from_slice(&destination.octets());
    packet[20..].fill(1); // No operation.
    packet.extend_from_slice(payload);
    packet
}

pub(super) fn ports(source: u16, destination: u16, length: usize) -> Vec<u8> {
    let mut segment = vec![0; length];
    segment[..2].copy_from_slice(&source.to_be_bytes());
    segment[2..4].copy_from_slice(&destination.to_be_bytes());
    segment
}

/// One direction's frame of `protocol`, the VNIC's port and address on the right side.
pub(super) fn talk(direction: Direction, protocol: u8, own_port: u16, options: usize) -> Vec<u8> {
    let length = if protocol == 6 { 20 } else { 8 };
    match direction {
        Direction::Receive => {
            let payload = ports(5, own_port, length);
            let packet = ipv4(protocol, PEER, ADDRESS, options, &payload);
            ethernet(MAC, HOST_MAC, 0x0800, &packet)
        }
        Direction::Transmit => {
            let payload = ports(own_port, 5, length);
            let packet = ipv4(protocol, ADDRESS, PEER, options, &payload);
            ethernet(HOST_MAC, MAC, 0x0800, &packet)
        }
    }
}

fn icmp(direction: Direction, kind: u8, about: Ipv4Addr) -> Vec<u8> {
    let mut message = vec![0; 36];
    message[0] = kind;
    message[8] = 0x45;
    message[24..28].copy_from_slice(&about.octets());
    let (destination, source, from, to) = match direction {
        Direction::Receive => (MAC, HOST_MAC, PEER, ADDRESS),
        Direction::Transmit => (HOST_MAC, MAC, ADDRESS, PEER),
    };
    ethernet(destination, source, 0x0800, &ipv4(1, from, to, 0, &message))
}

pub(super) fn legal(direction: Direction) -> Vec<Vec<u8>> {
    let mut frames = vec![
        talk(direction, 6, 6379, 0),
        talk(direction, 6, CLIENT_PORT, 0),
        talk(direction, 17, 53, 0),
        talk(direction, 17, 0, 0),
        talk(direction, 17, 65_535, 0),
        icmp(direction, 0, PEER),
        icmp(direction, 8, PEER),
        icmp(direction, 3, ADDRESS),
    ];
    // Padding behind the packet is legal: Ethernet has a minimum length.
    let mut padded = talk(direction, 17, 53, 0);
    padded.resize(60, 0);
    frames.push(padded);
    match direction {
        Direction::Receive => {
            frames.push(talk(direction, 6, 6379, 40));
            frames.push(icmp(direction, 11, PEER));
            frames.push(icmp(direction, 12, PEER));
            let request = arp(1, (HOST_MAC, PEER), ([0; 6], ADDRESS));
            frames.push(ethernet([0xff; 6], HOST_MAC, 0x0806, &request));
            let reply = arp(2, (HOST_MAC, PEER), (MAC, ADDRESS));
            frames.push(ethernet(MAC, HOST_MAC, 0x0806, &reply));
            let announcement = arp(1, (HOST_MAC, PEER), ([0; 6], PEER));
            frames.push(ethernet([0xff; 6], HOST_MAC, 0x0806, &announcement));
        }
        Direction::Transmit => {
            let request = arp(1, (MAC, ADDRESS), ([0; 6], PEER));
            frames.push(ethernet([0xff; 6], MAC, 0x0806, &request));
            let reply = arp(2, (MAC, ADDRESS), (HOST_MAC, PEER));
            frames.push(ethernet(HOST_MAC, MAC, 0x0806, &reply));
        }
    }
    frames
}

fn changed(frame: &[u8], at: usize, bytes: &[u8]) -> Vec<u8> {
    let mut frame = frame.to_vec();
    frame[at..at + bytes.len()].copy_from_slice(bytes);
    frame
}

/// Named attacks and the reason for which each is dropped (no peer list, no uplink).
pub(super) fn hostile(direction: Direction) -> Vec<(&'static str, Vec<u8>, Reason)> {
    let tcp = talk(direction, 6, 6379, 0);
    let udp = talk(direction, 17, 53, 0);
    let own = if direction == Direction::Receive { 30 } else { 26 };
    let mut frames = vec![
        ("foreign TCP port", talk(direction, 6, 6380, 0), Reason::Port),
        ("a UDP port over TCP", talk(direction, 6, 53, 0), Reason::Port),
        ("a TCP port over UDP", talk(direction, 17, 6379, 0), Reason::Port),
        ("foreign address", changed(&tcp, own, &NON_PEER.octets()), Reason::Address),
        ("first fragment", changed(&udp, 20, &[0x20, 0]), Reason::Fragment),
        ("last fragment", changed(&udp, 20, &[0, 1]), Reason::Fragment),
        ("far fragment", changed(&udp, 20, &[0x1f, 0xff]), Reason::Fragment),
        ("IP version 6 in an IPv4 frame", changed(&tcp, 14, &[0x65]), Reason::Header),
        ("header of 16 bytes", changed(&tcp, 14, &[0x44]), Reason::Header),
        ("header of none", changed(&tcp, 14, &[0x40]), Reason::Header),
        ("header longer than the packet", changed(&udp, 14, &[0x4f]), Reason::Header),
        ("total length below the header", changed(&tcp, 16, &[0, 19]), Reason::Header),
        ("total length beyond the frame", changed(&tcp, 16, &[0, 41]), Reason::Header),
        ("greatest total length", changed(&tcp, 16, &[0xff, 0xff]), Reason::Header),
        ("TCP header cut off", changed(&tcp, 16, &[0, 39]), Reason::Header),
        ("SCTP", changed(&tcp, 23, &[132]), Reason::Protocol),
        ("GRE", changed(&tcp, 23, &[47]), Reason::Protocol),
        ("IPv4 in IPv4", changed(&tcp, 23, &[4]), Reason::Protocol),
        ("VLAN", changed(&tcp, 12, &[0x81, 0]), Reason::Vlan),
        ("service VLAN", changed(&tcp, 12, &[0x88, 0xa8]), Reason::Vlan),
        ("IPv6", changed(&tcp, 12, &[0x86, 0xdd]), Reason::Ipv6),
        ("802.3 length", changed(&tcp, 12, &[0, 46]), Reason::EtherType),
        ("ICMP redirect", icmp(direction, 5, ADDRESS), Reason::Icmp),
        ("ICMP of an unknown type", icmp(direction, 255, ADDRESS), Reason::Icmp),
    ];
    match direction {
        Direction::Receive => {
            let foreign = changed(&tcp, 0, &OTHER_MAC);
            frames.push(("another's MAC", foreign, Reason::DestinationMac));
            let broadcast = changed(&tcp, 0, &[0xff; 6]);
            frames.push(("broadcast IPv4", broadcast, Reason::DestinationMac));
            let about = arp(1, (HOST_MAC, PEER), ([0; 6], NON_PEER));
            let about = ethernet([0xff; 6], HOST_MAC, 0x0806, &about);
            frames.push(("ARP about another", about, Reason::Arp));
        }
        Direction::Transmit => {
            let forged = changed(&tcp, 6, &OTHER_MAC);
            frames.push(("forged MAC", forged, Reason::SourceMac));
            let around = changed(&tcp, 0, &OTHER_MAC);
            frames.push(("past the host", around, Reason::DestinationMac));
            let group = changed(&tcp, 30, &[224, 0, 0, 1]);
            frames.push(("to a group", group, Reason::Peer));
            let all = changed(&tcp, 30, &[255; 4]);
            frames.push(("to the broadcast address", all, Reason::Peer));
            let routed = talk(direction, 6, 6379, 4);
            frames.push(("with options", routed, Reason::Options));
            let cut = icmp(direction, 3, NON_PEER);
            frames.push(("unreachable about another", cut, Reason::Icmp));
            for (what, sender) in [
                ("ARP with another's address", (MAC, PEER)),
                ("ARP with another's MAC", (OTHER_MAC, ADDRESS)),
            ] {
                let packet = arp(2, sender, (HOST_MAC, PEER));
                let frame = ethernet(HOST_MAC, MAC, 0x0806, &packet);
                frames.push((what, frame, Reason::Arp));
            }
        }
    }
    frames
}

/// A legal frame with a few bytes changed, cut or lengthened.
pub(super) fn damaged(direction: Direction) -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![
        any::<u8>(),
        prop::sample::select(vec![
            0, 1, 2, 3, 4, 5, 6, 8, 11, 17, 20, 28, 40, 0x20, 0x3f, 0x40, 0x44, 0x45, 0x46, 0x4f, 0x80, 0x81,
            0x86, 0xdd, 224, 255, 0x33, 58, 128, 135, 136,
        ]),
    ];
    let change = (0_usize..110, byte);
    (
        prop::sample::select([legal(direction), ipv6::legal(direction)].concat()),
        prop::collection::vec(change, 0..4),
        prop::option::weighted(0.3, 0_usize..128),
    )
        .prop_map(|(mut frame, changes, length)| {
            for (at, byte) in changes {
                if let Some(target) = frame.get_mut(at) {
                    *target = byte;
                }
            }
            if let Some(length) = length {
                frame.resize(length, 0);
            }
            frame
        })
}

/// The test's rules, with and without a peer list, an uplink, and an IPv6 address.
pub(super) fn rules(uplink: u32) -> [VnicSpec; 9] {
    let [a, b, c, d] =
        [(false, None), (true, None), (false, Some(uplink)), (true, Some(uplink))].map(|(listed, uplink)| {
            VnicSpec { peers: if listed { prefixes() } else { Vec::new() }, uplink, ..spec() }
        });
    let [e, f, g, h, i] = ipv6::rules6(uplink);
    [a, b, c, d, e, f, g, h, i]
}
