//! The files behind VSAs.
//!
//! 1. `DATA/areas/NAME.vsa` is the area, `NAME.owner` the uid it was made for. Both belong to the daemon (mode 0600 in a
//!    directory of mode 0700): the only way in is a descriptor that the daemon passes.
//! 2. An area is made at its first grant, outside the control task, and kept. It is given to no other uid: `sietch.toml` naming
//!    another one is refused.
//! 3. Each grant gets a new open file description with an exclusive lock ([`sietch_disk::area::open`]): while anything of
//!    the former holder is still open or in flight, the next grant waits, then fails.
//! 4. Revoking sets the inode immutable, which ext4 checks at every write, also through descriptors that are open. Whether this file
//!    system does is *tried* at start on a probe file; if not, Status and Revoke say so. The flag is cleared by the next grant, after
//!    the lock has shown that the former holder is gone.
//! 5. A holder can make its file longer or shorter. Longer would eat the disk: it is cut back on sight. Shorter harms itself alone.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, IFlags, Mode, OFlags};
use rustix::io::Errno;
use sietch_disk::area::{self, AreaError};
use sietch_protocol::{ErrorKind, ErrorReply, Protection};

use crate::Error;

/// The unit of `st_blocks`.
const STAT_BLOCK: u64 = 512;
/// What a file system may add to a file's blocks for its own maps.
const MAP_ALLOWANCE: u64 = 1 << 20;

/// The directory of areas.
pub(crate) struct Areas {
    directory: PathBuf,
    /// Why open descriptors cannot be stopped here, if so.
    unfenced: Option<String>,
}

impl Areas {
    /// Opens `DATA/areas`, making it if need be, and tries what the file system can do.
    pub(crate) fn open(data: &Path) -> Result<Self, Error> {
        let directory = data.join("areas");
        crate::server::make_directory(&directory, 0o700)?;
        let unfenced = probe(&directory.join("probe")).err();
        Ok(Self { directory, unfenced })
    }

    /// Where the area `name` lies.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.join(format!("{name}.vsa"))
    }

    /// What keeps a holder inside its area and can take it away.
    pub(crate) fn protection(&self) -> Protection {
        match &self.unfenced {
            None => Protection::KernelEnforced,
            Some(why) => Protection::None(why.clone()),
        }
    }

    /// The area's file for user `uid`, made if it does not exist. Blocks for as long as writing `size` bytes takes.
    pub(crate) fn prepare(&self, name: &str, uid: u32, size: u64) -> Result<OwnedFd, ErrorReply> {
        let path = self.path(name);
        let io = |error: io::Error| {
            refuse(ErrorKind::Failed, name, error.to_string(), "see whether the disk is full or failing")
        };
        let exists = path.symlink_metadata().is_ok();
        self.check_owner(name, uid, exists)?;
        if exists {
            unfence(&path).map_err(|error| match error {
                Errno::WOULDBLOCK => of_area(name, &AreaError::Busy { path: path.clone() }),
                error => io(error.into()),
            })?;
        } else {
            area::create(&path, size, &mut |_| {}).map_err(|error| of_area(name, &error))?;
        }
        area::open(&path, size).map_err(|error| of_area(name, &error))
    }

    fn check_owner(&self, name: &str, uid: u32, exists: bool) -> Result<(), ErrorReply> {
        let path = self.directory.join(format!("{name}.owner"));
        let recorded = std::fs::read_to_string(&path).ok().and_then(|text| text.trim().parse::<u32>().ok());
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
            None if exists => {
                let cause = "nothing says whom its data belongs to".to_owned();
                let mend = format!("write the owner's uid into {}", path.display());
                return Err(refuse(ErrorKind::Denied, name, cause, &mend));
            }
            None => {}
        }
        if recorded == Some(uid) {
            return Ok(());
        }
        write_durably(&path, &format!("{uid}\n")).map_err(|error| {
            refuse(
                ErrorKind::Failed,
                name,
                format!("cannot write {}: {error}", path.display()),
                "free some space",
            )
        })
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

fn refuse(kind: ErrorKind, name: &str, cause: String, mend: &str) -> ErrorReply {
    ErrorReply { kind, what: format!("VSA {name}"), cause, mend: mend.to_owned() }
}

fn of_area(name: &str, error: &AreaError) -> ErrorReply {
    let kind = match error {
        AreaError::Busy { .. } => ErrorKind::Busy,
        _ => ErrorKind::Failed,
    };
    let text = error.to_string();
    let (cause, mend) = text.rsplit_once("; ").unwrap_or((&text, "see the daemon's log"));
    refuse(kind, name, cause.to_owned(), mend)
}

#[cfg(test)]
mod tests;
