//! Reading an area: chains, and the proof that nothing acknowledged is missing.
//!
//! 1. The newest superblock names the chains (`superblocks`).
//! 2. A chain is read segment by segment. The likely next segments are fetched meanwhile, several
//!    at a time. At each position is either the expected record (stream, sequence, checksum) or
//!    nothing of this chain. Then the next block boundary is tried once, because a batch ends in
//!    padding; after that the chain has ended.
//! 3. A snapshot has a known last sequence, and so has a run that a later run follows: ending
//!    before it is corruption.
//! 4. The newest run ends where its records end, unless something proves that the missing record
//!    was durable. The proof is a record, anywhere in the area, that carries a durable sequence at
//!    or past it. A superblock that does is a proof as well, or one that says that the log was
//!    closed after it.
//! 5. A genuine record of an epoch newer than the superblock's means that newer superblocks were
//!    lost.
//! 6. A segment that cannot be read at once is read block by block. A block that cannot be read
//!    matters only where a chain would continue in it. Then that read is the error, because the
//!    record may still be there.

use std::io;

use sietch_disk::{BLOCK, Buffer, Completion, DiskQueue, Operation, superblock_copies};

use crate::disk_request::{failure, refused, wait_for};
use crate::error::{Failure, OpenError};
use crate::layout::{
    ALIGN, FLAG_FIRST, FLAG_LAST, HEADER, KIND_LINK, KIND_LOG, KIND_SNAPSHOT, RecordLocation, Run,
    Superblock, Tag, log_stream, peek, read_record, record_size, seed, stream_epoch,
};
use crate::limits::{DATA_START, MAX_RECORD, PREFETCH_BYTES, PREFETCH_SEGMENTS};

/// Reads of segment heads in flight: a disk serves so many at once.
const HEADS_IN_FLIGHT: usize = 32;

/// Something that recovery found.
#[derive(Debug)]
pub enum Entry<'a> {
    /// A payload of the snapshot. All of these come first.
    Snapshot(&'a [u8]),
    /// A payload of the log, with the sequence that its append returned.
    Record(u64, &'a [u8]),
}

/// The application's answer to an entry.
pub type Applied = Result<(), Box<dyn std::error::Error + Send + Sync>>;

/// Where the log's chain broke off with something of its own behind it: an append that never became
/// durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TornTail {
    /// First byte of the area that does not hold what was expected.
    pub offset: u64,
    /// The sequence expected there.
    pub sequence: u64,
}

/// What is in an area.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecoveryReport {
    /// Epoch of the newest superblock. After [`crate::Log::open`]: the one that it started.
    pub epoch: u32,
    /// Payloads in the log.
    pub records: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Payloads in the snapshot.
    pub snapshot_records: u64,
    /// Their bytes.
    pub snapshot_bytes: u64,
    /// Sequence of the last whole record of the log; 0: it never had one.
    pub last_sequence: u64,
    /// Everything up to this record was durable, says the superblock; 0: it says nothing. Losing
    /// one of them would be damage.
    pub proven: u64,
    /// Set when an append was cut short. Normal after a crash.
    pub torn_tail: Option<TornTail>,
    /// Whether the log was closed in order.
    pub clean: bool,
    /// Offsets of superblock copies that are torn or rotten. Up to two are normal after a crash.
    pub damaged_superblocks: Vec<u64>,
    /// Openings whose records the log holds.
    pub runs: usize,
    /// Segments in use.
    pub segments: usize,
    /// Bytes of the area that the log was laid out over.
    pub formatted: u64,
    /// Bytes of the area now. If there are more, [`crate::Log::grow`] takes them into use.
    pub area: u64,
}

/// A chain as far as it is read.
#[derive(Default)]
struct Chain {
    /// Sequence of the first record that is missing.
    expected: u64,
    /// Sequence of the last record of the last whole payload (or of a link outside of one).
    committed: u64,
    /// Segments visited, and how many of them hold committed records.
    segments: Vec<u32>,
    committed_segments: usize,
    /// Where the chain ends: position in the last segment, in bytes.
    position: usize,
    /// Where in that segment bytes are no record, if the chain seems to end behind them.
    damaged: Option<usize>,
    /// Area offset of the payload at hand.
    payload: u64,
    records: u64,
    bytes: u64,
    fragments_open: bool,
    /// Where the last payload begins.
    begun: RecordLocation,
}

/// The result of a scan.
pub(crate) struct Outcome {
    pub report: RecoveryReport,
    pub log_segments: Vec<u32>,
    pub snapshot_segments: Vec<u32>,
    /// The last segment visited, to continue behind it.
    pub last_segment: u32,
    /// Positions of the log to read from and to truncate at.
    pub sparse_index: Vec<Run>,
}

/// Reads whole segments, and fetches the likely next ones ahead of time. Each right guess makes it
/// fetch more.
struct Segments<'a, D> {
    disk: &'a mut D,
    superblock: &'a Superblock,
    /// The segment being parsed.
    current: Option<(u32, Buffer)>,
    /// Being fetched.
    flying: Vec<u32>,
    /// Fetched ahead, or the error of that read.
    ready: Vec<(u32, Result<Buffer, Failure>)>,
    /// Segments to fetch ahead now, and at most.
    ahead: usize,
    most: usize,
    spare: Vec<Buffer>,
    completions: Vec<Completion>,
    /// Blocks that the device could not read.
    unreadable: Vec<Unreadable>,
}

/// A segment of which some blocks could not be read.
struct Unreadable {
    number: u32,
    /// Where they begin in the segment.
    blocks: Vec<usize>,
    cause: Failure,
}

const READING: &str = "reading a segment";

impl<'a, D: DiskQueue> Segments<'a, D> {
    fn new(disk: &'a mut D, superblock: &'a Superblock) -> Self {
        let fit = PREFETCH_BYTES / superblock.segment_bytes as usize;
        let most = fit.clamp(1, PREFETCH_SEGMENTS).min(disk.depth() / 2).max(1);
        Self {
            disk,
            superblock,
            current: None,
            flying: Vec::new(),
            ready: Vec::new(),
            ahead: 1,
            most,
            spare: Vec::new(),
            completions: Vec::new(),
            unreadable: Vec::new(),
        }
    }

    fn start_read(&mut self, number: u32) -> Result<(), Failure> {
        let length = self.superblock.segment_bytes as usize;
        let offset = self.superblock.segment_start(number);
        let buffer = self.spare.pop().unwrap_or_else(|| Buffer::new(length));
        self.disk
            .submit(u64::from(number), Operation::Read { offset, length, buffer })
            .map_err(|e| refused(READING, offset, &e))?;
        self.flying.push(number);
        Ok(())
    }

    /// Waits until some of the reads are done.
    fn reap(&mut self) -> Result<(), Failure> {
        let offset = self.flying.first().map_or(0, |&number| self.superblock.segment_start(number));
        wait_for(self.disk, READING, offset, &mut self.completions)?;
        for completion in self.completions.drain(..) {
            // Segment numbers have 32 bits.
            let number = completion.token as u32;
            let offset = self.superblock.segment_start(number);
            self.flying.retain(|&flying| flying != number);
            let result = match (completion.result, completion.buffer) {
                (Ok(()), Some(buffer)) => Ok(buffer),
                (Ok(()), None) => Err(failure(READING, offset, io::ErrorKind::Other.into())),
                (Err(e), _) => Err(failure(READING, offset, e)),
            };
            self.ready.push((number, result));
        }
        Ok(())
    }

    /// Makes `number` the current segment.
    fn load(&mut self, number: u32) -> Result<(), Failure> {
        if self.current.as_ref().is_some_and(|(current, _)| *current == number) {
            return Ok(());
        }
        if let Some((_, buffer)) = self.current.take() {
            self.spare.push(buffer);
        }
        let is_ready = |ready: &[(u32, _)]| ready.iter().position(|(fetched, _)| *fetched == number);
        if self.flying.contains(&number) || is_ready(&self.ready).is_some() {
            self.ahead = (self.ahead * 2).min(self.most);
        } else {
            self.ahead = 1;
            self.start_read(number)?;
        }
        let place = loop {
            if let Some(place) = is_ready(&self.ready) {
                break place;
            }
            self.reap()?;
        };
        let bytes = match self.ready.swap_remove(place).1 {
            Ok(bytes) => bytes,
            Err(cause) => self.salvage(number, cause)?,
        };
        self.current = Some((number, bytes));
        Ok(())
    }

    /// Reads a segment block by block that could not be read at once for `cause`.
    fn salvage(&mut self, number: u32, cause: Failure) -> Result<Buffer, Failure> {
        while !self.flying.is_empty() {
            self.reap()?;
        }
        let offset = self.superblock.segment_start(number);
        let length = self.superblock.segment_bytes as usize;
        let salvage =
            superblock_copies::salvage(self.disk, offset, length).map_err(|e| failure(READING, offset, e))?;
        let blocks = salvage.unreadable;
        if blocks.len() * BLOCK >= length {
            // The failure is not one of a bad block.
            return Err(cause);
        }
        self.unreadable.retain(|unreadable| unreadable.number != number);
        if let Some((at, error)) = salvage.cause {
            self.unreadable.push(Unreadable { number, blocks, cause: failure(READING, at, error) });
        }
        Ok(salvage.bytes)
    }

    /// An error if some of `length` bytes from `position` on in segment `number` could not be read.
    fn check_readable(&self, number: u32, position: usize, length: usize) -> Result<(), Failure> {
        let of_segment = self.unreadable.iter().find(|unreadable| unreadable.number == number);
        let hit = of_segment.is_some_and(|unreadable| {
            unreadable.blocks.iter().any(|&block| block < position + length && position < block + BLOCK)
        });
        of_segment.filter(|_| hit).map_or(Ok(()), |unreadable| Err(unreadable.cause.clone()))
    }

    /// Starts to fetch the segments that most likely follow `number`, and drops wrong guesses.
    fn fetch_after(&mut self, number: u32) -> Result<(), Failure> {
        let count = self.superblock.segment_count;
        let guess = |step: usize| ((u64::from(number) + step as u64) % u64::from(count)) as u32;
        let far = self.ahead.min(count as usize - 1);
        let spare = &mut self.spare;
        for (_, fetched) in self.ready.extract_if(.., |(n, _)| !(1..=far).any(|step| guess(step) == *n)) {
            spare.extend(fetched.ok());
        }
        for next in (1..=far).map(guess) {
            let known = self.flying.contains(&next) || self.ready.iter().any(|(n, _)| *n == next);
            if !known && self.flying.len() < self.most {
                self.start_read(next)?;
            }
        }
        // At once: the device works while the current segment is parsed.
        self.disk.notify().map_err(|e| failure(READING, self.superblock.segment_start(number), e))
    }

    /// Waits for every read that is in flight. They were guesses, so their results and errors are
    /// dropped.
    fn drain(&mut self) -> Result<(), Failure> {
        while !self.flying.is_empty() {
            self.reap()?;
        }
        let spare = &mut self.spare;
        spare.extend(self.ready.drain(..).filter_map(|(_, fetched)| fetched.ok()));
        Ok(())
    }

    fn bytes(&self) -> &[u8] {
        self.current.as_ref().map_or(&[], |(_, buffer)| &buffer[..self.superblock.segment_bytes as usize])
    }
}

/// Which chain to read.
struct Wanted {
    kind: u8,
    stream: u64,
    segment: u32,
    /// Where in that segment it begins, in bytes.
    position: u32,
    first: u64,
    /// One past the last sequence, where it is known.
    stop: Option<u64>,
    /// Payloads before this sequence are not delivered.
    from: u64,
}

/// Reads everything, delivers it, and proves it.
pub(crate) struct Scan<'a, D> {
    segments: Segments<'a, D>,
    superblock: &'a Superblock,
    seed: u32,
    assembly: Vec<u8>,
    sparse_index: Vec<Run>,
}

/// Takes a sequence, a payload, and where that begins.
type Deliver<'a> = &'a mut dyn FnMut(u64, &[u8], RecordLocation) -> Applied;

/// Takes an entry, and where its payload begins.
pub(crate) type Apply<'a> = &'a mut dyn FnMut(Entry<'_>, RecordLocation) -> Applied;

impl<'a, D: DiskQueue> Scan<'a, D> {
    pub(crate) fn new(disk: &'a mut D, superblock: &'a Superblock) -> Self {
        let segments = Segments::new(disk, superblock);
        let seed = seed(superblock.identity);
        Self { segments, superblock, seed, assembly: Vec::new(), sparse_index: Vec::new() }
    }

    /// Reads snapshot and log. See the module's account.
    pub(crate) fn run(&mut self, apply: Apply<'_>) -> Result<Outcome, OpenError> {
        let outcome = self.read(apply);
        // Whatever the result, no read of this scan stays in flight.
        let drained = self.segments.drain();
        let outcome = outcome?;
        drained?;
        Ok(outcome)
    }

    fn read(&mut self, apply: Apply<'_>) -> Result<Outcome, OpenError> {
        let superblock = self.superblock;
        let mut report = RecoveryReport { epoch: superblock.epoch, ..RecoveryReport::default() };
        let snapshot = self.read_snapshot(apply)?;
        (report.snapshot_records, report.snapshot_bytes) = (snapshot.records, snapshot.bytes);
        let snapshot_segments = snapshot.segments;
        let mut log_segments = Vec::new();
        let mut last = Chain::default();
        for (index, run) in superblock.runs.iter().enumerate() {
            let next = superblock.runs.get(index + 1);
            let wanted = Wanted {
                kind: KIND_LOG,
                stream: log_stream(run.epoch),
                segment: run.segment,
                position: run.position,
                first: run.first,
                stop: next.map(|next| next.first),
                from: superblock.head,
            };
            let deliver: Deliver<'_> =
                &mut |sequence, bytes, spot| apply(Entry::Record(sequence, bytes), spot);
            let chain = self.chain(&wanted, deliver)?;
            report.records += chain.records;
            report.bytes += chain.bytes;
            if let Some(next) = next
                && (chain.expected < next.first || chain.fragments_open)
            {
                let evidence = format!("epoch {} goes on at {}", next.epoch, next.first);
                return Err(self.corrupt("record", &chain, evidence));
            }
            log_segments.extend_from_slice(&chain.segments[..chain.committed_segments]);
            last = chain;
        }
        self.prove(&last, &log_segments, &mut report)?;
        report.last_sequence = last.committed;
        report.proven = superblock.proven;
        report.clean = superblock.closed;
        report.runs = superblock.runs.len();
        report.segments = log_segments.len() + snapshot_segments.len();
        let last_segment = last.segments.last().copied().unwrap_or_default();
        let mut sparse_index = std::mem::take(&mut self.sparse_index);
        sparse_index.retain(|entry| entry.first <= last.committed);
        Ok(Outcome { report, log_segments, snapshot_segments, last_segment, sparse_index })
    }

    /// Reads the snapshot alone.
    pub(crate) fn snapshot(&mut self, apply: Apply<'_>) -> Result<(), OpenError> {
        let read = self.read_snapshot(apply);
        let drained = self.segments.drain();
        read?;
        Ok(drained?)
    }

    fn read_snapshot(&mut self, apply: Apply<'_>) -> Result<Chain, OpenError> {
        let Some(place) = self.superblock.snapshot else { return Ok(Chain::default()) };
        let wanted = Wanted {
            kind: KIND_SNAPSHOT,
            stream: place.stream,
            segment: place.segment,
            position: 0,
            first: 1,
            stop: Some(place.last + 1),
            from: 0,
        };
        let chain = self.chain(&wanted, &mut |_, bytes, spot| apply(Entry::Snapshot(bytes), spot))?;
        if chain.expected <= place.last || chain.fragments_open {
            let evidence = format!("the snapshot has {} records", place.last);
            return Err(self.corrupt("snapshot record", &chain, evidence));
        }
        Ok(chain)
    }

    fn corrupt(&self, what: &'static str, chain: &Chain, evidence: String) -> OpenError {
        OpenError::Corrupt { what, sequence: chain.expected, offset: self.end_of(chain), evidence }
    }

    /// A genuine link names a segment that is not there: the area was cut, or newer superblocks
    /// were lost.
    fn beyond(&self, payload: &[u8]) -> OpenError {
        let target = link_target(payload, u32::MAX).unwrap_or_default();
        let (capacity, needed) = (self.superblock.capacity, self.superblock.segment_start(target + 1));
        OpenError::AreaTooSmall { capacity, formatted: capacity, needed }
    }

    /// Area offset of the position at which a chain ended.
    fn end_of(&self, chain: &Chain) -> u64 {
        let segment = chain.segments.last().copied().unwrap_or_default();
        self.superblock.segment_start(segment) + chain.damaged.unwrap_or(chain.position) as u64
    }

    /// Reads one chain and delivers its payloads.
    fn chain(&mut self, wanted: &Wanted, deliver: Deliver<'_>) -> Result<Chain, OpenError> {
        let mut chain = Chain {
            expected: wanted.first,
            committed: wanted.first - 1,
            segments: vec![wanted.segment],
            position: wanted.position as usize,
            ..Chain::default()
        };
        self.assembly.clear();
        let mut segment = wanted.segment;
        while wanted.stop.is_none_or(|stop| chain.expected < stop) {
            self.segments.load(segment)?;
            self.segments.fetch_after(segment)?;
            match self.segment(segment, wanted, &mut chain, deliver)? {
                Some(next) => {
                    segment = next;
                    chain.segments.push(next);
                    (chain.position, chain.damaged) = (0, None);
                }
                None => break,
            }
        }
        Ok(chain)
    }

    /// Reads the current segment's part of a chain; returns the next segment if a link names one.
    fn segment(
        &mut self,
        number: u32,
        wanted: &Wanted,
        chain: &mut Chain,
        deliver: Deliver<'_>,
    ) -> Result<Option<u32>, OpenError> {
        let block = self.superblock.block as usize;
        let start = self.superblock.segment_start(number);
        let bytes = self.segments.bytes();
        while wanted.stop.is_none_or(|stop| chain.expected < stop) {
            let at = start + chain.position as u64;
            let rest = bytes.get(chain.position..).unwrap_or_default();
            let expected = ExpectedRecord {
                kind: wanted.kind,
                stream: wanted.stream,
                sequence: chain.expected,
                inside: chain.fragments_open,
            };
            let Some((tag, payload)) = expected_record(self.seed, at, rest, expected) else {
                let header = peek(rest).filter(|(tag, length)| expected.fits(tag, *length));
                let length = header.map_or(block, |(_, length)| record_size(length));
                self.segments.check_readable(number, chain.position, length)?;
                if chain.position.is_multiple_of(block) {
                    return Ok(None);
                }
                let next = chain.position.next_multiple_of(block);
                // Behind the last record of a write there are zeros. Anything else was a record.
                let padding = &rest[..rest.len().min(next - chain.position)];
                chain.damaged = padding.iter().any(|byte| *byte != 0).then_some(chain.position);
                chain.position = next;
                continue;
            };
            chain.damaged = None;
            if tag.flags & FLAG_FIRST != 0 {
                chain.payload = at;
            }
            let count = self.superblock.segment_count;
            let link = (tag.kind & KIND_LINK != 0).then(|| link_target(payload, count));
            if link == Some(None) {
                return Err(self.beyond(payload));
            }
            if wanted.kind == KIND_LOG && link.is_none() && tag.flags & FLAG_FIRST != 0 {
                // Inside a segment, whose size has 32 bits.
                let position = chain.position as u32;
                let entry =
                    Run { epoch: stream_epoch(tag.stream), segment: number, position, first: tag.sequence };
                if chain.position.is_multiple_of(block) && entry.is_worth(self.sparse_index.last()) {
                    self.sparse_index.push(entry);
                }
            }
            if link.is_none() && tag.flags & FLAG_FIRST != 0 {
                let (stream, sequence) = (tag.stream, tag.sequence);
                chain.begun =
                    RecordLocation { stream, sequence, segment: number, position: chain.position as u32 };
            }
            chain.expected += 1;
            chain.position += record_size(payload.len());
            if let Some(next) = link {
                if !chain.fragments_open {
                    chain.committed = tag.sequence;
                    chain.committed_segments = chain.segments.len();
                }
                return Ok(next);
            }
            chain.fragments_open = tag.flags & FLAG_LAST == 0;
            let whole = if tag.flags == FLAG_FIRST | FLAG_LAST {
                Some(payload)
            } else {
                self.assembly.extend_from_slice(payload);
                (!chain.fragments_open).then_some(&self.assembly[..])
            };
            if let Some(payload) = whole {
                chain.committed = tag.sequence;
                chain.committed_segments = chain.segments.len();
                let mut applied = Ok(());
                if tag.sequence >= wanted.from {
                    chain.records += 1;
                    chain.bytes += payload.len() as u64;
                    applied = deliver(tag.sequence, payload, chain.begun);
                }
                self.assembly.clear();
                let (sequence, offset) = (tag.sequence, chain.payload);
                applied.map_err(|source| OpenError::Rejected { sequence, offset, source })?;
            }
        }
        Ok(None)
    }

    /// Searches for anything that contradicts the end of the log, and says whether an append was
    /// cut short there.
    fn prove(
        &mut self,
        last: &Chain,
        log_segments: &[u32],
        report: &mut RecoveryReport,
    ) -> Result<(), OpenError> {
        let superblock = self.superblock;
        if superblock.clean > last.committed {
            let evidence = format!("the log was closed in order after record {}", superblock.clean);
            return Err(self.corrupt("record", last, evidence));
        }
        if superblock.proven >= last.expected.max(1) {
            let evidence =
                format!("the superblock says that everything up to {} was durable", superblock.proven);
            return Err(self.corrupt("record", last, evidence));
        }
        let stream = superblock.runs.last().map(|run| log_stream(run.epoch));
        let mut torn = last.fragments_open;
        if let Some(&number) = last.segments.last() {
            self.segments.load(number)?;
            let rest = self.segments.bytes().get(last.position..).unwrap_or_default();
            torn |= peek(rest)
                .is_some_and(|(tag, _)| Some(tag.stream) == stream && tag.sequence == last.expected);
            torn |= self.search(number, last.position, last)?;
        }
        self.segments.drain()?;
        for number in self.suspects(last, log_segments)? {
            torn |= self.search(number, 0, last)?;
        }
        report.torn_tail = torn.then(|| TornTail { offset: self.end_of(last), sequence: last.expected });
        Ok(())
    }

    /// Reads every block of a segment from position `from` on for records that contradict the end
    /// of the log; says whether there are any that should follow it.
    fn search(&mut self, number: u32, from: usize, last: &Chain) -> Result<bool, OpenError> {
        self.segments.load(number)?;
        let start = self.superblock.segment_start(number);
        let stream = self.superblock.runs.last().map(|run| log_stream(run.epoch));
        let block = self.superblock.block as usize;
        let bytes = self.segments.bytes();
        let mut follows = false;
        for position in (from.next_multiple_of(block)..bytes.len()).step_by(block) {
            let offset = start + position as u64;
            if let Some((tag, _)) = read_record(self.seed, offset, &bytes[position..]) {
                self.contradiction(&tag, offset, last)?;
                follows |= Some(tag.stream) == stream && tag.sequence > last.expected;
            }
        }
        Ok(follows)
    }

    /// An error if a genuine record proves that the log should continue, or that the superblock is
    /// not the newest.
    fn contradiction(&self, tag: &Tag, offset: u64, last: &Chain) -> Result<(), OpenError> {
        let epoch = self.superblock.epoch;
        if stream_epoch(tag.stream) > epoch {
            let found = stream_epoch(tag.stream);
            return Err(OpenError::SuperblockOutdated { epoch, found, offset });
        }
        // An earlier epoch's record about its own torn end proves nothing about sequences that were
        // given out again.
        let newest = self.superblock.runs.last().map_or(0, |run| run.epoch);
        if stream_epoch(tag.stream) >= newest && tag.durable >= last.expected.max(1) {
            let evidence = format!(
                "the record at offset {offset} says that everything up to {} was durable",
                tag.durable
            );
            return Err(self.corrupt("record", last, evidence));
        }
        Ok(())
    }

    /// Segments outside of the log whose first header, if genuine, would contradict the log's end
    /// or shows a torn tail.
    fn suspects(&mut self, last: &Chain, log_segments: &[u32]) -> Result<Vec<u32>, OpenError> {
        let superblock = self.superblock;
        let mut visited = vec![false; superblock.segment_count as usize];
        for &segment in log_segments.iter().chain(&last.segments) {
            visited[segment as usize] = true;
        }
        let newest = superblock.runs.last().map(|run| log_stream(run.epoch));
        let mut todo = (0..superblock.segment_count).filter(|&s| !visited[s as usize]).peekable();
        let mut found = Vec::new();
        let mut spare: Vec<Buffer> = Vec::new();
        let mut completions = Vec::new();
        let disk = &mut *self.segments.disk;
        let bound = HEADS_IN_FLIGHT.min(disk.depth());
        let mut in_flight = 0;
        loop {
            while in_flight < bound
                && let Some(number) = todo.next()
            {
                let offset = superblock.segment_start(number);
                let length = superblock.block as usize;
                let buffer = spare.pop().unwrap_or_else(|| Buffer::new(length));
                disk.submit(u64::from(number), Operation::Read { offset, length, buffer })
                    .map_err(|e| refused(READING, offset, &e))?;
                in_flight += 1;
            }
            if in_flight == 0 {
                return Ok(found);
            }
            wait_for(disk, READING, DATA_START, &mut completions)?;
            in_flight -= completions.len();
            for completion in completions.drain(..) {
                // Segment numbers have 32 bits. A segment that cannot be read holds nothing that
                // the log needs.
                let number = completion.token as u32;
                let Some(buffer) = completion.buffer else { continue };
                if completion.result.is_ok()
                    && let Some((tag, _)) = peek(&buffer)
                    && (tag.durable >= last.expected.max(1)
                        || stream_epoch(tag.stream) > superblock.epoch
                        || Some(tag.stream) == newest && tag.sequence > last.expected)
                {
                    found.push(number);
                }
                spare.push(buffer);
            }
        }
    }
}

/// The record that should come next in a chain.
#[derive(Clone, Copy)]
pub(crate) struct ExpectedRecord {
    pub kind: u8,
    pub stream: u64,
    pub sequence: u64,
    /// In the middle of a payload.
    pub inside: bool,
}

impl ExpectedRecord {
    /// Whether a record with this tag and length is the one.
    pub(crate) fn fits(self, tag: &Tag, length: usize) -> bool {
        let first = tag.flags & FLAG_FIRST != 0;
        tag.stream == self.stream
            && tag.sequence == self.sequence
            && tag.kind & !KIND_LINK == self.kind
            && length <= MAX_RECORD
            && (tag.kind & KIND_LINK != 0 || first != self.inside)
    }
}

/// The record at the start of `bytes`, if it is the one that the chain expects.
pub(crate) fn expected_record(
    seed: u32,
    offset: u64,
    bytes: &[u8],
    expected: ExpectedRecord,
) -> Option<(Tag, &[u8])> {
    let (tag, length) = peek(bytes)?;
    if !expected.fits(&tag, length) {
        return None;
    }
    debug_assert!(HEADER.is_multiple_of(ALIGN));
    read_record(seed, offset, bytes)
}

/// The segment that a link names, if there is one of that number.
pub(crate) fn link_target(payload: &[u8], count: u32) -> Option<u32> {
    let number = u32::from_le_bytes(payload.try_into().ok()?);
    (number < count).then_some(number)
}
