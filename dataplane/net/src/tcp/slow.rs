//! The slow path: every segment that is not the next one of an established flow. The order of the
//! checks is that of RFC 9293 section 3.10.7.4, with RFC 5961 against blind attacks and RFC 7323
//! against old segments.
//!
//! 1. Timestamp (PAWS), then sequence number: a segment that is old or outside the window is
//!    answered with an ACK, at most.
//! 2. RST counts only with exactly the next expected number, and SYN never does. Either of them
//!    inside the window gets a challenge ACK.
//! 3. The acknowledgement: new, duplicate, or out of range. If losses are suspected,
//!    `loss_recovery` takes it. Before this step a segment changes nothing of the flow but the time
//!    of the last challenge ACK. So a sender that sees none of our packets gets no further.
//! 4. The payload: in order to the application, else to its position in the ring
//!    (`flow/reassembly`).
//! 5. FIN, once all data before it have arrived.
//!
//! | module | what it has |
//! | --- | --- |
//! | `handshake` | the states before ESTABLISHED, and unmatched segments |
//! | `cookie` | SYNs that find the table of half-open connections full |
//! | `loss_recovery` | acknowledgements while losses are suspected |
//! | `sack` | the SACK blocks that are sent to the peer |
//! | `f_rto` | spurious timeouts, without SACK and timestamps |
//! | `timeout` | timers |
//! | `black_hole` | smaller segments when full ones time out |
//! | `ecn` | CE marks and their echo |
//! | `close` | the end of a flow |

use crate::context::Context;
use crate::events::CloseReason;
use crate::limits::{CHALLENGE_INTERVAL, TIMESTAMP_AGE};
use crate::packet::Payload;
use crate::packet::sequence::Seq;
use crate::packet::tcp::{ACK, ECE, FIN, RST, SYN, Segment};
use crate::tcp::Tcp;
use crate::tcp::flow::id::FlowIndex;
use crate::tcp::flow::{State, event, flag};

mod black_hole;
mod close;
mod cookie;
mod ecn;
mod f_rto;
mod handshake;
mod loss_recovery;
mod sack;
mod timeout;

/// Most duplicate acknowledgements owed at a time: more of them do not help the peer's recovery.
const MOST_OWED: u8 = 32;

impl Tcp {
    /// Takes a segment of a flow in any state. `ce_marked`: its packet is CE-marked.
    pub(crate) fn slow_receive(
        &mut self,
        cx: &mut Context,
        index: FlowIndex,
        segment: &Segment<'_>,
        ce_marked: bool,
    ) {
        match self.flows.hot[index].state {
            State::Closed | State::TimeWait => {}
            State::SynSent => self.syn_sent_receive(cx, index, segment, ce_marked),
            _ => self.synchronised_receive(cx, index, segment, ce_marked),
        }
    }

    fn synchronised_receive(
        &mut self,
        cx: &mut Context,
        index: FlowIndex,
        segment: &Segment<'_>,
        ce_marked: bool,
    ) {
        if self.answers_simultaneous_open(index, segment) {
            self.established(cx, index, segment);
            self.acknowledge_now(index);
            return;
        }
        if !self.passes_timestamp(cx, index, segment) || !self.passes_window(cx, index, segment) {
            return;
        }
        let flow = &self.flows.hot[index];
        if segment.has(RST) {
            if segment.seq == flow.rcv_nxt {
                self.peer_reset(cx, index);
            } else {
                self.challenge(cx, index);
            }
            return;
        }
        if segment.has(SYN) {
            self.challenge(cx, index);
            return;
        }
        if !segment.has(ACK) {
            return;
        }
        if self.flows.hot[index].state == State::SynReceived {
            if segment.ack != self.flows.hot[index].max {
                self.reset_reply(cx, index, segment.ack);
                return;
            }
            self.note_received(cx, index, segment);
            self.established(cx, index, segment);
        } else {
            if !self.acknowledges_plausibly(index, segment) {
                self.challenge(cx, index);
                return;
            }
            self.note_received(cx, index, segment);
            if !self.take_acknowledgement(cx, index, segment) {
                return;
            }
        }
        self.note_ce(cx, index, segment, ce_marked);
        self.take_payload(cx, index, segment);
        self.take_fin(cx, index, segment);
    }

    /// RFC 7323 section 5.3. A segment from the past is answered with an ACK; one without a
    /// timestamp on a flow that has them is dropped.
    fn passes_timestamp(&mut self, cx: &mut Context, index: FlowIndex, segment: &Segment<'_>) -> bool {
        let flow = &self.flows.hot[index];
        if !flow.has(flag::TIMESTAMPS) || segment.has(RST) {
            return true;
        }
        let Some((value, _)) = segment.options.timestamps else {
            cx.metrics.paws_drops += 1;
            if segment.has(SYN) {
                // From a peer that has lost the connection: the answer makes it reset ours (RFC
                // 5961 section 4.2).
                self.challenge(cx, index);
            }
            return false;
        };
        let old = Seq(value).before(Seq(flow.ts_recent))
            && cx.now.saturating_sub(self.flows.cold[index].ts_recent_at) < TIMESTAMP_AGE;
        if old {
            cx.metrics.paws_drops += 1;
            self.answer_unacceptable(cx, index, segment);
        }
        !old
    }

    /// RFC 9293 section 3.4, table 6. An ACK just past a full window, or any at a closed one,
    /// passes: its sender cannot do better.
    fn passes_window(&mut self, cx: &mut Context, index: FlowIndex, segment: &Segment<'_>) -> bool {
        let flow = &self.flows.hot[index];
        let window = flow.rcv_edge.distance(flow.rcv_nxt).max(0);
        let first = segment.seq.distance(flow.rcv_nxt);
        let last = first.saturating_add(segment.length().cast_signed());
        let acceptable = if segment.length() == 0 {
            (0..=window).contains(&first)
        } else {
            last > 0 && (first < window || first == 0)
        };
        if !acceptable {
            cx.metrics.out_of_window += 1;
            if !segment.has(RST) {
                self.answer_unacceptable(cx, index, segment);
            }
        }
        acceptable
    }

    /// A segment with data (a retransmission whose ACK was lost, a window probe) is acknowledged
    /// always; a segment without data, at a bounded rate, because two peers that disagree would
    /// answer each other for ever.
    fn answer_unacceptable(&mut self, cx: &mut Context, index: FlowIndex, segment: &Segment<'_>) {
        if segment.length() > 0 && !segment.has(SYN) {
            if segment.has(ACK) && self.acknowledges_plausibly(index, segment) {
                self.note_old_payload(index, segment);
            }
            self.acknowledge_now(index);
        } else {
            self.challenge(cx, index);
        }
    }

    /// Sends a challenge ACK, unless one went out a moment ago (RFC 5961 section 7).
    fn challenge(&mut self, cx: &mut Context, index: FlowIndex) {
        let cold = &mut self.flows.cold[index];
        if cold.challenged_at != 0 && cx.now.saturating_sub(cold.challenged_at) < CHALLENGE_INTERVAL {
            cx.metrics.rate_limited += 1;
            return;
        }
        cold.challenged_at = cx.now.max(1);
        cx.metrics.challenge_acks += 1;
        self.acknowledge_now(index);
    }

    pub(crate) fn acknowledge_now(&mut self, index: FlowIndex) {
        self.flows.hot[index].flags |= flag::ACK_NOW;
        self.mark_dirty(index);
    }

    /// RFC 5961 section 5.2: whether the acknowledgement is one that the peer may send: of nothing
    /// that was never sent, and no older than the largest window that it has announced.
    fn acknowledges_plausibly(&self, index: FlowIndex, segment: &Segment<'_>) -> bool {
        let (flow, cold) = (&self.flows.hot[index], &self.flows.cold[index]);
        let oldest = -i64::from(cold.largest_window.max(u32::from(flow.mss)));
        !segment.ack.after(flow.max) && i64::from(segment.ack.distance(flow.una)) >= oldest
    }

    /// Records that the peer is alive, and its timestamp. The segment is acceptable, its
    /// acknowledgement included.
    ///
    /// RFC 7323 section 4.3 takes the timestamp of a segment that begins at or before our last
    /// acknowledgement. The engine takes no timestamp from an acknowledgement that is older than
    /// the last one: an attacker could guess its wide range, and a timestamp from the future would
    /// make all valid segments count as old.
    fn note_received(&mut self, cx: &Context, index: FlowIndex, segment: &Segment<'_>) {
        let (flow, cold) = (&mut self.flows.hot[index], &mut self.flows.cold[index]);
        cold.received_at = cx.now;
        cold.keepalive_probes = 0;
        if let (true, Some((value, _))) = (flow.has(flag::TIMESTAMPS), segment.options.timestamps)
            && !segment.seq.after(flow.last_ack)
            && !segment.ack.before(flow.una)
        {
            flow.ts_recent = value;
            cold.ts_recent_at = cx.now;
        }
    }

    /// Takes a plausible acknowledgement. Returns whether the rest of the segment counts.
    fn take_acknowledgement(&mut self, cx: &mut Context, index: FlowIndex, segment: &Segment<'_>) -> bool {
        let flow = &self.flows.hot[index];
        let ahead = segment.ack.distance(flow.una);
        let window = u32::from(segment.window) << flow.snd_shift;
        let same_window = window == flow.wnd;
        let duplicate =
            ahead == 0 && segment.length() == 0 && same_window && flow.outstanding() > 0 && flow.wnd > 0;
        let selective = flow.has(flag::SACK) && segment.options.sack_count > 0;
        let echoed = segment.has(ECE) && flow.has(flag::ECN) && ahead >= 0;
        let fin = if ahead >= 0 && (selective || duplicate || flow.has(flag::INSPECT_ACKS)) {
            self.take_inspected_ack(cx, index, segment, duplicate)
        } else if ahead > 0 {
            let echo =
                segment.options.timestamps.filter(|_| flow.has(flag::TIMESTAMPS)).map(|stamps| stamps.1);
            self.acknowledge(cx, index, ahead.cast_unsigned(), echo, echoed)
        } else {
            false
        };
        if echoed {
            self.take_ece(cx, index);
        }
        if fin {
            return self.fin_acknowledged(cx, index);
        }
        self.update_window(index, segment, window);
        true
    }

    fn update_window(&mut self, index: FlowIndex, segment: &Segment<'_>, window: u32) {
        let flow = &mut self.flows.hot[index];
        // A segment that acknowledges more is newer than the last, even if its number is lower: it
        // is a retransmission. RFC 9293 section 3.10.7.4 compares the number first; the edge would
        // then move on by what is acknowledged, beyond what was announced.
        let newer = segment.ack.after(flow.wl2) || !flow.wl1.after(segment.seq);
        if segment.ack.before(flow.una) || !newer {
            return;
        }
        let (closed, opened) = (flow.wnd == 0, window > flow.wnd);
        flow.wnd = window;
        flow.wl1 = segment.seq;
        flow.wl2 = segment.ack;
        let cold = &mut self.flows.cold[index];
        cold.largest_window = cold.largest_window.max(window);
        if opened {
            if closed {
                cold.backoff = 0;
            }
            self.mark_dirty(index);
        }
    }

    /// The flow is off the fast path while data wait out of order or loss recovery is active.
    pub(crate) fn update_slow_flag(&mut self, index: FlowIndex) {
        // A FIN that came early waits too: the fast path would skip it when the gap before it is
        // filled.
        let cold = &self.flows.cold[index];
        let waiting = cold.reassembly.is_some() || cold.peer_fin.is_some();
        let flow = &mut self.flows.hot[index];
        if waiting || flow.has(flag::INSPECT_ACKS) {
            flow.flags |= flag::SLOW;
        } else {
            flow.flags &= !flag::SLOW;
        }
    }

    fn take_payload(&mut self, cx: &mut Context, index: FlowIndex, segment: &Segment<'_>) {
        if segment.payload.is_empty() {
            return;
        }
        let flow = &self.flows.hot[index];
        if !flow.state.receives() {
            self.acknowledge_now(index);
            return;
        }
        if flow.has(flag::DETACHED) {
            // No application will read it (RFC 9293 section 3.6.1).
            let seq = segment.ack;
            self.reset_reply(cx, index, seq);
            cx.metrics.connections_aborted += 1;
            self.finish(index, CloseReason::Reset);
            return;
        }
        let skip = flow.rcv_nxt.distance(segment.seq).max(0).cast_unsigned() as usize;
        if skip > 0 {
            self.note_old_payload(index, segment);
        }
        let (flow, cold) = (&self.flows.hot[index], &self.flows.cold[index]);
        let end = cold.peer_fin.map_or(flow.rcv_edge, |fin| fin.min(flow.rcv_edge));
        let room = end.distance(segment.seq).max(0).cast_unsigned() as usize;
        let payload = segment.payload.take(room).skip(skip);
        if payload.is_empty() {
            self.acknowledge_now(index);
            return;
        }
        let offset = segment.seq.plus(skip as u32).since(flow.rcv_nxt) as usize;
        self.place_payload(cx, index, offset, payload);
    }

    /// Writes `payload`, which is in the window, `offset` bytes beyond the next expected byte.
    fn place_payload(&mut self, cx: &mut Context, index: FlowIndex, offset: usize, payload: Payload<'_>) {
        let place = self.flows.hot[index].rx.len() + offset;
        let needed = place + payload.len();
        let there = if offset > 0 {
            self.reserve_out_of_order(cx, index, needed)
        } else {
            self.reserve_in_order(cx, index, needed)
        };
        if !there {
            cx.metrics.buffer_drops += 1;
            self.acknowledge_now(index);
            return;
        }
        let (flow, cold) = (&mut self.flows.hot[index], &mut self.flows.cold[index]);
        let start = flow.rcv_nxt.plus(offset as u32);
        let end = start.plus(payload.len() as u32);
        if let Some(piece) = cold.reassembly.as_ref().and_then(|reassembly| reassembly.duplicate(start, end))
        {
            self.note_dsack_range(index, piece.0, piece.1);
        }
        let (flow, cold) = (&mut self.flows.hot[index], &mut self.flows.cold[index]);
        if offset > 0 {
            flow.owed = (flow.owed + 1).min(MOST_OWED);
            if flow.has(flag::SACK) {
                flow.flags |= flag::SACK_DUE;
            }
            if cold.reassembly.get_or_insert_default().insert(start, end) {
                flow.rx.write_at(place, payload);
                cx.metrics.out_of_order += 1;
            } else {
                cx.metrics.buffer_drops += 1;
            }
            self.update_slow_flag(index);
            self.mark_dirty(index);
            return;
        }
        flow.rx.write_at(place, payload);
        let next = match &mut cold.reassembly {
            Some(reassembly) => reassembly.advance(end),
            None => end,
        };
        let delivered = next.since(flow.rcv_nxt) as usize;
        flow.rx.extend(delivered);
        flow.rcv_nxt = next;
        cold.received += delivered as u64;
        cx.metrics.payload_received += delivered as u64;
        if cold.reassembly.is_some() {
            // Filling a gap is acknowledged at once (RFC 5681 section 4.2).
            flow.flags |= flag::ACK_NOW;
            if cold.reassembly.as_ref().is_some_and(|reassembly| reassembly.is_empty()) {
                self.clear_out_of_order(index);
            } else {
                self.narrow_gap(index);
            }
            self.mark_dirty(index);
        }
        self.update_slow_flag(index);
        self.note_payload(cx, index);
    }

    /// Makes the ring of a flow reach up to `needed` bytes, all in order. Bytes out of order are
    /// pruned if memory is short.
    fn reserve_in_order(&mut self, cx: &mut Context, index: FlowIndex, needed: usize) -> bool {
        loop {
            let flow = &mut self.flows.hot[index];
            let most = flow.rcv_limit as usize;
            if flow.rx.reserve(&mut self.pool, needed, most) {
                return true;
            }
            if needed > most || !self.prune_oldest(cx, None) {
                return false;
            }
        }
    }

    fn take_fin(&mut self, cx: &mut Context, index: FlowIndex, segment: &Segment<'_>) {
        let (flow, cold) = (&mut self.flows.hot[index], &mut self.flows.cold[index]);
        if !flow.state.receives() {
            if segment.has(FIN) && flow.state != State::Closed {
                self.acknowledge_now(index);
            }
            return;
        }
        if segment.has(FIN) && cold.peer_fin.is_none() {
            let fin = segment.seq.plus(segment.payload.len() as u32);
            if !fin.before(flow.rcv_nxt) && !fin.after(flow.rcv_edge) {
                cold.peer_fin = Some(fin);
            }
            if fin != flow.rcv_nxt {
                self.update_slow_flag(index);
                self.acknowledge_now(index);
            }
        }
        let (flow, cold) = (&mut self.flows.hot[index], &mut self.flows.cold[index]);
        if cold.peer_fin != Some(flow.rcv_nxt) {
            return;
        }
        flow.rcv_nxt = flow.rcv_nxt.plus(1);
        flow.flags |= flag::PEER_CLOSED;
        // Data beyond a FIN were never sent.
        self.drop_out_of_order(index);
        self.update_slow_flag(index);
        self.acknowledge_now(index);
        self.raise(index, event::PEER_CLOSED);
        match self.flows.hot[index].state {
            State::Established => self.flows.hot[index].state = State::CloseWait,
            State::FinWait1 => self.flows.hot[index].state = State::Closing,
            _ => self.enter_time_wait(cx, index),
        }
    }
}
