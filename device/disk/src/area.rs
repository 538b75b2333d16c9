//! Making and opening the file behind a storage area.
//!
//! 1. [`create`] works in `NAME.partial` beside the final name, so that an area that has its name
//!    is whole. It checks the free space, reserves the extents (`fallocate`) and writes zeros over
//!    every one of them. An unwritten extent would cost a journal commit at its first write. Then
//!    it flushes the file, renames it and flushes the directory.
//! 2. Anything that fails removes the partial file. One that a crash left is overwritten by the
//!    next attempt.
//! 3. [`open`] takes an exclusive `flock` on a *new* open file description. The lock lives as long
//!    as the description, and a request in flight holds the description. So once a process has the
//!    lock, no write of the previous owner can land any more. That holds even if that owner was
//!    killed with writes in flight. So the daemon opens the file anew for each grant and keeps no
//!    copy of the descriptor.
//! 4. A holder can give that lock up and keep its descriptor, because both have one description.
//!    [`wait_unwritten`] does not go by the lock: the kernel grants a read lease (fcntl(2)) only
//!    on a file that no process has open for writing, or mapped so.
//! 5. [`extend`] makes an area longer while its owner works on it. The new part is reserved,
//!    written with zeros and durable before it returns, or the file has its previous length.
//!    [`cut`] makes one shorter. [`zero`] makes a range read as zeros and leaves its blocks where
//!    they are.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FallocateFlags, FileType, FlockOperation, Mode, OFlags, RenameFlags};

use crate::{AreaQueue, BLOCK, Buffer, Completion, DiskQueue, OpenError, Operation, open_area, reserve};

/// Bytes of one zeroing write: large enough for the disk's full bandwidth.
const CHUNK: usize = 4 << 20;

/// Zeroing writes in flight: two keep a disk busy, four cover its hiccups.
const CHUNKS_IN_FLIGHT: usize = 4;

/// How long [`open`] and [`wait_unwritten`] wait for a previous owner's last requests: a killed
/// process' writes land within milliseconds on a disk that works.
const LOCK_PATIENCE: Duration = Duration::from_secs(2);

/// Why an area could not be made or opened.
#[derive(Debug, thiserror::Error)]
pub enum AreaError {
    /// The size is zero or not a multiple of [`BLOCK`].
    #[error("area {}: its size must be a multiple of {BLOCK} bytes and not zero, not {size}", path.display())]
    Size {
        /// The area's file.
        path: PathBuf,
        /// Bytes requested.
        size: u64,
    },
    /// The file system is full.
    #[error("area {}: needs {needed} bytes but its file system has only {available} free; free some space or choose a smaller size", path.display())]
    NoSpace {
        /// The area's file.
        path: PathBuf,
        /// Bytes requested.
        needed: u64,
        /// Bytes that were free.
        available: u64,
    },
    /// There is something of that name.
    #[error("area {}: exists already; open it, or choose another name", path.display())]
    Exists {
        /// The area's file.
        path: PathBuf,
    },
    /// It is not a regular file.
    #[error("area {}: is not a regular file", path.display())]
    NotAFile {
        /// The area's file.
        path: PathBuf,
    },
    /// It has another size than its name was given.
    #[error("area {}: should have {wanted} bytes but has {found}; it was cut short or replaced; restore it from a copy, or set the size that it has", path.display())]
    WrongSize {
        /// The area's file.
        path: PathBuf,
        /// Bytes it should have.
        wanted: u64,
        /// Bytes it has.
        found: u64,
    },
    /// Another process has it open.
    #[error("area {}: another process is using it; stop that process first", path.display())]
    Busy {
        /// The area's file.
        path: PathBuf,
    },
    /// A queue over the new file could not be opened.
    #[error("area {}: {source}", path.display())]
    Queue {
        /// The area's file.
        path: PathBuf,
        /// Why.
        source: OpenError,
    },
    /// A system call failed.
    #[error("area {}: {action}: {source}", path.display())]
    Io {
        /// The area's file.
        path: PathBuf,
        /// What was being done.
        action: &'static str,
        /// Why it failed.
        source: io::Error,
    },
}

/// Makes an area of `size` bytes at `path`, mode 0600, every extent written with zeros and durable.
/// `progress` gets the number of bytes written so far.
///
/// # Errors
/// See [`AreaError`]. Nothing stays behind.
pub fn create(path: &Path, size: u64, progress: &mut dyn FnMut(u64)) -> Result<(), AreaError> {
    if size == 0 || !size.is_multiple_of(BLOCK as u64) {
        return Err(AreaError::Size { path: path.into(), size });
    }
    if path.symlink_metadata().is_ok() {
        return Err(AreaError::Exists { path: path.into() });
    }
    let mut name = path.as_os_str().to_owned();
    name.push(".partial");
    let partial = PathBuf::from(name);
    let made = fill(path, &partial, size, progress).and_then(|()| publish(path, &partial));
    if made.is_err() {
        // The first error is the one to report; a file that is not there is no loss.
        drop(std::fs::remove_file(&partial));
    }
    made
}

fn fill(path: &Path, partial: &Path, size: u64, progress: &mut dyn FnMut(u64)) -> Result<(), AreaError> {
    let fail = |action, errno: rustix::io::Errno| io_error(path, action, errno.into());
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    if !is_leftover(partial) {
        return Err(AreaError::Exists { path: partial.into() });
    }
    let fd = rustix::fs::open(partial, flags, Mode::RUSR | Mode::WUSR).map_err(|e| fail("create it", e))?;
    allocate(path, fd, 0, size, progress)
}

/// Whether a partial file is not there, or is one that a crash left: those begin with zeros.
fn is_leftover(partial: &Path) -> bool {
    let Ok(fd) = reopen(partial) else { return partial.symlink_metadata().is_err() };
    let mut first = [0; BLOCK];
    rustix::io::pread(&fd, &mut first, 0).is_ok_and(|count| first[..count].iter().all(|byte| *byte == 0))
}

/// Reserves the bytes from `from` to `to` and makes them durable zeros.
fn allocate(
    path: &Path,
    fd: OwnedFd,
    from: u64,
    to: u64,
    progress: &mut dyn FnMut(u64),
) -> Result<(), AreaError> {
    let fail = |action, errno: rustix::io::Errno| io_error(path, action, errno.into());
    let needed = to - from;
    let statvfs = rustix::fs::fstatvfs(&fd).map_err(|e| fail("read the free space", e))?;
    let available = statvfs.f_bavail.saturating_mul(statvfs.f_frsize);
    let full = || AreaError::NoSpace { path: path.into(), needed, available };
    if available < needed {
        return Err(full());
    }
    match reserve(&fd, from, needed) {
        Ok(()) => {}
        // A file system without fallocate: the writes below allocate.
        Err(rustix::io::Errno::OPNOTSUPP) => {
            rustix::fs::ftruncate(&fd, to).map_err(|e| fail("set its size", e))?;
        }
        Err(rustix::io::Errno::NOSPC) => return Err(full()),
        Err(e) => return Err(fail("reserve its space", e)),
    }
    let keep = fd.try_clone().map_err(|e| io_error(path, "duplicate its descriptor", e))?;
    let mut queue = open_area(fd, to).map_err(|source| AreaError::Queue { path: path.into(), source })?;
    write_zeros(&mut queue, from, to, progress).map_err(|e| match e.raw_os_error() {
        Some(libc::ENOSPC) => full(),
        _ => io_error(path, "write zeros over it", e),
    })?;
    rustix::fs::fsync(&keep).map_err(|e| fail("flush it", e))
}

/// A new description of the file at `path`, without its lock.
fn reopen(path: &Path) -> Result<OwnedFd, AreaError> {
    let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let fd = rustix::fs::open(path, flags, Mode::empty()).map_err(|e| io_error(path, "open it", e.into()))?;
    let stat = rustix::fs::fstat(&fd).map_err(|e| io_error(path, "read its size", e.into()))?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(AreaError::NotAFile { path: path.into() });
    }
    Ok(fd)
}

/// Makes the area at `path` longer, from `old` to `new` bytes. What it holds stays, and may be in
/// use meanwhile.
///
/// # Errors
/// See [`AreaError`]; the file then has `old` bytes, as before, unless it cannot be cut.
pub fn extend(path: &Path, old: u64, new: u64) -> Result<(), AreaError> {
    if new <= old || !new.is_multiple_of(BLOCK as u64) {
        return Err(AreaError::Size { path: path.into(), size: new });
    }
    let made = allocate(path, reopen(path)?, old, new, &mut |_| {});
    if made.is_err() {
        // The first error is the one to report. A caller for which a longer file is wrong cuts it.
        drop(reopen(path).map(|fd| rustix::fs::ftruncate(fd, old)));
    }
    made
}

/// Cuts the area at `path` to `size` bytes, durably.
///
/// # Errors
/// See [`AreaError`].
pub fn cut(path: &Path, size: u64) -> Result<(), AreaError> {
    let fd = reopen(path)?;
    rustix::fs::ftruncate(&fd, size)
        .and_then(|()| rustix::fs::fsync(&fd))
        .map_err(|e| io_error(path, "cut it", e.into()))
}

/// Linux 6.17: zeros, in blocks that are allocated and count as written; where the device can do
/// that without being sent zeros.
const WRITE_ZEROES: FallocateFlags = FallocateFlags::from_bits_retain(0x80);

/// Makes `length` bytes of the area at `path` from `offset` on read as zeros, durably. Their blocks
/// stay the area's, allocated and written: a later write there costs what it cost before, and finds
/// no full file system.
///
/// # Errors
/// See [`AreaError`]; [`AreaError::NoSpace`] only if its holder has given the blocks away.
pub fn zero(path: &Path, offset: u64, length: u64) -> Result<(), AreaError> {
    let fd = reopen(path)?;
    let fail = |action, errno: rustix::io::Errno| io_error(path, action, errno.into());
    let end = offset.checked_add(length).ok_or(AreaError::Size { path: path.into(), size: length })?;
    if rustix::fs::fallocate(&fd, WRITE_ZEROES, offset, length).is_err() {
        match reserve(&fd, offset, length) {
            Ok(()) | Err(rustix::io::Errno::OPNOTSUPP) => {}
            Err(rustix::io::Errno::NOSPC) => {
                return Err(AreaError::NoSpace { path: path.into(), needed: length, available: 0 });
            }
            Err(e) => return Err(fail("reserve its space", e)),
        }
        let copy = fd.try_clone().map_err(|e| io_error(path, "duplicate its descriptor", e))?;
        let mut queue =
            open_area(copy, end).map_err(|source| AreaError::Queue { path: path.into(), source })?;
        write_zeros(&mut queue, offset, end, &mut |_| {})
            .map_err(|e| io_error(path, "write zeros over it", e))?;
    }
    rustix::fs::fsync(&fd).map_err(|e| fail("flush it", e))
}

/// Writes zeros over the bytes from `from` to `to`, several chunks in flight.
fn write_zeros(queue: &mut AreaQueue, from: u64, to: u64, progress: &mut dyn FnMut(u64)) -> io::Result<()> {
    let mut spare: Vec<Buffer> = (0..CHUNKS_IN_FLIGHT).map(|_| Buffer::new(CHUNK)).collect();
    let mut completions: Vec<Completion> = Vec::new();
    let (mut next, mut written) = (from, 0);
    while written < to - from {
        while next < to {
            let Some(buffer) = spare.pop() else { break };
            // At most CHUNK, so it fits.
            let length = (to - next).min(CHUNK as u64) as usize;
            let write = Operation::Write { offset: next, length, buffer, durable: false };
            queue
                .submit(length as u64, write)
                .map_err(|_| io::Error::other("the queue refused a write inside its area"))?;
            next += length as u64;
        }
        queue.wait(Duration::from_secs(1))?;
        queue.complete(&mut completions);
        for completion in completions.drain(..) {
            completion.result?;
            spare.extend(completion.buffer);
            written += completion.token;
        }
        progress(written);
    }
    Ok(())
}

/// Gives the finished file its name, durably.
fn publish(path: &Path, partial: &Path) -> Result<(), AreaError> {
    let fail = |action, errno: rustix::io::Errno| io_error(path, action, errno.into());
    let cwd = rustix::fs::CWD;
    match rustix::fs::renameat_with(cwd, partial, cwd, path, RenameFlags::NOREPLACE) {
        Ok(()) => {}
        Err(rustix::io::Errno::EXIST) => return Err(AreaError::Exists { path: path.into() }),
        // A file system without RENAME_NOREPLACE: the name was free a moment ago.
        Err(rustix::io::Errno::INVAL) => {
            rustix::fs::rename(partial, path).map_err(|e| fail("give it its name", e))?;
        }
        Err(e) => return Err(fail("give it its name", e)),
    }
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory =
        rustix::fs::open(parent, flags, Mode::empty()).map_err(|e| fail("open its directory", e))?;
    rustix::fs::fsync(&directory).map_err(|e| fail("flush its directory", e))
}

/// Opens the area at `path`, which must be a regular file of exactly `size` bytes, for one owner:
/// see the module's account. Waits up to two seconds for a previous owner's last requests.
///
/// # Errors
/// See [`AreaError`].
pub fn open(path: &Path, size: u64) -> Result<OwnedFd, AreaError> {
    open_as(path, size, OFlags::RDWR)
}

/// As [`open`], for a process that may only read the file: a backup, or a file system that is
/// mounted read-only.
///
/// # Errors
/// See [`AreaError`].
pub fn open_to_read(path: &Path, size: u64) -> Result<OwnedFd, AreaError> {
    open_as(path, size, OFlags::RDONLY)
}

fn open_as(path: &Path, size: u64, access: OFlags) -> Result<OwnedFd, AreaError> {
    let fail = |action, errno: rustix::io::Errno| io_error(path, action, errno.into());
    let flags = access | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let fd = rustix::fs::open(path, flags, Mode::empty()).map_err(|e| match e {
        // NOFOLLOW on a symbolic link.
        rustix::io::Errno::LOOP => AreaError::NotAFile { path: path.into() },
        e => fail("open it", e),
    })?;
    let stat = rustix::fs::fstat(&fd).map_err(|e| fail("read its size", e))?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(AreaError::NotAFile { path: path.into() });
    }
    let found = stat.st_size.cast_unsigned();
    if found != size {
        return Err(AreaError::WrongSize { path: path.into(), wanted: size, found });
    }
    let deadline = Instant::now() + LOCK_PATIENCE;
    loop {
        match rustix::fs::flock(&fd, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(fd),
            Err(rustix::io::Errno::WOULDBLOCK) if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(5));
            }
            Err(rustix::io::Errno::WOULDBLOCK) => {
                return Err(AreaError::Busy { path: path.into() });
            }
            Err(e) => return Err(fail("lock it", e)),
        }
    }
}

/// Waits until no process can write to the area at `path`, up to two seconds. It does not wait for
/// processes that can only read it.
///
/// # Errors
/// [`AreaError::Busy`] if some process still can.
pub fn wait_unwritten(path: &Path) -> Result<(), AreaError> {
    let deadline = Instant::now() + LOCK_PATIENCE;
    while is_written(path)? {
        if Instant::now() >= deadline {
            return Err(AreaError::Busy { path: path.into() });
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// Whether a process has the area at `path` open for writing, or mapped so.
///
/// # Errors
/// It is not there, or cannot be opened.
pub fn is_written(path: &Path) -> Result<bool, AreaError> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let fd = rustix::fs::open(path, flags, Mode::empty()).map_err(|e| io_error(path, "open it", e.into()))?;
    // The lease ends with the description, here. Until then an open for writing sends its owner a
    // signal: SIGIO would end this process, SIGURG is ignored.
    let leased =
        control(&fd, F_SETSIG, libc::SIGURG).and_then(|()| control(&fd, libc::F_SETLEASE, libc::F_RDLCK));
    match leased {
        Ok(()) => Ok(false),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(true),
        // No leases here: what is left is the lock, which an honest holder keeps.
        Err(_) => match rustix::fs::flock(&fd, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(false),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(true),
            Err(e) => Err(io_error(path, "lock it", e.into())),
        },
    }
}

/// fcntl(2): the signal in place of SIGIO. The libc crate lacks it.
const F_SETSIG: libc::c_int = 10;

/// A command of fcntl(2) that takes a number.
fn control(fd: &OwnedFd, command: libc::c_int, value: libc::c_int) -> io::Result<()> {
    // SAFETY: both commands take an int and touch no memory of this process.
    match unsafe { libc::fcntl(fd.as_raw_fd(), command, value) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn io_error(path: &Path, action: &'static str, source: io::Error) -> AreaError {
    AreaError::Io { path: path.into(), action, source }
}
