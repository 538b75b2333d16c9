//! The rules of `docs/spec/xdp.md` in plain Rust, written from the page and not from the programs.

use std::net::Ipv4Addr;

use crate::xdp::frame::{Direction, PASS, REDIRECT};
use crate::xdp::{Reason, VnicSpec};

mod ipv6;

type Verdict = Result<i32, Reason>;

fn ensure(holds: bool, reason: Reason) -> Result<(), Reason> {
    if holds { Ok(()) } else { Err(reason) }
}

fn mac(frame: &[u8], at: usize) -> [u8; 6] {
    frame[at..at + 6].try_into().unwrap()
}

fn address(bytes: &[u8], at: usize) -> Ipv4Addr {
    Ipv4Addr::new(bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3])
}

fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn ether_type(spec: &VnicSpec, frame: &[u8]) -> Result<u16, Reason> {
    ensure(frame.len() >= 14, Reason::Short)?;
    match be16(frame, 12) {
        known @ (0x0800 | 0x0806) => Ok(known),
        0x8100 | 0x88a8 => Err(Reason::Vlan),
        0x86dd if spec.address6.is_none() => Err(Reason::Ipv6),
        0x86dd => Ok(0x86dd),
        _ => Err(Reason::EtherType),
    }
}

fn arp_is_sound(frame: &[u8]) -> Result<(), Reason> {
    ensure(frame.len() >= 42, Reason::Short)?;
    ensure(frame[14..20] == [0, 1, 8, 0, 6, 4], Reason::Arp)?;
    ensure(matches!(be16(frame, 20), 1 | 2), Reason::Arp)
}

/// The packet without padding, and its header's length.
fn ipv4(frame: &[u8], options_allowed: bool) -> Result<(&[u8], usize), Reason> {
    ensure(frame.len() >= 34, Reason::Short)?;
    let packet = &frame[14..];
    let header = usize::from(packet[0] & 15) * 4;
    let total = usize::from(be16(packet, 2));
    ensure(packet[0] >> 4 == 4 && header >= 20, Reason::Header)?;
    ensure(total >= header && total <= packet.len(), Reason::Header)?;
    ensure(options_allowed || header == 20, Reason::Options)?;
    ensure(be16(packet, 6) & 0x3fff == 0, Reason::Fragment)?;
    Ok((&packet[..total], header))
}

fn is_peer(spec: &VnicSpec, other: Ipv4Addr) -> bool {
    let no_list = spec.peers.is_empty() && spec.peers6.is_empty();
    no_list || spec.peers.iter().any(|prefix| prefix.contains(other))
}

fn port_granted(spec: &VnicSpec, protocol: u8, port: u16) -> bool {
    let ranges = if protocol == 6 { &spec.tcp_ports } else { &spec.udp_ports };
    ranges.iter().any(|range| range.contains(&port))
}

pub(super) fn receive(spec: &VnicSpec, frame: &[u8]) -> Verdict {
    let kind = ether_type(spec, frame)?;
    let to_us = mac(frame, 0) == spec.mac;
    let to_all = mac(frame, 0) == [0xff; 6] && kind == 0x0806;
    let to_group = frame[..2] == [0x33, 0x33] && kind == 0x86dd;
    ensure(to_us || to_all || to_group, Reason::DestinationMac)?;
    if kind == 0x86dd {
        return ipv6::judge(spec, Direction::Receive, frame).map(|()| REDIRECT);
    }
    if kind == 0x0806 {
        arp_is_sound(frame)?;
        let announced = address(frame, 38) == address(frame, 28);
        ensure(address(frame, 38) == spec.address || announced, Reason::Arp)?;
        return Ok(REDIRECT);
    }
    let (packet, header) = ipv4(frame, true)?;
    ensure(address(packet, 16) == spec.address, Reason::Address)?;
    ensure(is_peer(spec, address(packet, 12)), Reason::Peer)?;
    let payload = &packet[header..];
    match packet[9] {
        1 => {
            ensure(payload.len() >= 8, Reason::Header)?;
            ensure(matches!(payload[0], 0 | 3 | 8 | 11 | 12), Reason::Icmp)?;
        }
        protocol @ (6 | 17) => {
            let minimum = if protocol == 6 { 20 } else { 8 };
            ensure(payload.len() >= minimum, Reason::Header)?;
            let port = be16(payload, 2);
            ensure(port_granted(spec, protocol, port), Reason::Port)?;
        }
        _ => return Err(Reason::Protocol),
    }
    Ok(REDIRECT)
}

pub(super) fn transmit(spec: &VnicSpec, frame: &[u8]) -> Verdict {
    let kind = ether_type(spec, frame)?;
    ensure(mac(frame, 6) == spec.mac, Reason::SourceMac)?;
    let destination = mac(frame, 0);
    let broadcast_arp = destination == [0xff; 6] && kind == 0x0806;
    let group = destination[..2] == [0x33, 0x33] && kind == 0x86dd;
    let verdict = match spec.uplink {
        _ if destination == spec.host_mac => PASS,
        Some(_) if destination[0] & 1 == 0 || broadcast_arp || group => REDIRECT,
        None if broadcast_arp || group => PASS,
        _ => return Err(Reason::DestinationMac),
    };
    if kind == 0x86dd {
        return ipv6::judge(spec, Direction::Transmit, frame).map(|()| verdict);
    }
    if kind == 0x0806 {
        arp_is_sound(frame)?;
        ensure(mac(frame, 22) == spec.mac, Reason::Arp)?;
        ensure(address(frame, 28) == spec.address, Reason::Arp)?;
        return Ok(verdict);
    }
    let (packet, header) = ipv4(frame, false)?;
    ensure(address(packet, 12) == spec.address, Reason::Address)?;
    let other = address(packet, 16);
    ensure(other.octets()[0] < 224, Reason::Peer)?;
    ensure(is_peer(spec, other), Reason::Peer)?;
    let payload = &packet[header..];
    match packet[9] {
        1 => {
            ensure(payload.len() >= 8, Reason::Header)?;
            ensure(matches!(payload[0], 0 | 3 | 8), Reason::Icmp)?;
            let about_us = || payload.len() >= 28 && address(payload, 24) == spec.address;
            ensure(payload[0] != 3 || about_us(), Reason::Icmp)?;
        }
        protocol @ (6 | 17) => {
            let minimum = if protocol == 6 { 20 } else { 8 };
            ensure(payload.len() >= minimum, Reason::Header)?;
            let port = be16(payload, 0);
            ensure(port_granted(spec, protocol, port), Reason::Port)?;
        }
        _ => return Err(Reason::Protocol),
    }
    Ok(verdict)
}
