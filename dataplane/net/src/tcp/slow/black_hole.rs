//! Path-MTU black holes: paths that drop packets which are too big, without an error (RFC 2923
//! section 2.1, RFC 4821 section 7.7, RFC 8899 section 4.3).
//!
//! 1. When full segments time out repeatedly, smaller ones are tried ([`path_mtu::after_silence`]).
//!    A medium over memory has no routers and is exempt.
//! 2. When the outstanding data have been acknowledged in smaller segments, the full size is tried
//!    again, because a peer that stalled has the same symptoms. If that fails as well, it is a
//!    black hole. The path's MTU is stored for ten minutes, for other flows too, and this flow
//!    keeps its size.
//! 3. If the first copies prove to have arrived after all, nothing was dropped.

use crate::context::Context;
use crate::ip::path_mtu;
use crate::limits::BLACK_HOLE_PROOFS;
use crate::packet::network_header;
use crate::packet::tcp;
use crate::tcp::Tcp;
use crate::tcp::flow::flag;
use crate::tcp::flow::id::FlowIndex;

impl Tcp {
    /// Full segments have timed out in a row: the next are smaller, if there is a smaller size to
    /// try.
    pub(super) fn suspect_black_hole(&mut self, cx: &mut Context, index: FlowIndex) {
        let flow = &self.flows.hot[index];
        if cx.unchecked || flow.outstanding() < u32::from(flow.mss) {
            return;
        }
        let remote = self.flows.path[index].remote();
        let (size, timeouts) = (self.packet_size(index), self.flows.cold[index].backoff);
        let Some(mtu) = path_mtu::after_silence(&remote, size, timeouts) else { return };
        let mss = self.segment_size(index, mtu);
        let (flow, cold) = (&mut self.flows.hot[index], &mut self.flows.cold[index]);
        cold.full_mss = cold.full_mss.max(flow.mss);
        flow.mss = mss;
        cx.metrics.black_holes += 1;
    }

    /// Bytes in the packet of a full segment.
    fn packet_size(&self, index: FlowIndex) -> usize {
        let flow = &self.flows.hot[index];
        let options = if flow.has(flag::TIMESTAMPS) { tcp::TIMESTAMP_OPTION } else { 0 };
        network_header(&self.flows.path[index].remote()) + tcp::HEADER + options + usize::from(flow.mss)
    }

    /// What was outstanding is acknowledged; `small`: because it went in smaller segments.
    pub(super) fn check_black_hole(&mut self, cx: &mut Context, index: FlowIndex, small: bool) {
        let (flow, cold) = (&mut self.flows.hot[index], &mut self.flows.cold[index]);
        let full_mss = std::mem::take(&mut cold.full_mss);
        if full_mss == 0 {
            return;
        }
        cold.black_holes = cold.black_holes.saturating_add(u8::from(small));
        if small && cold.black_holes >= BLACK_HOLE_PROOFS {
            let (remote, mtu) = (self.flows.path[index].remote(), self.packet_size(index));
            cx.path_mtus.set(remote, mtu, cx.now);
        } else {
            flow.mss = full_mss;
        }
    }
}
