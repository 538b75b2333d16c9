//! TCP segments (RFC 9293 section 3.1).
//!
//! ```text
//!  0        2             4     8     12       13      14       16         18       20
//!  | source | destination | seq | ack | offset | flags | window | checksum | urgent | options ...
//! ```

use sietch_nic::Untrusted;

use super::{Address, Checks, Malformed, Payload, Template, checksum, ipv4};
use crate::packet::sequence::Seq;

mod options;

pub(crate) use options::TIMESTAMP_OPTION;
pub use options::{Options, ROOM, Received, SackBlocks};

/// Bytes in a header without options.
pub const HEADER: usize = 20;

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

/// ECN echo: CE-marked data have arrived (RFC 3168).
pub const ECE: u8 = 0x40;
/// Congestion window reduced: the echo was received.
pub const CWR: u8 = 0x80;

/// A segment as received.
#[derive(Clone, Copy, Debug)]
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
    /// Their bytes.
    pub option_bytes: &'a [u8],
    /// Data.
    pub payload: Payload<'a>,
}

impl<'a> Segment<'a> {
    /// Reads a segment between two addresses; `checks` says what its checksum must be.
    ///
    /// # Errors
    /// Too short, a data offset that does not fit, or a wrong checksum. Malformed options are
    /// skipped: what follows them cannot be read, the segment itself can.
    #[inline]
    pub fn parse(
        packet: impl Into<Payload<'a>>,
        source: &Address,
        destination: &Address,
        checks: impl Into<Checks>,
    ) -> Result<Self, Malformed> {
        let packet = packet.into();
        let bytes = packet.head;
        let header = bytes.first_chunk::<HEADER>().ok_or(Malformed::Header)?;
        let offset = usize::from(header[12] >> 4) * 4;
        let length = u16::try_from(packet.len()).map_err(|_| Malformed::Header)?;
        if offset < HEADER || offset > bytes.len() {
            return Err(Malformed::Header);
        }
        let checks = checks.into();
        if checks != Checks::Trust {
            let pseudo = checksum::pseudo_header(source, destination, ipv4::TCP, u32::from(length));
            if !checks.pass([header[16], header[17]], pseudo, &packet) {
                return Err(Malformed::Checksum);
            }
        }
        Ok(Self {
            source: u16::from_be_bytes([header[0], header[1]]),
            destination: u16::from_be_bytes([header[2], header[3]]),
            seq: Seq(u32::from_be_bytes([header[4], header[5], header[6], header[7]])),
            ack: Seq(u32::from_be_bytes([header[8], header[9], header[10], header[11]])),
            flags: header[13],
            window: u16::from_be_bytes([header[14], header[15]]),
            options: Received::parse(&bytes[HEADER..offset]),
            option_bytes: &bytes[HEADER..offset],
            payload: packet.skip(offset),
        })
    }

    /// Sequence numbers that the segment takes up: data, SYN and FIN.
    #[inline]
    pub fn length(&self) -> u32 {
        // A payload fits in sixteen bits: it came in an IPv4 packet.
        self.payload.len() as u32 + u32::from(self.flags & SYN != 0) + u32::from(self.flags & FIN != 0)
    }

    /// The ranges of its SACK option.
    pub fn sack_blocks(&self) -> SackBlocks {
        self.options.sack_blocks(self.option_bytes)
    }

    /// Whether any of `flags` is set.
    #[inline]
    pub const fn has(&self, flags: u8) -> bool {
        self.flags & flags != 0
    }
}

/// The fields that the fast path reads of a segment without options other than timestamps.
#[derive(Clone, Copy, Debug)]
pub struct Plain<'a> {
    /// Sequence number of the first byte.
    pub seq: Seq,
    /// Next byte that the sender expects.
    pub ack: Seq,
    /// Control bits.
    pub flags: u8,
    /// Window, not scaled.
    pub window: u16,
    /// Timestamp value and echo reply.
    pub timestamps: Option<(u32, u32)>,
    /// Data.
    pub payload: Payload<'a>,
}

impl<'a> Plain<'a> {
    /// Reads the segment whose header without options is `header`, followed by `rest`, and perhaps
    /// by `tail`, which is not a part of the header. `None` if it has other options than the
    /// timestamps in their common layout, or does not fit.
    #[inline(always)]
    pub fn read(header: &[u8; HEADER], rest: &'a [u8], tail: Untrusted<'a>) -> Option<Self> {
        let (timestamps, head) = match header[12] >> 4 {
            5 => (None, rest),
            8 => {
                let (&[1, 1, 8, 10, a, b, c, d, e, f, g, h], head) = rest.split_first_chunk()? else {
                    return None;
                };
                (Some((u32::from_be_bytes([a, b, c, d]), u32::from_be_bytes([e, f, g, h]))), head)
            }
            _ => return None,
        };
        let [_, _, _, _, s0, s1, s2, s3, a0, a1, a2, a3, _, flags, w0, w1, ..] = *header;
        Some(Self {
            seq: Seq(u32::from_be_bytes([s0, s1, s2, s3])),
            ack: Seq(u32::from_be_bytes([a0, a1, a2, a3])),
            flags,
            window: u16::from_be_bytes([w0, w1]),
            timestamps,
            payload: Payload { head, tail },
        })
    }
}

/// Whether the checksum of a segment in an IPv4 packet with this header holds.
#[inline]
pub(crate) fn is_whole(
    network: &[u8; ipv4::HEADER],
    segment: &[u8],
    tail: Untrusted<'_>,
    checks: Checks,
) -> bool {
    let [.., a, b, c, d, e, f, g, h] = *network;
    let word = |bytes| u64::from(u32::from_ne_bytes(bytes));
    let length = (segment.len() + tail.len()) as u32;
    let pseudo =
        word([a, b, c, d]) + word([e, f, g, h]) + word([0, 0, 0, ipv4::TCP]) + word(length.to_be_bytes());
    let field = segment.get(16..18).and_then(|field| field.first_chunk()).copied().unwrap_or_default();
    checks.pass(field, pseudo, &Payload { head: segment, tail })
}

impl<'a> Segment<'a> {
    /// The segment as the fast path reads it, unless it reports ranges.
    #[inline]
    pub fn plain(&self) -> Option<Plain<'a>> {
        let Self { seq, ack, flags, window, payload, .. } = *self;
        let timestamps = self.options.timestamps;
        (self.options.sack_count == 0).then_some(Plain { seq, ack, flags, window, timestamps, payload })
    }
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
pub const fn frame_length(template: &Template, options: &Options, payload: usize) -> usize {
    template.network_end() + HEADER + options.length() + payload
}

/// Writes a whole frame: the template, transport header, options, and the payload in its two
/// pieces, copied and summed in one go. Without `checksums` it is only copied, and the checksum
/// left zero.
///
/// # Panics
/// If `out` is not [`frame_length`] bytes long.
#[inline]
pub fn emit(out: &mut [u8], template: &Template, fields: &Fields, payload: (&[u8], &[u8]), checksums: bool) {
    let header_length = HEADER + fields.options.length();
    let length = out.len() - template.network_end();
    let pseudo = template.write(out, length);
    let (header, data) = out[template.network_end()..].split_at_mut(header_length);
    let (first, second) = data.split_at_mut(payload.0.len());
    let data_sum = if !checksums {
        first.copy_from_slice(payload.0);
        second.copy_from_slice(payload.1);
        0
    } else {
        let sum = checksum::copy_and_sum(first, payload.0);
        if second.is_empty() {
            sum
        } else {
            checksum::join(sum, payload.0.len(), checksum::copy_and_sum(second, payload.1))
        }
    };
    let (fixed, options) = header.split_first_chunk_mut::<HEADER>().expect("a header is at least that long");
    let ack = if fields.flags & ACK == 0 { 0 } else { fields.ack.0 };
    fixed[4..8].copy_from_slice(&fields.seq.0.to_be_bytes());
    fixed[8..12].copy_from_slice(&ack.to_be_bytes());
    // At most 40 + 20 bytes: fifteen words.
    fixed[12] = (header_length as u8 / 4) << 4;
    fixed[13] = fields.flags;
    fixed[14..16].copy_from_slice(&fields.window.to_be_bytes());
    fixed[16..20].fill(0);
    fields.options.emit(options);
    if !checksums {
        return;
    }
    let sum = pseudo + data_sum + checksum::sum(header);
    header[16..18].copy_from_slice(&checksum::finish(sum));
}
