//! The ends of a flow.
//!
//! ```text
//! shutdown_send: ESTABLISHED -> FIN-WAIT-1, CLOSE-WAIT -> LAST-ACK; `transmit` sends the FIN after the data
//! our FIN acknowledged: FIN-WAIT-1 -> FIN-WAIT-2, CLOSING -> TIME-WAIT, LAST-ACK -> over
//! their FIN:     ESTABLISHED -> CLOSE-WAIT, FIN-WAIT-1 -> CLOSING, FIN-WAIT-2 -> TIME-WAIT
//! ```
//!
//! A flow that is over stays only until the application has read what arrived and has taken the
//! Closed event; its name is free, or belongs to TIME-WAIT, before that.

use crate::engine::Engine;
use crate::events::CloseReason;
use crate::flow::{State, event, flag};
use crate::flow_table::Entry;
use crate::limits::{FIN_WAIT_2, NEVER, TIME_WAIT};
use crate::packet::tcp::{ACK, Fields, Options, RST};
use crate::sequence::Seq;
use crate::time_wait::TimeWait;
use crate::transmit::Reply;

impl Engine {
    /// No more data from the application.
    pub(crate) fn close_send(&mut self, index: usize) {
        let flow = &mut self.flows.hot[index];
        match flow.state {
            State::Established => flow.state = State::FinWait1,
            State::CloseWait => flow.state = State::LastAck,
            State::SynSent | State::SynReceived => flow.flags |= flag::FIN_QUEUED,
            _ => return,
        }
        self.touch(index);
    }

    /// The application lets go.
    pub(crate) fn detach(&mut self, index: usize) {
        let flow = &self.flows.hot[index];
        match flow.state {
            State::SynSent => return self.let_go_at_once(index),
            State::Closed | State::TimeWait => {
                let reason = self.flows.cold[index].reason;
                self.flows.hot[index].flags |= flag::DETACHED;
                return self.finish(index, reason);
            }
            _ if !flow.rx.is_empty() => return self.abort_flow(index),
            _ => {}
        }
        self.close_send(index);
        self.settle_accept(index);
        let (flow, cold) = (&mut self.flows.hot[index], &mut self.flows.cold[index]);
        flow.flags |= flag::DETACHED;
        flow.events = 0;
        cold.idle_at = NEVER;
        if flow.state == State::FinWait2 {
            cold.idle_at = self.now + FIN_WAIT_2;
            self.flow_timers.no_later(index as u32, cold.idle_at);
        }
    }

    fn let_go_at_once(&mut self, index: usize) {
        self.flows.hot[index].flags |= flag::DETACHED;
        self.finish(index, CloseReason::Normal);
    }

    /// Resets the peer and lets go.
    pub(crate) fn abort_flow(&mut self, index: usize) {
        let flow = &self.flows.hot[index];
        if flow.state.is_synchronised() && flow.state != State::TimeWait || flow.state == State::SynReceived {
            // A probe into a closed window may not have counted.
            let seq = if flow.has(flag::PERSIST) { flow.nxt } else { flow.max };
            self.reset_reply(index, seq);
            self.metrics.connections_aborted += 1;
        }
        self.let_go_at_once(index);
    }

    /// Queues a reset with this sequence number to the flow's peer.
    pub(super) fn reset_reply(&mut self, index: usize, seq: Seq) {
        let flow = &self.flows.hot[index];
        let synchronised = flow.state != State::SynSent;
        let flags = if synchronised { RST | ACK } else { RST };
        let options = if flow.has(flag::TIMESTAMPS) {
            Options::Timestamps(self.now_ms.wrapping_add(flow.ts_offset), flow.ts_recent)
        } else {
            Options::None
        };
        let fields = Fields { seq, ack: flow.rcv_nxt, flags, window: 0, options };
        let path = self.flows.path[index].path();
        self.metrics.resets_sent += 1;
        self.reply(Reply { path, fields });
    }

    /// The peer reset the connection.
    pub(super) fn peer_reset(&mut self, index: usize) {
        self.metrics.connections_reset += 1;
        let reason = match self.flows.hot[index].state {
            State::SynReceived => CloseReason::Refused,
            State::Closing | State::LastAck => {
                // Both sides had closed, and the peer has forgotten already: nothing is lost, what
                // came can still be read.
                self.forget_name(index);
                return self.settle(index);
            }
            _ => CloseReason::Reset,
        };
        self.finish(index, reason);
    }

    /// Our FIN was acknowledged. Says whether the rest of the segment still counts.
    pub(super) fn fin_acknowledged(&mut self, index: usize) -> bool {
        let (flow, cold) = (&mut self.flows.hot[index], &mut self.flows.cold[index]);
        match flow.state {
            State::FinWait1 => {
                flow.state = State::FinWait2;
                if flow.has(flag::DETACHED) {
                    cold.idle_at = self.now + FIN_WAIT_2;
                    self.flow_timers.no_later(index as u32, cold.idle_at);
                }
                true
            }
            State::Closing => {
                self.enter_time_wait(index);
                false
            }
            State::LastAck => {
                self.metrics.connections_closed += 1;
                self.forget_name(index);
                self.settle(index);
                false
            }
            _ => true,
        }
    }

    /// Both FINs are exchanged and ours was first: the name is kept in a smaller place, the flow is
    /// over.
    pub(super) fn enter_time_wait(&mut self, index: usize) {
        if self.time_waits.is_full()
            && let Some(oldest) = self.time_waits.oldest()
        {
            self.metrics.time_wait_recycled += 1;
            self.forget_time_wait(oldest);
        }
        let flow = &mut self.flows.hot[index];
        let owes = flow.has(flag::ACK_NOW);
        let path = &self.flows.path[index];
        let name = path.name();
        let waiting = self.time_waits.insert(TimeWait {
            name,
            snd_nxt: flow.max,
            rcv_nxt: flow.rcv_nxt,
            window: flow.announce(),
            timestamps: flow.has(flag::TIMESTAMPS).then_some((flow.ts_recent, flow.ts_offset)),
            mac: path.next_hop(),
            acknowledged_at: 0,
        });
        self.directory.insert(name, Entry::TimeWait(waiting));
        self.time_wait_timers.set(waiting, self.now + TIME_WAIT);
        self.metrics.connections_closed += 1;
        if owes {
            self.acknowledge_time_wait(waiting);
        }
        self.flows.hot[index].state = State::TimeWait;
        self.settle(index);
    }

    fn forget_name(&mut self, index: usize) {
        self.directory.remove(&self.flows.path[index].name(), Entry::Flow(index as u32));
    }

    /// The protocol is done with the flow. If the application has still to read, the flow stays for
    /// that.
    fn settle(&mut self, index: usize) {
        let flow = &mut self.flows.hot[index];
        if flow.rx.is_empty() || flow.has(flag::DETACHED) {
            self.finish(index, CloseReason::Normal);
            return;
        }
        if flow.state != State::TimeWait {
            flow.state = State::Closed;
        }
        self.drop_unsent(index);
        self.silence(index);
    }

    /// Cancels everything that the flow waits for.
    fn silence(&mut self, index: usize) {
        self.drop_ahead(index);
        let cold = &mut self.flows.cold[index];
        cold.retransmit_at = NEVER;
        cold.ack_at = NEVER;
        cold.idle_at = NEVER;
        cold.repair = None;
        self.flow_timers.set(index as u32, NEVER);
    }

    /// The flow is over. What it had to send goes at once. Its place, and what was received and not
    /// read, go when the application has taken the Closed event and what followed from it
    /// ([`Engine::take_events`]), or now if it has let go.
    pub(crate) fn finish(&mut self, index: usize, reason: CloseReason) {
        self.settle_accept_unless_announced(index);
        self.silence(index);
        self.forget_name(index);
        self.drop_unsent(index);
        let (flow, cold) = (&mut self.flows.hot[index], &mut self.flows.cold[index]);
        flow.state = State::Closed;
        cold.reason = reason;
        if flow.has(flag::UNRESOLVED) {
            flow.flags &= !flag::UNRESOLVED;
            self.unresolved.retain(|&waiting| waiting as usize != index);
        }
        let flow = &mut self.flows.hot[index];
        if !flow.has(flag::DETACHED) {
            self.raise(index, event::CLOSED);
            return;
        }
        // The place may be on both lists; whoever finds it there finds it unmarked, or marked by
        // its next owner.
        if flow.has(flag::DIRTY) {
            self.dirty.retain(|&marked| marked as usize != index);
        }
        if self.flows.hot[index].has(flag::READY) {
            self.ready.retain(|&marked| marked as usize != index);
        }
        self.flows.release(index as u32, &mut self.pool);
    }

    /// A flow that nobody will be told of makes room in its listener's queue.
    fn settle_accept_unless_announced(&mut self, index: usize) {
        if self.flows.hot[index].has(flag::DETACHED) {
            self.settle_accept(index);
        }
    }

    /// Sends a reset to a peer that has fallen silent, and gives the flow up.
    pub(super) fn give_up(&mut self, index: usize) {
        self.metrics.connections_timed_out += 1;
        let flow = &self.flows.hot[index];
        if flow.state.is_synchronised() {
            let seq: Seq = flow.nxt;
            self.reset_reply(index, seq);
        }
        let cold = &self.flows.cold[index];
        let told = cold.unreachable_at > cold.heard_at;
        self.finish(index, if told { CloseReason::Unreachable } else { CloseReason::TimedOut });
    }
}
