//! Retransmission of lost bytes, and tail loss probes.
//!
//! 1. Lost bytes leave before new ones, the lowest first. They leave as far as the peer's window
//!    reaches and while the pipe has room in the congestion window (RFC 6675). The first
//!    retransmission of a recovery leaves even beyond the congestion window.
//! 2. When the tail of the sent data has no answer for two round trips, one segment provokes one.
//!    It carries new data if there are any, else the last segment again (RFC 8985 section 7.3).

use sietch_nic::NicQueue;

use crate::context::Context;
use crate::context::Stalled;
use crate::limits::{NEVER, QUANTUM, SEGMENT_COST};
use crate::packet::sequence::Seq;
use crate::packet::tcp::{ACK, FIN, PSH};
use crate::tcp::Tcp;
use crate::tcp::flow::flag;
use crate::tcp::flow::id::FlowIndex;
use crate::tcp::flow::recovery::RecoveryState;
use crate::tcp::flow::recovery::TailProbe;
use crate::tcp::transmit::segment::Outbound;

impl Tcp {
    /// Retransmits lost bytes. Returns whether the quantum is used up.
    #[cold]
    pub(super) fn retransmit_lost<Q: NicQueue>(
        &mut self,
        cx: &mut Context,
        queue: &mut Q,
        index: FlowIndex,
    ) -> Result<bool, Stalled> {
        if self.leave_persist(cx, index) {
            self.widen_probe(cx, queue, index)?;
        }
        let mut left = QUANTUM;
        while left > 0 {
            let (flow, cold) = (&self.flows.hot[index], &self.flows.cold[index]);
            let Some((first, last)) = cold.scoreboard.first_lost().filter(|_| flow.state.sends()) else {
                break;
            };
            let offset = first.since(flow.una);
            let length = last.since(first).min(u32::from(flow.mss)).min(flow.wnd.saturating_sub(offset));
            // A FIN takes no room, and goes with the last of the data.
            let data = (flow.tx.len() as u32).saturating_sub(offset);
            let length = if length >= data && last.since(first) > data { data + 1 } else { length };
            let pipe = flow.outstanding().saturating_sub(cold.left_network());
            let room = pipe == 0 || pipe.saturating_add(length) <= flow.cwnd;
            if length == 0 || !(room || flow.has(flag::RESEND)) {
                break;
            }
            self.retransmit_range(cx, queue, index, first, first.plus(length))?;
            left = left.saturating_sub(length as usize + SEGMENT_COST);
        }
        self.flows.hot[index].flags &= !flag::RESEND;
        Ok(false)
    }

    /// Retransmits the bytes from `first` up to but without `last`, which may include our FIN.
    fn retransmit_range<Q: NicQueue>(
        &mut self,
        cx: &mut Context,
        queue: &mut Q,
        index: FlowIndex,
        first: Seq,
        last: Seq,
    ) -> Result<(), Stalled> {
        let flow = &self.flows.hot[index];
        let offset = first.since(flow.una) as usize;
        let bytes = last.since(first);
        let length = (bytes as usize).min(flow.tx.len().saturating_sub(offset));
        let fin = bytes as usize > length;
        let ends = fin || offset + length == flow.tx.len();
        let flags = ACK | if ends { PSH } else { 0 } | if fin { FIN } else { 0 };
        self.retransmit_segment(cx, queue, index, first, last, Outbound { seq: first, flags, offset, length })
    }

    /// Sends `segment`, which retransmits the bytes from `first` up to but without `last`.
    fn retransmit_segment<Q: NicQueue>(
        &mut self,
        cx: &mut Context,
        queue: &mut Q,
        index: FlowIndex,
        first: Seq,
        last: Seq,
        segment: Outbound,
    ) -> Result<(), Stalled> {
        self.transmit_segment(cx, queue, index, segment)?;
        let bytes = last.since(first);
        let stamp = cx.now_ms.wrapping_add(self.flows.hot[index].ts_offset);
        let (flow, cold) = (&mut self.flows.hot[index], &mut self.flows.cold[index]);
        flow.flags &= !flag::RESEND;
        cold.scoreboard.retransmitted(first, last, cx.now);
        cold.retransmits += 1;
        cold.sent_at = cx.now;
        if let Some(recovery) = &mut cold.recovery {
            recovery.retransmitted_bytes += u64::from(bytes);
            recovery.reduction.sent(bytes);
            if let Some(undo) = &mut recovery.undo {
                undo.bytes = undo.bytes.saturating_add(bytes);
                undo.stamp.get_or_insert(stamp);
            }
        }
        if first == flow.una || cold.retransmit_at == NEVER {
            cold.probing = false;
            cold.retransmit_at = cold.retransmit_deadline(cx.now);
            self.flow_timers.no_later(index, cold.retransmit_at);
        }
        cx.metrics.retransmits += 1;
        Ok(())
    }

    /// The window was closed and has opened: data sent into it count as lost, and leave first.
    /// Returns whether that has just happened.
    fn leave_persist(&mut self, cx: &Context, index: FlowIndex) -> bool {
        let (flow, cold) = (&mut self.flows.hot[index], &mut self.flows.cold[index]);
        let opened = flow.has(flag::PERSIST) && flow.wnd > 0 && flow.una != flow.max;
        if opened {
            flow.flags &= !(flag::PERSIST | flag::PROBE);
            flow.nxt = flow.max;
            cold.backoff = 0;
            self.arm(cx, index);
        }
        opened
    }

    /// If only the byte of a window probe is to be retransmitted, it leaves at the head of a full
    /// segment, not as a segment of its own (RFC 9293 section 3.8.6.2.1: a sender must not send
    /// silly segments).
    fn widen_probe<Q: NicQueue>(
        &mut self,
        cx: &mut Context,
        queue: &mut Q,
        index: FlowIndex,
    ) -> Result<(), Stalled> {
        let (flow, cold) = (&mut self.flows.hot[index], &self.flows.cold[index]);
        let (una, max) = (flow.una, flow.max);
        if flow.outstanding() != 1 || flow.tx.len() < 2 || cold.scoreboard.first_lost() != Some((una, max)) {
            return Ok(());
        }
        // As if it had never been sent.
        flow.nxt = una;
        let widened = self.next_segment(cx, index).filter(|segment| segment.length > 1);
        self.flows.hot[index].nxt = max;
        let Some(segment) = widened else { return Ok(()) };
        self.retransmit_segment(cx, queue, index, una, max, segment)?;
        let (flow, cold) = (&mut self.flows.hot[index], &mut self.flows.cold[index]);
        flow.max = una.plus(segment.length as u32 + u32::from(segment.flags & FIN != 0));
        flow.nxt = flow.max;
        cold.scoreboard.sent(flow.max, cx.now);
        if flow.has(flag::PACED) {
            self.charge_pace(cx, index, segment.length);
        }
        Ok(())
    }

    /// Sends a tail loss probe.
    pub(super) fn transmit_tail<Q: NicQueue>(
        &mut self,
        cx: &mut Context,
        queue: &mut Q,
        index: FlowIndex,
    ) -> Result<(), Stalled> {
        let flow = &mut self.flows.hot[index];
        let mss = u32::from(flow.mss);
        if flow.una == flow.max || !flow.state.sends() || flow.wnd == 0 {
            return Ok(());
        }
        let window = flow.cwnd;
        flow.cwnd = window.max(flow.outstanding().saturating_add(mss));
        let fresh = self.next_segment(cx, index);
        self.flows.hot[index].cwnd = window;
        let retransmission = fresh.is_none();
        match fresh {
            Some(segment) => self.transmit_data(cx, queue, index, segment)?,
            None => {
                let flow = &self.flows.hot[index];
                let bytes = flow.outstanding().min(mss);
                self.retransmit_range(cx, queue, index, flow.max.minus(bytes), flow.max)?;
            }
        }
        let (flow, cold) = (&mut self.flows.hot[index], &mut self.flows.cold[index]);
        flow.flags |= flag::INSPECT_ACKS | flag::SLOW;
        let recovery = cold.recovery.get_or_insert_default();
        recovery.probe = Some(TailProbe { end: flow.max, retransmission });
        recovery.tail_probes = recovery.tail_probes.saturating_add(1);
        cold.probing = false;
        cold.retransmit_at = cx.now + cold.rtt.timeout(cold.backoff);
        self.flow_timers.no_later(index, cold.retransmit_at);
        cx.metrics.tail_probes += 1;
        Ok(())
    }

    /// Counts new data against what recovery allows.
    #[cold]
    pub(super) fn note_sent_in_recovery(&mut self, index: FlowIndex, bytes: u32) {
        if let Some(recovery) = &mut self.flows.cold[index].recovery
            && recovery.phase == RecoveryState::Recovery
        {
            recovery.reduction.sent(bytes);
        }
    }
}
