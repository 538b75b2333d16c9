//! TCP segments (RFC 9293 section 3.1).
//!
//! ```text
//!  0        2             4     8     12       13      14       16         18       20
//!  | source | destination | seq | ack | offset | flags | window | checksum | urgent | options | payload
//! ```

use super::{Malformed, checksum, ethernet, ipv4};
use crate::sequence::Seq;

/// Bytes in a header without options.
pub const HEADER: usize = 20;
/// Bytes of the timestamp option, aligned as everybody sends it (RFC 7323 appendix A).
pub const TIMESTAMP_OPTION: usize = 12;
/// Bytes of link, network and transport headers before the options.
pub const ALL_HEADERS: usize = ethernet::HEADER + ipv4::HEADER + HEADER;

/// No more data from the sender.
pub const FIN: u8 = 0x01;
/// Synchronise sequence numbers.
pub const SYN: u8 = 0x02;
/// Reset the connection.
pub const RST: u8 = 0x04;
/// Hand the data to the application.
pub const PSH: u8 = 0x08;
/// The acknowledgement field means something.
pub const ACK: u8 = 0x10;
/// The urgent pointer means something.
pub const URG: u8 = 0x20;

/// Options of a received segment that the engine understands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Received {
    /// Largest segment that the sender takes.
    pub mss: Option<u16>,
    /// Window scale, at most 14 (RFC 7323 section 2.3).
    pub shift: Option<u8>,
    /// Whether selective acknowledgements may be sent.
    pub sack_permitted: bool,
    /// Timestamp value and echo reply.
    pub timestamps: Option<(u32, u32)>,
}

/// A segment as received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment<'a> {
    /// Sender's port.
    pub source: u16,
    /// Receiver's port.
    pub destination: u16,
    /// Sequence number of the first byte, or of the SYN.
    pub seq: Seq,
    /// Next byte that the sender expects.
    pub ack: Seq,
    /// Control bits.
    pub flags: u8,
    /// Window, not scaled.
    pub window: u16,
    /// Options.
    pub options: Received,
    /// Data.
    pub payload: &'a [u8],
}

impl<'a> Segment<'a> {
    /// Reads a segment between two addresses.
    ///
    /// # Errors
    /// Too short, a data offset that does not fit, or a wrong checksum. Malformed options are skipped: what
    /// follows them cannot be read, the segment itself can.
    #[inline]
    pub fn parse(bytes: &'a [u8], source: u32, destination: u32) -> Result<Self, Malformed> {
        let header = bytes.first_chunk::<HEADER>().ok_or(Malformed::Header)?;
        let offset = usize::from(header[12] >> 4) * 4;
        let length = u16::try_from(bytes.len()).map_err(|_| Malformed::Header)?;
        if offset < HEADER || offset > bytes.len() {
            return Err(Malformed::Header);
        }
        let pseudo = checksum::pseudo_header(source, destination, ipv4::TCP, length);
        if !checksum::is_valid(pseudo + checksum::sum(bytes)) {
            return Err(Malformed::Checksum);
        }
        Ok(Self {
            source: u16::from_be_bytes([header[0], header[1]]),
            destination: u16::from_be_bytes([header[2], header[3]]),
            seq: Seq(u32::from_be_bytes([header[4], header[5], header[6], header[7]])),
            ack: Seq(u32::from_be_bytes([header[8], header[9], header[10], header[11]])),
            flags: header[13],
            window: u16::from_be_bytes([header[14], header[15]]),
            options: parse_options(&bytes[HEADER..offset]),
            payload: &bytes[offset..],
        })
    }

    /// Sequence numbers that the segment takes up: data, SYN and FIN.
    #[inline]
    pub fn length(&self) -> u32 {
        // A payload fits in sixteen bits: it came in an IPv4 packet.
        self.payload.len() as u32 + u32::from(self.flags & SYN != 0) + u32::from(self.flags & FIN != 0)
    }

    /// Whether any of `flags` is set.
    #[inline]
    pub const fn has(&self, flags: u8) -> bool {
        self.flags & flags != 0
    }
}

#[inline]
fn parse_options(bytes: &[u8]) -> Received {
    // The one layout that data segments of every common sender have.
    if let &[1, 1, 8, 10, a, b, c, d, e, f, g, h] = bytes {
        let timestamps = Some((u32::from_be_bytes([a, b, c, d]), u32::from_be_bytes([e, f, g, h])));
        return Received { timestamps, ..Received::default() };
    }
    if bytes.is_empty() { Received::default() } else { parse_any_options(bytes) }
}

fn parse_any_options(mut bytes: &[u8]) -> Received {
    let mut options = Received::default();
    loop {
        match bytes {
            [] | [0, ..] => return options,
            [1, rest @ ..] => bytes = rest,
            [kind, length, ..] if *length >= 2 && usize::from(*length) <= bytes.len() => {
                let (option, rest) = bytes.split_at(usize::from(*length));
                match (kind, &option[2..]) {
                    (2, &[a, b]) => options.mss = Some(u16::from_be_bytes([a, b])),
                    (3, &[shift]) => options.shift = Some(shift.min(14)),
                    (4, []) => options.sack_permitted = true,
                    (8, &[a, b, c, d, e, f, g, h]) => {
                        options.timestamps =
                            Some((u32::from_be_bytes([a, b, c, d]), u32::from_be_bytes([e, f, g, h])));
                    }
                    _ => {}
                }
                bytes = rest;
            }
            _ => return options,
        }
    }
}

/// Options of a segment that we send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Options {
    /// None.
    None,
    /// Timestamp value and echo reply.
    Timestamps(u32, u32),
    /// What a SYN offers: segment size, window scale, timestamps.
    Syn {
        /// Largest segment that we take.
        mss: u16,
        /// Our window scale, unless the peer spoke first and offered none.
        shift: Option<u8>,
        /// Timestamps, unless the peer spoke first and offered none.
        timestamps: Option<(u32, u32)>,
    },
}

impl Options {
    /// Bytes of options, padded to whole words.
    #[inline]
    pub const fn length(&self) -> usize {
        match self {
            Self::None => 0,
            Self::Timestamps(..) => TIMESTAMP_OPTION,
            Self::Syn { shift, timestamps, .. } => {
                4 + if shift.is_some() { 4 } else { 0 }
                    + if timestamps.is_some() { TIMESTAMP_OPTION } else { 0 }
            }
        }
    }

    #[inline]
    fn emit(&self, out: &mut [u8]) {
        match *self {
            Self::None => {}
            Self::Timestamps(value, echo) => emit_timestamps(out, value, echo),
            Self::Syn { mss, shift, timestamps } => {
                let [high, low] = mss.to_be_bytes();
                out[..4].copy_from_slice(&[2, 4, high, low]);
                let mut at = 4;
                if let Some(shift) = shift {
                    out[4..8].copy_from_slice(&[1, 3, 3, shift]);
                    at = 8;
                }
                if let Some((value, echo)) = timestamps {
                    emit_timestamps(&mut out[at..], value, echo);
                }
            }
        }
    }
}

#[inline]
fn emit_timestamps(out: &mut [u8], value: u32, echo: u32) {
    out[..4].copy_from_slice(&[1, 1, 8, 10]);
    out[4..8].copy_from_slice(&value.to_be_bytes());
    out[8..12].copy_from_slice(&echo.to_be_bytes());
}

/// Who talks to whom: all that the headers of one flow have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// Our link address.
    pub mac: [u8; 6],
    /// The next hop's link address.
    pub next_hop: [u8; 6],
    /// Our address.
    pub local: u32,
    /// The peer's address.
    pub remote: u32,
    /// Our port.
    pub local_port: u16,
    /// The peer's port.
    pub remote_port: u16,
}

/// The fields of a segment that we send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fields {
    /// Sequence number.
    pub seq: Seq,
    /// Acknowledgement; sent as zero unless [`ACK`] is set.
    pub ack: Seq,
    /// Control bits.
    pub flags: u8,
    /// Window, scaled already.
    pub window: u16,
    /// Options.
    pub options: Options,
}

/// Bytes of the whole frame.
#[inline]
pub const fn frame_length(options: &Options, payload: usize) -> usize {
    ALL_HEADERS + options.length() + payload
}

/// Writes a whole frame: link, network and transport headers, options, and the payload in its two pieces, copied and
/// summed in one go.
///
/// # Panics
/// If `out` is not [`frame_length`] bytes long.
#[inline]
pub fn emit(out: &mut [u8], path: &Path, fields: &Fields, payload: (&[u8], &[u8])) {
    let header_length = HEADER + fields.options.length();
    let (link, rest) =
        out.split_first_chunk_mut::<{ ethernet::HEADER }>().expect("the caller sized the frame");
    ethernet::Header { destination: path.next_hop, source: path.mac, ethertype: ethernet::IPV4 }.emit(link);
    let (network, segment) =
        rest.split_first_chunk_mut::<{ ipv4::HEADER }>().expect("the caller sized the frame");
    ipv4::emit(network, path.local, path.remote, ipv4::TCP, segment.len());
    let length = u16::try_from(segment.len()).unwrap_or(u16::MAX);
    let (header, data) = segment.split_at_mut(header_length);
    let (first, second) = data.split_at_mut(payload.0.len());
    let sum = checksum::copy_and_sum(first, payload.0);
    let data_sum = if second.is_empty() {
        sum
    } else {
        checksum::join(sum, payload.0.len(), checksum::copy_and_sum(second, payload.1))
    };
    let (fixed, options) = header.split_first_chunk_mut::<HEADER>().expect("a header is at least that long");
    let ack = if fields.flags & ACK == 0 { 0 } else { fields.ack.0 };
    fixed[..2].copy_from_slice(&path.local_port.to_be_bytes());
    fixed[2..4].copy_from_slice(&path.remote_port.to_be_bytes());
    fixed[4..8].copy_from_slice(&fields.seq.0.to_be_bytes());
    fixed[8..12].copy_from_slice(&ack.to_be_bytes());
    // At most 40 + 20 bytes: fifteen words.
    fixed[12] = (header_length as u8 / 4) << 4;
    fixed[13] = fields.flags;
    fixed[14..16].copy_from_slice(&fields.window.to_be_bytes());
    fixed[16..20].fill(0);
    fields.options.emit(options);
    let sum = checksum::pseudo_header(path.local, path.remote, ipv4::TCP, length)
        + data_sum
        + checksum::sum(&header[..header_length]);
    header[16..18].copy_from_slice(&checksum::finish(sum));
}
