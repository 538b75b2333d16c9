//! Operations that are more than one call of the file system, and the flags of the kernel's calls.

use fuser::{FopenFlags, INodeNo, OpenAccMode, OpenFlags, RenameFlags, Request};
use rustix::fs::{FallocateFlags, OFlags};
use rustix::io::Errno;
use sietch_fs::FileSystem;
use sietch_fs::access::{Caller, Credentials, WRITE};
use sietch_fs::file_system::{Allocation, AttributeChange, Handle, OpenMode, RenameMode, WriteAt};
use sietch_fs::inode::{Attributes, InodeNumber, Kind, STICKY};

use crate::attributes::{inode, now, stale};
use crate::sender::Sender;
use crate::set_id;
use crate::state::State;

/// Most that one copy request copies before it answers; the program asks for the rest.
pub(crate) const MAX_COPY: u64 = 16 << 20;
/// What it copies in one turn: a part of a millisecond.
pub(crate) const COPY_STEP: u64 = 128 << 10;

/// How a descriptor is used that is opened with `flags`.
pub(crate) fn open_mode(flags: OpenFlags) -> OpenMode {
    let (read, write) = match flags.acc_mode() {
        OpenAccMode::O_RDONLY => (true, false),
        OpenAccMode::O_WRONLY => (false, true),
        OpenAccMode::O_RDWR => (true, true),
    };
    OpenMode { read, write, truncate: has(flags, OFlags::TRUNC) }
}

pub(crate) fn has(flags: OpenFlags, flag: OFlags) -> bool {
    flags.0 & flag.bits() as i32 != 0
}

/// Whether a descriptor uses the kernel's cache. Through the cache, the kernel sends a write that
/// crosses the end of a page in two parts, and the append of another client can come between them.
/// A descriptor that can also read may be mapped, and keeps its cache.
pub(crate) fn cache_mode(flags: OpenFlags, appends_directly: bool) -> FopenFlags {
    let appends = has(flags, OFlags::APPEND) && matches!(flags.acc_mode(), OpenAccMode::O_WRONLY);
    if appends && appends_directly { FopenFlags::FOPEN_DIRECT_IO } else { FopenFlags::empty() }
}

/// The caller, with the privilege that root has.
pub(crate) fn own(request: &Request) -> Credentials {
    Credentials { is_privileged: request.uid() == 0, ..sender(request).permitted() }
}

pub(crate) fn sender(request: &Request) -> Sender {
    Sender { uid: request.uid(), gid: request.gid(), pid: request.pid() }
}

/// Who changes the content of `number`: without privilege where that clears bits.
pub(crate) fn content_changer<F: FileSystem>(
    state: &mut State<F>,
    sender: Sender,
    number: INodeNo,
    is_privileged: bool,
) -> Result<Credentials, Errno> {
    if is_privileged {
        return Ok(sender.permitted());
    }
    let shown = state.file_system.attributes(inode(number))?;
    let clears = set_id::has_bits(&shown);
    Ok(if clears { set_id::unprivileged(&shown, sender) } else { sender.permitted() })
}

/// Clears set-ID bits before `request` truncates the file.
pub(crate) fn clear_set_id<F: FileSystem>(
    state: &mut State<F>,
    caller: Caller<'_>,
    sender: Sender,
    inode: InodeNumber,
) -> Result<(), Errno> {
    let shown = state.file_system.attributes(inode)?;
    let mode = set_id::mode_after(&shown, sender);
    if mode != shown.mode {
        let change = AttributeChange { mode: Some(mode), ..AttributeChange::default() };
        state.file_system.set_attributes(caller, inode, None, &change)?;
    }
    Ok(())
}

/// Opens a file that a request would have created, if another client had not. The kernel checks no
/// permission of what a request creates: so this does, with the sender's own rights.
///
/// # Errors
/// `ESTALE`: the kernel shall look, because it is no file, or the sender may not open it as far as
/// can be seen from here (`fs.protected_regular` included).
pub(crate) fn open_existing<F: FileSystem>(
    state: &mut State<F>,
    sender: Sender,
    (directory, name): (InodeNumber, &[u8]),
    mode: OpenMode,
) -> Result<(Attributes, Handle), Errno> {
    let own = sender.own();
    let caller = Caller { credentials: &own, now: now() };
    let files = &mut state.file_system;
    let found = files.lookup(caller, directory, name).map_err(refused)?;
    let is_sticky = files.attributes(directory).map_err(stale)?.mode & STICKY != 0;
    if found.kind != Kind::File || is_sticky && found.uid != sender.uid {
        return Err(Errno::STALE);
    }
    if mode.truncate && sender.uid != 0 {
        let permitted = sender.permitted();
        files.check_access(caller, found.inode, WRITE).map_err(refused)?;
        clear_set_id(state, Caller { credentials: &permitted, ..caller }, sender, found.inode)?;
    }
    let handle = state.file_system.open(caller, found.inode, mode).map_err(refused)?;
    let handle = state.opened(handle);
    let shown = state.file_system.attributes(found.inode).and_then(|shown| state.retain(shown));
    if shown.is_err() {
        state.close(handle);
    }
    Ok((shown.map_err(stale)?, handle))
}

/// The error where the kernel shall look again.
fn refused(error: Errno) -> Errno {
    match error {
        Errno::ACCESS | Errno::PERM | Errno::NOENT => Errno::STALE,
        other => other,
    }
}

/// Sets attributes, and clears set-ID bits where the file system takes the caller for privileged.
/// A change of nothing sets the time of change.
pub(crate) fn set_attributes<F: FileSystem>(
    state: &mut State<F>,
    caller: Caller<'_>,
    sender: Sender,
    number: INodeNo,
    handle: Option<Handle>,
    mut change: AttributeChange,
) -> Result<Attributes, Errno> {
    let AttributeChange { mode, uid, gid, size, atime, mtime } = change;
    let nothing = uid.is_none() && gid.is_none() && size.is_none() && atime.is_none() && mtime.is_none();
    let changed = uid.is_some() || gid.is_some() || size.is_some();
    if mode.is_none() && (nothing || (changed && sender.uid != 0)) {
        let shown = state.file_system.attributes(inode(number))?;
        let left = set_id::mode_after(&shown, sender);
        if nothing && shown.kind == Kind::Symlink {
            // The mode of a link cannot be set.
            change.uid = Some(shown.uid);
        } else if nothing || left != shown.mode {
            change.mode = Some(left);
        }
    }
    state.file_system.set_attributes(caller, inode(number), handle, &change)
}

/// Copies one piece between two files, which is atomic. Returns the bytes copied, fewer at the end
/// of the source.
pub(crate) fn copy<F: FileSystem>(
    state: &mut State<F>,
    caller: Caller<'_>,
    (from, from_offset): (Handle, u64),
    (to, to_offset): (Handle, u64),
    bytes: &mut [u8],
) -> Result<usize, Errno> {
    let count = state.file_system.read(from, from_offset, bytes)?;
    if count > 0 {
        state.file_system.write(caller, to, WriteAt::Offset(to_offset), &bytes[..count])?;
    }
    Ok(count)
}

/// What `fallocate(2)` does with these flags, if it is supported.
pub(crate) fn allocation(mode: i32) -> Option<Allocation> {
    let mode = FallocateFlags::from_bits_retain(mode as u32);
    if mode == FallocateFlags::empty() {
        Some(Allocation::Reserve)
    } else if mode == FallocateFlags::KEEP_SIZE {
        Some(Allocation::ReserveKeepSize)
    } else if mode == FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE {
        Some(Allocation::Punch)
    } else if mode == FallocateFlags::ZERO_RANGE {
        Some(Allocation::Zero)
    } else if mode == FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE {
        Some(Allocation::ZeroKeepSize)
    } else {
        None
    }
}

/// What `renameat2(2)` does with these flags, if it is supported.
pub(crate) fn rename_mode(flags: RenameFlags) -> Option<RenameMode> {
    if flags.is_empty() {
        Some(RenameMode::Replace)
    } else if flags == RenameFlags::RENAME_NOREPLACE {
        Some(RenameMode::NoReplace)
    } else if flags == RenameFlags::RENAME_EXCHANGE {
        Some(RenameMode::Exchange)
    } else {
        None
    }
}
