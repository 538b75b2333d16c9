//! The effects of routers and bad cables on the IP packet inside an Ethernet frame.
//!
//! It shares no code with the engine's packet code on purpose, because it is the engine's oracle.

use crate::Random;

const ETHERNET: usize = 14;
const V4_HEADER: usize = 20;
const V6_HEADER: usize = 40;
const ICMP: u8 = 1;
const ICMP_V6: u8 = 58;
/// The addresses of a path's routers, from the ranges for documentation (RFC 5737, RFC 3849).
const ROUTER_V4: [u8; 4] = [192, 0, 2, 1];
const ROUTER_V6: [u8; 16] = [0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
/// Bytes of the offending packet that a router quotes over IPv4 (RFC 1812 section 4.3.2.3: as much
/// as fits in 576).
const QUOTE_V4: usize = 576 - V4_HEADER - 8;
/// The same over IPv6 (RFC 4443 section 3.2: as much as fits in the minimum MTU).
const QUOTE_V6: usize = 1280 - V6_HEADER - 8;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Version {
    V4,
    V6,
}

fn version(frame: &[u8]) -> Option<Version> {
    match (frame.get(12..ETHERNET)?, frame.get(ETHERNET)? >> 4) {
        ([8, 0], 4) if frame.len() >= ETHERNET + V4_HEADER => Some(Version::V4),
        ([0x86, 0xdd], 6) if frame.len() >= ETHERNET + V6_HEADER => Some(Version::V6),
        _ => None,
    }
}

fn word(bytes: &[u8], at: usize) -> usize {
    usize::from(u16::from_be_bytes([bytes[at], bytes[at + 1]]))
}

/// Bytes of the IP packet in a frame, header included, if there is one.
pub(super) fn length(frame: &[u8]) -> Option<usize> {
    let packet = frame.get(ETHERNET..)?;
    let named = match version(frame)? {
        Version::V4 => word(packet, 2),
        Version::V6 => V6_HEADER + word(packet, 4),
    };
    Some(named.min(packet.len()))
}

fn checksum(parts: &[&[u8]]) -> [u8; 2] {
    let mut sum = 0u64;
    for part in parts {
        for pair in part.chunks(2) {
            sum += u64::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]));
        }
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    (!(sum as u16)).to_be_bytes()
}

fn sum_v4_header(frame: &mut [u8]) {
    let end = ETHERNET + usize::from(frame[ETHERNET] & 15) * 4;
    frame[ETHERNET + 10..ETHERNET + 12].fill(0);
    let sum = checksum(&[&frame[ETHERNET..end.min(frame.len())]]);
    frame[ETHERNET + 10..ETHERNET + 12].copy_from_slice(&sum);
}

/// Sets Congestion Experienced (RFC 3168 section 5). False if the packet's transport is not capable
/// of ECN.
pub(super) fn mark(frame: &mut [u8]) -> bool {
    match version(frame) {
        Some(Version::V4) if frame[ETHERNET + 1] & 3 != 0 => {
            frame[ETHERNET + 1] |= 3;
            sum_v4_header(frame);
            true
        }
        Some(Version::V6) if frame[ETHERNET + 1] & 0x30 != 0 => {
            frame[ETHERNET + 1] |= 0x30;
            true
        }
        _ => false,
    }
}

/// Flips one bit of the packet in a frame; returns whether it did. It spares padding, which is
/// never read, and the fields that no checksum covers in IPv6: traffic class, flow label and hop
/// limit.
pub(super) fn damage(frame: &mut [u8], random: &mut Random) -> bool {
    let (Some(version), Some(length)) = (version(frame), length(frame)) else { return false };
    let skipped = if version == Version::V6 { 8 } else { 0 };
    if length <= skipped {
        return false;
    }
    let at = ETHERNET + skipped + random.index(length - skipped);
    frame[at] ^= 1 << random.below(8);
    true
}

/// The fragments of an IPv4 packet that may be split (RFC 791 section 3.2), in order; `None` for
/// any other packet.
pub(super) fn split(frame: &[u8], mtu: usize) -> Option<Vec<Vec<u8>>> {
    let packet = frame.get(ETHERNET..ETHERNET + length(frame)?)?;
    let header = usize::from(packet[0] & 15) * 4;
    if version(frame)? != Version::V4 || packet[6] & 0x40 != 0 || header < V4_HEADER || header >= packet.len()
    {
        return None;
    }
    let step = (mtu.checked_sub(header)? / 8) * 8;
    if step == 0 {
        return None;
    }
    let (flags, first) = (packet[6] & 0x20, word(packet, 6) & 0x1fff);
    let body = &packet[header..];
    let pieces = body.chunks(step).enumerate().map(|(number, chunk)| {
        let mut piece = [&frame[..ETHERNET + header], chunk].concat();
        let last = (number + 1) * step >= body.len();
        let more = if last { u16::from(flags) << 8 } else { 0x2000 };
        let offset = (first + number * step / 8) as u16;
        piece[ETHERNET + 2..ETHERNET + 4].copy_from_slice(&((header + chunk.len()) as u16).to_be_bytes());
        piece[ETHERNET + 6..ETHERNET + 8].copy_from_slice(&(offset | more).to_be_bytes());
        sum_v4_header(&mut piece);
        piece
    });
    Some(pieces.collect())
}

/// The ICMP message by which a router informs a frame's sender that its packet is too big.
pub(super) fn too_big(frame: &[u8], mtu: usize) -> Option<Vec<u8>> {
    let packet = frame.get(ETHERNET..ETHERNET + length(frame)?)?;
    // Back to the sender. The second address is the router's: here the destination of the frame.
    let mut answer = [&frame[6..12], &frame[..6], &frame[12..ETHERNET]].concat();
    match version(frame)? {
        Version::V4 => {
            let quoted = &packet[..packet.len().min(QUOTE_V4)];
            let mut message = [&[3, 4, 0, 0, 0, 0][..], &(mtu as u16).to_be_bytes(), quoted].concat();
            let sum = checksum(&[&message]);
            message[2..4].copy_from_slice(&sum);
            let total = ((V4_HEADER + message.len()) as u16).to_be_bytes();
            answer.extend_from_slice(&[0x45, 0, total[0], total[1], 0, 0, 0, 0, 64, ICMP, 0, 0]);
            answer.extend_from_slice(&ROUTER_V4);
            answer.extend_from_slice(&packet[12..16]);
            sum_v4_header(&mut answer);
            answer.extend_from_slice(&message);
        }
        Version::V6 => {
            let quoted = &packet[..packet.len().min(QUOTE_V6)];
            let mut message = [&[2, 0, 0, 0][..], &(mtu as u32).to_be_bytes(), quoted].concat();
            let size = (message.len() as u32).to_be_bytes();
            let target = &packet[8..24];
            let sum = checksum(&[&ROUTER_V6, target, &size, &[0, 0, 0, ICMP_V6], &message]);
            message[2..4].copy_from_slice(&sum);
            answer.extend_from_slice(&[0x60, 0, 0, 0, size[2], size[3], ICMP_V6, 64]);
            answer.extend_from_slice(&ROUTER_V6);
            answer.extend_from_slice(target);
            answer.extend_from_slice(&message);
        }
    }
    Some(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v4(flags: u8, ecn: u8, body: usize) -> Vec<u8> {
        let mut frame = vec![0; ETHERNET + V4_HEADER + body];
        frame[..12].copy_from_slice(&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1]);
        frame[12] = 8;
        let total = ((V4_HEADER + body) as u16).to_be_bytes();
        frame[ETHERNET..ETHERNET + 10]
            .copy_from_slice(&[0x45, ecn, total[0], total[1], 0, 7, flags, 0, 64, 6]);
        frame[ETHERNET + 12..ETHERNET + 20].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
        for (at, byte) in frame[ETHERNET + V4_HEADER..].iter_mut().enumerate() {
            *byte = at as u8;
        }
        sum_v4_header(&mut frame);
        frame
    }

    #[test]
    fn marks_only_ecn_capable_packets_and_keeps_the_checksum() {
        let mut plain = v4(0, 0, 40);
        assert!(!mark(&mut plain));
        let mut capable = v4(0, 2, 40);
        assert!(mark(&mut capable));
        assert_eq!(capable[ETHERNET + 1], 3);
        assert_eq!(checksum(&[&capable[ETHERNET..ETHERNET + V4_HEADER]]), [0, 0]);
        let mut six = vec![0; ETHERNET + V6_HEADER];
        six[12..15].copy_from_slice(&[0x86, 0xdd, 0x60]);
        assert!(!mark(&mut six));
        six[15] = 0x10;
        assert!(mark(&mut six));
        assert_eq!(six[15], 0x30);
    }

    #[test]
    fn fragments_join_to_the_packet() {
        let frame = v4(0, 0, 1000);
        let pieces = split(&frame, 300).unwrap();
        assert!(pieces.iter().all(|piece| length(piece).unwrap() <= 300));
        let mut joined = vec![0; 1000];
        for piece in &pieces {
            assert_eq!(checksum(&[&piece[ETHERNET..ETHERNET + V4_HEADER]]), [0, 0]);
            let at = (word(piece, ETHERNET + 6) & 0x1fff) * 8;
            let body = &piece[ETHERNET + V4_HEADER..];
            joined[at..at + body.len()].copy_from_slice(body);
        }
        assert_eq!(joined, frame[ETHERNET + V4_HEADER..]);
        let more: Vec<bool> = pieces.iter().map(|piece| piece[ETHERNET + 6] & 0x20 != 0).collect();
        assert_eq!(more, [true, true, true, false]);
        assert_eq!(split(&v4(0x40, 0, 1000), 300), None, "it forbids that");
    }

    #[test]
    fn a_router_quotes_the_packet_to_its_sender() {
        let answer = too_big(&v4(0x40, 0, 1000), 600).unwrap();
        assert_eq!(answer[..12], [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2]);
        assert_eq!(length(&answer), Some(576));
        let message = &answer[ETHERNET + V4_HEADER..];
        assert_eq!(message[..2], [3, 4]);
        assert_eq!(word(message, 6), 600);
        assert_eq!(message[8], 0x45);
        assert_eq!(checksum(&[message]), [0, 0]);
    }
}
