//! Right checksums for frames that a test has changed, so that parsers read the fields behind them
//! (RFC 1071).

fn fold(mut sum: u64) -> [u8; 2] {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    (!(sum as u16)).to_be_bytes()
}

fn words(bytes: &[u8]) -> u64 {
    bytes.chunks(2).map(|pair| u64::from(pair[0]) << 8 | u64::from(pair.get(1).copied().unwrap_or(0))).sum()
}

/// Fixes the checksums of IPv4, TCP, UDP, ICMP and IGMP that it finds in an Ethernet frame.
pub fn fix_checksums(frame: &mut [u8]) {
    let Some(kind) = frame.get(12..14) else { return };
    let (protocol, start, end, pseudo) = match kind {
        [8, 0] if frame.len() >= 34 => {
            let start = 14 + usize::from(frame[14] & 15) * 4;
            let end = 14 + usize::from(u16::from_be_bytes([frame[16], frame[17]]));
            if start < 34 || start > frame.len() {
                return;
            }
            frame[24..26].fill(0);
            let sum = fold(words(&frame[14..start]));
            frame[24..26].copy_from_slice(&sum);
            (frame[23], start, end.min(frame.len()), words(&frame[26..34]))
        }
        [0x86, 0xdd] if frame.len() >= 54 => {
            let end = 54 + usize::from(u16::from_be_bytes([frame[18], frame[19]]));
            (frame[20], 54, end.min(frame.len()), words(&frame[22..54]))
        }
        _ => return,
    };
    let (at, pseudo) = match protocol {
        6 => (16, pseudo),
        17 => (6, pseudo),
        1 | 2 => (2, 0),
        58 => (2, pseudo),
        _ => return,
    };
    if end < start + at + 2 {
        return;
    }
    let pseudo = if protocol < 3 { 0 } else { pseudo + (end - start) as u64 + u64::from(protocol) };
    frame[start + at..start + at + 2].fill(0);
    let sum = fold(pseudo + words(&frame[start..end]));
    frame[start + at..start + at + 2].copy_from_slice(&sum);
}
