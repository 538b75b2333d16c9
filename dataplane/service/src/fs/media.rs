//! The files of a file system as queues and memory.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{fstat, fstatfs};
use rustix::process::geteuid;
use sietch_disk::nvm::Mapped;
use sietch_disk::{AreaQueue, NvmQueue, OpenError, area, open_area};
use sietch_fs::pool::{Member, place_of};

use super::description::{Change, ClassName, Description, MediumDescription};
use super::error::StoreError;

/// The type of a tmpfs in `statfs(2)` (`TMPFS_MAGIC`, linux/magic.h).
const TMPFS: i64 = 0x0102_1994;

/// Blocks of disks that a client keeps: 32 MiB. Where the kernel keeps them too, as for a mount, it
/// answers most reads itself.
pub(super) const KEPT_BLOCKS: usize = 8192;

/// A medium whose file is locked for this process.
pub(super) struct Medium {
    file: OwnedFd,
    path: PathBuf,
    class: ClassName,
    bytes: u64,
}

impl Medium {
    /// Opens and locks the file of a medium.
    pub(super) fn open(description: &MediumDescription) -> Result<Self, StoreError> {
        let MediumDescription { class, path, bytes } = description.clone();
        let file = open_own(&path, bytes)?;
        Ok(Self { file, path, class, bytes })
    }

    /// The medium behind a descriptor that the service has passed.
    pub(super) fn of_descriptor(file: OwnedFd, path: PathBuf, class: ClassName, bytes: u64) -> Self {
        Self { file, path, class, bytes }
    }

    /// Its file has more bytes now.
    pub(super) fn set_bytes(&mut self, bytes: u64) {
        self.bytes = bytes;
    }

    /// Its descriptor.
    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Whether both are made of the same.
    pub(super) fn is_of(&self, other: &Self) -> bool {
        self.class == other.class
    }

    /// A queue over the medium. Each thread has one of its own.
    pub(super) fn member(&self) -> Result<Member<AreaQueue>, StoreError> {
        self.member_by(&mut open_area)
    }

    /// As [`Medium::member`]; `open` opens what is no memory.
    pub(super) fn member_by(
        &self,
        open: &mut dyn FnMut(OwnedFd, u64) -> Result<AreaQueue, OpenError>,
    ) -> Result<Member<AreaQueue>, StoreError> {
        let file = duplicate(&self.file, &self.path)?;
        let fail = |source| StoreError::Queue { path: self.path.clone(), source };
        let disk = if self.class == ClassName::Nvm && is_tmpfs(&file) {
            let memory = Mapped::file_on_demand(&file, self.bytes).map_err(fail)?;
            AreaQueue::Nvm(NvmQueue::over(memory, None))
        } else {
            open(file, self.bytes).map_err(fail)?
        };
        Ok(Member { name: self.path.display().to_string(), class: self.class.into(), disk })
    }
}

/// Opens and locks the files of all media, the home first. Where a change of the media was cut
/// short, the description is made that of the media that the pool has.
pub(super) fn open_all(description: &mut Description) -> Result<Vec<Medium>, StoreError> {
    match description.change.clone() {
        None => {}
        Some(Change::Grow { path, bytes }) => {
            // The kernel makes a file longer in steps, between which power may be lost.
            if let Some(place) = description.place(&path)
                && let Ok(found) = path.symlink_metadata()
                && (description.media[place].bytes..=bytes).contains(&found.len())
            {
                description.media[place].bytes = found.len();
            }
        }
        Some(Change::Add(medium)) => {
            let is_there = medium.path.symlink_metadata().is_ok_and(|found| found.len() == medium.bytes);
            if is_there && let Some(place) = place_in_pool(description, &medium)? {
                // A place behind those that are known is refused when the pool is opened.
                description.media.insert(place.min(description.media.len()), medium);
            }
        }
        Some(Change::Drain { path }) => {
            if let Some(place) = description.place(&path).filter(|place| *place > 0) {
                let medium = description.media[place].clone();
                if place_in_pool(description, &medium)?.is_none() {
                    description.media.remove(place);
                }
            }
        }
    }
    description.media.iter().map(Medium::open).collect()
}

/// The place of a medium among those of the pool, if it belongs to the pool.
fn place_in_pool(description: &Description, other: &MediumDescription) -> Result<Option<usize>, StoreError> {
    let Some(home) = description.media.first() else { return Ok(None) };
    let (home, other) = (Medium::open(home)?, Medium::open(other)?);
    Ok(place_of(home.member()?, other.member()?)?)
}

/// Opens and locks a file that only this user may have written: what is in a folder like
/// `/dev/shm` may have been put there by another user.
pub(super) fn open_own(path: &Path, bytes: u64) -> Result<OwnedFd, StoreError> {
    let file = area::open(path, bytes)?;
    let fail = |errno: rustix::io::Errno| StoreError::Io {
        path: path.to_owned(),
        action: "read its owner",
        source: errno.into(),
    };
    let found = fstat(&file).map_err(fail)?;
    let is_own = found.st_uid == geteuid().as_raw() && found.st_mode & 0o077 == 0 && found.st_nlink == 1;
    if is_own { Ok(file) } else { Err(StoreError::Foreign { path: path.to_owned() }) }
}

fn duplicate(file: &OwnedFd, path: &Path) -> Result<OwnedFd, StoreError> {
    file.try_clone().map_err(|source| StoreError::Io {
        path: path.to_owned(),
        action: "duplicate its descriptor",
        source,
    })
}

fn is_tmpfs(file: &OwnedFd) -> bool {
    fstatfs(file).is_ok_and(|found| found.f_type == TMPFS)
}

/// The memory of a log, and the same memory once more: for the digest, and for what makes it
/// durable.
pub(super) fn log_memory(file: OwnedFd, path: &Path, bytes: u64) -> Result<(Mapped, Mapped), StoreError> {
    let fail = |source| StoreError::Queue { path: path.to_owned(), source };
    if is_tmpfs(&file) {
        let first = Mapped::file(&file, bytes).map_err(fail)?;
        return Ok((first, Mapped::file_on_demand(&file, bytes).map_err(fail)?));
    }
    let second = duplicate(&file, path)?;
    Ok((Mapped::dax(file, bytes).map_err(fail)?, Mapped::dax(second, bytes).map_err(fail)?))
}
