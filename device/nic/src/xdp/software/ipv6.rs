//! The rules of IPv6; `frame/ipv6.rs` has their account.

use std::net::Ipv6Addr;

use super::checks::{Verdict, chunk, ensure, granted};
use crate::xdp::{Reason, VnicSpec};

const HEADER: usize = 14 + 40;

/// What may follow the header.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Rest {
    Anything,
    /// Neighbour discovery.
    Discovery,
    /// A solicitation without a link address.
    Trial,
}

/// What the header says.
struct Packet {
    protocol: u8,
    hop_limit: u8,
    source: Ipv6Addr,
    destination: Ipv6Addr,
    /// Bytes after it.
    payload: usize,
}

#[inline]
fn address(head: &[u8], at: usize, reason: Reason) -> Result<Ipv6Addr, Reason> {
    chunk::<16>(head, at, reason).map(Ipv6Addr::from)
}

#[inline]
fn packet(head: &[u8], length: usize) -> Result<Packet, Reason> {
    let fixed = chunk::<40>(head, 14, Reason::Short)?;
    let payload = usize::from(u16::from_be_bytes([fixed[4], fixed[5]]));
    ensure(fixed[0] >> 4 == 6 && payload + HEADER <= length, Reason::Header)?;
    ensure(fixed[6] != 44, Reason::Fragment)?;
    Ok(Packet {
        protocol: fixed[6],
        hop_limit: fixed[7],
        source: address(head, 22, Reason::Short)?,
        destination: address(head, 38, Reason::Short)?,
        payload,
    })
}

#[inline]
fn is_own(spec: &VnicSpec, address: Ipv6Addr) -> bool {
    spec.address6 == Some(address) || address == spec.link_local()
}

/// The group in which an address is solicited (RFC 4291 section 2.7.1).
#[inline]
fn solicited(own: Ipv6Addr) -> Ipv6Addr {
    let [.., a, b, c] = own.octets();
    Ipv6Addr::from_octets([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, a, b, c])
}

#[inline]
fn receives_group(spec: &VnicSpec, group: Ipv6Addr) -> bool {
    const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
    group == ALL_NODES
        || group == solicited(spec.link_local())
        || spec.address6.is_some_and(|own| group == solicited(own))
}

/// TCP and UDP.
#[inline]
fn transport(spec: &VnicSpec, head: &[u8], packet: &Packet, own: usize) -> Verdict {
    let (least, ranges) = match packet.protocol {
        6 => (20, &spec.tcp_ports),
        17 => (8, &spec.udp_ports),
        _ => return Err(Reason::Protocol),
    };
    ensure(packet.payload >= least, Reason::Header)?;
    granted(ranges, head, HEADER + own)
}

pub(super) fn receive(spec: &VnicSpec, head: &[u8], length: usize) -> Verdict {
    let packet = packet(head, length)?;
    let to_us = is_own(spec, packet.destination);
    ensure(to_us || receives_group(spec, packet.destination), Reason::Address)?;
    let from_peer = || ensure(spec.is_peer6(packet.source), Reason::Peer);
    if packet.protocol != 58 {
        ensure(to_us, Reason::Address)?;
        from_peer()?;
        return transport(spec, head, &packet, 2);
    }
    ensure(packet.payload >= 8, Reason::Header)?;
    match chunk::<1>(head, HEADER, Reason::Short)? {
        [135 | 136] => ensure(packet.hop_limit == 255, Reason::Icmp),
        [kind] => {
            ensure(to_us, Reason::Address)?;
            from_peer()?;
            ensure(matches!(kind, 1..=4 | 128 | 129), Reason::Icmp)
        }
    }
}

pub(super) fn transmit(spec: &VnicSpec, head: &[u8], length: usize) -> Verdict {
    let packet = packet(head, length)?;
    let rest = match packet.destination.is_multicast() {
        _ if packet.source.is_unspecified() => Rest::Trial,
        _ if !is_own(spec, packet.source) => return Err(Reason::Address),
        true => Rest::Discovery,
        false => Rest::Anything,
    };
    ensure(head[0] & 1 == 0 || packet.destination.is_multicast(), Reason::DestinationMac)?;
    let to_peer = || ensure(spec.is_peer6(packet.destination), Reason::Peer);
    let ordinary = || match rest {
        Rest::Anything => to_peer(),
        Rest::Discovery => Err(Reason::Peer),
        Rest::Trial => Err(Reason::Address),
    };
    if packet.protocol != 58 {
        ordinary()?;
        return transport(spec, head, &packet, 0);
    }
    ensure(packet.payload >= 8, Reason::Header)?;
    let [kind] = chunk(head, HEADER, Reason::Short)?;
    let option = match kind {
        135 => {
            ensure(packet.hop_limit == 255 && (rest != Rest::Trial || packet.payload == 24), Reason::Icmp)?;
            let own = || address(head, HEADER + 8, Reason::Short).map(|target| is_own(spec, target));
            ensure(rest != Rest::Trial || own()?, Reason::Icmp)?;
            [1, 1]
        }
        136 => {
            ensure(rest != Rest::Trial, Reason::Address)?;
            ensure(packet.hop_limit == 255 && packet.payload >= 24, Reason::Icmp)?;
            ensure(is_own(spec, address(head, HEADER + 8, Reason::Short)?), Reason::Icmp)?;
            [2, 1]
        }
        _ => {
            ordinary()?;
            let about_us = || {
                let quoted = address(head, HEADER + 32, Reason::Icmp);
                packet.payload >= 48 && quoted.is_ok_and(|to| is_own(spec, to))
            };
            return ensure(matches!(kind, 128 | 129) || (matches!(kind, 1 | 4) && about_us()), Reason::Icmp);
        }
    };
    if packet.payload == 24 {
        return Ok(());
    }
    ensure(packet.payload == 32, Reason::Icmp)?;
    let claimed = chunk::<8>(head, HEADER + 24, Reason::Short)?;
    ensure(claimed[..2] == option && claimed[2..] == spec.mac, Reason::Icmp)
}
