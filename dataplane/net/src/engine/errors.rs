//! ICMP errors of both families: what others say of our packets, and what we say of theirs.
//!
//! 1. Anybody can write one, so an error counts only if it quotes a packet that may be in flight: for TCP one of our addresses, a flow, and a
//!    sequence number between the oldest unacknowledged and the highest sent (RFC 5927).
//! 2. A connection that is being opened fails at once if its peer refuses or cannot be reached; to one that is open the same is a soft
//!    error (RFC 1122 section 4.2.3.9, RFC 5461): the retransmission decides.
//! 3. We answer none with another, none to who sent to a group, and no more than [`crate::limits::UNREACHABLE_RATE`] a second
//!    (RFC 1122 section 3.2.2, RFC 4443 section 2.4).

use super::{Engine, Origin, network_header};
use crate::events::CloseReason;
use crate::flow::{State, flag};
use crate::flow_table::{Entry, Name};
use crate::limits::UDP_SEND_QUEUE;
use crate::packet::{Address, Payload, icmp, icmpv6, ipv4, ipv6, tcp};
use crate::udp::{Body, NextHop, Outgoing};

/// Smallest MTU that an ICMP message may name (RFC 879's 576 less slack for what Linux accepts): a forged one must not shrink us to nothing.
const SMALLEST_PATH_MTU: usize = 552;

/// What an error says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trouble {
    /// The packet is larger than the MTU of the next link.
    TooBig(usize),
    /// There is nobody at the port, or nobody who speaks the protocol.
    Refused,
    /// There is no way to the host, or it is forbidden.
    Unreachable,
    /// Something that may pass: a loop, a header that somebody does not like.
    Passing,
}

/// What we say of somebody's packet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Report {
    pub kind: u8,
    pub code: u8,
    pub rest: u32,
}

impl Report {
    /// Nobody listens at that port.
    pub const fn port_unreachable(remote: &Address) -> Self {
        if remote.is_v4() {
            Self { kind: icmp::UNREACHABLE, code: icmp::PORT_UNREACHABLE, rest: 0 }
        } else {
            Self { kind: icmpv6::UNREACHABLE, code: icmpv6::PORT_UNREACHABLE, rest: 0 }
        }
    }
}

impl Engine {
    /// Takes an error of the family `v4` that quotes a packet of ours.
    pub(super) fn receive_error(&mut self, trouble: Trouble, quoted: &[u8], v4: bool) {
        let Some(quote) = icmp::Quote::parse(quoted) else {
            self.metrics.malformed += 1;
            return;
        };
        let place = self.addresses.index_of(&quote.source);
        let Some(local) = place.filter(|_| quote.source.is_v4() == v4 && quote.destination.is_v4() == v4)
        else {
            self.metrics.foreign_address += 1;
            return;
        };
        if quote.protocol == ipv4::TCP {
            self.segment_in_trouble(trouble, &quote, local);
        }
    }

    fn segment_in_trouble(&mut self, trouble: Trouble, quote: &icmp::Quote, local: u8) {
        let name =
            Name { remote: quote.destination, remote_port: quote.ports.1, local_port: quote.ports.0, local };
        let Some(Entry::Flow(index)) = self.directory.find(&name) else { return };
        let index = index as usize;
        let flow = &mut self.flows.hot[index];
        if quote.sequence.wrapping_sub(flow.una.0) >= flow.outstanding() {
            return;
        }
        let opening = flow.state == State::SynSent;
        match trouble {
            Trouble::TooBig(mtu) => self.segment_too_big(index, mtu, &name.remote),
            Trouble::Refused | Trouble::Unreachable if opening => {
                self.metrics.icmp_errors += 1;
                self.metrics.connections_failed += 1;
                let refused = trouble == Trouble::Refused;
                self.finish(index, if refused { CloseReason::Refused } else { CloseReason::Unreachable });
            }
            _ => {}
        }
    }

    fn segment_too_big(&mut self, index: usize, mtu: usize, remote: &Address) {
        let mtu = if remote.is_v4() {
            mtu.max(SMALLEST_PATH_MTU)
        } else if mtu < ipv6::MINIMUM_MTU {
            // RFC 8201 section 4: no link is like that.
            return;
        } else {
            mtu
        };
        let flow = &mut self.flows.hot[index];
        let options = if flow.has(flag::TIMESTAMPS) { tcp::TIMESTAMP_OPTION } else { 0 };
        let room = mtu - network_header(remote) - tcp::HEADER - options;
        let mss = u16::try_from(room).unwrap_or(u16::MAX);
        if mss < flow.mss {
            flow.mss = mss;
            self.lose_all(index);
            self.metrics.icmp_errors += 1;
            self.flows.cold[index].timed_at = 0;
            self.touch(index);
        }
    }

    /// Tells the sender of `packet` what is wrong with it.
    pub(super) fn report(&mut self, origin: &Origin, report: Report, packet: Payload<'_>) {
        if self.outgoing.len() >= UDP_SEND_QUEUE || !self.unreachable_bucket.take(self.now) {
            self.metrics.rate_limited += 1;
            return;
        }
        // The header and eight bytes are what RFC 792 asks for; RFC 4443 wants as much as fits the smallest MTU.
        let most = if origin.remote.is_v4() {
            ipv4::HEADER + 8
        } else {
            ipv6::MINIMUM_MTU - ipv6::HEADER - icmpv6::HEADER
        };
        let payload = packet.head[..packet.head.len().min(most)].to_vec();
        let Report { kind, code, rest } = report;
        self.metrics.icmp_errors_sent += 1;
        self.outgoing.push_back(Outgoing {
            local: self.addresses.get(origin.local),
            remote: origin.remote,
            next_hop: NextHop::Link(origin.mac),
            body: Body::Icmp { kind, code, rest, hop_limit: ipv6::HOP_LIMIT, payload },
        });
        self.pending = true;
    }
}
