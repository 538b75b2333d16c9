//! What a flow has to send when some of it is shared: pieces in the order in which they were
//! queued.
//!
//! 1. Positions count bytes from the creation of the queue. A piece knows the position of its first
//!    byte, so the piece at a position is found by bisection.
//! 2. Copied bytes are contiguous in a ring of their own. A copied piece knows where in that ring
//!    it begins; adjacent copies are one piece.
//! 3. Acknowledged bytes leave at the front. A shared piece is dropped when its last byte is
//!    acknowledged.

use std::collections::VecDeque;

use super::shared_bytes::SharedBytes;
use crate::tcp::buffers::{Pool, Ring};

/// Consecutive bytes that are either copied or shared.
#[derive(Debug)]
struct Piece {
    /// Position of the first.
    start: u64,
    length: usize,
    body: Body,
}

#[derive(Debug)]
enum Body {
    /// Where among all copied bytes the piece begins.
    Copied(u64),
    SharedBytes(SharedBytes),
}

/// The queue of a flow that sends shared bytes.
#[derive(Debug, Default)]
pub(crate) struct SendQueue {
    pieces: VecDeque<Piece>,
    /// Position of the first byte that is not acknowledged, and behind the last.
    base: u64,
    end: u64,
    /// Copied bytes, of which `consumed` are acknowledged.
    copied: Ring,
    consumed: u64,
}

impl SendQueue {
    /// How many pieces there are.
    pub(crate) fn pieces(&self) -> usize {
        self.pieces.len()
    }

    /// Whether everything is acknowledged.
    pub(crate) fn is_empty(&self) -> bool {
        self.base == self.end
    }

    /// Starts with what the flow had to send before. The queue is empty.
    pub(crate) fn begin(&mut self, ring: Ring) {
        debug_assert!(self.is_empty(), "a flow with an send_queue has nothing in its ring");
        self.consumed = 0;
        if !ring.is_empty() {
            self.push(ring.len(), Body::Copied(0));
        }
        self.copied = ring;
    }

    fn push(&mut self, length: usize, body: Body) {
        self.pieces.push_back(Piece { start: self.end, length, body });
        self.end += length as u64;
    }

    /// Appends shared bytes.
    pub(crate) fn share(&mut self, bytes: SharedBytes) {
        self.push(bytes.len(), Body::SharedBytes(bytes));
    }

    /// Appends a copy of as many bytes as memory allows; the ring never becomes larger than `most`.
    /// Returns how many.
    pub(crate) fn copy(&mut self, pool: &mut Pool, data: &[u8], most: usize) -> usize {
        let room = self.copied.make_room(pool, data.len(), most);
        let taken = data.len().min(room);
        if taken == 0 {
            return 0;
        }
        let place = self.consumed + self.copied.len() as u64;
        self.copied.write_at(self.copied.len(), &data[..taken]);
        self.copied.extend(taken);
        match self.pieces.back_mut() {
            Some(last) if matches!(last.body, Body::Copied(_)) => {
                last.length += taken;
                self.end += taken as u64;
            }
            _ => self.push(taken, Body::Copied(place)),
        }
        taken
    }

    /// The first `bytes` are acknowledged.
    pub(crate) fn consume(&mut self, pool: &mut Pool, bytes: usize) {
        self.base = (self.base + bytes as u64).min(self.end);
        while let Some(first) = self.pieces.front() {
            let within = self.base.saturating_sub(first.start).min(first.length as u64);
            if let Body::Copied(place) = first.body {
                let consumed = (place + within).saturating_sub(self.consumed);
                self.copied.consume(consumed as usize);
                self.consumed += consumed;
            }
            if within < first.length as u64 {
                break;
            }
            self.pieces.pop_front();
        }
        if self.copied.is_empty() {
            self.copied.release(pool);
        }
    }

    /// Drops everything.
    pub(crate) fn clear(&mut self, pool: &mut Pool) {
        self.pieces.clear();
        self.copied.release(pool);
        self.base = self.end;
    }

    /// `length` bytes, `offset` bytes behind the first that is not acknowledged: where they are if
    /// they are together, else in `scratch`.
    ///
    /// # Panics
    /// If there are fewer bytes.
    pub(crate) fn slices<'a>(
        &'a self,
        offset: usize,
        length: usize,
        scratch: &'a mut Vec<u8>,
    ) -> (&'a [u8], &'a [u8]) {
        let mut position = self.base + offset as u64;
        assert!(position + length as u64 <= self.end, "the segment is within the queue");
        let mut index = self.pieces.partition_point(|piece| piece.start <= position) - 1;
        let (first, second) = self.part(index, position, length);
        if first.len() + second.len() == length {
            return (first, second);
        }
        scratch.clear();
        while scratch.len() < length {
            let piece = &self.pieces[index];
            let wanted =
                (length - scratch.len()).min((piece.start + piece.length as u64 - position) as usize);
            let (first, second) = self.part(index, position, wanted);
            let filled = scratch.len() + wanted;
            scratch.extend_from_slice(first);
            scratch.extend_from_slice(second);
            // An owner that has fewer bytes than it shared sends zeros in their place: the peer
            // gets a wrong stream, and the engine stays correct.
            scratch.resize(filled, 0);
            position += wanted as u64;
            index += 1;
        }
        (scratch, &[])
    }

    /// At most `length` bytes from `position` on, as far as the piece `index` goes.
    fn part(&self, index: usize, position: u64, length: usize) -> (&[u8], &[u8]) {
        let piece = &self.pieces[index];
        let within = (position - piece.start) as usize;
        let length = length.min(piece.length - within);
        match &piece.body {
            Body::Copied(place) => {
                self.copied.slices_at((place + within as u64 - self.consumed) as usize, length)
            }
            Body::SharedBytes(bytes) => (bytes.bytes(within, length), &[]),
        }
    }
}

/// The payload of a segment of a flow with a send queue: `length` bytes, `offset` bytes into the
/// queue.
///
/// # Panics
/// If there is no send queue: then the ring should have had the bytes.
#[cold]
pub(crate) fn payload<'a>(
    send_queue: Option<&'a SendQueue>,
    scratch: &'a mut Vec<u8>,
    offset: usize,
    length: usize,
) -> (&'a [u8], &'a [u8]) {
    let send_queue = send_queue.expect("bytes that are not in the ring are in the send_queue");
    if length == 0 { (&[], &[]) } else { send_queue.slices(offset, length, scratch) }
}
