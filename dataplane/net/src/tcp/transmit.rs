//! Segments on their way out: the send half of the fast path.
//!
//! 1. A flow may send the smaller of the peer's window and the congestion window, less what is in
//!    flight. It is cut into full segments. A short segment leaves if it ends the data, and Nagle
//!    is off or nothing is in flight. It also leaves if it fills half of the largest window ever
//!    seen (silly window avoidance, RFC 9293 section 3.8.6.2.1). Lost data leave first
//!    (`retransmit`).
//! 2. Every segment carries the newest acknowledgement and window; a separate ACK leaves only if
//!    nothing else did.
//! 3. The payload is copied once, from the ring or from the zero-copy queue into the frame, and
//!    summed on the way.
//! 4. When the queue has no buffer or no room, nothing was changed, and the flow is tried again in
//!    its turn (`schedule`). If the queue has a buffer for an acknowledgement that is due, that
//!    leaves alone.

use sietch_nic::NicQueue;

use crate::context::{Context, Stalled};
use crate::limits::{NEVER, QUANTUM, SEGMENT_COST};
use crate::packet::tcp::{self, ACK, CWR, ECE, FIN, Fields, Options, PSH, SYN};
use crate::packet::{Template, ipv4};
use crate::tcp::Tcp;
use crate::tcp::congestion::CongestionControl;
use crate::tcp::flow::id::FlowIndex;
use crate::tcp::flow::{State, flag};
use crate::tcp::transmit::segment::{Outbound, Reply};
use crate::tcp::zero_copy::send_queue;

mod retransmit;
mod schedule;
pub(crate) mod segment;

/// Flags of a flow that has something to send before new data, or nothing at all.
const UNUSUAL: u32 =
    flag::UNRESOLVED | flag::PROBE | flag::KEEPALIVE_DUE | flag::TAIL | flag::INSPECT_ACKS | flag::PERSIST;

impl Tcp {
    /// Sends what a flow has to send. Returns whether there is more after its quantum is used up.
    #[inline]
    pub(crate) fn transmit_flow<Q: NicQueue>(
        &mut self,
        cx: &mut Context,
        queue: &mut Q,
        index: FlowIndex,
    ) -> Result<bool, Stalled> {
        let flow = &self.flows.hot[index];
        if (flow.has(UNUSUAL) || flow.owed > 0 || flow.state != State::Established)
            && let Some(more) = self.transmit_before_data(cx, queue, index)?
        {
            return Ok(more);
        }
        let mut left = QUANTUM;
        while left > 0 {
            let Some(segment) = self.next_segment(cx, index) else {
                if self.flows.hot[index].has(flag::ACK_NOW) {
                    self.transmit_ack(cx, queue, index)?;
                }
                return Ok(false);
            };
            self.transmit_data(cx, queue, index, segment)?;
            left = left.saturating_sub(segment.length + SEGMENT_COST);
        }
        Ok(true)
    }

    /// Sends what goes before new data. If no new data may follow, returns what
    /// [`Tcp::transmit_flow`] does.
    #[inline(never)]
    fn transmit_before_data<Q: NicQueue>(
        &mut self,
        cx: &mut Context,
        queue: &mut Q,
        index: FlowIndex,
    ) -> Result<Option<bool>, Stalled> {
        let flow = &self.flows.hot[index];
        if flow.has(flag::UNRESOLVED) {
            return Ok(Some(false));
        }
        match flow.state {
            State::Closed | State::TimeWait => return Ok(Some(false)),
            State::SynSent | State::SynReceived => {
                return self.transmit_syn(cx, queue, index).map(|()| Some(false));
            }
            _ => {}
        }
        if flow.has(flag::PROBE | flag::KEEPALIVE_DUE | flag::TAIL) || flow.owed > 0 {
            self.transmit_probes(cx, queue, index)?;
        }
        let lost = self.flows.hot[index].has(flag::INSPECT_ACKS | flag::PERSIST);
        Ok((lost && self.retransmit_lost(cx, queue, index)?).then_some(true))
    }

    /// The next segment of new data that may leave.
    #[inline(always)]
    fn next_segment(&mut self, cx: &Context, index: FlowIndex) -> Option<Outbound> {
        let (flow, cold) = self.flows.both(index);
        let closing = match flow.state {
            State::Established | State::CloseWait => false,
            state if state.sends() => true,
            _ => return None,
        };
        let offset = flow.nxt.since(flow.una) as usize;
        let unsent = flow.tx.len().checked_sub(offset)?;
        let mss = usize::from(flow.mss);
        if unsent == 0 && !closing {
            flow.note_limit(offset + mss > flow.cwnd as usize);
            return None;
        }
        // Data that arrived out of order or are lost fill no pipe (RFC 6675). That is limited
        // transmit as well (RFC 3042).
        let extra = if flow.has(flag::INSPECT_ACKS) { cold.left_network() as usize } else { 0 };
        let window = (flow.wnd as usize).min(flow.cwnd as usize + extra);
        let length = unsent.min(window.saturating_sub(offset)).min(mss);
        let last = length == unsent;
        let held = if last {
            // Nagle (RFC 9293 section 3.7.4), or corked.
            let small = !closing && length < mss && flow.has(flag::NAGLE | flag::CORKED);
            small && (offset > 0 || flow.has(flag::CORKED))
        } else {
            length < mss && (length as u32) < (cold.largest_window / 2).max(1)
        };
        let seq = flow.nxt;
        if held {
            flow.note_limit(!last && flow.cwnd as usize + extra <= flow.wnd as usize);
            // No window holds bytes under a cork back, so they need no probe.
            if offset == 0 && !last {
                self.arm_probe(cx, index);
            }
            return None;
        }
        if flow.has(flag::PACED) && !self.may_send(cx, index) {
            return None;
        }
        let mut flags = ACK;
        if last {
            flags |= PSH;
            if closing {
                flags |= FIN;
            }
        }
        Some(Outbound { seq, flags, offset, length })
    }

    /// Nothing is in flight and nothing may leave: from now on the window is probed.
    fn arm_probe(&mut self, cx: &Context, index: FlowIndex) {
        let (flow, cold) = (&mut self.flows.hot[index], &mut self.flows.cold[index]);
        if cold.retransmit_at == NEVER {
            flow.flags |= flag::PERSIST;
            cold.retransmit_at = cold.retransmit_deadline(cx.now);
            self.flow_timers.no_later(index, cold.retransmit_at);
        }
    }

    #[inline]
    fn transmit_data<Q: NicQueue>(
        &mut self,
        cx: &mut Context,
        queue: &mut Q,
        index: FlowIndex,
        segment: Outbound,
    ) -> Result<(), Stalled> {
        let now = cx.now;
        let (flow, cold) = self.flows.both(index);
        if flow.una == flow.max && now.saturating_sub(cold.sent_at) > cold.rtt.timeout(0) {
            cold.congestion.restart(flow.moment(now));
            flow.cwnd = cold.congestion.window();
        }
        self.transmit_segment(cx, queue, index, segment)?;
        if self.flows.hot[index].has(flag::PACED | flag::RECOVERY) {
            self.note_data_sent(cx, index, segment.length);
        }
        let (flow, cold) = self.flows.both(index);
        flow.nxt = segment.seq.plus(segment.length as u32 + u32::from(segment.flags & FIN != 0));
        let mut tail = false;
        if flow.nxt.after(flow.max) {
            tail = flow.outstanding() <= u32::from(flow.mss);
            cold.scoreboard.sent(flow.nxt, now);
            flow.max = flow.nxt;
            tail &= flow.outstanding() > u32::from(flow.mss);
        } else {
            cold.retransmits += 1;
            cx.metrics.retransmits += 1;
        }
        if flow.has(flag::PERSIST) {
            flow.flags &= !flag::PERSIST;
            cold.backoff = 0;
            cold.retransmit_at = NEVER;
        }
        cold.sent_at = now;
        if cold.retransmit_at == NEVER || tail {
            self.arm(cx, index);
        }
        Ok(())
    }

    /// For flows with pacing or in recovery: `length` bytes of data were sent.
    #[cold]
    fn note_data_sent(&mut self, cx: &Context, index: FlowIndex, length: usize) {
        if self.flows.hot[index].has(flag::PACED) {
            self.charge_pace(cx, index, length);
        }
        if self.flows.hot[index].has(flag::RECOVERY) {
            self.note_sent_in_recovery(index, length as u32);
        }
    }

    /// Writes one segment of a flow into a frame and queues it. The acknowledgement in it settles
    /// every debt.
    #[inline]
    fn transmit_segment<Q: NicQueue>(
        &mut self,
        cx: &mut Context,
        queue: &mut Q,
        index: FlowIndex,
        segment: Outbound,
    ) -> Result<(), Stalled> {
        let flow = &self.flows.hot[index];
        if flow.has(flag::ECN | flag::SACK_DUE | flag::ZERO_COPY) {
            return self.transmit_with_extras(cx, queue, index, segment);
        }
        if flow.has(flag::TIMESTAMPS) {
            let stamp = Options::Timestamps(cx.now_ms.wrapping_add(flow.ts_offset), flow.ts_recent);
            self.write_segment(cx, queue, index, segment, &stamp, false)
        } else {
            self.write_segment(cx, queue, index, segment, &Options::None, false)
        }
    }

    /// As [`Tcp::transmit_segment`], for a segment of a flow with ECN, with ranges to report, or
    /// with shared bytes.
    #[inline(never)]
    fn transmit_with_extras<Q: NicQueue>(
        &mut self,
        cx: &mut Context,
        queue: &mut Q,
        index: FlowIndex,
        mut segment: Outbound,
    ) -> Result<(), Stalled> {
        let flow = &self.flows.hot[index];
        let ect = flow.has(flag::ECN) && self.set_ecn_flags(index, &mut segment);
        let options = if flow.has(flag::SACK_DUE) {
            self.report_options(cx, index, segment.length)
        } else if flow.has(flag::TIMESTAMPS) {
            Options::Timestamps(cx.now_ms.wrapping_add(flow.ts_offset), flow.ts_recent)
        } else {
            Options::None
        };
        self.write_segment(cx, queue, index, segment, &options, ect)?;
        let flow = &mut self.flows.hot[index];
        if ect {
            flow.flags &= !flag::CWR_DUE;
        }
        if flow.has(flag::SACK_DUE) {
            self.reported(cx, index, &options);
        }
        Ok(())
    }

    /// In line: each caller knows which options there are.
    #[inline(always)]
    fn write_segment<Q: NicQueue>(
        &mut self,
        cx: &mut Context,
        queue: &mut Q,
        index: FlowIndex,
        segment: Outbound,
        options: &Options,
        ect: bool,
    ) -> Result<(), Stalled> {
        let path = &self.flows.path[index];
        let Some(mut frame) = queue.allocate(tcp::frame_length(path, options, segment.length)) else {
            cx.metrics.transmit_stalls += 1;
            return Err(Stalled::NoBuffer);
        };
        let (flow, cold) = (&mut self.flows.hot[index], &mut self.flows.cold[index]);
        let window = flow.announce();
        let Outbound { seq, flags, offset, length } = segment;
        let fields = Fields { seq, ack: flow.rcv_nxt, flags, window, options: *options };
        let payload = match flow.tx.slices_within(offset, length) {
            Some(payload) => payload,
            None => send_queue::payload(cold.send_queue.as_deref(), &mut self.scratch, offset, length),
        };
        let out = queue.bytes_mut(&mut frame);
        tcp::emit(out, path, &fields, payload, !cx.unchecked);
        if ect {
            path.set_ect0(out);
        }
        let bytes = frame.len() as u64;
        if let Err(error) = queue.transmit(frame) {
            queue.release(error.into_frame());
            cx.metrics.transmit_stalls += 1;
            return Err(Stalled::NoRoom);
        }
        flow.last_ack = flow.rcv_nxt;
        flow.flags &= !flag::ACK_NOW;
        flow.unacknowledged = 0;
        cold.ack_at = NEVER;
        cx.metrics.frames_sent += 1;
        cx.metrics.bytes_sent += bytes;
        cx.metrics.segments_sent += 1;
        Ok(())
    }

    pub(crate) fn transmit_ack<Q: NicQueue>(
        &mut self,
        cx: &mut Context,
        queue: &mut Q,
        index: FlowIndex,
    ) -> Result<(), Stalled> {
        let flow = &self.flows.hot[index];
        // While a closed window is probed, `nxt` lies back, because the probe may not count.
        // Otherwise an ACK carries the highest number sent; with a lower one it could count as old.
        let seq = if flow.has(flag::PERSIST) { flow.nxt } else { flow.max };
        self.transmit_segment(cx, queue, index, Outbound { seq, flags: ACK, offset: 0, length: 0 })?;
        cx.metrics.acks_sent += 1;
        Ok(())
    }

    /// Duplicate acknowledgements, the first segment again, window probes, keepalive probes.
    #[cold]
    fn transmit_probes<Q: NicQueue>(
        &mut self,
        cx: &mut Context,
        queue: &mut Q,
        index: FlowIndex,
    ) -> Result<(), Stalled> {
        // One for each segment that came out of order (RFC 5681 section 4.2): the peer counts them.
        while self.flows.hot[index].owed > 0 {
            self.transmit_ack(cx, queue, index)?;
            self.flows.hot[index].owed -= 1;
        }
        if self.flows.hot[index].has(flag::TAIL) {
            self.transmit_tail(cx, queue, index)?;
            self.flows.hot[index].flags &= !flag::TAIL;
        }
        if self.flows.hot[index].has(flag::PROBE) {
            self.transmit_probe(cx, queue, index)?;
            self.flows.hot[index].flags &= !flag::PROBE;
        }
        if self.flows.hot[index].has(flag::KEEPALIVE_DUE) {
            let seq = self.flows.hot[index].una.minus(1);
            self.transmit_segment(cx, queue, index, Outbound { seq, flags: ACK, offset: 0, length: 0 })?;
            self.flows.hot[index].flags &= !flag::KEEPALIVE_DUE;
            cx.metrics.keepalive_probes += 1;
        }
        Ok(())
    }

    /// One byte into a closed window (RFC 9293 section 3.8.6.1), or all that fits a window which is
    /// silly but will not open further.
    fn transmit_probe<Q: NicQueue>(
        &mut self,
        cx: &mut Context,
        queue: &mut Q,
        index: FlowIndex,
    ) -> Result<(), Stalled> {
        let flow = &self.flows.hot[index];
        if flow.tx.is_empty() || !flow.state.sends() {
            return Ok(());
        }
        let length = flow.tx.len().min(flow.wnd.max(1) as usize).min(usize::from(flow.mss));
        let segment = Outbound { seq: flow.una, flags: ACK | PSH, offset: 0, length };
        cx.metrics.window_probes += 1;
        if flow.wnd > 0 {
            // Data in flight are retransmitted anyway.
            return if flow.una == flow.max { self.transmit_data(cx, queue, index, segment) } else { Ok(()) };
        }
        self.transmit_segment(cx, queue, index, segment)?;
        let (flow, cold) = (&mut self.flows.hot[index], &mut self.flows.cold[index]);
        if flow.una == flow.max {
            flow.max = flow.una.plus(1);
            cold.scoreboard.sent(flow.max, cx.now);
        }
        // Until the window opens, the byte counts as lost: the peer may have dropped it.
        cold.scoreboard.mark_first_lost(1);
        flow.flags |= flag::INSPECT_ACKS | flag::SLOW;
        Ok(())
    }

    fn transmit_syn<Q: NicQueue>(
        &mut self,
        cx: &mut Context,
        queue: &mut Q,
        index: FlowIndex,
    ) -> Result<(), Stalled> {
        let flow = &self.flows.hot[index];
        if !flow.has(flag::SYN_DUE) {
            return Ok(());
        }
        let mss = cx.own_mss(&self.flows.path[index].remote());
        let flow = &self.flows.hot[index];
        let cold = &self.flows.cold[index];
        let answering = flow.state == State::SynReceived;
        let stamp = (cx.now_ms.wrapping_add(flow.ts_offset), flow.ts_recent);
        let options = Options::Syn {
            mss,
            shift: (!answering || flow.rcv_shift > 0).then_some(self.settings.own_shift),
            sack: !answering || flow.has(flag::SACK),
            timestamps: (!answering || flow.has(flag::TIMESTAMPS)).then_some(stamp),
        };
        // The window of a SYN is never scaled (RFC 7323 section 2.2).
        let window = self.flows.hot[index].rcv_limit.min(0xffff) as u16;
        let flags = match (answering, flow.has(flag::ECN)) {
            (true, false) => SYN | ACK,
            (true, true) => SYN | ACK | ECE,
            (false, true) if cold.backoff == 0 => SYN | ECE | CWR,
            (false, _) => SYN,
        };
        let fields = Fields { seq: cold.iss, ack: flow.rcv_nxt, flags, window, options };
        let path = &self.flows.path[index];
        let length = tcp::frame_length(path, &options, 0);
        let mut frame = cx.allocate(queue, length)?;
        let path = &self.flows.path[index];
        tcp::emit(queue.bytes_mut(&mut frame), path, &fields, (&[], &[]), !cx.unchecked);
        cx.queue_frame(queue, frame)?;
        let (flow, cold) = (&mut self.flows.hot[index], &mut self.flows.cold[index]);
        flow.flags &= !(flag::SYN_DUE | flag::ACK_NOW);
        flow.nxt = cold.iss.plus(1);
        flow.max = flow.nxt;
        if cold.backoff == 0 && !answering {
            cold.timed_at = cx.now.max(1);
        } else {
            cold.timed_at = 0;
        }
        cold.retransmit_at = cold.retransmit_deadline(cx.now);
        self.flow_timers.no_later(index, cold.retransmit_at);
        cx.metrics.segments_sent += 1;
        Ok(())
    }

    /// Sends a segment that belongs to no flow.
    pub(crate) fn transmit_reply<Q: NicQueue>(
        &mut self,
        cx: &mut Context,
        queue: &mut Q,
        reply: &Reply,
    ) -> Result<(), Stalled> {
        let path = Template::new(&reply.path, ipv4::TCP);
        let mut frame = cx.allocate(queue, tcp::frame_length(&path, &reply.fields.options, 0))?;
        let bytes = queue.bytes_mut(&mut frame);
        tcp::emit(bytes, &path, &reply.fields, (&[], &[]), !cx.unchecked);
        cx.queue_frame(queue, frame)?;
        cx.metrics.segments_sent += 1;
        Ok(())
    }
}
