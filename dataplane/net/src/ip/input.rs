//! What IP makes of a received packet.

use super::icmp_error::IcmpError;
use super::origin::Origin;
use crate::context::Context;
use crate::packet::{Address, AddressIndex, Malformed, Payload, arp, icmp};

/// What the engine has to do for a packet after IP has seen it.
#[derive(Debug)]
pub(crate) enum Input<'a> {
    /// Nothing.
    Done,
    /// Deliver the payload.
    Upper(Upper<'a>),
    /// Deliver the payload of a packet that came in fragments.
    Reassembled { origin: Origin, destination: Address, protocol: u8, bytes: Vec<u8>, packet: Payload<'a> },
    /// Deliver the error to the protocol whose packet is quoted. `local` is the index of our
    /// address.
    Error { error: IcmpError, quote: icmp::Quote, local: AddressIndex },
    /// Send what waited for a link address, and answer an ARP request in place.
    Neighbour { resolved: Option<(Address, [u8; 6])>, answer: Option<arp::Packet> },
    /// Answer an echo request of this many bytes in place.
    Echo { length: usize },
}

impl Input<'_> {
    /// Counts a packet that cannot be read.
    pub(crate) fn malformed(cx: &mut Context, reason: Malformed) -> Self {
        cx.count_malformed(reason);
        Self::Done
    }
}

/// A TCP segment or a UDP datagram that is not parsed yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Upper<'a> {
    pub origin: Origin,
    pub destination: Address,
    pub protocol: u8,
    /// It was sent to a group that was joined.
    pub to_group: bool,
    pub payload: Payload<'a>,
    /// The whole packet, which an ICMP error would quote.
    pub packet: Payload<'a>,
}
