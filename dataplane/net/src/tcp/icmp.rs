//! ICMP errors about segments that we sent (RFC 5927, RFC 1122 section 4.2.3.9, RFC 5461).
//!
//! 1. Anyone can write an error, so it counts only if it quotes a sequence number between the
//!    oldest unacknowledged and the highest sent.
//! 2. A connection that is being opened fails at once when its peer refuses or cannot be reached.
//!    For an open connection the same error is soft: retransmission decides, and the error becomes
//!    the reason if that fails.

use crate::context::Context;
use crate::events::CloseReason;
use crate::ip::icmp_error::IcmpError;
use crate::ip::path_mtu::believed;
use crate::limits::SMALLEST_MSS;
use crate::packet::{AddressIndex, icmp, network_header, tcp};
use crate::tcp::Tcp;
use crate::tcp::connections::Entry;
use crate::tcp::connections::four_tuple::FourTuple;
use crate::tcp::flow::id::FlowIndex;
use crate::tcp::flow::{State, flag};

impl Tcp {
    pub(crate) fn icmp_error(
        &mut self,
        cx: &mut Context,
        error: IcmpError,
        quote: &icmp::Quote,
        local: AddressIndex,
    ) {
        let name = FourTuple {
            remote: quote.destination,
            remote_port: quote.ports.1,
            local_port: quote.ports.0,
            local,
        };
        let Some(Entry::Flow(index)) = self.connections.find(&name) else { return };
        let flow = &mut self.flows.hot[index];
        if quote.sequence.wrapping_sub(flow.una.0) >= flow.outstanding() {
            return;
        }
        let opening = flow.state == State::SynSent;
        match error {
            IcmpError::TooBig(mtu) => self.segment_too_big(cx, index, mtu, quote),
            IcmpError::Refused | IcmpError::Unreachable if opening => {
                cx.metrics.icmp_errors += 1;
                cx.metrics.connections_failed += 1;
                let refused = error == IcmpError::Refused;
                self.finish(index, if refused { CloseReason::Refused } else { CloseReason::Unreachable });
            }
            IcmpError::Refused | IcmpError::Unreachable => {
                cx.metrics.icmp_errors += 1;
                self.flows.cold[index].unreachable_at = cx.now.max(1);
            }
            IcmpError::Transient => {}
        }
    }

    fn segment_too_big(&mut self, cx: &mut Context, index: FlowIndex, mtu: usize, quote: &icmp::Quote) {
        let remote = &quote.destination;
        cx.path_shrinks(remote, mtu, quote.length);
        // Another flow to the same host may have received the error first.
        if believed(remote, mtu, quote.length).is_some() {
            self.shrink_segments(index, cx.path_mtu(remote));
        }
    }

    /// Payload of a flow's full segments in packets of `mtu` bytes.
    pub(crate) fn segment_size(&self, index: FlowIndex, mtu: usize) -> u16 {
        let remote = self.flows.path[index].remote();
        let options = if self.flows.hot[index].has(flag::TIMESTAMPS) { tcp::TIMESTAMP_OPTION } else { 0 };
        let room = mtu.saturating_sub(network_header(&remote) + tcp::HEADER + options);
        u16::try_from(room).unwrap_or(u16::MAX).max(SMALLEST_MSS)
    }

    /// Limits the segments of a flow to packets of `mtu` bytes and retransmits what is in flight in
    /// such segments. That is no sign of congestion (RFC 8201 section 5.4).
    fn shrink_segments(&mut self, index: FlowIndex, mtu: usize) {
        let mss = self.segment_size(index, mtu);
        let flow = &mut self.flows.hot[index];
        if mss >= flow.mss || !flow.state.is_synchronised() {
            return;
        }
        flow.mss = mss;
        self.flows.cold[index].full_mss = 0;
        self.mark_all_lost(index);
    }
}
