//! Before ESTABLISHED: strangers, half-open connections, SYN-SENT, simultaneous open. And SYNs that find a
//! connection in TIME-WAIT.

use crate::congestion::{Algorithm, Kind};
use crate::engine::{Engine, Origin};
use crate::events::CloseReason;
use crate::flow::{State, event, flag};
use crate::flow_table::Entry;
use crate::limits::{CHALLENGE_INTERVAL, REPLIES};
use crate::listener::HalfOpen;
use crate::packet::tcp::{ACK, CWR, ECE, FIN, Fields, Options, RST, SYN, Segment};
use crate::sequence::Seq;
use crate::time_wait::TimeWait;
use crate::transmit::Reply;

impl Engine {
    pub(super) fn reply(&mut self, reply: Reply) {
        if self.replies.len() < REPLIES {
            self.replies.push(reply);
        } else {
            self.metrics.rate_limited += 1;
        }
    }

    /// A segment that belongs to nothing that exists: a SYN for a listener, or a mistake that a
    /// reset clears up (RFC 9293 section 3.10.7.1).
    pub(crate) fn receive_unmatched(&mut self, origin: &Origin, segment: &Segment<'_>) {
        if segment.has(RST) {
            return;
        }
        let listens = self.listening.contains(segment.destination);
        if listens && segment.flags & (SYN | ACK | FIN) == SYN {
            self.create_half_open(origin, segment, None);
            return;
        }
        if listens && !segment.has(SYN) && self.take_cookie(None, origin, segment) {
            return;
        }
        self.reset_unmatched(origin, segment);
    }

    fn reset_unmatched(&mut self, origin: &Origin, segment: &Segment<'_>) {
        if !self.reset_bucket.take(self.now) {
            self.metrics.rate_limited += 1;
            return;
        }
        let (seq, ack, flags) = if segment.has(ACK) {
            (segment.ack, Seq(0), RST)
        } else {
            (Seq(0), segment.seq.plus(segment.length()), RST | ACK)
        };
        self.metrics.resets_sent += 1;
        let fields = Fields { seq, ack, flags, window: 0, options: Options::None };
        self.reply(Reply { path: self.path(&origin.name(segment), origin.mac), fields });
    }

    /// Makes a half-open connection of a SYN and answers it; with a cookie and without a half-open connection if there is no
    /// room. The initial sequence number is beyond `above`, the last one of an earlier connection
    /// of the same name: a fast one may have outrun the clock. (A cookie cannot be. Timestamps then
    /// tell old segments from new ones.)
    fn create_half_open(&mut self, origin: &Origin, segment: &Segment<'_>, above: Option<Seq>) {
        if self.half_open.is_full() {
            self.answer_with_cookie(origin, segment);
            return;
        }
        let name = origin.name(segment);
        let (iss, ts_offset) = self.initial_sequence(&name);
        let iss = above.map_or(iss, |above| iss.max(above.plus(0x1_0000)));
        let index = self.half_open.insert(HalfOpen {
            name,
            irs: segment.seq,
            iss,
            mac: origin.mac,
            peer_mss: segment.options.mss,
            shift: segment.options.shift,
            timestamps: segment.options.timestamps.is_some(),
            sack: segment.options.sack_permitted,
            ecn: self.agrees_to_marks(segment, origin.is_marked()),
            ts_recent: segment.options.timestamps.map_or(0, |stamps| stamps.0),
            ts_offset,
            retransmits: 0,
            window: self.first_window().min(0xffff) as u16,
            sent_at: self.now,
            challenged_at: 0,
        });
        self.directory.insert(name, Entry::HalfOpen(index));
        self.answer_syn(index);
    }

    pub(super) fn remove_half_open(&mut self, index: u32) -> Option<HalfOpen> {
        let half_open = self.half_open.remove(index)?;
        self.half_open_timers.set(index, crate::limits::NEVER);
        self.directory.remove(&half_open.name, Entry::HalfOpen(index));
        Some(half_open)
    }

    /// Sends the SYN-ACK of a half-open connection (again) and arms its timer.
    pub(super) fn answer_syn(&mut self, index: u32) {
        let now = self.now;
        let Some(half_open) = self.half_open.get_mut(index) else { return };
        half_open.sent_at = now;
        let half_open = *half_open;
        let deadline = now + crate::round_trip::RoundTrip::default().timeout(half_open.retransmits);
        self.half_open_timers.set(index, deadline);
        let stamps = (self.now_ms.wrapping_add(half_open.ts_offset), half_open.ts_recent);
        let options = Options::Syn {
            mss: self.own_mss(&half_open.name.remote),
            shift: half_open.shift.map(|_| self.own_shift),
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
        self.reply(Reply { path: self.path(&half_open.name, half_open.mac), fields });
    }

    /// A segment for a half-open connection (RFC 9293 section 3.10.7.4, SYN-RECEIVED).
    pub(crate) fn receive_half_open(&mut self, index: u32, origin: &Origin, segment: &Segment<'_>) {
        let Some(&half_open) = self.half_open.get(index) else { return };
        let next = half_open.irs.plus(1);
        let window = u32::from(half_open.window);
        if segment.has(SYN) && segment.seq == half_open.irs && !segment.has(ACK | RST) {
            // Our answer was lost, or is late.
            self.answer_syn(index);
            return;
        }
        let old = half_open.timestamps
            && segment
                .options
                .timestamps
                .is_some_and(|stamps| Seq(stamps.0).before(Seq(half_open.ts_recent)));
        let in_window = segment.seq.since(next) < window;
        if !in_window || (old && !segment.has(RST)) || (segment.has(SYN) && !segment.has(RST)) {
            self.challenge_half_open(index, segment);
            return;
        }
        if segment.has(RST) {
            if segment.seq == next {
                self.remove_half_open(index);
            } else {
                self.challenge_half_open(index, segment);
            }
            return;
        }
        // A flow with timestamps takes no segment without one (RFC 7323 section 3.2).
        if !segment.has(ACK) || (half_open.timestamps && segment.options.timestamps.is_none()) {
            return;
        }
        if segment.ack != half_open.iss.plus(1) {
            if !self.take_cookie(Some(index), origin, segment) {
                self.reset_unmatched(origin, segment);
            }
            return;
        }
        self.promote(&half_open, Some(index), origin, segment);
    }

    fn challenge_half_open(&mut self, index: u32, segment: &Segment<'_>) {
        let (now, now_ms) = (self.now, self.now_ms);
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
        let window = half_open.window >> half_open.shift.map_or(0, |_| self.own_shift);
        let fields =
            Fields { seq: half_open.iss.plus(1), ack: half_open.irs.plus(1), flags: ACK, window, options };
        self.metrics.challenge_acks += 1;
        self.reply(Reply { path: self.path(&half_open.name, half_open.mac), fields });
    }

    /// The handshake is complete: the half-open connection becomes a flow, if there is room. `place` is where it
    /// was kept, if it was.
    pub(super) fn promote(
        &mut self,
        half_open: &HalfOpen,
        place: Option<u32>,
        origin: &Origin,
        segment: &Segment<'_>,
    ) {
        let Some(listener) = self.listeners.get_mut(&half_open.name.local_port) else {
            // Nobody listens any more.
            place.map(|index| self.remove_half_open(index));
            self.reset_unmatched(origin, segment);
            return;
        };
        if listener.waiting >= listener.backlog || self.flows.is_full() {
            self.metrics.accept_overflow += 1;
            return;
        }
        listener.waiting += 1;
        place.map(|index| self.remove_half_open(index));
        let Some(index) = self.flows.allocate() else { return };
        self.directory.insert(half_open.name, Entry::Flow(index));
        self.flows.path[index as usize] = self.template(&half_open.name, half_open.mac);
        let first_window = self.first_window();
        let flow = &mut self.flows.hot[index as usize];
        flow.ts_offset = half_open.ts_offset;
        flow.ts_recent = half_open.ts_recent;
        flow.rcv_nxt = half_open.irs.plus(1);
        flow.last_ack = flow.rcv_nxt;
        flow.una = half_open.iss;
        flow.max = half_open.iss.plus(1);
        flow.nxt = flow.max;
        if let Some(shift) = half_open.shift {
            flow.snd_shift = shift;
            flow.rcv_shift = self.own_shift;
        }
        // At least what was announced.
        flow.rcv_limit = (first_window as u32).max(half_open.window.into());
        flow.rcv_edge = flow.rcv_nxt.plus(half_open.window.into());
        flow.state = State::SynReceived;
        if half_open.ecn {
            flow.flags |= flag::ECN;
        }
        let cold = &mut self.flows.cold[index as usize];
        cold.iss = half_open.iss;
        cold.recover = half_open.iss;
        cold.congestion = Algorithm::new(self.congestion, 0);
        cold.ts_recent_at = self.now;
        cold.heard_at = self.now;
        cold.pending_accept = true;
        if half_open.retransmits == 0 {
            cold.round_trip.sample(self.now.saturating_sub(half_open.sent_at));
        }
        self.adopt_options(index as usize, half_open.peer_mss, half_open.timestamps, half_open.sack);
        self.metrics.connections_accepted += 1;
        self.raise(index as usize, event::ACCEPTED);
        self.slow_receive(index as usize, segment, origin.is_marked());
    }

    /// Sets what follows from the options of the peer's SYN.
    fn adopt_options(&mut self, index: usize, peer_mss: Option<u16>, timestamps: bool, sack: bool) {
        let mss = self.payload_size(&self.flows.path[index].remote(), peer_mss, timestamps);
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
            timely.know(shortest);
        }
        if self.pacing || cold.congestion.kind() == Kind::Timely {
            flow.flags |= flag::PACED;
        }
    }

    /// SYN-RECEIVED becomes ESTABLISHED with this segment.
    pub(super) fn established(&mut self, index: usize, segment: &Segment<'_>) {
        let (flow, cold) = (&mut self.flows.hot[index], &mut self.flows.cold[index]);
        if cold.timed_at != 0 {
            cold.round_trip.sample(self.now - cold.timed_at);
            cold.round_trip.note_least(self.now - cold.timed_at, self.now);
            cold.timed_at = 0;
        }
        // `una` steps over our SYN; data that the application queued already lie behind it.
        flow.una = cold.iss.plus(1);
        flow.nxt = flow.una;
        flow.max = flow.una;
        cold.board.reset(flow.una);
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
            self.metrics.connections_opened += 1;
            self.raise(index, event::CONNECTED);
        }
        self.touch(index);
    }

    /// The SYN-ACK that answers our own SYN-ACK when both sides opened at once carries the number
    /// of their SYN, which is out of the window by the letter of RFC 9293 section 3.10.7.4; figure
    /// 8 there takes it all the same.
    pub(super) fn answers_simultaneous_open(&self, index: usize, segment: &Segment<'_>) -> bool {
        let flow = &self.flows.hot[index];
        flow.state == State::SynReceived
            && segment.flags & (SYN | ACK | RST) == SYN | ACK
            && segment.seq == flow.rcv_nxt.minus(1)
            && segment.ack == flow.max
    }

    pub(super) fn syn_sent_receive(&mut self, index: usize, segment: &Segment<'_>, marked: bool) {
        let flow = &self.flows.hot[index];
        let acknowledged = segment.has(ACK);
        if acknowledged && (segment.ack != flow.max || flow.max == self.flows.cold[index].iss) {
            if !segment.has(RST) {
                self.reset_reply(index, segment.ack);
            }
            return;
        }
        if segment.has(RST) {
            if acknowledged {
                self.metrics.connections_failed += 1;
                self.finish(index, CloseReason::Refused);
            }
            return;
        }
        if !segment.has(SYN) {
            return;
        }
        let own_shift = self.own_shift;
        let ecn = if acknowledged {
            // One that repeats both flags comes from a peer that repeats whatever it gets (RFC 3168
            // section 6.1.1).
            segment.flags & (ECE | CWR) == ECE
        } else {
            self.agrees_to_marks(segment, marked)
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
        self.flows.cold[index].ts_recent_at = self.now;
        self.flows.cold[index].heard_at = self.now;
        let options = &segment.options;
        self.adopt_options(index, options.mss, options.timestamps.is_some(), options.sack_permitted);
        if acknowledged {
            self.established(index, segment);
            self.acknowledge_now(index);
        } else {
            let (flow, cold) = (&mut self.flows.hot[index], &mut self.flows.cold[index]);
            flow.state = State::SynReceived;
            flow.flags |= flag::SYN_DUE;
            cold.timed_at = 0;
            self.touch(index);
        }
    }

    /// A segment for a connection in TIME-WAIT.
    pub(crate) fn time_wait_receive(&mut self, index: u32, origin: &Origin, segment: &Segment<'_>) {
        let Some(&waiting) = self.time_waits.get(index) else { return };
        if segment.has(RST) {
            // RFC 1337: a reset does not end TIME-WAIT early.
            return;
        }
        let stamp = segment.options.timestamps.map(|stamps| stamps.0);
        if segment.flags & (SYN | ACK) == SYN && waiting.may_be_reused(segment.seq, stamp) {
            self.metrics.time_wait_recycled += 1;
            self.forget_time_wait(index);
            if self.listening.contains(segment.destination) {
                self.create_half_open(origin, segment, Some(waiting.snd_nxt));
            } else {
                self.receive_unmatched(origin, segment);
            }
            return;
        }
        if segment.has(FIN) && segment.seq.plus(segment.length()) == waiting.rcv_nxt {
            self.time_wait_timers.set(index, self.now + crate::limits::TIME_WAIT);
        } else if waiting.acknowledged_at != 0
            && self.now.saturating_sub(waiting.acknowledged_at) < CHALLENGE_INTERVAL
        {
            self.metrics.rate_limited += 1;
            return;
        }
        self.acknowledge_time_wait(index);
    }

    pub(super) fn forget_time_wait(&mut self, index: u32) {
        if let Some(waiting) = self.time_waits.remove(index) {
            self.time_wait_timers.set(index, crate::limits::NEVER);
            self.directory.remove(&waiting.name, Entry::TimeWait(index));
        }
    }

    /// Sends the last acknowledgement of a connection in TIME-WAIT.
    pub(super) fn acknowledge_time_wait(&mut self, index: u32) {
        let (now, now_ms) = (self.now, self.now_ms);
        let Some(waiting) = self.time_waits.get_mut(index) else { return };
        waiting.acknowledged_at = now.max(1);
        let TimeWait { name, snd_nxt, rcv_nxt, window, timestamps, mac, .. } = *waiting;
        let options = timestamps.map_or(Options::None, |(recent, offset)| {
            Options::Timestamps(now_ms.wrapping_add(offset), recent)
        });
        let fields = Fields { seq: snd_nxt, ack: rcv_nxt, flags: ACK, window, options };
        self.metrics.acks_sent += 1;
        self.reply(Reply { path: self.path(&name, mac), fields });
    }
}
