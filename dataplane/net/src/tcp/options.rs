//! Less common options of a flow: those that sockets have for it elsewhere.

use crate::tcp::Tcp;
use crate::tcp::flow::flag;
use crate::tcp::flow::id::FlowId;

impl Tcp {
    /// See `Engine::set_keepalive_probes`.
    pub(crate) fn set_keepalive_probes(&mut self, flow: FlowId, interval: u64, most: u8) {
        let Some(index) = self.flows.index(flow) else { return };
        let cold = &mut self.flows.cold[index];
        (cold.keepalive_interval, cold.keepalive_most) = (interval, most);
    }

    /// See `Engine::set_corked`.
    pub(crate) fn set_corked(&mut self, flow: FlowId, on: bool) {
        if let Some(index) = self.flows.index(flow) {
            let flow = &mut self.flows.hot[index];
            flow.flags = if on { flow.flags | flag::CORKED } else { flow.flags & !flag::CORKED };
            self.mark_dirty(index);
        }
    }

    /// See `Engine::set_traffic_class`.
    pub(crate) fn set_traffic_class(&mut self, flow: FlowId, class: u8) {
        if let Some(index) = self.flows.index(flow) {
            self.flows.path[index].set_traffic_class(class & !3);
        }
    }

    /// See `Engine::set_hop_limit`.
    pub(crate) fn set_hop_limit(&mut self, flow: FlowId, hops: u8) {
        if let Some(index) = self.flows.index(flow) {
            self.flows.path[index].set_hop_limit(hops.max(1));
        }
    }

    /// See `Engine::set_receive_limit`.
    pub(crate) fn set_receive_limit(&mut self, flow: FlowId, bytes: usize) {
        if let Some(index) = self.flows.index(flow) {
            self.flows.cold[index].most_window = u32::try_from(bytes).unwrap_or(u32::MAX);
        }
    }
}
