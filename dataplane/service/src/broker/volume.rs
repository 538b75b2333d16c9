//! A volume's device: which piece each of its operations is, private buffers, and shared flushes.
//!
//! 1. Each area has a share of the queue's depth, and a limit of bytes at the device. An area with
//!    nothing in flight may always submit one piece.
//! 2. A write is copied into a private buffer before it is submitted. So the application cannot
//!    change it afterwards. A read completes into a private buffer as well.
//! 3. One flush is in flight at a time, and answers all requests that waited when it began. A
//!    request that comes during a flush waits for the next one.
//! 4. A token of the queue names a piece. A completion with an unknown token is ignored.

use std::io;

use sietch_disk::broker::layout;
use sietch_disk::{BLOCK, Buffer, DiskQueue, Operation, Priority, SubmitError};

use super::area::Area;
use super::limits::{BYTES, LEAST_SHARE, SPARE_BUFFERS};
use super::piece::Piece;

/// The token of a flush.
pub(super) const FLUSHES: u64 = u64::MAX;

/// How much of a request was submitted.
pub(super) enum Issue {
    /// All of it, or it is done.
    All,
    /// Some more of it.
    Some,
    /// No more of it: the queue or the area's share is full.
    None,
}

/// Private buffers by size.
#[derive(Default)]
pub(super) struct Buffers {
    /// By size class: 1, 2, 4, ... blocks.
    spare: Vec<Vec<Buffer>>,
}

impl Buffers {
    fn class(length: usize) -> usize {
        length.div_ceil(BLOCK).next_power_of_two().trailing_zeros() as usize
    }

    fn take(&mut self, length: usize) -> Buffer {
        let class = Self::class(length);
        let spare = self.spare.get_mut(class).and_then(Vec::pop);
        spare.unwrap_or_else(|| Buffer::new(BLOCK << class))
    }

    pub(super) fn recycle(&mut self, buffer: Buffer) {
        let class = Self::class(buffer.len());
        if self.spare.len() <= class {
            self.spare.resize_with(class + 1, Vec::new);
        }
        if self.spare[class].len() < SPARE_BUFFERS {
            self.spare[class].push(buffer);
        }
    }
}

/// A volume and its queue.
pub(super) struct Volume<D> {
    pub(super) name: String,
    pub(super) queue: D,
    /// The number of its areas that are served.
    pub(super) areas: usize,
    /// Its queue failed: nothing more is submitted to it.
    pub(super) broken: bool,
    pub(super) buffers: Buffers,
    pieces: Vec<Option<Piece>>,
    spare: Vec<u32>,
    /// Requests (area and number) that the next flush answers, and those that the current one does.
    waiting: Vec<(usize, u32)>,
    flushing: Vec<(usize, u32)>,
}

impl<D: DiskQueue> Volume<D> {
    pub(super) fn new(name: &str, queue: D) -> Self {
        // Bounded by the queue's own limit.
        let depth = queue.depth() as u32;
        Self {
            name: name.to_owned(),
            queue,
            areas: 0,
            broken: false,
            buffers: Buffers::default(),
            pieces: (0..depth).map(|_| None).collect(),
            spare: (0..depth).rev().collect(),
            waiting: Vec::new(),
            flushing: Vec::new(),
        }
    }

    /// Returns the number of pieces that one area may have in flight. One entry of the queue is
    /// kept for the flush.
    fn share(&self) -> usize {
        ((self.queue.depth() - 1) / self.areas.max(1)).max(LEAST_SHARE)
    }

    /// Submits pieces of the request number `request` of `area` to the device.
    pub(super) fn issue(&mut self, area: &mut Area, index: usize, request: u32) -> Issue {
        let share = self.share();
        let mut issued = Issue::None;
        loop {
            let Some(next) = area.next_piece(request) else { return Issue::All };
            let alone = area.in_flight == 0;
            if next.operation == layout::DISCARD && area.credit <= 0 {
                // The rest follows in later iterations.
                return Issue::Some;
            }
            let full = area.in_flight as usize >= share || area.bytes + u64::from(next.length) > BYTES;
            if (full && !alone) || self.queue.in_flight() + 1 >= self.queue.depth() {
                return issued;
            }
            let Some(number) = self.spare.pop() else { return issued };
            let piece = Piece {
                area: index,
                request,
                length: next.length,
                data: next.data,
                is_read: next.operation == layout::READ,
            };
            let length = next.length as usize;
            let operation = match next.operation {
                layout::DISCARD => Operation::Discard { offset: next.offset, length: next.span },
                layout::READ => {
                    Operation::Read { offset: next.offset, length, buffer: self.buffers.take(length) }
                }
                _ => {
                    let mut buffer = self.buffers.take(length);
                    if !area.host.read(next.data, &mut buffer[..length]) {
                        // Not reached: the range was judged, and the region does not change.
                        buffer[..length].fill(0);
                    }
                    Operation::Write { offset: next.offset, length, buffer, durable: next.durable }
                }
            };
            match self.queue.submit_with(u64::from(number), operation, next.priority) {
                Ok(()) => {
                    self.pieces[number as usize] = Some(piece);
                    area.issued(request, &next);
                    issued = Issue::Some;
                }
                Err(SubmitError::Full(operation) | SubmitError::OutOfRange(operation)) => {
                    // The map is inside the volume and the queue has room: only a broken queue
                    // refuses.
                    self.spare.push(number);
                    if let Some(buffer) = operation.into_buffers().0 {
                        self.buffers.recycle(buffer);
                    }
                    area.fail(request, rustix::io::Errno::IO.raw_os_error());
                }
            }
        }
    }

    /// Returns the piece of a completion.
    pub(super) fn finish(&mut self, token: u64) -> Option<Piece> {
        let number = u32::try_from(token).ok()?;
        let piece = self.pieces.get_mut(number as usize)?.take()?;
        self.spare.push(number);
        Some(piece)
    }

    /// Has a request answered by the next flush that begins.
    pub(super) fn request_flush(&mut self, area: usize, request: u32) {
        self.waiting.push((area, request));
    }

    /// Begins a flush, if a request waits for one and none is in flight.
    pub(super) fn start_flush(&mut self) {
        if self.waiting.is_empty() || !self.flushing.is_empty() {
            return;
        }
        if self.queue.submit_with(FLUSHES, Operation::Flush, Priority::Latency).is_ok() {
            std::mem::swap(&mut self.waiting, &mut self.flushing);
        }
    }

    /// Returns the requests that the completed flush answers.
    pub(super) fn flushed(&mut self) -> Vec<(usize, u32)> {
        std::mem::take(&mut self.flushing)
    }
}

/// Returns the error number of an I/O error.
pub(super) fn error_number(error: &io::Error) -> i32 {
    let other = match error.kind() {
        io::ErrorKind::Unsupported => rustix::io::Errno::OPNOTSUPP,
        _ => rustix::io::Errno::IO,
    };
    error.raw_os_error().unwrap_or(other.raw_os_error())
}
