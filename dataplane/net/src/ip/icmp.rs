//! ICMP errors: which received ones count, and which we send.
//!
//! 1. A received error counts only if it quotes a packet from one of our addresses, of the error's
//!    own family. TCP and UDP check the rest (`tcp/icmp`, `udp`).
//! 2. No error is sent about an ICMP error or about a packet to a group. At most
//!    [`crate::limits::UNREACHABLE_RATE`] a second are sent (RFC 1122 section 3.2.2, RFC 4443
//!    section 2.4).

use super::Ip;
use super::icmp_error::IcmpError;
use super::input::Input;
use super::origin::Origin;
use super::outgoing::{Body, NextHop, Outgoing};
use crate::context::Context;
use crate::limits::UDP_SEND_QUEUE;
use crate::packet::{Address, Payload, icmp, icmpv6, ipv4, ipv6};

/// The type, the code and the second word of an ICMP error that we send.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ErrorMessage {
    pub kind: u8,
    pub code: u8,
    pub rest: u32,
}

/// What an error quotes of a packet: RFC 792 calls for the header and eight bytes, RFC 4443 for as
/// much as fits the smallest MTU.
pub(super) fn error_quote<'a>(remote: &Address, packet: Payload<'a>) -> &'a [u8] {
    let most =
        if remote.is_v4() { ipv4::HEADER + 8 } else { ipv6::MINIMUM_MTU - ipv6::HEADER - icmpv6::HEADER };
    &packet.head[..packet.head.len().min(most)]
}

impl ErrorMessage {
    /// Not all fragments of a packet came in time: code 1 of both families.
    pub(crate) const fn reassembly_time_exceeded(remote: &Address) -> Self {
        let kind = if remote.is_v4() { icmp::TIME_EXCEEDED } else { icmpv6::TIME_EXCEEDED };
        Self { kind, code: 1, rest: 0 }
    }

    /// Nothing listens at the port.
    pub(crate) const fn port_unreachable(remote: &Address) -> Self {
        if remote.is_v4() {
            Self { kind: icmp::UNREACHABLE, code: icmp::PORT_UNREACHABLE, rest: 0 }
        } else {
            Self { kind: icmpv6::UNREACHABLE, code: icmpv6::PORT_UNREACHABLE, rest: 0 }
        }
    }
}

/// Takes an error that quotes a packet of ours; `v4` is the family of the error.
pub(super) fn receive_error<'a>(cx: &mut Context, error: IcmpError, quoted: &[u8], v4: bool) -> Input<'a> {
    let Some(quote) = icmp::Quote::parse(quoted) else {
        cx.metrics.malformed += 1;
        return Input::Done;
    };
    let index = cx.addresses.index_of(&quote.source);
    let Some(local) = index.filter(|_| quote.source.is_v4() == v4 && quote.destination.is_v4() == v4) else {
        cx.metrics.wrong_address += 1;
        return Input::Done;
    };
    Input::Error { error, quote, local }
}

impl Ip {
    /// Sends an error to the sender of `packet`.
    pub(crate) fn send_error(
        &mut self,
        cx: &mut Context,
        origin: &Origin,
        error: ErrorMessage,
        packet: Payload<'_>,
    ) {
        if cx.outgoing.len() >= UDP_SEND_QUEUE || !self.error_limit.take(cx.now) {
            cx.metrics.rate_limited += 1;
            return;
        }
        let payload = error_quote(&origin.remote, packet).to_vec();
        let ErrorMessage { kind, code, rest } = error;
        cx.metrics.icmp_errors_sent += 1;
        cx.outgoing.push_back(Outgoing {
            local: cx.addresses.get(origin.local),
            remote: origin.remote,
            next_hop: NextHop::Link(origin.mac),
            body: Body::Icmp { kind, code, rest, hop_limit: ipv6::HOP_LIMIT, payload },
        });
        cx.pending = true;
    }
}
