//! The rules of `docs/spec/xdp.md` in plain Rust, for frames that no XDP program sees: the software
//! switch judges with them.
//!
//! 1. Only the head of a frame is read: all headers are there, in memory that its sender cannot
//!    change meanwhile. `length` is that of the whole frame.
//! 2. The order of the checks is that of the programs, so the counted reason is the same. A
//!    property test holds both to one oracle.
//! 3. A switch is an uplink to every VNIC. In [`transmit`] the destination may be any unicast MAC,
//!    for ARP the broadcast MAC, and for IPv6 a group's.

use std::net::Ipv4Addr;

use super::{Reason, VnicSpec};

mod checks;
mod ipv6;

use checks::{Verdict, chunk, ensure, granted};

const BROADCAST: [u8; 6] = [0xff; 6];
const ARP: [u8; 2] = [0x08, 0x06];
const IPV6: [u8; 2] = [0x86, 0xdd];

#[inline]
fn address(bytes: &[u8], at: usize, reason: Reason) -> Result<Ipv4Addr, Reason> {
    chunk::<4>(bytes, at, reason).map(Ipv4Addr::from)
}

/// The ethertype of a frame that VNICs carry.
#[inline]
fn ether_type(spec: &VnicSpec, head: &[u8]) -> Result<[u8; 2], Reason> {
    match chunk::<14>(head, 0, Reason::Short)? {
        [.., 0x08, 0x00] => Ok([8, 0]),
        [.., 0x08, 0x06] => Ok(ARP),
        [.., 0x81, 0x00] | [.., 0x88, 0xa8] => Err(Reason::Vlan),
        [.., 0x86, 0xdd] => spec.address6.map(|_| IPV6).ok_or(Reason::Ipv6),
        _ => Err(Reason::EtherType),
    }
}

#[inline]
fn arp_is_sound(head: &[u8]) -> Verdict {
    let fields = chunk::<28>(head, 14, Reason::Short)?;
    ensure(fields[..6] == [0, 1, 8, 0, 6, 4] && matches!(fields[6..8], [0, 1 | 2]), Reason::Arp)
}

/// A packet's fields: header length, and bytes of payload.
#[inline]
fn ipv4(head: &[u8], length: usize, options: bool) -> Result<(usize, usize), Reason> {
    let fixed = chunk::<20>(head, 14, Reason::Short)?;
    let header = usize::from(fixed[0] & 15) * 4;
    let total = usize::from(u16::from_be_bytes([fixed[2], fixed[3]]));
    ensure(fixed[0] >> 4 == 4 && header >= 20, Reason::Header)?;
    ensure(total >= header && total <= length - 14, Reason::Header)?;
    ensure(options || header == 20, Reason::Options)?;
    ensure(u16::from_be_bytes([fixed[6], fixed[7]]) & 0x3fff == 0, Reason::Fragment)?;
    Ok((header, total - header))
}

#[inline]
fn is_peer(spec: &VnicSpec, other: Ipv4Addr) -> bool {
    !spec.is_restricted() || spec.peers.iter().any(|prefix| prefix.contains(other))
}

#[inline]
fn check_port(spec: &VnicSpec, head: &[u8], at: usize, payload: usize, own: usize) -> Verdict {
    let (least, ranges) = if head[23] == 6 { (20, &spec.tcp_ports) } else { (8, &spec.udp_ports) };
    ensure(payload >= least, Reason::Header)?;
    granted(ranges, head, at + own)
}

/// ARP goes to the broadcast MAC, IPv6 to the MACs of groups.
#[inline]
fn may_go_to_group(head: &[u8], kind: [u8; 2]) -> bool {
    (head[..6] == BROADCAST && kind == ARP) || (head[..2] == [0x33, 0x33] && kind == IPV6)
}

/// Whether the VNIC may receive this frame.
///
/// # Errors
/// The reason why not.
pub fn receive(spec: &VnicSpec, head: &[u8], length: usize) -> Result<(), Reason> {
    let kind = ether_type(spec, head)?;
    let to_us = head[..6] == spec.mac || may_go_to_group(head, kind);
    ensure(to_us, Reason::DestinationMac)?;
    if kind == IPV6 {
        return ipv6::receive(spec, head, length);
    }
    if kind == ARP {
        arp_is_sound(head)?;
        let (sender, target) = (address(head, 28, Reason::Arp)?, address(head, 38, Reason::Arp)?);
        return ensure(target == spec.address || target == sender, Reason::Arp);
    }
    let (header, payload) = ipv4(head, length, true)?;
    ensure(address(head, 30, Reason::Short)? == spec.address, Reason::Address)?;
    ensure(is_peer(spec, address(head, 26, Reason::Short)?), Reason::Peer)?;
    let at = 14 + header;
    match head[23] {
        1 => {
            ensure(payload >= 8, Reason::Header)?;
            let [kind] = chunk(head, at, Reason::Header)?;
            ensure(matches!(kind, 0 | 3 | 8 | 11 | 12), Reason::Icmp)
        }
        6 | 17 => check_port(spec, head, at, payload, 2),
        _ => Err(Reason::Protocol),
    }
}

/// Whether the VNIC may send this frame.
///
/// # Errors
/// The reason why not.
pub fn transmit(spec: &VnicSpec, head: &[u8], length: usize) -> Result<(), Reason> {
    let kind = ether_type(spec, head)?;
    ensure(head[6..12] == spec.mac, Reason::SourceMac)?;
    ensure(head[0] & 1 == 0 || may_go_to_group(head, kind), Reason::DestinationMac)?;
    if kind == IPV6 {
        return ipv6::transmit(spec, head, length);
    }
    if kind == ARP {
        arp_is_sound(head)?;
        let ours = head[22..28] == spec.mac && address(head, 28, Reason::Arp)? == spec.address;
        return ensure(ours, Reason::Arp);
    }
    let (header, payload) = ipv4(head, length, false)?;
    ensure(address(head, 26, Reason::Short)? == spec.address, Reason::Address)?;
    let other = address(head, 30, Reason::Short)?;
    ensure(other.octets()[0] < 224 && is_peer(spec, other), Reason::Peer)?;
    let at = 14 + header;
    match head[23] {
        1 => {
            ensure(payload >= 8, Reason::Header)?;
            let [kind] = chunk(head, at, Reason::Header)?;
            ensure(matches!(kind, 0 | 3 | 8), Reason::Icmp)?;
            // An error quotes a packet that was sent to the VNIC.
            let about_us = kind != 3
                || (payload >= 28 && address(head, at + 24, Reason::Icmp).is_ok_and(|to| to == spec.address));
            ensure(about_us, Reason::Icmp)
        }
        6 | 17 => check_port(spec, head, at, payload, 0),
        _ => Err(Reason::Protocol),
    }
}
