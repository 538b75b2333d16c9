//! ICMP errors of both families: what others say of our packets, and what we say of theirs.
//!
//! 1. Anybody can write one, so an error counts only if it quotes a packet that may be in flight:
//!    for TCP one of our addresses, a flow, and a sequence number between the oldest unacknowledged
//!    and the highest sent (RFC 5927).
//! 2. A connection that is being opened fails at once if its peer refuses or cannot be reached; to
//!    one that is open the same is a soft error (RFC 1122 section 4.2.3.9, RFC 5461): the
//!    retransmission decides, and it is named as the reason if that fails.
//! 3. We answer none with another, none to who sent to a group, and no more than
//!    [`crate::limits::UNREACHABLE_RATE`] a second (RFC 1122 section 3.2.2, RFC 4443 section 2.4).

use super::{Engine, Origin, network_header};
use crate::events::CloseReason;
use crate::flow::{State, flag};
use crate::flow_table::{Entry, Name};
use crate::limits::{SMALLEST_MSS, UDP_SEND_QUEUE};
use crate::packet::{Address, Payload, icmp, icmpv6, ipv4, ipv6, tcp};
use crate::path_mtu::believed;
use crate::udp::{Body, NextHop, Outgoing};

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

/// What an error quotes of a packet: the header and eight bytes are what RFC 792 asks for; RFC 4443
/// wants as much as fits the smallest MTU.
pub(super) fn error_quote<'a>(remote: &Address, packet: Payload<'a>) -> &'a [u8] {
    let most =
        if remote.is_v4() { ipv4::HEADER + 8 } else { ipv6::MINIMUM_MTU - ipv6::HEADER - icmpv6::HEADER };
    &packet.head[..packet.head.len().min(most)]
}

impl Report {
    /// Not all parts of a packet came in time: code 1 of both families.
    pub const fn reassembly_time_exceeded(remote: &Address) -> Self {
        let kind = if remote.is_v4() { icmp::TIME_EXCEEDED } else { icmpv6::TIME_EXCEEDED };
        Self { kind, code: 1, rest: 0 }
    }

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
            self.metrics.wrong_address += 1;
            return;
        };
        match quote.protocol {
            ipv4::TCP => self.segment_in_trouble(trouble, &quote, local),
            ipv4::UDP => self.datagram_in_trouble(trouble, &quote),
            _ => {}
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
            Trouble::TooBig(mtu) => self.segment_too_big(index, mtu, quote),
            Trouble::Refused | Trouble::Unreachable if opening => {
                self.metrics.icmp_errors += 1;
                self.metrics.connections_failed += 1;
                let refused = trouble == Trouble::Refused;
                self.finish(index, if refused { CloseReason::Refused } else { CloseReason::Unreachable });
            }
            Trouble::Refused | Trouble::Unreachable => {
                self.metrics.icmp_errors += 1;
                self.flows.cold[index].unreachable_at = self.now.max(1);
            }
            Trouble::Passing => {}
        }
    }

    /// The MTU of the path to `remote`.
    pub(crate) fn path_mtu(&self, remote: &Address) -> usize {
        self.path_mtus.get(remote, self.now).map_or(self.mtu, |mtu| mtu.min(self.mtu))
    }

    /// A packet of `length` bytes to `remote` was too big for a link with this MTU. Returns what is
    /// believed of that.
    pub(super) fn path_shrinks(&mut self, remote: &Address, mtu: usize, length: usize) -> Option<usize> {
        let mtu = believed(remote, mtu, length).filter(|mtu| *mtu < self.path_mtu(remote))?;
        self.metrics.icmp_errors += 1;
        self.path_mtus.set(*remote, mtu, self.now);
        Some(mtu)
    }

    fn segment_too_big(&mut self, index: usize, mtu: usize, quote: &icmp::Quote) {
        let remote = &quote.destination;
        self.path_shrinks(remote, mtu, quote.length);
        // Another flow to the same host may have heard of it first.
        if believed(remote, mtu, quote.length).is_some() {
            self.shrink_segments(index, self.path_mtu(remote));
        }
    }

    /// Payload of a flow's full segments in packets of `mtu` bytes.
    pub(crate) fn segment_size(&self, index: usize, mtu: usize) -> u16 {
        let remote = self.flows.path[index].remote();
        let options = if self.flows.hot[index].has(flag::TIMESTAMPS) { tcp::TIMESTAMP_OPTION } else { 0 };
        let room = mtu.saturating_sub(network_header(&remote) + tcp::HEADER + options);
        u16::try_from(room).unwrap_or(u16::MAX).max(SMALLEST_MSS)
    }

    /// The segments of a flow become no larger than packets of `mtu` bytes carry, and what is in
    /// flight leaves again in such pieces. That is no sign of congestion (RFC 8201 section 5.4).
    fn shrink_segments(&mut self, index: usize, mtu: usize) {
        let mss = self.segment_size(index, mtu);
        let flow = &mut self.flows.hot[index];
        if mss >= flow.mss || !flow.state.is_synchronised() {
            return;
        }
        flow.mss = mss;
        self.flows.cold[index].wide = 0;
        self.lose_all(index);
    }

    /// Tells the sender of `packet` what is wrong with it.
    pub(super) fn report(&mut self, origin: &Origin, report: Report, packet: Payload<'_>) {
        if self.outgoing.len() >= UDP_SEND_QUEUE || !self.unreachable_bucket.take(self.now) {
            self.metrics.rate_limited += 1;
            return;
        }
        let payload = error_quote(&origin.remote, packet).to_vec();
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
