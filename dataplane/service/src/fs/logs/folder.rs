//! The folder of the memory of logs.
//!
//! Where every user may make files, as in `/dev/shm`, the memory has a folder of its own
//! ([`memory_in`]). Otherwise another user could take the names of further logs, and no client
//! could come any more.
//!
//! 1. The name is random, and every user sees it. After a loss of power it is free, and another
//!    user can be faster. Then the memory gets another name ([`leave_taken_folder`]).
//! 2. The description has the new name before there is memory with it: memory whose name is not
//!    there would be forgotten, with its records.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use rustix::process::geteuid;

use super::super::description::{Description, LogDescription, random};
use super::super::error::StoreError;

/// The memory of log 1 in a folder of its own.
const MEMORY: &str = "memory";
/// What its name, or that of its folder, begins with.
pub(super) const NAME: &str = "sietch-log-";
/// A note in it of the file system that it is of.
pub(super) const NOTE: &str = "file-system";

/// Where the memory of a new log is in `folder`; `number` distinguishes it from others there.
pub(in crate::fs) fn memory_in(folder: &Path, number: u64) -> PathBuf {
    let path = folder.join(format!("{NAME}{number:016x}"));
    let is_for_all = folder.metadata().is_ok_and(|found| found.mode() & 0o022 != 0);
    if is_for_all { path.join(MEMORY) } else { path }
}

/// The folder that has nothing but the memory of these logs.
pub(in crate::fs) fn own_folder(log: &LogDescription) -> Option<&Path> {
    let folder = log.memory.parent()?;
    let is_named = folder.file_name().is_some_and(|name| name.as_bytes().starts_with(NAME.as_bytes()));
    // Further logs have their number as the extension.
    (is_named && log.memory.file_stem() == Some(OsStr::new(MEMORY))).then_some(folder)
}

/// Makes that folder, if it is not there: `/dev/shm` is empty after a loss of power.
pub(in crate::fs) fn make_folder(log: &LogDescription) -> Result<(), StoreError> {
    let Some(folder) = own_folder(log) else { return Ok(()) };
    match std::fs::DirBuilder::new().mode(0o700).create(folder) {
        Err(source) if source.kind() != std::io::ErrorKind::AlreadyExists => {
            Err(StoreError::Io { path: folder.to_owned(), action: "make it", source })
        }
        _ => judge_folder(log),
    }
}

/// Removes that folder, of a file system that is not made, when nothing but the note is in it.
pub(in crate::fs) fn remove_folder(log: &LogDescription) {
    if let Some(folder) = own_folder(log) {
        drop(std::fs::remove_file(folder.join(NOTE)));
        drop(std::fs::remove_dir(folder));
    }
}

/// Whether another user has the name of that folder, and took it while it was free: the memory is
/// gone. In a sticky folder of root or of this user, no other user can move this user's away.
pub(in crate::fs) fn is_taken(log: &LogDescription) -> bool {
    let Some(folder) = own_folder(log) else { return false };
    let Some(place) = folder.parent().and_then(|place| place.metadata().ok()) else { return false };
    let user = geteuid().as_raw();
    let is_sticky = place.mode() & 0o1000 != 0 && [0, user].contains(&place.uid());
    is_sticky && folder.symlink_metadata().is_ok_and(|found| found.uid() != user)
}

/// Gives the memory of the logs another folder if theirs [is taken](is_taken), and there is a copy
/// on disk. `folder` is that of the file system, whose media are locked.
pub(in crate::fs) fn leave_taken_folder(
    folder: &Path,
    description: &mut Description,
) -> Result<(), StoreError> {
    // Another process may have done this since the description was read, before it had the locks.
    let mut written = Description::read(folder)?;
    if written.log.disk.is_some()
        && is_taken(&written.log)
        && let Some(taken) = own_folder(&written.log).map(Path::to_owned)
        && let Some(place) = taken.parent()
    {
        written.log.memory = memory_in(place, u64::from_le_bytes(random(folder)?));
        written.write(folder)?;
        let (taken, memory) = (taken.display(), written.log.memory.display());
        tracing::warn!(
            "{taken} belongs to another user; the log is read from its copy on disk to {memory}, which fs.toml names now"
        );
    }
    description.log = written.log;
    Ok(())
}

/// Refuses such a folder if it is another user's, who could exchange what is in it.
pub(in crate::fs) fn judge_folder(log: &LogDescription) -> Result<(), StoreError> {
    let Some(folder) = own_folder(log) else { return Ok(()) };
    match folder.symlink_metadata() {
        Ok(found) if found.uid() != geteuid().as_raw() || found.mode() & 0o022 != 0 => {
            let (path, owner, mode) = (folder.to_owned(), found.uid(), found.mode() & 0o7777);
            Err(StoreError::ForeignFolder { path, owner, mode })
        }
        // If it is not there, the memory is not there either.
        _ => Ok(()),
    }
}
