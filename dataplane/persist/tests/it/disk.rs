//! A disk that dies on request and remembers what power loss could have taken.
//!
//! 1. Writes are in the order of their submission. A write is *settled* once it must survive. A
//!    durable one is settled when it completes, any other when a flush completes that was submitted
//!    after the write had completed.
//! 2. Each submission and each completion is an event; the disk dies before event number `budget`.
//! 3. Killing the process keeps every completed write readable and leaves each one in flight either
//!    completed or lost, by the seed. Losing power keeps settled writes whole and of the others any
//!    subset of their sectors. Where the device writes larger pieces than it takes, such a write
//!    may spoil the rest of the pieces that it touches, whatever lay there.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use sietch_disk::{Completion, DiskQueue, Operation, Part, Priority, SubmitError};
use sietch_structures::XorShift64;

/// Draws from the numbers of a seed: the seed is all that a failure needs.
#[derive(Clone)]
pub(crate) struct Random(XorShift64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(XorShift64::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1))
    }

    pub(crate) fn next(&mut self) -> u64 {
        // Multiplied, because the lowest bits of xorshift are weak.
        self.0.word().wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        (self.next() >> 16) % bound
    }

    pub(crate) fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

/// What the driver is doing: distinguishes the requests of opening, closing and formatting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Format,
    Open,
    Run,
    Close,
}

/// One kind of place at which the log makes something durable. For asynchronous requests the log's
/// token says which; for requests that the log waits for, the phase does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fence {
    Blank,
    Superblock(Phase),
    Settle(Phase),
    LogWrite,
    LogFlush,
    SnapshotFlush,
    SnapshotSuperblock,
    TruncateFlush,
    TruncateSuperblock,
    ProofSuperblock,
    /// One that this test knows nothing of.
    Unknown(u64),
}

impl Fence {
    fn of(token: u64, operation: &Operation, phase: Phase) -> Option<Self> {
        // As `token` in `src/log.rs` makes them.
        let class = token >> 56;
        match (class, operation) {
            (
                _,
                Operation::Read { .. }
                | Operation::ReadVectored { .. }
                | Operation::Discard { .. }
                | Operation::Write { durable: false, .. }
                | Operation::WriteVectored { durable: false, .. },
            ) => None,
            (0, Operation::Write { length, .. }) if *length > 4096 => Some(Self::Blank),
            (0, Operation::Write { .. }) => Some(Self::Superblock(phase)),
            (0, _) => Some(Self::Settle(phase)),
            (1, _) => Some(Self::LogWrite),
            // Those of a snapshot are durable for the sake of the commits beside it. What it
            // promises, its flush keeps: this disk heeds no such write.
            (2, _) => None,
            (3, _) => Some(Self::LogFlush),
            (4, _) => Some(Self::SnapshotFlush),
            (5, _) => Some(Self::SnapshotSuperblock),
            (6, _) => Some(Self::TruncateFlush),
            (7, _) => Some(Self::TruncateSuperblock),
            (10, _) => Some(Self::ProofSuperblock),
            _ => Some(Self::Unknown(class)),
        }
    }
}

struct Write {
    offset: usize,
    bytes: Vec<u8>,
    completed: bool,
    settled: bool,
}

/// The medium: what is on it, what may be on it, and what is asked of it.
pub(crate) struct Media {
    base: Vec<u8>,
    writes: Vec<Write>,
    pub budget: usize,
    pub events: usize,
    pub phase: Phase,
    /// The fence that this disk ignores.
    pub ignored: Option<Fence>,
    pub seen: Vec<Fence>,
    random: Random,
    block: usize,
    /// Bytes that the device writes in one piece.
    pub physical: usize,
}

impl Media {
    pub(crate) fn new(base: Vec<u8>, block: usize, seed: u64) -> Rc<RefCell<Self>> {
        Rc::new(RefCell::new(Self {
            base,
            writes: Vec::new(),
            budget: usize::MAX,
            events: 0,
            phase: Phase::Format,
            ignored: None,
            seen: Vec::new(),
            random: Random::new(seed),
            block,
            physical: block,
        }))
    }

    fn is_dead(&self) -> bool {
        self.events >= self.budget
    }

    /// Counts an event; `false` when the disk died before it.
    fn event(&mut self) -> bool {
        if self.is_dead() {
            return false;
        }
        self.events += 1;
        true
    }

    /// What a read sees: everything completed.
    fn read(&self, offset: usize, out: &mut [u8]) {
        out.copy_from_slice(&self.base[offset..offset + out.len()]);
        for write in self.writes.iter().filter(|write| write.completed) {
            let from = write.offset.max(offset);
            let to = (write.offset + write.bytes.len()).min(offset + out.len());
            if from < to {
                out[from - offset..to - offset]
                    .copy_from_slice(&write.bytes[from - write.offset..to - write.offset]);
            }
        }
    }

    /// The process dies: what is in flight completes or is lost.
    /// Returns the lost ones, which may yet land.
    pub(crate) fn kill(&mut self) -> Vec<(usize, Vec<u8>)> {
        let mut lost = Vec::new();
        let random = &mut self.random;
        self.writes.retain_mut(|write| {
            write.completed |= random.chance(50);
            if !write.completed {
                lost.push((write.offset, std::mem::take(&mut write.bytes)));
            }
            write.completed
        });
        self.budget = usize::MAX;
        lost
    }

    /// Sectors of `unit` bytes that power loss may take, and neighbours of writes that it may
    /// spoil.
    pub(crate) fn at_risk(&self, unit: usize) -> usize {
        let unsettled = self.writes.iter().filter(|write| !write.settled);
        unsettled.map(|write| write.bytes.len().div_ceil(unit) + self.neighbours(write).len()).sum()
    }

    /// What shares a piece of the device with a write: before it and behind it.
    fn neighbours(&self, write: &Write) -> Vec<std::ops::Range<usize>> {
        let end = write.offset + write.bytes.len();
        let (first, last) = (write.offset / self.physical, end.div_ceil(self.physical));
        let around = [first * self.physical..write.offset, end..last * self.physical];
        around.into_iter().filter(|range| !range.is_empty()).collect()
    }

    /// What is on the medium after power loss, if `kept` says which of the sectors at risk were
    /// written.
    pub(crate) fn after_power_loss(&self, unit: usize, mut kept: impl FnMut() -> bool) -> Vec<u8> {
        let mut image = self.base.clone();
        for write in &self.writes {
            for range in self.neighbours(write) {
                if !write.settled && !kept() {
                    image[range].fill(0xdb);
                }
            }
            for (index, sector) in write.bytes.chunks(unit).enumerate() {
                if write.settled || kept() {
                    let at = write.offset + index * unit;
                    image[at..at + sector.len()].copy_from_slice(sector);
                }
            }
        }
        image
    }
}

enum Request {
    Write { index: usize, durable: bool },
    Flush { covers: Vec<usize> },
    Read,
}

/// See the module's account.
pub(crate) struct CrashDisk {
    media: Rc<RefCell<Media>>,
    flying: Vec<(u64, Operation, Request)>,
}

impl CrashDisk {
    pub(crate) fn new(media: &Rc<RefCell<Media>>) -> Self {
        Self { media: Rc::clone(media), flying: Vec::new() }
    }

    fn accept(media: &mut Media, token: u64, operation: &mut Operation) -> Request {
        let fence = Fence::of(token, operation, media.phase);
        media.seen.extend(fence);
        let heeded = fence.is_none() || media.ignored != fence;
        let offset = operation.offset() as usize;
        let bytes = match operation {
            Operation::Read { length, buffer, .. } => {
                media.read(offset, &mut buffer[..*length]);
                return Request::Read;
            }
            Operation::ReadVectored { parts, .. } => {
                let mut at = offset;
                for Part { buffer, length } in parts {
                    media.read(at, &mut buffer[..*length]);
                    at += *length;
                }
                return Request::Read;
            }
            Operation::Flush => {
                let all = 0..media.writes.len();
                let covers = all.filter(|&index| heeded && media.writes[index].completed).collect();
                return Request::Flush { covers };
            }
            Operation::Write { length, buffer, .. } => buffer[..*length].to_vec(),
            Operation::WriteVectored { parts, .. } => {
                parts.iter().flat_map(|part| &part.buffer[..part.length]).copied().collect()
            }
            Operation::Discard { length, .. } => vec![0; *length as usize],
        };
        let durable = matches!(
            operation,
            Operation::Write { durable: true, .. } | Operation::WriteVectored { durable: true, .. }
        );
        media.writes.push(Write { offset, bytes, completed: false, settled: false });
        let durable = durable && heeded && fence.is_some();
        Request::Write { index: media.writes.len() - 1, durable }
    }
}

impl DiskQueue for CrashDisk {
    fn capacity(&self) -> u64 {
        self.media.borrow().base.len() as u64
    }

    fn block_size(&self) -> usize {
        self.media.borrow().block
    }

    fn physical_block_size(&self) -> usize {
        self.media.borrow().physical
    }

    fn depth(&self) -> usize {
        32
    }

    fn submit_with(
        &mut self,
        token: u64,
        mut operation: Operation,
        _priority: Priority,
    ) -> Result<(), SubmitError> {
        if !operation.is_within(self.capacity(), self.block_size()) {
            return Err(SubmitError::OutOfRange(operation));
        }
        if self.flying.len() >= self.depth() {
            return Err(SubmitError::Full(operation));
        }
        let mut media = self.media.borrow_mut();
        let reads = matches!(operation, Operation::Read { .. } | Operation::ReadVectored { .. });
        if reads || media.event() {
            let request = Self::accept(&mut media, token, &mut operation);
            self.flying.push((token, operation, request));
        }
        Ok(())
    }

    fn notify(&mut self) -> io::Result<()> {
        if self.media.borrow().is_dead() { Err(io::Error::other("dead")) } else { Ok(()) }
    }

    fn complete(&mut self, out: &mut Vec<Completion>) -> usize {
        let mut media = self.media.borrow_mut();
        let before = out.len();
        while !self.flying.is_empty() && (out.len() == before || media.random.chance(50)) {
            let pick = media.random.below(self.flying.len() as u64) as usize;
            if !matches!(self.flying[pick].2, Request::Read) && !media.event() {
                break;
            }
            let (token, operation, request) = self.flying.swap_remove(pick);
            match request {
                Request::Read => {}
                Request::Write { index, durable } => {
                    media.writes[index].completed = true;
                    media.writes[index].settled |= durable;
                }
                Request::Flush { covers } => {
                    for index in covers {
                        media.writes[index].settled = true;
                    }
                }
            }
            out.push(Completion::of(token, operation, Ok(())));
        }
        out.len() - before
    }

    fn wait(&mut self, _timeout: Duration) -> io::Result<()> {
        self.notify()
    }

    fn in_flight(&self) -> usize {
        self.flying.len()
    }
}
