//! IPv6 (RFC 8200).
//!
//! ```text
//!  0               4        6             7           8        24            40
//!  | 6:class:label | length | next header | hop limit | source | destination | extensions ...
//! ```
//!
//! 1. [`Header::parse`] reads the fixed header, [`walk`] what is between it and the transport
//!    header. These are at most [`EXTENSIONS`] headers, all of which must be in the head of the
//!    frame.
//! 2. Options that say so in their number are passed over, the others make the packet a problem
//!    (RFC 8200 section 4.2).
//! 3. Routing headers with segments left are refused, type 0 like any that we do not know (RFC
//!    5095, RFC 8200 section 4.4).
//! 4. What we send has no extension headers, and is never fragmented.

use super::{Address, Malformed, Payload, ipv4};

/// Bytes in the fixed header.
pub const HEADER: usize = 40;
/// Next header: ICMPv6.
pub const ICMP: u8 = 58;
/// The smallest MTU that a link may have (RFC 8200 section 5).
pub(crate) const MINIMUM_MTU: usize = 1280;
/// Hops that our packets may travel.
pub const HOP_LIMIT: u8 = 64;

/// What the fixed header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Sender.
    pub source: Address,
    /// Receiver.
    pub destination: Address,
    /// What follows the fixed header.
    pub next_header: u8,
    /// Hops that were left.
    pub hop_limit: u8,
    /// The two bits of explicit congestion notification (RFC 3168).
    pub ecn: u8,
}

impl Header {
    /// Reads the fixed header and returns it with what follows, without the padding that a link may
    /// have added.
    ///
    /// # Errors
    /// Too short, not version 6, a length that does not fit, or an IPv4 address in disguise.
    #[inline]
    pub fn parse<'a>(packet: impl Into<Payload<'a>>) -> Result<(Self, Payload<'a>), Malformed> {
        let packet = packet.into();
        let fixed = packet.head.first_chunk::<HEADER>().ok_or(Malformed::Header)?;
        let length = usize::from(u16::from_be_bytes([fixed[4], fixed[5]]));
        if fixed[0] >> 4 != 6 || length > packet.len() - HEADER {
            return Err(Malformed::Header);
        }
        let mut source = [0; 16];
        let mut destination = [0; 16];
        source.copy_from_slice(&fixed[8..24]);
        destination.copy_from_slice(&fixed[24..40]);
        let header = Self {
            source: Address::from_octets(source),
            destination: Address::from_octets(destination),
            next_header: fixed[6],
            hop_limit: fixed[7],
            ecn: fixed[1] >> 4 & 3,
        };
        if header.source.is_v4() || header.destination.is_v4() {
            return Err(Malformed::Header);
        }
        Ok((header, packet.take(HEADER + length).skip(HEADER)))
    }
}

/// Writes a fixed header before `payload` bytes of `next_header`.
#[inline]
pub fn emit(
    out: &mut [u8; HEADER],
    source: &Address,
    destination: &Address,
    next_header: u8,
    hop_limit: u8,
    payload: usize,
) {
    let length = u16::try_from(payload).unwrap_or(u16::MAX).to_be_bytes();
    out[..8].copy_from_slice(&[0x60, 0, 0, 0, length[0], length[1], next_header, hop_limit]);
    out[8..24].copy_from_slice(source.octets());
    out[24..].copy_from_slice(destination.octets());
}

/// Next header: options for every node on the way.
pub(crate) const HOP_BY_HOP: u8 = 0;
/// Next header: the way that the packet is to take.
pub(crate) const ROUTING: u8 = 43;
/// Next header: a fragment.
pub const FRAGMENT: u8 = 44;
/// Next header: nothing.
pub(crate) const NO_NEXT_HEADER: u8 = 59;
/// Next header: options for the destination.
pub const DESTINATION_OPTIONS: u8 = 60;
/// Most extension headers of a packet: RFC 8200 section 4.1 lists seven in an order that makes
/// sense.
pub(crate) const EXTENSIONS: usize = 8;

/// What a fragment header says (RFC 8200 section 4.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fragment {
    /// What the fragments of a packet have in common.
    pub identification: u32,
    /// Bytes before this fragment.
    pub offset: usize,
    /// Whether more fragments follow.
    pub more: bool,
}

/// What the extension headers lead to.
#[derive(Clone, Copy, Debug)]
pub struct Upper<'a> {
    /// The transport protocol.
    pub protocol: u8,
    /// The rest of the packet or of the fragment.
    pub payload: Payload<'a>,
    /// Its position in the packet, if it is a fragment.
    pub fragment: Option<Fragment>,
    /// Bytes of extension headers before it.
    pub skipped: usize,
}

/// Why a packet goes no further.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Drop it and send nothing.
    Silent,
    /// Its headers are cut short or contradict themselves.
    Malformed,
    /// Report a parameter problem to its sender (RFC 4443 section 3.4).
    Problem {
        /// 0 an erroneous field, 1 an unknown next header, 2 an unknown option.
        code: u8,
        /// Where in the packet.
        pointer: u32,
        /// Even if it was sent to a group.
        to_group: bool,
    },
}

/// Follows the extension headers from the fixed header's `next_header` on; `payload` is what
/// follows it.
///
/// # Errors
/// A [`Refusal`] says how to drop the packet.
#[inline]
pub fn walk(next_header: u8, payload: Payload<'_>) -> Result<Upper<'_>, Refusal> {
    if matches!(next_header, ipv4::TCP | ipv4::UDP | ICMP) {
        return Ok(Upper { protocol: next_header, payload, fragment: None, skipped: 0 });
    }
    walk_extensions(next_header, payload)
}

#[cold]
fn walk_extensions(first: u8, payload: Payload<'_>) -> Result<Upper<'_>, Refusal> {
    // `named_at` is where in the packet the number of the present header is.
    let (mut protocol, mut skipped, mut named_at) = (first, 0, 6);
    for step in 0..=EXTENSIONS {
        let rest = payload.skip(skipped);
        match protocol {
            ipv4::TCP | ipv4::UDP | ICMP => {
                return Ok(Upper { protocol, payload: rest, fragment: None, skipped });
            }
            NO_NEXT_HEADER => return Err(Refusal::Silent),
            FRAGMENT => {
                let [next, _, high, low, id @ ..] =
                    *rest.head.first_chunk::<8>().ok_or(Refusal::Malformed)?;
                let fragment = Fragment {
                    identification: u32::from_be_bytes(id),
                    offset: usize::from(u16::from_be_bytes([high, low]) & !7),
                    more: low & 1 != 0,
                };
                let payload = rest.skip(8);
                return Ok(Upper { protocol: next, payload, fragment: Some(fragment), skipped: skipped + 8 });
            }
            HOP_BY_HOP if step == 0 => {}
            ROUTING | DESTINATION_OPTIONS => {}
            _ => return Err(Refusal::Problem { code: 1, pointer: named_at, to_group: false }),
        }
        let [next, units, kind, left] = *rest.head.first_chunk::<4>().ok_or(Refusal::Malformed)?;
        let length = 8 + usize::from(units) * 8;
        let bytes = rest.head.get(..length).ok_or(Refusal::Malformed)?;
        let at = (HEADER + skipped) as u32;
        if protocol != ROUTING {
            check_options(&bytes[2..], at + 2)?;
        } else if left != 0 {
            // The field that is wrong is the type.
            let _ = kind;
            return Err(Refusal::Problem { code: 0, pointer: at + 2, to_group: false });
        }
        (protocol, named_at) = (next, at);
        skipped += length;
    }
    Err(Refusal::Silent)
}

/// Refuses options that must not be passed over. `at` is where in the packet they begin.
fn check_options(mut options: &[u8], mut at: u32) -> Result<(), Refusal> {
    while let [kind, rest @ ..] = options {
        if *kind == 0 {
            (options, at) = (rest, at + 1);
            continue;
        }
        let length = 2 + usize::from(*rest.first().ok_or(Refusal::Malformed)?);
        // PadN and the router alert (RFC 2711) are known.
        match kind >> 6 {
            _ if matches!(kind, 1 | 5) => {}
            0 => {}
            1 => return Err(Refusal::Silent),
            action => return Err(Refusal::Problem { code: 2, pointer: at, to_group: action == 2 }),
        }
        options = options.get(length..).ok_or(Refusal::Malformed)?;
        at += length as u32;
    }
    Ok(())
}
