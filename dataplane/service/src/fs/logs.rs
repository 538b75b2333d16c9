//! The logs of several clients: each has a number, memory of its own, and a copy on disk where
//! memory does not survive a loss of power.
//!
//! Log 1 is in the description. The files of the others are beside its files, with the number
//! behind the name. They stay when their client has ended, for the next one with that number. They
//! are in memory, so a new one has [`CLIENT_LOG`] bytes at most.

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

/// Bytes of the log of one of several clients, at most, when it is made.
const CLIENT_LOG: u64 = 64 << 20;

/// The log with this number.
pub(super) fn numbered(log: &LogDescription, number: u32) -> LogDescription {
    let with_number = |path: &Path| {
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".{number}"));
        PathBuf::from(name)
    };
    match number {
        LOG => log.clone(),
        _ => {
            let (memory, disk) = (with_number(&log.memory), log.disk.as_deref().map(with_number));
            // A log that is there keeps its size, if only its copy is left, too.
            let files = [Some(&memory), disk.as_ref()].into_iter().flatten();
            let found = files.filter_map(|path| path.symlink_metadata().ok()).map(|found| found.len()).next();
            let bytes = found.unwrap_or(log.bytes.min(CLIENT_LOG));
            LogDescription { memory, disk, bytes, ..log.clone() }
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_of_a_client_is_small_and_keeps_its_size() {
        let folder = std::env::temp_dir().join(format!("sietch-logs-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("make a folder");
        let (memory, disk) = (folder.join("memory"), Some(folder.join("disk")));
        let log = LogDescription { memory, disk, bytes: 256 << 20, seed: 7 };
        assert_eq!((numbered(&log, LOG).bytes, numbered(&log, 2).bytes), (256 << 20, CLIENT_LOG));
        let small = LogDescription { bytes: 1 << 20, ..log.clone() };
        assert_eq!(numbered(&small, 2).bytes, 1 << 20);
        // As it was made by a description of another size; after a loss of power only the copy is
        // there.
        let copy = numbered(&log, 3).disk.expect("a copy");
        std::fs::File::create(&copy).and_then(|file| file.set_len(128 << 20)).expect("make a file");
        assert_eq!(numbered(&log, 3).bytes, 128 << 20);
        std::fs::remove_dir_all(&folder).expect("remove the folder");
    }
}
