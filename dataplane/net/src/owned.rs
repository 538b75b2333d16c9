//! Buffers that change hands instead of being copied.
//!
//! # Sending
//!
//! 1. [`Engine::send_zero_copy`] takes a share of the application's own bytes ([`SharedBytes`]) and keeps it
//!    until the peer has acknowledged them, or the flow is over; then it drops it. Whatever owned
//!    the bytes is freed, or finds its way back, by its own `Drop`.
//! 2. A flow to which something was lent has an outbox beside its ring (`outbox`): pieces in the
//!    order in which they were given, copied or lent. The ring counts all their bytes and holds
//!    none, so that everything which asks how much there is to send stays as it is. When all is
//!    acknowledged, the flow has an ordinary ring again.
//! 3. A segment takes its payload from wherever it lies. One that begins in one piece and ends in
//!    another is put together first.
//!
//! # Receiving
//!
//! 1. [`Engine::receive_zero_copy`] hands the buffer of a receive ring over, with the bytes in it
//!    ([`ReceivedBuffer`]); the ring takes a new one when more arrives. While something waits out of
//!    order in the ring the bytes are copied into a buffer of their own.
//! 2. Bytes that the application holds count as received and not consumed: the window that the peer
//!    is told of is smaller by them, so a receiver that hoards buffers is bounded as one that does
//!    not read.
//! 3. A [`ReceivedBuffer`] that is dropped goes back to the engine through a queue of as many places as
//!    buffers may be out ([`ZERO_COPY_BUFFERS`]), so there is always one. The engine looks at that queue
//!    once a turn, in [`Engine::emit`].
//!
//! What it must never do: let go of bytes that may have to be sent again; announce a window for
//! memory that the application holds.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use crate::engine::Engine;
use crate::flow::{FlowId, State, flag};
use crate::limits::{ZERO_COPY_BUFFERS, ZERO_COPY_BYTES, ZERO_COPY_PIECES};

pub(crate) mod outbox;

use outbox::Outbox;

/// Bytes that an application shares with the engine instead of having them copied. Clones and
/// slices share the same bytes.
///
/// The bytes must not change as long as the engine has a share: what is sent twice has to be the
/// same.
#[derive(Clone)]
pub struct SharedBytes {
    memory: Memory,
    start: usize,
    length: usize,
}

#[derive(Clone)]
enum Memory {
    Constant(&'static [u8]),
    Slice(Arc<[u8]>),
    Owner(Arc<dyn AsRef<[u8]> + Send + Sync>),
}

impl SharedBytes {
    /// All bytes of whatever owns some: a vector, a mapped file, a buffer of a pool whose `Drop`
    /// puts it back.
    pub fn new(owner: impl AsRef<[u8]> + Send + Sync + 'static) -> Self {
        Self::shared(Arc::new(owner))
    }

    /// The same for an owner that is shared already; who keeps a clone sees by its count when the
    /// engine has let go.
    pub fn shared(owner: Arc<dyn AsRef<[u8]> + Send + Sync>) -> Self {
        let length = (*owner).as_ref().len();
        Self { memory: Memory::Owner(owner), start: 0, length }
    }

    /// How many bytes.
    pub const fn len(&self) -> usize {
        self.length
    }

    /// Whether there are none.
    pub const fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// The bytes from `start` on, at most `length` of them: a share of its own.
    #[must_use]
    pub fn slice(&self, start: usize, length: usize) -> Self {
        let start = start.min(self.length);
        Self {
            memory: self.memory.clone(),
            start: self.start + start,
            length: length.min(self.length - start),
        }
    }

    /// `length` bytes from `offset` on. Fewer only if their owner has changed its mind about how
    /// many it has.
    fn bytes(&self, offset: usize, length: usize) -> &[u8] {
        let all = match &self.memory {
            Memory::Constant(bytes) => bytes,
            Memory::Slice(bytes) => &**bytes,
            Memory::Owner(owner) => (**owner).as_ref(),
        };
        let begin = (self.start + offset).min(all.len());
        &all[begin..(begin + length).min(all.len())]
    }
}

impl AsRef<[u8]> for SharedBytes {
    fn as_ref(&self) -> &[u8] {
        self.bytes(0, self.length)
    }
}

impl fmt::Debug for SharedBytes {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "SharedBytes({} bytes)", self.length)
    }
}

impl From<&'static [u8]> for SharedBytes {
    fn from(bytes: &'static [u8]) -> Self {
        Self { memory: Memory::Constant(bytes), start: 0, length: bytes.len() }
    }
}

impl From<Arc<[u8]>> for SharedBytes {
    fn from(bytes: Arc<[u8]>) -> Self {
        Self { start: 0, length: bytes.len(), memory: Memory::Slice(bytes) }
    }
}

impl From<Vec<u8>> for SharedBytes {
    fn from(bytes: Vec<u8>) -> Self {
        Self::new(bytes)
    }
}

/// A buffer on its way back.
#[derive(Debug)]
struct Returned {
    flow: FlowId,
    length: u32,
    buffer: Box<[u8]>,
}

/// Received bytes in the very buffer into which the engine put them. Dropped, it goes back to the
/// engine, and the peer may send as many again. It is meant to be dropped in the thread that turns
/// the engine: another's drop is noticed with the next turn only.
pub struct ReceivedBuffer {
    buffer: Box<[u8]>,
    start: usize,
    length: usize,
    flow: FlowId,
    home: Home,
}

impl ReceivedBuffer {
    /// How many bytes.
    pub const fn len(&self) -> usize {
        self.length
    }

    /// Whether there are none. There always are some.
    pub const fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// The bytes, in two pieces; the second is empty unless they wrapped around the end of the
    /// buffer.
    pub fn slices(&self) -> (&[u8], &[u8]) {
        let (first, second) = self.pieces();
        (&self.buffer[first.0..first.0 + first.1], &self.buffer[second.0..second.0 + second.1])
    }

    /// The same bytes to be sent on, to this peer or another: not one is copied, and the buffer
    /// comes back when that peer has acknowledged both pieces.
    pub fn into_shared(self) -> (SharedBytes, SharedBytes) {
        let (first, second) = self.pieces();
        let memory = Memory::Owner(Arc::new(Whole(self)));
        let second = SharedBytes { memory: memory.clone(), start: second.0, length: second.1 };
        (SharedBytes { memory, start: first.0, length: first.1 }, second)
    }

    /// Where the two pieces begin, and how long they are.
    fn pieces(&self) -> ((usize, usize), (usize, usize)) {
        let first = self.length.min(self.buffer.len() - self.start);
        ((self.start, first), (0, self.length - first))
    }
}

impl fmt::Debug for ReceivedBuffer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "ReceivedBuffer({} bytes)", self.length)
    }
}

impl Drop for ReceivedBuffer {
    fn drop(&mut self) {
        let (flow, length) = (self.flow, self.length as u32);
        // There is a place for every buffer that is out. Without an engine nobody takes it back,
        // and it is freed.
        let buffer = std::mem::take(&mut self.buffer);
        let _ = self.home.way.try_send(Returned { flow, length, buffer });
        self.home.waiting.fetch_add(1, Ordering::Release);
    }
}

/// A received buffer with what lies beside the bytes: [`SharedBytes`] knows which part counts.
struct Whole(ReceivedBuffer);

impl AsRef<[u8]> for Whole {
    fn as_ref(&self) -> &[u8] {
        &self.0.buffer
    }
}

/// The way back to the engine, and how many are on it.
#[derive(Clone, Debug)]
struct Home {
    way: SyncSender<Returned>,
    waiting: Arc<AtomicUsize>,
}

/// The engine's side of the buffers that are out.
#[derive(Debug, Default)]
pub(crate) struct HandedOver {
    /// How many.
    pub out: usize,
    /// Made when it is first needed: who never takes a buffer pays nothing.
    home: Option<(Home, Receiver<Returned>)>,
}

impl HandedOver {
    fn home(&mut self) -> Home {
        let open = || {
            let (way, back) = sync_channel(ZERO_COPY_BUFFERS);
            (Home { way, waiting: Arc::default() }, back)
        };
        self.home.get_or_insert_with(open).0.clone()
    }

    /// Whether buffers wait to be taken back.
    pub fn has_returned(&self) -> bool {
        self.out > 0 && self.home.as_ref().is_some_and(|(home, _)| home.waiting.load(Ordering::Acquire) > 0)
    }

    fn take_back(&mut self) -> Option<Returned> {
        let (home, back) = self.home.as_ref()?;
        if home.waiting.load(Ordering::Acquire) == 0 {
            return None;
        }
        let returned = back.try_recv().ok()?;
        home.waiting.fetch_sub(1, Ordering::Relaxed);
        self.out = self.out.saturating_sub(1);
        Some(returned)
    }
}

impl Engine {
    /// Queues bytes for sending behind those queued before, without copying them. They are let go
    /// of when the peer has acknowledged them, or the flow is over.
    ///
    /// # Errors
    /// The bytes come back, all of them, if the flow does not send, or if [`ZERO_COPY_BYTES`] or
    /// [`ZERO_COPY_PIECES`] would be exceeded; in the latter case [`crate::EventKind::Writable`] tells
    /// when there is room again.
    pub fn send_zero_copy(&mut self, flow: FlowId, bytes: SharedBytes) -> Result<(), SharedBytes> {
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
        let outbox = self.flows.cold[index].outbox.get_or_insert_default();
        if flow.tx.len() + bytes.len() > ZERO_COPY_BYTES || outbox.pieces() >= ZERO_COPY_PIECES {
            flow.flags |= flag::WANTS_ROOM;
            return Err(bytes);
        }
        if !flow.has(flag::ZERO_COPY) {
            flow.flags |= flag::ZERO_COPY;
            outbox.begin(flow.tx.yield_storage());
        }
        flow.tx.count_elsewhere(bytes.len());
        outbox.lend(bytes);
        self.metrics.zero_copy_sends += 1;
        self.touch(index);
        Ok(())
    }

    /// [`Engine::send`] for a flow with an outbox.
    #[cold]
    pub(crate) fn send_behind_lent(&mut self, index: usize, data: &[u8]) -> usize {
        let flow = &mut self.flows.hot[index];
        let limit = flow.send_limit(self.send_buffer);
        let Some(outbox) = &mut self.flows.cold[index].outbox else { return 0 };
        let room = limit.saturating_sub(flow.tx.len());
        let room = if outbox.pieces() < ZERO_COPY_PIECES { room } else { 0 };
        let taken = outbox.copy(&mut self.pool, &data[..data.len().min(room)], limit);
        flow.tx.count_elsewhere(taken);
        if taken < data.len() {
            // There are bytes that will be acknowledged: that is when there is room.
            flow.flags |= flag::WANTS_ROOM;
        }
        if taken > 0 {
            self.touch(index);
        }
        taken
    }

    /// The first `bytes` of the queue are acknowledged; the ring was told.
    #[cold]
    pub(crate) fn let_go_of_lent(&mut self, index: usize, bytes: usize) {
        let flow = &mut self.flows.hot[index];
        let Some(outbox) = &mut self.flows.cold[index].outbox else { return };
        outbox.consume(&mut self.pool, bytes);
        if outbox.is_empty() {
            flow.flags &= !flag::ZERO_COPY;
        }
    }

    /// Nothing more is sent on the flow: buffers go back, lent ones to their owners.
    pub(crate) fn drop_unsent(&mut self, index: usize) {
        let flow = &mut self.flows.hot[index];
        flow.tx.release(&mut self.pool);
        flow.flags &= !flag::ZERO_COPY;
        if let Some(mut outbox) = self.flows.cold[index].outbox.take() {
            outbox.clear(&mut self.pool);
        }
    }

    /// Hands over what has arrived in order and was not consumed, in the buffer in which it lies.
    /// `None` if there is nothing, if [`ZERO_COPY_BUFFERS`] buffers are out, or if memory is short; then
    /// [`Engine::received`] still shows it.
    pub fn receive_zero_copy(&mut self, id: FlowId) -> Option<ReceivedBuffer> {
        let index = self.flows.index(id)?;
        let flow = &mut self.flows.hot[index];
        if flow.rx.is_empty() || self.handed_over.out >= ZERO_COPY_BUFFERS {
            return None;
        }
        let length = flow.rx.len();
        let (buffer, start) = if self.flows.cold[index].reassembly.is_none() {
            flow.rx.hand_over()
        } else {
            let buffer = flow.rx.copy_out(&mut self.pool)?;
            flow.rx.consume(length);
            (buffer, 0)
        };
        flow.held += length as u32;
        self.handed_over.out += 1;
        self.metrics.zero_copy_receives += 1;
        if matches!(flow.state, State::Closed | State::TimeWait) {
            self.finish_if_read(index);
        }
        Some(ReceivedBuffer { buffer, start, length, flow: id, home: self.handed_over.home() })
    }

    /// Takes back the buffers that the application has dropped, and lets the peers send as much
    /// again.
    #[cold]
    pub(crate) fn take_back(&mut self) {
        while let Some(Returned { flow, length, buffer }) = self.handed_over.take_back() {
            self.pool.give(buffer);
            if let Some(index) = self.flows.index(flow) {
                let flow = &mut self.flows.hot[index];
                flow.held = flow.held.saturating_sub(length);
                if !matches!(flow.state, State::Closed | State::TimeWait) {
                    self.reopen_window(index);
                }
            }
        }
    }

    /// Bytes of a flow that the application holds in buffers it was handed.
    pub fn held(&self, flow: FlowId) -> usize {
        self.flows.index(flow).map_or(0, |index| self.flows.hot[index].held as usize)
    }
}

/// The payload of a segment of a flow with an outbox: `length` bytes, `offset` bytes into the
/// queue.
///
/// # Panics
/// If there is no outbox: then the ring should have had the bytes.
#[cold]
pub(crate) fn payload<'a>(
    outbox: Option<&'a Outbox>,
    scratch: &'a mut Vec<u8>,
    offset: usize,
    length: usize,
) -> (&'a [u8], &'a [u8]) {
    let outbox = outbox.expect("bytes that are not in the ring are in the outbox");
    if length == 0 { (&[], &[]) } else { outbox.slices(offset, length, scratch) }
}
