//! A volume in memory, which stands in for non-volatile memory: each area a memfd of its own.
//!
//! 1. An area is reserved when it is made, and sealed against growing and shrinking: its holder can neither take more than it was given nor
//!    pull it from under somebody who has mapped it.
//! 2. Each grant gets a new open file description with an exclusive lock, as of a file: mappings hold it too, so nobody gets an area that a former
//!    holder still sees.
//! 3. A sealed size does not change. Resizing makes a new memfd and copies, and needs that nobody has the area open.
//! 4. Revoking does the same while somebody has it open: the area moves to new memory, and what the former holder has is nobody's any more.
//! 5. All of it is lost at power off, and when the daemon ends: holders keep what they have mapped, but nobody can get at it again. The bound of the
//!    volume counts areas; memory that a revoked holder does not let go of is beyond it.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::fs::{FallocateFlags, FlockOperation, MemfdFlags, Mode, OFlags, SealFlags};
use rustix::io::Errno;
use sietch_protocol::{ErrorKind, ErrorReply};

use super::{Found, full, gone, refuse};

/// Bytes copied at once when an area moves.
const CHUNK: usize = 1 << 20;
/// The unit of `st_blocks`.
const STAT_BLOCK: u64 = 512;

struct Kept {
    uid: u32,
    size: u64,
    file: std::fs::File,
}

/// See the module's account.
pub(crate) struct Memory {
    volume: String,
    bound: u64,
    areas: Mutex<BTreeMap<String, Kept>>,
}

impl Memory {
    /// An empty volume of at most `bound` bytes.
    pub(crate) fn new(volume: &str, bound: u64) -> Self {
        Self { volume: volume.to_owned(), bound, areas: Mutex::default() }
    }

    fn areas(&self) -> MutexGuard<'_, BTreeMap<String, Kept>> {
        // Whoever panicked changed one area at most, and that at once.
        self.areas.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn found(name: &str, kept: &Kept) -> Found {
        let blocks = rustix::fs::fstat(&kept.file).map_or(0, |stat| stat.st_blocks.cast_unsigned());
        Found {
            name: name.to_owned(),
            uid: Some(kept.uid),
            size: kept.size,
            recorded: true,
            allocated: blocks.saturating_mul(STAT_BLOCK),
            extents: None,
        }
    }

    /// The area `name`, if it has been made.
    pub(crate) fn find(&self, name: &str) -> Option<Found> {
        self.areas().get(name).map(|kept| Self::found(name, kept))
    }

    /// Every area.
    pub(crate) fn list(&self) -> Vec<Found> {
        self.areas().iter().map(|(name, kept)| Self::found(name, kept)).collect()
    }

    /// Bytes for areas in all, and how many of them are free.
    pub(crate) fn room(&self) -> (u64, u64) {
        let used: u64 = self.areas().values().map(|kept| kept.size).sum();
        (self.bound, self.bound.saturating_sub(used))
    }

    fn make(&self, name: &str, size: u64) -> Result<std::fs::File, ErrorReply> {
        let (bound, free) = self.room();
        make(size).map_err(|error| match error {
            Errno::NOSPC | Errno::NOMEM | Errno::FBIG => full(&self.volume, size, free.min(bound)),
            error => failed(name, error.into()),
        })
    }

    /// Makes the area `name` for `uid`.
    pub(crate) fn create(&self, name: &str, uid: u32, size: u64) -> Result<(), ErrorReply> {
        let (_, free) = self.room();
        if size > free {
            return Err(full(&self.volume, size, free));
        }
        let file = self.make(name, size)?;
        self.areas().insert(name.to_owned(), Kept { uid, size, file });
        Ok(())
    }

    /// The area's memory for user `uid`, made with `size` bytes if there is none.
    pub(crate) fn prepare(&self, name: &str, uid: u32, size: u64) -> Result<OwnedFd, ErrorReply> {
        if self.find(name).is_none() {
            self.create(name, uid, size)?;
        }
        let areas = self.areas();
        let kept = areas.get(name).ok_or_else(|| gone(name))?;
        if kept.uid != uid {
            let cause = format!("its data belongs to uid {}", kept.uid);
            return Err(refuse(ErrorKind::Denied, name, cause, "delete it, or set that uid back"));
        }
        alone(name, kept)
    }

    /// Gives the area `name` another size. Nobody may have it open.
    pub(crate) fn resize(&self, name: &str, size: u64) -> Result<(), ErrorReply> {
        let (_, free) = self.room();
        let mut areas = self.areas();
        let kept = areas.get_mut(name).ok_or_else(|| gone(name))?;
        let more = size.saturating_sub(kept.size);
        if more > free {
            return Err(full(&self.volume, more, free));
        }
        let _lock = alone(name, kept)?;
        let file = make(size).map_err(|error| match error {
            Errno::NOSPC | Errno::NOMEM | Errno::FBIG => full(&self.volume, more, free),
            error => failed(name, error.into()),
        })?;
        copy(&kept.file, &file, size.min(kept.size)).map_err(|error| failed(name, error))?;
        (kept.file, kept.size) = (file, size);
        Ok(())
    }

    /// Makes a range of the area `name` read as zeros, and gives its pages back.
    pub(crate) fn trim(&self, name: &str, offset: u64, length: u64) -> Result<(), ErrorReply> {
        let areas = self.areas();
        let kept = areas.get(name).ok_or_else(|| gone(name))?;
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&kept.file, punch, offset, length).map_err(|error| failed(name, error.into()))
    }

    /// Removes the area `name`. Nobody may have it open: its memory would not come back.
    pub(crate) fn delete(&self, name: &str) -> Result<(), ErrorReply> {
        let mut areas = self.areas();
        let lock = alone(name, areas.get(name).ok_or_else(|| gone(name))?)?;
        areas.remove(name);
        drop(lock);
        Ok(())
    }

    /// Moves the area away from whoever has it open.
    pub(crate) fn fence(&self, name: &str) -> Result<String, String> {
        let mut areas = self.areas();
        let Some(kept) = areas.get_mut(name) else {
            return Ok("it had not been made yet, or went with a former daemon".to_owned());
        };
        let moved = make(kept.size).map_err(io::Error::from).and_then(|file| {
            copy(&kept.file, &file, kept.size)?;
            Ok(file)
        });
        match moved {
            Ok(file) => {
                kept.file = file;
                Ok("the area has moved to other memory; what that process has is nobody's".to_owned())
            }
            Err(error) => Err(format!("no memory to move it to: {error}")),
        }
    }
}

/// A reserved, sealed memfd.
fn make(size: u64) -> Result<std::fs::File, Errno> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create("sietch-area", flags)?;
    // A memfd may be opened anew through /proc by anybody who has it, unless its mode says otherwise: that description would have no lock.
    rustix::fs::fchmod(&file, Mode::RUSR | Mode::WUSR)?;
    rustix::fs::ftruncate(&file, size)?;
    rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, size)?;
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(file.into())
}

fn copy(from: &std::fs::File, to: &std::fs::File, length: u64) -> io::Result<()> {
    let mut chunk = vec![0; CHUNK];
    let mut at = 0;
    while at < length {
        // At most CHUNK.
        let part = &mut chunk[..(length - at).min(CHUNK as u64) as usize];
        from.read_exact_at(part, at)?;
        to.write_all_at(part, at)?;
        at += part.len() as u64;
    }
    Ok(())
}

/// A new description of an area that nobody has open, locked.
fn alone(name: &str, kept: &Kept) -> Result<OwnedFd, ErrorReply> {
    let path = format!("/proc/self/fd/{}", kept.file.as_raw_fd());
    let file = rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
        .map_err(|error| failed(name, error.into()))?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(Errno::WOULDBLOCK) => {
            let cause = "a process has it open or mapped".to_owned();
            Err(refuse(ErrorKind::Busy, name, cause, "let that process release it first, or end it"))
        }
        Err(error) => Err(failed(name, error.into())),
    }
}

fn failed(name: &str, error: io::Error) -> ErrorReply {
    refuse(ErrorKind::Failed, name, error.to_string(), "see whether memory or descriptors are short")
}
