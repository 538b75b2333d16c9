//! What an application may set on a flow beyond the common: the options that sockets have for it
//! elsewhere.

use super::Engine;
use crate::flow::{FlowId, flag};

impl Engine {
    /// Nanoseconds between keepalive probes once the idle time has passed, and how many go
    /// unanswered before the peer is given up (TCP_KEEPINTVL and TCP_KEEPCNT elsewhere); zero for
    /// the usual ones.
    pub fn set_keepalive_probes(&mut self, flow: FlowId, interval: u64, most: u8) {
        let Some(index) = self.flows.index(flow) else { return };
        let cold = &mut self.flows.cold[index];
        (cold.keepalive_interval, cold.keepalive_most) = (interval, most);
    }

    /// While corked, a flow sends full segments only, and the rest when the cork is taken out or
    /// the sending side is shut down (TCP_CORK elsewhere). Nothing takes it out by itself.
    pub fn set_corked(&mut self, flow: FlowId, on: bool) {
        if let Some(index) = self.flows.index(flow) {
            let flow = &mut self.flows.hot[index];
            flow.flags = if on { flow.flags | flag::CORKED } else { flow.flags & !flag::CORKED };
            self.touch(index);
        }
    }

    /// The DSCP of packets that are sent from now on: the upper six bits of `class` (RFC 2474;
    /// IP_TOS and IPV6_TCLASS elsewhere). The lower two are TCP's own (RFC 3168).
    pub fn set_traffic_class(&mut self, flow: FlowId, class: u8) {
        if let Some(index) = self.flows.index(flow) {
            self.flows.path[index].set_traffic_class(class & !3);
        }
    }

    /// The hop limit, or time to live, of packets that are sent from now on.
    pub fn set_hop_limit(&mut self, flow: FlowId, hops: u8) {
        if let Some(index) = self.flows.index(flow) {
            self.flows.path[index].set_hop_limit(hops.max(1));
        }
    }

    /// How far a flow's receive buffer may grow, in bytes (SO_RCVBUF elsewhere). What was announced
    /// to the peer is not taken back.
    pub fn set_receive_limit(&mut self, flow: FlowId, bytes: usize) {
        if let Some(index) = self.flows.index(flow) {
            self.flows.cold[index].most_window = u32::try_from(bytes).unwrap_or(u32::MAX);
        }
    }
}
