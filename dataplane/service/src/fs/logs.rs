//! The logs of several clients: each has a number, memory of its own, and a copy on disk where
//! memory does not survive a loss of power.
//!
//! Log 1 is in the description. The files of the others are beside its files, with the number
//! behind the name. They stay when their client has ended, for the next one with that number.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use sietch_disk::area;

use super::description::LogDescription;
use super::error::StoreError;
use super::media;

/// The number of the log in the description: that of a client which has the file system alone.
pub(super) const LOG: u32 = 1;
/// Bytes that a disk writes in one piece, at most.
pub(super) const DISK_BLOCK: usize = 4096;

/// The log with this number.
pub(super) fn numbered(log: &LogDescription, number: u32) -> LogDescription {
    let with_number = |path: &Path| {
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".{number}"));
        PathBuf::from(name)
    };
    match number {
        LOG => log.clone(),
        _ => LogDescription {
            memory: with_number(&log.memory),
            disk: log.disk.as_deref().map(with_number),
            ..log.clone()
        },
    }
}

/// The files of a log, which are made if they are not there.
pub(super) struct Files {
    pub memory: OwnedFd,
    pub disk: Option<OwnedFd>,
}

impl Files {
    /// Opens and locks the files of `log`. One that no client ever had has none.
    pub(super) fn open(log: &LogDescription) -> Result<Self, StoreError> {
        let open = |path: &PathBuf| {
            if path.symlink_metadata().is_err() {
                area::create(path, log.bytes, &mut |_| {})?;
            }
            media::open_own(path, log.bytes)
        };
        // The memory last: a log with memory has its copy.
        let disk = log.disk.as_ref().map(open).transpose()?;
        Ok(Self { disk, memory: open(&log.memory)? })
    }
}
