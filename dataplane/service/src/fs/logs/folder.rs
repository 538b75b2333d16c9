//! The folder of the memory of logs.
//!
//! Where every user may make files, as in `/dev/shm`, the memory has a folder of its own
//! ([`memory_in`]). Otherwise another user could take the names of further logs, and no client
//! could come any more.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use rustix::process::geteuid;

use super::super::description::LogDescription;
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
