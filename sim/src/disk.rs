//! A disk that keeps only what its contract promises (see `sietch_disk::queue`).
//!
//! 1. [`Media`] survives: it has a durable image and, for each 512-byte sector, the newer versions
//!    in the volatile cache. [`SimDisk`] is the queue of one process on it; reads return the newest
//!    completed version.
//! 2. Requests complete in random order after a random number of polls.
//! 3. A write with the durable flag is durable when it completes. Any other write is volatile until
//!    a flush completes that was submitted after it.
//! 4. Each submission of a write or flush is a *boundary*, and so is each completion of one.
//!    [`Media::power_off_at`] stops the device at the n-th boundary. Nothing completes after that,
//!    so a test can enumerate every crash point.
//! 5. [`Media::crash`] then decides each sector alone. A sector keeps its durable version, any
//!    newer version, or that of a write in flight, possibly torn at [`Options::tear`] bytes. If
//!    [`Options::physical`] is larger than a sector, an in-flight or volatile write may corrupt the
//!    rest of its physical block.
//! 6. [`Media::kill`] is the death of the process alone. Completed writes stay. Writes in flight
//!    reach the medium in any order, or never, but all before the next process opens the medium.
//!    The lock of a real area guarantees the same.
//! 7. [`Media::inject`] makes the n-th write from now fail, report false success, write elsewhere,
//!    or get a wrong bit later.
//! 8. A discard is a volatile write of zeros: boundaries, crashes and faults treat it as any other.

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::rc::Rc;
use std::time::Duration;

use sietch_disk::{Buffer, Completion, DiskQueue, Operation, Part, Priority, SubmitError};

use crate::Random;

#[cfg(test)]
mod tests;

/// Bytes in a sector: what the simulated medium writes in one piece, unless it tears.
pub const SECTOR: usize = 512;

/// How a disk behaves.
#[derive(Debug, Clone)]
pub struct Options {
    /// Bytes in the area.
    pub capacity: usize,
    /// The value of [`DiskQueue::block_size`].
    pub block_size: usize,
    /// Bytes that the device reads, changes and writes back for a smaller write: a multiple of
    /// [`SECTOR`].
    pub physical: usize,
    /// Requests in flight together.
    pub depth: usize,
    /// A torn sector is torn at multiples of this many bytes; 512 never tears inside a sector.
    pub tear: usize,
    /// The longest a request takes, in polls.
    pub patience: u64,
}

impl Options {
    /// A disk with a capacity in bytes: 512-byte sectors, queue depth 16, at most 3 polls a
    /// request.
    pub fn new(capacity: usize) -> Self {
        Self { capacity, block_size: SECTOR, physical: SECTOR, depth: 16, tear: SECTOR, patience: 3 }
    }
}

/// A fault of one write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// It fails with this errno and writes nothing.
    Error(i32),
    /// It succeeds; later one bit of it is wrong.
    BitRot,
    /// It succeeds, but writes at an offset that is this many bytes too high.
    Misdirected(u64),
    /// It succeeds, but writes nothing.
    Lost,
}

/// The data that a power loss keeps beyond the durable ones.
#[derive(Debug)]
pub enum Crash {
    /// Nothing.
    Nothing,
    /// Everything, writes in flight included.
    Everything,
    /// A random version of each sector.
    Random(Random),
}

type Sector = Box<[u8; SECTOR]>;

struct Request {
    token: u64,
    operation: Operation,
    /// Polls until it completes.
    patience: u64,
    fault: Option<Fault>,
    /// For a flush: the newest version that it covers.
    covers: u64,
    notified: bool,
}

struct State {
    options: Options,
    durable: Vec<u8>,
    volatile: BTreeMap<u64, Vec<(u64, Sector)>>,
    requests: Vec<Request>,
    version: u64,
    boundaries: u64,
    off_at: Option<u64>,
    off: bool,
    writes: u64,
    faults: Vec<(u64, Fault)>,
    process: u64,
    random: Random,
}

/// The medium. Clones are the same medium.
#[derive(Clone)]
pub struct Media {
    state: Rc<RefCell<State>>,
}

/// The queue of one process on a medium. After [`Media::kill`] or a power loss it completes
/// nothing.
pub struct SimDisk {
    state: Rc<RefCell<State>>,
    process: u64,
    capacity: u64,
    block_size: usize,
    physical: usize,
    depth: usize,
}

impl std::fmt::Debug for Media {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = self.state.borrow();
        f.debug_struct("Media")
            .field("boundaries", &state.boundaries)
            .field("off", &state.off)
            .finish_non_exhaustive()
    }
}

impl std::fmt::Debug for SimDisk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SimDisk").field("process", &self.process).finish_non_exhaustive()
    }
}

impl Media {
    /// A zeroed medium.
    pub fn new(options: Options, random: Random) -> Self {
        let durable = vec![0; options.capacity];
        Self {
            state: Rc::new(RefCell::new(State {
                options,
                durable,
                volatile: BTreeMap::new(),
                requests: Vec::new(),
                version: 0,
                boundaries: 0,
                off_at: None,
                off: false,
                writes: 0,
                faults: Vec::new(),
                process: 0,
                random,
            })),
        }
    }

    /// Opens a queue for a new process. The previous queue completes nothing more. Call
    /// [`Media::kill`] or [`Media::crash`] first to decide what becomes of its requests; otherwise
    /// they never reach the medium.
    pub fn open(&self) -> SimDisk {
        let mut state = self.state.borrow_mut();
        state.process += 1;
        state.requests.clear();
        SimDisk {
            state: Rc::clone(&self.state),
            process: state.process,
            capacity: state.options.capacity as u64,
            block_size: state.options.block_size,
            physical: state.options.physical,
            depth: state.options.depth,
        }
    }

    /// Boundaries passed so far.
    pub fn boundaries(&self) -> u64 {
        self.state.borrow().boundaries
    }

    /// Stops the device at the `boundary`-th boundary from the beginning (the first is 1).
    pub fn power_off_at(&self, boundary: u64) {
        self.state.borrow_mut().off_at = Some(boundary);
    }

    /// Stops the device now.
    pub fn power_off(&self) {
        self.state.borrow_mut().off = true;
    }

    /// Whether the device has stopped.
    pub fn is_off(&self) -> bool {
        self.state.borrow().off
    }

    /// Injects a fault into the `nth` write or discard from now (the first is 1).
    pub fn inject(&self, nth: u64, fault: Fault) {
        let mut state = self.state.borrow_mut();
        let at = state.writes + nth;
        state.faults.push((at, fault));
    }

    /// Restores power after a loss: decides every sector, then the device works again.
    pub fn crash(&self, how: Crash) {
        match how {
            Crash::Nothing => self.crash_with(|_| 0),
            Crash::Everything => self.crash_with(|choices| choices - 1),
            Crash::Random(mut random) => self.crash_with(|choices| random.index(choices)),
        }
    }

    /// Settles every sector by `choose`, which gets the number of possible versions and returns an
    /// index. The first version is the durable one, the last the newest. For a torn sector,
    /// `choose` is called once more for the tear offset.
    pub fn crash_with(&self, mut choose: impl FnMut(usize) -> usize) {
        let state = &mut *self.state.borrow_mut();
        let mut candidates = std::mem::take(&mut state.volatile);
        let mut torn_from: BTreeMap<u64, usize> = BTreeMap::new();
        for request in state.requests.drain(..) {
            if let Some(bytes) = written(&request.operation) {
                for (sector, data) in sectors(request.operation.offset(), &bytes) {
                    let versions = candidates.entry(sector).or_default();
                    torn_from.entry(sector).or_insert(versions.len() + 1);
                    versions.push((u64::MAX, data));
                }
            }
        }
        spoil(state, &candidates, &mut choose);
        for (sector, versions) in candidates {
            let chosen = choose(versions.len() + 1);
            let start = sector as usize * SECTOR;
            if chosen == 0 {
                continue;
            }
            let in_flight = torn_from.get(&sector).is_some_and(|first| chosen >= *first);
            let pieces = SECTOR / state.options.tear;
            let kept = if in_flight && pieces > 1 { choose(pieces + 1) * state.options.tear } else { SECTOR };
            if kept < SECTOR
                && let Some(below) = chosen.checked_sub(2)
            {
                let (_, older) = &versions[below];
                state.durable[start..start + SECTOR].copy_from_slice(&older[..]);
            }
            let (_, data) = &versions[chosen - 1];
            state.durable[start..start + kept].copy_from_slice(&data[..kept]);
        }
        state.off = false;
        state.off_at = None;
    }

    /// An independent copy of the medium, requests in flight included, so that one run can end in
    /// several crashes. Queues stay with the medium that they were opened on.
    pub fn fork(&self, random: Random) -> Self {
        let state = self.state.borrow();
        let requests = state
            .requests
            .iter()
            .map(|request| Request { operation: copy(&request.operation), ..*request })
            .collect();
        Self {
            state: Rc::new(RefCell::new(State {
                options: state.options.clone(),
                durable: state.durable.clone(),
                volatile: state.volatile.clone(),
                requests,
                faults: state.faults.clone(),
                random,
                ..*state
            })),
        }
    }

    /// Kills the process but not the machine: each write in flight reaches the medium or does not,
    /// in any order. It does so before the medium is opened again, because an area's lock lives as
    /// long as its last request (`sietch_disk::area`).
    pub fn kill(&self) {
        let state = &mut *self.state.borrow_mut();
        state.process += 1;
        let mut requests = std::mem::take(&mut state.requests);
        while !requests.is_empty() {
            let next = state.random.index(requests.len());
            let request = requests.swap_remove(next);
            if let Some(bytes) = written(&request.operation)
                && state.random.below(3) > 0
            {
                state.store(request.operation.offset(), &bytes, false);
            }
        }
    }

    /// A copy of what a power loss now would certainly keep.
    pub fn image(&self) -> Vec<u8> {
        self.state.borrow().durable.clone()
    }

    /// Flips one bit of the durable image.
    pub fn rot(&self, byte: usize, bit: u8) {
        self.state.borrow_mut().durable[byte] ^= 1 << (bit & 7);
    }
}

/// May corrupt each physical block of which some sectors were being written: the sectors that no
/// write covered become garbage.
fn spoil(
    state: &mut State,
    candidates: &BTreeMap<u64, Vec<(u64, Sector)>>,
    choose: &mut impl FnMut(usize) -> usize,
) {
    let together = (state.options.physical / SECTOR) as u64;
    let pieces: BTreeSet<u64> = candidates.keys().map(|sector| sector / together).collect();
    for piece in pieces {
        let sectors = piece * together..(piece + 1) * together;
        let mut others = sectors.filter(|sector| !candidates.contains_key(sector)).peekable();
        if others.peek().is_some() && choose(2) == 0 {
            for sector in others {
                let start = sector as usize * SECTOR;
                state.durable[start..start + SECTOR].fill(0xdb);
            }
        }
    }
}

fn copy(operation: &Operation) -> Operation {
    let again = |buffer: &Buffer| {
        let mut copy = Buffer::new(buffer.len());
        copy.copy_from_slice(buffer);
        copy
    };
    let all = |parts: &[Part]| {
        parts.iter().map(|part| Part { buffer: again(&part.buffer), length: part.length }).collect()
    };
    match operation {
        Operation::Read { offset, length, buffer } => {
            Operation::Read { offset: *offset, length: *length, buffer: again(buffer) }
        }
        Operation::Write { offset, length, buffer, durable } => {
            Operation::Write { offset: *offset, length: *length, buffer: again(buffer), durable: *durable }
        }
        Operation::Flush => Operation::Flush,
        Operation::ReadVectored { offset, parts } => {
            Operation::ReadVectored { offset: *offset, parts: all(parts) }
        }
        Operation::WriteVectored { offset, parts, durable } => {
            Operation::WriteVectored { offset: *offset, parts: all(parts), durable: *durable }
        }
        Operation::Discard { offset, length } => Operation::Discard { offset: *offset, length: *length },
    }
}

/// The bytes that a request writes to the medium, if it changes it.
fn written(operation: &Operation) -> Option<Cow<'_, [u8]>> {
    match operation {
        Operation::Write { length, buffer, .. } => Some(Cow::Borrowed(&buffer[..*length])),
        Operation::WriteVectored { parts, .. } => {
            Some(parts.iter().flat_map(|part| &part.buffer[..part.length]).copied().collect())
        }
        // The area is in memory, so its length fits.
        Operation::Discard { length, .. } => Some(vec![0; *length as usize].into()),
        Operation::Read { .. } | Operation::ReadVectored { .. } | Operation::Flush => None,
    }
}

/// Splits bytes into sectors; `offset` is a multiple of [`SECTOR`]. A partial last sector is filled
/// with zeros.
fn sectors(offset: u64, bytes: &[u8]) -> impl Iterator<Item = (u64, Sector)> + '_ {
    bytes.chunks(SECTOR).zip(offset / SECTOR as u64..).map(|(chunk, sector)| {
        let mut data = Box::new([0; SECTOR]);
        data[..chunk.len()].copy_from_slice(chunk);
        (sector, data)
    })
}

impl State {
    fn boundary(&mut self) {
        self.boundaries += 1;
        if self.off_at.is_some_and(|at| self.boundaries >= at) {
            self.off = true;
        }
    }

    fn store(&mut self, offset: u64, bytes: &[u8], durable: bool) {
        self.version += 1;
        for (sector, data) in sectors(offset, bytes) {
            let start = sector as usize * SECTOR;
            if durable {
                self.durable[start..start + SECTOR].copy_from_slice(&data[..]);
                self.volatile.remove(&sector);
            } else {
                self.volatile.entry(sector).or_default().push((self.version, data));
            }
        }
    }

    fn load(&self, offset: u64, out: &mut [u8]) {
        let start = offset as usize;
        let end = start + out.len();
        out.copy_from_slice(&self.durable[start..end]);
        let first = offset / SECTOR as u64;
        for (sector, versions) in self.volatile.range(first..end.div_ceil(SECTOR) as u64) {
            if let Some((_, data)) = versions.last() {
                let at = (sector - first) as usize * SECTOR;
                let length = SECTOR.min(out.len() - at);
                out[at..at + length].copy_from_slice(&data[..length]);
            }
        }
    }

    fn flush(&mut self, covers: u64) {
        for (sector, versions) in &mut self.volatile {
            let start = *sector as usize * SECTOR;
            let done = versions.iter().take_while(|(version, _)| *version <= covers).count();
            if let Some((_, data)) = versions.drain(..done).next_back() {
                self.durable[start..start + SECTOR].copy_from_slice(&data[..]);
            }
        }
        self.volatile.retain(|_, versions| !versions.is_empty());
    }

    fn finish(&mut self, request: Request) -> Completion {
        let Request { token, mut operation, fault, covers, .. } = request;
        let mut result = Ok(());
        match &mut operation {
            Operation::Read { offset, length, buffer } => self.load(*offset, &mut buffer[..*length]),
            Operation::ReadVectored { offset, parts } => {
                let mut at = *offset;
                for Part { buffer, length } in parts {
                    self.load(at, &mut buffer[..*length]);
                    at += *length as u64;
                }
            }
            Operation::Flush => {
                self.flush(covers);
                self.boundary();
            }
            Operation::Write { .. } | Operation::WriteVectored { .. } | Operation::Discard { .. } => {
                result = self.change(&operation, fault);
                self.boundary();
            }
        }
        Completion::of(token, operation, result)
    }

    /// Applies a request that changes the medium, or the fault that was injected into it.
    fn change(&mut self, operation: &Operation, fault: Option<Fault>) -> io::Result<()> {
        let Some(bytes) = written(operation) else { return Ok(()) };
        let offset = operation.offset();
        let durable = matches!(operation, Operation::Write { durable, .. } | Operation::WriteVectored { durable, .. } if *durable);
        match fault {
            None => self.store(offset, &bytes, durable),
            Some(Fault::Error(errno)) => return Err(io::Error::from_raw_os_error(errno)),
            Some(Fault::Lost) => {}
            Some(Fault::BitRot) => {
                let mut rotten = bytes.into_owned();
                let at = self.random.index(rotten.len());
                rotten[at] ^= 1 << self.random.below(8);
                self.store(offset, &rotten, durable);
            }
            Some(Fault::Misdirected(by)) => {
                let furthest = self.options.capacity - bytes.len();
                let elsewhere = ((offset + by) as usize).min(furthest) / SECTOR * SECTOR;
                self.store(elsewhere as u64, &bytes, durable);
            }
        }
        Ok(())
    }
}

impl SimDisk {
    fn silent(&self) -> bool {
        let state = self.state.borrow();
        state.off || state.process != self.process
    }
}

impl DiskQueue for SimDisk {
    fn capacity(&self) -> u64 {
        self.capacity
    }

    fn block_size(&self) -> usize {
        self.block_size
    }

    fn physical_block_size(&self) -> usize {
        self.physical
    }

    fn depth(&self) -> usize {
        self.depth
    }

    fn submit_with(
        &mut self,
        token: u64,
        operation: Operation,
        _priority: Priority,
    ) -> Result<(), SubmitError> {
        if !operation.is_within(self.capacity, self.block_size) {
            return Err(SubmitError::OutOfRange(operation));
        }
        if self.silent() {
            return Ok(());
        }
        let state = &mut *self.state.borrow_mut();
        if state.requests.len() >= self.depth {
            return Err(SubmitError::Full(operation));
        }
        let mut fault = None;
        if operation.changes() {
            state.writes += 1;
            let number = state.writes;
            if let Some(at) = state.faults.iter().position(|(nth, _)| *nth == number) {
                fault = Some(state.faults.remove(at).1);
            }
        }
        if operation.changes() || matches!(operation, Operation::Flush) {
            state.boundary();
        }
        let patience = state.random.between(0, state.options.patience);
        let covers = state.version;
        state.requests.push(Request { token, operation, patience, fault, covers, notified: false });
        Ok(())
    }

    fn notify(&mut self) -> io::Result<()> {
        if !self.silent() {
            for request in &mut self.state.borrow_mut().requests {
                request.notified = true;
            }
        }
        Ok(())
    }

    fn complete(&mut self, out: &mut Vec<Completion>) -> usize {
        let before = out.len();
        if self.silent() {
            return 0;
        }
        let state = &mut *self.state.borrow_mut();
        let mut order: Vec<u64> = (0..state.requests.len() as u64).collect();
        for at in (1..order.len()).rev() {
            order.swap(at, state.random.index(at + 1));
        }
        for request in &mut state.requests {
            request.patience = request.patience.saturating_sub(u64::from(request.notified));
        }
        let mut due: Vec<u64> = order
            .into_iter()
            .filter(|at| {
                let request = &state.requests[*at as usize];
                request.notified && request.patience == 0
            })
            .map(|at| state.requests[at as usize].token)
            .collect();
        for token in due.drain(..) {
            if state.off {
                break;
            }
            if let Some(at) =
                state.requests.iter().position(|request| request.token == token && request.notified)
            {
                let request = state.requests.remove(at);
                let completion = state.finish(request);
                // Power was lost at the boundary of this completion: it is not reported.
                if !state.off {
                    out.push(completion);
                }
            }
        }
        out.len() - before
    }

    fn wait(&mut self, _timeout: Duration) -> io::Result<()> {
        self.notify()?;
        if self.silent() {
            return Err(io::Error::other("the simulated device has no power"));
        }
        let state = &mut *self.state.borrow_mut();
        let count = state.requests.len();
        if count > 0 {
            let lucky = state.random.index(count);
            state.requests[lucky].patience = 0;
        }
        Ok(())
    }

    fn in_flight(&self) -> usize {
        if self.silent() { 0 } else { self.state.borrow().requests.len() }
    }
}
