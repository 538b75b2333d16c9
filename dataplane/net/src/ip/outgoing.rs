//! Packets that wait for the next emission and belong to no flow.

use crate::packet::{Address, EcnCodepoint, icmpv6};

/// A datagram or an ICMP message on its way out.
#[derive(Debug)]
pub(crate) struct Outgoing {
    pub local: Address,
    pub remote: Address,
    pub next_hop: NextHop,
    pub body: Body,
}

/// Its next hop.
#[derive(Clone, Copy, Debug)]
pub(crate) enum NextHop {
    Link([u8; 6]),
    Address(Address),
}

/// What it is.
#[derive(Debug)]
pub(crate) enum Body {
    Datagram {
        source: u16,
        destination: u16,
        ecn: EcnCodepoint,
        payload: Vec<u8>,
    },
    /// A report of groups.
    Report {
        message: Vec<u8>,
    },
    /// A message of the family's ICMP, without its header.
    Icmp {
        kind: u8,
        code: u8,
        rest: u32,
        hop_limit: u8,
        payload: Vec<u8>,
    },
}

impl Body {
    /// A neighbour advertisement: `target` is ours, at this link address.
    pub(crate) fn advertisement(target: &Address, mac: [u8; 6], flags: u32) -> Self {
        let (kind, hop_limit) = (icmpv6::NEIGHBOUR_ADVERTISEMENT, icmpv6::LINK_HOP_LIMIT);
        let payload = icmpv6::neighbour_payload(kind, target, mac);
        Self::Icmp { kind, code: 0, rest: flags, hop_limit, payload }
    }
}
