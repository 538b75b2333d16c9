//! Makes a log durable on a disk, where memory does not survive a loss of power.
//!
//! 1. The ring is in ordinary memory, which survives the process. Position for position it has a
//!    copy on a disk area, as far as programs have asked for it.
//! 2. [`Mirror::sync`] asks for everything that is in the log now. Requests gather while a *group*
//!    is being written; the next group is for all of them.
//! 3. A group begins with a pad to a whole block of the disk. So a block is written once in a lap:
//!    what was acknowledged never shares one with what is written later, which a loss of power may
//!    destroy with it.
//! 4. A group is written by durable writes, all in flight together. It is complete when all of them
//!    are. Only then does the writer say in its records that those before are durable.
//! 5. What the digest has already need not be written.
//! 6. After a crash [`Mirror::load`] reads the ring back. A crash in a group can leave later
//!    records without earlier ones, so the log must be digested up to its end and go on under a new
//!    epoch: then none of the later ones is valid.
//! 7. After a failed write the mirror is stopped for good: nothing can say what the disk has.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use sietch_disk::nvm::Medium;
use sietch_disk::{BLOCK, Buffer, Completion, DiskQueue, Operation, SubmitError, superblock_copies};

use crate::log::ring::Ring;
use crate::log::writer::{Durability, LogWriter};

/// Bytes of one request: a disk is at its full bandwidth well below, and copies are bounded.
const REQUEST: usize = 256 << 10;

/// Requests of a group in flight together: with their buffers they take 4 MiB.
const IN_FLIGHT: usize = 16;

/// Seconds that a read may take when a log is loaded, as a superblock's may.
const PATIENCE: usize = 60;

/// Why the mirror cannot make anything durable.
#[derive(Clone, Debug, thiserror::Error)]
pub enum MirrorError {
    /// The disk and the log do not fit.
    #[error("the disk cannot mirror the log: {cause}")]
    Misfit {
        /// What does not fit.
        cause: &'static str,
    },
    /// A request failed; nothing is made durable from then on.
    #[error(
        "the mirror of the log: {action} {length} bytes at {offset}: {source}; what was acknowledged before is safe, restart with another disk"
    )]
    Failed {
        /// "write", "read" or "notify".
        action: &'static str,
        /// First byte on the disk.
        offset: u64,
        /// Bytes.
        length: usize,
        /// What the disk says.
        source: Arc<io::Error>,
    },
}

/// What is on the disk of a log that was loaded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Loaded {
    /// Offsets of blocks of 4096 bytes that cannot be read; they are zeros in memory. A record that
    /// was acknowledged may be missing at the end of the log if its block is among them.
    pub unreadable: Vec<u64>,
}

/// The writes of a range, in flight together.
#[derive(Debug)]
struct Group {
    /// First position that was not submitted yet, and the first behind the group.
    next: u64,
    end: u64,
    /// The last record in it.
    sequence: u64,
    in_flight: usize,
}

/// The module's header describes it.
#[derive(Debug)]
pub struct Mirror<D: DiskQueue> {
    disk: D,
    ring: Ring,
    block: u64,
    /// Everything before is durable: here, which is whole blocks, or because it was digested.
    persisted: u64,
    /// What is asked for.
    wanted: u64,
    group: Option<Group>,
    spare: Vec<Buffer>,
    completions: Vec<Completion>,
    failure: Option<MirrorError>,
}

impl<D: DiskQueue> Mirror<D> {
    /// Mirrors the log of `writer` from its oldest undigested record on.
    ///
    /// # Errors
    /// [`MirrorError::Misfit`].
    pub fn new<M: Medium>(disk: D, writer: &LogWriter<M>) -> Result<Self, MirrorError> {
        let misfit = |cause| Err(MirrorError::Misfit { cause });
        let Durability::Sync { block } = writer.durability() else {
            return misfit("every operation of the log is durable without it");
        };
        if !block.is_multiple_of(disk.physical_block_size().max(disk.block_size())) {
            return misfit("blocks of the log are not whole blocks of the disk");
        }
        let ring = writer.ring();
        check_size(&disk, ring.bytes())?;
        let persisted = writer.reclaimed();
        Ok(Self {
            disk,
            ring,
            block: block as u64,
            persisted,
            wanted: persisted,
            group: None,
            spare: Vec::new(),
            completions: Vec::new(),
            failure: None,
        })
    }

    /// Asks for all records that are in the log now, and returns the position before which all is
    /// durable then. [`Mirror::poll`] does the rest.
    pub fn sync<M: Medium>(&mut self, writer: &LogWriter<M>) -> u64 {
        let end = writer.next_position();
        self.wanted = self.wanted.max(end);
        end
    }

    /// Everything before this position is durable.
    pub fn persisted(&self) -> u64 {
        self.persisted
    }

    /// Whether everything that was asked for is durable.
    pub fn is_idle(&self) -> bool {
        self.group.is_none() && self.persisted >= self.wanted
    }

    /// Takes what the disk has done, begins what is next, and returns the position before which
    /// all is durable. `writer` is the one that the mirror was made for.
    ///
    /// # Errors
    /// [`MirrorError::Failed`], from the first failure on.
    pub fn poll<M: Medium>(&mut self, writer: &mut LogWriter<M>) -> Result<u64, MirrorError> {
        self.take_completions();
        if self.failure.is_none() {
            self.finish_group(writer);
            self.begin_group(writer);
            self.submit(writer);
        }
        self.failure.clone().map_or(Ok(self.persisted), Err)
    }

    /// Waits until the disk has done something, at most `timeout`: for a thread that has nothing
    /// else to do.
    ///
    /// # Errors
    /// [`MirrorError::Failed`].
    pub fn wait(&mut self, timeout: Duration) -> Result<(), MirrorError> {
        let waited = self.disk.wait(timeout);
        self.check_queue(waited);
        self.failure.clone().map_or(Ok(()), Err)
    }

    /// Gives the disk back.
    pub fn into_disk(self) -> D {
        self.disk
    }

    fn check_queue(&mut self, result: io::Result<()>) {
        if let Err(source) = result {
            self.fail("notify", self.persisted, 0, source);
        }
    }

    fn fail(&mut self, action: &'static str, position: u64, length: usize, source: io::Error) {
        let offset = self.ring.place(position) as u64;
        let failure = MirrorError::Failed { action, offset, length, source: Arc::new(source) };
        self.failure.get_or_insert(failure);
    }

    fn take_completions(&mut self) {
        let mut completions = std::mem::take(&mut self.completions);
        self.disk.complete(&mut completions);
        for completion in completions.drain(..) {
            let Some(group) = &mut self.group else { continue };
            group.in_flight -= 1;
            self.spare.extend(completion.buffer);
            if let Err(source) = completion.result {
                let length = request_length(self.ring, completion.token, group.end);
                self.fail("write", completion.token, length, source);
            }
        }
        self.completions = completions;
    }

    fn finish_group<M: Medium>(&mut self, writer: &mut LogWriter<M>) {
        if let Some(group) = &self.group
            && group.in_flight == 0
            && group.next == group.end
        {
            self.persisted = group.end;
            writer.proven(group.sequence);
            self.group = None;
        }
    }

    fn begin_group<M: Medium>(&mut self, writer: &mut LogWriter<M>) {
        if self.group.is_some() {
            return;
        }
        self.persisted = self.persisted.max(writer.reclaimed());
        if self.wanted > self.persisted {
            let end = writer.pad_to_block();
            let sequence = writer.next_sequence() - 1;
            // The block in which undigested records begin is written whole. The writer does not use
            // it again before they are digested.
            let next = self.persisted / self.block * self.block;
            self.group = Some(Group { next, end, sequence, in_flight: 0 });
        }
    }

    fn submit<M: Medium>(&mut self, writer: &LogWriter<M>) {
        let Some(group) = &mut self.group else { return };
        let most = IN_FLIGHT.min(self.disk.depth());
        while group.in_flight < most && group.next < group.end {
            let place = self.ring.place(group.next);
            let length = request_length(self.ring, group.next, group.end);
            let mut buffer = self.spare.pop().filter(|buffer| buffer.len() >= length);
            let mut buffer = buffer.take().unwrap_or_else(|| Buffer::new(length));
            writer.medium().load(place, &mut buffer[..length]);
            let write = Operation::Write { offset: place as u64, length, buffer, durable: true };
            match self.disk.submit(group.next, write) {
                Ok(()) => {}
                // Others use the queue: the next poll tries again.
                Err(SubmitError::Full(write)) => {
                    self.spare.extend(write.into_buffers().0);
                    break;
                }
                Err(SubmitError::OutOfRange(_)) => {
                    let position = group.next;
                    let source = io::Error::other("the queue refused a request inside its area");
                    return self.fail("write", position, length, source);
                }
            }
            group.in_flight += 1;
            group.next += length as u64;
        }
        let notified = self.disk.notify();
        self.check_queue(notified);
    }

    /// Reads the ring back into `medium`, through an idle queue.
    ///
    /// # Errors
    /// They do not fit, or the queue itself is broken. Blocks that cannot be read are no error: see
    /// [`Loaded`].
    pub fn load<M: Medium>(disk: &mut D, medium: &mut M) -> Result<Loaded, MirrorError> {
        check_size(disk, medium.len() as u64)?;
        let mut loaded = Loaded::default();
        let mut buffer = Buffer::new(REQUEST);
        for at in (0..medium.len()).step_by(REQUEST) {
            let length = REQUEST.min(medium.len() - at);
            let broken = |source| MirrorError::Failed {
                action: "read",
                offset: at as u64,
                length,
                source: Arc::new(source),
            };
            let (result, returned) = read(disk, at as u64, length, buffer).map_err(broken)?;
            buffer = returned;
            if result.is_ok() {
                medium.store(at, &buffer[..length]);
                continue;
            }
            let salvage = superblock_copies::salvage(disk, at as u64, length).map_err(broken)?;
            medium.store(at, &salvage.bytes[..length]);
            loaded.unreadable.extend(salvage.unreadable.iter().map(|block| (at + block) as u64));
        }
        medium.fence();
        Ok(loaded)
    }
}

/// Bytes of the request of a group up to `end` that begins at `position`.
fn request_length(ring: Ring, position: u64, end: u64) -> usize {
    // No more than the constant.
    (end - position).min(ring.contiguous(position)).min(REQUEST as u64) as usize
}

fn check_size<D: DiskQueue>(disk: &D, ring: u64) -> Result<(), MirrorError> {
    if !ring.is_multiple_of(BLOCK as u64) {
        return Err(MirrorError::Misfit { cause: "the log is not whole blocks of 4096 bytes" });
    }
    if ring > disk.capacity() {
        return Err(MirrorError::Misfit { cause: "the log is larger than the disk area" });
    }
    Ok(())
}

/// Reads a range into the buffer, which comes back.
fn read<D: DiskQueue>(
    disk: &mut D,
    offset: u64,
    length: usize,
    buffer: Buffer,
) -> io::Result<(io::Result<()>, Buffer)> {
    disk.submit(0, Operation::Read { offset, length, buffer })
        .map_err(|_| io::Error::other("the disk queue refused a request inside its area"))?;
    let mut completions = Vec::new();
    for _ in 0..PATIENCE {
        disk.wait(Duration::from_secs(1))?;
        disk.complete(&mut completions);
        if let Some(completion) = completions.pop() {
            let buffer = completion.buffer.unwrap_or_else(|| Buffer::new(REQUEST));
            return Ok((completion.result, buffer));
        }
    }
    Err(io::ErrorKind::TimedOut.into())
}
