//! Which flow sends next.
//!
//! 1. Dirty flows send in turn, each at most [`crate::limits::QUANTUM`] bytes; a flow that is not
//!    done goes to the end of the list.
//! 2. A flow for whose next frame the queue has no buffer is *deferred*: frames of others may be
//!    smaller. It is tried once an emission, behind the flows that were not deferred.
//! 3. When no deferred flow has found a buffer for [`DEFERRED_TIME`], the one that has waited
//!    longest sends before everything else.

use sietch_nic::NicQueue;

use crate::context::{Context, Stalled};
use crate::limits::{DEFERRED_FLOWS, DEFERRED_TIME};
use crate::tcp::Tcp;
use crate::tcp::flow::flag;
use crate::tcp::flow::id::FlowIndex;

/// Passes through the dirty flows in one emission: bounds the time between two receives.
const ROUNDS: usize = 4;

impl Tcp {
    /// Sends for the dirty flows.
    #[inline]
    pub(crate) fn emit<Q: NicQueue>(&mut self, cx: &mut Context, queue: &mut Q) -> Result<(), Stalled> {
        let mut result = self.emit_longest_deferred(cx, queue);
        for _ in 0..ROUNDS {
            if self.dirty.is_empty() || result.is_err() {
                break;
            }
            result = self.emit_flows(cx, queue);
        }
        if self.deferred.is_empty() {
            return result;
        }
        self.dirty.append(&mut self.deferred);
        Err(Stalled::NoBuffer)
    }

    /// Sends for the flow that was deferred longest, once that is long enough. Until it finds a
    /// buffer nothing else leaves.
    #[inline]
    fn emit_longest_deferred<Q: NicQueue>(&mut self, cx: &mut Context, queue: &mut Q) -> Result<(), Stalled> {
        let Some((index, since)) = self.longest_deferred else { return Ok(()) };
        let at = self.dirty.iter().position(|&marked| marked == index);
        let Some(at) = at.filter(|_| cx.now.saturating_sub(since) >= DEFERRED_TIME) else {
            self.longest_deferred = self.longest_deferred.filter(|_| at.is_some());
            return Ok(());
        };
        // It is in the list as long as it is dirty.
        let more = self.transmit_flow(cx, queue, index)?;
        self.end_deferral(index);
        if !more {
            self.dirty.remove(at);
            self.flows.hot[index].flags &= !flag::DIRTY;
        }
        Ok(())
    }

    fn emit_flows<Q: NicQueue>(&mut self, cx: &mut Context, queue: &mut Q) -> Result<(), Stalled> {
        // Flows that become dirty meanwhile go to the end, and so does a flow that is not done.
        let marked = self.dirty.len();
        let (mut done, mut result) = (0, Ok(()));
        while done < marked && result.is_ok() {
            let index = self.dirty[done];
            self.flows.hot[index].flags &= !flag::DIRTY;
            match self.transmit_flow(cx, queue, index) {
                Ok(more) => {
                    if self.longest_deferred.is_some() {
                        self.end_deferral(index);
                    }
                    if more {
                        self.mark_dirty(index);
                    }
                }
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

    /// A flow has sent. If it was deferred, there are buffers for the deferred flows as well.
    #[cold]
    fn end_deferral(&mut self, index: FlowIndex) {
        let flow = &mut self.flows.hot[index];
        if flow.has(flag::DEFERRED) {
            flow.flags &= !flag::DEFERRED;
            self.longest_deferred = None;
        }
    }

    /// The queue has no buffer for the next frame of a flow. Defers the flow and sends the
    /// acknowledgement that it owes. Returns whether other flows may find buffers.
    #[cold]
    fn defer<Q: NicQueue>(&mut self, cx: &mut Context, queue: &mut Q, index: FlowIndex) -> bool {
        let flow = &self.flows.hot[index];
        if self.deferred.len() >= DEFERRED_FLOWS || flow.has(flag::DIRTY) {
            return false;
        }
        if flow.has(flag::ACK_NOW) && flow.owed == 0 && self.transmit_ack(cx, queue, index).is_err() {
            return false;
        }
        if self.flows.cold[index].sent_at == cx.now {
            // There was one for the frame before.
            self.end_deferral(index);
        }
        self.flows.hot[index].flags |= flag::DIRTY | flag::DEFERRED;
        self.deferred.push(index);
        self.longest_deferred.get_or_insert((index, cx.now));
        cx.metrics.flows_deferred += 1;
        true
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
