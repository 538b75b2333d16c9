//! Memory of bytes that came ahead of their turn.
//!
//! A byte beyond a gap needs a ring that reaches up to it, and the gap stands as long as its sender
//! likes. So:
//!
//! 1. A flow with bytes out of order is charged with the capacity of its ring, and is listed by
//!    when its gap came about, or last became smaller by a part of that ([`RENEWED_SHARE`]). Who
//!    fills it a byte at a time does not stay young.
//! 2. All of them together have a quota, a part ([`AHEAD_SHARE`]) of the engine's memory. Past it,
//!    the gaps that have stood longest are *pruned*: what lies beyond them is dropped, the ring
//!    shrinks to the bytes in order. A gap of an honest sender is filled within a few round trips,
//!    so it is seldom among them.
//! 3. When bytes that are in order find no memory, gaps are pruned as well: those bytes can be used
//!    at once.
//!
//! A receiver may drop what it has reported (RFC 2018 section 8). Its sender keeps what is not
//! acknowledged, and repeats it.

use std::collections::VecDeque;

use crate::engine::Engine;
use crate::limits::{AHEAD_SHARE, RENEWED_SHARE};
use crate::sequence::Seq;

/// Stale entries of the list that are kept besides as many as there are gaps.
const STALE: usize = 64;

/// The gaps of all flows.
#[derive(Debug, Default)]
pub(crate) struct Ahead {
    /// Bytes that flows with gaps are charged with.
    charged: usize,
    /// How many flows that are.
    gaps: usize,
    /// Flows and the numbers of their charges, by age. An entry whose number is not its flow's any
    /// more is stale.
    order: VecDeque<(u32, u64)>,
    last: u64,
}

/// What a flow is charged with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Charge {
    pub bytes: u32,
    /// Where the gap began when it was renewed.
    since: Seq,
    /// Zero if there is none.
    number: u64,
}

impl Engine {
    /// Bytes that rings with bytes out of order may have, all together.
    fn ahead_quota(&self) -> usize {
        self.pool.limit() / AHEAD_SHARE
    }

    /// Makes the ring of a flow reach up to `needed` bytes for some that came out of order. Returns
    /// whether it does.
    pub(crate) fn reserve_ahead(&mut self, index: usize, needed: usize) -> bool {
        let (flow, cold) = (&mut self.flows.hot[index], &self.flows.cold[index]);
        if needed > flow.rcv_limit as usize {
            return false;
        }
        let (charged, size) = (cold.charge.bytes as usize, flow.rx.size_for(needed));
        if charged >= size {
            return true;
        }
        // Its own gap is no older for needing more room.
        while self.ahead.charged - charged + size > self.ahead_quota() {
            if !self.prune_oldest(Some(index)) {
                return false;
            }
        }
        let flow = &mut self.flows.hot[index];
        if !flow.rx.reserve(&mut self.pool, needed, flow.rcv_limit as usize) {
            return false;
        }
        self.ahead.charged = self.ahead.charged - charged + size;
        self.flows.cold[index].charge.bytes = size as u32;
        if charged == 0 {
            self.ahead.gaps += 1;
            self.renew_gap(index);
        }
        true
    }

    /// The gap of a flow has become smaller.
    pub(crate) fn narrow_gap(&mut self, index: usize) {
        let charge = &self.flows.cold[index].charge;
        let filled = self.flows.hot[index].rcv_nxt.since(charge.since);
        if filled >= charge.bytes / RENEWED_SHARE {
            self.renew_gap(index);
        }
    }

    /// The gap of a flow is the youngest of all.
    fn renew_gap(&mut self, index: usize) {
        self.ahead.last += 1;
        let number = self.ahead.last;
        let charge = &mut self.flows.cold[index].charge;
        charge.number = number;
        charge.since = self.flows.hot[index].rcv_nxt;
        self.ahead.order.push_back((index as u32, number));
        if self.ahead.order.len() > STALE + 2 * self.ahead.gaps {
            let cold = &self.flows.cold;
            self.ahead.order.retain(|entry| cold[entry.0 as usize].charge.number == entry.1);
        }
    }

    /// Nothing waits out of order on a flow any more.
    pub(crate) fn settle_ahead(&mut self, index: usize) {
        let cold = &mut self.flows.cold[index];
        cold.reassembly = None;
        let charge = std::mem::take(&mut cold.charge);
        if charge.number != 0 {
            self.ahead.charged -= charge.bytes as usize;
            self.ahead.gaps -= 1;
        }
    }

    /// Drops what came out of order on a flow, and the room for it.
    pub(crate) fn drop_ahead(&mut self, index: usize) {
        if self.flows.cold[index].reassembly.is_some() {
            self.settle_ahead(index);
            self.flows.hot[index].rx.shrink(&mut self.pool);
        }
    }

    /// Drops what lies beyond the gap that has stood longest, of any flow but `except`. Returns
    /// whether there was one.
    pub(crate) fn prune_oldest(&mut self, except: Option<usize>) -> bool {
        let mut spared = None;
        let mut pruned = false;
        while let Some((flow, number)) = self.ahead.order.pop_front() {
            let index = flow as usize;
            if self.flows.cold[index].charge.number != number {
                continue;
            }
            if except == Some(index) {
                spared = Some((flow, number));
                continue;
            }
            self.drop_ahead(index);
            self.refresh_slow(index);
            self.metrics.out_of_order_pruned += 1;
            pruned = true;
            break;
        }
        if let Some(spared) = spared {
            self.ahead.order.push_front(spared);
        }
        pruned
    }
}
