//! Receive buffers that the application holds, and their way back to the engine.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use super::shared_bytes::SharedBytes;
use crate::limits::ZERO_COPY_BUFFERS;
use crate::tcp::flow::id::FlowId;

/// A buffer that was dropped by the application.
#[derive(Debug)]
pub(crate) struct Returned {
    pub(crate) flow: FlowId,
    pub(crate) length: u32,
    pub(crate) buffer: Box<[u8]>,
}

/// Received bytes in the buffer into which the engine put them. Dropping it returns the buffer to
/// the engine, and the peer may send as many bytes again. Drop it in the thread that drives the
/// engine: otherwise the engine sees it only in its next iteration.
pub struct ReceivedBuffer {
    pub(crate) buffer: Box<[u8]>,
    pub(crate) start: usize,
    pub(crate) length: usize,
    pub(crate) flow: FlowId,
    pub(crate) home: ReturnChannel,
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

    /// The same bytes for sending, to this peer or another: nothing is copied. The buffer returns
    /// to the engine when that peer has acknowledged both pieces.
    pub fn into_shared(self) -> (SharedBytes, SharedBytes) {
        let (first, second) = self.pieces();
        let whole = SharedBytes::shared(Arc::new(Whole(self)));
        (whole.slice(first.0, first.1), whole.slice(second.0, second.1))
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
        // The channel has room for every buffer that is out. Without an engine the send fails and
        // the buffer is freed.
        let buffer = std::mem::take(&mut self.buffer);
        let _ = self.home.way.try_send(Returned { flow, length, buffer });
        self.home.waiting.fetch_add(1, Ordering::Release);
    }
}

/// The whole buffer, of which [`SharedBytes`] covers the received part.
struct Whole(ReceivedBuffer);

impl AsRef<[u8]> for Whole {
    fn as_ref(&self) -> &[u8] {
        &self.0.buffer
    }
}

/// The channel back to the engine, and how many buffers are in it.
#[derive(Clone, Debug)]
pub(crate) struct ReturnChannel {
    pub(crate) way: SyncSender<Returned>,
    pub(crate) waiting: Arc<AtomicUsize>,
}

/// The engine's side of the buffers that are out.
#[derive(Debug, Default)]
pub(crate) struct ReceivedBuffers {
    /// How many.
    pub out: usize,
    /// Created with the first buffer that is taken.
    pub(crate) home: Option<(ReturnChannel, Receiver<Returned>)>,
}

impl ReceivedBuffers {
    pub(crate) fn return_channel(&mut self) -> ReturnChannel {
        let open = || {
            let (way, back) = sync_channel(ZERO_COPY_BUFFERS);
            (ReturnChannel { way, waiting: Arc::default() }, back)
        };
        self.home.get_or_insert_with(open).0.clone()
    }

    /// Whether buffers wait to be reclaimed.
    pub(crate) fn has_returned(&self) -> bool {
        self.out > 0 && self.home.as_ref().is_some_and(|(home, _)| home.waiting.load(Ordering::Acquire) > 0)
    }

    pub(crate) fn take_returned(&mut self) -> Option<Returned> {
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
