//! A volume in memory, which stands in for non-volatile memory: each area is a few memfds of its
//! own.
//!
//! 1. An area is reserved when it is created, and its memory is sealed against growing and
//!    shrinking. So its holder can neither take more than it was given nor remove pages that
//!    another process has mapped. Sealed memory cannot grow for the daemon either, so an area is a
//!    sequence of *parts*, each a memfd of constant length.
//! 2. Growing an area that a process has open adds a part. The holder keeps its mappings, and maps
//!    the new part behind them. An area that no process has open is created again in one part and
//!    copied, unless memory is short.
//! 3. Shrinking an area that is held frees pages. Parts wholly beyond the new size are emptied and
//!    closed. The part that contains the new end keeps its sealed length, because its holder can
//!    touch what was cut off. It *counts* against volume and quota until the holder has closed it.
//!    The next request that changes the area makes it exact.
//! 4. Memory that leaves an area is emptied first. A previous holder that still has it mapped finds
//!    zeros. Pages that it touches from then on are its own memory, as if it had requested the
//!    kernel for them.
//! 5. Each grant gets new open file descriptions with a shared lock. An exclusive lock on each part
//!    proves that no other process has it. Mappings keep descriptions open too, so no process gets
//!    an area that a previous holder still has mapped.
//! 6. Revoking moves the area to new memory while a process has it open. The memory of the previous
//!    holder is emptied and belongs to no area.
//! 7. Trimming writes zeros and frees no pages: an area keeps what it was given, and no write to it
//!    ever fails for lack of memory.
//! 8. All of it is lost at power off, and when the daemon ends: holders keep their mappings, but no
//!    other process can reach the areas again.
//! 9. Room is reserved before memory is created, which takes long and happens without the lock. So
//!    two concurrent requests never get more than the volume has. One area is changed by one thread
//!    at a time ([`AtWork`]).

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use rustix::fs::{FallocateFlags, FlockOperation, MemfdFlags, Mode, OFlags, SealFlags};
use rustix::io::Errno;
use sietch_protocol::frame::MAX_DESCRIPTORS;
use sietch_protocol::{ErrorKind, ErrorReply};

use super::area::{AreaDescriptors, AreaInfo, check_fit, full, no_area, refuse};

/// Bytes copied or zeroed at once.
const CHUNK: usize = 1 << 20;
/// The most parts of an area: their descriptors travel in one frame.
const MAX_PARTS: usize = MAX_DESCRIPTORS;

/// Sealed memory.
#[derive(Clone)]
struct Part {
    file: Arc<File>,
    length: u64,
}

/// An area.
#[derive(Clone)]
struct Kept {
    uid: u32,
    size: u64,
    /// At least `size` bytes together.
    parts: Vec<Part>,
}

#[derive(Default)]
struct State {
    areas: BTreeMap<String, Kept>,
    /// Bytes that are being made.
    reserved: u64,
    /// Areas that a thread is changing.
    at_work: BTreeSet<String>,
}

impl State {
    fn free(&self, bound: u64) -> u64 {
        let used: u64 = self.areas.values().map(Kept::charge).sum();
        bound.saturating_sub(used).saturating_sub(self.reserved)
    }
}

/// See the module's account.
pub(crate) struct Memory {
    volume: String,
    bound: u64,
    state: Mutex<State>,
    /// Signalled when the work on an area has ended.
    rested: Condvar,
}

/// Room that is spoken for as long as this is kept.
struct Reserved<'a>(&'a Memory, u64);

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        self.0.state().reserved -= self.1;
    }
}

/// The right to work on an area.
struct AtWork<'a>(&'a Memory, String);

impl Drop for AtWork<'_> {
    fn drop(&mut self) {
        self.0.state().at_work.remove(&self.1);
        self.0.rested.notify_all();
    }
}

impl Kept {
    fn charge(&self) -> u64 {
        self.parts.iter().map(|part| part.length).sum()
    }

    fn found(&self, name: &str) -> AreaInfo {
        AreaInfo {
            name: name.to_owned(),
            uid: Some(self.uid),
            size: self.size,
            recorded: true,
            allocated: self.charge(),
            charge: self.charge(),
            extents: None,
        }
    }

    /// The parts before the end, with the number of bytes of each that belong to the area.
    fn ranges(&self) -> impl Iterator<Item = (&Part, u64)> {
        let mut left = self.size;
        self.parts.iter().filter_map(move |part| {
            let length = part.length.min(left);
            left -= length;
            (length > 0).then_some((part, length))
        })
    }

    /// Calls `each` with part, first byte in it and length of everything between the bytes `from`
    /// and `to`.
    fn between(
        &self,
        from: u64,
        to: u64,
        mut each: impl FnMut(&Part, u64, u64) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut start = 0;
        for part in &self.parts {
            let end = start + part.length;
            let (first, last) = (from.max(start), to.min(end));
            if first < last {
                each(part, first - start, last - first)?;
            }
            start = end;
        }
        Ok(())
    }

    fn read(&self, offset: u64, mut out: &mut [u8]) -> io::Result<()> {
        self.between(offset, offset + out.len() as u64, |part, at, length| {
            // No longer than `out`.
            let (here, rest) = std::mem::take(&mut out).split_at_mut(length as usize);
            out = rest;
            part.file.read_exact_at(here, at)
        })
    }
}

impl Memory {
    /// An empty volume of at most `bound` bytes.
    pub(crate) fn new(volume: &str, bound: u64) -> Self {
        Self { volume: volume.to_owned(), bound, state: Mutex::default(), rested: Condvar::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A thread that panicked changed one area at most, in a single step.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn kept(&self, name: &str) -> Result<Kept, ErrorReply> {
        self.state().areas.get(name).cloned().ok_or_else(|| no_area(name))
    }

    /// The area `name`, if it has been made.
    pub(crate) fn find(&self, name: &str) -> Option<AreaInfo> {
        self.state().areas.get(name).map(|kept| kept.found(name))
    }

    /// At most `length` bytes of the area `name` from `offset` on. Its memory is no other area's,
    /// whatever becomes of it meanwhile.
    pub(crate) fn read(&self, name: &str, offset: u64, length: u32) -> Result<Vec<u8>, ErrorReply> {
        let kept = self.kept(name)?;
        let end = offset.saturating_add(length.into()).min(kept.size);
        // At most `length`.
        let mut bytes = vec![0; end.saturating_sub(offset) as usize];
        if !bytes.is_empty() {
            kept.read(offset, &mut bytes).map_err(|error| failed(name, error))?;
        }
        Ok(bytes)
    }

    /// Every area.
    pub(crate) fn list(&self) -> Vec<AreaInfo> {
        self.state().areas.iter().map(|(name, kept)| kept.found(name)).collect()
    }

    /// Bytes for areas in all, and how many of them are free.
    pub(crate) fn room(&self) -> (u64, u64) {
        (self.bound, self.state().free(self.bound))
    }

    /// Waits until no thread works on the area `name`.
    fn begin(&self, name: &str) -> AtWork<'_> {
        let mut state = self.state();
        while !state.at_work.insert(name.to_owned()) {
            state = self.rested.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        AtWork(self, name.to_owned())
    }

    /// Speaks for `length` bytes.
    fn reserve(&self, length: u64) -> Result<Reserved<'_>, ErrorReply> {
        if length > self.room().1 {
            self.settle();
        }
        let mut state = self.state();
        let free = state.free(self.bound);
        if length > free {
            return Err(full(&self.volume, length, free));
        }
        state.reserved += length;
        Ok(Reserved(self, length))
    }

    fn failed(&self, name: &str, requested: u64, error: Errno) -> ErrorReply {
        match error {
            Errno::NOSPC | Errno::NOMEM | Errno::FBIG => full(&self.volume, requested, self.room().1),
            error => failed(name, error.into()),
        }
    }

    fn make(&self, name: &str, length: u64) -> Result<Part, ErrorReply> {
        let made = make(length).map_err(|error| self.failed(name, length, error));
        Ok(Part { file: Arc::new(made?), length })
    }

    /// Makes areas exact whose previous holders have ended. An area that cannot be made exact
    /// continues to count in full.
    fn settle(&self) {
        let loose: Vec<String> = {
            let state = self.state();
            let loose = state.areas.iter().filter(|(_, kept)| kept.charge() > kept.size);
            loose.map(|(name, _)| name.clone()).collect()
        };
        for name in loose {
            if !self.state().at_work.insert(name.clone()) {
                continue;
            }
            let _work = AtWork(self, name.clone());
            if let Ok(kept) = self.kept(&name)
                && let Ok(_lock) = alone(&name, &kept)
            {
                let _ = self.replace(&name, &kept, kept.size);
            }
        }
    }

    /// Puts new memory of `size` bytes in the place of what the area has, with its contents, and
    /// empties that.
    fn replace(&self, name: &str, kept: &Kept, size: u64) -> Result<(), Errno> {
        let file = make(size)?;
        let mut chunk = vec![0; CHUNK];
        let mut at = 0;
        let end = size.min(kept.size);
        while at < end {
            // At most CHUNK.
            let part = &mut chunk[..(end - at).min(CHUNK as u64) as usize];
            let copied = kept.read(at, part).and_then(|()| file.write_all_at(part, at));
            copied.map_err(|error| errno(&error))?;
            at += part.len() as u64;
        }
        if let Some(now) = self.state().areas.get_mut(name) {
            now.parts = vec![Part { file: Arc::new(file), length: size }];
            now.size = size;
        }
        kept.parts.iter().for_each(empty);
        Ok(())
    }

    /// Creates the area `name` for `uid`.
    pub(crate) fn create(&self, name: &str, uid: u32, size: u64) -> Result<(), ErrorReply> {
        let _work = self.begin(name);
        let _room = self.reserve(size)?;
        let part = self.make(name, size)?;
        self.state().areas.insert(name.to_owned(), Kept { uid, size, parts: vec![part] });
        Ok(())
    }

    /// The area's memory for user `uid`, made with `size` bytes if there is none.
    pub(crate) fn prepare(&self, name: &str, uid: u32, size: u64) -> Result<AreaDescriptors, ErrorReply> {
        match self.find(name) {
            None => self.create(name, uid, size)?,
            Some(found) => check_fit(&found, uid, found.size, "")?,
        }
        let _work = self.begin(name);
        let kept = self.kept(name)?;
        let lock = alone(name, &kept)?;
        if kept.charge() > kept.size {
            // Without memory to make it exact, it continues to count in full.
            let _ = self.replace(name, &kept, kept.size);
        }
        drop(lock);
        descriptors_of(name, &self.kept(name)?)
    }

    /// The memory of an area for the process that holds it already.
    pub(crate) fn remap(&self, name: &str) -> Result<AreaDescriptors, ErrorReply> {
        let _work = self.begin(name);
        descriptors_of(name, &self.kept(name)?)
    }

    /// Gives the area `name` another size. It may be in use.
    pub(crate) fn resize(&self, name: &str, size: u64) -> Result<(), ErrorReply> {
        let _work = self.begin(name);
        let kept = self.kept(name)?;
        let more = size.saturating_sub(kept.charge());
        let _room = self.reserve(more)?;
        // Copying takes twice the memory for a while. If memory is short, the area is treated as if
        // another process had it open.
        let held = match alone(name, &kept) {
            Ok(_lock) if self.replace(name, &kept, size).is_ok() => return Ok(()),
            alone => alone.is_err(),
        };
        if size <= kept.size {
            self.shrink(name, &kept, size);
            return Ok(());
        }
        if more > 0 && kept.parts.len() >= MAX_PARTS {
            let why = if held { "while it was held" } else { "without memory to copy it" };
            let cause = format!("it has grown {} times {why}, and has its most parts", MAX_PARTS - 1);
            let fix = "release it and resize it then, which joins them; and grow it by more at a time";
            return Err(refuse(ErrorKind::Limit, name, cause, fix));
        }
        // What it already counts for is its: its holder may have left something there.
        let zeroed = kept.between(kept.size, size, |part, at, length| zero(&part.file, at, length));
        zeroed.map_err(|error| self.failed(name, size - kept.size, errno(&error)))?;
        let part = if more > 0 { Some(self.make(name, more)?) } else { None };
        if let Some(now) = self.state().areas.get_mut(name) {
            now.parts.extend(part);
            now.size = size;
        }
        Ok(())
    }

    /// Frees what is beyond `size`, while a process holds the area or because there is no memory to
    /// copy the rest.
    fn shrink(&self, name: &str, kept: &Kept, size: u64) {
        let mut removed = Vec::new();
        if let Some(now) = self.state().areas.get_mut(name) {
            let starts = now.parts.iter().scan(0, |end, part| {
                *end += part.length;
                Some(*end - part.length)
            });
            let stays = starts.take_while(|start| *start < size).count();
            removed = now.parts.split_off(stays);
            now.size = size;
        }
        removed.iter().for_each(empty);
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let freed = kept.between(size, kept.size, |part, at, length| {
            Ok(rustix::fs::fallocate(&part.file, punch, at, length)?)
        });
        if let Err(error) = freed {
            tracing::warn!(%error, name, "memory that was cut off is freed when the area is used next");
        }
    }

    /// Makes a range of the area `name` read as zeros.
    pub(crate) fn trim(&self, name: &str, offset: u64, length: u64) -> Result<(), ErrorReply> {
        let _work = self.begin(name);
        let kept = self.kept(name)?;
        let end = offset.saturating_add(length);
        let zeroed = kept.between(offset, end, |part, at, length| zero(&part.file, at, length));
        zeroed.map_err(|error| self.failed(name, length, errno(&error)))
    }

    /// Removes the area `name`, which no process may have open.
    pub(crate) fn delete(&self, name: &str) -> Result<(), ErrorReply> {
        let _work = self.begin(name);
        let kept = self.kept(name)?;
        let _lock = alone(name, &kept)?;
        self.state().areas.remove(name);
        kept.parts.iter().for_each(empty);
        Ok(())
    }

    /// Moves the area to new memory, away from every process that has it open.
    pub(crate) fn fence(&self, name: &str) -> Result<String, String> {
        let _work = self.begin(name);
        let Ok(kept) = self.kept(name) else {
            return Ok("it had not been created yet, or was lost with a previous daemon".to_owned());
        };
        match self.replace(name, &kept, kept.size) {
            Ok(()) => {
                Ok("the area has moved to other memory; what that process has is empty and no area's"
                    .to_owned())
            }
            Err(error) => Err(format!("no memory to move it to: {}", io::Error::from(error))),
        }
    }
}

/// A reserved, sealed memfd.
fn make(size: u64) -> Result<File, Errno> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create("sietch-area", flags)?;
    // Every process that has a memfd may open it again through /proc, unless its mode forbids it.
    // That description would have no lock.
    rustix::fs::fchmod(&file, Mode::RUSR | Mode::WUSR)?;
    rustix::fs::ftruncate(&file, size)?;
    sietch_disk::reserve(&file, 0, size)?;
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(file.into())
}

/// Returns the pages of memory that is no area's any more.
fn empty(part: &Part) {
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    if let Err(error) = rustix::fs::fallocate(&part.file, punch, 0, part.length) {
        tracing::warn!(%error, "memory that was an area's is freed when its last holder ends");
    }
}

fn zero(file: &File, from: u64, length: u64) -> io::Result<()> {
    let zeros = vec![0; CHUNK];
    let (mut at, end) = (from, from + length);
    while at < end {
        // At most CHUNK.
        let part = &zeros[..(end - at).min(CHUNK as u64) as usize];
        file.write_all_at(part, at)?;
        at += part.len() as u64;
    }
    Ok(())
}

/// New descriptions of an area's parts, each locked as its holder's.
fn descriptors_of(name: &str, kept: &Kept) -> Result<AreaDescriptors, ErrorReply> {
    let (mut files, mut lengths) = (Vec::new(), Vec::new());
    for (part, length) in kept.ranges() {
        files.push(describe(name, part, FlockOperation::NonBlockingLockShared)?);
        lengths.push(length);
    }
    if lengths.len() == 1 {
        lengths.clear();
    }
    Ok(AreaDescriptors { files, lengths, layout: None })
}

/// Descriptions that prove, while they are kept open, that no other process has the area.
fn alone(name: &str, kept: &Kept) -> Result<Vec<OwnedFd>, ErrorReply> {
    let describe = |part| describe(name, part, FlockOperation::NonBlockingLockExclusive);
    kept.parts.iter().map(describe).collect()
}

fn describe(name: &str, part: &Part, lock: FlockOperation) -> Result<OwnedFd, ErrorReply> {
    let path = format!("/proc/self/fd/{}", part.file.as_raw_fd());
    let file = rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
        .map_err(|error| failed(name, error.into()))?;
    match rustix::fs::flock(&file, lock) {
        Ok(()) => Ok(file),
        Err(Errno::WOULDBLOCK) => {
            let cause = "a process has it open or mapped".to_owned();
            Err(refuse(ErrorKind::Busy, name, cause, "let that process release it first, or end it"))
        }
        Err(error) => Err(failed(name, error.into())),
    }
}

fn errno(error: &io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::IO, Errno::from_raw_os_error)
}

fn failed(name: &str, error: io::Error) -> ErrorReply {
    refuse(ErrorKind::Failed, name, error.to_string(), "see whether memory or descriptors are short")
}

#[cfg(test)]
mod tests;
