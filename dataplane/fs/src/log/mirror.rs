//! Makes a log durable on a disk, where memory does not survive a loss of power.
//!
//! 1. The ring is in ordinary memory, which survives the process. Position for position it has a
//!    copy on a disk area, as far as programs have asked for it.
//! 2. [`Mirror::sync`] asks for everything that is in the log now. Requests gather while a *group*
//!    is being written; the next group is for all of them. [`Mirror::poll`] does what is next. Or a
//!    thread takes the group ([`Mirror::begin`]) and writes it while others use the log, and brings
//!    it back ([`Mirror::finish`]).
//! 3. A group begins with a pad to a whole block of the disk. So a block is written once in a lap:
//!    what was acknowledged never shares one with what is written later, which a loss of power may
//!    destroy with it.
//! 4. A group is written by one durable write, or by several writes in flight together and one
//!    flush behind them. It is complete when all of it is. Only then does the writer say in its
//!    records that those before are durable.
//! 5. What the digest has already need not be written.
//! 6. After a crash [`Mirror::load`] reads the ring back. A crash in a group can leave later
//!    records without earlier ones, so the log must be digested up to its end and go on under a new
//!    epoch: then none of the later ones is valid.
//! 7. After a failed write the mirror is stopped for good: nothing can say what the disk has.

mod group;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use sietch_disk::nvm::Medium;
use sietch_disk::{BLOCK, Buffer, DiskQueue, Operation, superblock_copies};

use crate::log::ring::Ring;
use crate::log::writer::{Durability, LogWriter};
use group::{Disk, REQUEST};

pub use group::{Group, MirrorError};

/// Seconds that a read may take when a log is loaded, as a superblock's may.
const PATIENCE: usize = 60;

/// What is on the disk of a log that was loaded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Loaded {
    /// Offsets of blocks of 4096 bytes that cannot be read; they are zeros in memory. A record that
    /// was acknowledged may be missing at the end of the log if its block is among them.
    pub unreadable: Vec<u64>,
}

/// The module's header describes it.
#[derive(Debug)]
pub struct Mirror<D: DiskQueue> {
    /// The disk, unless a group has it.
    disk: Option<Disk<D>>,
    ring: Ring,
    block: u64,
    /// Everything before is durable: here, which is whole blocks, or because it was digested.
    persisted: u64,
    /// What is asked for.
    wanted: u64,
    /// A group that nothing else has.
    group: Option<Group<D>>,
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
        let persisted = writer.digested();
        Ok(Self {
            disk: Some(Disk::new(disk)),
            ring,
            block: block as u64,
            persisted,
            wanted: persisted,
            group: None,
            failure: None,
        })
    }

    /// Asks for all records that are in the log now, and returns the position before which all is
    /// durable then. [`Mirror::poll`] does the rest.
    pub fn sync<M: Medium>(&mut self, writer: &LogWriter<M>) -> u64 {
        let end = writer.next_position();
        self.sync_to(end);
        end
    }

    /// Asks for all records before `position`, where the log has ended.
    pub fn sync_to(&mut self, position: u64) {
        self.wanted = self.wanted.max(position);
    }

    /// Everything before this position is durable.
    pub fn persisted(&self) -> u64 {
        self.persisted
    }

    /// Whether everything that was asked for is durable.
    pub fn is_idle(&self) -> bool {
        self.group.is_none() && self.disk.is_some() && self.persisted >= self.wanted
    }

    /// Takes what the disk has done, begins what is next, and returns the position before which
    /// all is durable. `writer` is the one that the mirror was made for.
    ///
    /// # Errors
    /// [`MirrorError::Failed`], from the first failure on.
    pub fn poll<M: Medium>(&mut self, writer: &mut LogWriter<M>) -> Result<u64, MirrorError> {
        for _ in 0..2 {
            let Some(mut group) = self.begin(writer)? else { break };
            let has_ended = group.poll(writer.medium());
            self.finish(writer, group);
            if !has_ended {
                break;
            }
        }
        self.failure.clone().map_or(Ok(self.persisted), Err)
    }

    /// Waits until the disk has done something, at most `timeout`: for a thread that has nothing
    /// else to do.
    ///
    /// # Errors
    /// [`MirrorError::Failed`].
    pub fn wait(&mut self, timeout: Duration) -> Result<(), MirrorError> {
        if let Some(group) = &mut self.group {
            group.wait(timeout);
        }
        self.failure.clone().map_or(Ok(()), Err)
    }

    /// The group that is to be written now: what was asked for, and whatever else the log has.
    /// `None` if there is nothing, or while another has a group.
    ///
    /// # Errors
    /// [`MirrorError::Failed`].
    pub fn begin<M: Medium>(&mut self, writer: &mut LogWriter<M>) -> Result<Option<Group<D>>, MirrorError> {
        if let Some(failure) = &self.failure {
            return Err(failure.clone());
        }
        if let Some(group) = self.group.take() {
            return Ok(Some(group));
        }
        self.persisted = self.persisted.max(writer.digested());
        if self.wanted <= self.persisted {
            return Ok(None);
        }
        let Some(disk) = self.disk.take() else { return Ok(None) };
        let end = writer.pad_to_block();
        let sequence = writer.next_sequence() - 1;
        // The block in which undigested records begin is written whole. The writer does not use it
        // again before they are digested.
        let next = self.persisted / self.block * self.block;
        Ok(Some(Group::new(disk, self.ring, (next, end), sequence)))
    }

    /// Takes a group back. One that is not whole is the next that [`Mirror::begin`] returns.
    pub fn finish<M: Medium>(&mut self, writer: &mut LogWriter<M>, group: Group<D>) {
        if group.is_durable() {
            self.persisted = self.persisted.max(group.end());
            writer.proven(group.sequence());
        } else if !group.has_failed() {
            self.group = Some(group);
            return;
        }
        let (disk, failure) = group.into_parts();
        self.disk = Some(disk);
        self.failure = self.failure.take().or(failure);
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
