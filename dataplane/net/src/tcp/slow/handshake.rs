//! The states before ESTABLISHED, and SYNs that match a connection in TIME-WAIT.
//!
//! A connection that a peer opens:
//!
//! ```text
//! SYN ---> half-open connection, SYN-ACK ---> ACK ---> flow, waits for `accept`
//!    \---> the table is full: SYN cookie, nothing stored (`cookie`) ---^
//! ```
//!
//! 1. A SYN to a port that is listened on creates a half-open connection, which is answered by a
//!    SYN-ACK and retransmitted by `timeout`. Any other unmatched segment is answered by a reset,
//!    at a bounded rate.
//! 2. A segment for a half-open connection is checked in the order of RFC 9293 section 3.10.7.4. A
//!    repeated SYN is answered again; a segment outside the window gets a challenge ACK.
//! 3. The acknowledgement of our SYN promotes the half-open connection to a flow, if the listener's
//!    backlog and the table of flows have room. Otherwise it is ignored, and the peer retransmits.
//! 4. Our own SYN: SYN-SENT takes a SYN-ACK, or a SYN if both sides open at once.
//! 5. A SYN may reuse a connection in TIME-WAIT if its sequence number or its timestamp proves that
//!    it is new. A reset does not end TIME-WAIT (RFC 1337).

use crate::context::Context;
use crate::events::CloseReason;
use crate::ip::origin::Origin;
use crate::limits::{CHALLENGE_INTERVAL, REPLIES};
use crate::packet::sequence::Seq;
use crate::packet::tcp::{ACK, CWR, ECE, FIN, Fields, Options, RST, SYN, Segment};
use crate::tcp::Tcp;
use crate::tcp::congestion::{Algorithm, Kind};
use crate::tcp::connections::Entry;
use crate::tcp::connections::four_tuple::FourTuple;
use crate::tcp::connections::half_open::{HalfOpen, HalfOpenIndex};
use crate::tcp::connections::time_wait::{TimeWait, TimeWaitIndex};
use crate::tcp::flow::id::FlowIndex;
use crate::tcp::flow::{State, event, flag};
use crate::tcp::transmit::segment::Reply;

impl Tcp {
    pub(super) fn reply(&mut self, cx: &mut Context, reply: Reply) {
        if self.replies.len() < REPLIES {
            self.replies.push(reply);
        } else {
            cx.metrics.rate_limited += 1;
        }
    }

    /// A segment that matches no connection: a SYN for a listener, or an error that a reset ends
    /// (RFC 9293 section 3.10.7.1).
    pub(crate) fn receive_unmatched(&mut self, cx: &mut Context, origin: &Origin, segment: &Segment<'_>) {
        if segment.has(RST) {
            return;
        }
        let listens = self.listeners.contains(segment.destination);
        if listens && segment.flags & (SYN | ACK | FIN) == SYN {
            self.create_half_open(cx, origin, segment, None);
            return;
        }
        if listens && !segment.has(SYN) && self.take_cookie(cx, None, origin, segment) {
            return;
        }
        self.reset_unmatched(cx, origin, segment);
    }

    fn reset_unmatched(&mut self, cx: &mut Context, origin: &Origin, segment: &Segment<'_>) {
        if !self.reset_limit.take(cx.now) {
            cx.metrics.rate_limited += 1;
            return;
        }
        let (seq, ack, flags) = if segment.has(ACK) {
            (segment.ack, Seq(0), RST)
        } else {
            (Seq(0), segment.seq.plus(segment.length()), RST | ACK)
        };
        cx.metrics.resets_sent += 1;
        let fields = Fields { seq, ack, flags, window: 0, options: Options::None };
        self.reply(cx, Reply { path: FourTuple::of_segment(origin, segment).path(cx, origin.mac), fields });
    }

    /// Creates a half-open connection from a SYN and answers it; with a cookie and without storing
    /// anything if the table is full. The initial sequence number is beyond `above`, the last one
    /// of an earlier connection with the same four-tuple, because a fast connection may have outrun
    /// the clock. (A cookie cannot be. Timestamps then distinguish old segments from new ones.)
    fn create_half_open(
        &mut self,
        cx: &mut Context,
        origin: &Origin,
        segment: &Segment<'_>,
        above: Option<Seq>,
    ) {
        if self.half_open.is_full() {
            self.answer_with_cookie(cx, origin, segment);
            return;
        }
        let tuple = FourTuple::of_segment(origin, segment);
        let (iss, ts_offset) = tuple.initial_sequence(cx);
        let iss = above.map_or(iss, |above| iss.max(above.plus(0x1_0000)));
        let index = self.half_open.insert(HalfOpen {
            tuple,
            irs: segment.seq,
            iss,
            mac: origin.mac,
            peer_mss: segment.options.mss,
            shift: segment.options.shift,
            timestamps: segment.options.timestamps.is_some(),
            sack: segment.options.sack_permitted,
            ecn: self.accepts_ecn(segment, origin.is_ce_marked()),
            ts_recent: segment.options.timestamps.map_or(0, |stamps| stamps.0),
            ts_offset,
            retransmits: 0,
            window: self.first_window().min(0xffff) as u16,
            sent_at: cx.now,
            challenged_at: 0,
        });
        self.connections.insert(tuple, Entry::HalfOpen(index));
        self.answer_syn(cx, index);
    }

    pub(super) fn remove_half_open(&mut self, index: HalfOpenIndex) -> Option<HalfOpen> {
        let half_open = self.half_open.remove(index)?;
        self.connections.remove(&half_open.tuple, Entry::HalfOpen(index));
        Some(half_open)
    }

    /// Sends or retransmits the SYN-ACK of a half-open connection and arms its timer.
    pub(super) fn answer_syn(&mut self, cx: &mut Context, index: HalfOpenIndex) {
        let now = cx.now;
        let Some(half_open) = self.half_open.get_mut(index) else { return };
        half_open.sent_at = now;
        let half_open = *half_open;
        let deadline = now + crate::tcp::flow::rtt::RttEstimator::default().timeout(half_open.retransmits);
        self.half_open.set_deadline(index, deadline);
        let stamps = (cx.now_ms.wrapping_add(half_open.ts_offset), half_open.ts_recent);
        let options = Options::Syn {
            mss: cx.own_mss(&half_open.tuple.remote),
            shift: half_open.shift.map(|_| self.settings.own_shift),
            sack: half_open.sack,
            timestamps: half_open.timestamps.then_some(stamps),
        };
        let fields = Fields {
            seq: half_open.iss,
            ack: half_open.irs.plus(1),
            flags: if half_open.ecn { SYN | ACK | ECE } else { SYN | ACK },
            window: half_open.window,
            options,
        };
        self.reply(cx, Reply { path: half_open.tuple.path(cx, half_open.mac), fields });
    }

    /// A segment for a half-open connection (RFC 9293 section 3.10.7.4, SYN-RECEIVED).
    pub(crate) fn receive_half_open(
        &mut self,
        cx: &mut Context,
        index: HalfOpenIndex,
        origin: &Origin,
        segment: &Segment<'_>,
    ) {
        let Some(&half_open) = self.half_open.get(index) else { return };
        let next = half_open.irs.plus(1);
        let window = u32::from(half_open.window);
        if segment.has(SYN) && segment.seq == half_open.irs && !segment.has(ACK | RST) {
            // Our answer was lost, or is late.
            self.answer_syn(cx, index);
            return;
        }
        let old = half_open.timestamps
            && segment
                .options
                .timestamps
                .is_some_and(|stamps| Seq(stamps.0).before(Seq(half_open.ts_recent)));
        let in_window = segment.seq.since(next) < window;
        if !in_window || (old && !segment.has(RST)) || (segment.has(SYN) && !segment.has(RST)) {
            self.challenge_half_open(cx, index, segment);
            return;
        }
        if segment.has(RST) {
            if segment.seq == next {
                self.remove_half_open(index);
            } else {
                self.challenge_half_open(cx, index, segment);
            }
            return;
        }
        // A flow with timestamps takes no segment without one (RFC 7323 section 3.2).
        if !segment.has(ACK) || (half_open.timestamps && segment.options.timestamps.is_none()) {
            return;
        }
        if segment.ack != half_open.iss.plus(1) {
            if !self.take_cookie(cx, Some(index), origin, segment) {
                self.reset_unmatched(cx, origin, segment);
            }
            return;
        }
        self.promote(cx, &half_open, Some(index), origin, segment);
    }

    fn challenge_half_open(&mut self, cx: &mut Context, index: HalfOpenIndex, segment: &Segment<'_>) {
        let (now, now_ms) = (cx.now, cx.now_ms);
        let Some(half_open) = self.half_open.get_mut(index) else { return };
        let recently =
            half_open.challenged_at != 0 && now.saturating_sub(half_open.challenged_at) < CHALLENGE_INTERVAL;
        if segment.has(RST) && segment.seq.since(half_open.irs.plus(1)) > 0xffff || recently {
            return;
        }
        half_open.challenged_at = now.max(1);
        let half_open = *half_open;
        let options = if half_open.timestamps {
            Options::Timestamps(now_ms.wrapping_add(half_open.ts_offset), half_open.ts_recent)
        } else {
            Options::None
        };
        let window = half_open.window >> half_open.shift.map_or(0, |_| self.settings.own_shift);
        let fields =
            Fields { seq: half_open.iss.plus(1), ack: half_open.irs.plus(1), flags: ACK, window, options };
        cx.metrics.challenge_acks += 1;
        self.reply(cx, Reply { path: half_open.tuple.path(cx, half_open.mac), fields });
    }

    /// The handshake is complete: promotes the half-open connection to a flow, if there is room.
    /// `stored` is its index in the table, if it has one.
    pub(super) fn promote(
        &mut self,
        cx: &mut Context,
        half_open: &HalfOpen,
        stored: Option<HalfOpenIndex>,
        origin: &Origin,
        segment: &Segment<'_>,
    ) {
        let Some(listener) = self.listeners.get_mut(half_open.tuple.local_port) else {
            // The port is no longer listened on.
            stored.map(|index| self.remove_half_open(index));
            self.reset_unmatched(cx, origin, segment);
            return;
        };
        if listener.waiting >= listener.backlog || self.flows.is_full() {
            cx.metrics.accept_overflow += 1;
            return;
        }
        listener.waiting += 1;
        stored.map(|index| self.remove_half_open(index));
        let Some(index) = self.flows.allocate() else { return };
        self.connections.insert(half_open.tuple, Entry::Flow(index));
        self.flows.path[index] = half_open.tuple.template(cx, half_open.mac);
        let first_window = self.first_window();
        let flow = &mut self.flows.hot[index];
        flow.ts_offset = half_open.ts_offset;
        flow.ts_recent = half_open.ts_recent;
        flow.rcv_nxt = half_open.irs.plus(1);
        flow.last_ack = flow.rcv_nxt;
        flow.una = half_open.iss;
        flow.max = half_open.iss.plus(1);
        flow.nxt = flow.max;
        if let Some(shift) = half_open.shift {
            flow.snd_shift = shift;
            flow.rcv_shift = self.settings.own_shift;
        }
        // At least what was announced.
        flow.rcv_limit = (first_window as u32).max(half_open.window.into());
        flow.rcv_edge = flow.rcv_nxt.plus(half_open.window.into());
        flow.state = State::SynReceived;
        if half_open.ecn {
            flow.flags |= flag::ECN;
        }
        let cold = &mut self.flows.cold[index];
        cold.iss = half_open.iss;
        cold.recover = half_open.iss;
        cold.congestion = Algorithm::new(self.settings.congestion, 0);
        cold.ts_recent_at = cx.now;
        cold.received_at = cx.now;
        cold.pending_accept = true;
        if half_open.retransmits == 0 {
            cold.rtt.sample(cx.now.saturating_sub(half_open.sent_at));
        }
        self.adopt_options(cx, index, half_open.peer_mss, half_open.timestamps, half_open.sack);
        cx.metrics.connections_accepted += 1;
        self.raise(index, event::ACCEPTED);
        self.slow_receive(cx, index, segment, origin.is_ce_marked());
    }

    /// Adopts the options of the peer's SYN.
    fn adopt_options(
        &mut self,
        cx: &Context,
        index: FlowIndex,
        peer_mss: Option<u16>,
        timestamps: bool,
        sack: bool,
    ) {
        let mss = Self::payload_size(cx, &self.flows.path[index].remote(), peer_mss, timestamps);
        let (flow, cold) = (&mut self.flows.hot[index], &mut self.flows.cold[index]);
        if timestamps {
            flow.flags |= flag::TIMESTAMPS;
        }
        if sack {
            flow.flags |= flag::SACK;
        }
        flow.mss = mss;
        flow.cwnd = cold.start_congestion(mss);
        if let Algorithm::Timely(timely) = &mut cold.congestion
            && let Some(shortest) = self.path_delays.get(&self.flows.path[index].remote())
        {
            timely.seed_min_rtt(shortest);
        }
        if self.settings.pacing || cold.congestion.kind() == Kind::Timely {
            flow.flags |= flag::PACED;
        }
    }

    /// SYN-RECEIVED becomes ESTABLISHED with this segment.
    pub(super) fn established(&mut self, cx: &mut Context, index: FlowIndex, segment: &Segment<'_>) {
        let (flow, cold) = (&mut self.flows.hot[index], &mut self.flows.cold[index]);
        if cold.timed_at != 0 {
            cold.rtt.sample(cx.now - cold.timed_at);
            cold.rtt.note_min_rtt(cx.now - cold.timed_at, cx.now);
            cold.timed_at = 0;
        }
        // `una` steps over our SYN; data that the application queued already are behind it.
        flow.una = cold.iss.plus(1);
        flow.nxt = flow.una;
        flow.max = flow.una;
        cold.scoreboard.reset(flow.una);
        let shift = if segment.has(SYN) { 0 } else { flow.snd_shift };
        flow.wnd = u32::from(segment.window) << shift;
        flow.wl1 = segment.seq;
        flow.wl2 = segment.ack;
        cold.largest_window = flow.wnd;
        cold.backoff = 0;
        cold.retransmit_at = crate::limits::NEVER;
        flow.flags &= !flag::SYN_DUE;
        flow.state = if flow.has(flag::FIN_QUEUED) { State::FinWait1 } else { State::Established };
        if !cold.pending_accept && flow.events & event::ACCEPTED == 0 {
            cx.metrics.connections_opened += 1;
            self.raise(index, event::CONNECTED);
        }
        self.mark_dirty(index);
    }

    /// The SYN-ACK that answers our own SYN-ACK when both sides opened at once carries the number
    /// of their SYN, which is outside the window by RFC 9293 section 3.10.7.4; but figure 8 of that
    /// RFC accepts it.
    pub(super) fn answers_simultaneous_open(&self, index: FlowIndex, segment: &Segment<'_>) -> bool {
        let flow = &self.flows.hot[index];
        flow.state == State::SynReceived
            && segment.flags & (SYN | ACK | RST) == SYN | ACK
            && segment.seq == flow.rcv_nxt.minus(1)
            && segment.ack == flow.max
    }

    pub(super) fn syn_sent_receive(
        &mut self,
        cx: &mut Context,
        index: FlowIndex,
        segment: &Segment<'_>,
        ce_marked: bool,
    ) {
        let flow = &self.flows.hot[index];
        let acknowledged = segment.has(ACK);
        if acknowledged && (segment.ack != flow.max || flow.max == self.flows.cold[index].iss) {
            if !segment.has(RST) {
                self.reset_reply(cx, index, segment.ack);
            }
            return;
        }
        if segment.has(RST) {
            if acknowledged {
                cx.metrics.connections_failed += 1;
                self.finish(index, CloseReason::Refused);
            }
            return;
        }
        if !segment.has(SYN) {
            return;
        }
        let own_shift = self.settings.own_shift;
        let ecn = if acknowledged {
            // A SYN-ACK with both flags comes from a peer that repeats all flags that it receives
            // (RFC 3168 section 6.1.1).
            segment.flags & (ECE | CWR) == ECE
        } else {
            self.accepts_ecn(segment, ce_marked)
        };
        let flow = &mut self.flows.hot[index];
        if !ecn {
            flow.flags &= !flag::ECN;
        } else if !acknowledged {
            flow.flags |= flag::ECN;
        }
        flow.rcv_nxt = segment.seq.plus(1);
        flow.last_ack = flow.rcv_nxt;
        flow.rcv_edge = flow.rcv_nxt.plus(flow.rcv_limit.min(0xffff));
        (flow.snd_shift, flow.rcv_shift) = segment.options.shift.map_or((0, 0), |shift| (shift, own_shift));
        flow.ts_recent = segment.options.timestamps.map_or(0, |stamps| stamps.0);
        self.flows.cold[index].ts_recent_at = cx.now;
        self.flows.cold[index].received_at = cx.now;
        let options = &segment.options;
        self.adopt_options(cx, index, options.mss, options.timestamps.is_some(), options.sack_permitted);
        if acknowledged {
            self.established(cx, index, segment);
            self.acknowledge_now(index);
        } else {
            let (flow, cold) = (&mut self.flows.hot[index], &mut self.flows.cold[index]);
            flow.state = State::SynReceived;
            flow.flags |= flag::SYN_DUE;
            cold.timed_at = 0;
            self.mark_dirty(index);
        }
    }

    /// A segment for a connection in TIME-WAIT.
    pub(crate) fn receive_time_wait(
        &mut self,
        cx: &mut Context,
        index: TimeWaitIndex,
        origin: &Origin,
        segment: &Segment<'_>,
    ) {
        let Some(&waiting) = self.time_waits.get(index) else { return };
        if segment.has(RST) {
            // RFC 1337: a reset does not end TIME-WAIT early.
            return;
        }
        let stamp = segment.options.timestamps.map(|stamps| stamps.0);
        if segment.flags & (SYN | ACK) == SYN && waiting.may_be_reused(segment.seq, stamp) {
            cx.metrics.time_wait_recycled += 1;
            self.remove_time_wait(index);
            if self.listeners.contains(segment.destination) {
                self.create_half_open(cx, origin, segment, Some(waiting.snd_nxt));
            } else {
                self.receive_unmatched(cx, origin, segment);
            }
            return;
        }
        if segment.has(FIN) && segment.seq.plus(segment.length()) == waiting.rcv_nxt {
            self.time_waits.set_deadline(index, cx.now + crate::limits::TIME_WAIT);
        } else if waiting.acknowledged_at != 0
            && cx.now.saturating_sub(waiting.acknowledged_at) < CHALLENGE_INTERVAL
        {
            cx.metrics.rate_limited += 1;
            return;
        }
        self.acknowledge_time_wait(cx, index);
    }

    pub(super) fn remove_time_wait(&mut self, index: TimeWaitIndex) {
        if let Some(waiting) = self.time_waits.remove(index) {
            self.connections.remove(&waiting.tuple, Entry::TimeWait(index));
        }
    }

    /// Sends the last acknowledgement of a connection in TIME-WAIT.
    pub(super) fn acknowledge_time_wait(&mut self, cx: &mut Context, index: TimeWaitIndex) {
        let (now, now_ms) = (cx.now, cx.now_ms);
        let Some(waiting) = self.time_waits.get_mut(index) else { return };
        waiting.acknowledged_at = now.max(1);
        let TimeWait { tuple, snd_nxt, rcv_nxt, window, timestamps, mac, .. } = *waiting;
        let options = timestamps.map_or(Options::None, |(recent, offset)| {
            Options::Timestamps(now_ms.wrapping_add(offset), recent)
        });
        let fields = Fields { seq: snd_nxt, ack: rcv_nxt, flags: ACK, window, options };
        cx.metrics.acks_sent += 1;
        self.reply(cx, Reply { path: tuple.path(cx, mac), fields });
    }
}
