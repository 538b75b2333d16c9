//! TCP segments, ICMP messages and neighbour discovery as frames, read and written without the
//! engine's code.
//!
//! The engine has packet code of its own; this code is its oracle, so the two share nothing. It
//! also writes illegal packets: the caller sets every field, and only lengths and checksums are
//! computed.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// No more data from the sender.
pub const FIN: u8 = 1;
/// Synchronise sequence numbers.
pub const SYN: u8 = 2;
/// Reset the connection.
pub const RST: u8 = 4;
/// Hand the data to the application.
pub const PSH: u8 = 8;
/// The acknowledgement field means something.
pub const ACK: u8 = 16;
/// The urgent pointer means something.
pub const URG: u8 = 32;
/// ECN-Echo (RFC 3168).
pub const ECE: u8 = 64;
/// Congestion window reduced (RFC 3168).
pub const CWR: u8 = 128;

const TCP: u8 = 6;
const ICMP: u8 = 1;
const ICMP_V6: u8 = 58;
const ETHERNET: usize = 14;

/// Link addresses of a frame: sender, receiver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Macs {
    /// The sender.
    pub from: [u8; 6],
    /// The receiver.
    pub to: [u8; 6],
}

/// A TCP segment between two endpoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment<'a> {
    /// Sender.
    pub from: SocketAddr,
    /// Receiver.
    pub to: SocketAddr,
    /// Sequence number.
    pub seq: u32,
    /// Acknowledgement number.
    pub ack: u32,
    /// Control bits.
    pub flags: u8,
    /// Window, not scaled.
    pub window: u16,
    /// Option bytes as they are in the header; written padded to whole words.
    pub options: &'a [u8],
    /// Data.
    pub payload: &'a [u8],
    /// The ECN field of the IP header.
    pub ecn: u8,
}

/// The parsed options of a segment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Options {
    /// Largest segment that the sender takes.
    pub mss: Option<u16>,
    /// Window scale.
    pub shift: Option<u8>,
    /// Whether the sender takes selective acknowledgements.
    pub sack_permitted: bool,
    /// Timestamp value and echo.
    pub timestamps: Option<(u32, u32)>,
    /// Selective acknowledgements, the first [`Options::blocks`] of them.
    pub sack: [(u32, u32); 4],
    /// How many there are.
    pub blocks: usize,
}

/// The ranges of the parts of an IP packet in a frame.
struct Located {
    from: IpAddr,
    to: IpAddr,
    protocol: u8,
    /// The start of the transport header.
    start: usize,
    end: usize,
    ecn: u8,
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn v6_at(bytes: &[u8], at: usize) -> Ipv6Addr {
    let mut octets = [0; 16];
    octets.copy_from_slice(&bytes[at..at + 16]);
    octets.into()
}

fn locate(frame: &[u8]) -> Option<Located> {
    let packet = frame.get(ETHERNET..)?;
    match frame.get(12..ETHERNET)? {
        [8, 0] if packet.len() >= 20 => {
            let (header, total) = (usize::from(packet[0] & 15) * 4, usize::from(u16_at(packet, 2)));
            let whole = u16_at(packet, 6) & 0x3fff == 0;
            (whole && header >= 20 && total >= header && total <= packet.len()).then(|| Located {
                from: Ipv4Addr::from_bits(u32_at(packet, 12)).into(),
                to: Ipv4Addr::from_bits(u32_at(packet, 16)).into(),
                protocol: packet[9],
                start: ETHERNET + header,
                end: ETHERNET + total,
                ecn: packet[1] & 3,
            })
        }
        [0x86, 0xdd] if packet.len() >= 40 => {
            let end = 40 + usize::from(u16_at(packet, 4));
            (end <= packet.len()).then(|| Located {
                from: v6_at(packet, 8).into(),
                to: v6_at(packet, 24).into(),
                protocol: packet[6],
                start: ETHERNET + 40,
                end: ETHERNET + end,
                ecn: packet[1] >> 4 & 3,
            })
        }
        _ => None,
    }
}

/// Ones-complement sum, folded and inverted. The parts are of even length, but for the last.
fn checksum(parts: &[&[u8]]) -> u16 {
    let mut sum = 0u64;
    for part in parts {
        // Eight bytes at a time: folding brings the four words together in the end.
        let (eights, rest) = part.as_chunks::<8>();
        for eight in eights {
            let word = u64::from_be_bytes(*eight);
            sum += (word >> 32) + (word & 0xffff_ffff);
        }
        for pair in rest.chunks(2) {
            sum += u64::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]));
        }
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// The checksum of a transport packet with its pseudo-header (RFC 9293 section 3.1, RFC 8200
/// section 8.1).
fn transport_checksum(from: IpAddr, to: IpAddr, protocol: u8, body: &[u8]) -> u16 {
    let length = (body.len() as u32).to_be_bytes();
    let kind = [0, 0, 0, protocol];
    match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => checksum(&[&from.octets(), &to.octets(), &length, &kind, body]),
        (IpAddr::V6(from), IpAddr::V6(to)) => checksum(&[&from.octets(), &to.octets(), &length, &kind, body]),
        _ => 0,
    }
}

/// A frame with an IP packet of `protocol` around `body`.
///
/// # Panics
/// If the addresses are of two families.
pub fn packet(macs: Macs, from: IpAddr, to: IpAddr, protocol: u8, ecn: u8, body: &[u8]) -> Vec<u8> {
    let mut frame = [&macs.to[..], &macs.from].concat();
    match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let total = ((20 + body.len()) as u16).to_be_bytes();
            let mut header = [0x45, ecn, total[0], total[1], 0, 0, 0x40, 0, 64, protocol, 0, 0].to_vec();
            header.extend_from_slice(&from.octets());
            header.extend_from_slice(&to.octets());
            let sum = checksum(&[&header]).to_be_bytes();
            header[10..12].copy_from_slice(&sum);
            frame.extend_from_slice(&[8, 0]);
            frame.extend_from_slice(&header);
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let length = (body.len() as u16).to_be_bytes();
            frame.extend_from_slice(&[0x86, 0xdd, 0x60, ecn << 4, 0, 0, length[0], length[1], protocol, 64]);
            frame.extend_from_slice(&from.octets());
            frame.extend_from_slice(&to.octets());
        }
        _ => panic!("{from} and {to} are of two families"),
    }
    frame.extend_from_slice(body);
    frame
}

impl<'a> Segment<'a> {
    /// A segment without options, data or window, to be filled in.
    pub fn bare(from: SocketAddr, to: SocketAddr, flags: u8, seq: u32, ack: u32) -> Self {
        Self { from, to, seq, ack, flags, window: 0, options: &[], payload: &[], ecn: 0 }
    }

    /// Reads the segment in a frame, if there is a whole one with a right checksum.
    pub fn decode(frame: &'a [u8]) -> Option<Self> {
        let located = locate(frame).filter(|located| located.protocol == TCP)?;
        let bytes = &frame[located.start..located.end];
        let offset = usize::from(bytes.get(12)? >> 4) * 4;
        if offset < 20 || offset > bytes.len() {
            return None;
        }
        if transport_checksum(located.from, located.to, TCP, bytes) != 0 {
            return None;
        }
        Some(Self {
            from: SocketAddr::new(located.from, u16_at(bytes, 0)),
            to: SocketAddr::new(located.to, u16_at(bytes, 2)),
            seq: u32_at(bytes, 4),
            ack: u32_at(bytes, 8),
            flags: bytes[13],
            window: u16_at(bytes, 14),
            options: &bytes[20..offset],
            payload: &bytes[offset..],
            ecn: located.ecn,
        })
    }

    /// The frame of the segment.
    ///
    /// # Panics
    /// If there are more than 40 bytes of options.
    pub fn encode(&self, macs: Macs) -> Vec<u8> {
        let words = self.options.len().div_ceil(4);
        assert!(words <= 10, "{} bytes of options do not fit", self.options.len());
        let mut body = vec![0; 20 + words * 4];
        body[..2].copy_from_slice(&self.from.port().to_be_bytes());
        body[2..4].copy_from_slice(&self.to.port().to_be_bytes());
        body[4..8].copy_from_slice(&self.seq.to_be_bytes());
        body[8..12].copy_from_slice(&self.ack.to_be_bytes());
        body[12] = ((5 + words) as u8) << 4;
        body[13] = self.flags;
        body[14..16].copy_from_slice(&self.window.to_be_bytes());
        body[20..20 + self.options.len()].copy_from_slice(self.options);
        body.extend_from_slice(self.payload);
        let sum = transport_checksum(self.from.ip(), self.to.ip(), TCP, &body).to_be_bytes();
        body[16..18].copy_from_slice(&sum);
        packet(macs, self.from.ip(), self.to.ip(), TCP, self.ecn, &body)
    }

    /// Whether any of `flags` is set.
    pub fn has(&self, flags: u8) -> bool {
        self.flags & flags != 0
    }

    /// The number of sequence numbers that it occupies.
    pub fn length(&self) -> u32 {
        self.payload.len() as u32 + u32::from(self.has(SYN)) + u32::from(self.has(FIN))
    }

    /// The sequence number after its last.
    pub fn end(&self) -> u32 {
        self.seq.wrapping_add(self.length())
    }

    /// The parsed options; a malformed option and everything behind it is ignored.
    pub fn read_options(&self) -> Options {
        let (mut options, mut rest) = (Options::default(), self.options);
        loop {
            match rest {
                [] | [0, ..] => return options,
                [1, tail @ ..] => rest = tail,
                [kind, length, ..] if *length >= 2 && usize::from(*length) <= rest.len() => {
                    let (option, tail) = rest.split_at(usize::from(*length));
                    rest = tail;
                    let body = &option[2..];
                    match (kind, body.len()) {
                        (2, 2) => options.mss = Some(u16_at(body, 0)),
                        (3, 1) => options.shift = Some(body[0].min(14)),
                        (4, 0) => options.sack_permitted = true,
                        (5, 8 | 16 | 24 | 32) => {
                            options.blocks = body.len() / 8;
                            for (to, from) in options.sack.iter_mut().zip(body.chunks(8)) {
                                *to = (u32_at(from, 0), u32_at(from, 4));
                            }
                        }
                        (8, 8) => options.timestamps = Some((u32_at(body, 0), u32_at(body, 4))),
                        _ => {}
                    }
                }
                _ => return options,
            }
        }
    }
}

impl Options {
    /// The bytes of these options, each padded to whole words in front.
    pub fn bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        if let Some(mss) = self.mss {
            let [high, low] = mss.to_be_bytes();
            out.extend_from_slice(&[2, 4, high, low]);
        }
        if self.sack_permitted {
            out.extend_from_slice(&[1, 1, 4, 2]);
        }
        if let Some(shift) = self.shift {
            out.extend_from_slice(&[1, 3, 3, shift]);
        }
        if let Some((value, echo)) = self.timestamps {
            out.extend_from_slice(&[1, 1, 8, 10]);
            out.extend_from_slice(&value.to_be_bytes());
            out.extend_from_slice(&echo.to_be_bytes());
        }
        if self.blocks > 0 {
            out.extend_from_slice(&[1, 1, 5, 2 + 8 * self.blocks as u8]);
            for (left, right) in &self.sack[..self.blocks] {
                out.extend_from_slice(&left.to_be_bytes());
                out.extend_from_slice(&right.to_be_bytes());
            }
        }
        out
    }
}

/// An ICMP or ICMPv6 error of this type and code about `cause`, the frame of a packet, from the
/// address `from` to the packet's sender. `rest` are the four bytes behind the checksum. `None` if
/// the frame holds no packet of `from`'s family.
pub fn icmp_error(macs: Macs, from: IpAddr, kind: u8, code: u8, rest: u32, cause: &[u8]) -> Option<Vec<u8>> {
    let located = locate(cause)?;
    let quoted = &cause[ETHERNET..located.end.min(ETHERNET + 500)];
    let mut body = vec![kind, code, 0, 0];
    body.extend_from_slice(&rest.to_be_bytes());
    body.extend_from_slice(quoted);
    let (protocol, sum) = match (from, located.from) {
        (IpAddr::V4(_), IpAddr::V4(_)) => (ICMP, checksum(&[&body])),
        (IpAddr::V6(_), IpAddr::V6(_)) => (ICMP_V6, transport_checksum(from, located.from, ICMP_V6, &body)),
        _ => return None,
    };
    body[2..4].copy_from_slice(&sum.to_be_bytes());
    Some(packet(macs, from, located.from, protocol, 0, &body))
}

/// The answer to an ARP request or a neighbour solicitation for `address`, from `mac`; `None` if
/// the frame requests something else.
pub fn neighbour_answer(frame: &[u8], address: IpAddr, mac: [u8; 6]) -> Option<Vec<u8>> {
    let asker: [u8; 6] = frame.get(6..12)?.try_into().ok()?;
    match address {
        IpAddr::V4(own) => {
            let arp = frame.get(ETHERNET..ETHERNET + 28).filter(|_| frame[12..ETHERNET] == [8, 6])?;
            if arp[..8] != [0, 1, 8, 0, 6, 4, 0, 1] || arp[24..28] != own.octets() {
                return None;
            }
            let mut answer =
                [&asker[..], &mac, &[8, 6, 0, 1, 8, 0, 6, 4, 0, 2], &mac, &own.octets()].concat();
            answer.extend_from_slice(&arp[8..18]);
            Some(answer)
        }
        IpAddr::V6(own) => {
            let located = locate(frame).filter(|located| located.protocol == ICMP_V6)?;
            let body = &frame[located.start..located.end];
            if body.len() < 24 || body[0] != 135 || v6_at(body, 8) != own {
                return None;
            }
            // Solicited and override, with the target's link address (RFC 4861 section 4.4).
            let mut answer = [&[136, 0, 0, 0, 0x60, 0, 0, 0][..], &own.octets(), &[2, 1], &mac].concat();
            let sum = transport_checksum(address, located.from, ICMP_V6, &answer);
            answer[2..4].copy_from_slice(&sum.to_be_bytes());
            let mut out = packet(Macs { from: mac, to: asker }, address, located.from, ICMP_V6, 0, &answer);
            // Neighbour discovery demands a hop limit of 255.
            out[ETHERNET + 7] = 255;
            Some(out)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MACS: Macs = Macs { from: [2, 0, 0, 0, 0, 1], to: [2, 0, 0, 0, 0, 2] };

    #[test]
    fn a_segment_is_read_as_it_was_written_in_both_families() {
        let options = Options {
            mss: Some(1460),
            shift: Some(7),
            timestamps: Some((1, 2)),
            sack: [(5, 9), (20, 30), (0, 0), (0, 0)],
            blocks: 2,
            ..Options::default()
        };
        for (from, to) in [("10.0.0.1:80", "10.0.0.2:81"), ("[fd00::1]:80", "[fd00::2]:81")] {
            let bytes = options.bytes();
            let (from, to) = (from.parse().unwrap(), to.parse().unwrap());
            let segment = Segment {
                window: 99,
                options: &bytes,
                payload: b"odd",
                ecn: 2,
                ..Segment::bare(from, to, ACK | PSH, 7, 8)
            };
            let frame = segment.encode(MACS);
            assert_eq!(Segment::decode(&frame), Some(segment));
            assert_eq!(segment.read_options(), options);
            let mut wrong = frame.clone();
            *wrong.last_mut().unwrap() ^= 1;
            assert_eq!(Segment::decode(&wrong), None);
        }
    }

    #[test]
    fn an_arp_request_is_answered_by_its_owner_alone() {
        let mut request = [&[0xff; 6][..], &MACS.from, &[8, 6, 0, 1, 8, 0, 6, 4, 0, 1], &MACS.from].concat();
        request.extend_from_slice(&[10, 0, 0, 1, 0, 0, 0, 0, 0, 0, 10, 0, 0, 3]);
        let own = Ipv4Addr::new(10, 0, 0, 3).into();
        let answer = neighbour_answer(&request, own, [2, 0, 0, 0, 0, 3]).unwrap();
        assert_eq!(answer[..12], [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 3]);
        assert_eq!(answer[20..22], [0, 2]);
        assert_eq!(answer[28..32], [10, 0, 0, 3]);
        assert_eq!(answer[38..42], [10, 0, 0, 1]);
        assert_eq!(neighbour_answer(&request, Ipv4Addr::new(10, 0, 0, 4).into(), MACS.to), None);
    }
}
