//! The end of a flow.
//!
//! ```text
//! shutdown_send:        ESTABLISHED -> FIN-WAIT-1, CLOSE-WAIT -> LAST-ACK (FIN follows the data)
//! our FIN acknowledged: FIN-WAIT-1 -> FIN-WAIT-2, CLOSING -> TIME-WAIT, LAST-ACK -> over
//! their FIN:            ESTABLISHED -> CLOSE-WAIT, FIN-WAIT-1 -> CLOSING, FIN-WAIT-2 -> TIME-WAIT
//! ```
//!
//! A flow that is over stays only until the application has read what arrived and has taken the
//! Closed event. Its four-tuple is free, or belongs to TIME-WAIT, before that.

use crate::context::Context;
use crate::events::CloseReason;
use crate::limits::{FIN_WAIT_2, NEVER, TIME_WAIT};
use crate::packet::sequence::Seq;
use crate::packet::tcp::{ACK, Fields, Options, RST};
use crate::tcp::Tcp;
use crate::tcp::connections::Entry;
use crate::tcp::connections::four_tuple::FourTuple;
use crate::tcp::connections::time_wait::TimeWait;
use crate::tcp::flow::id::FlowIndex;
use crate::tcp::flow::{State, event, flag};
use crate::tcp::transmit::segment::Reply;

impl Tcp {
    /// No more data from the application.
    pub(crate) fn close_send(&mut self, index: FlowIndex) {
        let flow = &mut self.flows.hot[index];
        match flow.state {
            State::Established => flow.state = State::FinWait1,
            State::CloseWait => flow.state = State::LastAck,
            State::SynSent | State::SynReceived => flow.flags |= flag::FIN_QUEUED,
            _ => return,
        }
        self.mark_dirty(index);
    }

    /// The application closes the flow.
    pub(crate) fn detach(&mut self, cx: &mut Context, index: FlowIndex) {
        let flow = &self.flows.hot[index];
        match flow.state {
            State::SynSent => return self.drop_now(index),
            State::Closed | State::TimeWait => {
                let reason = self.flows.cold[index].reason;
                self.flows.hot[index].flags |= flag::DETACHED;
                return self.finish(index, reason);
            }
            _ if !flow.rx.is_empty() => return self.abort_flow(cx, index),
            _ => {}
        }
        self.close_send(index);
        self.leave_accept_queue(index);
        let (flow, cold) = (&mut self.flows.hot[index], &mut self.flows.cold[index]);
        flow.flags |= flag::DETACHED;
        flow.events = 0;
        cold.idle_at = NEVER;
        if flow.state == State::FinWait2 {
            cold.idle_at = cx.now + FIN_WAIT_2;
            self.flow_timers.no_later(index, cold.idle_at);
        }
    }

    fn drop_now(&mut self, index: FlowIndex) {
        self.flows.hot[index].flags |= flag::DETACHED;
        self.finish(index, CloseReason::Normal);
    }

    /// Resets the peer and releases the flow.
    pub(crate) fn abort_flow(&mut self, cx: &mut Context, index: FlowIndex) {
        let flow = &self.flows.hot[index];
        if flow.state.is_synchronised() && flow.state != State::TimeWait || flow.state == State::SynReceived {
            // A probe into a closed window may not have counted.
            let seq = if flow.has(flag::PERSIST) { flow.nxt } else { flow.max };
            self.reset_reply(cx, index, seq);
            cx.metrics.connections_aborted += 1;
        }
        self.drop_now(index);
    }

    /// Queues a reset with this sequence number to the flow's peer.
    pub(super) fn reset_reply(&mut self, cx: &mut Context, index: FlowIndex, seq: Seq) {
        let flow = &self.flows.hot[index];
        let synchronised = flow.state != State::SynSent;
        let flags = if synchronised { RST | ACK } else { RST };
        let options = if flow.has(flag::TIMESTAMPS) {
            Options::Timestamps(cx.now_ms.wrapping_add(flow.ts_offset), flow.ts_recent)
        } else {
            Options::None
        };
        let fields = Fields { seq, ack: flow.rcv_nxt, flags, window: 0, options };
        let path = self.flows.path[index].path();
        cx.metrics.resets_sent += 1;
        self.reply(cx, Reply { path, fields });
    }

    /// The peer reset the connection.
    pub(super) fn peer_reset(&mut self, cx: &mut Context, index: FlowIndex) {
        cx.metrics.connections_reset += 1;
        let reason = match self.flows.hot[index].state {
            State::SynReceived => CloseReason::Refused,
            State::Closing | State::LastAck => {
                // Both sides had closed, and the peer has dropped its state already: nothing is
                // lost, and received data can still be read.
                self.remove_connection(index);
                return self.end_protocol(index);
            }
            _ => CloseReason::Reset,
        };
        self.finish(index, reason);
    }

    /// Our FIN was acknowledged. Returns whether the rest of the segment still counts.
    pub(super) fn fin_acknowledged(&mut self, cx: &mut Context, index: FlowIndex) -> bool {
        let (flow, cold) = (&mut self.flows.hot[index], &mut self.flows.cold[index]);
        match flow.state {
            State::FinWait1 => {
                flow.state = State::FinWait2;
                if flow.has(flag::DETACHED) {
                    cold.idle_at = cx.now + FIN_WAIT_2;
                    self.flow_timers.no_later(index, cold.idle_at);
                }
                true
            }
            State::Closing => {
                self.enter_time_wait(cx, index);
                false
            }
            State::LastAck => {
                cx.metrics.connections_closed += 1;
                self.remove_connection(index);
                self.end_protocol(index);
                false
            }
            _ => true,
        }
    }

    /// Both FINs are exchanged and ours was first: the four-tuple moves to the smaller table of
    /// TIME-WAIT, and the flow is over.
    pub(super) fn enter_time_wait(&mut self, cx: &mut Context, index: FlowIndex) {
        if self.time_waits.is_full()
            && let Some(oldest) = self.time_waits.oldest()
        {
            cx.metrics.time_wait_recycled += 1;
            self.remove_time_wait(oldest);
        }
        let flow = &mut self.flows.hot[index];
        let owes = flow.has(flag::ACK_NOW);
        let path = &self.flows.path[index];
        let tuple = FourTuple::of_template(path);
        let waiting = self.time_waits.insert(TimeWait {
            tuple,
            snd_nxt: flow.max,
            rcv_nxt: flow.rcv_nxt,
            window: flow.announce(),
            timestamps: flow.has(flag::TIMESTAMPS).then_some((flow.ts_recent, flow.ts_offset)),
            mac: path.next_hop(),
            acknowledged_at: 0,
        });
        self.connections.insert(tuple, Entry::TimeWait(waiting));
        self.time_waits.set_deadline(waiting, cx.now + TIME_WAIT);
        cx.metrics.connections_closed += 1;
        if owes {
            self.acknowledge_time_wait(cx, waiting);
        }
        self.flows.hot[index].state = State::TimeWait;
        self.end_protocol(index);
    }

    fn remove_connection(&mut self, index: FlowIndex) {
        self.connections.remove(&FourTuple::of_template(&self.flows.path[index]), Entry::Flow(index));
    }

    /// The protocol is done with the flow. If the application has still to read, the flow stays for
    /// that.
    fn end_protocol(&mut self, index: FlowIndex) {
        let flow = &mut self.flows.hot[index];
        if flow.rx.is_empty() || flow.has(flag::DETACHED) {
            self.finish(index, CloseReason::Normal);
            return;
        }
        if flow.state != State::TimeWait {
            flow.state = State::Closed;
        }
        self.drop_unsent(index);
        self.cancel_timers(index);
    }

    /// Cancels everything that the flow waits for.
    fn cancel_timers(&mut self, index: FlowIndex) {
        self.drop_out_of_order(index);
        let cold = &mut self.flows.cold[index];
        cold.retransmit_at = NEVER;
        cold.ack_at = NEVER;
        cold.idle_at = NEVER;
        cold.recovery = None;
        self.flow_timers.set(index, NEVER);
    }

    /// The flow is over. Its unsent data are dropped at once. Its slot and its unread bytes are
    /// released when the application has taken the Closed event and the events after it
    /// (`Engine::take_events`), or now if it has closed the flow.
    pub(crate) fn finish(&mut self, index: FlowIndex, reason: CloseReason) {
        self.leave_accept_queue_if_detached(index);
        self.cancel_timers(index);
        self.remove_connection(index);
        self.drop_unsent(index);
        let (flow, cold) = (&mut self.flows.hot[index], &mut self.flows.cold[index]);
        flow.state = State::Closed;
        cold.reason = reason;
        if flow.has(flag::UNRESOLVED) {
            flow.flags &= !flag::UNRESOLVED;
            self.unresolved.retain(|&waiting| waiting != index);
        }
        if flow.has(flag::DEFERRED) {
            flow.flags &= !flag::DEFERRED;
            self.deferred.retain(|&deferred| deferred != index);
        }
        let flow = &mut self.flows.hot[index];
        if !flow.has(flag::DETACHED) {
            self.raise(index, event::CLOSED);
            return;
        }
        // The slot may be on both lists. Other lists check the flags: a stale entry finds them
        // clear, or set by the next flow in the slot.
        if flow.has(flag::DIRTY) {
            self.dirty.retain(|&marked| marked != index);
        }
        if self.flows.hot[index].has(flag::READY) {
            self.ready.retain(|&marked| marked != index);
        }
        self.flows.release(index, &mut self.pool);
    }

    /// A flow without an application makes room in its listener's queue.
    fn leave_accept_queue_if_detached(&mut self, index: FlowIndex) {
        if self.flows.hot[index].has(flag::DETACHED) {
            self.leave_accept_queue(index);
        }
    }

    /// Sends a reset to a peer that no longer answers, and ends the flow.
    pub(super) fn give_up(&mut self, cx: &mut Context, index: FlowIndex) {
        cx.metrics.connections_timed_out += 1;
        let flow = &self.flows.hot[index];
        if flow.state.is_synchronised() {
            let seq: Seq = flow.nxt;
            self.reset_reply(cx, index, seq);
        }
        let cold = &self.flows.cold[index];
        let unreachable = cold.unreachable_at > cold.received_at;
        self.finish(index, if unreachable { CloseReason::Unreachable } else { CloseReason::TimedOut });
    }
}
