//! Size, attributes, position and durability of a file.

use std::ffi::{c_int, c_uint};

use libc::off_t;
use sietch_fs::Leased;
use sietch_fs::access::{Caller, Credentials};
use sietch_fs::file_system::{AttributeChange, SyncPoint};
use sietch_fs::inode::{Attributes, InodeNumber, Timestamp};
use sietch_fs::limits::BLOCK;

use crate::files::claim::{Access, Done, Need, with_client};
use crate::files::position::{now, seek};
use crate::files::state::Syncing;
use crate::files::{mounts, state, words};
use crate::signal::{handlers, user_memory};
use crate::system::cancellation::Whole;
use crate::system::originals;
use crate::system::sys::{self, Errno, address, address_mut, signed};

/// What `fsync` writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// `fsync(2)`.
    All,
    /// `fdatasync(2)`.
    Data,
}

fn attributes(client: &mut (dyn Leased + Send), inode: InodeNumber) -> Result<Attributes, Errno> {
    client.attributes(inode).map_err(|errno| errno.raw_os_error())
}

/// `fsync(2)` and `fdatasync(2)`. While this process has the lease, all that was written is in the
/// log of its client, or durable: a lease passes when it is. Else it is the mount's, and this
/// process may have written by another descriptor what is in its log still.
pub fn fsync(fd: c_int, extent: Extent) -> c_int {
    if words::get(fd) != 0
        && let Some(result) = sync_by_client(fd)
    {
        return sys::to_c_int(result.map(|()| 0));
    }
    // In a handler nothing can be taken from the heap. The mount waits for what this process has.
    if !handlers::is_running()
        && state::stores() != 0
        && mounts::identify(fd).is_some()
        && let Err(errno) = sync_clients()
    {
        return sys::to_c_int(Err(errno));
    }
    // SAFETY: touches no memory.
    unsafe {
        match extent {
            Extent::All => originals::fsync(fd),
            Extent::Data => originals::fdatasync(fd),
        }
    }
}

/// `None`: it is the kernel's.
fn sync_by_client(fd: c_int) -> Option<Result<(), Errno>> {
    let _whole = Whole::begin();
    let mut point = SyncPoint::default();
    loop {
        let begun = with_client(fd, Need::NONE, |call| {
            attributes(call.client, call.inode)?;
            let begun = call.client.begin_sync(&mut point).map_err(|errno| errno.raw_os_error())?;
            Ok(begun.map(Syncing::new))
        });
        match begun {
            Done::Here(Ok(None)) => return Some(Ok(())),
            // Other threads use the client meanwhile.
            Done::Here(Ok(Some(pending))) => {
                if pending.wait() {
                    return Some(Ok(()));
                }
            }
            Done::Here(Err(errno)) => return Some(Err(errno)),
            Done::Kernel(_) => return None,
        }
    }
}

/// Makes durable what every client of this process has.
fn sync_clients() -> Result<(), Errno> {
    let _whole = Whole::begin();
    for at in 0..state::stores() {
        let mut point = SyncPoint::default();
        loop {
            let begun = state::with_store(at, |client| {
                let begun = client.begin_sync(&mut point).map_err(|errno| errno.raw_os_error())?;
                Ok(begun.map(Syncing::new))
            });
            let Some(pending) = begun.transpose()?.flatten() else { break };
            if pending.wait() {
                break;
            }
        }
    }
    Ok(())
}

/// `sync(2)`.
pub fn sync() {
    // It cannot fail.
    let _ = sync_clients();
    // SAFETY: touches no memory.
    let _ = unsafe { sys::syscall(libc::SYS_sync, [0; 6]) };
    let before = sys::errno();
    mounts::sync_all();
    sys::set_errno(before);
}

/// `syncfs(2)`.
pub fn syncfs(fd: c_int) -> c_int {
    let synced = sync_clients();
    // SAFETY: touches no memory.
    let kernel = unsafe { sys::syscall(libc::SYS_syncfs, [signed(fd), 0, 0, 0, 0, 0]) };
    sys::to_c_int(kernel.and_then(|_| mounts::sync_one(fd)).and(synced).map(|()| 0))
}

/// `ftruncate(2)`.
pub fn ftruncate(fd: c_int, length: off_t) -> c_int {
    // SAFETY: touches no memory.
    let kernel = || unsafe { originals::ftruncate(fd, length) };
    let Some(size) = u64::try_from(length).ok().filter(|_| words::get(fd) != 0) else { return kernel() };
    let credentials = Credentials::default();
    let done = with_client(fd, Need { access: Access::Write, at_position: false }, |call| {
        let caller = Caller { credentials: &credentials, now: now() };
        let change = AttributeChange { size: Some(size), ..AttributeChange::default() };
        let changed = call.client.set_attributes(caller, call.inode, Some(call.handle), &change);
        changed.map(|_| call.syncs).map_err(|errno| errno.raw_os_error())
    });
    match done {
        Done::Here(Ok(true)) => fsync(fd, Extent::All),
        Done::Here(outcome) => sys::to_c_int(outcome.map(|_| 0)),
        Done::Kernel(_) => kernel(),
    }
}

/// `lseek(2)`. The client knows the end; the position is the kernel's.
pub fn lseek(fd: c_int, offset: off_t, whence: c_int) -> off_t {
    // SAFETY: touches no memory.
    let kernel = || unsafe { originals::lseek(fd, offset, whence) };
    if words::get(fd) == 0 {
        return kernel();
    }
    if matches!(whence, libc::SEEK_SET | libc::SEEK_CUR) {
        // Not between the two ends of a read or write of another thread. Where the kernel may do
        // one, it has a lock of its own, and may wait with it for this process.
        let own = state::with(|state| {
            let file = state.of(fd).and_then(|number| state.file(number));
            file.is_some_and(|file| file.has_position()).then(|| seek(fd, offset, whence))
        });
        return own.map_or_else(kernel, |outcome| sys::to_c(outcome) as off_t);
    }
    if whence != libc::SEEK_END {
        return kernel();
    }
    let done = with_client(fd, Need { access: Access::None, at_position: true }, |call| {
        let size = attributes(call.client, call.inode)?.size;
        let end = off_t::try_from(size).ok().and_then(|size| size.checked_add(offset));
        seek(fd, end.ok_or(libc::EINVAL)?, libc::SEEK_SET)
    });
    match done {
        Done::Here(outcome) => sys::to_c(outcome) as off_t,
        Done::Kernel(_call) => kernel(),
    }
}

/// `fstat(2)`.
///
/// # Safety
/// As `fstat(2)`.
pub unsafe fn fstat(fd: c_int, to: *mut libc::stat) -> c_int {
    if words::get(fd) != 0
        && let Done::Here(found) =
            with_client(fd, Need::NONE, |call| Ok((call.device, attributes(call.client, call.inode)?)))
    {
        let written = found.and_then(|(device, found)| {
            // SAFETY: the caller upholds this function's contract.
            unsafe { user_memory::write(to, status_of(device, &found)) }
        });
        return sys::to_c_int(written.map(|()| 0));
    }
    // SAFETY: the caller upholds this function's contract.
    sys::to_c_int(unsafe { sys::syscall(libc::SYS_fstat, [signed(fd), address_mut(to), 0, 0, 0, 0]) })
}

/// As the mount returns them.
fn status_of(device: u64, found: &Attributes) -> libc::stat {
    // SAFETY: zeros are a value of it.
    let mut status: libc::stat = unsafe { std::mem::zeroed() };
    status.st_dev = device;
    status.st_ino = found.inode.0;
    status.st_mode = libc::S_IFREG | u32::from(found.mode);
    status.st_nlink = found.links.into();
    (status.st_uid, status.st_gid) = (found.uid, found.gid);
    status.st_size = found.size.cast_signed();
    status.st_blksize = BLOCK as libc::blksize_t;
    status.st_blocks = found.blocks.cast_signed();
    let part = |time: Timestamp| (time.seconds, i64::from(time.nanoseconds));
    (status.st_atime, status.st_atime_nsec) = part(found.atime);
    (status.st_mtime, status.st_mtime_nsec) = part(found.mtime);
    (status.st_ctime, status.st_ctime_nsec) = part(found.ctime);
    status
}

/// `setrlimit(2)` of this process (0), and `prlimit(2)`.
///
/// # Safety
/// As `prlimit(2)`.
pub unsafe fn setrlimit(
    process: libc::pid_t,
    resource: c_uint,
    limit: *const libc::rlimit,
    old: *mut libc::rlimit,
) -> c_int {
    let arguments = [signed(process), resource as usize, address(limit), address_mut(old), 0, 0];
    // SAFETY: the caller upholds this function's contract.
    let outcome = unsafe { sys::syscall(libc::SYS_prlimit64, arguments) };
    if !limit.is_null() && mounts::are_any() {
        mounts::note_limit();
    }
    sys::to_c_int(outcome)
}
