//! Addresses as bytes, and as text.

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::operation::words::Address;

/// Room for any address.
pub(super) const ROOM: usize = 128;
/// The bytes of a buffer before a call; a different byte beyond its length shows an overrun.
pub(super) const CANARY: u8 = 0xee;

/// The bytes of an address with `port`, and how many of them count.
pub(super) fn encode(address: Address, port: u16) -> ([u8; ROOM], usize) {
    let four = |host: Ipv4Addr| {
        let mut bytes = [0; ROOM];
        bytes[..2].copy_from_slice(&family(libc::AF_INET));
        bytes[2..4].copy_from_slice(&port.to_be_bytes());
        bytes[4..8].copy_from_slice(&host.octets());
        (bytes, 16)
    };
    let six = |host: Ipv6Addr| {
        let mut bytes = [0; ROOM];
        bytes[..2].copy_from_slice(&family(libc::AF_INET6));
        bytes[2..4].copy_from_slice(&port.to_be_bytes());
        bytes[8..24].copy_from_slice(&host.octets());
        (bytes, 28)
    };
    match address.host.name() {
        "lo6" => six(Ipv6Addr::LOCALHOST),
        "map4" => six(Ipv4Addr::LOCALHOST.to_ipv6_mapped()),
        "any4" => four(Ipv4Addr::UNSPECIFIED),
        "any6" => six(Ipv6Addr::UNSPECIFIED),
        "two4" => four(Ipv4Addr::new(127, 0, 0, 2)),
        // Documentation only (RFC 5737): never an address of this machine.
        "away4" => four(Ipv4Addr::new(203, 0, 113, 1)),
        "unspec" => ([0; ROOM], 16),
        "short" => (four(Ipv4Addr::LOCALHOST).0, 3),
        "long" => (four(Ipv4Addr::LOCALHOST).0, ROOM),
        _ => four(Ipv4Addr::LOCALHOST),
    }
}

fn family(number: i32) -> [u8; 2] {
    u16::try_from(number).unwrap_or(0).to_ne_bytes()
}

/// What a call wrote into a buffer of `room` bytes, if it says that the address has `length`. A
/// port is `@` and its number.
pub(super) fn describe(bytes: &[u8], room: usize, length: usize) -> String {
    let room = room.min(bytes.len());
    let overrun = bytes[room..].iter().any(|byte| *byte != CANARY);
    let overrun = if overrun { " overrun" } else { "" };
    let written = &bytes[..room.min(length)];
    let Some(family) = written.first_chunk().map(|bytes| i32::from(u16::from_ne_bytes(*bytes))) else {
        return format!("len={length} -{overrun}");
    };
    let port = written.get(2..4).map_or(0, |port| u16::from_be_bytes([port[0], port[1]]));
    let port = if port == 0 { "@none".to_owned() } else { format!("@{port}") };
    let host = match family {
        libc::AF_INET if written.len() >= 8 => {
            Ipv4Addr::new(written[4], written[5], written[6], written[7]).to_string()
        }
        libc::AF_INET6 if written.len() >= 24 => {
            let mut octets = [0; 16];
            octets.copy_from_slice(&written[8..24]);
            format!("[{}]", Ipv6Addr::from(octets))
        }
        libc::AF_UNIX => return format!("len={length} unix{overrun}"),
        // Without its host an address that was cut says its family alone.
        family => return format!("len={length} family={family}{overrun}"),
    };
    format!("len={length} {host}{port}{overrun}")
}

/// The port of an address that a call has written whole.
pub(super) fn port(bytes: &[u8], length: usize) -> Option<u16> {
    let family = i32::from(u16::from_ne_bytes(*bytes.first_chunk()?));
    let internet = family == libc::AF_INET || family == libc::AF_INET6;
    (internet && length >= 16).then(|| u16::from_be_bytes([bytes[2], bytes[3]]))
}
