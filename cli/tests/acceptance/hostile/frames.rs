//! The frames that the attacker sends: honest ones, and each forgery that a filter must detect.

use std::net::Ipv4Addr;

mod ipv6;

/// The attacker's own address, its gateway (the host), and the address of its neighbour, the store.
pub(super) const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 84, 1, 2);
const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 84, 1, 1);
const NEIGHBOUR: Ipv4Addr = Ipv4Addr::new(10, 84, 0, 2);

/// Bytes of Ethernet, IPv4 and UDP headers.
pub(super) const HEADERS: usize = 14 + 20 + 8;

const FORGED: &[u8] = b"SIETCH-FORGED-FRAME";
const HONEST: &[u8] = b"SIETCH-HONEST-FRAME";

/// Whether the bytes carry the mark of a forgery.
pub(super) fn is_forged(bytes: &[u8]) -> bool {
    has(bytes, FORGED)
}

/// Whether the bytes carry the mark of an honest frame.
pub(super) fn is_honest(bytes: &[u8]) -> bool {
    has(bytes, HONEST)
}

fn has(bytes: &[u8], mark: &[u8]) -> bool {
    bytes.windows(mark.len()).any(|window| window == mark)
}

/// Both ends of the attacker's link.
#[derive(Clone, Copy)]
pub(super) struct Link {
    pub own: [u8; 6],
    pub host: [u8; 6],
}

/// A datagram with `fill` bytes after its mark. Every field is right unless a forgery changes it.
fn datagram(link: Link, source: Ipv4Addr, ports: (u16, u16), mark: &[u8], fill: usize) -> Vec<u8> {
    let payload = mark.len() + fill;
    let mut frame = vec![0; HEADERS];
    frame[0..6].copy_from_slice(&link.host);
    frame[6..12].copy_from_slice(&link.own);
    frame[12..14].copy_from_slice(&[8, 0]);
    frame[14] = 0x45;
    frame[16..18].copy_from_slice(&length(28 + payload));
    frame[22..24].copy_from_slice(&[64, 17]);
    frame[26..30].copy_from_slice(&source.octets());
    frame[30..34].copy_from_slice(&GATEWAY.octets());
    frame[34..36].copy_from_slice(&ports.0.to_be_bytes());
    frame[36..38].copy_from_slice(&ports.1.to_be_bytes());
    frame[38..40].copy_from_slice(&length(8 + payload));
    frame.extend_from_slice(mark);
    frame.resize(HEADERS + payload, 0);
    sum_header(&mut frame);
    frame
}

fn length(bytes: usize) -> [u8; 2] {
    u16::try_from(bytes).unwrap().to_be_bytes()
}

/// Sets the checksum of the IPv4 header.
fn sum_header(frame: &mut [u8]) {
    frame[24..26].fill(0);
    let header = &frame[14..14 + usize::from(frame[14] & 15) * 4];
    let sum: u32 = header.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    let once = (sum & 0xffff) + (sum >> 16);
    let folded = u16::try_from((once & 0xffff) + (once >> 16)).unwrap();
    frame[24..26].copy_from_slice(&(!folded).to_be_bytes());
}

pub(super) use ipv6::honest as honest6;

/// Frames that the attacker may send.
pub(super) fn honest(link: Link, fill: usize) -> Vec<u8> {
    datagram(link, ADDRESS, (7000, 9999), HONEST, fill)
}

/// Frames that it may not send.
pub(super) fn forged(link: Link) -> Vec<Vec<u8>> {
    let plain = |source, port| datagram(link, source, (port, 9999), FORGED, 64);
    let changed = |changes: &[(usize, u8)]| {
        let mut frame = plain(ADDRESS, 7000);
        changes.iter().for_each(|(at, byte)| frame[*at] = *byte);
        sum_header(&mut frame);
        frame
    };
    let tagged = |tag: [u8; 4]| {
        let mut frame = plain(ADDRESS, 7000);
        frame.splice(12..12, tag);
        frame
    };
    let mut frames = vec![
        // Spoofed MACs: a neighbour's, broadcast, zero, the host's own.
        changed(&[(6, link.own[0]), (11, link.own[5] ^ 1)]),
        changed(&[(6, 0xff), (7, 0xff), (8, 0xff), (9, 0xff), (10, 0xff), (11, 0xff)]),
        changed(&[(6, 0), (7, 0), (8, 0), (9, 0), (10, 0), (11, 0)]),
        changed(&[(6, link.host[0]), (7, link.host[1]), (10, link.host[4]), (11, link.host[5])]),
        // Spoofed addresses: the neighbour's, the host's, loopback, unspecified, broadcast.
        plain(NEIGHBOUR, 7000),
        plain(GATEWAY, 7000),
        plain(Ipv4Addr::LOCALHOST, 7000),
        plain(Ipv4Addr::UNSPECIFIED, 7000),
        plain(Ipv4Addr::BROADCAST, 7000),
        // Foreign ports, and the granted one of another protocol.
        plain(ADDRESS, 53),
        plain(ADDRESS, 6999),
        plain(ADDRESS, 7010),
        changed(&[(23, 6), (46, 0x50), (47, 2)]),
        // Protocols that no VNIC speaks: SCTP, IPv4 in IPv4, raw.
        changed(&[(23, 132)]),
        changed(&[(23, 4)]),
        changed(&[(23, 255)]),
        // Fragments: the first, one in the middle, the last, a tiny one.
        changed(&[(20, 0x20)]),
        changed(&[(20, 0x20), (21, 3)]),
        changed(&[(21, 3)]),
        changed(&[(20, 0x20), (17, 28)]),
        // Broken headers: version, header length, total length, options.
        changed(&[(14, 0x65)]),
        changed(&[(14, 0x44)]),
        changed(&[(14, 0x46)]),
        changed(&[(16, 0xff)]),
        changed(&[(16, 0), (17, 19)]),
        // Multicast and broadcast at the IP level.
        changed(&[(30, 224), (33, 1)]),
        changed(&[(30, 255), (31, 255), (32, 255), (33, 255)]),
        // VLANs, once and twice.
        tagged([0x81, 0, 0, 7]),
        tagged([0x88, 0xa8, 0, 7]),
        // Other ethertypes: IPv6, LLDP, a length.
        changed(&[(12, 0x86), (13, 0xdd)]),
        changed(&[(12, 0x88), (13, 0xcc)]),
        changed(&[(12, 0), (13, 60)]),
        // ICMP: a redirect, and an error about another host's connection.
        changed(&[(23, 1), (34, 5), (35, 1)]),
        changed(&[(23, 1), (34, 3), (35, 1)]),
    ];
    frames.extend(ipv6::forged(link));
    let unknown = [link.own[0], link.own[1], 9, 9, 9, 9];
    for operation in [1, 2] {
        for (mac, address) in [(link.own, GATEWAY), (link.own, NEIGHBOUR), (unknown, ADDRESS)] {
            frames.push(arp(link, operation, mac, address));
        }
    }
    frames
}

/// An ARP packet that claims that `address` is at `mac`, with the mark as padding.
fn arp(link: Link, operation: u8, mac: [u8; 6], address: Ipv4Addr) -> Vec<u8> {
    let mut frame = vec![0xff; 6];
    frame.extend_from_slice(&link.own);
    frame.extend_from_slice(&[8, 6, 0, 1, 8, 0, 6, 4, 0, operation]);
    frame.extend_from_slice(&mac);
    frame.extend_from_slice(&address.octets());
    frame.extend_from_slice(&link.host);
    frame.extend_from_slice(&GATEWAY.octets());
    frame.extend_from_slice(FORGED);
    frame
}
