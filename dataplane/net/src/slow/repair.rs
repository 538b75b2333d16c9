//! Recovery from loss: what each acknowledgement of a flow in trouble means. The parts are in
//! `recovery` and `scoreboard`.
//!
//! ```text
//! OPEN --- something out of turn ---> DISORDER --- lost ---> RECOVERY --- all of it acknowledged ---> OPEN
//!   \------------- the timer ran out (`timeout`) ---> LOSS --- all of it acknowledged ---> OPEN
//!        RECOVERY or LOSS --- it was for nothing ---> OPEN, with the window of before
//! ```
//!
//! 1. The cumulative acknowledgement and the SACK blocks go to the scoreboard; what they deliver
//!    for the first time goes to RACK.
//! 2. A first block below the acknowledgement, or inside the second, is no new delivery but a
//!    duplicate (RFC 2883).
//! 3. Was it for nothing? Then everything is as before (`Undo`). If a timeout's first
//!    acknowledgement cannot tell, the next may (`spurious`).
//! 4. With SACK, RACK marks what is lost. Without, the third duplicate and then each partial
//!    acknowledgement name one segment (RFC 6582).
//! 5. In recovery the window is what PRR says; after a timeout it grows as in slow start.
//!
//! A block that is inverted, or names what was never sent, counts for nothing. One acknowledgement
//! has at most four blocks, each costs at most one scan of a bounded board.

use crate::congestion::CongestionControl;
use crate::engine::{Engine, RecoveryState};
use crate::flow::flag;
use crate::limits::{NEVER, RENEGE_PATIENCE};
use crate::packet::tcp::{ECE, Segment};
use crate::recovery::{Reduction, Repair, Undo};
use crate::scoreboard::Delivered;
use crate::sequence::Seq;

/// What an acknowledgement said.
pub(super) struct News {
    pub delivered: Delivered,
    pub advanced: bool,
    pub duplicate: bool,
    /// What the peer reports to have come twice.
    twice: Option<(Seq, Seq)>,
    /// The timestamp that it answers.
    pub echo: Option<u32>,
    /// The window that it announces.
    pub window: u32,
    /// Bytes in flight before it.
    flight: u32,
}

impl Engine {
    /// Takes the acknowledgement of a flow in trouble, or one with ranges. Says whether our FIN was
    /// acknowledged.
    pub(super) fn take_repair(&mut self, index: usize, segment: &Segment<'_>, duplicate: bool) -> bool {
        let (flow, cold) = (&mut self.flows.hot[index], &mut self.flows.cold[index]);
        let mut repair = cold.repair.take().unwrap_or_default();
        let advanced = segment.ack.since(flow.una);
        let flight = flow.outstanding() - cold.board.sacked();
        let mut delivered =
            if advanced > 0 { cold.board.acknowledge(segment.ack) } else { Delivered::default() };
        let twice = if flow.has(flag::SACK) && segment.options.sack_count > 0 {
            self.metrics.sack_blocks += u64::from(segment.options.sack_count);
            take_blocks(&mut cold.board, segment, flow.max, &mut delivered)
        } else {
            None
        };
        let echo = segment.options.timestamps.filter(|_| flow.has(flag::TIMESTAMPS)).map(|stamps| stamps.1);
        let grow = repair.phase != RecoveryState::Recovery;
        let marked = segment.has(ECE) && flow.has(flag::ECN);
        let fin = advanced > 0 && self.account(index, advanced, echo, (grow, marked), &delivered);
        let (flow, cold) = (&self.flows.hot[index], &mut self.flows.cold[index]);
        if advanced > 0 && cold.board.is_reneged() {
            // It has what comes next, and does not acknowledge it: unless it does so soon, it has
            // thrown it away.
            let patience = RENEGE_PATIENCE.max(cold.round_trip.smoothed() / 2);
            cold.retransmit_at = cold.retransmit_at.min(self.now + patience);
            cold.probing = false;
            self.flow_timers.no_later(index as u32, cold.retransmit_at);
        }
        repair.rack.update(&delivered, flow.una, self.now, cold.round_trip.least());
        let window = u32::from(segment.window) << flow.snd_shift;
        let news = News { delivered, advanced: advanced > 0, duplicate, twice, echo, window, flight };
        self.note_duplicate(index, &mut repair, &news);
        let for_nothing = self.undo_if_for_nothing(index, &mut repair, &news);
        if for_nothing {
            self.judge_black_hole(index, false);
        } else {
            self.judge_tail_probe(index, &mut repair, &news);
            self.move_on(index, &mut repair, &news);
        }
        self.put_back(index, repair);
        self.touch(index);
        fin
    }

    /// Puts the state of recovery in its place and sets the flags that follow from it.
    pub(super) fn put_back(&mut self, index: usize, mut repair: Box<Repair>) {
        let (flow, cold) = (&mut self.flows.hot[index], &mut self.flows.cold[index]);
        if flow.una == flow.max {
            repair.reorder_at = NEVER;
        }
        let disorder = cold.board.sacked() > 0 || repair.duplicated > 0;
        if !repair.is_repairing() {
            repair.phase = if disorder { RecoveryState::Disorder } else { RecoveryState::Open };
        }
        flow.flags &= !(flag::REPAIR | flag::RECOVERY);
        if repair.is_repairing() {
            flow.flags |= flag::REPAIR | flag::RECOVERY;
        }
        if disorder || cold.board.lost() > 0 || repair.probe.is_some() {
            flow.flags |= flag::REPAIR;
        }
        if repair.reorder_at != NEVER {
            self.flow_timers.no_later(index as u32, repair.reorder_at);
        }
        cold.repair = Some(repair);
        self.refresh_slow(index);
    }

    fn note_duplicate(&mut self, index: usize, repair: &mut Repair, news: &News) {
        let flow = &self.flows.hot[index];
        let Some((first, last)) = news.twice else { return };
        repair.duplicates = repair.duplicates.saturating_add(1);
        self.metrics.dsacks_received += 1;
        // A duplicate of what was not sent again was made by the network: it says nothing of our
        // patience.
        if let Some(undo) = &mut repair.undo
            && undo.stamp.is_some()
            && !first.before(undo.from)
        {
            undo.bytes = undo.bytes.saturating_sub(last.since(first));
            repair.rack.widen(flow.una, flow.max);
        }
    }

    /// Takes the last reduction back if this acknowledgement shows that nothing had been lost.
    fn undo_if_for_nothing(&mut self, index: usize, repair: &mut Repair, news: &News) -> bool {
        let Some(undo) = &repair.undo else { return false };
        let Some(stamp) = undo.stamp else { return false };
        let (flow, cold) = (&mut self.flows.hot[index], &mut self.flows.cold[index]);
        let repairing = repair.is_repairing();
        // RFC 3522: it answers what was sent before the first retransmission.
        let early = news.advanced && news.echo.is_some_and(|echo| Seq(echo).before(Seq(stamp)));
        let all_twice = news.twice.is_some() && undo.bytes == 0;
        // RFC 5682 section 3, with SACK: what was sent once arrives after all.
        let original = repair.phase == RecoveryState::Loss
            && undo.first_only
            && flow.has(flag::SACK)
            && news.delivered.original > 0;
        let denied = Self::is_timeout_denied(repair, news);
        if !(repairing && (early || original || denied) || all_twice) {
            return false;
        }
        cold.board.unlose();
        cold.congestion.undo();
        flow.cwnd = cold.congestion.window();
        flow.flags &= !flag::RESEND;
        repair.phase = RecoveryState::Open;
        repair.undo = None;
        repair.duplicated = 0;
        repair.undone = repair.undone.saturating_add(1);
        self.metrics.reductions_undone += 1;
        true
    }

    /// RFC 8985 section 7.4.2: if the probe of the tail repaired a loss, that was congestion.
    fn judge_tail_probe(&mut self, index: usize, repair: &mut Repair, news: &News) {
        let Some(probe) = repair.probe else { return };
        let (flow, cold) = (&mut self.flows.hot[index], &mut self.flows.cold[index]);
        if flow.una.before(probe.end) {
            return;
        }
        let beyond = flow.una.after(probe.end);
        if !probe.again || news.twice.is_some() || beyond || news.duplicate {
            repair.probe = None;
        }
        if probe.again && news.twice.is_none() && beyond && !repair.is_repairing() {
            let moment = flow.moment(self.now);
            cold.congestion.enter_recovery(moment);
            cold.congestion.exit_recovery();
            flow.cwnd = cold.congestion.window();
        }
    }

    fn move_on(&mut self, index: usize, repair: &mut Repair, news: &News) {
        if repair.is_repairing() && !self.flows.hot[index].una.before(self.flows.cold[index].recover) {
            self.judge_black_hole(index, true);
        }
        if self.question_timeout(index, repair, news) {
            return;
        }
        let (flow, cold) = (&mut self.flows.hot[index], &mut self.flows.cold[index]);
        let mss = u32::from(flow.mss);
        if let Some(undo) = &mut repair.undo {
            undo.first_only = false;
        }
        if repair.is_repairing() && !flow.una.before(cold.recover) {
            if repair.phase == RecoveryState::Recovery {
                cold.congestion.exit_recovery();
                flow.cwnd = cold.congestion.window();
            }
            repair.phase = RecoveryState::Open;
            repair.duplicated = 0;
            repair.rack.recovered();
        }
        let (mut marked, mut delivered) = (0, news.delivered.bytes);
        if flow.has(flag::SACK) {
            marked = self.detect(index, repair);
        } else {
            if news.duplicate {
                flow.duplicates = flow.duplicates.saturating_add(1);
                // No more of them can be honest than segments were in flight when the first came:
                // each beyond would let another out (Savage et al., DupACK spoofing).
                let sent = if repair.is_repairing() {
                    cold.recover.since(flow.una)
                } else {
                    flow.outstanding().min(4 * mss)
                };
                let most = sent.saturating_sub(cold.board.lost()).saturating_sub(mss);
                let counted = (repair.duplicated + mss).min(most.max(repair.duplicated));
                delivered += counted - repair.duplicated;
                repair.duplicated = counted;
            }
            if news.advanced {
                // One of them was the segment that was missing; the others had been counted.
                let known = delivered.saturating_sub(mss).min(repair.duplicated);
                delivered -= known;
                repair.duplicated = if repair.is_repairing() { repair.duplicated - known } else { 0 };
            }
            // RFC 6582 section 3.2 step 1: `recover` is not among what is outstanding. (Being
            // before or after it means nothing: gigabytes may have passed since.)
            let fresh = cold.recover.since(flow.una) > flow.outstanding();
            let third = !repair.is_repairing() && news.duplicate && flow.duplicates == 3 && fresh;
            let partial = repair.phase == RecoveryState::Recovery && news.advanced;
            if third || partial {
                let before = cold.board.lost();
                cold.board.lose_first(mss);
                marked = cold.board.lost() - before;
            }
        }
        if marked > 0 && !repair.is_repairing() {
            self.enter_recovery(index, repair, news.flight);
        }
        let (flow, cold) = (&mut self.flows.hot[index], &self.flows.cold[index]);
        if repair.phase == RecoveryState::Recovery {
            let left = cold.board.sacked() + cold.board.lost() + repair.duplicated;
            let pipe = flow.outstanding().saturating_sub(left);
            if delivered > 0 {
                flow.cwnd = repair.reduction.window(delivered, pipe, news.advanced && marked == 0, mss);
            }
        }
    }

    /// Marks what is lost by now, and notes when to look again. Returns the bytes marked.
    pub(super) fn detect(&mut self, index: usize, repair: &mut Repair) -> u32 {
        let (flow, cold) = (&self.flows.hot[index], &mut self.flows.cold[index]);
        let certain = repair.is_repairing() || cold.board.is_threshold_reached(u32::from(flow.mss));
        let window = repair.rack.window(cold.round_trip.least(), cold.round_trip.smoothed(), certain);
        let patience = repair.rack.round_trip.saturating_add(window);
        let (marked, next) = cold.board.detect(repair.rack.latest, patience, self.now);
        repair.reorder_at = next.unwrap_or(NEVER);
        self.metrics.bytes_lost += u64::from(marked);
        marked
    }

    /// The first loss in this window of data, with `flight` bytes in flight when it was found.
    pub(super) fn enter_recovery(&mut self, index: usize, repair: &mut Repair, flight: u32) {
        let (flow, cold) = (&mut self.flows.hot[index], &mut self.flows.cold[index]);
        cold.recover = flow.max;
        cold.congestion.enter_recovery(flow.moment(self.now));
        repair.phase = RecoveryState::Recovery;
        repair.probe = None;
        repair.undo = Some(Undo { from: flow.una, ..Undo::default() });
        repair.reduction = Reduction::new(flight, cold.congestion.window());
        repair.recoveries = repair.recoveries.saturating_add(1);
        flow.flags |= flag::RESEND;
        self.metrics.fast_retransmits += 1;
        self.note_reduction(index);
    }

    /// All that is in flight was lost for a reason that has nothing to do with congestion: it was
    /// too large for the path.
    pub(crate) fn lose_all(&mut self, index: usize) {
        let (flow, cold) = (&mut self.flows.hot[index], &mut self.flows.cold[index]);
        cold.board.lose(u64::MAX);
        flow.flags |= flag::RESEND;
        let repair = cold.repair.take().unwrap_or_default();
        self.put_back(index, repair);
        self.touch(index);
    }

    /// What was overtaken has waited long enough (RFC 8985 section 6.3).
    pub(super) fn reordering_due(&mut self, index: usize) {
        let Some(mut repair) = self.flows.cold[index].repair.take() else { return };
        repair.reorder_at = NEVER;
        let flight = self.flows.hot[index].outstanding() - self.flows.cold[index].board.sacked();
        if self.detect(index, &mut repair) > 0 {
            if !repair.is_repairing() {
                self.enter_recovery(index, &mut repair, flight);
            }
            self.flows.hot[index].flags |= flag::RESEND;
        }
        self.put_back(index, repair);
        self.touch(index);
    }
}

/// Marks the blocks of a segment. Returns what came twice, if the first block says so.
fn take_blocks(
    board: &mut crate::scoreboard::Scoreboard,
    segment: &Segment<'_>,
    max: Seq,
    delivered: &mut Delivered,
) -> Option<(Seq, Seq)> {
    let blocks = segment.sack_blocks();
    let blocks = blocks.as_slice();
    let mut twice = None;
    for (place, &(first, last)) in blocks.iter().enumerate() {
        if !first.before(last) || last.after(max) {
            continue;
        }
        let inside = |outer: &(Seq, Seq)| !first.before(outer.0) && !last.after(outer.1);
        if !last.after(segment.ack) || place == 0 && blocks.get(1).is_some_and(inside) {
            if place == 0 {
                twice = Some((first, last));
            }
        } else {
            board.sack(first.max(segment.ack), last, delivered);
        }
    }
    twice
}
