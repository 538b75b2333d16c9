//! An area that is served: its application's rings, its extents, and its requests in flight.
//!
//! 1. [`judge`] checks a copy of a submission: operation, flags, alignment, the range in the area,
//!    and the range in the data region. A bad submission is answered with an error at once.
//! 2. An admitted request is split into pieces, one for each extent that it touches. The volume
//!    submits them (`volume`).
//! 3. The request is answered when its last piece has completed; the first error of a piece is the
//!    request's.
//! 4. Each request takes from the area's credit, so that one area cannot take the whole iteration.
//! 5. New extents replace the map only when no piece is in flight, so that no piece reaches blocks
//!    that the area has lost.
//!
//! The application can write every word of its memory at any time. It never makes the broker read
//! or write outside of the area's extents and data region.

use sietch_disk::broker::layout::{self, DISCARD, DURABLE, FLUSH, MAX_PIECE, READ, WRITE};
use sietch_disk::broker::{BrokerHost, Submission};
use sietch_disk::{BLOCK, Buffer, Priority};

use super::extents::Map;
use super::id::AreaId;
use super::limits::{BATCH, DISCARD_SLICE, REQUEST_COST};
use super::metrics::{AreaCounters, Refusal};
use super::piece::{NextPiece, Piece};

/// A request that was admitted.
#[derive(Clone, Copy, Debug)]
struct Request {
    token: u64,
    operation: u8,
    durable: bool,
    priority: Priority,
    offset: u64,
    length: u64,
    data: u32,
    /// Bytes that were submitted, and pieces at the device.
    issued: u64,
    in_flight: u32,
    error: i32,
}

/// See the module.
pub(super) struct Area {
    pub(super) id: AreaId,
    pub(super) volume: usize,
    pub(super) map: Map,
    /// The map that replaces it when no piece is in flight.
    pub(super) next_map: Option<Map>,
    pub(super) host: BrokerHost,
    /// The request that is being submitted.
    pub(super) head: Option<u32>,
    /// Pieces at the device, and flushes that were not yet answered.
    pub(super) in_flight: u32,
    /// Bytes at the device.
    pub(super) bytes: u64,
    pub(super) credit: i64,
    /// No more requests are taken.
    pub(super) leaving: bool,
    requests: Vec<Option<Request>>,
    spare: Vec<u32>,
    counters: AreaCounters,
}

/// Checks whether a submission is valid in an area with this map. `holds` says whether a range is
/// inside the data region.
pub(super) fn judge(
    submission: &Submission,
    map: &Map,
    block: usize,
    holds: impl FnOnce(u32, usize) -> bool,
) -> Result<(), Refusal> {
    let Submission { offset, operation, flags, .. } = *submission;
    let flags_known = flags & !DURABLE == 0 && (flags == 0 || operation == WRITE);
    if !flags_known || !matches!(operation, READ | WRITE | FLUSH | DISCARD) {
        return Err(Refusal::Operation);
    }
    if operation == FLUSH {
        return Ok(());
    }
    let length = bytes_of(submission);
    let block = block as u64;
    let longest = if operation == DISCARD { u64::MAX } else { MAX_PIECE as u64 };
    if length == 0 || length > longest || !length.is_multiple_of(block) || !offset.is_multiple_of(block) {
        return Err(Refusal::Alignment);
    }
    if !map.holds(offset, length) {
        return Err(Refusal::Range);
    }
    // At most MAX_PIECE where it matters.
    if operation != DISCARD && !holds(submission.data, length as usize) {
        return Err(Refusal::Data);
    }
    Ok(())
}

/// Returns the number of bytes of the area that a submission names.
fn bytes_of(submission: &Submission) -> u64 {
    match submission.operation {
        DISCARD => u64::from(submission.data) << 32 | u64::from(submission.length),
        FLUSH => 0,
        _ => u64::from(submission.length),
    }
}

impl Area {
    pub(super) fn new(id: AreaId, volume: usize, map: Map, host: BrokerHost) -> Self {
        let slots = host.layout().slots;
        Self {
            id,
            volume,
            map,
            next_map: None,
            host,
            head: None,
            in_flight: 0,
            bytes: 0,
            credit: 0,
            leaving: false,
            requests: (0..slots).map(|_| None).collect(),
            spare: (0..slots).rev().collect(),
            counters: AreaCounters::default(),
        }
    }

    pub(super) fn counters(&self) -> AreaCounters {
        AreaCounters {
            notifications: self.host.notifications(),
            violations: self.host.violations(),
            in_flight: self.in_flight.into(),
            ..self.counters
        }
    }

    /// Checks a submission. Returns the number of the new request, or answers the submission.
    pub(super) fn admit(&mut self, submission: &Submission, block: usize) -> Option<u32> {
        let host = &self.host;
        let judged = judge(submission, &self.map, block, |data, length| host.holds(data, length));
        let length = bytes_of(submission);
        let moved = if submission.operation == DISCARD { 0 } else { i64::from(submission.length) };
        self.credit -= REQUEST_COST + if judged.is_ok() { moved } else { 0 };
        if let Err(refusal) = judged {
            self.counters.refused[refusal as usize] += 1;
            self.host.complete(submission.token, refusal.error());
            return None;
        }
        match submission.operation {
            READ => {
                self.counters.reads += 1;
                self.counters.read_bytes += length;
            }
            WRITE => {
                self.counters.writes += 1;
                self.counters.written_bytes += length;
            }
            FLUSH => self.counters.flushes += 1,
            _ => self.counters.discards += 1,
        }
        // There are as many numbers as the completion ring has entries, so one is free. A host that
        // counts wrongly gets EBUSY.
        let Some(number) = self.spare.pop() else {
            self.host.complete(submission.token, rustix::io::Errno::BUSY.raw_os_error());
            return None;
        };
        let flush = submission.operation == FLUSH;
        self.requests[number as usize] = Some(Request {
            token: submission.token,
            operation: submission.operation,
            durable: submission.flags & DURABLE != 0,
            priority: match submission.priority {
                0 => Priority::Latency,
                1 => Priority::Throughput,
                _ => Priority::Bulk,
            },
            offset: submission.offset,
            length,
            data: submission.data,
            issued: 0,
            in_flight: u32::from(flush),
            error: 0,
        });
        self.in_flight += u32::from(flush);
        Some(number)
    }

    fn request(&mut self, number: u32) -> Option<&mut Request> {
        self.requests.get_mut(number as usize).and_then(Option::as_mut)
    }

    /// Returns the next piece of a request, if a part of it is not yet submitted.
    pub(super) fn next_piece(&mut self, number: u32) -> Option<NextPiece> {
        let request = self.requests.get(number as usize).copied().flatten()?;
        let left = request.length - request.issued;
        if left == 0 || request.error != 0 {
            return None;
        }
        let discard = request.operation == DISCARD;
        let most = if discard { left.min(DISCARD_SLICE) } else { left };
        let span = self.map.locate(request.offset + request.issued, most);
        let Some(span) = span else {
            // Not reached: it was inside when it was judged, and the map does not shrink under it.
            self.fail(number, Refusal::Range.error());
            return None;
        };
        Some(NextPiece {
            operation: request.operation,
            durable: request.durable,
            priority: request.priority,
            offset: span.start,
            span: span.length,
            // At most MAX_PIECE for a read or write, and DISCARD_SLICE for a discard.
            length: span.length as u32,
            data: if discard { 0 } else { request.data + request.issued as u32 },
        })
    }

    /// Records that a piece was submitted.
    pub(super) fn issued(&mut self, number: u32, next: &NextPiece) {
        self.in_flight += 1;
        self.bytes += u64::from(next.length);
        if next.operation == DISCARD {
            // A discard may be as long as the area, so each slice is paid for when it is submitted.
            self.credit -= i64::from(next.length);
        }
        if let Some(request) = self.request(number) {
            request.issued += next.span;
            request.in_flight += 1;
        }
    }

    /// Records that a piece is done.
    pub(super) fn completed(&mut self, piece: &Piece, buffer: Option<&Buffer>, error: i32) {
        self.in_flight -= 1;
        self.bytes -= u64::from(piece.length);
        if error == 0
            && piece.is_read
            && let Some(buffer) = buffer
        {
            // The device filled all of it: no stale bytes of the buffer are copied.
            let _ = self.host.write(piece.data, &buffer[..piece.length as usize]);
        }
        if let Some(request) = self.request(piece.request) {
            request.in_flight -= 1;
            if request.error == 0 {
                request.error = error;
            }
        }
        self.finish(piece.request);
    }

    /// Records that a flush is done.
    pub(super) fn flushed(&mut self, number: u32, error: i32) {
        self.in_flight -= 1;
        if let Some(request) = self.request(number) {
            request.in_flight = 0;
            request.error = error;
        }
        self.finish(number);
    }

    /// Fails a request; no more of it is submitted.
    pub(super) fn fail(&mut self, number: u32, error: i32) {
        if let Some(request) = self.request(number) {
            request.error = error;
        }
        self.finish(number);
    }

    /// Cancels the part of the current request that was not yet submitted.
    pub(super) fn cancel_head(&mut self) {
        if let Some(number) = self.head.take() {
            self.counters.cancelled += 1;
            self.fail(number, rustix::io::Errno::CANCELED.raw_os_error());
        }
    }

    /// Answers a request if all of it is done, or it has failed.
    fn finish(&mut self, number: u32) {
        let done = |request: &mut Request| {
            request.in_flight == 0 && (request.issued == request.length || request.error != 0)
        };
        let Some(request) = self.requests.get_mut(number as usize).and_then(|slot| slot.take_if(done)) else {
            return;
        };
        if self.head == Some(number) {
            self.head = None;
        }
        self.spare.push(number);
        self.counters.failed += u64::from(request.error != 0);
        self.host.complete(request.token, request.error);
    }

    /// Fails all requests, because the device is broken. Pieces in flight stay counted for good:
    /// they may still reach the device.
    pub(super) fn abandon(&mut self) {
        // At least one, so that the area is never released.
        self.in_flight += 1;
        self.head = None;
        for request in self.requests.iter_mut().filter_map(Option::take) {
            self.counters.failed += 1;
            self.host.complete(request.token, rustix::io::Errno::IO.raw_os_error());
        }
    }

    /// Answers the requests to a broken device with EIO. Returns whether there were any.
    pub(super) fn refuse_all(&mut self) -> bool {
        let mut any = false;
        for _ in 0..BATCH {
            let Some(submission) = self.host.take() else { break };
            any = true;
            self.counters.failed += 1;
            self.host.complete(submission.token, rustix::io::Errno::IO.raw_os_error());
        }
        any
    }
}

const _: () = assert!(layout::MAX_PIECE.is_multiple_of(BLOCK));
