//! One medium of a pool: a queue, and what is in flight on it.
//!
//! 1. Writes are queued: [`Medium::write`] returns before they are done. The buffers of nodes come
//!    back ([`Medium::returned`]), those of data are used again ([`Medium::spare`]). Adjacent
//!    writes of data to a disk become one request, which takes the disk as long as one of them.
//!    Memory is stored to a few writes later.
//! 2. A read waits. If a write to the same blocks is in flight, it waits for all writes first, and
//!    so does a second write to the same blocks.
//! 3. The first write that fails is remembered for good: [`Medium::drain`] returns it, so no commit
//!    succeeds from then on.
//! 4. Every wait ends: with a completion, or after [`PATIENCE`].

use std::io;
use std::time::Duration;

use sietch_disk::{BLOCK, Buffer, Completion, DiskQueue, MAX_PARTS, Operation, Part, SubmitError};

use super::Run;
use super::limits::{FIRST_BLOCK, MAX_RUN};
use super::slot::Slot;
use crate::error::Fault;
use crate::tree::Store;

/// What a medium is made of, fastest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Class {
    /// Byte-addressable persistent memory.
    Nvm = 1,
    /// A solid-state disk.
    Ssd = 2,
    /// A rotating disk.
    Hdd = 3,
}

impl Class {
    pub(super) fn from_byte(byte: u8) -> Option<Self> {
        [Self::Nvm, Self::Ssd, Self::Hdd].into_iter().find(|class| *class as u8 == byte)
    }
}

/// A medium, as it is given to a pool.
#[derive(Debug)]
pub struct Member<D> {
    /// What it is called in messages.
    pub name: String,
    /// What it is made of.
    pub class: Class,
    /// A queue over it, idle.
    pub disk: D,
}

/// How often a second is waited for a completion before the device counts as broken: longer than
/// any reset of a disk.
const PATIENCE: usize = 120;

/// Buffers that are kept, and their bytes: what a disk has in flight, of small and of large writes.
const SPARE_BUFFERS: usize = 512;
const SPARE_BYTES: usize = 16 << 20;

/// Bytes of data that are queued for memory before it is stored: they and their buffers stay in the
/// cache of a core.
const STORED: usize = 512 << 10;

/// Blocks of adjacent writes that become one request: 1 MiB, a large write of a disk.
const MERGED_BLOCKS: u32 = 256;
const _: () = assert!(MERGED_BLOCKS as usize <= MAX_PARTS);

/// What a request is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    Read,
    Flush,
    /// A write of data.
    Data,
    /// A write of nodes, with the token of its caller.
    Nodes(usize),
}

/// A request in flight.
#[derive(Clone, Copy, Debug)]
struct Request {
    token: u64,
    purpose: Purpose,
    run: Run,
}

/// See the module's account.
pub(super) struct Medium<D> {
    pub name: String,
    pub class: Class,
    pub blocks: u32,
    disk: Slot<D>,
    completions: Vec<Completion>,
    requests: Vec<Request>,
    /// A write of data that is not submitted yet: one behind it may become a part of it.
    pending: Option<(Run, Vec<Part>)>,
    /// Bytes of data for memory that are queued.
    unstored: usize,
    next_token: u64,
    /// Whether something was written since the last flush.
    written: bool,
    /// The first failed write, and its block.
    failure: Option<(u32, io::Error)>,
    /// The parts of written nodes.
    returned: Vec<(usize, Vec<Part>)>,
    /// Finished reads: token, block and result.
    read: Vec<(u64, u32, io::Result<Buffer>)>,
    flushed: Option<io::Result<()>>,
    /// Buffers of data that was written, to be used again: the kernel clears every page of a new
    /// one, which takes longer than copying the data.
    spare: Vec<Buffer>,
    spare_bytes: usize,
}

impl<D: DiskQueue> Medium<D> {
    pub(super) fn new(member: Member<D>) -> Self {
        let Member { name, class, disk } = member;
        let mut medium = Self::over(name, class, Slot::Filled(disk));
        medium.blocks = medium.capacity();
        medium
    }

    /// An empty slot, without blocks.
    pub(super) fn empty(slot: usize, class: Class) -> Self {
        Self::over(format!("the empty slot {slot}"), class, Slot::Empty)
    }

    fn over(name: String, class: Class, disk: Slot<D>) -> Self {
        Self {
            name,
            class,
            blocks: 0,
            disk,
            completions: Vec::new(),
            requests: Vec::new(),
            pending: None,
            unstored: 0,
            next_token: 0,
            written: false,
            failure: None,
            returned: Vec::new(),
            read: Vec::new(),
            flushed: None,
            spare: Vec::new(),
            spare_bytes: 0,
        }
    }

    pub(super) fn disk_mut(&mut self) -> &mut Slot<D> {
        &mut self.disk
    }

    /// Blocks that its queue has: those of the pool, and maybe more.
    pub(super) fn capacity(&self) -> u32 {
        // A number of a block has 32 bits.
        (self.disk.capacity() / BLOCK as u64).min(u64::from(u32::MAX)) as u32
    }

    /// The medium, if the slot has one.
    pub(super) fn into_member(self) -> Option<Member<D>> {
        let disk = self.disk.into_disk()?;
        Some(Member { name: self.name, class: self.class, disk })
    }

    fn fault(&self, action: &'static str, block: u32, length: usize, source: io::Error) -> Fault {
        Fault::Medium { medium: self.name.clone(), action, offset: offset(block), length, source }
    }

    /// Reads blocks; sees queued writes.
    pub(super) fn read(&mut self, run: Run) -> Result<Buffer, Fault> {
        let token = self.begin_read(run)?;
        loop {
            // Others are of reads that were given up.
            let mut read = std::mem::take(&mut self.read).into_iter();
            if let Some((_, _, result)) = read.find(|(other, ..)| *other == token) {
                return result.map_err(|e| self.fault("read", run.start, run.bytes(), e));
            }
            self.wait().map_err(|e| self.fault("read", run.start, run.bytes(), e))?;
        }
    }

    /// Copies blocks, if the medium is memory and no queued write changes them. Returns whether it
    /// did.
    pub(super) fn read_now(&mut self, run: Run, out: &mut [u8]) -> bool {
        self.requests.is_empty() && self.pending.is_none() && self.disk.read_now(offset(run.start), out)
    }

    fn begin_read(&mut self, run: Run) -> Result<u64, Fault> {
        if self.overlaps(run) {
            self.drain()?;
        }
        let length = run.bytes();
        let read = Operation::Read { offset: offset(run.start), length, buffer: Buffer::new(length) };
        self.submit(Purpose::Read, run, read).map_err(|e| self.fault("read", run.start, length, e))
    }

    /// Reads single blocks, as many together as the queue takes. `each` gets them in any order.
    pub(super) fn read_many(
        &mut self,
        blocks: &[u32],
        each: &mut dyn FnMut(&Self, u32, Buffer) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        let first = self.next_token;
        let (mut next, mut left) = (blocks.iter(), blocks.len());
        while left > 0 {
            while self.requests.len() < self.disk.depth()
                && let Some(block) = next.next()
            {
                self.begin_read(Run { medium: 0, start: *block, blocks: 1 })?;
            }
            if self.read.is_empty() {
                self.wait().map_err(|e| self.fault("read", 0, BLOCK, e))?;
            }
            for (token, block, result) in std::mem::take(&mut self.read) {
                if token < first {
                    continue;
                }
                left -= 1;
                let buffer = result.map_err(|e| self.fault("read", block, BLOCK, e))?;
                each(self, block, buffer)?;
            }
        }
        Ok(())
    }

    fn overlaps(&self, run: Run) -> bool {
        let is_write = |purpose| matches!(purpose, Purpose::Data | Purpose::Nodes(_));
        self.pending.as_ref().is_some_and(|(pending, _)| pending.overlaps(run))
            || self.requests.iter().any(|other| is_write(other.purpose) && other.run.overlaps(run))
    }

    /// A kept buffer of at least so many bytes, with any content.
    pub(super) fn spare(&mut self, bytes: usize) -> Option<Buffer> {
        let fitting = self.spare.iter().rposition(|buffer| buffer.len() >= bytes)?;
        let buffer = self.spare.swap_remove(fitting);
        self.spare_bytes -= buffer.len();
        Some(buffer)
    }

    /// Takes a buffer that is not used.
    pub(super) fn keep(&mut self, buffer: Buffer) {
        if self.spare.len() < SPARE_BUFFERS && self.spare_bytes + buffer.len() <= SPARE_BYTES {
            self.spare_bytes += buffer.len();
            self.spare.push(buffer);
        }
    }

    /// Queues a write of data.
    pub(super) fn write(&mut self, run: Run, buffer: Buffer) -> Result<(), Fault> {
        let part = Part { buffer, length: run.bytes() };
        if let Some((pending, parts)) = &mut self.pending
            && pending.end() == run.start
            && pending.blocks + run.blocks <= MERGED_BLOCKS
        {
            pending.blocks += run.blocks;
            parts.push(part);
            return Ok(());
        }
        self.submit_pending()?;
        self.pending = Some((run, vec![part]));
        if self.class == Class::Nvm { self.store_pending(run) } else { Ok(()) }
    }

    /// Submits a write to memory: stores cost the same in any number of requests. Nothing gains
    /// from a long queue of them.
    fn store_pending(&mut self, run: Run) -> Result<(), Fault> {
        self.submit_pending()?;
        self.unstored += run.bytes();
        if self.unstored < STORED {
            return Ok(());
        }
        self.unstored = 0;
        self.wait().map_err(|e| self.fault("write", run.start, run.bytes(), e))
    }

    fn submit_pending(&mut self) -> Result<(), Fault> {
        let Some((run, mut parts)) = self.pending.take() else { return Ok(()) };
        let offset = offset(run.start);
        let write = match parts.pop() {
            Some(Part { buffer, length }) if parts.is_empty() => {
                Operation::Write { offset, length, buffer, durable: false }
            }
            last => {
                parts.extend(last);
                Operation::WriteVectored { offset, parts, durable: false }
            }
        };
        self.queue(Purpose::Data, run, write)
    }

    /// Queues a write of adjacent nodes, whose buffers come back with this token.
    pub(super) fn write_nodes(&mut self, token: usize, run: Run, parts: Vec<Part>) -> Result<(), Fault> {
        let write = Operation::WriteVectored { offset: offset(run.start), parts, durable: false };
        self.queue(Purpose::Nodes(token), run, write)
    }

    fn queue(&mut self, purpose: Purpose, run: Run, operation: Operation) -> Result<(), Fault> {
        if self.overlaps(run) {
            self.drain()?;
        }
        self.written = true;
        let submitted = self.submit(purpose, run, operation);
        submitted.map(drop).map_err(|e| self.fault("write", run.start, run.bytes(), e))
    }

    /// Writes blocks, durably, and waits.
    pub(super) fn write_durable(&mut self, blocks: &[u32], bytes: &[u8]) -> Result<(), Fault> {
        for block in blocks {
            let mut buffer = Buffer::new(BLOCK);
            buffer.copy_from_slice(bytes);
            let write = Operation::Write { offset: offset(*block), length: BLOCK, buffer, durable: true };
            let run = Run { medium: 0, start: *block, blocks: 1 };
            self.submit(Purpose::Data, run, write).map_err(|e| self.fault("write", *block, BLOCK, e))?;
        }
        self.drain()
    }

    /// Submits, after waiting for room if need be.
    fn submit(&mut self, purpose: Purpose, run: Run, mut operation: Operation) -> io::Result<u64> {
        let token = self.next_token;
        self.next_token += 1;
        loop {
            operation = match self.disk.submit(token, operation) {
                Ok(()) => break,
                Err(SubmitError::Full(operation)) => operation,
                Err(SubmitError::OutOfRange(_)) => {
                    return Err(io::Error::other("the disk queue refused a request inside its medium"));
                }
            };
            self.wait()?;
        }
        self.requests.push(Request { token, purpose, run });
        Ok(token)
    }

    /// Waits for a completion, and takes all that there are.
    fn wait(&mut self) -> io::Result<()> {
        for _ in 0..PATIENCE {
            self.disk.wait(Duration::from_secs(1))?;
            if self.disk.complete(&mut self.completions) > 0 {
                self.settle();
                return Ok(());
            }
        }
        Err(io::ErrorKind::TimedOut.into())
    }

    fn settle(&mut self) {
        let mut written = Vec::new();
        for Completion { token, result, buffer, parts } in self.completions.drain(..) {
            let Some(at) = self.requests.iter().position(|request| request.token == token) else { continue };
            let Request { purpose, run, .. } = self.requests.swap_remove(at);
            match purpose {
                Purpose::Read => {
                    let lost = || io::Error::other("the queue kept the buffer");
                    self.read.push((token, run.start, result.and_then(|()| buffer.ok_or_else(lost))));
                }
                Purpose::Flush => self.flushed = Some(result),
                Purpose::Data | Purpose::Nodes(_) => {
                    if let Err(error) = result {
                        self.failure.get_or_insert((run.start, error));
                    }
                    if let Purpose::Nodes(token) = purpose {
                        self.returned.push((token, parts));
                    } else {
                        let parts = parts.into_iter().map(|part| part.buffer);
                        written.extend(buffer.into_iter().chain(parts));
                    }
                }
            }
        }
        written.into_iter().for_each(|buffer| self.keep(buffer));
    }

    /// Waits until nothing is in flight.
    ///
    /// # Errors
    /// The first write that failed, on every call from then on.
    pub(super) fn drain(&mut self) -> Result<(), Fault> {
        self.submit_pending()?;
        while let Some(first) = self.requests.first().map(|request| request.run) {
            self.wait().map_err(|e| self.fault("write", first.start, first.bytes(), e))?;
        }
        match &self.failure {
            Some((block, error)) => Err(self.fault("write", *block, BLOCK, again(error))),
            None => Ok(()),
        }
    }

    /// Takes the buffers of written nodes.
    pub(super) fn returned(&mut self) -> Vec<(usize, Vec<Part>)> {
        std::mem::take(&mut self.returned)
    }

    /// Begins to flush what was written, if anything was. No write may be in flight.
    pub(super) fn begin_flush(&mut self) -> Result<bool, Fault> {
        if !std::mem::take(&mut self.written) {
            return Ok(false);
        }
        self.submit(Purpose::Flush, Run { medium: 0, start: 0, blocks: 0 }, Operation::Flush)
            .and_then(|_| self.disk.notify())
            .map_err(|e| self.fault("flush", 0, 0, e))?;
        Ok(true)
    }

    /// Waits for the flush.
    pub(super) fn end_flush(&mut self) -> Result<(), Fault> {
        loop {
            if let Some(result) = self.flushed.take() {
                return result.map_err(|e| self.fault("flush", 0, 0, e));
            }
            self.wait().map_err(|e| self.fault("flush", 0, 0, e))?;
        }
    }

    /// Flushes, whether or not this process has written anything.
    pub(super) fn flush(&mut self) -> Result<(), Fault> {
        self.written = true;
        self.begin_flush()?;
        self.end_flush()
    }
}

/// The same error once more.
fn again(error: &io::Error) -> io::Error {
    let copy = || io::Error::new(error.kind(), error.to_string());
    error.raw_os_error().map_or_else(copy, io::Error::from_raw_os_error)
}

/// Where a block begins, in bytes.
pub(super) fn offset(block: u32) -> u64 {
    u64::from(block) * BLOCK as u64
}

impl<D: DiskQueue> Store for Medium<D> {
    fn read_block(&mut self, block: u32) -> Result<Buffer, Fault> {
        if block >= self.blocks {
            return Err(self.damaged(block, "it is behind the end of the medium".into()));
        }
        self.read(Run { medium: 0, start: block, blocks: 1 })
    }

    fn damaged(&self, block: u32, cause: String) -> Fault {
        Fault::Damaged { medium: self.name.clone(), what: "node".into(), offset: offset(block), cause }
    }
}

/// Refuses a run that cannot be one of data.
pub(super) fn check_run<D: DiskQueue>(media: &[Medium<D>], run: Run) -> Result<(), Fault> {
    let refused = |name: &str, cause: String| Err(Fault::Refused { medium: name.to_owned(), cause });
    let Some(medium) = media.get(usize::from(run.medium)) else {
        let home = media.first().map_or("", |medium| &medium.name);
        return refused(home, format!("{run:?} is on none of {} media", media.len()));
    };
    let is_inside = run.start >= FIRST_BLOCK
        && (1..=MAX_RUN).contains(&run.blocks)
        && run.start.checked_add(run.blocks).is_some_and(|end| end <= medium.blocks);
    if !is_inside {
        return refused(&medium.name, format!("{run:?} is not inside its {} blocks", medium.blocks));
    }
    Ok(())
}
