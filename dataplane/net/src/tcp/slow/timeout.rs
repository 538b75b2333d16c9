//! The timers of TCP: what happens when one is due.
//!
//! 1. Each flow is in the timer table with its earliest deadline. A flow that is due checks its own
//!    timers: the delayed acknowledgement, RACK's reordering timer, retransmission, and idleness.
//! 2. *Retransmission* (RFC 6298): the timeout doubles each time, and a flow is given up after a
//!    number of attempts. In the persist state the same timer sends window probes (RFC 9293 section
//!    3.8.6.1). It also sends tail loss probes.
//! 3. *Idleness*: keepalive probes (RFC 9293 section 3.8.4), and the end of FIN-WAIT-2.
//! 4. Half-open connections and TIME-WAIT have deadlines in tables of their own.
//!
//! A timer sends nothing itself: it marks what is due, and the next emission sends it.

use crate::context::Context;
use crate::ip::neighbours::Resolution;
use crate::limits::{
    BLACK_HOLE_TIMEOUTS, KEEPALIVE_INTERVAL, NEVER, ORPHAN_PROBES, RETRANSMITS, RTO_MAX, SYN_ACK_RETRANSMITS,
    SYN_RETRANSMITS,
};
use crate::tcp::Tcp;
use crate::tcp::congestion::CongestionControl;
use crate::tcp::connections::half_open::HalfOpenIndex;
use crate::tcp::flow::id::FlowIndex;
use crate::tcp::flow::recovery::RecoveryState;
use crate::tcp::flow::recovery::Undo;
use crate::tcp::flow::{State, flag};

impl Tcp {
    /// Runs the timers that are due.
    pub(crate) fn run_timers(&mut self, cx: &mut Context) {
        let now = cx.now;
        while let Some(index) = self.flow_timers.pop(now) {
            self.flow_due(cx, index);
        }
        while let Some(index) = self.half_open.pop_due(now) {
            self.half_open_due(cx, index);
        }
        while let Some(index) = self.time_waits.pop_due(now) {
            self.remove_time_wait(index);
        }
        self.wake_paced(cx);
    }

    fn flow_due(&mut self, cx: &mut Context, index: FlowIndex) {
        let now = cx.now;
        let generation = self.flows.hot[index].generation;
        if self.flows.cold[index].ack_at <= now {
            self.flows.cold[index].ack_at = NEVER;
            self.acknowledge_now(index);
        }
        if self.flows.cold[index].recovery.as_ref().is_some_and(|recovery| recovery.reorder_at <= now) {
            self.reordering_due(cx, index);
        }
        if self.flows.cold[index].retransmit_at <= now {
            self.retransmission_due(cx, index);
        }
        if self.flows.hot[index].generation == generation && self.flows.cold[index].idle_at <= now {
            self.idle_due(cx, index);
        }
        let deadline = self.flows.cold[index].deadline();
        if deadline != NEVER {
            self.flow_timers.no_later(index, deadline);
        }
    }

    fn retransmission_due(&mut self, cx: &mut Context, index: FlowIndex) {
        let (flow, cold) = (&mut self.flows.hot[index], &mut self.flows.cold[index]);
        cold.retransmit_at = NEVER;
        match flow.state {
            State::Closed | State::TimeWait => {}
            State::SynSent | State::SynReceived => {
                cold.note_stall(cx.now);
                if cold.backoff >= SYN_RETRANSMITS || cold.is_user_timeout_over(cx.now) {
                    cx.metrics.connections_failed += 1;
                    self.give_up(cx, index);
                    return;
                }
                cold.backoff += 1;
                cx.metrics.timeouts += 1;
                cx.metrics.retransmits += 1;
                self.flows.hot[index].flags |= flag::SYN_DUE;
                // The SYN sets the next deadline when it leaves; if it does not leave, this one
                // stays.
                self.rearm(cx, index);
                self.mark_dirty(index);
            }
            _ if std::mem::take(&mut cold.probing) && flow.wnd > 0 => {
                if flow.has(flag::INSPECT_ACKS) {
                    // Data arrived out of order meanwhile: only the timeout remains.
                    self.rearm(cx, index);
                } else {
                    flow.flags |= flag::TAIL;
                    self.rearm(cx, index);
                    self.mark_dirty(index);
                }
            }
            _ if flow.has(flag::PERSIST) || (flow.wnd == 0 && !flow.tx.is_empty()) => {
                self.probe_due(cx, index)
            }
            _ => self.retransmission_timeout(cx, index),
        }
        self.refresh_next_hop(cx, index);
    }

    fn rearm(&mut self, cx: &Context, index: FlowIndex) {
        let cold = &mut self.flows.cold[index];
        cold.retransmit_at = cold.retransmit_deadline(cx.now);
    }

    /// The oldest data (or our FIN) were not acknowledged in time: retransmits them with a window
    /// of one segment.
    fn retransmission_timeout(&mut self, cx: &mut Context, index: FlowIndex) {
        let (flow, cold) = (&mut self.flows.hot[index], &mut self.flows.cold[index]);
        if flow.outstanding() == 0 {
            return;
        }
        cold.note_stall(cx.now);
        if cold.backoff >= RETRANSMITS || cold.is_user_timeout_over(cx.now) {
            self.give_up(cx, index);
            return;
        }
        if cold.backoff == 0 {
            cold.congestion.timed_out(flow.moment(cx.now));
        }
        if cold.backoff >= BLACK_HOLE_TIMEOUTS && cold.backoff.is_multiple_of(BLACK_HOLE_TIMEOUTS) {
            self.suspect_black_hole(cx, index);
        }
        let (flow, cold) = (&mut self.flows.hot[index], &mut self.flows.cold[index]);
        let mut recovery = cold.recovery.take().unwrap_or_default();
        let recovering = recovery.is_active();
        match &mut recovery.undo {
            Some(undo) if recovering => undo.probed_at = 0,
            // RFC 5682: until the first answer only the first segment leaves, so that the answer
            // shows which copy arrived.
            none => *none = Some(Undo { from: flow.una, first_only: true, ..Undo::default() }),
        }
        recovery.phase = RecoveryState::Loss;
        recovery.probe = None;
        recovery.duplicated = 0;
        recovery.reorder_at = NEVER;
        recovery.timeouts = recovery.timeouts.saturating_add(1);
        if cold.scoreboard.is_reneged() {
            cold.scoreboard.forget_sacked();
            cx.metrics.sack_reneges += 1;
        }
        cold.scoreboard.mark_lost(u64::MAX);
        flow.cwnd = cold.congestion.window().min(u32::from(flow.mss));
        cold.backoff += 1;
        cold.recover = flow.max;
        flow.duplicates = 0;
        flow.flags &= !flag::TAIL;
        flow.flags |= flag::RESEND;
        self.store_recovery(index, recovery);
        self.note_reduction(index);
        cx.metrics.timeouts += 1;
        self.rearm(cx, index);
        self.mark_dirty(index);
    }

    /// The window is closed: probes whether it still is. A peer that answers may keep it closed for
    /// any time, unless the flow has no application any more or has a user timeout.
    fn probe_due(&mut self, cx: &mut Context, index: FlowIndex) {
        let (flow, cold) = (&mut self.flows.hot[index], &mut self.flows.cold[index]);
        cold.note_stall(cx.now);
        let silent = cx.now.saturating_sub(cold.received_at) > 8 * RTO_MAX && cold.backoff >= ORPHAN_PROBES;
        if silent
            || cold.is_user_timeout_over(cx.now)
            || (flow.has(flag::DETACHED) && cold.backoff >= ORPHAN_PROBES)
        {
            self.give_up(cx, index);
            return;
        }
        flow.flags |= flag::PERSIST | flag::PROBE;
        flow.flags &= !(flag::RESEND | flag::TAIL);
        flow.nxt = flow.una;
        flow.duplicates = 0;
        flow.cwnd = cold.congestion.window();
        // Data sent into the closed window have to be retransmitted.
        cold.scoreboard.mark_lost(u64::MAX);
        let mut recovery = cold.recovery.take().unwrap_or_default();
        recovery.phase = RecoveryState::Open;
        recovery.probe = None;
        recovery.duplicated = 0;
        cold.backoff = cold.backoff.saturating_add(1);
        self.store_recovery(index, recovery);
        self.rearm(cx, index);
        self.mark_dirty(index);
    }

    /// After a timeout the next hop is resolved again: its link address may have changed.
    fn refresh_next_hop(&mut self, cx: &mut Context, index: FlowIndex) {
        let flow = &self.flows.hot[index];
        if flow.state == State::Closed || flow.has(flag::UNRESOLVED) {
            return;
        }
        let Some(hop) = cx.addresses.next_hop(&self.flows.path[index].remote()) else { return };
        if let Resolution::Known(mac) = cx.resolve(hop) {
            self.flows.path[index].set_next_hop(mac);
        }
    }

    fn idle_due(&mut self, cx: &mut Context, index: FlowIndex) {
        let (flow, cold) = (&mut self.flows.hot[index], &mut self.flows.cold[index]);
        cold.idle_at = NEVER;
        let silence = cx.now.saturating_sub(cold.received_at);
        if flow.has(flag::DETACHED) {
            // The peer's time to close is over, even if it still sends.
            if flow.state == State::FinWait2 {
                self.finish(index, crate::events::CloseReason::TimedOut);
            }
            return;
        }
        if cold.keepalive == 0 || !flow.state.is_synchronised() {
            return;
        }
        if silence < cold.keepalive {
            cold.idle_at = cold.received_at + cold.keepalive;
        } else if cold.is_probed_enough(silence) {
            self.give_up(cx, index);
        } else {
            cold.keepalive_probes = cold.keepalive_probes.saturating_add(1);
            let usual = KEEPALIVE_INTERVAL.min(cold.keepalive);
            cold.idle_at =
                cx.now + if cold.keepalive_interval == 0 { usual } else { cold.keepalive_interval };
            flow.flags |= flag::KEEPALIVE_DUE;
            self.mark_dirty(index);
        }
    }

    fn half_open_due(&mut self, cx: &mut Context, index: HalfOpenIndex) {
        let Some(half_open) = self.half_open.get_mut(index) else { return };
        if half_open.retransmits >= SYN_ACK_RETRANSMITS {
            self.remove_half_open(index);
            return;
        }
        half_open.retransmits += 1;
        cx.metrics.retransmits += 1;
        self.answer_syn(cx, index);
    }
}
