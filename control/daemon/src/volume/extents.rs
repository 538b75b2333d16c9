//! A volume that is one file or block device, which Sietch allocates itself (`sietch-volume`,
//! `docs/spec/volume.md`).
//!
//! 1. Opening: a missing file is created with `size` bytes, reserved, formatted under another name,
//!    and renamed. An existing one is claimed ([`super::claim`]). A file or device that holds no
//!    volume is formatted only if its first [`BLANK`] bytes are zeros, so that no other data is
//!    overwritten.
//! 2. Metadata is under a lock that is held for a few durable writes. Zeroing, which takes long,
//!    runs without it, on blocks that are reserved.
//! 3. Trimming writes zeros. Blocks of a device are discarded. Those of a file remain allocated, so
//!    that no later write fails because its file system is full (`super::directory`, 9).
//! 4. No application is given a descriptor, because its holder could use it on the rest of the
//!    volume. The service core is given one, opened again and locked ([`VolumeLease`]), and the
//!    extents of the areas that it serves.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::fs::FallocateFlags;
use sietch_disk::broker::VolumeLease;
use sietch_disk::{BlockingQueue, DiskQueue as _, reserve};
use sietch_protocol::{AreaExtent, ErrorKind, ErrorReply};
use sietch_volume::limits::BLOCK;
use sietch_volume::{Area, Extent, FormatOptions, OpenError, Reservation, Volume, VolumeError, zero};

use super::area::{AreaInfo, AreaLayout, check_fit, full, no_area, refuse};
use super::claim::{Claim, PreviousClaims};

/// How much of a device must be zeros before it is formatted: file systems, partition tables and
/// volume managers announce themselves within.
const BLANK: usize = 1 << 20;

struct Inner {
    volume: Volume,
    queue: BlockingQueue,
}

/// See the module's account.
pub(crate) struct Extents {
    name: String,
    inner: Mutex<Inner>,
    /// Excludes other daemons, and provides queues for zeroing.
    claim: Arc<Claim>,
    path: PathBuf,
    capacity: u64,
}

impl Extents {
    /// Opens the volume `name` at `path`, created with `size` bytes if it does not exist. On
    /// failure returns the reason and the fix.
    pub(crate) fn open(
        name: &str,
        path: &Path,
        size: Option<u64>,
        previous: &mut PreviousClaims,
    ) -> Result<Self, String> {
        let shown = path.display();
        if matches!(path.metadata(), Err(error) if error.kind() == io::ErrorKind::NotFound) {
            let size =
                size.ok_or_else(|| format!("{shown} is not there; write its size, and it will be made"))?;
            make(path, size).map_err(|error| format!("{shown} cannot be made: {error}"))?;
        }
        let io =
            |action: &str, error: io::Error| format!("{shown}: cannot {action}: {error}; see who owns it");
        let claim = Claim::storage(path, previous)?;
        let file = claim.file();
        let length = end(file).map_err(|error| io("read its size", error))?;
        let capacity = size.map_or(length, |size| size.min(length)) / BLOCK * BLOCK;
        let mut queue = queue(file, length / BLOCK * BLOCK).map_err(|error| io("drive it", error))?;
        let volume = match Volume::open(&mut queue) {
            Err(OpenError::NotFormatted) => {
                // Aligned, for the queue has switched the file to direct I/O.
                let mut start = sietch_disk::Buffer::new(BLANK);
                let part = (length / BLOCK * BLOCK).min(BLANK as u64) as usize;
                file.read_exact_at(&mut start[..part], 0).map_err(|error| io("read it", error))?;
                if start.iter().any(|&byte| byte != 0) {
                    return Err(format!(
                        "{shown} holds something that is no volume; name another, or clear its first {BLANK} bytes"
                    ));
                }
                format(file, capacity).map_err(|error| format!("{shown}: {error}"))?;
                Volume::open(&mut queue)
            }
            opened => opened,
        };
        let volume = volume.map_err(|error| format!("{shown}: {error}"))?;
        Ok(Self {
            name: name.to_owned(),
            inner: Mutex::new(Inner { volume, queue }),
            claim,
            path: path.to_owned(),
            capacity: length / BLOCK * BLOCK,
        })
    }

    /// The claim that excludes other daemons from it.
    pub(crate) fn claim(&self) -> Arc<Claim> {
        Arc::clone(&self.claim)
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        // A panic in the middle of a change is like a failed write: the volume refuses the next
        // change, or finds a complete state.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why nothing can be changed any more, if so.
    pub(crate) fn failure(&self) -> Option<String> {
        self.inner().volume.failure().map(ToString::to_string)
    }

    fn found(area: &Area) -> AreaInfo {
        AreaInfo {
            name: area.name.clone(),
            uid: Some(area.uid),
            size: area.size(),
            recorded: true,
            allocated: area.size(),
            charge: area.size(),
            extents: u32::try_from(area.extents.len()).ok(),
        }
    }

    /// The area `name`, if it has been made.
    pub(crate) fn find(&self, name: &str) -> Option<AreaInfo> {
        self.inner().volume.find(name).map(Self::found)
    }

    /// Every area.
    pub(crate) fn list(&self) -> Vec<AreaInfo> {
        self.inner().volume.areas().map(Self::found).collect()
    }

    /// Bytes for areas in all, and how many of them are free.
    pub(crate) fn room(&self) -> (u64, u64) {
        let inner = self.inner();
        (inner.volume.capacity(), inner.volume.free())
    }

    /// Creates the area `name` for `uid`.
    pub(crate) fn create(&self, name: &str, uid: u32, size: u64) -> Result<(), ErrorReply> {
        let reserved = self.inner().volume.reserve(name, uid, size);
        self.finish(name, reserved.map_err(|error| self.of(name, &error))?)
    }

    /// Gives the area `name` another size.
    pub(crate) fn resize(&self, name: &str, size: u64) -> Result<(), ErrorReply> {
        let now = self.find(name).ok_or_else(|| no_area(name))?.size;
        if size <= now {
            let Inner { volume, queue } = &mut *self.inner();
            return volume.resize(queue, name, size).map_err(|error| self.of(name, &error));
        }
        let reserved = self.inner().volume.reserve_growth(name, size);
        self.finish(name, reserved.map_err(|error| self.of(name, &error))?)
    }

    /// Zeroes the reserved blocks, then assigns them to the area.
    fn finish(&self, name: &str, reservation: Reservation) -> Result<(), ErrorReply> {
        let zeroed = match self.own_queue(name) {
            Ok(mut queue) => reservation.zero(&mut queue).map_err(|(failure, reservation)| {
                (refuse(ErrorKind::Failed, name, failure.to_string(), "check the disk"), reservation)
            }),
            Err(error) => Err((error, reservation)),
        };
        let Inner { volume, queue } = &mut *self.inner();
        match zeroed {
            Ok(zeroed) => volume.commit(queue, zeroed).map_err(|error| self.of(name, &error)),
            Err((error, reservation)) => {
                volume.release(reservation);
                Err(error)
            }
        }
    }

    /// A queue over the volume for one operation, so that no other operation waits for it.
    fn own_queue(&self, name: &str) -> Result<BlockingQueue, ErrorReply> {
        queue(self.claim.file(), self.capacity)
            .map_err(|error| refuse(ErrorKind::Failed, name, error.to_string(), "check the disk"))
    }

    /// Zeroes blocks of an area.
    fn zero(&self, name: &str, extents: &[Extent]) -> Result<(), ErrorReply> {
        let mut queue = self.own_queue(name)?;
        zero(&mut queue, extents)
            .map_err(|failure| refuse(ErrorKind::Failed, name, failure.to_string(), "check the disk"))
    }

    /// Makes a range of the area `name` read as zeros. Discards its blocks on a device that
    /// supports it.
    pub(crate) fn trim(&self, name: &str, offset: u64, length: u64) -> Result<(), ErrorReply> {
        let range = self.inner().volume.range(name, offset, length);
        let extents = range.map_err(|error| self.of(name, &error))?;
        if !self.claim.is_block_device() {
            return self.zero(name, &extents);
        }
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let file = self.claim.file();
        let punched = extents.iter().try_for_each(|extent| {
            rustix::fs::fallocate(file, punch, extent.start * BLOCK, extent.blocks * BLOCK)
        });
        match punched.and_then(|()| rustix::fs::fdatasync(file)) {
            Ok(()) => Ok(()),
            Err(_) => self.zero(name, &extents),
        }
    }

    /// At most `length` bytes of the area `name` from `offset` on. Nothing but bytes that were the
    /// area's all the while are given out: its blocks and its owner are looked up again after they
    /// were read.
    pub(crate) fn read(&self, name: &str, offset: u64, length: u32) -> Result<Vec<u8>, ErrorReply> {
        let failed = |cause: String| refuse(ErrorKind::Failed, name, cause, "check the disk");
        loop {
            let found = self.find(name).ok_or_else(|| no_area(name))?;
            let end = offset.saturating_add(length.into()).min(found.size);
            if offset >= end {
                return Ok(Vec::new());
            }
            let first = offset / BLOCK * BLOCK;
            let whole = end.next_multiple_of(BLOCK) - first;
            let blocks = |area: &Self| area.inner().volume.range(name, first, whole);
            let extents = blocks(self).map_err(|error| self.of(name, &error))?;
            // Aligned, for the queue has switched the file to direct I/O.
            let size = usize::try_from(whole).map_err(|_| failed("that is too much at once".to_owned()))?;
            let mut buffer = sietch_disk::Buffer::new(size);
            let mut at = 0;
            for extent in &extents {
                // Parts of the buffer.
                let part = (extent.blocks * BLOCK) as usize;
                let read = self.claim.file().read_exact_at(&mut buffer[at..at + part], extent.start * BLOCK);
                read.map_err(|error| failed(error.to_string()))?;
                at += part;
            }
            let same = self.find(name).is_some_and(|now| now.uid == found.uid);
            if same && blocks(self).is_ok_and(|now| now == extents) {
                // Inside the buffer.
                let from = (offset - first) as usize;
                return Ok(buffer[from..from + (end - offset) as usize].to_vec());
            }
        }
    }

    /// Removes the area `name`. Its blocks are zeroed before they are assigned again.
    pub(crate) fn delete(&self, name: &str) -> Result<(), ErrorReply> {
        let Inner { volume, queue } = &mut *self.inner();
        volume.delete(queue, name).map_err(|error| self.of(name, &error))
    }

    /// The extents of the area `name` of user `uid`. Creates one of `size` bytes if it does not
    /// exist.
    pub(crate) fn prepare(&self, name: &str, uid: u32, size: u64) -> Result<AreaLayout, ErrorReply> {
        match self.find(name) {
            None => self.create(name, uid, size)?,
            Some(found) => check_fit(&found, uid, found.size, "")?,
        }
        self.layout(name).ok_or_else(|| no_area(name))
    }

    /// The extents of the area `name`.
    pub(crate) fn layout(&self, name: &str) -> Option<AreaLayout> {
        let inner = self.inner();
        let extent =
            |extent: &Extent| AreaExtent { start: extent.start * BLOCK, length: extent.blocks * BLOCK };
        let extents = inner.volume.find(name)?.extents.iter().map(extent).collect();
        // 512 or 4096.
        Some(AreaLayout { extents, block: inner.queue.block_size() as u32 })
    }

    /// The volume's file, opened again for a service core. It is locked until the core and all its
    /// requests have ended.
    pub(crate) fn lease(&self) -> Result<(OwnedFd, u64), String> {
        let shown = self.path.display();
        let file = VolumeLease::take(&self.path)
            .map_err(|error| format!("{shown} cannot be opened for the service core: {error}"))?;
        Ok((file, self.capacity))
    }

    /// Whether a service core has the file, or requests of one are in flight.
    pub(crate) fn is_leased(&self) -> Result<bool, String> {
        VolumeLease::is_held(self.claim.file())
            .map_err(|error| format!("{}: cannot find the process that has it: {error}", self.path.display()))
    }

    fn of(&self, name: &str, error: &VolumeError) -> ErrorReply {
        let kind = match error {
            VolumeError::Full { requested, free } => return full(&self.name, *requested, *free),
            VolumeError::Unknown => return no_area(name),
            VolumeError::Exists => ErrorKind::Busy,
            VolumeError::Fragmented { .. } | VolumeError::MetadataFull { .. } => ErrorKind::Full,
            VolumeError::Invalid { .. } => ErrorKind::Invalid,
            VolumeError::Failed(_) => ErrorKind::Failed,
        };
        let text = error.to_string();
        let (cause, fix) = text.rsplit_once("; ").unwrap_or((&text, "see the daemon's log"));
        refuse(kind, name, format!("volume {}: {cause}", self.name), fix)
    }
}

fn queue(file: &File, capacity: u64) -> io::Result<BlockingQueue> {
    BlockingQueue::open(OwnedFd::from(file.try_clone()?), capacity).map_err(io::Error::other)
}

/// Bytes of a file or a device.
fn end(file: &File) -> io::Result<u64> {
    Ok(rustix::fs::seek(file, rustix::fs::SeekFrom::End(0))?)
}

fn format(file: &File, capacity: u64) -> Result<(), String> {
    let mut identity = [0; 16];
    // Blocks until the kernel has randomness, at boot alone; sixteen bytes come at once.
    let got = rustix::rand::getrandom(&mut identity, rustix::rand::GetRandomFlags::empty());
    if got != Ok(identity.len()) {
        return Err("the kernel gives no random bytes; try again later".to_owned());
    }
    let mut queue =
        queue(file, capacity).map_err(|error| format!("cannot be driven: {error}; take a larger one"))?;
    let options = FormatOptions { identity: u128::from_le_bytes(identity), half_bytes: None };
    Volume::format(&mut queue, options).map_err(|error| error.to_string())
}

/// Creates a formatted file of `size` bytes atomically.
fn make(path: &Path, size: u64) -> Result<(), String> {
    let mut partial = path.as_os_str().to_owned();
    partial.push(".partial");
    let partial = PathBuf::from(partial);
    let work = || -> Result<(), String> {
        let say = |error: io::Error| format!("{error}; see whether its file system is full");
        let file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&partial)
            .map_err(|error| format!("{error}; see whether its directory is there"))?;
        rustix::fs::ftruncate(&file, size).map_err(|error| say(error.into()))?;
        match reserve(&file, 0, size) {
            Ok(()) | Err(rustix::io::Errno::OPNOTSUPP) => {}
            Err(error) => return Err(say(error.into())),
        }
        format(&file, size)?;
        file.sync_all().map_err(say)?;
        std::fs::rename(&partial, path).map_err(say)?;
        let parent = path.parent().unwrap_or(Path::new("/"));
        File::open(parent).and_then(|directory| directory.sync_all()).map_err(say)
    };
    let made = work();
    if made.is_err() {
        // The first error is the one to report.
        drop(std::fs::remove_file(&partial));
    }
    made
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes that this thread has read with system calls.
    fn bytes_read() -> u64 {
        let text = std::fs::read_to_string("/proc/thread-self/io").unwrap();
        text.lines().find_map(|line| line.strip_prefix("rchar: ")).unwrap().parse().unwrap()
    }

    #[test]
    fn opening_reads_no_more_of_a_large_volume_than_of_a_small_one() {
        let path = std::env::temp_dir().join(format!("sietch-mount-{}", std::process::id()));
        let mut read = Vec::new();
        for size in [64_u64 << 20, 4 << 40] {
            // Sparse: what is not metadata is never touched, or this would never end.
            File::create(&path).unwrap().set_len(size).unwrap();
            let volume = Extents::open("raw", &path, None, &mut Vec::new()).unwrap();
            volume.create("a", 7, 1 << 20).unwrap();
            assert!(volume.room().0 > size - (8 << 20));
            drop(volume);
            let before = bytes_read();
            let volume = Extents::open("raw", &path, None, &mut Vec::new()).unwrap();
            read.push(bytes_read() - before);
            assert_eq!(volume.find("a").unwrap().size, 1 << 20);
            drop(volume);
            std::fs::remove_file(&path).unwrap();
        }
        assert!(read[1] < 4 << 20 && read[1] <= 2 * read[0], "{read:?} bytes");
    }
}
