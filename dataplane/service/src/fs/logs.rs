//! The logs of several clients: each has a number, memory of its own, and a copy on disk where
//! memory does not survive a loss of power.
//!
//! Log 1 is in the description. The files of the others are beside its files, with the number
//! behind the name. They stay when their client has ended, for the next one with that number. They
//! are in memory, so a new one has [`CLIENT_LOG`] bytes at most.

mod abandoned;
mod folder;

pub(super) use abandoned::{Noted, collect, note};
pub(super) use folder::{judge_folder, make_folder, memory_in, remove_folder};

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
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt, chown};

    use super::super::description::{ClassName, MediumDescription};
    use super::super::{CreateOptions, create, open};
    use super::folder::own_folder;
    use super::*;
    use crate::fs::test_folder::{MIB, end};

    /// A file system whose log has its memory in a folder in which every user may make files; that
    /// folder, the description, and the folder of the memory.
    struct ForAll(PathBuf, LogDescription);

    impl ForAll {
        fn new(name: &str) -> Self {
            let folder = PathBuf::from(format!("/dev/shm/sietch-for-all-{name}-{}", std::process::id()));
            drop(std::fs::remove_dir_all(&folder));
            std::fs::create_dir_all(&folder).expect("a folder");
            std::fs::set_permissions(&folder, PermissionsExt::from_mode(0o1777)).expect("its mode");
            let medium = MediumDescription {
                class: ClassName::Ssd,
                path: folder.join("data"),
                bytes: 8 * MIB,
                model: None,
            };
            let (log_memory, log_bytes) = (Some(folder.clone()), Some(MIB));
            let options = CreateOptions { media: vec![medium], log_memory, log_bytes, durability: None };
            let made = create(&folder.join("store"), &options, &mut |_| {}).expect("room");
            Self(folder, made.log)
        }
    }

    impl Drop for ForAll {
        fn drop(&mut self) {
            drop(std::fs::remove_dir_all(&self.0));
        }
    }

    /// No other user can take the name of a further log, or see which there are.
    #[test]
    fn where_all_may_make_files_the_memory_has_a_folder_of_its_own() {
        let ForAll(folder, log) = &ForAll::new("own");
        let own = own_folder(log).expect("a folder");
        assert_ne!(own, folder);
        assert_eq!(own.metadata().expect("it is there").mode() & 0o7777, 0o700);
        assert_eq!(own_folder(&numbered(log, 2)), Some(own));
    }

    #[test]
    fn the_folder_of_the_memory_is_made_again_after_a_loss_of_power() {
        let ForAll(folder, log) = &ForAll::new("again");
        let own = own_folder(log).expect("a folder");
        std::fs::remove_dir_all(own).expect("the power is lost");
        end(open(&folder.join("store")).expect("it opens"));
        assert_eq!(own.metadata().expect("it is there").mode() & 0o7777, 0o700);
    }

    /// After a loss of power, another user can be faster.
    #[test]
    fn a_folder_of_another_user_is_refused() {
        let ForAll(folder, log) = &ForAll::new("foreign");
        let own = own_folder(log).expect("a folder");
        std::fs::remove_dir_all(own).expect("the power is lost");
        std::fs::create_dir(own).expect("another user makes it");
        if chown(own, Some(65534), None).is_err() {
            println!("SKIPPED: needs root to make a folder of another user");
            return;
        }
        let error = open(&folder.join("store")).err().expect("it is refused").to_string();
        assert!(error.contains("belongs to user 65534") && error.contains("move it away"), "{error}");
        std::fs::rename(own, folder.join("away")).expect("it is moved away");
        end(open(&folder.join("store")).expect("it opens"));
    }

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
