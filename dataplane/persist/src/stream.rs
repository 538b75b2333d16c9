//! A chain of segments under construction: the log, or a snapshot.
//!
//! 1. [`Stream::append`] copies a payload into the open batch as one record, or as several
//!    fragments where it does not fit. A batch is one write. It starts on a block boundary and is
//!    padded with zeros to the next, so that a committed block is never written again.
//! 2. A batch is sealed when it is full or when the log is about to write it. Sealed batches wait
//!    in order; batches in flight may complete in any order; [`Stream::written`] advances only over
//!    the contiguous prefix.
//! 3. The last block of a segment is kept for the link that names the next segment. A link takes a
//!    sequence number like any record: nothing behind it counts as written before the link is.

use std::collections::VecDeque;

use sietch_disk::{BLOCK, Buffer, Operation};

use crate::layout::{
    ALIGN, FLAG_FIRST, FLAG_LAST, HEADER, KIND_LINK, KIND_LOG, Parts, RecordLocation, Run, Superblock, Tag,
    record_size, seed, stream_epoch, write_record,
};
use crate::limits::BATCH;
use crate::space::Space;

/// Batch buffers kept for reuse at most: those in flight and a few that wait. More exist only while
/// a record larger than this is appended.
const POOLED: usize = 16;

/// Batch buffers of one size, recycled.
pub(crate) struct Pool {
    spare: Vec<Buffer>,
    bytes: usize,
}

impl Pool {
    /// Buffers for batches of at most `batch` bytes and one block more for a link.
    pub(crate) fn new(batch: usize) -> Self {
        Self { spare: Vec::with_capacity(POOLED), bytes: batch + BLOCK }
    }

    fn take(&mut self) -> Buffer {
        self.spare.pop().unwrap_or_else(|| Buffer::new(self.bytes))
    }

    pub(crate) fn recycle(&mut self, buffer: Option<Buffer>) {
        if let Some(buffer) = buffer
            && self.spare.len() < POOLED
            && buffer.len() == self.bytes
        {
            self.spare.push(buffer);
        }
    }
}

/// Bytes of a batch at most, in an area with this layout.
pub(crate) fn batch_bytes(superblock: &Superblock) -> usize {
    BATCH.min((superblock.segment_bytes - superblock.block) as usize)
}

struct Batch {
    buffer: Buffer,
    /// Area offset of its first byte.
    base: u64,
    /// Bytes filled; whole blocks once sealed.
    length: usize,
    /// Sequence of its last record.
    last: u64,
}

struct Flight {
    base: u64,
    last: u64,
    done: bool,
}

/// How the area is divided, and the seed of its checksums.
#[derive(Clone, Copy)]
struct Layout {
    segment_bytes: u64,
    block: usize,
    batch: usize,
    seed: u32,
}

/// See the module's account.
pub(crate) struct Stream {
    kind: u8,
    id: u64,
    layout: Layout,
    /// Sequence of the next record.
    next: u64,
    /// Every record up to this sequence has been written (durably, if its write was durable).
    written: u64,
    start: u64,
    /// Area offset of the next batch.
    offset: u64,
    open: Option<Batch>,
    sealed: VecDeque<Batch>,
    queued: usize,
    flights: VecDeque<Flight>,
    first_ticket: u64,
    /// All segments, oldest first.
    segments: VecDeque<u32>,
    /// Of the log: some of the positions at which payloads begin, oldest first, to read from and to
    /// truncate at.
    sparse_index: VecDeque<Run>,
    /// Where the last payload begins.
    placed: RecordLocation,
}

impl Stream {
    /// A stream whose first record gets sequence `first` and goes to the start of `segment`.
    pub(crate) fn new(superblock: &Superblock, kind: u8, id: u64, first: u64, segment: u32) -> Self {
        let start = superblock.segment_start(segment);
        Self {
            kind,
            id,
            layout: Layout {
                segment_bytes: u64::from(superblock.segment_bytes),
                block: superblock.block as usize,
                batch: batch_bytes(superblock),
                seed: seed(superblock.identity),
            },
            next: first,
            written: first - 1,
            start,
            offset: start,
            open: None,
            sealed: VecDeque::new(),
            queued: 0,
            flights: VecDeque::new(),
            first_ticket: 0,
            segments: VecDeque::from([segment]),
            sparse_index: VecDeque::new(),
            placed: RecordLocation { stream: id, sequence: 0, segment, position: 0 },
        }
    }

    /// Continues in `segment`, as a new run of the same sequence.
    pub(crate) fn go_on(&mut self, superblock: &Superblock, id: u64, segment: u32) {
        let mut fresh = Self::new(superblock, self.kind, id, self.next, segment);
        fresh.segments = std::mem::take(&mut self.segments);
        fresh.segments.push_back(segment);
        fresh.sparse_index = std::mem::take(&mut self.sparse_index);
        *self = fresh;
    }

    /// Where the payload begins that was appended last.
    pub(crate) fn placed(&self) -> RecordLocation {
        self.placed
    }

    pub(crate) fn sparse_index(&self) -> &VecDeque<Run> {
        &self.sparse_index
    }

    pub(crate) fn sparse_index_mut(&mut self) -> &mut VecDeque<Run> {
        &mut self.sparse_index
    }

    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    pub(crate) fn written(&self) -> u64 {
        self.written
    }

    /// Bytes appended and not passed to the device.
    pub(crate) fn queued(&self) -> usize {
        self.queued
    }

    /// Writes that the device holds.
    pub(crate) fn in_flight(&self) -> usize {
        self.flights.len()
    }

    /// Whether nothing waits and nothing is in flight.
    pub(crate) fn is_idle(&self) -> bool {
        self.queued == 0 && self.flights.is_empty()
    }

    pub(crate) fn segments(&self) -> &VecDeque<u32> {
        &self.segments
    }

    pub(crate) fn segments_mut(&mut self) -> &mut VecDeque<u32> {
        &mut self.segments
    }

    /// Closes the open batch and returns where the next one goes: the segment, and how many bytes
    /// from its start.
    pub(crate) fn position(&mut self) -> (u32, u32) {
        self.seal();
        let segment = self.segments.back().copied().unwrap_or_default();
        // Inside a segment, whose size has 32 bits.
        (segment, (self.offset - self.start) as u32)
    }

    fn data_end(&self) -> u64 {
        self.start + self.layout.segment_bytes - self.layout.block as u64
    }

    /// An upper bound of the segments that a payload of `length` bytes needs beyond the current
    /// one.
    pub(crate) fn segments_needed(&self, length: usize) -> u32 {
        self.segments_for(self.cost(length))
    }

    /// An upper bound of the bytes that a payload of `length` bytes takes.
    pub(crate) fn cost(&self, length: usize) -> u64 {
        let overhead = (HEADER + ALIGN) as u64;
        let length = length as u64;
        length + (length / (self.layout.batch as u64 - overhead) + 2) * overhead + self.layout.block as u64
    }

    /// An upper bound of the segments that payloads of this [`Stream::cost`] need beyond the
    /// current one.
    pub(crate) fn segments_for(&self, cost: u64) -> u32 {
        let overhead = (HEADER + ALIGN) as u64;
        let batch = self.layout.batch as u64;
        let block = self.layout.block as u64;
        let end = self
            .open
            .as_ref()
            .map_or(self.offset, |open| open.base + open.length.next_multiple_of(self.layout.block) as u64);
        if end + cost <= self.data_end() {
            return 0;
        }
        let data = self.layout.segment_bytes - block;
        let usable = data - (data / batch + 1) * overhead - block;
        // Payloads and segments are bounded, so it fits.
        1 + cost.div_ceil(usable) as u32
    }

    /// Bytes of a payload that certainly needs no more than `segments` beyond the current one: the
    /// inverse of [`Stream::segments_needed`].
    pub(crate) fn room(&self, segments: u32) -> u64 {
        let overhead = (HEADER + ALIGN) as u64;
        let (batch, block) = (self.layout.batch as u64, self.layout.block as u64);
        let data = self.layout.segment_bytes - block;
        let usable = data - (data / batch + 1) * overhead - block;
        let end = self
            .open
            .as_ref()
            .map_or(self.offset, |open| open.base + open.length.next_multiple_of(self.layout.block) as u64);
        let fresh = u64::from(segments.saturating_sub(1)) * usable;
        let cost = fresh.max(self.data_end().saturating_sub(end)).saturating_sub(block + 3 * overhead);
        // Each batch has one header more.
        cost - cost / (batch - overhead) * overhead
    }

    /// Appends a payload and returns the sequence of its last record. The caller has made sure that
    /// `space` holds [`Stream::segments_needed`] free segments. `durable` goes into the records as
    /// proof.
    pub(crate) fn append(
        &mut self,
        payload: &[&[u8]],
        durable: u64,
        space: &mut Space,
        pool: &mut Pool,
    ) -> Option<u64> {
        let mut rest = Parts::new(payload);
        let mut flags = FLAG_FIRST;
        loop {
            let room = self.make_room(rest.left(), durable, space, pool)?;
            let length = rest.left().min(room);
            if length == rest.left() {
                flags |= FLAG_LAST;
            }
            self.put(self.kind, flags, &mut rest, length, durable);
            if flags & FLAG_LAST != 0 {
                return Some(self.next - 1);
            }
            flags = 0;
        }
    }

    /// Opens batches and segments until some of `wanted` payload bytes fit, and returns how many:
    /// all, unless the batch is fresh.
    fn make_room(
        &mut self,
        wanted: usize,
        durable: u64,
        space: &mut Space,
        pool: &mut Pool,
    ) -> Option<usize> {
        loop {
            if let Some(open) = &self.open {
                // Inside a segment, so it fits.
                let limit = self.layout.batch.min((self.data_end() - open.base) as usize);
                let room = limit.saturating_sub(open.length + HEADER);
                if room >= wanted && open.length + HEADER <= limit || open.length == 0 {
                    return Some(room);
                }
                self.seal();
            } else if self.offset >= self.data_end() {
                self.roll(durable, space, pool)?;
            } else {
                self.open_batch(pool);
            }
        }
    }

    fn open_batch(&mut self, pool: &mut Pool) {
        self.open = Some(Batch { buffer: pool.take(), base: self.offset, length: 0, last: self.next });
    }

    /// Copies one record with the next `length` bytes of `payload` into the open batch.
    fn put(&mut self, kind: u8, flags: u8, payload: &mut Parts<'_>, length: usize, durable: u64) {
        let Some(open) = &mut self.open else { return };
        if kind == self.kind && flags & FLAG_FIRST != 0 {
            let segment = self.segments.back().copied().unwrap_or_default();
            // Inside a segment, whose size has 32 bits.
            let position = (open.base - self.start) as u32 + open.length as u32;
            self.placed = RecordLocation { stream: self.id, sequence: self.next, segment, position };
            let entry = Run { epoch: stream_epoch(self.id), segment, position, first: self.next };
            if kind == KIND_LOG && open.length == 0 && entry.is_worth(self.sparse_index.back()) {
                self.sparse_index.push_back(entry);
            }
        }
        let tag = Tag { kind, flags, stream: self.id, sequence: self.next, durable };
        let offset = open.base + open.length as u64;
        let out = &mut open.buffer[open.length..];
        let size = write_record(self.layout.seed, offset, tag, payload, length, out);
        debug_assert_eq!(size, record_size(length));
        open.length += size;
        open.last = self.next;
        self.queued += size;
        self.next += 1;
    }

    /// Links to a fresh segment and continues there. `None`: no segment is free.
    fn roll(&mut self, durable: u64, space: &mut Space, pool: &mut Pool) -> Option<()> {
        let segment = space.take()?;
        if self.open.is_none() {
            self.open_batch(pool);
        }
        let number = segment.to_le_bytes();
        let number = [&number[..]];
        let mut payload = Parts::new(&number);
        self.put(self.kind | KIND_LINK, FLAG_FIRST | FLAG_LAST, &mut payload, size_of::<u32>(), durable);
        self.seal();
        self.move_to(segment);
        Some(())
    }

    /// Continues before segment `limit`, if it does not already. `None`: no segment is free.
    pub(crate) fn move_below(
        &mut self,
        limit: u32,
        durable: u64,
        space: &mut Space,
        pool: &mut Pool,
    ) -> Option<()> {
        if self.segments.back().is_some_and(|&segment| segment >= limit) {
            self.roll(durable, space, pool)?;
        }
        Some(())
    }

    fn move_to(&mut self, segment: u32) {
        let current = self.segments.back().copied().unwrap_or_default();
        let origin = self.start - u64::from(current) * self.layout.segment_bytes;
        self.start = origin + u64::from(segment) * self.layout.segment_bytes;
        self.offset = self.start;
        self.segments.push_back(segment);
    }

    /// Closes the open batch: pads it to whole blocks and queues it.
    pub(crate) fn seal(&mut self) {
        let Some(mut open) = self.open.take() else { return };
        let whole = open.length.next_multiple_of(self.layout.block);
        open.buffer[open.length..whole].fill(0);
        self.queued += whole - open.length;
        open.length = whole;
        self.offset = open.base + whole as u64;
        self.sealed.push_back(open);
    }

    /// Whether a batch is open and holds records.
    pub(crate) fn has_open(&self) -> bool {
        self.open.is_some()
    }

    /// Takes the oldest sealed batch as a write with its ticket. It counts as in flight from now
    /// on.
    pub(crate) fn next_write(&mut self, durable: bool) -> Option<(u64, Operation)> {
        let batch = self.sealed.pop_front()?;
        let ticket = self.first_ticket + self.flights.len() as u64;
        self.queued -= batch.length;
        self.flights.push_back(Flight { base: batch.base, last: batch.last, done: false });
        let Batch { buffer, base, length, .. } = batch;
        Some((ticket, Operation::Write { offset: base, length, buffer, durable }))
    }

    /// Sequence of the last record that is in a write taken so far.
    pub(crate) fn submitted(&self) -> u64 {
        self.flights.back().map_or(self.written, |flight| flight.last)
    }

    /// Takes the newest write back, which the queue refused.
    pub(crate) fn take_back(&mut self, operation: Operation) {
        let Some(flight) = self.flights.pop_back() else { return };
        if let Operation::Write { offset, length, buffer, .. } = operation {
            self.queued += length;
            self.sealed.push_front(Batch { buffer, base: offset, length, last: flight.last });
        }
    }

    /// Area offset of the write with `ticket`.
    pub(crate) fn offset_of(&self, ticket: u64) -> u64 {
        let index = ticket.wrapping_sub(self.first_ticket);
        usize::try_from(index).ok().and_then(|i| self.flights.get(i)).map_or(0, |f| f.base)
    }

    /// Notes that the write with `ticket` has completed.
    pub(crate) fn complete(&mut self, ticket: u64) {
        let index = ticket.wrapping_sub(self.first_ticket);
        if let Some(flight) = usize::try_from(index).ok().and_then(|i| self.flights.get_mut(i)) {
            flight.done = true;
        }
        while self.flights.front().is_some_and(|flight| flight.done) {
            if let Some(flight) = self.flights.pop_front() {
                self.written = flight.last;
                self.first_ticket += 1;
            }
        }
    }
}
