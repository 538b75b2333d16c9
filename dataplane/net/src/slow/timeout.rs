//! What happens by itself: delayed acknowledgements, retransmission (RFC 6298), window probes (RFC
//! 9293 section 3.8.6.1), keepalive (section 3.8.4), and the ends of FIN-WAIT-2, TIME-WAIT and of
//! half-open connections.

use crate::congestion::CongestionControl;
use crate::engine::{Engine, RecoveryState};
use crate::flow::{State, flag};
use crate::limits::{
    BLACK_HOLE_TIMEOUTS, KEEPALIVE_INTERVAL, NEVER, ORPHAN_PROBES, RETRANSMITS, RTO_MAX, SYN_ACK_RETRANSMITS,
    SYN_RETRANSMITS,
};
use crate::neighbour::Resolution;
use crate::recovery::Undo;

impl Engine {
    /// Runs everything whose time has come.
    pub(crate) fn run_timers(&mut self) {
        let now = self.now;
        while let Some(index) = self.flow_timers.pop(now) {
            self.flow_due(index as usize);
        }
        while let Some(index) = self.half_open_timers.pop(now) {
            self.half_open_due(index);
        }
        while let Some(index) = self.time_wait_timers.pop(now) {
            self.forget_time_wait(index);
        }
        self.wake_paced();
        self.run_neighbours();
        self.run_fragments();
        self.run_groups();
        self.run_announcements();
    }

    fn flow_due(&mut self, index: usize) {
        let now = self.now;
        let generation = self.flows.hot[index].generation;
        if self.flows.cold[index].ack_at <= now {
            self.flows.cold[index].ack_at = NEVER;
            self.acknowledge_now(index);
        }
        if self.flows.cold[index].repair.as_ref().is_some_and(|repair| repair.reorder_at <= now) {
            self.reordering_due(index);
        }
        if self.flows.cold[index].retransmit_at <= now {
            self.retransmission_due(index);
        }
        if self.flows.hot[index].generation == generation && self.flows.cold[index].idle_at <= now {
            self.idle_due(index);
        }
        let deadline = self.flows.cold[index].deadline();
        if deadline != NEVER {
            self.flow_timers.no_later(index as u32, deadline);
        }
    }

    fn retransmission_due(&mut self, index: usize) {
        let (flow, cold) = (&mut self.flows.hot[index], &mut self.flows.cold[index]);
        cold.retransmit_at = NEVER;
        match flow.state {
            State::Closed | State::TimeWait => {}
            State::SynSent | State::SynReceived => {
                cold.note_stall(self.now);
                if cold.backoff >= SYN_RETRANSMITS || cold.has_lost_patience(self.now) {
                    self.metrics.connections_failed += 1;
                    self.give_up(index);
                    return;
                }
                cold.backoff += 1;
                self.metrics.timeouts += 1;
                self.metrics.retransmits += 1;
                self.flows.hot[index].flags |= flag::SYN_DUE;
                // The next deadline comes with the SYN itself; should it not leave, this one
                // stands.
                self.rearm(index);
                self.touch(index);
            }
            _ if std::mem::take(&mut cold.probing) && flow.wnd > 0 => {
                if flow.has(flag::REPAIR) {
                    // Something came out of turn meanwhile: the timeout is what is left.
                    self.rearm(index);
                } else {
                    flow.flags |= flag::TAIL;
                    self.rearm(index);
                    self.touch(index);
                }
            }
            _ if flow.has(flag::PERSIST) || (flow.wnd == 0 && !flow.tx.is_empty()) => self.probe_due(index),
            _ => self.data_due(index),
        }
        self.look_up_again(index);
    }

    fn rearm(&mut self, index: usize) {
        let cold = &mut self.flows.cold[index];
        cold.retransmit_at = cold.again_at(self.now);
    }

    /// The oldest data (or our FIN) were not acknowledged in time: go back to them with a window of
    /// one segment.
    fn data_due(&mut self, index: usize) {
        let (flow, cold) = (&mut self.flows.hot[index], &mut self.flows.cold[index]);
        if flow.outstanding() == 0 {
            return;
        }
        cold.note_stall(self.now);
        if cold.backoff >= RETRANSMITS || cold.has_lost_patience(self.now) {
            self.give_up(index);
            return;
        }
        if cold.backoff == 0 {
            cold.congestion.timed_out(flow.moment(self.now));
        }
        if cold.backoff >= BLACK_HOLE_TIMEOUTS && cold.backoff.is_multiple_of(BLACK_HOLE_TIMEOUTS) {
            self.suspect_black_hole(index);
        }
        let (flow, cold) = (&mut self.flows.hot[index], &mut self.flows.cold[index]);
        let mut repair = cold.repair.take().unwrap_or_default();
        let repairing = repair.is_repairing();
        match &mut repair.undo {
            Some(undo) if repairing => undo.asked_at = 0,
            // RFC 5682: until the first answer nothing but the first segment leaves, so that the
            // answer tells which copy it means.
            none => *none = Some(Undo { from: flow.una, first_only: true, ..Undo::default() }),
        }
        repair.phase = RecoveryState::Loss;
        repair.probe = None;
        repair.duplicated = 0;
        repair.reorder_at = NEVER;
        repair.timeouts = repair.timeouts.saturating_add(1);
        if cold.board.is_reneged() {
            cold.board.forget_sacked();
            self.metrics.sack_reneges += 1;
        }
        cold.board.lose(u64::MAX);
        flow.cwnd = cold.congestion.window().min(u32::from(flow.mss));
        cold.backoff += 1;
        cold.recover = flow.max;
        flow.duplicates = 0;
        flow.flags &= !flag::TAIL;
        flow.flags |= flag::RESEND;
        self.put_back(index, repair);
        self.note_reduction(index);
        self.metrics.timeouts += 1;
        self.rearm(index);
        self.touch(index);
    }

    /// The window is closed: ask whether it still is. A peer that answers may keep it closed as
    /// long as it likes, except towards a flow that has no application any more, or one whose
    /// patience is bounded.
    fn probe_due(&mut self, index: usize) {
        let (flow, cold) = (&mut self.flows.hot[index], &mut self.flows.cold[index]);
        cold.note_stall(self.now);
        let silent = self.now.saturating_sub(cold.heard_at) > 8 * RTO_MAX && cold.backoff >= ORPHAN_PROBES;
        if silent
            || cold.has_lost_patience(self.now)
            || (flow.has(flag::DETACHED) && cold.backoff >= ORPHAN_PROBES)
        {
            self.give_up(index);
            return;
        }
        flow.flags |= flag::PERSIST | flag::PROBE;
        flow.flags &= !(flag::RESEND | flag::TAIL);
        flow.nxt = flow.una;
        flow.duplicates = 0;
        flow.cwnd = cold.congestion.window();
        // What was sent into the closed window has to be sent again.
        cold.board.lose(u64::MAX);
        let mut repair = cold.repair.take().unwrap_or_default();
        repair.phase = RecoveryState::Open;
        repair.probe = None;
        repair.duplicated = 0;
        cold.backoff = cold.backoff.saturating_add(1);
        self.put_back(index, repair);
        self.rearm(index);
        self.touch(index);
    }

    /// After a timeout the way to the peer is looked up again: its link address may have changed.
    fn look_up_again(&mut self, index: usize) {
        let flow = &self.flows.hot[index];
        if flow.state == State::Closed || flow.has(flag::UNRESOLVED) {
            return;
        }
        let Some(hop) = self.addresses.next_hop(&self.flows.path[index].remote()) else { return };
        if let Resolution::Known(mac) = self.neighbours.resolve(hop, self.now) {
            self.flows.path[index].set_next_hop(mac);
        }
    }

    fn idle_due(&mut self, index: usize) {
        let (flow, cold) = (&mut self.flows.hot[index], &mut self.flows.cold[index]);
        cold.idle_at = NEVER;
        let silence = self.now.saturating_sub(cold.heard_at);
        if flow.has(flag::DETACHED) {
            // However much the peer says meanwhile: it has had its time to close.
            if flow.state == State::FinWait2 {
                self.finish(index, crate::events::CloseReason::TimedOut);
            }
            return;
        }
        if cold.keepalive == 0 || !flow.state.is_synchronised() {
            return;
        }
        if silence < cold.keepalive {
            cold.idle_at = cold.heard_at + cold.keepalive;
        } else if cold.is_probed_enough(silence) {
            self.give_up(index);
        } else {
            cold.keepalive_probes = cold.keepalive_probes.saturating_add(1);
            let usual = KEEPALIVE_INTERVAL.min(cold.keepalive);
            cold.idle_at =
                self.now + if cold.keepalive_interval == 0 { usual } else { cold.keepalive_interval };
            flow.flags |= flag::KEEPALIVE_DUE;
            self.touch(index);
        }
    }

    fn half_open_due(&mut self, index: u32) {
        let Some(half_open) = self.half_open.get_mut(index) else { return };
        if half_open.retransmits >= SYN_ACK_RETRANSMITS {
            self.remove_half_open(index);
            return;
        }
        half_open.retransmits += 1;
        self.metrics.retransmits += 1;
        self.answer_syn(index);
    }
}
