//! The kernel's requests, one by one, as operations of the file system.
//!
//! 1. Permissions were checked by the kernel, so the file system gets privileged credentials with
//!    the caller's user and group. What waits, and changes names or attributes, goes on with the
//!    caller's own ([`crate::sender`]).
//! 2. A change of the content by someone without privilege clears set-ID bits
//!    ([`crate::set_id`]). The kernel says with a write whether that is the case. `fuser` does not
//!    pass the flag of `open` and `setattr`; there, and where FUSE has no flag, only root is taken
//!    for privileged.
//! 3. A request without any attribute to set is the kernel's way to ask for set-ID bits to be
//!    cleared, and what `chown(2)` with two times -1 becomes.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use fuser::{
    AccessFlags, BsdFileFlags, CopyFileRangeFlags, FileHandle, Filesystem, FopenFlags, Generation, INodeNo,
    InitFlags, IoctlFlags, KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate,
    ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen,
    ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use rustix::fs::{OFlags, XattrFlags};
use rustix::io::Errno;
use sietch_fs::FileSystem;
use sietch_fs::access::Caller;
use sietch_fs::direct::{self, Way};
use sietch_fs::file_system::{
    AttributeChange, Handle, NewInode, OpenMode, Seek, Waited, Ways, WriteAt, XattrMode,
};
use sietch_fs::inode::Kind;
use sietch_fs::limits::MAX_RECORD_DATA;
use sietch_fs::name::MAX_NAME;

use crate::attributes::{errno, file_attributes, inode, kind_and_mode, new_time, now, permissions, stale};
use crate::changes::{Changes, How, KEPT};
use crate::operations::{
    COPY_STEP, MAX_COPY, allocation, cache_mode, clear_set_id, content_changer, copy, has, open_existing,
    open_mode, own, rename_mode, sender, set_attributes,
};
use crate::options::Options;
use crate::replies::{owned, reply_attributes, reply_empty, reply_entry, reply_value};
use crate::sender::Rights;
use crate::stale::Stale;
use crate::state::{State, Tried};

mod looks;

/// Largest write and read: what one record of the log takes, so that a write is atomic.
const MAX_TRANSFER: u32 = MAX_RECORD_DATA as u32;
/// Requests that no thread of the kernel waits for (direct writes and reads, read-ahead,
/// write-back) that may be under way. All users share them, and some wait here for long. So there
/// are more than the requests of one user that are kept ([`crate::budget`]).
const MAX_BACKGROUND: u16 = u16::MAX;

/// Answers the kernel's requests.
pub(crate) struct Requests<F> {
    changes: Changes<F>,
    stale: Arc<Stale>,
    keep: Duration,
    /// Where programs become clients themselves.
    service: Option<PathBuf>,
    /// Each change is durable when it returns.
    syncs: bool,
    /// Appends need not go through the kernel's cache.
    appends_directly: bool,
}

impl<F: FileSystem + Send + 'static> Requests<F> {
    /// The kernel may keep names and attributes as the options say.
    pub(crate) fn new(changes: Changes<F>, stale: Arc<Stale>, options: &Options) -> Self {
        let Options { keep, service, sync, .. } = options;
        let (keep, service, syncs) = (*keep, service.clone(), *sync);
        Self { changes, stale, keep, service, syncs, appends_directly: false }
    }

    fn run<T>(
        &self,
        request: &Request,
        operation: impl FnOnce(&mut State<F>) -> Result<T, Errno>,
    ) -> Result<T, fuser::Errno> {
        self.changes.shared.run(Some(request.uid()), operation).map_err(errno)
    }

    /// Runs an operation for a user that the kernel permits it, and answers: later, if it waits.
    /// Where it waits, whether it is permitted does not depend on what others do meanwhile.
    fn run_permitted<T: Send + 'static>(
        &self,
        (request, how): (&Request, How),
        mut operation: impl FnMut(&mut State<F>, Caller<'_>) -> Result<T, Errno> + Send + 'static,
        answer: impl FnOnce(Result<T, fuser::Errno>) + Send + 'static,
    ) {
        let credentials = sender(request).permitted();
        let run =
            move |state: &mut State<F>| operation(state, Caller { credentials: &credentials, now: now() });
        self.changes.run(how, run, move |result| answer(result.map_err(errno)));
    }

    /// Runs an operation that changes names or attributes, and answers: later, if it waits.
    fn change<T: Send + 'static>(
        &self,
        (request, how): (&Request, How),
        mut operation: impl FnMut(&mut State<F>, Caller<'_>) -> Result<T, Errno> + Send + 'static,
        answer: impl FnOnce(Result<T, fuser::Errno>) + Send + 'static,
    ) {
        let mut rights = Rights::of(sender(request));
        let run = move |state: &mut State<F>| {
            rights.run(|credentials| operation(state, Caller { credentials, now: now() }))
        };
        self.changes.run(how, run, move |result| answer(result.map_err(errno)));
    }

    /// As [`Requests::change`], for an operation that is done in steps: other users have the file
    /// system in between. The last step returns `true`.
    fn change_in_turns(
        &self,
        (request, how): (&Request, How),
        mut step: impl FnMut(&mut State<F>, Caller<'_>) -> Result<bool, Errno> + Send + 'static,
        reply: ReplyEmpty,
    ) {
        let mut rights = Rights::of(sender(request));
        let step = move |state: &mut State<F>| {
            let is_done = rights.run(|credentials| step(state, Caller { credentials, now: now() }))?;
            Ok(is_done.then_some(()))
        };
        let answer = move |done: Result<(), Errno>| reply_empty(done.map_err(errno), reply);
        self.changes.run_in_turns(how, step, answer);
    }

    /// How a program's request is answered.
    fn how(&self, request: &Request) -> How {
        let user = Some(request.uid());
        How { user, syncs: self.syncs, is_write_back: false, locked: None, kept: KEPT }
    }

    /// How a request is answered for which the kernel has locked a directory, or what may be one.
    fn how_locked(&self, request: &Request) -> How {
        How { locked: Some(Instant::now()), ..self.how(request) }
    }

    fn make(
        &self,
        request: &Request,
        directory: INodeNo,
        name: &OsStr,
        new: &NewInode<'_>,
        reply: ReplyEntry,
    ) {
        let (directory, name, target) = (inode(directory), owned(name), new.target.to_vec());
        let NewInode { kind, mode, device, .. } = *new;
        let make = move |state: &mut State<F>, caller: Caller<'_>| {
            let new = NewInode { kind, mode, device, target: &target };
            let shown = state.file_system.create(caller, directory, &name, &new)?;
            state.retain(shown)
        };
        let keep = self.keep;
        self.change((request, self.how_locked(request)), make, move |made| reply_entry(made, keep, reply));
    }
}

impl<F: FileSystem + Send + 'static> Filesystem for Requests<F> {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let mut wanted = InitFlags::FUSE_ATOMIC_O_TRUNC
            | InitFlags::FUSE_HANDLE_KILLPRIV_V2
            | InitFlags::FUSE_AUTO_INVAL_DATA
            | InitFlags::FUSE_PARALLEL_DIROPS
            | InitFlags::FUSE_EXPORT_SUPPORT
            | InitFlags::FUSE_ASYNC_DIO;
        if !self.keep.is_zero() {
            // Attributes that the kernel may not keep are of no use in a listing.
            wanted |= InitFlags::FUSE_DO_READDIRPLUS | InitFlags::FUSE_READDIRPLUS_AUTO;
        }
        // A kernel without one of them works by further requests.
        if let Err(missing) = config.add_capabilities(wanted) {
            let _ = config.add_capabilities(wanted & !missing);
        }
        // A kernel that has it (Linux 6.6) also writes back and drops what it has cached before it
        // writes directly.
        self.appends_directly =
            self.service.is_some() && config.add_capabilities(InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP).is_ok();
        // The kernel's own bound on read-ahead may be lower, and then it stays.
        let _ = config.set_max_write(MAX_TRANSFER);
        let _ = config.set_max_readahead(MAX_TRANSFER);
        let _ = config.set_max_background(MAX_BACKGROUND);
        let _ = config.set_congestion_threshold(MAX_BACKGROUND / 4 * 3);
        Ok(())
    }

    fn lookup(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        self.look_up(request, parent, name, reply);
    }

    fn forget(&self, _request: &Request, number: INodeNo, lookups: u64) {
        // After a panic nothing is left to release.
        let _ = self.changes.shared.run(None, |state| {
            state.forget(inode(number), lookups);
            Ok(())
        });
    }

    fn getattr(&self, request: &Request, number: INodeNo, _handle: Option<FileHandle>, reply: ReplyAttr) {
        let find = move |state: &mut State<F>, _: Caller<'_>| {
            state.file_system.attributes(inode(number)).map_err(stale)
        };
        let keep = self.keep;
        self.look(request, find, move |found| reply_attributes(found, keep, reply));
    }

    fn setattr(
        &self,
        request: &Request,
        number: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        handle: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let change = AttributeChange {
            mode: mode.map(|mode| permissions(mode, 0)),
            uid,
            gid,
            size,
            atime: atime.map(new_time),
            mtime: mtime.map(new_time),
        };
        let handle = handle.map(|handle| Handle(handle.0));
        let who = sender(request);
        let set = move |state: &mut State<F>, caller: Caller<'_>| {
            set_attributes(state, caller, who, number, handle, change).map_err(stale)
        };
        let hides = change.mtime.is_some() && self.service.is_some();
        let (keep, stale) = (self.keep, Arc::clone(&self.stale));
        self.change((request, self.how(request)), set, move |set| {
            if hides {
                // The kernel finds by size and mtime that a client has changed a file: one that is
                // set back hides it.
                stale.add(number);
            }
            reply_attributes(set, keep, reply);
        });
    }

    fn readlink(&self, request: &Request, number: INodeNo, reply: ReplyData) {
        let read = move |state: &mut State<F>, _: Caller<'_>| {
            state.file_system.read_link(inode(number)).map_err(stale)
        };
        self.look(request, read, move |target| match target {
            Ok(target) => reply.data(&target),
            Err(errno) => reply.error(errno),
        });
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        let Some((kind, mode)) = kind_and_mode(mode, umask) else {
            return reply.error(fuser::Errno::EINVAL);
        };
        let device = match kind {
            Kind::CharacterDevice | Kind::BlockDevice => rdev.into(),
            _ => 0,
        };
        self.make(request, parent, name, &NewInode { kind, mode, device, target: &[] }, reply);
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        let mode = permissions(mode, umask);
        let new = NewInode { kind: Kind::Directory, mode, device: 0, target: &[] };
        self.make(request, parent, name, &new, reply);
    }

    fn unlink(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let (parent, name) = (inode(parent), owned(name));
        let unlink =
            move |state: &mut State<F>, caller: Caller<'_>| state.file_system.unlink(caller, parent, &name);
        self.change((request, self.how_locked(request)), unlink, move |removed| reply_empty(removed, reply));
    }

    fn rmdir(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let (parent, name) = (inode(parent), owned(name));
        let remove = move |state: &mut State<F>, caller: Caller<'_>| {
            state.file_system.remove_directory(caller, parent, &name)
        };
        self.change((request, self.how_locked(request)), remove, move |removed| reply_empty(removed, reply));
    }

    fn symlink(&self, request: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        let target = target.as_os_str().as_bytes();
        let new = NewInode { kind: Kind::Symlink, mode: 0o777, device: 0, target };
        self.make(request, parent, name, &new, reply);
    }

    fn rename(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let Some(mode) = rename_mode(flags) else { return reply.error(fuser::Errno::EINVAL) };
        let (from, to) = ((inode(parent), owned(name)), (inode(new_parent), owned(new_name)));
        let mut ways = Ways::default();
        let rename = move |state: &mut State<F>, caller: Caller<'_>| {
            state.file_system.rename_step(caller, (from.0, &from.1), (to.0, &to.1), mode, &mut ways)
        };
        self.change_in_turns((request, self.how_locked(request)), rename, reply);
    }

    fn link(
        &self,
        request: &Request,
        number: INodeNo,
        new_parent: INodeNo,
        new_name: &OsStr,
        reply: ReplyEntry,
    ) {
        let (number, directory, name) = (inode(number), inode(new_parent), owned(new_name));
        let link = move |state: &mut State<F>, caller: Caller<'_>| {
            let shown = state.file_system.link(caller, number, directory, &name)?;
            state.retain(shown)
        };
        let keep = self.keep;
        self.change((request, self.how_locked(request)), link, move |linked| {
            reply_entry(linked, keep, reply)
        });
    }

    fn open(&self, request: &Request, number: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let (who, mode) = (sender(request), open_mode(flags));
        let open = move |state: &mut State<F>, caller: Caller<'_>| {
            if mode.truncate && who.uid != 0 {
                clear_set_id(state, caller, who, inode(number)).map_err(stale)?;
            }
            let handle = state.file_system.open(caller, inode(number), mode).map_err(stale)?;
            Ok(state.opened(handle))
        };
        let cached = cache_mode(flags, self.appends_directly);
        let answer = move |opened: Result<Handle, fuser::Errno>| match opened {
            Ok(handle) => reply.opened(FileHandle(handle.0), cached),
            Err(errno) => reply.error(errno),
        };
        let how = if mode.truncate { self.how(request) } else { self.how_looked(request) };
        self.run_permitted((request, how), open, answer);
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let flags = OpenFlags(flags);
        let mode = permissions(mode, umask);
        let (parent, name) = (inode(parent), owned(name));
        let who = sender(request);
        let create = move |state: &mut State<F>, caller: Caller<'_>| {
            let new = NewInode { kind: Kind::File, mode, device: 0, target: &[] };
            let shown = match state.file_system.create(caller, parent, &name, &new) {
                Err(Errno::EXIST) if !has(flags, OFlags::EXCL) => {
                    return open_existing(state, who, (parent, &name), open_mode(flags));
                }
                other => other?,
            };
            let handle = state.file_system.open_created(shown.inode, open_mode(flags)).map_err(stale)?;
            Ok((state.retain(shown).map_err(stale)?, state.opened(handle)))
        };
        let (keep, cached) = (self.keep, cache_mode(flags, self.appends_directly));
        self.change((request, self.how_locked(request)), create, move |created| match created {
            Ok((shown, handle)) => {
                let (shown, handle) = (file_attributes(&shown), FileHandle(handle.0));
                reply.created(&keep, &shown, Generation(0), handle, cached);
            }
            Err(errno) => reply.error(errno),
        });
    }

    fn read(
        &self,
        request: &Request,
        _number: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        self.read_at(request, Handle(handle.0), offset, size.min(MAX_TRANSFER) as usize, reply);
    }

    fn write(
        &self,
        request: &Request,
        number: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let kill = write_flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID);
        // Pages are written back where they are.
        let from_cache = write_flags.contains(WriteFlags::FUSE_WRITE_CACHE);
        let append = has(flags, OFlags::APPEND) && !from_cache;
        let at = if append { WriteAt::End } else { WriteAt::Offset(offset) };
        // The kernel writes back in its own name, as user 0, whom no limit binds.
        let user = (!from_cache).then_some(request.uid());
        // Not every kernel that has FUSE sends a request to sync after such a write.
        let syncs = self.syncs || (has(flags, OFlags::DSYNC) && !from_cache);
        let how = How { user, syncs, is_write_back: from_cache, locked: None, kept: KEPT + data.len() };
        let (who, handle) = (sender(request), Handle(handle.0));
        let write = move |state: &mut State<F>, data: &[u8]| {
            let mut credentials = content_changer(state, who, number, !kill)?;
            if from_cache {
                credentials.uid = state.file_system.attributes(inode(number))?.uid;
            }
            let caller = Caller { credentials: &credentials, now: now() };
            state.file_system.write(caller, handle, at, data)
        };
        // No longer than a request.
        let (length, stale) = (data.len() as u32, Arc::clone(&self.stale));
        let answer = move |written: Result<u64, Errno>| match written {
            Ok(start) => {
                reply.written(length);
                if start != offset {
                    stale.add(number);
                }
            }
            Err(error) => reply.error(errno(error)),
        };
        let tried = self.changes.shared.attempt(user, Waited::default(), |state| write(state, data));
        // Only what is tried again needs the data for longer than this request.
        let kept = if how.is_tried_again(&tried) { data.to_vec() } else { Vec::new() };
        self.changes.go_on(how, tried, move |state| write(state, &kept), answer);
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        // Nothing is held back until a descriptor is closed. The kernel does not ask again.
        reply.error(fuser::Errno::ENOSYS);
    }

    fn release(
        &self,
        request: &Request,
        _number: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        let closed = self.run(request, |state| {
            state.close(Handle(handle.0));
            Ok(())
        });
        reply_empty(closed, reply);
    }

    fn fsync(&self, request: &Request, number: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        self.sync_inode(request, number, reply);
    }

    fn opendir(&self, request: &Request, number: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let open = move |state: &mut State<F>, caller: Caller<'_>| {
            let mode = OpenMode { read: true, ..OpenMode::default() };
            let handle = state.file_system.open(caller, inode(number), mode).map_err(stale)?;
            Ok(state.opened(handle))
        };
        self.look(request, open, move |opened| match opened {
            Ok(handle) => reply.opened(FileHandle(handle.0), FopenFlags::empty()),
            Err(errno) => reply.error(errno),
        });
    }

    fn readdir(
        &self,
        request: &Request,
        number: INodeNo,
        handle: FileHandle,
        offset: u64,
        reply: ReplyDirectory,
    ) {
        self.list(request, number, handle, offset, reply);
    }

    fn readdirplus(
        &self,
        request: &Request,
        number: INodeNo,
        handle: FileHandle,
        offset: u64,
        reply: ReplyDirectoryPlus,
    ) {
        self.list_with_attributes(request, number, handle, offset, reply);
    }

    fn releasedir(
        &self,
        request: &Request,
        _number: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        reply: ReplyEmpty,
    ) {
        let closed = self.run(request, |state| {
            state.close(Handle(handle.0));
            Ok(())
        });
        reply_empty(closed, reply);
    }

    fn fsyncdir(&self, request: &Request, number: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        self.sync_inode(request, number, reply);
    }

    fn statfs(&self, request: &Request, _number: INodeNo, reply: ReplyStatfs) {
        match self.run(request, |state| Ok(state.file_system.usage())) {
            Ok(usage) => {
                let (block, free) = (usage.block_bytes, usage.free);
                // Inodes are limited by blocks alone.
                let inodes = usage.inodes.saturating_add(free);
                reply.statfs(usage.blocks, free, free, inodes, free, block, MAX_NAME as u32, block);
            }
            Err(errno) => reply.error(errno),
        }
    }

    fn setxattr(
        &self,
        request: &Request,
        number: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        let flags = XattrFlags::from_bits_retain(flags as u32);
        let mode = if flags == XattrFlags::empty() {
            XattrMode::Set
        } else if flags == XattrFlags::CREATE {
            XattrMode::Create
        } else if flags == XattrFlags::REPLACE {
            XattrMode::Replace
        } else {
            return reply.error(fuser::Errno::EINVAL);
        };
        let (number, name, value) = (inode(number), owned(name), Box::<[u8]>::from(value));
        let how = How { kept: KEPT + value.len(), ..self.how_locked(request) };
        let set = move |state: &mut State<F>, caller: Caller<'_>| {
            state.file_system.set_xattr_step(caller, number, &name, &value, mode).map_err(stale)
        };
        self.change_in_turns((request, how), set, reply);
    }

    fn getxattr(&self, request: &Request, number: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        let (credentials, number, name) = (sender(request).permitted(), inode(number), owned(name));
        // The usage of users is shown when it is digested.
        let get = move |state: &mut State<F>| {
            let caller = Caller { credentials: &credentials, now: now() };
            state.file_system.xattr(caller, number, &name).map_err(stale)
        };
        self.changes
            .run(self.how_looked(request), get, move |value| reply_value(value.map_err(errno), size, reply));
    }

    fn listxattr(&self, request: &Request, number: INodeNo, size: u32, reply: ReplyXattr) {
        self.list_xattrs(request, number, size, reply);
    }

    fn removexattr(&self, request: &Request, number: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let (number, name) = (inode(number), owned(name));
        let remove = move |state: &mut State<F>, caller: Caller<'_>| {
            state.file_system.remove_xattr(caller, number, &name).map_err(stale)
        };
        self.change((request, self.how_locked(request)), remove, move |removed| reply_empty(removed, reply));
    }

    fn access(&self, request: &Request, number: INodeNo, mask: AccessFlags, reply: ReplyEmpty) {
        // The kernel checks permissions itself, and does not ask.
        let wanted = (mask.bits() & 7) as u8;
        let credentials = own(request);
        let check = move |state: &mut State<F>| {
            let caller = Caller { credentials: &credentials, now: now() };
            state.file_system.check_access(caller, inode(number), wanted).map_err(stale)
        };
        let answer = move |checked: Result<(), Errno>| reply_empty(checked.map_err(errno), reply);
        self.changes.run(self.how_looked(request), check, answer);
    }

    fn fallocate(
        &self,
        request: &Request,
        number: INodeNo,
        handle: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let Some(allocation) = allocation(mode) else { return reply.error(fuser::Errno::EOPNOTSUPP) };
        let Some(end) = offset.checked_add(length) else { return reply.error(fuser::Errno::EFBIG) };
        let (who, handle) = (sender(request), Handle(handle.0));
        let allocate = move |state: &mut State<F>| {
            let credentials = content_changer(state, who, number, who.uid == 0)?;
            let caller = Caller { credentials: &credentials, now: now() };
            state.file_system.allocate(caller, handle, offset..end, allocation)
        };
        self.changes.run(self.how(request), allocate, move |allocated| {
            reply_empty(allocated.map_err(errno), reply);
        });
    }

    fn lseek(
        &self,
        request: &Request,
        _number: INodeNo,
        handle: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        // `SEEK_DATA` and `SEEK_HOLE`; the kernel does the others.
        let what = match whence {
            3 => Seek::Data,
            4 => Seek::Hole,
            _ => return reply.error(fuser::Errno::EINVAL),
        };
        let Ok(from) = u64::try_from(offset) else { return reply.error(fuser::Errno::ENXIO) };
        self.seek(request, Handle(handle.0), from, what, reply);
    }

    fn ioctl(
        &self,
        request: &Request,
        number: INodeNo,
        _handle: FileHandle,
        _flags: IoctlFlags,
        command: u32,
        _from: &[u8],
        room: u32,
        reply: ReplyIoctl,
    ) {
        // Another user cannot become a client, and shall not take leases from those who are.
        let may_ask = request.uid() == 0 || request.uid() == rustix::process::geteuid().as_raw();
        let Some(folder) = self.service.clone().filter(|_| may_ask) else {
            return reply.error(fuser::Errno::ENOTTY);
        };
        let inode = inode(number);
        let act = move |state: &mut State<F>, _: Caller<'_>| match command {
            direct::WAY => {
                let (is_mapped, folder) = (state.ask_way(inode), folder.clone());
                Ok(Way { inode, is_mapped, folder }.to_bytes())
            }
            direct::MAP => state.map(inode).map(|()| Vec::new()),
            _ => Err(Errno::NOTTY),
        };
        self.look(request, act, move |answer| match answer {
            Ok(answer) if answer.len() <= room as usize => reply.ioctl(answer.len() as i32, &answer),
            Ok(_) => reply.error(fuser::Errno::ENAMETOOLONG),
            Err(errno) => reply.error(errno),
        });
    }

    fn copy_file_range(
        &self,
        request: &Request,
        _from: INodeNo,
        from_handle: FileHandle,
        from_offset: u64,
        to: INodeNo,
        to_handle: FileHandle,
        to_offset: u64,
        length: u64,
        _flags: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        let length = length.min(MAX_COPY);
        let mut buffer = vec![0; length.min(COPY_STEP) as usize];
        let who = sender(request);
        let mut piece = move |state: &mut State<F>, copied: u64| {
            let bytes = (length - copied).min(COPY_STEP) as usize;
            let credentials = content_changer(state, who, to, who.uid == 0)?;
            let caller = Caller { credentials: &credentials, now: now() };
            let from = (Handle(from_handle.0), from_offset.saturating_add(copied));
            let to = (Handle(to_handle.0), to_offset.saturating_add(copied));
            copy(state, caller, from, to, &mut buffer[..bytes]).map(|count| count as u64)
        };
        let how = How { kept: KEPT + COPY_STEP as usize, ..self.how(request) };
        let mut copied = 0;
        let last = loop {
            let step = |state: &mut State<F>| piece(state, copied);
            match self.changes.shared.attempt(how.user, Waited::default(), step) {
                Tried::Done(Ok(count), None) if count > 0 && copied + count < length => copied += count,
                // What was copied counts; the program asks for the rest.
                Tried::Done(Err(_), _) | Tried::Waits(..) if copied > 0 => break Tried::Done(Ok(0), None),
                last => break last,
            }
        };
        let answer = move |counted: Result<u64, Errno>| match counted {
            // At most MAX_COPY.
            Ok(count) => reply.written((copied + count) as u32),
            Err(error) => reply.error(errno(error)),
        };
        self.changes.go_on(how, last, move |state| piece(state, 0), answer);
    }
}
