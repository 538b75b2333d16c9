//! The files of a file system as queues and memory.

use std::io::ErrorKind;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, fstat, fstatfs};
use rustix::process::geteuid;
use sietch_disk::area::AreaError;
use sietch_disk::nvm::Mapped;
use sietch_disk::{AreaQueue, BLOCK, NvmQueue, OpenError, area, open_area};
use sietch_fs::pool::{Belonging, Member, belonging, recorded_media};

use super::description::{Change, ClassName, Description, FILE, MediumDescription, ModelName};
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
    model: Option<ModelName>,
}

impl Medium {
    /// Opens and locks the file of a medium.
    pub(super) fn open(description: &MediumDescription) -> Result<Self, StoreError> {
        let MediumDescription { class, path, bytes, model } = description.clone();
        let file = open_own(&path, bytes).map_err(|error| match error {
            StoreError::Missing { path, .. } => {
                StoreError::Missing { path, what: format!("the medium of class {class}") }
            }
            other => other,
        })?;
        Ok(Self { file, path, class, bytes, model })
    }

    /// Opens the file of a medium that another process has locked, for one that only reads. Memory
    /// is mapped by a descriptor for both.
    pub(super) fn open_to_read(description: MediumDescription) -> Result<Self, StoreError> {
        let MediumDescription { class, path, bytes, model } = description;
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = rustix::fs::open(&path, flags, Mode::empty()).map_err(|errno| StoreError::Io {
            path: path.clone(),
            action: "open",
            source: errno.into(),
        })?;
        Ok(Self { file, path, class, bytes, model })
    }

    /// The medium behind a descriptor that the service has passed.
    pub(super) fn of_descriptor(file: OwnedFd, description: MediumDescription) -> Self {
        let MediumDescription { class, path, bytes, model } = description;
        Self { file, path, class, bytes, model }
    }

    /// Refuses a model of what is no memory. `fs_toml` is the description.
    pub(super) fn judge_model(&self, fs_toml: &Path) -> Result<(), StoreError> {
        let is_memory = self.class == ClassName::Hdd && is_tmpfs(&self.file);
        if self.model.is_none() || is_memory {
            return Ok(());
        }
        Err(StoreError::Contradiction {
            path: fs_toml.to_owned(),
            line: "model = \"rotating\"".to_owned(),
            fact: format!(
                "{} is no file of class hdd on a tmpfs, which could stand in for one",
                self.path.display()
            ),
            fix: "remove the model, or choose a file of class hdd in /dev/shm".to_owned(),
        })
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
        let model = self.model.map(ModelName::model);
        let is_memory = self.class == ClassName::Nvm || model.is_some();
        let disk = if is_memory && is_tmpfs(&file) {
            let memory = Mapped::file_on_demand(&file, self.bytes).map_err(fail)?;
            AreaQueue::Nvm(NvmQueue::over(memory, model))
        } else {
            open(file, self.bytes).map_err(fail)?
        };
        Ok(Member { name: self.path.display().to_string(), class: self.class.into(), disk })
    }
}

/// Opens and locks the files of all media, the home first. Where a change of the media was cut
/// short, the description is made that of the media that the pool has.
///
/// # Errors
/// [`StoreError::Contradiction`]: a line of the description in `folder` says something else than
/// the superblocks.
pub(super) fn open_all(folder: &Path, description: &mut Description) -> Result<Vec<Medium>, StoreError> {
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
            if is_there && let Belonging::Member(place) = belonging_of(description, &medium)? {
                // A place behind those that are known is refused when the pool is opened.
                description.media.insert(place.min(description.media.len()), medium);
            }
        }
        Some(change @ Change::Drain { .. }) => {
            if let Some(place) = description.place(change.path()).filter(|place| *place > 0) {
                match belonging_of(description, &description.media[place])? {
                    Belonging::Member(_) => {}
                    Belonging::Former => drop(description.media.remove(place)),
                    Belonging::Foreign => {
                        let fact = "the file is no medium of this file system";
                        return Err(Description::wrong_change(&folder.join(FILE), &change, fact));
                    }
                }
            }
        }
    }
    let media = description.media.iter().map(Medium::open).collect::<Result<Vec<_>, _>>()?;
    judge(folder, description, &media)?;
    Ok(media)
}

/// What a medium is to the pool.
pub(super) fn belonging_of(
    description: &Description,
    other: &MediumDescription,
) -> Result<Belonging, StoreError> {
    let Some(home) = description.media.first() else { return Ok(Belonging::Foreign) };
    let (home, other) = (Medium::open(home)?, Medium::open(other)?);
    Ok(belonging(home.member()?, other.member()?)?)
}

/// Refuses a description that says something else of the media than their superblocks.
fn judge(folder: &Path, description: &Description, media: &[Medium]) -> Result<(), StoreError> {
    media.iter().try_for_each(|medium| medium.judge_model(&folder.join(FILE)))?;
    let members = media.iter().map(Medium::member).collect::<Result<Vec<_>, _>>()?;
    let grows = description.change.as_ref().filter(|change| matches!(change, Change::Grow { .. }));
    for (medium, (class, blocks)) in description.media.iter().zip(recorded_media(members)?) {
        let wrong = |line: String, right: String, more: &str| StoreError::Contradiction {
            path: folder.join(FILE),
            line,
            fact: format!("{} belongs to the file system with `{right}`", medium.path.display()),
            fix: format!("write `{right}`{more}"),
        };
        let (said, class) = (medium.class, ClassName::from(class));
        if said != class {
            return Err(wrong(format!("class = \"{said}\""), format!("class = \"{class}\""), ""));
        }
        let bytes = u64::from(blocks) * BLOCK as u64;
        let is_growing = grows.is_some_and(|change| change.path() == medium.path);
        if medium.bytes != bytes && !is_growing {
            let more =
                format!(", and cut the file to this size: truncate -s {bytes} {}", medium.path.display());
            return Err(wrong(format!("bytes = {}", medium.bytes), format!("bytes = {bytes}"), &more));
        }
    }
    Ok(())
}

/// Opens and locks a file that only this user may have written: what is in a folder like
/// `/dev/shm` may have been put there by another user.
pub(super) fn open_own(path: &Path, bytes: u64) -> Result<OwnedFd, StoreError> {
    let file = area::open(path, bytes).map_err(|error| unopened(path, error))?;
    let fail = |errno: rustix::io::Errno| StoreError::Io {
        path: path.to_owned(),
        action: "read its owner",
        source: errno.into(),
    };
    let found = fstat(&file).map_err(fail)?;
    let is_own = found.st_uid == geteuid().as_raw() && found.st_mode & 0o077 == 0 && found.st_nlink == 1;
    if is_own {
        return Ok(file);
    }
    // One word on some architectures.
    #[allow(clippy::useless_conversion)]
    Err(StoreError::foreign(path, found.st_uid, found.st_mode, found.st_nlink.into()))
}

/// Why a file of the file system cannot be opened, and what to do.
fn unopened(path: &Path, error: AreaError) -> StoreError {
    match error {
        AreaError::WrongSize { path, wanted, found } => StoreError::WrongSize { path, wanted, found },
        AreaError::Io { source, .. } if source.kind() == ErrorKind::NotFound => {
            StoreError::Missing { path: path.to_owned(), what: "this file of the file system".to_owned() }
        }
        AreaError::Io { ref source, .. } if source.kind() == ErrorKind::PermissionDenied => {
            match path.symlink_metadata() {
                Ok(found) => StoreError::foreign(path, found.uid(), found.mode(), found.nlink()),
                Err(_) => error.into(),
            }
        }
        other => other.into(),
    }
}

fn duplicate(file: &OwnedFd, path: &Path) -> Result<OwnedFd, StoreError> {
    file.try_clone().map_err(|source| StoreError::Io {
        path: path.to_owned(),
        action: "duplicate its descriptor",
        source,
    })
}

pub(super) fn is_tmpfs(file: &OwnedFd) -> bool {
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

#[cfg(test)]
mod tests;
