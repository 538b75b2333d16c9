//! A volume's device: which piece of whose request each of its requests is, buffers, and flushes.

use std::io;

use sietch_disk::broker::layout;
use sietch_disk::{BLOCK, Buffer, DiskQueue, Operation, Priority, SubmitError};

use super::area::Area;
use super::limits::{BYTES, LEAST_SHARE, SPARE_BUFFERS};

/// The token of a flush.
pub(super) const FLUSHES: u64 = u64::MAX;

/// A part of a request that is at the device.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    /// The area's place.
    pub area: usize,
    pub request: u32,
    /// Bytes that it moves, and where in the application's data region they are or go.
    pub length: u32,
    pub data: u32,
    pub read: bool,
}

/// How far a request came.
pub(super) enum Issue {
    /// All of it is at the device, or it is done.
    All,
    /// Some more of it is.
    Some,
    /// Nothing more of it: there is no room.
    None,
}

/// Private buffers by size.
#[derive(Default)]
pub(super) struct Buffers {
    /// Of 1, 2, 4, ... blocks.
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

    pub(super) fn give(&mut self, buffer: Buffer) {
        let class = Self::class(buffer.len());
        if self.spare.len() <= class {
            self.spare.resize_with(class + 1, Vec::new);
        }
        if self.spare[class].len() < SPARE_BUFFERS {
            self.spare[class].push(buffer);
        }
    }
}

/// See the module.
pub(super) struct Volume<D> {
    pub(super) name: String,
    pub(super) queue: D,
    /// Areas that are served.
    pub(super) areas: usize,
    /// Its queue failed: nothing is asked of it any more.
    pub(super) broken: bool,
    pub(super) buffers: Buffers,
    pieces: Vec<Option<Piece>>,
    spare: Vec<u32>,
    /// Who waits for the next flush (place and request), and for that under way.
    wanted: Vec<(usize, u32)>,
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
            wanted: Vec::new(),
            flushing: Vec::new(),
        }
    }

    /// Pieces that one area may have here. One place of the queue is the flush's.
    fn share(&self) -> usize {
        ((self.queue.depth() - 1) / self.areas.max(1)).max(LEAST_SHARE)
    }

    /// Hands pieces of the request number `request` of `area` to the device.
    pub(super) fn issue(&mut self, area: &mut Area, place: usize, request: u32) -> Issue {
        let share = self.share();
        let mut issued = Issue::None;
        loop {
            let Some(next) = area.next(request) else { return Issue::All };
            let alone = area.under_way == 0;
            if next.operation == layout::DISCARD && area.credit <= 0 {
                // The rest in later turns.
                return Issue::Some;
            }
            let full = area.under_way as usize >= share || area.bytes + u64::from(next.length) > BYTES;
            if (full && !alone) || self.queue.in_flight() + 1 >= self.queue.depth() {
                return issued;
            }
            let Some(number) = self.spare.pop() else { return issued };
            let piece = Piece {
                area: place,
                request,
                length: next.length,
                data: next.data,
                read: next.operation == layout::READ,
            };
            let length = next.length as usize;
            let operation = match next.operation {
                layout::DISCARD => Operation::Discard { offset: next.place, length: next.span },
                layout::READ => {
                    Operation::Read { offset: next.place, length, buffer: self.buffers.take(length) }
                }
                _ => {
                    let mut buffer = self.buffers.take(length);
                    if !area.host.read(next.data, &mut buffer[..length]) {
                        // Judged before, and the region does not change: not reached.
                        buffer[..length].fill(0);
                    }
                    Operation::Write { offset: next.place, length, buffer, durable: next.durable }
                }
            };
            match self.queue.submit_with(u64::from(number), operation, next.priority) {
                Ok(()) => {
                    self.pieces[number as usize] = Some(piece);
                    area.issued(request, &next);
                    issued = Issue::Some;
                }
                Err(SubmitError::Full(operation) | SubmitError::OutOfRange(operation)) => {
                    // The map lies inside the volume and there is room: only a broken queue comes
                    // here.
                    self.spare.push(number);
                    if let Some(buffer) = operation.into_buffers().0 {
                        self.buffers.give(buffer);
                    }
                    area.fail(request, rustix::io::Errno::IO.raw_os_error());
                }
            }
        }
    }

    /// The piece behind a completion.
    pub(super) fn finish(&mut self, token: u64) -> Option<Piece> {
        let number = u32::try_from(token).ok()?;
        let piece = self.pieces.get_mut(number as usize)?.take()?;
        self.spare.push(number);
        Some(piece)
    }

    /// Somebody waits for a flush that begins from now on.
    pub(super) fn want_flush(&mut self, place: usize, request: u32) {
        self.wanted.push((place, request));
    }

    /// Begins a flush, if somebody waits for one and none is under way.
    pub(super) fn start_flush(&mut self) {
        if self.wanted.is_empty() || !self.flushing.is_empty() {
            return;
        }
        if self.queue.submit_with(FLUSHES, Operation::Flush, Priority::Latency).is_ok() {
            std::mem::swap(&mut self.wanted, &mut self.flushing);
        }
    }

    /// Those who waited for the flush that is done.
    pub(super) fn flushed(&mut self) -> Vec<(usize, u32)> {
        std::mem::take(&mut self.flushing)
    }
}

/// The error number of an error.
pub(super) fn number(error: &io::Error) -> i32 {
    let other = match error.kind() {
        io::ErrorKind::Unsupported => rustix::io::Errno::OPNOTSUPP,
        _ => rustix::io::Errno::IO,
    };
    error.raw_os_error().unwrap_or(other.raw_os_error())
}
