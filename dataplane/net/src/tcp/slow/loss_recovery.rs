//! Loss recovery: what each acknowledgement of a flow with suspected losses means. The state is in
//! `flow/recovery` and `flow/scoreboard`.
//!
//! ```text
//! OPEN --- out of order ---> DISORDER --- lost ---> RECOVERY --- all acknowledged ---> OPEN
//!   \------- the timer expired (`timeout`) ------> LOSS ------ all acknowledged ---> OPEN
//!        RECOVERY or LOSS --- it was spurious ---> OPEN, with the window of before
//! ```
//!
//! 1. The cumulative acknowledgement and the SACK blocks update the scoreboard; what they deliver
//!    for the first time updates RACK.
//! 2. A first block below the acknowledgement, or inside the second block, is a DSACK (RFC 2883)
//!    and delivers nothing.
//! 3. A spurious recovery is undone (`Undo`). If the first acknowledgement after a timeout does
//!    not decide it, the next one may (`f_rto`).
//! 4. With SACK, RACK marks the lost data. Without, the third duplicate and then each partial
//!    acknowledgement mark one segment (RFC 6582).
//! 5. In recovery the window is PRR's; after a timeout it grows as in slow start.
//!
//! A block that is inverted, or covers data that were never sent, is ignored. One acknowledgement
//! has at most four blocks, and each costs at most one scan of a bounded scoreboard.

use crate::context::Context;
use crate::limits::{NEVER, RENEGE_PATIENCE};
use crate::packet::sequence::Seq;
use crate::packet::tcp::{ECE, Segment};
use crate::tcp::Tcp;
use crate::tcp::congestion::CongestionControl;
use crate::tcp::fast::CongestionSignal;
use crate::tcp::flow::flag;
use crate::tcp::flow::id::FlowIndex;
use crate::tcp::flow::recovery::RecoveryState;
use crate::tcp::flow::recovery::{LossRecovery, Reduction, Undo};
use crate::tcp::flow::scoreboard::Delivered;

/// What an acknowledgement says.
pub(super) struct AckSummary {
    pub delivered: Delivered,
    pub advanced: bool,
    pub duplicate: bool,
    /// The range of a DSACK.
    dsack: Option<(Seq, Seq)>,
    /// The timestamp that it answers.
    pub echo: Option<u32>,
    /// The window that it announces.
    pub window: u32,
    /// Bytes in flight before it.
    flight: u32,
}

impl Tcp {
    /// Takes an acknowledgement with SACK blocks, or one of a flow with suspected losses. Returns
    /// whether our FIN was acknowledged.
    pub(super) fn take_inspected_ack(
        &mut self,
        cx: &mut Context,
        index: FlowIndex,
        segment: &Segment<'_>,
        duplicate: bool,
    ) -> bool {
        let (flow, cold) = (&mut self.flows.hot[index], &mut self.flows.cold[index]);
        let mut recovery = cold.recovery.take().unwrap_or_default();
        let advanced = segment.ack.since(flow.una);
        let flight = flow.outstanding() - cold.scoreboard.sacked();
        let mut delivered =
            if advanced > 0 { cold.scoreboard.acknowledge(segment.ack) } else { Delivered::default() };
        let dsack = if flow.has(flag::SACK) && segment.options.sack_count > 0 {
            cx.metrics.sack_blocks += u64::from(segment.options.sack_count);
            apply_sack_blocks(&mut cold.scoreboard, segment, flow.max, &mut delivered)
        } else {
            None
        };
        let echo = segment.options.timestamps.filter(|_| flow.has(flag::TIMESTAMPS)).map(|stamps| stamps.1);
        let signal = CongestionSignal {
            may_grow: recovery.phase != RecoveryState::Recovery,
            ece: segment.has(ECE) && flow.has(flag::ECN),
        };
        let fin = advanced > 0 && self.account(cx, index, advanced, echo, signal, &delivered);
        let (flow, cold) = (&self.flows.hot[index], &mut self.flows.cold[index]);
        if advanced > 0 && cold.scoreboard.is_reneged() {
            // The receiver reported the next bytes, and does not acknowledge them: unless it does
            // soon, it has reneged.
            let patience = RENEGE_PATIENCE.max(cold.rtt.srtt() / 2);
            cold.retransmit_at = cold.retransmit_at.min(cx.now + patience);
            cold.probing = false;
            self.flow_timers.no_later(index, cold.retransmit_at);
        }
        recovery.rack.update(&delivered, flow.una, cx.now, cold.rtt.min_rtt());
        let window = u32::from(segment.window) << flow.snd_shift;
        let ack = AckSummary { delivered, advanced: advanced > 0, duplicate, dsack, echo, window, flight };
        self.note_dsack(cx, index, &mut recovery, &ack);
        let spurious = self.undo_if_spurious(cx, index, &mut recovery, &ack);
        if spurious {
            self.check_black_hole(cx, index, false);
        } else {
            self.check_tail_probe(cx, index, &mut recovery, &ack);
            self.advance_recovery(cx, index, &mut recovery, &ack);
        }
        self.store_recovery(index, recovery);
        self.mark_dirty(index);
        fin
    }

    /// Stores the state of loss recovery and sets the flags that follow from it.
    pub(super) fn store_recovery(&mut self, index: FlowIndex, mut recovery: Box<LossRecovery>) {
        let (flow, cold) = (&mut self.flows.hot[index], &mut self.flows.cold[index]);
        if flow.una == flow.max {
            recovery.reorder_at = NEVER;
        }
        let disorder = cold.scoreboard.sacked() > 0 || recovery.duplicated > 0;
        if !recovery.is_active() {
            recovery.phase = if disorder { RecoveryState::Disorder } else { RecoveryState::Open };
        }
        flow.flags &= !(flag::INSPECT_ACKS | flag::RECOVERY);
        if recovery.is_active() {
            flow.flags |= flag::INSPECT_ACKS | flag::RECOVERY;
        }
        if disorder || cold.scoreboard.lost() > 0 || recovery.probe.is_some() {
            flow.flags |= flag::INSPECT_ACKS;
        }
        if recovery.reorder_at != NEVER {
            self.flow_timers.no_later(index, recovery.reorder_at);
        }
        cold.recovery = Some(recovery);
        self.update_slow_flag(index);
    }

    fn note_dsack(
        &mut self,
        cx: &mut Context,
        index: FlowIndex,
        recovery: &mut LossRecovery,
        ack: &AckSummary,
    ) {
        let flow = &self.flows.hot[index];
        let Some((first, last)) = ack.dsack else { return };
        recovery.dsacks = recovery.dsacks.saturating_add(1);
        cx.metrics.dsacks_received += 1;
        // A duplicate of data that were not retransmitted was made by the network: it says nothing
        // about the reordering window.
        if let Some(undo) = &mut recovery.undo
            && undo.stamp.is_some()
            && !first.before(undo.from)
        {
            undo.bytes = undo.bytes.saturating_sub(last.since(first));
            recovery.rack.widen(flow.una, flow.max);
        }
    }

    /// Undoes the last reduction if this acknowledgement shows that nothing was lost.
    fn undo_if_spurious(
        &mut self,
        cx: &mut Context,
        index: FlowIndex,
        recovery: &mut LossRecovery,
        ack: &AckSummary,
    ) -> bool {
        let Some(undo) = &recovery.undo else { return false };
        let Some(stamp) = undo.stamp else { return false };
        let (flow, cold) = (&mut self.flows.hot[index], &mut self.flows.cold[index]);
        let recovering = recovery.is_active();
        // RFC 3522: it answers what was sent before the first retransmission.
        let early = ack.advanced && ack.echo.is_some_and(|echo| Seq(echo).before(Seq(stamp)));
        let all_dsacked = ack.dsack.is_some() && undo.bytes == 0;
        // RFC 5682 section 3, with SACK: data that were sent once arrive after all.
        let original = recovery.phase == RecoveryState::Loss
            && undo.first_only
            && flow.has(flag::SACK)
            && ack.delivered.original > 0;
        let timeout_spurious = Self::is_timeout_spurious(recovery, ack);
        if !(recovering && (early || original || timeout_spurious) || all_dsacked) {
            return false;
        }
        cold.scoreboard.clear_lost();
        cold.congestion.undo();
        flow.cwnd = cold.congestion.window();
        flow.flags &= !flag::RESEND;
        recovery.phase = RecoveryState::Open;
        recovery.undo = None;
        recovery.duplicated = 0;
        recovery.undone = recovery.undone.saturating_add(1);
        cx.metrics.reductions_undone += 1;
        true
    }

    /// RFC 8985 section 7.4.2: if a tail loss probe retransmitted a lost segment, that was
    /// congestion.
    fn check_tail_probe(
        &mut self,
        cx: &Context,
        index: FlowIndex,
        recovery: &mut LossRecovery,
        ack: &AckSummary,
    ) {
        let Some(probe) = recovery.probe else { return };
        let (flow, cold) = (&mut self.flows.hot[index], &mut self.flows.cold[index]);
        if flow.una.before(probe.end) {
            return;
        }
        let beyond = flow.una.after(probe.end);
        if !probe.retransmission || ack.dsack.is_some() || beyond || ack.duplicate {
            recovery.probe = None;
        }
        if probe.retransmission && ack.dsack.is_none() && beyond && !recovery.is_active() {
            let moment = flow.moment(cx.now);
            cold.congestion.enter_recovery(moment);
            cold.congestion.exit_recovery();
            flow.cwnd = cold.congestion.window();
        }
    }

    fn advance_recovery(
        &mut self,
        cx: &mut Context,
        index: FlowIndex,
        recovery: &mut LossRecovery,
        ack: &AckSummary,
    ) {
        if recovery.is_active() && !self.flows.hot[index].una.before(self.flows.cold[index].recover) {
            self.check_black_hole(cx, index, true);
        }
        if self.probe_timeout(cx, index, recovery, ack) {
            return;
        }
        let (flow, cold) = (&mut self.flows.hot[index], &mut self.flows.cold[index]);
        let mss = u32::from(flow.mss);
        if let Some(undo) = &mut recovery.undo {
            undo.first_only = false;
        }
        if recovery.is_active() && !flow.una.before(cold.recover) {
            if recovery.phase == RecoveryState::Recovery {
                cold.congestion.exit_recovery();
                flow.cwnd = cold.congestion.window();
            }
            recovery.phase = RecoveryState::Open;
            recovery.duplicated = 0;
            recovery.rack.recovered();
        }
        let (mut lost, mut delivered) = (0, ack.delivered.bytes);
        if flow.has(flag::SACK) {
            lost = self.detect(cx, index, recovery);
        } else {
            if ack.duplicate {
                flow.duplicates = flow.duplicates.saturating_add(1);
                // An honest peer sends no more of them than segments were in flight at the first:
                // each further one would release another segment (Savage et al., DupACK spoofing).
                let sent = if recovery.is_active() {
                    cold.recover.since(flow.una)
                } else {
                    flow.outstanding().min(4 * mss)
                };
                let most = sent.saturating_sub(cold.scoreboard.lost()).saturating_sub(mss);
                let counted = (recovery.duplicated + mss).min(most.max(recovery.duplicated));
                delivered += counted - recovery.duplicated;
                recovery.duplicated = counted;
            }
            if ack.advanced {
                // One of them was the segment that was missing; the others had been counted.
                let known = delivered.saturating_sub(mss).min(recovery.duplicated);
                delivered -= known;
                recovery.duplicated = if recovery.is_active() { recovery.duplicated - known } else { 0 };
            }
            // RFC 6582 section 3.2 step 1: `recover` is not among what is outstanding. (Being
            // before or after it means nothing: gigabytes may have passed since.)
            let fresh = cold.recover.since(flow.una) > flow.outstanding();
            let third = !recovery.is_active() && ack.duplicate && flow.duplicates == 3 && fresh;
            let partial = recovery.phase == RecoveryState::Recovery && ack.advanced;
            if third || partial {
                let before = cold.scoreboard.lost();
                cold.scoreboard.mark_first_lost(mss);
                lost = cold.scoreboard.lost() - before;
            }
        }
        if lost > 0 && !recovery.is_active() {
            self.enter_recovery(cx, index, recovery, ack.flight);
        }
        let (flow, cold) = (&mut self.flows.hot[index], &self.flows.cold[index]);
        if recovery.phase == RecoveryState::Recovery {
            let left = cold.scoreboard.sacked() + cold.scoreboard.lost() + recovery.duplicated;
            let pipe = flow.outstanding().saturating_sub(left);
            if delivered > 0 {
                flow.cwnd = recovery.reduction.window(delivered, pipe, ack.advanced && lost == 0, mss);
            }
        }
    }

    /// Marks what is lost by now, and sets the time of the next check. Returns the bytes marked.
    pub(super) fn detect(&mut self, cx: &mut Context, index: FlowIndex, recovery: &mut LossRecovery) -> u32 {
        let (flow, cold) = (&self.flows.hot[index], &mut self.flows.cold[index]);
        let certain = recovery.is_active() || cold.scoreboard.is_threshold_reached(u32::from(flow.mss));
        let window = recovery.rack.window(cold.rtt.min_rtt(), cold.rtt.srtt(), certain);
        let patience = recovery.rack.rtt.saturating_add(window);
        let (lost, next) = cold.scoreboard.detect(recovery.rack.latest, patience, cx.now);
        recovery.reorder_at = next.unwrap_or(NEVER);
        cx.metrics.bytes_lost += u64::from(lost);
        lost
    }

    /// Enters recovery at the first loss in a window of data, with `flight` bytes in flight.
    pub(super) fn enter_recovery(
        &mut self,
        cx: &mut Context,
        index: FlowIndex,
        recovery: &mut LossRecovery,
        flight: u32,
    ) {
        let (flow, cold) = (&mut self.flows.hot[index], &mut self.flows.cold[index]);
        cold.recover = flow.max;
        cold.congestion.enter_recovery(flow.moment(cx.now));
        recovery.phase = RecoveryState::Recovery;
        recovery.probe = None;
        recovery.undo = Some(Undo { from: flow.una, ..Undo::default() });
        recovery.reduction = Reduction::new(flight, cold.congestion.window());
        recovery.recoveries = recovery.recoveries.saturating_add(1);
        flow.flags |= flag::RESEND;
        cx.metrics.fast_retransmits += 1;
        self.note_reduction(index);
    }

    /// All data in flight were lost for another reason than congestion: they were too large for the
    /// path.
    pub(crate) fn mark_all_lost(&mut self, index: FlowIndex) {
        let (flow, cold) = (&mut self.flows.hot[index], &mut self.flows.cold[index]);
        cold.scoreboard.mark_lost(u64::MAX);
        flow.flags |= flag::RESEND;
        let recovery = cold.recovery.take().unwrap_or_default();
        self.store_recovery(index, recovery);
        self.mark_dirty(index);
    }

    /// The reordering timer expired (RFC 8985 section 6.3).
    pub(super) fn reordering_due(&mut self, cx: &mut Context, index: FlowIndex) {
        let Some(mut recovery) = self.flows.cold[index].recovery.take() else { return };
        recovery.reorder_at = NEVER;
        let flight = self.flows.hot[index].outstanding() - self.flows.cold[index].scoreboard.sacked();
        if self.detect(cx, index, &mut recovery) > 0 {
            if !recovery.is_active() {
                self.enter_recovery(cx, index, &mut recovery, flight);
            }
            self.flows.hot[index].flags |= flag::RESEND;
        }
        self.store_recovery(index, recovery);
        self.mark_dirty(index);
    }
}

/// Marks the blocks of a segment. Returns the DSACK range, if the first block is one.
fn apply_sack_blocks(
    board: &mut crate::tcp::flow::scoreboard::Scoreboard,
    segment: &Segment<'_>,
    max: Seq,
    delivered: &mut Delivered,
) -> Option<(Seq, Seq)> {
    let blocks = segment.sack_blocks();
    let blocks = blocks.as_slice();
    let mut dsack = None;
    for (place, &(first, last)) in blocks.iter().enumerate() {
        if !first.before(last) || last.after(max) {
            continue;
        }
        let inside = |outer: &(Seq, Seq)| !first.before(outer.0) && !last.after(outer.1);
        if !last.after(segment.ack) || place == 0 && blocks.get(1).is_some_and(inside) {
            if place == 0 {
                dsack = Some((first, last));
            }
        } else {
            board.sack(first.max(segment.ack), last, delivered);
        }
    }
    dsack
}
