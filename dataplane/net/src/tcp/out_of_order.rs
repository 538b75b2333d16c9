//! Memory of bytes that arrived out of order.
//!
//! A byte beyond a gap needs a ring that reaches up to it, and the gap lasts as long as its sender
//! likes. So:
//!
//! 1. A flow with bytes out of order is charged with the capacity of its ring. It is listed by the
//!    time when its gap appeared, or last shrank by a certain part of the ring
//!    ([`GAP_PROGRESS_SHARE`]). A sender that fills the gap a byte at a time does not stay young.
//! 2. All charges together have a quota, a part ([`OUT_OF_ORDER_SHARE`]) of the engine's memory.
//!    Beyond it, the oldest gaps are *pruned*: the bytes beyond them are dropped and the ring
//!    shrinks to the bytes in order. An honest sender fills a gap within a few round trips, so its
//!    gaps are seldom pruned.
//! 3. When bytes in order find no memory, gaps are pruned as well, because those bytes can be used
//!    at once.
//!
//! A receiver may drop what it has reported (RFC 2018 section 8). Its peer keeps data until they
//! are acknowledged, and retransmits them.

use crate::context::Context;
use crate::limits::{GAP_PROGRESS_SHARE, OUT_OF_ORDER_SHARE};
use crate::tcp::Tcp;
use crate::tcp::flow::id::FlowIndex;

pub(crate) mod memory;

use memory::STALE;

impl Tcp {
    /// Bytes that rings with bytes out of order may have, all together.
    fn out_of_order_quota(&self) -> usize {
        self.pool.limit() / OUT_OF_ORDER_SHARE
    }

    /// Makes the ring of a flow reach up to `needed` bytes for some that came out of order. Returns
    /// whether it does.
    pub(crate) fn reserve_out_of_order(&mut self, cx: &mut Context, index: FlowIndex, needed: usize) -> bool {
        let (flow, cold) = (&mut self.flows.hot[index], &self.flows.cold[index]);
        if needed > flow.rcv_limit as usize {
            return false;
        }
        let (charged, size) = (cold.charge.bytes as usize, flow.rx.size_for(needed));
        if charged >= size {
            return true;
        }
        // More room does not change the age of its own gap.
        while self.out_of_order.charged - charged + size > self.out_of_order_quota() {
            if !self.prune_oldest(cx, Some(index)) {
                return false;
            }
        }
        let flow = &mut self.flows.hot[index];
        if !flow.rx.reserve(&mut self.pool, needed, flow.rcv_limit as usize) {
            return false;
        }
        self.out_of_order.charged = self.out_of_order.charged - charged + size;
        self.flows.cold[index].charge.bytes = size as u32;
        if charged == 0 {
            self.out_of_order.gaps += 1;
            self.renew_gap(index);
        }
        true
    }

    /// The gap of a flow has become smaller.
    pub(crate) fn narrow_gap(&mut self, index: FlowIndex) {
        let charge = &self.flows.cold[index].charge;
        let filled = self.flows.hot[index].rcv_nxt.since(charge.since);
        if filled >= charge.bytes / GAP_PROGRESS_SHARE {
            self.renew_gap(index);
        }
    }

    /// The gap of a flow is the youngest of all.
    fn renew_gap(&mut self, index: FlowIndex) {
        self.out_of_order.last += 1;
        let number = self.out_of_order.last;
        let charge = &mut self.flows.cold[index].charge;
        charge.number = number;
        charge.since = self.flows.hot[index].rcv_nxt;
        self.out_of_order.order.push_back((index, number));
        if self.out_of_order.order.len() > STALE + 2 * self.out_of_order.gaps {
            let cold = &self.flows.cold;
            self.out_of_order.order.retain(|entry| cold[entry.0].charge.number == entry.1);
        }
    }

    /// Nothing waits out of order on a flow any more.
    pub(crate) fn clear_out_of_order(&mut self, index: FlowIndex) {
        let cold = &mut self.flows.cold[index];
        cold.reassembly = None;
        let charge = std::mem::take(&mut cold.charge);
        if charge.number != 0 {
            self.out_of_order.charged -= charge.bytes as usize;
            self.out_of_order.gaps -= 1;
        }
    }

    /// Drops what came out of order on a flow, and the room for it.
    pub(crate) fn drop_out_of_order(&mut self, index: FlowIndex) {
        if self.flows.cold[index].reassembly.is_some() {
            self.clear_out_of_order(index);
            self.flows.hot[index].rx.shrink(&mut self.pool);
        }
    }

    /// Drops what is beyond the oldest gap, of any flow but `except`. Returns whether there was
    /// one.
    pub(crate) fn prune_oldest(&mut self, cx: &mut Context, except: Option<FlowIndex>) -> bool {
        let mut spared = None;
        let mut pruned = false;
        while let Some((index, number)) = self.out_of_order.order.pop_front() {
            if self.flows.cold[index].charge.number != number {
                continue;
            }
            if except == Some(index) {
                spared = Some((index, number));
                continue;
            }
            self.drop_out_of_order(index);
            self.update_slow_flag(index);
            cx.metrics.out_of_order_pruned += 1;
            pruned = true;
            break;
        }
        if let Some(spared) = spared {
            self.out_of_order.order.push_front(spared);
        }
        pruned
    }
}
