//! A storage area ready to be driven.
//!
//! 1. An area is one descriptor, or several *parts* of memory one after the other: memory that is
//!    sealed cannot grow, so each growth under its holder adds a part. Its queue is over all of
//!    them, and as slow as the grant says that memory is to make itself.
//! 2. An area on a volume that no application may have is shared memory to a service core, and the
//!    doorbell to it: its queue is made once.
//! 3. When the area gets another size ([`crate::Client::resize_vsa`]) the queue is made anew: over
//!    the same descriptor, or over the parts that come with the answer. What is in flight belongs
//!    to the former queue, so it must be idle.

use std::os::fd::OwnedFd;
use std::time::Duration;

use sietch_disk::broker::{BrokerFds, BrokerLayout, BrokerQueue};
use sietch_disk::nvm::Model;
use sietch_disk::{AreaQueue, DiskQueue as _, OpenError, open_parts};
use sietch_protocol::{MemoryModel, VsaGrant};

use crate::error::Error;
use crate::grant::Grant;

/// A VSA as the daemon handed it out.
#[derive(Debug)]
pub struct GrantedVsa {
    /// Whether it is still held.
    pub grant: Grant,
    /// Name and size.
    pub description: VsaGrant,
    /// The area's own file, open for reading and writing; of an area in memory that has grown while
    /// it was held, one for each of [`VsaGrant::parts`].
    pub files: Vec<OwnedFd>,
}

impl GrantedVsa {
    /// Whether the area is memory, or shared memory to a service core, which take no other queue
    /// than [`GrantedVsa::queue`].
    pub fn is_memory(&self) -> bool {
        self.files.len() > 1 || self.description.model.is_some()
    }

    /// A queue over the area: the best that its medium has, as slow as the grant says that it is to
    /// be.
    ///
    /// # Errors
    /// [`Error::Area`].
    pub fn queue(&self) -> Result<AreaQueue, Error> {
        queue(&self.description, &self.files)
    }
}

/// A storage area that this process drives.
pub struct Vsa {
    /// Whether it is still held.
    pub grant: Grant,
    /// Name and size.
    pub description: VsaGrant,
    /// Its queue pair: io_uring, shared memory to a service core, blocking calls where that is
    /// refused, or loads and stores where it is memory. One thread owns it.
    pub queue: AreaQueue,
    /// For a queue over another size.
    files: Vec<OwnedFd>,
}

impl Vsa {
    /// Makes a queue over what the daemon handed out.
    pub(crate) fn open(parts: GrantedVsa) -> Result<Self, Error> {
        let queue = parts.queue()?;
        let GrantedVsa { grant, description, files } = parts;
        Ok(Self { grant, description, queue, files })
    }

    /// Another queue over the area as it is now, for a structure. Its own queue stays idle, so that
    /// [`crate::Client::resize_vsa`] can change the size under the structure, which goes on through
    /// another queue then ([`crate::Durable::replace_disk`]).
    ///
    /// # Errors
    /// [`Error::Area`]; an area behind a service core has one queue and no other.
    pub fn another_queue(&self) -> Result<AreaQueue, Error> {
        if self.description.broker.is_some() {
            let source = std::io::Error::other("an area behind a service core has one queue pair; use that");
            let source = OpenError::Io { action: "make another queue", source };
            return Err(Error::Area { name: self.description.name.clone(), source });
        }
        queue(&self.description, &self.files)
    }

    /// Refuses while requests are in flight: they belong to the former queue.
    pub(crate) fn check_idle(&self) -> Result<(), Error> {
        match self.queue.in_flight() {
            0 => Ok(()),
            left => {
                let source = std::io::Error::other(format!(
                    "{left} requests are in flight; take their completions first"
                ));
                let source = OpenError::Io { action: "make its queue anew", source };
                Err(Error::Area { name: self.description.name.clone(), source })
            }
        }
    }

    /// Makes a queue over `size` bytes: of `files` with so many of `parts` each, or of the
    /// descriptors that there are.
    pub(crate) fn reopen(&mut self, size: u64, parts: Vec<u64>, files: Vec<OwnedFd>) -> Result<(), Error> {
        self.description.size = size;
        if let AreaQueue::Broker(queue) = &mut self.queue {
            // The service core has it so already.
            queue.set_capacity(size);
            return Ok(());
        }
        if !files.is_empty() {
            (self.description.segments, self.files) = (parts, files);
        }
        self.queue = queue(&self.description, &self.files)?;
        Ok(())
    }
}

fn queue(description: &VsaGrant, files: &[OwnedFd]) -> Result<AreaQueue, Error> {
    let failed = |source| Error::Area { name: description.name.clone(), source };
    let copy = |file: &OwnedFd| {
        file.try_clone()
            .map_err(|source| failed(OpenError::Io { action: "duplicate its descriptor", source }))
    };
    if let (Some(shape), [memory, bell]) = (description.broker, files) {
        let fds = BrokerFds { memory: copy(memory)?, doorbell: copy(bell)? };
        let geometry = BrokerLayout { slots: shape.slots, data: shape.data, block: shape.block };
        let queue = BrokerQueue::open(fds, geometry, description.size).map_err(failed)?;
        return Ok(AreaQueue::Broker(Box::new(queue)));
    }
    let whole = [description.size];
    let lengths = if description.segments.is_empty() { &whole[..] } else { &description.segments[..] };
    let mut parts = Vec::with_capacity(files.len());
    for (file, length) in files.iter().zip(lengths) {
        parts.push((copy(file)?, *length));
    }
    open_parts(parts, description.model.map(model)).map_err(failed)
}

/// As the daemon's volume is defined: latency for reads, one bandwidth for all.
fn model(said: MemoryModel) -> Model {
    Model {
        read_latency: Duration::from_nanos(said.read_ns),
        write_latency: Duration::ZERO,
        bandwidth: said.bytes_per_second,
    }
}
