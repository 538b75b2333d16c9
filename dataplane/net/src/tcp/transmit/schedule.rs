//! Which flow sends next.
//!
//! 1. Dirty flows send in turn, each at most [`crate::limits::QUANTUM`] bytes; a flow that is not
//!    done goes to the end of the list.
//! 2. A flow for whose next frame the queue has no buffer is *deferred*: the flows behind it may
//!    have smaller frames. Deferred flows are served before all others, in the order in which they
//!    were deferred, so each of many flows on a slow queue waits equally long. A flow finds no
//!    buffer once, and is tried again when it is the first. Once it has sent its quantum as the
//!    first, in one emission or in many, it is the last.
//! 3. When the first deferred flow has found no buffer for [`DEFERRED_TIME`], nothing else is sent
//!    before it.
//! 4. The acknowledgement of a deferred flow does not wait: it is a smaller frame.

use sietch_nic::NicQueue;

use crate::context::{Context, Stalled};
use crate::limits::{DEFERRED_TIME, QUANTUM};
use crate::tcp::Tcp;
use crate::tcp::flow::flag;
use crate::tcp::flow::id::FlowIndex;

/// Passes through the dirty flows in one emission: bounds the time between two receives.
const ROUNDS: usize = 4;

impl Tcp {
    /// Sends for the deferred and the dirty flows.
    #[inline]
    pub(crate) fn emit<Q: NicQueue>(&mut self, cx: &mut Context, queue: &mut Q) -> Result<(), Stalled> {
        let mut result = if self.deferred.is_empty() { Ok(()) } else { self.emit_deferred(cx, queue) };
        for _ in 0..ROUNDS {
            if self.dirty.is_empty() || result.is_err() {
                break;
            }
            result = self.emit_flows(cx, queue);
        }
        if self.deferred.is_empty() { result } else { Err(Stalled::NoBuffer) }
    }

    /// Sends for the deferred flows, until one finds no buffer.
    ///
    /// # Errors
    /// Nothing else may be sent: the queue has no room, or the first of them has waited too long.
    #[cold]
    fn emit_deferred<Q: NicQueue>(&mut self, cx: &mut Context, queue: &mut Q) -> Result<(), Stalled> {
        while let Some(&index) = self.deferred.front() {
            let next = self.flows.hot[index].nxt;
            let served = self.transmit_flow(cx, queue, index);
            if served.is_ok() || self.flows.cold[index].sent_at == cx.now {
                self.deferred_since = cx.now;
            }
            self.deferred_sent += self.flows.hot[index].nxt.since(next) as usize;
            match served {
                Ok(more) => {
                    self.deferred.pop_front();
                    self.deferred_sent = 0;
                    self.flows.hot[index].flags &= !flag::DEFERRED;
                    if more {
                        self.mark_dirty(index);
                    }
                }
                Err(Stalled::NoBuffer) if self.deferred_sent >= QUANTUM => {
                    // It had its share, over several emissions.
                    self.deferred.rotate_left(1);
                    self.deferred_sent = 0;
                    break;
                }
                Err(Stalled::NoBuffer) if cx.now.saturating_sub(self.deferred_since) < DEFERRED_TIME => break,
                Err(stalled) => return Err(stalled),
            }
        }
        Ok(())
    }

    fn emit_flows<Q: NicQueue>(&mut self, cx: &mut Context, queue: &mut Q) -> Result<(), Stalled> {
        // Flows that become dirty meanwhile go to the end, and so does a flow that is not done.
        let marked = self.dirty.len();
        let (mut done, mut result) = (0, Ok(()));
        while done < marked && result.is_ok() {
            let index = self.dirty[done];
            let flow = &mut self.flows.hot[index];
            flow.flags &= !flag::DIRTY;
            let sent = if flow.has(flag::DEFERRED) {
                self.transmit_due_ack(cx, queue, index).map(|()| false)
            } else {
                self.transmit_flow(cx, queue, index)
            };
            match sent {
                Ok(true) => self.mark_dirty(index),
                Ok(false) => {}
                Err(Stalled::NoBuffer) if self.defer(cx, queue, index) => {}
                Err(stalled) => {
                    result = Err(stalled);
                    // It is the first again when there is room: another round would make it wait
                    // longer than its share.
                    let flow = &mut self.flows.hot[index];
                    if !flow.has(flag::DIRTY) {
                        flow.flags |= flag::DIRTY;
                        break;
                    }
                }
            }
            done += 1;
        }
        if done == self.dirty.len() {
            self.dirty.clear();
        } else {
            self.dirty.drain(..done);
        }
        result
    }

    /// The queue has no buffer for the next frame of a flow. Defers the flow and sends the
    /// acknowledgement that it owes. Returns whether other flows may find buffers.
    #[cold]
    fn defer<Q: NicQueue>(&mut self, cx: &mut Context, queue: &mut Q, index: FlowIndex) -> bool {
        if self.flows.hot[index].has(flag::DEFERRED) || self.transmit_due_ack(cx, queue, index).is_err() {
            return false;
        }
        if self.deferred.is_empty() {
            self.deferred_since = cx.now;
        }
        self.flows.hot[index].flags |= flag::DEFERRED;
        self.deferred.push_back(index);
        cx.metrics.flows_deferred += 1;
        true
    }

    /// Sends the acknowledgement that a flow owes, without data.
    #[cold]
    fn transmit_due_ack<Q: NicQueue>(
        &mut self,
        cx: &mut Context,
        queue: &mut Q,
        index: FlowIndex,
    ) -> Result<(), Stalled> {
        let flow = &self.flows.hot[index];
        if flow.has(flag::ACK_NOW) && flow.owed == 0 { self.transmit_ack(cx, queue, index) } else { Ok(()) }
    }

    pub(crate) fn emit_replies<Q: NicQueue>(
        &mut self,
        cx: &mut Context,
        queue: &mut Q,
    ) -> Result<(), Stalled> {
        if self.replies.is_empty() {
            return Ok(());
        }
        let mut replies = std::mem::take(&mut self.replies);
        let sent = replies.iter().take_while(|reply| self.transmit_reply(cx, queue, reply).is_ok()).count();
        let stalled = sent < replies.len();
        replies.drain(..sent);
        self.replies = replies;
        if stalled { Err(Stalled::NoRoom) } else { Ok(()) }
    }
}
