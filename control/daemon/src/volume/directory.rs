//! A volume that is a directory: each area a file of its own.
//!
//! 1. `NAME.vsa` is the area, `NAME.owner` says for which uid it was made, and in a second line `size BYTES` how long it is, unless it was
//!    made as `sietch.toml` says and never resized. Both belong to the daemon (mode 0600 in a directory of mode 0700): the only way
//!    in is a descriptor that the daemon passes.
//! 2. An area is given to no other uid: `sietch.toml` naming another one is refused.
//! 3. Each grant gets a new open file description with an exclusive lock ([`sietch_disk::area::open`]): while anything of
//!    the former holder is still open or in flight, the next grant waits, then fails.
//! 4. Revoking sets the inode immutable, which ext4 checks at every write, also through descriptors that are open. Whether this file
//!    system does is *tried* at start on a probe file; if not, Status and Revoke say so. The flag is cleared by the next grant, after
//!    the lock has shown that the former holder is gone.
//! 5. A holder can make its file longer or shorter. Longer would eat the disk: it is cut back on sight. Shorter harms itself alone.
//! 6. Growing: the new part is made of durable zeros, then the owner's file says the new size. Shrinking: the owner's file first, then the cut.
//!    Wherever a crash falls, the file is at least as long as the owner's file says, and what is beyond is cut off.
//! 7. An area that was being made when the daemon was killed has no name yet, and is removed by the next start.
//! 8. Removing: the area first, its owner's file last; an owner's file alone means nothing.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, IFlags, Mode, OFlags};
use rustix::io::Errno;
use sietch_disk::area::{self, AreaError};
use sietch_protocol::message::is_name;
use sietch_protocol::{ErrorKind, ErrorReply, Protection};

use super::{Found, full, gone, refuse};
use crate::Error;

/// The unit of `st_blocks`.
const STAT_BLOCK: u64 = 512;
/// What a file system may add to a file's blocks for its own maps.
const MAP_ALLOWANCE: u64 = 1 << 20;

/// The directory of areas.
pub(crate) struct Directory {
    volume: String,
    directory: PathBuf,
    /// Bytes for all areas together, where that is bounded.
    bound: Option<u64>,
    /// Why open descriptors cannot be stopped here, if so.
    unfenced: Option<String>,
}

/// What an owner's file says.
struct Record {
    uid: u32,
    size: Option<u64>,
}

impl Directory {
    /// Opens `directory` as the volume named `volume`, making it if need be, and tries what the file system can do.
    pub(crate) fn open(volume: &str, directory: PathBuf, bound: Option<u64>) -> Result<Self, Error> {
        crate::server::make_directory(&directory, 0o700)?;
        remove_unfinished(&directory);
        let unfenced = probe(&directory.join("probe")).err();
        Ok(Self { volume: volume.to_owned(), directory, bound, unfenced })
    }

    /// Where the area `name` lies.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.join(format!("{name}.vsa"))
    }

    /// Where the volume lies.
    pub(crate) fn location(&self) -> String {
        self.directory.display().to_string()
    }

    fn owner_path(&self, name: &str) -> PathBuf {
        self.directory.join(format!("{name}.owner"))
    }

    /// What keeps a holder inside its area and can take it away.
    pub(crate) fn protection(&self) -> Protection {
        match &self.unfenced {
            None => Protection::KernelEnforced,
            Some(why) => Protection::None(why.clone()),
        }
    }

    fn record(&self, name: &str) -> Option<Record> {
        let text = std::fs::read_to_string(self.owner_path(name)).ok()?;
        let mut lines = text.lines();
        let uid = lines.next()?.trim().parse().ok()?;
        let size = lines.find_map(|line| line.strip_prefix("size ")?.trim().parse().ok());
        Some(Record { uid, size })
    }

    fn keep(&self, name: &str, record: &Record) -> Result<(), ErrorReply> {
        let size = record.size.map_or_else(String::new, |size| format!("size {size}\n"));
        let path = self.owner_path(name);
        write_durably(&path, &format!("{}\n{size}", record.uid)).map_err(|error| {
            let cause = format!("cannot write {}: {error}", path.display());
            refuse(ErrorKind::Failed, name, cause, "free some space")
        })
    }

    /// The area `name`, if it has been made.
    pub(crate) fn find(&self, name: &str) -> Option<Found> {
        let metadata = self.path(name).symlink_metadata().ok()?;
        let record = self.record(name);
        let recorded = record.as_ref().and_then(|record| record.size);
        let size = recorded.unwrap_or(metadata.len());
        Some(Found {
            name: name.to_owned(),
            uid: record.map(|record| record.uid),
            size,
            charge: size,
            recorded: recorded.is_some(),
            allocated: metadata.blocks().saturating_mul(STAT_BLOCK),
            extents: None,
        })
    }

    /// Every area.
    pub(crate) fn list(&self) -> Vec<Found> {
        let entries = std::fs::read_dir(&self.directory).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            name.strip_suffix(".vsa").filter(|name| is_name(name)).map(str::to_owned)
        });
        names.filter_map(|name| self.find(&name)).collect()
    }

    /// Bytes for areas in all, and how many of them are free.
    pub(crate) fn room(&self) -> (u64, u64) {
        let (total, free) = match rustix::fs::statvfs(&self.directory) {
            Ok(found) => {
                let bytes = |blocks: u64| blocks.saturating_mul(found.f_frsize);
                (bytes(found.f_blocks), bytes(found.f_bavail))
            }
            Err(_) => (0, 0),
        };
        match self.bound {
            None => (total, free),
            Some(bound) => {
                let used: u64 = self.list().iter().map(|area| area.size).sum();
                (bound, free.min(bound.saturating_sub(used)))
            }
        }
    }

    /// Refuses `more` bytes that the volume's own bound has no room for. What the file system has no room for it says itself.
    fn check_room(&self, more: u64) -> Result<(), ErrorReply> {
        match self.room() {
            (_, free) if self.bound.is_some() && more > free => Err(full(&self.volume, more, free)),
            _ => Ok(()),
        }
    }

    /// Makes the area `name` for `uid`.
    pub(crate) fn create(&self, name: &str, uid: u32, size: u64) -> Result<(), ErrorReply> {
        self.check_room(size)?;
        // An owner's file without an area means nothing: a crash here leaves nothing.
        self.keep(name, &Record { uid, size: Some(size) })?;
        area::create(&self.path(name), size, &mut |_| {}).map_err(|error| self.of_area(name, &error))
    }

    /// The area's file for user `uid`, made with `size` bytes if it does not exist. Blocks for as long as writing that takes.
    pub(crate) fn prepare(&self, name: &str, uid: u32, size: u64) -> Result<OwnedFd, ErrorReply> {
        let path = self.path(name);
        let exists = path.symlink_metadata().is_ok();
        self.check_owner(name, uid, exists)?;
        let record = self.record(name).and_then(|record| record.size).filter(|_| exists);
        let size = record.unwrap_or(size);
        if exists {
            self.free(name)?;
            if record.is_some() {
                // A crash in the middle of growing left more than was promised.
                self.check_size(name, size);
            }
        } else {
            self.check_room(size)?;
            area::create(&path, size, &mut |_| {}).map_err(|error| self.of_area(name, &error))?;
        }
        area::open(&path, size).map_err(|error| self.of_area(name, &error))
    }

    /// Lets the area be written again that a revocation has closed.
    fn free(&self, name: &str) -> Result<(), ErrorReply> {
        let path = self.path(name);
        unfence(&path).map_err(|error| match error {
            Errno::WOULDBLOCK => self.of_area(name, &AreaError::Busy { path: path.clone() }),
            error => {
                let cause = io::Error::from(error).to_string();
                refuse(ErrorKind::Failed, name, cause, "see whether the disk is full or failing")
            }
        })
    }

    /// Gives the area `name` another size. It may be in use.
    pub(crate) fn resize(&self, name: &str, size: u64) -> Result<(), ErrorReply> {
        let Some(found) = self.find(name) else { return Err(gone(name)) };
        let Some(uid) = found.uid else { return Err(self.unowned(name)) };
        self.free(name)?;
        let record = Record { uid, size: Some(size) };
        if size > found.size {
            self.check_room(size - found.size)?;
            if found.recorded {
                self.check_size(name, found.size);
            }
            area::extend(&self.path(name), found.size, size).map_err(|error| self.of_area(name, &error))?;
            return self.keep(name, &record);
        }
        self.keep(name, &record)?;
        area::cut(&self.path(name), size).map_err(|error| self.of_area(name, &error))
    }

    /// Makes a range of the area `name` read as zeros. It may be in use.
    pub(crate) fn trim(&self, name: &str, offset: u64, length: u64) -> Result<(), ErrorReply> {
        self.free(name)?;
        area::discard(&self.path(name), offset, length)
            .map(|_| ())
            .map_err(|error| self.of_area(name, &error))
    }

    /// Removes the area `name`.
    pub(crate) fn delete(&self, name: &str) -> Result<(), ErrorReply> {
        self.free(name)?;
        let removed = std::fs::remove_file(self.path(name))
            .and_then(|()| File::open(&self.directory)?.sync_all())
            .and_then(|()| std::fs::remove_file(self.owner_path(name)));
        match removed {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                let mend = "see whether its file system is read-only or failing";
                Err(refuse(ErrorKind::Failed, name, format!("cannot remove it: {error}"), mend))
            }
            _ => Ok(()),
        }
    }

    fn unowned(&self, name: &str) -> ErrorReply {
        let mend = format!("write the owner's uid into {}", self.owner_path(name).display());
        refuse(ErrorKind::Denied, name, "nothing says whom its data belongs to".to_owned(), &mend)
    }

    fn check_owner(&self, name: &str, uid: u32, exists: bool) -> Result<(), ErrorReply> {
        let path = self.owner_path(name);
        let recorded = self.record(name).map(|record| record.uid);
        match recorded {
            Some(owner) if owner == uid || !exists => {}
            Some(owner) => {
                let cause = format!("its data belongs to uid {owner}, and sietch.toml gives it to uid {uid}");
                let mend = format!(
                    "set uid = {owner} back, or remove {} to start anew, or write {uid} into {} to hand the data over",
                    self.path(name).display(),
                    path.display()
                );
                return Err(refuse(ErrorKind::Denied, name, cause, &mend));
            }
            None if exists => return Err(self.unowned(name)),
            None => {}
        }
        if recorded == Some(uid) && exists {
            return Ok(());
        }
        self.keep(name, &Record { uid, size: None })
    }

    fn of_area(&self, name: &str, error: &AreaError) -> ErrorReply {
        let kind = match error {
            AreaError::NoSpace { needed, available, .. } => return full(&self.volume, *needed, *available),
            AreaError::Busy { .. } => ErrorKind::Busy,
            _ => ErrorKind::Failed,
        };
        let text = error.to_string();
        let (cause, mend) = text.rsplit_once("; ").unwrap_or((&text, "see the daemon's log"));
        refuse(kind, name, cause.to_owned(), mend)
    }

    /// Takes writing away from whoever has the area open. Says what now stops them, or what does not.
    pub(crate) fn fence(&self, name: &str) -> Result<String, String> {
        if let Some(why) = &self.unfenced {
            return Err(why.clone());
        }
        let path = self.path(name);
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let set = || {
            let file = rustix::fs::open(&path, flags, Mode::empty())?;
            let now = rustix::fs::ioctl_getflags(&file)?;
            rustix::fs::ioctl_setflags(&file, now | IFlags::IMMUTABLE)?;
            // What the holder wrote before the flag is settled when this returns.
            rustix::fs::fsync(&file)
        };
        match set() {
            Ok(()) => Ok("its file is immutable: writes fail, also through open descriptors".to_owned()),
            Err(Errno::NOENT) => Ok("it had not been made yet".to_owned()),
            Err(error) => Err(format!("cannot make {} immutable: {error}", path.display())),
        }
    }

    /// Cuts an area back that is longer than `size`, or has blocks beyond its end; says what it found if it was not
    /// as it was made.
    pub(crate) fn check_size(&self, name: &str, size: u64) -> Option<String> {
        let path = self.path(name);
        // What the owner's file says is newer than what a grant remembers.
        let size = self.record(name).and_then(|record| record.size).unwrap_or(size);
        let metadata = path.symlink_metadata().ok()?;
        let (length, reserved) = (metadata.len(), metadata.blocks().saturating_mul(STAT_BLOCK));
        if length < size {
            return Some(format!("VSA {name}: cut short to {length} of {size} bytes by its holder"));
        }
        if length == size && reserved <= size.saturating_add(MAP_ALLOWANCE) {
            return None;
        }
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        // Truncating to the same length frees what was reserved beyond it.
        let cut =
            rustix::fs::open(&path, flags, Mode::empty()).and_then(|file| rustix::fs::ftruncate(&file, size));
        let grown = format!("had grown to {length} bytes, {reserved} on disk,");
        Some(match cut {
            Ok(()) => format!("VSA {name}: {grown} and was cut back to {size}"),
            Err(error) => format!("VSA {name}: {grown} and cannot be cut back to {size}: {error}"),
        })
    }
}

/// Removes areas that a killed daemon was making: they have no name, and nobody would ever ask for their blocks.
fn remove_unfinished(directory: &Path) {
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.as_os_str().as_encoded_bytes().ends_with(b".vsa.partial")
            && let Err(error) = std::fs::remove_file(&path)
        {
            tracing::warn!(%error, path = %path.display(), "an unfinished area stays behind");
        }
    }
}

/// Clears the immutable flag, once nobody else has the area locked.
fn unfence(path: &Path) -> Result<(), Errno> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::empty())?;
    let Ok(now) = rustix::fs::ioctl_getflags(&file) else {
        // A file system without flags has nothing to clear.
        return Ok(());
    };
    if now.contains(IFlags::IMMUTABLE) {
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        rustix::fs::ioctl_setflags(&file, now - IFlags::IMMUTABLE)?;
    }
    Ok(())
}

/// Whether an immutable file refuses writes through a descriptor that was open before.
fn probe(path: &Path) -> Result<(), String> {
    // An earlier daemon may have been killed in the middle of this.
    let _ = unfence(path);
    let mut file =
        File::create(path).map_err(|error| format!("cannot write to the data directory: {error}"))?;
    let tried = rustix::fs::ioctl_getflags(&file).and_then(|now| {
        rustix::fs::ioctl_setflags(&file, now | IFlags::IMMUTABLE)?;
        let write = file.write(&[0]);
        rustix::fs::ioctl_setflags(&file, now - IFlags::IMMUTABLE)?;
        Ok(write.is_err())
    });
    // A probe that stays behind is overwritten at the next start.
    let _ = std::fs::remove_file(path);
    match tried {
        Ok(true) => Ok(()),
        Ok(false) => Err("this file system lets open descriptors write to immutable files".to_owned()),
        Err(Errno::PERM | Errno::ACCESS) => {
            Err("same user as the daemon, without CAP_LINUX_IMMUTABLE".to_owned())
        }
        Err(_) => Err("this file system knows no immutable files".to_owned()),
    }
}

fn write_durably(path: &Path, text: &str) -> io::Result<()> {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    let new = PathBuf::from(name);
    let mut file = File::create(&new)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    std::fs::rename(&new, path)
}

#[cfg(test)]
mod tests;
