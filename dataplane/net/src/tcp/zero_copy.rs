//! Zero-copy send and receive: buffers change owners instead of being copied.
//!
//! # Sending
//!
//! 1. `Engine::send_zero_copy` takes a share of the application's own bytes ([`SharedBytes`]). It
//!    drops the share when the peer has acknowledged the bytes, or the flow is over. The owner's
//!    `Drop` frees or recycles the bytes.
//! 2. A flow that sends such bytes has a send queue beside its ring (`send_queue`): pieces in the
//!    order in which they were queued, copied or shared. The ring counts all their bytes and holds
//!    none, so code that asks how much there is to send stays as it is. When everything is
//!    acknowledged, the flow uses an ordinary ring again.
//! 3. A segment takes its payload from wherever it is. One that begins in one piece and ends in
//!    another is assembled first.
//!
//! # Receiving
//!
//! 1. `Engine::receive_zero_copy` gives the buffer of a receive ring to the application, with the
//!    bytes in it ([`ReceivedBuffer`]). The ring takes a new one when more arrives. While bytes
//!    wait out of order in the ring, the bytes in order are copied into a buffer of their own.
//! 2. Bytes that the application holds count as received and not consumed, so the announced window
//!    is smaller by them. A receiver that hoards buffers is bounded like one that does not read.
//! 3. A dropped [`ReceivedBuffer`] returns to the engine through a queue with room for as many
//!    buffers as may be out ([`ZERO_COPY_BUFFERS`]), so there is always room. The engine reads that
//!    queue once an iteration, in `Engine::emit`.
//!
//! Invariants: bytes that may have to be retransmitted are kept; no window is announced for memory
//! that the application holds.

use crate::context::Context;
use crate::limits::{ZERO_COPY_BUFFERS, ZERO_COPY_BYTES, ZERO_COPY_PIECES};
use crate::tcp::Tcp;
use crate::tcp::flow::id::{FlowId, FlowIndex};
use crate::tcp::flow::{State, flag};

pub(crate) mod received_buffer;
pub(crate) mod send_queue;
pub(crate) mod shared_bytes;

use received_buffer::{ReceivedBuffer, Returned};
use shared_bytes::SharedBytes;

impl Tcp {
    /// See `Engine::send_zero_copy`.
    pub(crate) fn send_zero_copy(
        &mut self,
        cx: &mut Context,
        flow: FlowId,
        bytes: SharedBytes,
    ) -> Result<(), SharedBytes> {
        let Some(index) = self.flows.index(flow) else { return Err(bytes) };
        let flow = &mut self.flows.hot[index];
        let open =
            matches!(flow.state, State::SynSent | State::SynReceived | State::Established | State::CloseWait);
        if !open {
            return Err(bytes);
        }
        if bytes.is_empty() {
            return Ok(());
        }
        let send_queue = self.flows.cold[index].send_queue.get_or_insert_default();
        if flow.tx.len() + bytes.len() > ZERO_COPY_BYTES || send_queue.pieces() >= ZERO_COPY_PIECES {
            flow.flags |= flag::WANTS_ROOM;
            return Err(bytes);
        }
        if !flow.has(flag::ZERO_COPY) {
            flow.flags |= flag::ZERO_COPY;
            send_queue.begin(flow.tx.take_storage());
        }
        flow.tx.count_external(bytes.len());
        send_queue.share(bytes);
        cx.metrics.zero_copy_sends += 1;
        self.mark_dirty(index);
        Ok(())
    }

    /// `Engine::send` for a flow with a send queue.
    #[cold]
    pub(crate) fn send_queued(&mut self, index: FlowIndex, data: &[u8]) -> usize {
        let flow = &mut self.flows.hot[index];
        let limit = flow.send_limit(self.settings.send_buffer);
        let Some(send_queue) = &mut self.flows.cold[index].send_queue else { return 0 };
        let room = limit.saturating_sub(flow.tx.len());
        let room = if send_queue.pieces() < ZERO_COPY_PIECES { room } else { 0 };
        let taken = send_queue.copy(&mut self.pool, &data[..data.len().min(room)], limit);
        flow.tx.count_external(taken);
        if taken < data.len() {
            // Unacknowledged bytes remain: room comes with their acknowledgement.
            flow.flags |= flag::WANTS_ROOM;
        }
        if taken > 0 {
            self.mark_dirty(index);
        }
        taken
    }

    /// The first `bytes` of the queue are acknowledged; the ring has consumed them already.
    #[cold]
    pub(crate) fn release_acknowledged(&mut self, index: FlowIndex, bytes: usize) {
        let flow = &mut self.flows.hot[index];
        let Some(send_queue) = &mut self.flows.cold[index].send_queue else { return };
        send_queue.consume(&mut self.pool, bytes);
        if send_queue.is_empty() {
            flow.flags &= !flag::ZERO_COPY;
        }
    }

    /// Nothing more is sent on the flow: drops its send buffers and shares.
    pub(crate) fn drop_unsent(&mut self, index: FlowIndex) {
        let flow = &mut self.flows.hot[index];
        flow.tx.release(&mut self.pool);
        flow.flags &= !flag::ZERO_COPY;
        if let Some(mut send_queue) = self.flows.cold[index].send_queue.take() {
            send_queue.clear(&mut self.pool);
        }
    }

    /// See `Engine::receive_zero_copy`.
    pub(crate) fn receive_zero_copy(&mut self, cx: &mut Context, id: FlowId) -> Option<ReceivedBuffer> {
        let index = self.flows.index(id)?;
        let flow = &mut self.flows.hot[index];
        if flow.rx.is_empty() || self.received_buffers.out >= ZERO_COPY_BUFFERS {
            return None;
        }
        let length = flow.rx.len();
        let (buffer, start) = if self.flows.cold[index].reassembly.is_none() {
            flow.rx.take_buffer()
        } else {
            let buffer = flow.rx.copy_out(&mut self.pool)?;
            flow.rx.consume(length);
            (buffer, 0)
        };
        flow.held += length as u32;
        self.received_buffers.out += 1;
        cx.metrics.zero_copy_receives += 1;
        if matches!(flow.state, State::Closed | State::TimeWait) {
            self.finish_if_read(index);
        }
        Some(ReceivedBuffer { buffer, start, length, flow: id, home: self.received_buffers.return_channel() })
    }

    /// Whether buffers wait to be reclaimed.
    #[inline]
    pub(crate) fn has_returned_buffers(&self) -> bool {
        self.received_buffers.has_returned()
    }

    /// Reclaims the buffers that the application has dropped.
    #[inline]
    pub(crate) fn reclaim_buffers(&mut self, cx: &mut Context) {
        if self.received_buffers.out > 0 {
            self.reclaim_all_buffers(cx);
        }
    }

    /// Takes back the buffers that the application has dropped, and lets the peers send as much
    /// again.
    #[cold]
    pub(crate) fn reclaim_all_buffers(&mut self, cx: &mut Context) {
        while let Some(Returned { flow, length, buffer }) = self.received_buffers.take_returned() {
            self.pool.recycle(buffer);
            if let Some(index) = self.flows.index(flow) {
                let flow = &mut self.flows.hot[index];
                flow.held = flow.held.saturating_sub(length);
                if !matches!(flow.state, State::Closed | State::TimeWait) {
                    self.reopen_window(cx, index);
                }
            }
        }
    }

    /// See `Engine::held`.
    pub(crate) fn held(&self, flow: FlowId) -> usize {
        self.flows.index(flow).map_or(0, |index| self.flows.hot[index].held as usize)
    }
}
