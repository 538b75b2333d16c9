//! A storage area ready to be driven.

use sietch_disk::{AreaQueue, open_area};
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
}

impl Vsa {
    /// Makes a queue over what the daemon handed out.
    pub(crate) fn open(parts: VsaParts) -> Result<Self, Error> {
        let VsaParts { grant, description, file } = parts;
        let queue = open_area(file, description.size)
            .map_err(|source| Error::Area { name: description.name.clone(), source })?;
        Ok(Self { grant, description, queue })
    }
}
