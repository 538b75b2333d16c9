//! The logs of several clients: each has a number, memory of its own, and a copy on disk where
//! memory does not survive a loss of power.
//!
//! Log 1 is in the description. The files of the others are beside its files, with the number
//! behind the name. They stay when their client has ended, for the next one with that number. They
//! are in memory, so a new one has [`CLIENT_LOG`] bytes at most.

mod abandoned;
mod folder;

pub(super) use abandoned::{Noted, collect, note};
pub(super) use folder::{is_taken, judge_folder, leave_taken_folder, make_folder, memory_in, remove_folder};

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

    use super::super::description::{ClassName, Description, MediumDescription};
    use super::super::{CreateOptions, Running, check, create, open};
    use super::folder::own_folder;
    use super::*;
    use crate::fs::test_folder::{MIB, end, verify_file, write_durably};

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

    /// As after a loss of power, when another user is faster; whether this user can play that.
    fn take(own: &Path) -> bool {
        std::fs::remove_dir_all(own).expect("the power is lost");
        std::fs::create_dir(own).expect("another user makes it");
        let is_done = chown(own, Some(65534), None).is_ok();
        if !is_done {
            println!("SKIPPED: needs root to make a folder of another user");
        }
        is_done
    }

    /// Blocks of a file that the log has room for.
    const BLOCKS: u64 = 16;

    #[test]
    fn a_log_whose_folder_another_user_has_taken_gets_another() {
        let ForAll(folder, log) = &ForAll::new("taken");
        let (own, store) = (own_folder(log).expect("a folder"), folder.join("store"));
        let description = || Description::read(&store).expect("a description");
        let Running { mut client, digester, .. } = open(&store).expect("it opens");
        write_durably(&mut client, "digested", BLOCKS);
        drop(digester);
        write_durably(&mut client, "file", BLOCKS);
        drop(client);
        if !take(own) {
            return;
        }
        let before = description();
        let checked = check(&store, false).expect("not open").log.expect("it is not in use");
        assert!(checked.from_disk && checked.records > 0 && checked.damage.is_none(), "{checked:?}");
        assert_eq!(description(), before, "a check changes nothing");
        let running = open(&store).expect("it opens");
        assert_eq!(running.recovered, checked.records);
        let after = description();
        assert_eq!(running.description, after);
        let new = own_folder(&after.log).expect("a folder of its own");
        assert!(new != own && new.parent() == own.parent());
        assert_eq!(new.metadata().expect("it is there").mode() & 0o7777, 0o700);
        assert_eq!(std::fs::read_dir(own).expect("it is there").count(), 0, "it is left alone");
        let LogDescription { memory, .. } = after.log.clone();
        let expected = Description { log: LogDescription { memory, ..before.log }, ..before };
        assert_eq!(after, expected, "nothing else is changed");
        end(running);
        verify_file(&store, "file", BLOCKS);
        assert_eq!(description(), after, "the new one stays");
    }

    /// A process may have read the description before another one, which had the locks, changed it.
    #[test]
    fn the_folder_that_another_process_chose_is_used() {
        let ForAll(folder, log) = &ForAll::new("chosen");
        let (own, store) = (own_folder(log).expect("a folder"), folder.join("store"));
        let mut early = Description::read(&store).expect("a description");
        if !take(own) {
            return;
        }
        end(open(&store).expect("it opens"));
        let written = Description::read(&store).expect("a description");
        leave_taken_folder(&store, &mut early).expect("it is there");
        assert!(early.log == written.log && early.log != *log);
    }

    /// There the memory may have been moved away, with records that are nowhere else.
    #[test]
    fn where_other_users_can_move_a_folder_that_of_another_user_is_refused() {
        let ForAll(folder, log) = &ForAll::new("foreign");
        let own = own_folder(log).expect("a folder");
        std::fs::set_permissions(folder, PermissionsExt::from_mode(0o777)).expect("its mode");
        if !take(own) {
            return;
        }
        let error = open(&folder.join("store")).err().expect("it is refused").to_string();
        assert!(error.contains("belongs to user 65534") && error.contains("move it away"), "{error}");
        assert_eq!(Description::read(&folder.join("store")).expect("a description").log, *log);
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
