//! The operations of a file system, by inode: what every front end calls.
//!
//! A front end resolves paths, holds descriptors and applies the umask. The file system checks
//! permissions, with the errno that Linux returns, and each operation that changes something is
//! atomic.
//!
//! An inode stays as long as it has a name, an open [`Handle`] or a reference
//! ([`FileSystem::retain`]).

use std::sync::Arc;

use rustix::io::Errno;

use crate::access::Caller;
pub use crate::ascent::Ways;
use crate::client::places::Place;
use crate::client::question::Question;
use crate::inode::{Attributes, InodeNumber, Kind, Timestamp};
use crate::lease::Mode;
use crate::name::Cookie;

/// An inode that an operation creates.
#[derive(Clone, Copy, Debug)]
pub struct NewInode<'a> {
    /// What it is.
    pub kind: Kind,
    /// Its mode, after the umask. Ignored for a symbolic link, which has 0777.
    pub mode: u16,
    /// Device number of a device.
    pub device: u64,
    /// Target of a symbolic link.
    pub target: &'a [u8],
}

/// A time that an operation sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NewTime {
    /// The caller's now (`UTIME_NOW`).
    Now,
    /// A given one.
    At(Timestamp),
}

/// What [`FileSystem::set_attributes`] changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AttributeChange {
    /// `chmod`.
    pub mode: Option<u16>,
    /// `chown`, the owner.
    pub uid: Option<u32>,
    /// `chown`, the group.
    pub gid: Option<u32>,
    /// `truncate`.
    pub size: Option<u64>,
    /// `utimensat`, last access.
    pub atime: Option<NewTime>,
    /// `utimensat`, last modification.
    pub mtime: Option<NewTime>,
}

/// What `rename` does where the new name exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenameMode {
    /// Replaces it.
    Replace,
    /// Refuses (`RENAME_NOREPLACE`).
    NoReplace,
    /// Exchanges the two (`RENAME_EXCHANGE`).
    Exchange,
}

/// What a descriptor may be used for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenMode {
    /// Reading.
    pub read: bool,
    /// Writing.
    pub write: bool,
    /// The content is discarded on the way (`O_TRUNC`).
    pub truncate: bool,
}

/// An open file or directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Handle(pub u64);

/// Where a write goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteAt {
    /// At this byte.
    Offset(u64),
    /// At the end of the file (`O_APPEND`).
    End,
}

/// What `fallocate(2)` does with a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allocation {
    /// Reserves room; the file grows.
    Reserve,
    /// Reserves room; the file keeps its size (`FALLOC_FL_KEEP_SIZE`).
    ReserveKeepSize,
    /// Frees what is there; it reads as zeros (`FALLOC_FL_PUNCH_HOLE`).
    Punch,
    /// Reads as zeros, and has room; the file grows (`FALLOC_FL_ZERO_RANGE`).
    Zero,
    /// Reads as zeros, and has room; the file keeps its size.
    ZeroKeepSize,
}

/// What `lseek(2)` looks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seek {
    /// `SEEK_DATA`.
    Data,
    /// `SEEK_HOLE`.
    Hole,
}

/// Where a step of a search has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sought {
    /// It is here.
    Found(u64),
    /// It is not before this byte: the next step goes on from there.
    From(u64),
}

/// Whether `setxattr(2)` creates, replaces or does either.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XattrMode {
    /// Either.
    Set,
    /// `XATTR_CREATE`.
    Create,
    /// `XATTR_REPLACE`.
    Replace,
}

/// One entry of a directory, without `.` and `..`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectoryEntry {
    /// Its place: listing continues behind it.
    pub cookie: Cookie,
    /// Its name.
    pub name: Box<[u8]>,
    /// The inode that it names.
    pub inode: InodeNumber,
    /// What that is.
    pub kind: Kind,
}

/// What `statfs(2)` reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Bytes in a block.
    pub block_bytes: u32,
    /// Blocks in all.
    pub blocks: u64,
    /// Blocks that are free.
    pub free: u64,
    /// Inodes in use.
    pub inodes: u64,
}

/// What a sync makes durable: everything that was done before [`FileSystem::begin_sync`] got this
/// value first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SyncPoint(pub(crate) Option<u64>);

/// A sync that waits for a medium.
pub trait PendingSync: Send {
    /// Waits, while others use the file system; whether everything is durable then. If not, the
    /// file system says what is next.
    fn wait(&mut self) -> bool;
}

/// What an operation waits for, or its answer: see [`FileSystem::begin_try`].
pub trait Pending: Send {
    /// Waits, while others use the file system; not for longer than a medium takes, or a second.
    fn wait(&mut self);
}

/// What the tries of an operation have waited for, with the file system's own account of it.
///
/// An operation that is not tried again drops it.
#[derive(Debug, Default)]
pub struct Waited {
    /// Whose operation it is.
    pub(crate) user: Option<u32>,
    /// For room in the pool.
    pub(crate) room: Awaited,
    /// For what its user has removed.
    pub(crate) quota: Awaited,
    /// For the usage that it shows.
    pub(crate) shown: Awaited,
    /// What it asked the service for, and the answer.
    pub(crate) question: Option<Arc<Question>>,
    /// Where it waits for a lease.
    pub(crate) place: Option<Place>,
    /// It waits for what the service says, not for a commit.
    pub(crate) is_for_message: bool,
}

impl Waited {
    /// Of an operation of this user: users share what there is for those that wait. `None`: of the
    /// front end itself.
    #[must_use]
    pub fn of_user(self, user: Option<u32>) -> Self {
        Self { user, ..self }
    }

    /// For the limit of a user, of a file system that keeps no further account.
    pub fn for_limit() -> Self {
        let quota = Awaited { end: Some(0), commits: 0 };
        Self { quota, ..Self::default() }
    }

    /// For a lease, of a file system that keeps no further account.
    pub fn for_lease() -> Self {
        Self { is_for_message: true, ..Self::default() }
    }

    /// Whether it waits for what a service says: for a lease of another client, or the answer
    /// whether there is room.
    pub fn is_for_message(&self) -> bool {
        self.is_for_message
    }

    /// The error of the operation, if it is not tried again until what it waited for is there;
    /// `None`: it waits for room in the log, or for what a service says, which always comes.
    pub fn refusal(&self) -> Option<Errno> {
        if self.is_for_message {
            None
        } else if self.quota.end.is_some() {
            Some(Errno::DQUOT)
        } else {
            self.room.end.map(|_| Errno::NOSPC)
        }
    }
}

/// Commits that were waited for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Awaited {
    /// Where the log ended when the first wait began.
    pub(crate) end: Option<u64>,
    /// Commits since all before that is digested.
    pub(crate) commits: u32,
}

/// A sync of a thread that shares a file system with others: `begin` calls
/// [`FileSystem::begin_sync`] and has the file system for as long as that call.
///
/// # Errors
/// Those of `begin`.
pub fn sync_shared(
    begin: impl FnMut(&mut SyncPoint) -> Result<Option<Box<dyn PendingSync>>, Errno>,
) -> Result<(), Errno> {
    sync_to(SyncPoint::default(), begin)
}

/// As [`sync_shared`], for what was done before `point`.
///
/// # Errors
/// Those of `begin`.
pub fn sync_to(
    mut point: SyncPoint,
    mut begin: impl FnMut(&mut SyncPoint) -> Result<Option<Box<dyn PendingSync>>, Errno>,
) -> Result<(), Errno> {
    while let Some(mut pending) = begin(&mut point)? {
        if pending.wait() {
            break;
        }
    }
    Ok(())
}

/// Errors are those that the man pages of section 2 list for the call. `EIO` says that a medium
/// failed, or that its data did not have their checksum.
pub trait FileSystem {
    /// The inode that `name` has in `directory`.
    ///
    /// # Errors
    /// `ENOENT`, `ENOTDIR`, `EACCES` (no search permission), `ENAMETOOLONG`.
    fn lookup(
        &mut self,
        caller: Caller<'_>,
        directory: InodeNumber,
        name: &[u8],
    ) -> Result<Attributes, Errno>;

    /// The directory that `..` of `directory` names; the root's is the root.
    ///
    /// # Errors
    /// `ENOTDIR`, `ENOENT`: no such inode.
    fn parent(&mut self, directory: InodeNumber) -> Result<InodeNumber, Errno>;

    /// What `stat` reports.
    ///
    /// # Errors
    /// `ENOENT`: no such inode.
    fn attributes(&mut self, inode: InodeNumber) -> Result<Attributes, Errno>;

    /// `chmod`, `chown`, `truncate` and `utimensat`, together atomic. With a handle that is open
    /// for writing, the size is changed without regard to permissions (`ftruncate`).
    ///
    /// # Errors
    /// `EPERM`, `EACCES`, `EISDIR`, `EINVAL`, `EFBIG`, `ENOSPC`.
    fn set_attributes(
        &mut self,
        caller: Caller<'_>,
        inode: InodeNumber,
        handle: Option<Handle>,
        change: &AttributeChange,
    ) -> Result<Attributes, Errno>;

    /// The target of a symbolic link.
    ///
    /// # Errors
    /// `EINVAL`: it is not one.
    fn read_link(&mut self, inode: InodeNumber) -> Result<Vec<u8>, Errno>;

    /// Creates an inode with a name: `open` with `O_CREAT`, `mkdir`, `symlink`, `mknod`.
    ///
    /// # Errors
    /// `EEXIST`, `ENOENT` (the directory was removed), `EACCES`, `EPERM`, `ENAMETOOLONG`, `ENOSPC`.
    fn create(
        &mut self,
        caller: Caller<'_>,
        directory: InodeNumber,
        name: &[u8],
        new: &NewInode<'_>,
    ) -> Result<Attributes, Errno>;

    /// Creates a file without a name (`O_TMPFILE`) and opens it for reading and writing.
    ///
    /// # Errors
    /// `EACCES`, `ENOSPC`.
    fn create_unnamed(
        &mut self,
        caller: Caller<'_>,
        directory: InodeNumber,
        mode: u16,
    ) -> Result<(Attributes, Handle), Errno>;

    /// Gives an inode a further name.
    ///
    /// # Errors
    /// `EPERM` (a directory), `EEXIST`, `ENOENT` (it has no name any more), `EMLINK`, `EACCES`.
    fn link(
        &mut self,
        caller: Caller<'_>,
        inode: InodeNumber,
        directory: InodeNumber,
        name: &[u8],
    ) -> Result<Attributes, Errno>;

    /// Removes a name that is not a directory's.
    ///
    /// # Errors
    /// `ENOENT`, `EISDIR`, `EACCES`, `EPERM` (sticky directory).
    fn unlink(&mut self, caller: Caller<'_>, directory: InodeNumber, name: &[u8]) -> Result<(), Errno>;

    /// Removes an empty directory.
    ///
    /// # Errors
    /// `ENOENT`, `ENOTDIR`, `ENOTEMPTY`, `EACCES`, `EPERM`.
    fn remove_directory(
        &mut self,
        caller: Caller<'_>,
        directory: InodeNumber,
        name: &[u8],
    ) -> Result<(), Errno>;

    /// Renames an entry, within a directory or across two.
    ///
    /// # Errors
    /// `ENOENT`, `EEXIST`, `EISDIR`, `ENOTDIR`, `ENOTEMPTY`, `EINVAL` (a directory into itself),
    /// `EACCES`, `EPERM`.
    fn rename(
        &mut self,
        caller: Caller<'_>,
        from: (InodeNumber, &[u8]),
        to: (InodeNumber, &[u8]),
        mode: RenameMode,
    ) -> Result<(), Errno>;

    /// A step of [`FileSystem::rename`], for front ends whose users share one: a directory may be
    /// many directories deep. `false`: it is called again, with the same `ways`.
    ///
    /// # Errors
    /// As there.
    fn rename_step(
        &mut self,
        caller: Caller<'_>,
        from: (InodeNumber, &[u8]),
        to: (InodeNumber, &[u8]),
        mode: RenameMode,
        ways: &mut Ways,
    ) -> Result<bool, Errno> {
        let _ = ways;
        self.rename(caller, from, to, mode).map(|()| true)
    }

    /// Opens a file or a directory.
    ///
    /// # Errors
    /// `EACCES`, `EISDIR` (a directory for writing), `ELOOP` (a symbolic link).
    fn open(&mut self, caller: Caller<'_>, inode: InodeNumber, mode: OpenMode) -> Result<Handle, Errno>;

    /// Opens an inode that the caller has just created, whatever its mode permits.
    ///
    /// # Errors
    /// `ENOENT`.
    fn open_created(&mut self, inode: InodeNumber, mode: OpenMode) -> Result<Handle, Errno>;

    /// Closes a handle; an unknown one is ignored.
    fn close(&mut self, handle: Handle);

    /// Keeps an inode although its last name goes.
    ///
    /// # Errors
    /// `ENOENT`.
    fn retain(&mut self, inode: InodeNumber) -> Result<(), Errno>;

    /// Takes `count` references back.
    fn release(&mut self, inode: InodeNumber, count: u64);

    /// As [`FileSystem::retain`], for a kernel that has the inode's number. Where another client of
    /// a shared file system removes the last name, this keeps nothing: later operations return
    /// `ENOENT`.
    ///
    /// # Errors
    /// `ENOENT`.
    fn know(&mut self, inode: InodeNumber) -> Result<(), Errno> {
        self.retain(inode)
    }

    /// Takes `count` calls of [`FileSystem::know`] back.
    fn forget(&mut self, inode: InodeNumber, count: u64) {
        self.release(inode, count);
    }

    /// Waits until this client has a lease on an inode. Another may take it back at any time.
    ///
    /// # Errors
    /// `EIO`: the client was ended.
    fn hold(&mut self, inode: InodeNumber, mode: Mode) -> Result<(), Errno> {
        let _ = (inode, mode);
        Ok(())
    }

    /// Gives the lease on an inode back. Another client that wants it soon does not wait for an
    /// answer of this one. A later operation of this client's gets a lease again.
    fn give_up(&mut self, inode: InodeNumber) {
        let _ = inode;
    }

    /// Reads at an offset: the bytes read, fewer than requested only at the end of the file.
    ///
    /// # Errors
    /// `EBADF` (no handle, or not open for reading), `EISDIR`, `EIO`.
    fn read(&mut self, handle: Handle, offset: u64, bytes: &mut [u8]) -> Result<usize, Errno>;

    /// Writes all of `bytes`, and returns where they begin.
    ///
    /// # Errors
    /// `EBADF`, `EFBIG`, `ENOSPC`. On `ENOSPC` and `EFBIG`, nothing was written.
    fn write(&mut self, caller: Caller<'_>, handle: Handle, at: WriteAt, bytes: &[u8]) -> Result<u64, Errno>;

    /// `fallocate(2)`.
    ///
    /// # Errors
    /// `EBADF`, `EINVAL` (no length), `EFBIG`, `ENOSPC`, `ENODEV` (not a file).
    fn allocate(
        &mut self,
        caller: Caller<'_>,
        handle: Handle,
        range: std::ops::Range<u64>,
        allocation: Allocation,
    ) -> Result<(), Errno>;

    /// The next data, or the next hole, from `offset` on.
    ///
    /// # Errors
    /// `EBADF`, `ENXIO` (at or behind the end).
    fn seek(&mut self, handle: Handle, offset: u64, what: Seek) -> Result<u64, Errno>;

    /// A step of [`FileSystem::seek`], for front ends whose users share one: a file may have
    /// millions of extents.
    ///
    /// # Errors
    /// As there.
    fn seek_step(&mut self, handle: Handle, offset: u64, what: Seek) -> Result<Sought, Errno> {
        self.seek(handle, offset, what).map(Sought::Found)
    }

    /// Returns when everything that was done before survives what the medium promises.
    ///
    /// # Errors
    /// `EIO`.
    fn sync(&mut self) -> Result<(), Errno>;

    /// The part of [`FileSystem::sync`] that needs the file system, for front ends whose threads
    /// share one: see [`sync_shared`]. `None`: everything before `point` is durable.
    ///
    /// # Errors
    /// `EIO`.
    fn begin_sync(&mut self, point: &mut SyncPoint) -> Result<Option<Box<dyn PendingSync>>, Errno> {
        let _ = point;
        self.sync().map(|()| None)
    }

    /// What was done until now, for a sync later. A file system that does not tell means everything
    /// that was done until that sync.
    fn sync_point(&mut self) -> SyncPoint {
        SyncPoint::default()
    }

    /// For front ends whose users share one: until [`FileSystem::end_try`] no operation waits for
    /// the digest or for another client. One that lacks room or a lease does nothing, and returns
    /// `EAGAIN`. `waited` is what `end_try` returned for the last try of the same operation.
    ///
    /// A file system that ignores this waits within its operations.
    fn begin_try(&mut self, waited: Waited) {
        let _ = waited;
    }

    /// Ends a try. The caller waits for what is returned without the file system: if the operation
    /// returned `EAGAIN`, before the next try; otherwise before the answer, because the digest does
    /// not keep up with the log. In the latter case it waits for one operation after the other. A
    /// caller that passed over the `EAGAIN` of an operation does not wait.
    fn end_try(&mut self) -> Option<(Waited, Box<dyn Pending>)> {
        None
    }

    /// Lists entries behind `after` in the order of their cookies, until `take` returns `false`
    /// (that entry was not taken).
    ///
    /// # Errors
    /// `EBADF`, `ENOTDIR`, `EIO`.
    fn read_directory(
        &mut self,
        handle: Handle,
        after: Cookie,
        take: &mut dyn FnMut(DirectoryEntry) -> bool,
    ) -> Result<(), Errno>;

    /// A step of [`FileSystem::read_directory`], for front ends whose users share one: where many
    /// names were removed, it returns behind which cookie the next step goes on.
    ///
    /// # Errors
    /// As there.
    fn read_directory_step(
        &mut self,
        handle: Handle,
        after: Cookie,
        take: &mut dyn FnMut(DirectoryEntry) -> bool,
    ) -> Result<Option<Cookie>, Errno> {
        self.read_directory(handle, after, take).map(|()| None)
    }

    /// Checks permissions, a sum of [`crate::access::READ`] and its siblings (`access(2)`).
    ///
    /// # Errors
    /// `EACCES`.
    fn check_access(&mut self, caller: Caller<'_>, inode: InodeNumber, wanted: u8) -> Result<(), Errno>;

    /// The value of an extended attribute.
    ///
    /// # Errors
    /// `ENODATA`, `EACCES`, `EPERM`, `EOPNOTSUPP` (an unknown namespace).
    fn xattr(&mut self, caller: Caller<'_>, inode: InodeNumber, name: &[u8]) -> Result<Vec<u8>, Errno>;

    /// The names of the extended attributes that the caller may see, in any order.
    ///
    /// # Errors
    /// `ENOENT`.
    fn xattr_names(&mut self, caller: Caller<'_>, inode: InodeNumber) -> Result<Vec<Box<[u8]>>, Errno>;

    /// A step of [`FileSystem::xattr_names`], for front ends whose users share one: it passes some
    /// names on, from [`Cookie`] 0 on, and returns where it goes on.
    ///
    /// # Errors
    /// As there.
    fn xattr_names_step(
        &mut self,
        caller: Caller<'_>,
        inode: InodeNumber,
        from: Cookie,
        take: &mut dyn FnMut(Box<[u8]>),
    ) -> Result<Option<Cookie>, Errno> {
        let _ = from;
        self.xattr_names(caller, inode)?.into_iter().for_each(take);
        Ok(None)
    }

    /// Sets an extended attribute.
    ///
    /// # Errors
    /// `EEXIST`, `ENODATA`, `E2BIG`, `EACCES`, `EPERM`, `EOPNOTSUPP`, `ERANGE` (the name),
    /// `ENOSPC`.
    fn set_xattr(
        &mut self,
        caller: Caller<'_>,
        inode: InodeNumber,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<(), Errno>;

    /// A step of [`FileSystem::set_xattr`], for front ends whose users share one: the names that
    /// the inode has are counted. `false`: it is called again.
    ///
    /// # Errors
    /// As there.
    fn set_xattr_step(
        &mut self,
        caller: Caller<'_>,
        inode: InodeNumber,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<bool, Errno> {
        self.set_xattr(caller, inode, name, value, mode).map(|()| true)
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// As of [`FileSystem::set_xattr`].
    fn remove_xattr(&mut self, caller: Caller<'_>, inode: InodeNumber, name: &[u8]) -> Result<(), Errno>;

    /// What is in use.
    fn usage(&mut self) -> Usage;
}

/// A file system that shares inodes with other clients by leases, for a front end that has another
/// way to do an operation.
pub trait Leased: FileSystem {
    /// Whether operations wait for leases, which is so at first. If not, an operation that lacks
    /// one does nothing and returns `EAGAIN`.
    fn set_waits(&mut self, waits: bool);

    /// Whether anything can still be done. If not, every operation returns `EIO`.
    fn is_going(&self) -> bool;

    /// Takes notice of what the service says. To be called where no operation runs, again while it
    /// returns `true`: then there is more to do, for which no operation has to wait.
    fn take_notice(&mut self) -> bool;
}
