//! A storage area ready to be driven.
//!
//! 1. An area is one descriptor, or several *segments* of memory one after the other: sealed memory
//!    cannot grow, so each growth under its holder adds a segment. The queue is over all segments,
//!    and as slow as the grant's memory model says.
//! 2. An area on a volume of extents is shared memory to a service core and the doorbell to it: its
//!    queue is made once.
//! 3. When the area is resized ([`crate::Client::resize_vsa`]) the queue is created again: over the
//!    same descriptor, or over the segments that come with the answer. Requests in flight belong to
//!    the previous queue, so it must be idle.

use std::os::fd::OwnedFd;
use std::time::Duration;

use sietch_disk::broker::{BrokerFds, BrokerLayout, BrokerQueue};
use sietch_disk::nvm::Model;
use sietch_disk::{AreaQueue, DiskQueue as _, OpenError, open_parts};
use sietch_protocol::{MemoryModel, VsaGrant};

use super::grant::Grant;
use crate::error::Error;

/// A VSA as the daemon granted it, without a queue.
#[derive(Debug)]
pub struct GrantedVsa {
    /// Whether it is still held.
    pub grant: Grant,
    /// Name and size.
    pub description: VsaGrant,
    /// The area's own file, open for reading and writing; of an area in memory that has grown while
    /// it was held, one for each of [`VsaGrant::segments`].
    pub files: Vec<OwnedFd>,
}

impl GrantedVsa {
    /// Whether the area is memory, or shared memory to a service core, which take no other queue
    /// than [`GrantedVsa::queue`].
    pub fn is_memory(&self) -> bool {
        self.files.len() > 1 || self.description.model.is_some()
    }

    /// A queue over the area: the fastest that its medium has, slowed to the grant's memory model.
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
    /// Kept to make a queue over another size.
    files: Vec<OwnedFd>,
}

impl Vsa {
    /// Makes a queue over the granted memory or file.
    pub(crate) fn open(granted: GrantedVsa) -> Result<Self, Error> {
        let queue = granted.queue()?;
        let GrantedVsa { grant, description, files } = granted;
        Ok(Self { grant, description, queue, files })
    }

    /// Another queue over the area in its present size, for a structure. Its own queue stays idle,
    /// so that [`crate::Client::resize_vsa`] can change the size under the structure. The structure
    /// then continues over another queue ([`crate::Durable::replace_disk`]).
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

    /// Refuses while requests are in flight: they belong to the previous queue.
    pub(crate) fn check_idle(&self) -> Result<(), Error> {
        match self.queue.in_flight() {
            0 => Ok(()),
            left => {
                let source = std::io::Error::other(format!(
                    "{left} requests are in flight; take their completions first"
                ));
                let source = OpenError::Io { action: "create its queue again", source };
                Err(Error::Area { name: self.description.name.clone(), source })
            }
        }
    }

    /// Makes a queue over `size` bytes: of `files`, with `segments` bytes of each, or of the
    /// present descriptors if `files` is empty.
    pub(crate) fn reopen(&mut self, size: u64, segments: Vec<u64>, files: Vec<OwnedFd>) -> Result<(), Error> {
        self.description.size = size;
        if let AreaQueue::Broker(queue) = &mut self.queue {
            // The service core has resized it already.
            queue.set_capacity(size);
            return Ok(());
        }
        if !files.is_empty() {
            (self.description.segments, self.files) = (segments, files);
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
    if let (Some(shape), [memory, doorbell]) = (description.broker, files) {
        let fds = BrokerFds { memory: copy(memory)?, doorbell: copy(doorbell)? };
        let layout = BrokerLayout { slots: shape.slots, data: shape.data, block: shape.block };
        let queue = BrokerQueue::open(fds, layout, description.size).map_err(failed)?;
        return Ok(AreaQueue::Broker(Box::new(queue)));
    }
    let whole = [description.size];
    let lengths = if description.segments.is_empty() { &whole[..] } else { &description.segments[..] };
    let mut segments = Vec::with_capacity(files.len());
    for (file, length) in files.iter().zip(lengths) {
        segments.push((copy(file)?, *length));
    }
    open_parts(segments, description.model.map(model)).map_err(failed)
}

/// The model of the daemon's volume: latency for reads, one bandwidth for reads and writes.
fn model(model: MemoryModel) -> Model {
    Model {
        read_latency: Duration::from_nanos(model.read_ns),
        write_latency: Duration::ZERO,
        seek: None,
        bandwidth: model.bytes_per_second,
    }
}
