//! Paths that swallow what is too big and say nothing (RFC 2923 section 2.1, RFC 4821 section 7.7,
//! RFC 8899 section 4.3).
//!
//! 1. When full segments time out again and again, smaller ones are tried
//!    ([`path_mtu::after_silence`]). A medium over memory has no routers.
//! 2. When what was outstanding has got through in them, the full size is tried again: a peer that
//!    stood still looks the same. If that fails as well, it was a black hole: the path is noted as
//!    narrow for ten minutes, for other flows too, and this one stays as it is.
//! 3. If the first copies prove to have arrived after all, nothing was swallowed.

use crate::engine::{Engine, network_header};
use crate::flow::flag;
use crate::limits::BLACK_HOLE_PROOFS;
use crate::packet::tcp;
use crate::path_mtu;

impl Engine {
    /// Full segments have timed out in a row: the next are smaller, if there is a smaller size to
    /// try.
    pub(super) fn suspect_black_hole(&mut self, index: usize) {
        let flow = &self.flows.hot[index];
        if self.unchecked || flow.outstanding() < u32::from(flow.mss) {
            return;
        }
        let remote = self.flows.path[index].remote();
        let (size, timeouts) = (self.packet_size(index), self.flows.cold[index].backoff);
        let Some(mtu) = path_mtu::after_silence(&remote, size, timeouts) else { return };
        let mss = self.segment_size(index, mtu);
        let (flow, cold) = (&mut self.flows.hot[index], &mut self.flows.cold[index]);
        cold.wide = cold.wide.max(flow.mss);
        flow.mss = mss;
        self.metrics.black_holes += 1;
    }

    /// Bytes in the packet of a full segment.
    fn packet_size(&self, index: usize) -> usize {
        let flow = &self.flows.hot[index];
        let options = if flow.has(flag::TIMESTAMPS) { tcp::TIMESTAMP_OPTION } else { 0 };
        network_header(&self.flows.path[index].remote()) + tcp::HEADER + options + usize::from(flow.mss)
    }

    /// What was outstanding is acknowledged; `small`: because it went in smaller segments.
    pub(super) fn judge_black_hole(&mut self, index: usize, small: bool) {
        let (flow, cold) = (&mut self.flows.hot[index], &mut self.flows.cold[index]);
        let wide = std::mem::take(&mut cold.wide);
        if wide == 0 {
            return;
        }
        cold.holes = cold.holes.saturating_add(u8::from(small));
        if small && cold.holes >= BLACK_HOLE_PROOFS {
            let (remote, mtu) = (self.flows.path[index].remote(), self.packet_size(index));
            self.path_mtus.set(remote, mtu, self.now);
        } else {
            flow.mss = wide;
        }
    }
}
