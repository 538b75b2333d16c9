//! The file of an addition that was begun, and that the pool has not made.
//!
//! 1. The file was not there when the addition began. It has zeros, and later the superblocks of
//!    this pool in its first blocks.
//! 2. Another command removes it. What has anything else was put there by a user: it stays, and is
//!    named in the log.
//! 3. It is removed while the description still has the addition, so a crash leaves it to the next
//!    command.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use rustix::fs::SeekFrom;
use rustix::io::Errno;
use sietch_disk::BLOCK;
use sietch_disk::superblock_copies::COPIES;
use sietch_fs::pool::{Belonging, belonging};

use super::Locked;
use crate::fs::description::{Change, MediumDescription};
use crate::fs::error::StoreError;
use crate::fs::media::{self, Medium};

/// Bytes that are read at a time.
const READ: usize = 1 << 20;

impl Locked {
    /// Removes what an addition has left, unless it is `change`, which goes on with it.
    ///
    /// # Errors
    /// The file cannot be read or removed.
    pub(in crate::fs) fn remove_leftover(&self, change: &Change) -> Result<(), StoreError> {
        let Some(Change::Add(medium)) = self.begun.as_ref().filter(|begun| *begun != change) else {
            return Ok(());
        };
        let mut partial = medium.path.as_os_str().to_owned();
        partial.push(".partial");
        for path in [medium.path.clone(), PathBuf::from(partial)] {
            if path.symlink_metadata().is_err() {
                continue;
            }
            if !self.is_leftover(&path, medium)? {
                let path = path.display();
                tracing::warn!(
                    "{path}: an addition of a medium was given up; the file has other data, and stays"
                );
                continue;
            }
            let fail = |action| {
                let path = path.clone();
                move |source| StoreError::Io { path, action, source }
            };
            std::fs::remove_file(&path).map_err(fail("remove what an addition has left"))?;
            if let Some(folder) = path.parent() {
                let synced = std::fs::File::open(folder).and_then(|folder| folder.sync_all());
                synced.map_err(fail("flush its folder"))?;
            }
        }
        Ok(())
    }

    /// Whether the file `path` is there, and has nothing but what the addition of a medium writes.
    ///
    /// # Errors
    /// It cannot be read.
    pub(super) fn is_leftover(&self, path: &Path, medium: &MediumDescription) -> Result<bool, StoreError> {
        let Ok(found) = path.symlink_metadata() else { return Ok(false) };
        let is_whole = path == medium.path;
        if found.len() > medium.bytes || (is_whole && found.len() < medium.bytes) {
            return Ok(false);
        }
        // Another user's, a link, in use.
        let Ok(file) = media::open_own(path, found.len()) else { return Ok(false) };
        let fail =
            |errno: Errno| StoreError::Io { path: path.to_owned(), action: "read it", source: errno.into() };
        // A queue over the file reads it past the cache from then on, so this comes first.
        if has_zeros(&file, 0).map_err(fail)? {
            return Ok(true);
        }
        let is_behind = is_whole && has_zeros(&file, (COPIES * BLOCK) as u64).map_err(fail)?;
        if is_behind && let Some(home) = self.media.first() {
            let opened = Medium::of_descriptor(
                file.try_clone().map_err(|source| StoreError::Io {
                    path: path.to_owned(),
                    action: "duplicate its descriptor",
                    source,
                })?,
                medium.clone(),
            );
            return Ok(belonging(home.member()?, opened.member()?)? == Belonging::Former);
        }
        Ok(false)
    }
}

/// Whether a file has nothing but zeros from an offset on.
fn has_zeros(file: impl AsFd, mut at: u64) -> Result<bool, Errno> {
    let mut bytes = vec![0; READ];
    loop {
        match rustix::fs::seek(file.as_fd(), SeekFrom::Data(at)) {
            Ok(next) => at = next,
            Err(Errno::NXIO) => return Ok(true),
            // It knows no holes.
            Err(Errno::INVAL | Errno::OPNOTSUPP) => {}
            Err(errno) => return Err(errno),
        }
        let count = rustix::io::pread(file.as_fd(), &mut bytes, at)?;
        if count == 0 {
            return Ok(true);
        }
        if bytes[..count].iter().any(|byte| *byte != 0) {
            return Ok(false);
        }
        at += count as u64;
    }
}
