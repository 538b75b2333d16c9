//! Where the files of a measurement are.

use std::path::{Path, PathBuf};

use crate::error::{Error, system};

/// Where memory is.
pub(super) const MEMORY: &str = "/dev/shm";
/// Bytes of ext4's image, which is sparse.
pub(super) const IMAGE: u64 = 4 << 30;
/// Bytes of each medium of Sietch's.
pub(super) const MEDIUM: u64 = 2 << 30;

/// A folder that is removed with everything in it.
pub(super) struct Removed(pub PathBuf);

impl Removed {
    pub(super) fn create(path: PathBuf) -> Result<Self, Error> {
        std::fs::create_dir(&path).map_err(system("making a folder"))?;
        Ok(Self(path))
    }
}

impl Drop for Removed {
    fn drop(&mut self) {
        // It is recognisable by the process id in its name, or in a folder that has it.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// What a folder is on.
pub(super) fn kind_of(folder: &Path) -> Result<&'static str, Error> {
    // EXT4_SUPER_MAGIC, linux/magic.h.
    const EXT4: u64 = 0xef53;
    let found = rustix::fs::statfs(folder).map_err(system("reading the kind of a file system"))?;
    Ok(if found.f_type as u64 == EXT4 { "ext4" } else { "the kernel's file system" })
}
