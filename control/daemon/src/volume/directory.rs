//! A volume that is a directory: each area is a file of its own.
//!
//! 1. `NAME.vsa` is the area. `NAME.owner` names the uid it was created for. Its second line gives
//!    the length: `made BYTES` if the area was created as `sietch.toml` says and never resized,
//!    otherwise `size BYTES`. The length of the file itself is what its holder makes it.
//!    Both files belong to the daemon (mode 0600 in a directory of mode 0700): the only access is a
//!    descriptor that the daemon passes.
//! 2. An area is given to no other uid. If `sietch.toml` names another one, the request is refused.
//! 3. Each grant gets a new open file description with an exclusive lock
//!    ([`sietch_disk::area::open`]). While the previous holder still has a descriptor open or I/O
//!    in flight, the next grant waits, then fails.
//! 4. Revoking sets the inode immutable. ext4 checks that flag at every write, also through open
//!    descriptors. Whether this file system does is *tried* at start on a probe file. If it does
//!    not, Status and Revoke report it. The next grant clears the flag, once no process has the
//!    file open for writing ([`sietch_disk::area::wait_unwritten`]).
//! 5. A holder can make its file longer or shorter. A shorter one harms only its holder. A longer
//!    one takes room of others. So the daemon compares the lengths each second, and where a file is
//!    longer, the grant ends and the file is shut: cut back and immutable. An immutable file cannot
//!    be cut, and between the cut and the flag its holder can make it longer again. So both are
//!    repeated, a few times at once and then each second. A file that a former holder has kept open
//!    for writing is shut too.
//! 6. Growing: durable zeros are written first, then the owner's file gets the new size. Shrinking:
//!    the owner's file first, then the cut. At whatever point a crash occurs, the file is at least
//!    as long as the owner's file says, and the excess is cut off.
//! 7. An area that was being created when the daemon was killed has no name yet. The next start
//!    removes it. It also removes an owner's file without an area, and one that was being written.
//! 8. Removing: the area first, its owner's file last; an owner's file alone has no meaning. Every
//!    change of a name is flushed with the directory before the next step. Otherwise a file shorter
//!    than its owner's file says would be refused, and a longer one cut. An area that a former
//!    holder has open for writing is neither removed nor resized: a quota counts areas, and that
//!    process would keep the blocks of one that is gone. What has it open to read is left an empty
//!    file.
//! 9. Trimming writes zeros and frees no blocks. Freeing them would leave more room in the file
//!    system. But the holder was promised that many bytes. A log that trims a range and writes it
//!    again later could then find the disk full. Or each write to new blocks, or to blocks that
//!    count as unwritten (`ZERO_RANGE`), would wait for the file system's journal. Preallocated,
//!    written blocks avoid that wait (35 us against 60, with milliseconds at the tail). Quotas
//!    count the size, so no user of Sietch gains room by a hole. A user that needs the room shrinks
//!    the area.
//! 10. On persistent memory (`kind = "dax"`, a file system mounted with `-o dax`) areas are files
//!     that are mapped with `MAP_SYNC`. Whether that works is *tried* at start. Where it is refused
//!     the volume is broken, because a mapping of cached pages would not be durable at the fence. A
//!     mapping can still write to an immutable file, so there revoking copies the area to a new
//!     file, which takes its name. The previous holder keeps blocks that belong to no area, until
//!     it ends.
//! 11. A directory belongs to one daemon ([`super::claim`]). Bounded room is reserved before it is
//!     filled.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::fs::{IFlags, Mode, OFlags};
use rustix::io::Errno;
use sietch_disk::BLOCK;
use sietch_disk::area::{self, AreaError};
use sietch_disk::nvm::Mapped;
use sietch_protocol::message::is_name;
use sietch_protocol::{ErrorKind, ErrorReply, Protection};

use super::area::{AreaInfo, check_fit, full, no_area, refuse};
use super::claim::{Claim, PreviousClaims};
use crate::error::Error;

/// The unit of `st_blocks`.
const STAT_BLOCK: u64 = 512;
/// What a file system may add to a file's blocks for its own maps, at least.
const MAP_ALLOWANCE: u64 = 1 << 20;
/// The same as a part of the file: ext4 needs 12 bytes for each extent, which may be one block.
const MAP_SHARE: u64 = 256;

/// Times that a file is cut, if its holder makes it longer before it is immutable.
const MOST_CUTS: usize = 32;

/// The directory of areas.
pub(crate) struct Directory {
    volume: String,
    directory: PathBuf,
    /// Bytes for all areas together, where that is bounded.
    bound: Option<u64>,
    /// Bytes that are being made, where they are bounded.
    reserved: Mutex<u64>,
    /// Why open descriptors cannot be stopped here, if so.
    unfenced: Option<Unfenced>,
    /// Whether its files are memory.
    dax: bool,
    /// Excludes other daemons.
    claim: Arc<Claim>,
}

/// Room that is spoken for as long as this is kept.
struct Reserved<'a>(&'a Directory, u64);

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        let mut reserved = self.0.spoken_for();
        *reserved = reserved.saturating_sub(self.1);
    }
}

/// Why revoking an area does not stop a holder that has it open.
struct Unfenced {
    why: String,
    /// Whether another file system would.
    by_file_system: bool,
}

/// The content of an owner's file.
struct Record {
    uid: u32,
    size: Option<u64>,
    /// Whether a request has chosen the size. Otherwise `sietch.toml` has.
    requested: bool,
}

impl Directory {
    /// Opens `directory` as the volume named `volume`, making it if need be, and tries what the
    /// file system can do.
    pub(crate) fn open(
        volume: &str,
        directory: PathBuf,
        bound: Option<u64>,
        previous: &mut PreviousClaims,
    ) -> Result<Self, Error> {
        crate::directories::make_directory(&directory, 0o700)?;
        let claim = Claim::directory(&directory, previous).map_err(Error::Volume)?;
        check_own(&directory, claim.file()).map_err(Error::Volume)?;
        remove_unfinished(&directory);
        let unfenced = probe(&directory.join("probe")).err();
        let reserved = Mutex::new(0);
        let opened =
            Self { volume: volume.to_owned(), directory, bound, reserved, unfenced, dax: false, claim };
        // The state that is opened next may need that room.
        for area in opened.list().iter().filter(|area| opened.has_grown(&area.name, area.size)) {
            let found = opened.check_size(&area.name, area.size).unwrap_or_default();
            tracing::warn!("{found}");
        }
        Ok(opened)
    }

    /// The same on persistent memory, or why it is not.
    pub(crate) fn on_dax(mut self) -> Result<Self, String> {
        // A name that the next start removes.
        let probe = self.directory.join("probe.vsa.partial");
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::open(&probe, flags, Mode::RUSR | Mode::WUSR)
            .and_then(|file| rustix::fs::ftruncate(&file, BLOCK as u64).map(|()| file))
            .map_err(|error| format!("{}: {error}; see whether it is full", self.location()));
        let mapped = file.map(|file| Mapped::dax(file, BLOCK as u64).err());
        // The next start removes a probe that remains.
        let _ = std::fs::remove_file(&probe);
        match mapped? {
            None => {
                self.dax = true;
                Ok(self)
            }
            Some(why) => Err(format!("{}: {why}", self.location())),
        }
    }

    /// Whether its files are memory.
    pub(crate) fn is_dax(&self) -> bool {
        self.dax
    }

    /// The claim that excludes other daemons from it.
    pub(crate) fn claim(&self) -> Arc<Claim> {
        Arc::clone(&self.claim)
    }

    /// The path of the area `name`.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.join(format!("{name}.vsa"))
    }

    /// Where the volume is stored.
    pub(crate) fn location(&self) -> String {
        self.directory.display().to_string()
    }

    fn owner_path(&self, name: &str) -> PathBuf {
        self.directory.join(format!("{name}.owner"))
    }

    /// The mechanism that keeps a holder inside its area and can revoke it.
    pub(crate) fn protection(&self) -> Protection {
        match &self.unfenced {
            _ if self.dax => Protection::KernelEnforced,
            None => Protection::KernelEnforced,
            Some(unfenced) => Protection::None(unfenced.why.clone()),
        }
    }

    /// The warning for the administrator: revoking areas of this volume has no effect, because the
    /// file system does not support it.
    pub(crate) fn warning(&self) -> Option<String> {
        let unfenced = self.unfenced.as_ref().filter(|unfenced| unfenced.by_file_system && !self.dax)?;
        Some(format!(
            "volume {} in {}: {}, so revoking an area does not stop a process that has it open; put the volume on ext4, or make it one of kind `extents`",
            self.volume,
            self.location(),
            unfenced.why
        ))
    }

    fn record(&self, name: &str) -> Option<Record> {
        let text = std::fs::read_to_string(self.owner_path(name)).ok()?;
        let mut lines = text.lines();
        let uid = lines.next()?.trim().parse().ok()?;
        let size = |line: &str| {
            let (word, bytes) = line.split_once(' ')?;
            ["size", "made"].contains(&word).then_some((bytes.trim().parse().ok()?, word == "size"))
        };
        let (size, requested) = lines.find_map(size).unzip();
        Some(Record { uid, size, requested: requested == Some(true) })
    }

    fn keep(&self, name: &str, record: &Record) -> Result<(), ErrorReply> {
        let word = if record.requested { "size" } else { "made" };
        let size = record.size.map_or_else(String::new, |size| format!("{word} {size}\n"));
        let path = self.owner_path(name);
        let text = format!("{}\n{size}", record.uid);
        let written = write_durably(&path, &text).or_else(|error| match error.kind() {
            // Shrinking must succeed where nothing is free: the existing block receives the new
            // text.
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                overwrite(&path, &text).or(Err(error))
            }
            _ => Err(error),
        });
        written.map_err(|error| {
            if error.kind() == io::ErrorKind::StorageFull {
                return full(&self.volume, record.size.unwrap_or(BLOCK as u64), self.room().1);
            }
            let cause = format!("cannot write {}: {error}", path.display());
            refuse(ErrorKind::Failed, name, cause, "free some space")
        })
    }

    /// The area `name`, if it has been made.
    pub(crate) fn find(&self, name: &str) -> Option<AreaInfo> {
        let metadata = self.path(name).symlink_metadata().ok()?;
        let record = self.record(name);
        let recorded = record.as_ref().is_some_and(|record| record.requested);
        let size = record.as_ref().and_then(|record| record.size).unwrap_or(metadata.len());
        Some(AreaInfo {
            name: name.to_owned(),
            uid: record.map(|record| record.uid),
            size,
            charge: size,
            recorded,
            allocated: metadata.blocks().saturating_mul(STAT_BLOCK),
            extents: None,
        })
    }

    /// A descriptor of the area `name` that only reads.
    pub(crate) fn reader(&self, name: &str) -> Result<OwnedFd, ErrorReply> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        rustix::fs::open(self.path(name), flags, Mode::empty()).map_err(|error| match error {
            Errno::NOENT => no_area(name),
            error => {
                let cause = format!("cannot open it: {}", io::Error::from(error));
                refuse(ErrorKind::Failed, name, cause, "see whether its disk is failing")
            }
        })
    }

    /// When the area `name` was last written, in nanoseconds since 1970.
    pub(crate) fn modified(&self, name: &str) -> Option<u64> {
        rustix::fs::lstat(self.path(name)).ok().as_ref().and_then(super::area::modified)
    }

    /// Every area.
    pub(crate) fn list(&self) -> Vec<AreaInfo> {
        let entries = std::fs::read_dir(&self.directory).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            name.strip_suffix(".vsa").filter(|name| is_name(name)).map(str::to_owned)
        });
        names.filter_map(|name| self.find(&name)).collect()
    }

    /// Bytes for areas in all, and how many of them are free.
    pub(crate) fn room(&self) -> (u64, u64) {
        self.room_beside(*self.spoken_for())
    }

    fn spoken_for(&self) -> MutexGuard<'_, u64> {
        // No code panics while it holds this lock.
        self.reserved.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn room_beside(&self, reserved: u64) -> (u64, u64) {
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
                (bound, free.min(bound.saturating_sub(used).saturating_sub(reserved)))
            }
        }
    }

    /// Reserves `more` bytes, or refuses them if they exceed the volume's own bound. The file
    /// system itself reports when it is full.
    fn reserve(&self, more: u64) -> Result<Reserved<'_>, ErrorReply> {
        let mut reserved = self.spoken_for();
        if self.bound.is_some() {
            let (_, free) = self.room_beside(*reserved);
            if more > free {
                return Err(full(&self.volume, more, free));
            }
        }
        *reserved = reserved.saturating_add(more);
        Ok(Reserved(self, more))
    }

    /// Creates the area `name` for `uid`.
    pub(crate) fn create(&self, name: &str, uid: u32, size: u64) -> Result<(), ErrorReply> {
        let _room = self.reserve(size)?;
        // An owner's file without an area means nothing: a crash here leaves nothing.
        self.keep(name, &Record { uid, size: Some(size), requested: true })?;
        area::create(&self.path(name), size, &mut |_| {}).map_err(|error| {
            // The first error is the one to report; alone the file means nothing.
            drop(std::fs::remove_file(self.owner_path(name)));
            self.of_area(name, &error)
        })
    }

    /// The area's file for user `uid`, created with `size` bytes if it does not exist. Blocks for
    /// as long as writing that takes.
    pub(crate) fn prepare(&self, name: &str, uid: u32, size: u64) -> Result<OwnedFd, ErrorReply> {
        let path = self.path(name);
        let found = self.find(name);
        let recorded = found.as_ref().filter(|found| found.recorded).map(|found| found.size);
        let size = recorded.unwrap_or(size);
        if found.is_some() {
            self.check(name, uid, size)?;
            self.free(name)?;
            if self.record(name).is_some_and(|record| record.size.is_none()) {
                self.keep(name, &Record { uid, size: Some(size), requested: false })?;
            }
            // A crash in the middle of growing left more than was promised.
            self.check_size(name, size);
        } else {
            self.keep(name, &Record { uid, size: Some(size), requested: false })?;
            let _room = self.reserve(size)?;
            area::create(&path, size, &mut |_| {}).map_err(|error| self.of_area(name, &error))?;
        }
        area::open(&path, size).map_err(|error| self.of_area(name, &error))
    }

    /// Waits until no process can write to an area that is not held. Then clears the flag that a
    /// revocation has set.
    fn free(&self, name: &str) -> Result<(), ErrorReply> {
        let path = self.path(name);
        area::wait_unwritten(&path).map_err(|error| self.of_area(name, &error))?;
        unfence(&path).map_err(|error| {
            let cause = io::Error::from(error).to_string();
            refuse(ErrorKind::Failed, name, cause, "see whether the disk is full or failing")
        })
    }

    /// Gives the area `name` another size. Another process may be using it only if it is `held`.
    pub(crate) fn resize(&self, name: &str, size: u64, held: bool) -> Result<(), ErrorReply> {
        let Some(found) = self.find(name) else { return Err(no_area(name)) };
        let Some(uid) = found.uid else {
            let own = rustix::process::geteuid().as_raw();
            return check_fit(&found, own, size, &self.hand_over(name, own));
        };
        if !held {
            self.free(name)?;
        }
        let record = Record { uid, size: Some(size), requested: true };
        if size > found.size {
            let _room = self.reserve(size - found.size)?;
            self.check_size(name, found.size);
            area::extend(&self.path(name), found.size, size).map_err(|error| self.of_area(name, &error))?;
            return self.keep(name, &record);
        }
        self.keep(name, &record)?;
        area::cut(&self.path(name), size).map_err(|error| self.of_area(name, &error))
    }

    /// Makes a range of the area `name` read as zeros. Another process may be using it only if it
    /// is `held`.
    pub(crate) fn trim(&self, name: &str, offset: u64, length: u64, held: bool) -> Result<(), ErrorReply> {
        if !held {
            self.free(name)?;
        }
        area::zero(&self.path(name), offset, length).map_err(|error| self.of_area(name, &error))
    }

    /// Removes the area `name`.
    pub(crate) fn delete(&self, name: &str) -> Result<(), ErrorReply> {
        self.free(name)?;
        let removed = File::options().write(true).open(self.path(name)).and_then(|file| {
            std::fs::remove_file(self.path(name))?;
            File::open(&self.directory)?.sync_all()?;
            // What can still read it keeps no blocks, which would count for no user.
            file.set_len(0)?;
            std::fs::remove_file(self.owner_path(name))
        });
        match removed {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                let fix = "see whether its file system is read-only or failing";
                Err(refuse(ErrorKind::Failed, name, format!("cannot remove it: {error}"), fix))
            }
            _ => Ok(()),
        }
    }

    fn hand_over(&self, name: &str, uid: u32) -> String {
        format!(", or write {uid} into {} to hand the data over", self.owner_path(name).display())
    }

    /// Checks that the area `name`, if it is there, is that of `uid` with `size` bytes.
    pub(crate) fn check(&self, name: &str, uid: u32, size: u64) -> Result<(), ErrorReply> {
        match self.find(name) {
            Some(found) => check_fit(&found, uid, size, &self.hand_over(name, uid)),
            None => Ok(()),
        }
    }

    fn of_area(&self, name: &str, error: &AreaError) -> ErrorReply {
        let kind = match error {
            AreaError::NoSpace { needed, available, .. } => return full(&self.volume, *needed, *available),
            AreaError::Busy { .. } => ErrorKind::Busy,
            _ => ErrorKind::Failed,
        };
        let text = error.to_string();
        let (cause, fix) = text.rsplit_once("; ").unwrap_or((&text, "see the daemon's log"));
        refuse(kind, name, cause.to_owned(), fix)
    }

    /// Stops every process that has the area open from writing. Returns a text that says what now
    /// stops them, or what does not.
    pub(crate) fn fence(&self, name: &str) -> Result<String, String> {
        let path = self.path(name);
        let size = self.find(name).map_or(0, |found| found.size);
        if self.dax || self.unfenced.is_some() {
            self.check_size(name, size);
        }
        if self.dax {
            return match self.move_away(name) {
                Ok(()) => {
                    Ok("the area has moved to a file of its own; what that process maps belongs to no area"
                        .to_owned())
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    Ok("it had not been made yet".to_owned())
                }
                Err(error) => Err(format!("cannot copy {}: {error}", path.display())),
            };
        }
        if let Some(unfenced) = &self.unfenced {
            return Err(unfenced.why.clone());
        }
        match shut(&path, size) {
            Ok(()) => Ok("its file is immutable: writes fail, also through open descriptors".to_owned()),
            Err(Errno::NOENT) => Ok("it had not been made yet".to_owned()),
            Err(error) => Err(format!("cannot make {} immutable: {error}", path.display())),
        }
    }

    /// Whether [`Directory::shut`] has an effect.
    pub(crate) fn can_shut(&self) -> bool {
        self.unfenced.is_none()
    }

    /// Cuts the area back to its size and makes it immutable, until it is used again.
    pub(crate) fn shut(&self, name: &str) -> Result<(), String> {
        let Some(found) = self.find(name) else { return Ok(()) };
        shut(&self.path(name), found.size)
            .map_err(|error| format!("VSA {name}: cannot make its file immutable: {error}"))
    }

    /// Whether a process can write to the area.
    pub(crate) fn is_written(&self, name: &str) -> bool {
        // One that cannot be opened is gone, or its next user finds why.
        area::is_written(&self.path(name)).unwrap_or(false)
    }

    /// Whether the area is longer than `size`, or has blocks beyond its end.
    pub(crate) fn has_grown(&self, name: &str, size: u64) -> bool {
        let Ok(found) = rustix::fs::lstat(self.path(name)) else { return false };
        // The size in the owner's file is newer than the one in a grant.
        let recorded = || self.record(name).and_then(|record| record.size).unwrap_or(size);
        exceeds(&found, size) && exceeds(&found, recorded())
    }

    /// Puts a copy of the area in its place.
    fn move_away(&self, name: &str) -> io::Result<()> {
        let path = self.path(name);
        let copy = self.directory.join(format!("{name}.vsa.moving"));
        let from = File::open(&path)?;
        let size = self.record(name).and_then(|record| record.size).unwrap_or(u64::MAX);
        let length = from.metadata()?.len().min(size);
        let moved = || {
            area::create(&copy, length, &mut |_| {}).map_err(|error| io::Error::other(error.to_string()))?;
            let mut to = File::options().write(true).open(&copy)?;
            io::copy(&mut io::Read::take(&from, length), &mut to)?;
            to.sync_all()?;
            std::fs::rename(&copy, &path)
        };
        if let Err(error) = moved() {
            // The first error is the one to report.
            drop(std::fs::remove_file(&copy));
            return Err(error);
        }
        self.claim.file().sync_all()
    }

    /// Cuts an area back that is longer than `size`, or has blocks beyond its end. Returns a text
    /// if it found a change.
    pub(crate) fn check_size(&self, name: &str, size: u64) -> Option<String> {
        let path = self.path(name);
        // The size in the owner's file is newer than the one in a grant.
        let size = self.record(name).and_then(|record| record.size).unwrap_or(size);
        let found = rustix::fs::lstat(&path).ok()?;
        let (length, reserved) = (found.st_size.cast_unsigned(), allocated(&found));
        if length < size {
            return Some(format!("VSA {name}: cut short to {length} of {size} bytes by its holder"));
        }
        if length == size && reserved <= size {
            return None;
        }
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        // Truncating to the same length frees what was reserved beyond it.
        let cut =
            rustix::fs::open(&path, flags, Mode::empty()).and_then(|file| rustix::fs::ftruncate(&file, size));
        if !exceeds(&found, size) {
            return None;
        }
        let cut = cut.or_else(|error| if error == Errno::PERM { shut(&path, size) } else { Err(error) });
        let grown = format!("had grown to {length} bytes, {reserved} on disk,");
        Some(match cut {
            Ok(()) => format!("VSA {name}: {grown} and was cut back to {size}"),
            Err(error) => format!("VSA {name}: {grown} and cannot be cut back to {size}: {error}"),
        })
    }
}

/// Refuses a directory in which others can put what they like in the place of an area.
fn check_own(path: &Path, directory: &File) -> Result<(), String> {
    let shown = path.display();
    let stat = rustix::fs::fstat(directory).map_err(|error| format!("{shown}: {error}; see who owns it"))?;
    let own = rustix::process::geteuid().as_raw();
    if stat.st_uid != own && stat.st_uid != 0 {
        let (owner, fix) = (stat.st_uid, format!("give it to uid {own}, or name another directory"));
        return Err(format!("{shown} belongs to uid {owner}, who could replace the areas in it; {fix}"));
    }
    if stat.st_mode & 0o022 != 0 {
        let mode = stat.st_mode & 0o7777;
        return Err(format!(
            "{shown} can be written by others (mode {mode:o}), who could replace the areas in it; `chmod 700` it"
        ));
    }
    Ok(())
}

/// Removes what a killed daemon was creating: areas without a name, which no request can reach,
/// owners' files that were being written, and those without an area.
fn remove_unfinished(directory: &Path) {
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some(name) = name.to_str() else { continue };
        let unfinished = |end| name.strip_suffix(end).is_some_and(is_name);
        let alone = || {
            let area = name.strip_suffix(".owner").filter(|name| is_name(name));
            area.is_some_and(|area| !directory.join(format!("{area}.vsa")).exists())
        };
        let ends = [".vsa.partial", ".vsa.moving.partial", ".vsa.moving", ".owner.new"];
        if (ends.into_iter().any(unfinished) || alone())
            && let Err(error) = std::fs::remove_file(entry.path())
        {
            tracing::warn!(%error, path = %entry.path().display(), "an unfinished file could not be removed");
        }
    }
}

/// Bytes on disk.
fn allocated(found: &rustix::fs::Stat) -> u64 {
    found.st_blocks.cast_unsigned().saturating_mul(STAT_BLOCK)
}

/// Whether a file is longer than `size`, or has blocks beyond its end.
fn exceeds(found: &rustix::fs::Stat, size: u64) -> bool {
    found.st_size.cast_unsigned() > size
        || allocated(found) > size.saturating_add(MAP_ALLOWANCE.max(size / MAP_SHARE))
}

/// Cuts a file back to `size` bytes if it is longer, and makes it immutable.
fn shut(path: &Path, size: u64) -> Result<(), Errno> {
    let open = |access| rustix::fs::open(path, access | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty());
    let file = open(OFlags::RDONLY)?;
    let flags = rustix::fs::ioctl_getflags(&file)?;
    for _ in 0..MOST_CUTS {
        let mut cut = Ok(());
        if exceeds(&rustix::fs::fstat(&file)?, size) {
            rustix::fs::ioctl_setflags(&file, flags - IFlags::IMMUTABLE)?;
            cut = open(OFlags::RDWR).and_then(|file| rustix::fs::ftruncate(&file, size));
        }
        rustix::fs::ioctl_setflags(&file, flags | IFlags::IMMUTABLE)?;
        // Of a disk that fails, what cannot be cut stays.
        if cut.is_err() || !exceeds(&rustix::fs::fstat(&file)?, size) {
            break;
        }
    }
    // What the holder wrote before the flag is settled when this returns.
    rustix::fs::fsync(&file)
}

/// Clears the immutable flag.
fn unfence(path: &Path) -> Result<(), Errno> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::empty())?;
    let Ok(now) = rustix::fs::ioctl_getflags(&file) else {
        // A file system without flags has nothing to clear.
        return Ok(());
    };
    if now.contains(IFlags::IMMUTABLE) {
        rustix::fs::ioctl_setflags(&file, now - IFlags::IMMUTABLE)?;
    }
    Ok(())
}

/// Whether an immutable file refuses writes through a descriptor that was open before.
fn probe(path: &Path) -> Result<(), Unfenced> {
    let unfenced = |by_file_system, why: String| Err(Unfenced { why, by_file_system });
    // An earlier daemon may have been killed in the middle of this.
    let _ = unfence(path);
    let mut file = match File::create(path) {
        Ok(file) => file,
        Err(error) => return unfenced(false, format!("cannot write to the data directory: {error}")),
    };
    let tried = rustix::fs::ioctl_getflags(&file).and_then(|now| {
        rustix::fs::ioctl_setflags(&file, now | IFlags::IMMUTABLE)?;
        let write = file.write(&[0]);
        rustix::fs::ioctl_setflags(&file, now - IFlags::IMMUTABLE)?;
        Ok(write.is_err())
    });
    // The next start overwrites a probe that remains.
    let _ = std::fs::remove_file(path);
    match tried {
        Ok(true) => Ok(()),
        Ok(false) => {
            unfenced(true, "this file system lets open descriptors write to immutable files".to_owned())
        }
        Err(Errno::PERM | Errno::ACCESS) => {
            unfenced(false, "same user as the daemon, without CAP_LINUX_IMMUTABLE".to_owned())
        }
        Err(_) => unfenced(true, "this file system does not support immutable files".to_owned()),
    }
}

/// Puts `text` over the file at `path`, which is shorter than a sector and there already.
fn overwrite(path: &Path, text: &str) -> io::Result<()> {
    let file = File::options().write(true).open(path)?;
    let length = usize::try_from(file.metadata()?.len()).unwrap_or(usize::MAX);
    if length >= 512 || text.len() >= 512 {
        return Err(io::ErrorKind::StorageFull.into());
    }
    // One write of part of a sector; blanks at the end mean nothing.
    file.write_all_at(format!("{text:length$}").as_bytes(), 0)?;
    file.sync_all()
}

/// Puts `text` at `path`, whole or not at all, and durably.
fn write_durably(path: &Path, text: &str) -> io::Result<()> {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    let new = PathBuf::from(name);
    let written = || {
        let mut file = File::create(&new)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&new, path)
    };
    if let Err(error) = written() {
        // The first error is the one to report.
        drop(std::fs::remove_file(&new));
        return Err(error);
    }
    // The next step relies on it: see the module's account.
    File::open(path.parent().unwrap_or(Path::new("/")))?.sync_all()
}

#[cfg(test)]
mod tests;
