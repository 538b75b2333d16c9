//! IP packets with TCP or ICMP inside, as scripts see them.
//!
//! 1. [`Packet::parse`] reads the engine's packets. It is strict: a wrong length or checksum is an
//!    error. So a script that passes has also shown that every packet was well formed.
//! 2. [`Packet::build`] writes the script's packets.
//!
//! It uses no code of the engine's parser: the two check each other.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Protocol number of TCP.
pub const TCP: u8 = 6;
/// Protocol number of ICMP for IPv4.
pub const ICMP: u8 = 1;
/// Protocol number of ICMPv6.
pub const ICMP6: u8 = 58;

/// TCP control bits, by the letters of the script language.
pub const FLAGS: [(char, u8); 8] =
    [('F', 0x01), ('S', 0x02), ('R', 0x04), ('P', 0x08), ('.', 0x10), ('U', 0x20), ('E', 0x40), ('W', 0x80)];
/// The SYN bit.
pub const SYN: u8 = 0x02;
/// The ACK bit.
pub const ACK: u8 = 0x10;

/// An IP packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Sender.
    pub source: IpAddr,
    /// Receiver.
    pub destination: IpAddr,
    /// ECN field, two bits.
    pub ecn: u8,
    /// Whether routers may not fragment it (always so in IPv6).
    pub dont_fragment: bool,
    /// The payload.
    pub body: Body,
}

/// The payload of an IP packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// A segment.
    Tcp(Tcp),
    /// A control message.
    Icmp(Icmp),
    /// A protocol that the script language cannot express.
    Other(u8),
}

/// A TCP segment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields of the header")]
pub struct Tcp {
    pub source: u16,
    pub destination: u16,
    pub seq: u32,
    pub ack: u32,
    pub flags: u8,
    pub window: u16,
    pub urgent: u16,
    pub options: Vec<TcpOption>,
    pub payload: Vec<u8>,
}

/// A TCP option.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the options by their names")]
pub enum TcpOption {
    End,
    Nop,
    Mss(u16),
    WindowScale(u8),
    SackPermitted,
    Sack(Vec<(u32, u32)>),
    Timestamps(u32, u32),
    Unknown(u8, Vec<u8>),
}

/// An ICMP or ICMPv6 message.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields of the header")]
pub struct Icmp {
    pub kind: u8,
    pub code: u8,
    pub rest: u32,
    pub payload: Vec<u8>,
}

impl Packet {
    /// Reads a packet.
    ///
    /// # Errors
    /// The fault in the packet, in words.
    pub fn parse(bytes: &[u8]) -> Result<Self, String> {
        match bytes.first().map(|first| first >> 4) {
            Some(4) => Self::parse_ipv4(bytes),
            Some(6) => Self::parse_ipv6(bytes),
            _ => Err("neither IPv4 nor IPv6".into()),
        }
    }

    fn parse_ipv4(bytes: &[u8]) -> Result<Self, String> {
        let header: &[u8; 20] = bytes.first_chunk().ok_or("an IPv4 header that is too short")?;
        if header[0] != 0x45 {
            return Err("IPv4 options, which the engine never sends".into());
        }
        if usize::from(u16_at(header, 2)) != bytes.len() {
            return Err(format!("IPv4 total length {} of {} bytes", u16_at(header, 2), bytes.len()));
        }
        if fold(sum(header)) != 0xffff {
            return Err("a wrong IPv4 header checksum".into());
        }
        if u16_at(header, 6) & 0x3fff != 0 {
            return Err("a fragment".into());
        }
        let source = Ipv4Addr::from(u32_at(header, 12)).into();
        let destination = Ipv4Addr::from(u32_at(header, 16)).into();
        let body = Body::parse(header[9], &bytes[20..], source, destination)?;
        let dont_fragment = header[6] & 0x40 != 0;
        Ok(Self { source, destination, ecn: header[1] & 3, dont_fragment, body })
    }

    fn parse_ipv6(bytes: &[u8]) -> Result<Self, String> {
        let header: &[u8; 40] = bytes.first_chunk().ok_or("an IPv6 header that is too short")?;
        if usize::from(u16_at(header, 4)) + 40 != bytes.len() {
            return Err(format!("IPv6 payload length {} of {} bytes", u16_at(header, 4), bytes.len()));
        }
        let address = |at: usize| {
            let octets: [u8; 16] = header[at..at + 16].try_into().unwrap_or_default();
            IpAddr::from(Ipv6Addr::from(octets))
        };
        let (source, destination) = (address(8), address(24));
        let body = Body::parse(header[6], &bytes[40..], source, destination)?;
        Ok(Self { source, destination, ecn: header[1] >> 4 & 3, dont_fragment: true, body })
    }

    /// Writes the packet, checksums included.
    pub fn build(&self) -> Vec<u8> {
        let (protocol, mut body) = match &self.body {
            Body::Tcp(tcp) => (TCP, tcp.build()),
            Body::Icmp(icmp) => {
                let mut bytes = vec![icmp.kind, icmp.code, 0, 0];
                bytes.extend(icmp.rest.to_be_bytes());
                bytes.extend(&icmp.payload);
                (if self.source.is_ipv4() { ICMP } else { ICMP6 }, bytes)
            }
            Body::Other(protocol) => (*protocol, Vec::new()),
        };
        let place = match protocol {
            TCP => 16,
            _ => 2,
        };
        if body.len() >= place + 2 {
            let pseudo =
                if protocol == ICMP { 0 } else { pseudo(self.source, self.destination, protocol, &body) };
            let checksum = !fold(pseudo + sum(&body));
            body[place..place + 2].copy_from_slice(&checksum.to_be_bytes());
        }
        let mut packet = self.ip_header(protocol, body.len());
        packet.extend(body);
        packet
    }

    fn ip_header(&self, protocol: u8, length: usize) -> Vec<u8> {
        match (self.source, self.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                let total = u16::try_from(length + 20).unwrap_or(u16::MAX);
                let mut header = vec![0x45, self.ecn];
                header.extend(total.to_be_bytes());
                header.extend([0, 0, u8::from(self.dont_fragment) << 6, 0, 64, protocol, 0, 0]);
                header.extend(source.octets());
                header.extend(destination.octets());
                let checksum = !fold(sum(&header));
                header[10..12].copy_from_slice(&checksum.to_be_bytes());
                header
            }
            (source, destination) => {
                let length = u16::try_from(length).unwrap_or(u16::MAX);
                let mut header = vec![0x60, self.ecn << 4, 0, 0];
                header.extend(length.to_be_bytes());
                header.extend([protocol, 64]);
                header.extend(octets(source));
                header.extend(octets(destination));
                header
            }
        }
    }
}

impl Body {
    fn parse(protocol: u8, bytes: &[u8], source: IpAddr, destination: IpAddr) -> Result<Self, String> {
        match protocol {
            TCP => {
                if fold(pseudo(source, destination, TCP, bytes) + sum(bytes)) != 0xffff {
                    return Err("a wrong TCP checksum".into());
                }
                Tcp::parse(bytes).map(Self::Tcp)
            }
            ICMP | ICMP6 => {
                let header: &[u8; 8] = bytes.first_chunk().ok_or("an ICMP message that is too short")?;
                let extra = if protocol == ICMP6 { pseudo(source, destination, ICMP6, bytes) } else { 0 };
                if fold(extra + sum(bytes)) != 0xffff {
                    return Err("a wrong ICMP checksum".into());
                }
                let payload = bytes[8..].to_vec();
                Ok(Self::Icmp(Icmp { kind: header[0], code: header[1], rest: u32_at(header, 4), payload }))
            }
            other => Ok(Self::Other(other)),
        }
    }
}

impl Tcp {
    /// Whether any of `flags` is set.
    pub const fn has(&self, flags: u8) -> bool {
        self.flags & flags != 0
    }

    fn parse(bytes: &[u8]) -> Result<Self, String> {
        let header: &[u8; 20] = bytes.first_chunk().ok_or("a TCP header that is too short")?;
        let offset = usize::from(header[12] >> 4) * 4;
        if offset < 20 || offset > bytes.len() {
            return Err(format!("a TCP data offset of {offset} in {} bytes", bytes.len()));
        }
        Ok(Self {
            source: u16_at(header, 0),
            destination: u16_at(header, 2),
            seq: u32_at(header, 4),
            ack: u32_at(header, 8),
            flags: header[13],
            window: u16_at(header, 14),
            urgent: u16_at(header, 18),
            options: TcpOption::parse_all(&bytes[20..offset])?,
            payload: bytes[offset..].to_vec(),
        })
    }

    /// The segment with a checksum of zero.
    fn build(&self) -> Vec<u8> {
        let mut options = Vec::new();
        for option in &self.options {
            option.build(&mut options);
        }
        while options.len() % 4 != 0 {
            options.push(0);
        }
        let mut bytes = Vec::new();
        bytes.extend(self.source.to_be_bytes());
        bytes.extend(self.destination.to_be_bytes());
        bytes.extend(self.seq.to_be_bytes());
        bytes.extend(self.ack.to_be_bytes());
        // There is room for at most 40 bytes of options; the parser of scripts enforces it.
        bytes.extend([((20 + options.len()) / 4) as u8 * 16, self.flags]);
        bytes.extend(self.window.to_be_bytes());
        bytes.extend([0, 0]);
        bytes.extend(self.urgent.to_be_bytes());
        bytes.extend(options);
        bytes.extend(&self.payload);
        bytes
    }
}

impl TcpOption {
    fn parse_all(mut bytes: &[u8]) -> Result<Vec<Self>, String> {
        let mut options = Vec::new();
        while let Some(&kind) = bytes.first() {
            if kind < 2 {
                options.push(if kind == 0 { Self::End } else { Self::Nop });
                bytes = &bytes[1..];
                continue;
            }
            let length = bytes.get(1).map_or(0, |length| usize::from(*length));
            let value =
                bytes.get(2..length).filter(|_| length >= 2).ok_or("a TCP option that does not fit")?;
            options.push(match (kind, value.len()) {
                (2, 2) => Self::Mss(u16_at(value, 0)),
                (3, 1) => Self::WindowScale(value[0]),
                (4, 0) => Self::SackPermitted,
                (5, 8 | 16 | 24 | 32) => {
                    Self::Sack(value.chunks(8).map(|block| (u32_at(block, 0), u32_at(block, 4))).collect())
                }
                (8, 8) => Self::Timestamps(u32_at(value, 0), u32_at(value, 4)),
                _ => Self::Unknown(kind, value.to_vec()),
            });
            bytes = &bytes[length..];
        }
        Ok(options)
    }

    fn build(&self, out: &mut Vec<u8>) {
        match self {
            Self::End => out.push(0),
            Self::Nop => out.push(1),
            Self::Mss(mss) => {
                out.extend([2, 4]);
                out.extend(mss.to_be_bytes());
            }
            Self::WindowScale(shift) => out.extend([3, 3, *shift]),
            Self::SackPermitted => out.extend([4, 2]),
            Self::Sack(blocks) => {
                out.extend([5, 2 + 8 * blocks.len() as u8]);
                for (start, end) in blocks {
                    out.extend(start.to_be_bytes());
                    out.extend(end.to_be_bytes());
                }
            }
            Self::Timestamps(value, echo) => {
                out.extend([8, 10]);
                out.extend(value.to_be_bytes());
                out.extend(echo.to_be_bytes());
            }
            Self::Unknown(kind, value) => {
                out.extend([*kind, 2 + value.len() as u8]);
                out.extend(value);
            }
        }
    }
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

/// The sum of the 16-bit words of `bytes` (RFC 1071).
fn sum(bytes: &[u8]) -> u64 {
    bytes.chunks(2).map(|pair| u64::from(pair[0]) << 8 | pair.get(1).map_or(0, |low| u64::from(*low))).sum()
}

fn pseudo(source: IpAddr, destination: IpAddr, protocol: u8, body: &[u8]) -> u64 {
    sum(&octets(source)) + sum(&octets(destination)) + u64::from(protocol) + body.len() as u64
}

fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn built_packets_are_read_back_and_damage_is_detected() {
        for (source, destination) in [("192.0.2.1", "192.168.0.1"), ("2001:db8::1", "fd00::1")] {
            let packet = Packet {
                source: source.parse().expect("an address"),
                destination: destination.parse().expect("an address"),
                ecn: 2,
                dont_fragment: true,
                body: Body::Tcp(Tcp {
                    source: 1,
                    destination: 2,
                    seq: 0xffff_fff0,
                    ack: 7,
                    flags: SYN | ACK,
                    window: 512,
                    urgent: 0,
                    options: vec![
                        TcpOption::Mss(1460),
                        TcpOption::SackPermitted,
                        TcpOption::Timestamps(1, 2),
                        TcpOption::Nop,
                        TcpOption::WindowScale(7),
                    ],
                    payload: vec![1, 2, 3],
                }),
            };
            let mut bytes = packet.build();
            assert_eq!(Packet::parse(&bytes), Ok(packet));
            let last = bytes.len() - 1;
            bytes[last] ^= 1;
            assert_eq!(Packet::parse(&bytes), Err("a wrong TCP checksum".into()));
        }
    }
}
