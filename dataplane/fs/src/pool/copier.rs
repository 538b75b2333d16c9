//! Copying data between the media of a pool, on another thread than its writer.
//!
//! 1. A copier is a [`Reader`] that may write too: to runs that the pool has set aside
//!    ([`super::Pool::set_aside`]), and to nothing else.
//! 2. It has queues of its own. So it makes durable what it wrote, itself: the writer of the pool
//!    flushes only what went through its queues.

use sietch_disk::{Buffer, DiskQueue};

use super::error::OpenError;
use super::medium::{Member, check_run};
use super::{Reader, Root, Run};
use crate::error::Fault;

/// See the module's account.
#[derive(Debug)]
pub struct Copier<D> {
    reader: Reader<D>,
}

/// Nodes that a copier has in memory: 4 MiB. It walks the tree in order, and needs most of them
/// once.
const NODES: usize = 1024;

impl<D: DiskQueue> Copier<D> {
    /// A copier that reads the generation with this root, on the media of the pool, the home first.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn new(members: Vec<Member<D>>, root: Root) -> Result<Self, OpenError> {
        Ok(Self { reader: Reader::with_nodes(members, root, NODES)? })
    }

    /// What it reads.
    pub fn reader(&mut self) -> &mut Reader<D> {
        &mut self.reader
    }

    /// The same, to look at.
    pub fn as_reader(&self) -> &Reader<D> {
        &self.reader
    }

    /// Writes a run that was set aside, and waits for the write. It is not durable yet.
    ///
    /// # Errors
    /// The run is not on a medium, or a write to that medium failed, now or before.
    pub fn write(&mut self, run: Run, data: Buffer) -> Result<(), Fault> {
        check_run(&self.reader.media, run)?;
        let medium = &mut self.reader.media[usize::from(run.medium)];
        medium.write(run, data)?;
        medium.drain()
    }

    /// Makes durable what was written to a medium.
    ///
    /// # Errors
    /// The medium failed.
    pub fn flush(&mut self, medium: u8) -> Result<(), Fault> {
        match self.reader.media.get_mut(usize::from(medium)) {
            Some(medium) => medium.flush(),
            None => Ok(()),
        }
    }

    /// Gives the media back.
    pub fn into_members(self) -> Vec<Member<D>> {
        self.reader.into_members()
    }
}
