//! Reading a log record by record, a piece at a time.
//!
//! 1. A [`RecordReader`] is before a record: it knows the stream, the place and the sequence.
//!    It requests the bytes there ([`Step::Fetch`]), is given them ([`RecordReader::feed`]), and
//!    returns whole payloads.
//! 2. Where the expected record is not, the next block boundary is tried once, because a batch ends
//!    in padding. If it is not there either, it is missing ([`Step::Missing`]), as far as those
//!    bytes can say. The caller decides what that means: the end, bytes that were read too early,
//!    the end of a run ([`RecordReader::enter_next_run`]), or damage.

use std::ops::Range;

use sietch_disk::Buffer;

use crate::layout::{
    FLAG_FIRST, FLAG_LAST, KIND_LINK, KIND_LOG, RecordLocation, Run, Superblock, log_stream, peek,
    record_size, stream_epoch,
};
use crate::limits::BATCH;
use crate::scan::{ExpectedRecord, expected_record, link_target};

/// See the module's account.
pub(crate) struct RecordReader {
    seed: u32,
    data_start: u64,
    block: usize,
    segment_bytes: usize,
    segment_count: u32,
    kind: u8,
    stream: u64,
    /// Bytes requested at once.
    reach: usize,
    segment: u32,
    /// Of the record expected, from the start of the segment.
    position: usize,
    expected: u64,
    /// In the middle of a payload.
    inside: bool,
    /// Sequence after the last whole payload: what a next run would begin with.
    settled: u64,
    assembly: Vec<u8>,
    /// Where the fetched bytes begin in the segment, and how many there are.
    base: usize,
    length: usize,
    bytes: Option<Buffer>,
    /// What a record read so far says about how far the log was durable.
    proven: u64,
}

/// What a walker found.
pub(crate) enum Step {
    /// A whole payload: see [`RecordReader::payload`].
    Payload { sequence: u64, place: PayloadSource },
    /// These bytes of the area are needed.
    Fetch { offset: u64, length: usize },
    /// The fetched bytes do not hold the expected record.
    Missing,
}

/// Where a payload was put together.
#[derive(Clone)]
pub(crate) enum PayloadSource {
    Bytes(Range<usize>),
    Assembly,
}

impl RecordReader {
    /// A walker before the first record of `run`.
    pub(crate) fn new(superblock: &Superblock, run: Run) -> Self {
        let mut walker = Self {
            seed: crate::layout::seed(superblock.identity),
            data_start: superblock.segment_start(0),
            block: superblock.block as usize,
            segment_bytes: superblock.segment_bytes as usize,
            segment_count: superblock.segment_count,
            kind: KIND_LOG,
            stream: 0,
            reach: BATCH,
            segment: 0,
            position: 0,
            expected: 0,
            inside: false,
            settled: 0,
            assembly: Vec::new(),
            base: 0,
            length: 0,
            bytes: None,
            proven: 0,
        };
        walker.jump(run);
        walker
    }

    /// A walker before the payload at `spot`, of `length` bytes.
    pub(crate) fn at(superblock: &Superblock, spot: RecordLocation, length: usize) -> Self {
        let run = Run {
            epoch: stream_epoch(spot.stream),
            segment: spot.segment,
            position: spot.position,
            first: spot.sequence,
        };
        let mut walker = Self::new(superblock, run);
        (walker.kind, walker.stream) = (spot.kind(), spot.stream);
        // A record is no longer than a batch.
        walker.reach = record_size(length).min(BATCH).next_multiple_of(walker.block);
        walker
    }

    /// The log may have grown or shrunk since.
    pub(crate) fn fit(&mut self, superblock: &Superblock) {
        self.segment_count = superblock.segment_count;
    }

    /// Continues at the first record of `run`.
    pub(crate) fn jump(&mut self, run: Run) {
        (self.segment, self.expected) = (run.segment, run.first);
        (self.kind, self.stream) = (KIND_LOG, log_stream(run.epoch));
        self.position = run.position as usize;
        self.inside = false;
        self.settled = run.first;
        self.assembly.clear();
        self.length = 0;
    }

    /// Continues in the run that follows here, if `superblock` names one.
    pub(crate) fn enter_next_run(&mut self, superblock: &Superblock) -> bool {
        if self.epoch() == superblock.epoch {
            return false;
        }
        let (epoch, settled) = (self.epoch(), self.settled);
        let next = superblock.runs.iter().rev().find(|run| run.epoch > epoch && run.first == settled);
        if let Some(run) = next {
            self.jump(*run);
        }
        next.is_some()
    }

    /// In the middle of a payload.
    pub(crate) fn is_inside(&self) -> bool {
        self.inside
    }

    /// Sequence after the last whole payload.
    pub(crate) fn settled(&self) -> u64 {
        self.settled
    }

    pub(crate) fn epoch(&self) -> u32 {
        stream_epoch(self.stream)
    }

    /// Sequence of the record expected next.
    pub(crate) fn expected(&self) -> u64 {
        self.expected
    }

    /// The log was durable up to here when one of the records read was made.
    pub(crate) fn proven(&self) -> u64 {
        self.proven
    }

    /// Area offset at which the next record is expected.
    pub(crate) fn offset(&self) -> u64 {
        self.start() + self.position as u64
    }

    fn start(&self) -> u64 {
        self.data_start + u64::from(self.segment) * self.segment_bytes as u64
    }

    /// Drops the fetched bytes: they were read too early. Returns their buffer.
    pub(crate) fn forget(&mut self) -> Option<Buffer> {
        self.length = 0;
        self.bytes.take()
    }

    /// Takes the bytes that [`Step::Fetch`] requested.
    pub(crate) fn feed(&mut self, offset: u64, length: usize, bytes: Buffer) {
        // Inside a segment.
        self.base = offset.saturating_sub(self.start()) as usize;
        self.length = length.min(bytes.len());
        self.bytes = Some(bytes);
    }

    /// The payload of a step.
    pub(crate) fn payload(&self, place: &PayloadSource) -> &[u8] {
        match place {
            PayloadSource::Assembly => &self.assembly,
            PayloadSource::Bytes(range) => {
                self.bytes.as_ref().and_then(|bytes| bytes.get(range.clone())).unwrap_or_default()
            }
        }
    }

    fn fetch(&self) -> Step {
        let base = self.position / self.block * self.block;
        let length = (self.reach + self.block).min(self.segment_bytes - base);
        Step::Fetch { offset: self.start() + base as u64, length }
    }

    /// Reads on.
    pub(crate) fn step(&mut self) -> Step {
        loop {
            if self.position >= self.segment_bytes {
                return Step::Missing;
            }
            let end = self.base + self.length;
            if self.length == 0 || self.position < self.base || self.position >= end {
                return self.fetch();
            }
            let at = self.position - self.base;
            let expected = ExpectedRecord {
                kind: self.kind,
                stream: self.stream,
                sequence: self.expected,
                inside: self.inside,
            };
            let bytes = self.bytes.as_ref().map_or(&[][..], |bytes| &bytes[at..self.length]);
            let Some((tag, payload)) = expected_record(self.seed, self.offset(), bytes, expected) else {
                // The end of the fetched bytes may only have cut it off.
                let cut = peek(bytes).is_none_or(|(tag, length)| {
                    expected.fits(&tag, length) && record_size(length) > bytes.len()
                });
                let near = bytes.len() < record_size(0) || peek(bytes).is_some() && cut;
                if near && self.base < self.position / self.block * self.block && end < self.segment_bytes {
                    return self.fetch();
                }
                if self.position.is_multiple_of(self.block) {
                    return Step::Missing;
                }
                self.position = self.position.next_multiple_of(self.block);
                continue;
            };
            let link = (tag.kind & KIND_LINK != 0).then(|| link_target(payload, self.segment_count));
            let range = at + crate::layout::HEADER..at + crate::layout::HEADER + payload.len();
            match link {
                Some(None) => return Step::Missing,
                Some(Some(next)) => {
                    self.segment = next;
                    self.position = 0;
                    self.expected += 1;
                    if !self.inside {
                        self.settled = self.expected;
                    }
                    self.length = 0;
                    continue;
                }
                None => {}
            }
            self.proven = self.proven.max(tag.durable);
            self.expected += 1;
            self.position += record_size(payload.len());
            if tag.flags & FLAG_LAST != 0 {
                self.settled = self.expected;
            }
            if tag.flags == FLAG_FIRST | FLAG_LAST {
                return Step::Payload { sequence: tag.sequence, place: PayloadSource::Bytes(range) };
            }
            if tag.flags & FLAG_FIRST != 0 {
                self.assembly.clear();
            }
            self.assembly.extend_from_slice(payload);
            self.inside = tag.flags & FLAG_LAST == 0;
            if !self.inside {
                return Step::Payload { sequence: tag.sequence, place: PayloadSource::Assembly };
            }
        }
    }
}
