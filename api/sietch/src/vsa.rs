//! A storage area ready to be driven.

use std::os::fd::OwnedFd;

use sietch_disk::{AreaQueue, DiskQueue as _, OpenError, open_area};
use sietch_protocol::VsaGrant;

use crate::client::VsaParts;
use crate::error::Error;
use crate::grant::Grant;

/// A storage area that this process drives.
pub struct Vsa {
    /// Whether it is still held.
    pub grant: Grant,
    /// Name and size.
    pub description: VsaGrant,
    /// Its queue pair: io_uring, or blocking calls where that is refused. One thread owns it.
    pub queue: AreaQueue,
    /// For a queue over another size.
    file: OwnedFd,
}

impl Vsa {
    /// Makes a queue over what the daemon handed out.
    pub(crate) fn open(parts: VsaParts) -> Result<Self, Error> {
        let VsaParts { grant, description, file } = parts;
        let queue = queue(&description, &file)?;
        Ok(Self { grant, description, queue, file })
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

    /// Makes a queue over `size` bytes.
    pub(crate) fn reopen(&mut self, size: u64) -> Result<(), Error> {
        self.description.size = size;
        self.queue = queue(&self.description, &self.file)?;
        Ok(())
    }
}

fn queue(description: &VsaGrant, file: &OwnedFd) -> Result<AreaQueue, Error> {
    let failed = |source| Error::Area { name: description.name.clone(), source };
    let file = file
        .try_clone()
        .map_err(|source| failed(OpenError::Io { action: "duplicate its descriptor", source }))?;
    open_area(file, description.size).map_err(failed)
}
