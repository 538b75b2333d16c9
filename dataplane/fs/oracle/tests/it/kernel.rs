//! A directory of the kernel as a `FileSystem`, one system call an operation.
//!
//! 1. Each inode that was created is held by an `O_PATH` descriptor, so that the kernel does not
//!    use its number again. Operations on it go through `/proc/self/fd`.
//! 2. An operation runs with the IDs of its caller, which the thread takes for the call. Root keeps
//!    them in its saved IDs.
//! 3. The kernel's clock is replaced: after each operation all inodes are looked at, and a time
//!    that changed to the present is reported as the operation's `now`. This needs times that are
//!    distinct once they were looked at (multigrain timestamps, since Linux 6.13), or patience.
//! 4. Sizes of directories are their numbers of entries, as in the model.

use std::collections::{BTreeMap, HashMap};
use std::ffi::CString;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::fs::{
    Access, AtFlags, CWD, FallocateFlags, FileType, Gid, Mode, OFlags, RawDir, RenameFlags, SeekFrom, Statx,
    StatxFlags, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, Uid, XattrFlags,
};
use rustix::io::{Errno, ReadWriteFlags};
use rustix::thread::CapabilitySet;
use rustix::time::ClockId;
use sietch_fs::FileSystem;
use sietch_fs::access::Caller;
use sietch_fs::file_system::{
    Allocation, AttributeChange, DirectoryEntry, Handle, NewInode, NewTime, OpenMode, RenameMode, Seek,
    Usage, WriteAt, XattrMode,
};
use sietch_fs::inode::{Attributes, InodeNumber, Kind, Timestamp};
use sietch_fs::name::{Cookie, NameKey};

/// Times of the kernel before this second were set by an operation, later ones are its present.
const PRESENT: i64 = 1_000_000_000;

/// atime, mtime, ctime.
type Times = [Timestamp; 3];

struct Known {
    descriptor: OwnedFd,
    /// What the kernel said last.
    seen: Times,
    /// What is reported.
    reported: Times,
    created: Timestamp,
    uses: u64,
}

/// See the module.
pub(crate) struct Kernel {
    inodes: BTreeMap<InodeNumber, Known>,
    numbers: HashMap<u64, InodeNumber>,
    handles: HashMap<Handle, (OwnedFd, InodeNumber)>,
    next_handle: u64,
    clock: Clock,
}

/// How fine the times of a file system are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Clock {
    /// A time that was looked at differs from the next one.
    Fine,
    /// Times are those of the last tick. Each operation waits for the next.
    Ticks,
}

fn wait_for_tick() {
    let tick = || rustix::time::clock_gettime(ClockId::RealtimeCoarse);
    let now = tick();
    while tick() == now {
        std::thread::sleep(Duration::from_micros(200));
    }
}

fn proc_path(descriptor: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", descriptor.as_raw_fd())
}

fn set_ids(uid: u32, gid: u32, groups: &[u32]) -> Result<(), Errno> {
    let groups: Vec<Gid> = groups.iter().map(|gid| Gid::from_raw(*gid)).collect();
    let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
    rustix::thread::set_thread_groups(&groups)?;
    rustix::thread::set_thread_res_gid(gid, gid, Gid::ROOT)?;
    rustix::thread::set_thread_res_uid(uid, uid, Uid::ROOT)
}

/// Runs a system call as the caller. With `links`, the policy of `fs.protected_hardlinks` does not
/// apply.
fn as_caller<T>(
    caller: Caller<'_>,
    links: bool,
    call: impl FnOnce() -> Result<T, Errno>,
) -> Result<T, Errno> {
    if caller.credentials.is_privileged {
        return call();
    }
    let credentials = caller.credentials;
    set_ids(credentials.uid, credentials.gid, &credentials.groups).expect("root may take any IDs");
    if links {
        let mut sets = rustix::thread::capabilities(None).expect("capabilities can be read");
        sets.effective |= CapabilitySet::FOWNER;
        rustix::thread::set_capabilities(None, sets).expect("it is permitted");
    }
    let result = call();
    rustix::thread::set_thread_res_uid(Uid::ROOT, Uid::ROOT, Uid::ROOT).expect("the saved ID is root's");
    set_ids(0, 0, &[]).expect("root may take any IDs");
    result
}

fn stat(descriptor: BorrowedFd<'_>) -> Result<Statx, Errno> {
    rustix::fs::statx(descriptor, c"", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS)
}

fn times(stat: &Statx) -> Times {
    let [atime, mtime, ctime] = [stat.stx_atime, stat.stx_mtime, stat.stx_ctime];
    [atime, mtime, ctime].map(|time| Timestamp { seconds: time.tv_sec, nanoseconds: time.tv_nsec })
}

fn kind(mode: u16) -> Kind {
    match FileType::from_raw_mode(u32::from(mode)) {
        FileType::RegularFile => Kind::File,
        FileType::Directory => Kind::Directory,
        FileType::Symlink => Kind::Symlink,
        FileType::Fifo => Kind::Fifo,
        FileType::Socket => Kind::Socket,
        FileType::CharacterDevice => Kind::CharacterDevice,
        _ => Kind::BlockDevice,
    }
}

fn mode(bits: u16) -> Mode {
    Mode::from_raw_mode(u32::from(bits))
}

/// Names and inode numbers of a directory, in the order of their names.
fn list(directory: BorrowedFd<'_>) -> Result<Vec<(Vec<u8>, u64)>, Errno> {
    rustix::fs::seek(directory, SeekFrom::Start(0))?;
    let mut buffer = [MaybeUninit::<u8>::uninit(); 8192];
    let mut raw = RawDir::new(directory, &mut buffer);
    let mut entries = Vec::new();
    while let Some(entry) = raw.next() {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if !matches!(name, b"." | b"..") {
            entries.push((name.to_vec(), entry.ino()));
        }
    }
    entries.sort();
    Ok(entries)
}

impl Kernel {
    /// The file system below `root`, an empty directory.
    pub(crate) fn new(root: &Path, clock: Clock) -> Result<Self, Errno> {
        rustix::process::umask(Mode::empty());
        let mut kernel = Self {
            inodes: BTreeMap::new(),
            numbers: HashMap::new(),
            handles: HashMap::new(),
            next_handle: 1,
            clock,
        };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let descriptor = rustix::fs::open(root, flags, Mode::empty())?;
        kernel.know(descriptor, Timestamp::default())?;
        Ok(kernel)
    }

    fn know(&mut self, descriptor: OwnedFd, now: Timestamp) -> Result<InodeNumber, Errno> {
        let stat = stat(descriptor.as_fd())?;
        if let Some(number) = self.numbers.get(&stat.stx_ino) {
            return Ok(*number);
        }
        let number = InodeNumber(self.numbers.len() as u64 + 1);
        let known = Known { descriptor, seen: times(&stat), reported: [now; 3], created: now, uses: 0 };
        self.inodes.insert(number, known);
        self.numbers.insert(stat.stx_ino, number);
        Ok(number)
    }

    fn known(&self, inode: InodeNumber) -> Result<&Known, Errno> {
        self.inodes.get(&inode).ok_or(Errno::NOENT)
    }

    fn descriptor(&self, inode: InodeNumber) -> Result<BorrowedFd<'_>, Errno> {
        Ok(self.known(inode)?.descriptor.as_fd())
    }

    fn path(&self, inode: InodeNumber) -> Result<String, Errno> {
        Ok(proc_path(self.descriptor(inode)?))
    }

    fn handle(&self, handle: Handle) -> Result<BorrowedFd<'_>, Errno> {
        Ok(self.handles.get(&handle).ok_or(Errno::BADF)?.0.as_fd())
    }

    fn add_handle(&mut self, descriptor: OwnedFd, inode: InodeNumber) -> Handle {
        let handle = Handle(self.next_handle);
        self.next_handle += 1;
        self.handles.insert(handle, (descriptor, inode));
        if let Some(known) = self.inodes.get_mut(&inode) {
            known.uses += 1;
        }
        handle
    }

    /// Looks at all times after an operation at `now`.
    fn refresh(&mut self, now: Timestamp) -> Result<(), Errno> {
        for known in self.inodes.values_mut() {
            let seen = times(&stat(known.descriptor.as_fd())?);
            for (index, time) in seen.into_iter().enumerate() {
                if time != known.seen[index] {
                    known.reported[index] = if time.seconds < PRESENT { time } else { now };
                }
            }
            known.seen = seen;
        }
        if self.clock == Clock::Ticks {
            wait_for_tick();
        }
        Ok(())
    }

    /// Sets one of the times that are reported.
    fn report(&mut self, inode: InodeNumber, index: usize, now: Timestamp) {
        if let Some(known) = self.inodes.get_mut(&inode) {
            known.reported[index] = now;
        }
    }

    /// The inode that the caller has just created, or looked up.
    fn named(&mut self, directory: InodeNumber, name: &[u8], now: Timestamp) -> Result<InodeNumber, Errno> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let descriptor = rustix::fs::openat(self.descriptor(directory)?, name, flags, Mode::empty())?;
        self.know(descriptor, now)
    }

    fn set_times(&self, caller: Caller<'_>, path: &str, change: &AttributeChange) -> Result<(), Errno> {
        let time = |new: Option<NewTime>| match new {
            None => Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
            Some(NewTime::Now) => Timespec { tv_sec: 0, tv_nsec: UTIME_NOW },
            Some(NewTime::At(time)) => Timespec { tv_sec: time.seconds, tv_nsec: time.nanoseconds.into() },
        };
        let times = Timestamps { last_access: time(change.atime), last_modification: time(change.mtime) };
        as_caller(caller, false, || rustix::fs::utimensat(CWD, path, &times, AtFlags::empty()))
    }

    fn change(
        &self,
        caller: Caller<'_>,
        inode: InodeNumber,
        handle: Option<Handle>,
        change: &AttributeChange,
    ) -> Result<(), Errno> {
        let path = self.path(inode)?;
        if let Some(size) = change.size {
            match handle {
                Some(handle) => {
                    let (handle, opened) = self.handles.get(&handle).ok_or(Errno::BADF)?;
                    if *opened != inode {
                        return Err(Errno::BADF); // A descriptor has one inode.
                    }
                    as_caller(caller, false, || rustix::fs::ftruncate(handle, size))?;
                }
                None => as_caller(caller, false, || truncate(&path, size))?,
            }
        }
        if change.uid.is_some() || change.gid.is_some() {
            let (uid, gid) = (change.uid.map(Uid::from_raw), change.gid.map(Gid::from_raw));
            as_caller(caller, false, || rustix::fs::chownat(CWD, &path, uid, gid, AtFlags::empty()))?;
        }
        if let Some(bits) = change.mode {
            as_caller(caller, false, || rustix::fs::chmod(&path, mode(bits)))?;
        }
        if change.atime.is_some() || change.mtime.is_some() {
            self.set_times(caller, &path, change)?;
        }
        Ok(())
    }
}

fn truncate(path: &str, size: u64) -> Result<(), Errno> {
    let path = CString::new(path).expect("no NUL");
    let size = size.try_into().map_err(|_| Errno::FBIG)?;
    // SAFETY: the path is a C string, and outlives the call.
    if unsafe { libc::truncate(path.as_ptr(), size) } == 0 {
        return Ok(());
    }
    Err(Errno::from_io_error(&std::io::Error::last_os_error()).expect("an error of the system"))
}

fn make(directory: BorrowedFd<'_>, name: &[u8], new: &NewInode<'_>) -> Result<(), Errno> {
    let bits = mode(new.mode);
    let file_type = match new.kind {
        Kind::Directory => return rustix::fs::mkdirat(directory, name, bits),
        Kind::Symlink => return rustix::fs::symlinkat(new.target, directory, name),
        Kind::File => FileType::RegularFile,
        Kind::Fifo => FileType::Fifo,
        Kind::Socket => FileType::Socket,
        Kind::CharacterDevice => FileType::CharacterDevice,
        Kind::BlockDevice => FileType::BlockDevice,
    };
    rustix::fs::mknodat(directory, name, file_type, bits, new.device)
}

impl FileSystem for Kernel {
    fn lookup(
        &mut self,
        caller: Caller<'_>,
        directory: InodeNumber,
        name: &[u8],
    ) -> Result<Attributes, Errno> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let parent = self.descriptor(directory)?;
        let found = as_caller(caller, false, || rustix::fs::openat(parent, name, flags, Mode::empty()))?;
        let inode = self.know(found, caller.now)?;
        self.attributes(inode)
    }

    fn parent(&mut self, directory: InodeNumber) -> Result<InodeNumber, Errno> {
        if directory == InodeNumber::ROOT {
            return Ok(directory);
        }
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let found = rustix::fs::openat(self.descriptor(directory)?, c"..", flags, Mode::empty())?;
        let is_removed = stat(found.as_fd())?.stx_nlink == 0;
        let parent = self.know(found, Timestamp::default())?;
        if is_removed && self.known(parent)?.uses == 0 { Err(Errno::NOENT) } else { Ok(parent) }
    }

    fn attributes(&mut self, inode: InodeNumber) -> Result<Attributes, Errno> {
        let known = self.known(inode)?;
        let stat = stat(known.descriptor.as_fd())?;
        let kind = kind(stat.stx_mode);
        let size = if kind == Kind::Directory && stat.stx_nlink > 0 {
            let flags = OFlags::RDONLY | OFlags::CLOEXEC;
            let opened = rustix::fs::open(self.path(inode)?, flags, Mode::empty())?;
            list(opened.as_fd())?.len() as u64
        } else if kind == Kind::Directory {
            0
        } else {
            stat.stx_size
        };
        let [atime, mtime, ctime] = known.reported;
        Ok(Attributes {
            inode,
            kind,
            mode: stat.stx_mode & 0o7777,
            links: stat.stx_nlink,
            uid: stat.stx_uid,
            gid: stat.stx_gid,
            device: rustix::fs::makedev(stat.stx_rdev_major, stat.stx_rdev_minor),
            size,
            blocks: stat.stx_blocks,
            atime,
            mtime,
            ctime,
            btime: known.created,
        })
    }

    fn set_attributes(
        &mut self,
        caller: Caller<'_>,
        inode: InodeNumber,
        handle: Option<Handle>,
        change: &AttributeChange,
    ) -> Result<Attributes, Errno> {
        let keeps_size = change.size == Some(stat(self.descriptor(inode)?)?.stx_size);
        let result = self.change(caller, inode, handle, change);
        self.refresh(caller.now)?;
        if keeps_size && result.is_ok() {
            // tmpfs leaves the times then.
            self.report(inode, 1, caller.now);
            self.report(inode, 2, caller.now);
        }
        result.and_then(|()| self.attributes(inode))
    }

    fn read_link(&mut self, inode: InodeNumber) -> Result<Vec<u8>, Errno> {
        // readlinkat with an empty path says ENOENT of what is no link.
        let descriptor = self.descriptor(inode)?;
        let target = rustix::fs::readlinkat(descriptor, c"", Vec::new());
        target
            .map(CString::into_bytes)
            .map_err(|errno| if errno == Errno::NOENT { Errno::INVAL } else { errno })
    }

    fn create(
        &mut self,
        caller: Caller<'_>,
        directory: InodeNumber,
        name: &[u8],
        new: &NewInode<'_>,
    ) -> Result<Attributes, Errno> {
        let parent = self.descriptor(directory)?;
        let result = as_caller(caller, false, || make(parent, name, new));
        self.refresh(caller.now)?;
        result?;
        let inode = self.named(directory, name, caller.now)?;
        self.attributes(inode)
    }

    fn create_unnamed(
        &mut self,
        caller: Caller<'_>,
        directory: InodeNumber,
        bits: u16,
    ) -> Result<(Attributes, Handle), Errno> {
        let parent = self.descriptor(directory)?;
        let is_removed = stat(parent)?.stx_nlink == 0;
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let result = as_caller(caller, false, || rustix::fs::openat(parent, c".", flags, mode(bits)));
        self.refresh(caller.now)?;
        if is_removed && matches!(result, Ok(_) | Err(Errno::PERM)) {
            return Err(Errno::NOENT); // ext4 says EPERM, tmpfs creates a file.
        }
        let opened = result?;
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let held = rustix::fs::open(proc_path(opened.as_fd()), flags, Mode::empty())?;
        let inode = self.know(held, caller.now)?;
        let handle = self.add_handle(opened, inode);
        Ok((self.attributes(inode)?, handle))
    }

    fn link(
        &mut self,
        caller: Caller<'_>,
        inode: InodeNumber,
        directory: InodeNumber,
        name: &[u8],
    ) -> Result<Attributes, Errno> {
        let path = self.path(inode)?;
        let parent = self.descriptor(directory)?;
        let flags = AtFlags::SYMLINK_FOLLOW;
        let result = as_caller(caller, true, || rustix::fs::linkat(CWD, &path, parent, name, flags));
        self.refresh(caller.now)?;
        result.and_then(|()| self.attributes(inode))
    }

    fn unlink(&mut self, caller: Caller<'_>, directory: InodeNumber, name: &[u8]) -> Result<(), Errno> {
        let parent = self.descriptor(directory)?;
        let result = as_caller(caller, false, || rustix::fs::unlinkat(parent, name, AtFlags::empty()));
        self.refresh(caller.now)?;
        result
    }

    fn remove_directory(
        &mut self,
        caller: Caller<'_>,
        directory: InodeNumber,
        name: &[u8],
    ) -> Result<(), Errno> {
        let parent = self.descriptor(directory)?;
        let result = as_caller(caller, false, || rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR));
        self.refresh(caller.now)?;
        result
    }

    fn rename(
        &mut self,
        caller: Caller<'_>,
        from: (InodeNumber, &[u8]),
        to: (InodeNumber, &[u8]),
        mode: RenameMode,
    ) -> Result<(), Errno> {
        let (old, new) = (self.descriptor(from.0)?, self.descriptor(to.0)?);
        let flags = match mode {
            RenameMode::Replace => RenameFlags::empty(),
            RenameMode::NoReplace => RenameFlags::NOREPLACE,
            RenameMode::Exchange => RenameFlags::EXCHANGE,
        };
        let result = as_caller(caller, false, || rustix::fs::renameat_with(old, from.1, new, to.1, flags));
        self.refresh(caller.now)?;
        result
    }

    fn open(&mut self, caller: Caller<'_>, inode: InodeNumber, mode: OpenMode) -> Result<Handle, Errno> {
        let path = self.path(inode)?;
        let access = match (mode.read, mode.write) {
            (_, false) => OFlags::RDONLY,
            (false, true) => OFlags::WRONLY,
            (true, true) => OFlags::RDWR,
        };
        let truncate = if mode.truncate { OFlags::TRUNC } else { OFlags::empty() };
        let kind = kind(stat(self.descriptor(inode)?)?.stx_mode);
        if !matches!(kind, Kind::File | Kind::Directory | Kind::Symlink) {
            // The model opens no pipes and devices, but checks permissions.
            let read = if mode.read { Access::READ_OK } else { Access::empty() };
            let write = if mode.write { Access::WRITE_OK } else { Access::empty() };
            as_caller(caller, false, || rustix::fs::accessat(CWD, &path, read | write, AtFlags::EACCESS))?;
            return Err(Errno::NXIO);
        }
        let flags = access | truncate | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let result = as_caller(caller, false, || rustix::fs::open(&path, flags, Mode::empty()));
        self.refresh(caller.now)?;
        Ok(self.add_handle(result?, inode))
    }

    fn open_created(&mut self, inode: InodeNumber, mode: OpenMode) -> Result<Handle, Errno> {
        let root = sietch_fs::access::Credentials::root();
        self.open(Caller { credentials: &root, now: Timestamp::default() }, inode, mode)
    }

    fn close(&mut self, handle: Handle) {
        if let Some((_, inode)) = self.handles.remove(&handle) {
            self.release(inode, 1);
        }
    }

    fn retain(&mut self, inode: InodeNumber) -> Result<(), Errno> {
        self.inodes.get_mut(&inode).ok_or(Errno::NOENT)?.uses += 1;
        Ok(())
    }

    fn release(&mut self, inode: InodeNumber, count: u64) {
        if let Some(known) = self.inodes.get_mut(&inode) {
            known.uses -= count;
        }
    }

    fn read(&mut self, handle: Handle, offset: u64, bytes: &mut [u8]) -> Result<usize, Errno> {
        rustix::io::pread(self.handle(handle)?, bytes, offset)
    }

    fn write(&mut self, caller: Caller<'_>, handle: Handle, at: WriteAt, bytes: &[u8]) -> Result<u64, Errno> {
        let descriptor = self.handle(handle)?;
        let (offset, flags) = match at {
            WriteAt::Offset(offset) => (offset, ReadWriteFlags::empty()),
            WriteAt::End => (stat(descriptor)?.stx_size, ReadWriteFlags::APPEND),
        };
        let result = as_caller(caller, false, || {
            rustix::io::pwritev2(descriptor, &[IoSlice::new(bytes)], offset, flags)
        });
        self.refresh(caller.now)?;
        if result? == bytes.len() { Ok(offset) } else { Err(Errno::IO) }
    }

    fn allocate(
        &mut self,
        caller: Caller<'_>,
        handle: Handle,
        range: Range<u64>,
        allocation: Allocation,
    ) -> Result<(), Errno> {
        let descriptor = self.handle(handle)?;
        let flags = match allocation {
            Allocation::Reserve => FallocateFlags::empty(),
            Allocation::ReserveKeepSize => FallocateFlags::KEEP_SIZE,
            Allocation::Punch => FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
            Allocation::Zero => FallocateFlags::ZERO_RANGE,
            Allocation::ZeroKeepSize => FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE,
        };
        let length = range.end - range.start;
        let result =
            as_caller(caller, false, || rustix::fs::fallocate(descriptor, flags, range.start, length));
        self.refresh(caller.now)?;
        result
    }

    fn seek(&mut self, handle: Handle, offset: u64, what: Seek) -> Result<u64, Errno> {
        let descriptor = self.handle(handle)?;
        if kind(stat(descriptor)?.stx_mode) == Kind::Directory {
            return Err(Errno::INVAL); // What it means is up to the file system.
        }
        let to = match what {
            Seek::Data => SeekFrom::Data(offset),
            Seek::Hole => SeekFrom::Hole(offset),
        };
        rustix::fs::seek(descriptor, to)
    }

    fn sync(&mut self) -> Result<(), Errno> {
        Ok(())
    }

    fn read_directory(
        &mut self,
        handle: Handle,
        after: Cookie,
        take: &mut dyn FnMut(DirectoryEntry) -> bool,
    ) -> Result<(), Errno> {
        let key = NameKey([0; 16]);
        let mut entries = Vec::new();
        for (name, number) in list(self.handle(handle)?)? {
            let inode = *self.numbers.get(&number).ok_or(Errno::STALE)?;
            let kind = kind(stat(self.descriptor(inode)?)?.stx_mode);
            entries.push(DirectoryEntry { cookie: key.cookie(&name), name: name.into(), inode, kind });
        }
        entries.sort_by_key(|entry| entry.cookie);
        for entry in entries {
            if entry.cookie > after && !take(entry) {
                break;
            }
        }
        Ok(())
    }

    fn check_access(&mut self, caller: Caller<'_>, inode: InodeNumber, wanted: u8) -> Result<(), Errno> {
        let path = self.path(inode)?;
        let access = Access::from_bits_truncate(wanted.into());
        as_caller(caller, false, || rustix::fs::accessat(CWD, &path, access, AtFlags::EACCESS))
    }

    fn xattr(&mut self, caller: Caller<'_>, inode: InodeNumber, name: &[u8]) -> Result<Vec<u8>, Errno> {
        let path = self.path(inode)?;
        let mut value = vec![0; 65536];
        let length = as_caller(caller, false, || rustix::fs::getxattr(&path, name, value.as_mut_slice()))?;
        value.truncate(length);
        Ok(value)
    }

    fn xattr_names(&mut self, caller: Caller<'_>, inode: InodeNumber) -> Result<Vec<Box<[u8]>>, Errno> {
        let path = self.path(inode)?;
        let mut names = vec![0; 65536];
        let length = as_caller(caller, false, || rustix::fs::listxattr(&path, names.as_mut_slice()))?;
        Ok(names[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty()).map(Into::into).collect())
    }

    fn set_xattr(
        &mut self,
        caller: Caller<'_>,
        inode: InodeNumber,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<(), Errno> {
        let path = self.path(inode)?;
        let flags = match mode {
            XattrMode::Set => XattrFlags::empty(),
            XattrMode::Create => XattrFlags::CREATE,
            XattrMode::Replace => XattrFlags::REPLACE,
        };
        let mut old = vec![0; 65536];
        let old = rustix::fs::getxattr(&path, name, old.as_mut_slice()).map(|length| old[..length].to_vec());
        let result = as_caller(caller, false, || rustix::fs::setxattr(&path, name, value, flags));
        self.refresh(caller.now)?;
        if result.is_ok() && old.as_deref() == Ok(value) {
            // ext4 changes nothing then.
            self.report(inode, 2, caller.now);
        }
        result
    }

    fn remove_xattr(&mut self, caller: Caller<'_>, inode: InodeNumber, name: &[u8]) -> Result<(), Errno> {
        let path = self.path(inode)?;
        let result = as_caller(caller, false, || rustix::fs::removexattr(&path, name));
        self.refresh(caller.now)?;
        result
    }

    fn usage(&mut self) -> Usage {
        Usage { block_bytes: 4096, blocks: 0, free: 0, inodes: self.inodes.len() as u64 }
    }
}
