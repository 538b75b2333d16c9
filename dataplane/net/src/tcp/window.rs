//! Receive windows that grow as `flow/tuning` finds them too small.

use crate::context::Context;
use crate::tcp::Tcp;
use crate::tcp::flow::id::FlowIndex;
use crate::tcp::flow::tuning::Observation;

/// The part of the free memory that one flow's buffer may take: an eighth.
const SHARE: usize = 8;

impl Tcp {
    /// Data have come: perhaps the window of their flow should be larger.
    #[inline(never)]
    pub(crate) fn tune_window(&mut self, cx: &mut Context, index: FlowIndex) {
        let (flow, cold) = (&mut self.flows.hot[index], &mut self.flows.cold[index]);
        let limit = flow.rcv_limit as usize;
        if limit >= self.settings.receive_buffer || flow.rcv_shift == 0 {
            return;
        }
        let waiting = flow.rx.len() as u64 + u64::from(flow.held);
        let observation = Observation {
            now: cx.now,
            received: cold.received,
            taken: cold.received.saturating_sub(waiting),
            limit,
            srtt: cold.rtt.srtt(),
            mss: u32::from(flow.mss),
        };
        if let Some(size) = cold.tuning.observe(&observation) {
            self.grow_window(cx, index, size);
        }
    }

    /// The application has made room for half of a window or more.
    #[inline(never)]
    pub(crate) fn tune_emptied_window(&mut self, cx: &mut Context, index: FlowIndex) {
        let (flow, cold) = (&mut self.flows.hot[index], &mut self.flows.cold[index]);
        let limit = flow.rcv_limit as usize;
        if limit >= self.settings.receive_buffer
            || flow.rcv_shift == 0
            || !flow.rx.is_empty()
            || flow.held > 0
        {
            return;
        }
        if let Some(size) = cold.tuning.emptied(cold.received, limit) {
            self.grow_window(cx, index, size);
        }
    }

    fn grow_window(&mut self, cx: &mut Context, index: FlowIndex, size: usize) {
        let share = self.pool.free() / SHARE;
        let most = self.flows.cold[index].most_window as usize;
        let size = size.min(self.settings.receive_buffer).min(share).min(most);
        let flow = &mut self.flows.hot[index];
        if size > flow.rcv_limit as usize {
            flow.rcv_limit = size as u32;
            cx.metrics.receive_windows_grown += 1;
        }
    }
}
