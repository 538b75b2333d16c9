//! Operations that are more than one call of the file system, and the flags of the kernel's calls.

use fuser::{INodeNo, RenameFlags, Request};
use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use sietch_fs::FileSystem;
use sietch_fs::access::{Caller, Credentials};
use sietch_fs::file_system::{Allocation, AttributeChange, Handle, RenameMode, WriteAt};
use sietch_fs::inode::{Attributes, Kind};
use sietch_fs::limits::MAX_RECORD_DATA;

use crate::attributes::inode;
use crate::set_id;
use crate::state::State;

/// Most that one copy request copies before it answers; the program asks for the rest.
const MAX_COPY: u64 = 16 << 20;

/// The kernel has checked that the caller may do this.
pub(crate) fn permitted(request: &Request) -> Credentials {
    Credentials { uid: request.uid(), gid: request.gid(), groups: Vec::new(), is_privileged: true }
}

/// Who changes the content of `number`: without privilege where that clears bits.
pub(crate) fn content_changer<F: FileSystem>(
    state: &mut State<F>,
    request: &Request,
    number: INodeNo,
    is_privileged: bool,
) -> Result<Credentials, Errno> {
    if is_privileged {
        return Ok(permitted(request));
    }
    let shown = state.file_system.attributes(inode(number))?;
    let clears = set_id::has_bits(&shown);
    Ok(if clears { set_id::unprivileged(&shown, request) } else { permitted(request) })
}

/// Clears set-ID bits before `request` truncates the file.
pub(crate) fn clear_set_id<F: FileSystem>(
    state: &mut State<F>,
    caller: Caller<'_>,
    request: &Request,
    number: INodeNo,
) -> Result<(), Errno> {
    let shown = state.file_system.attributes(inode(number))?;
    let mode = set_id::mode_after(&shown, request);
    if mode != shown.mode {
        let change = AttributeChange { mode: Some(mode), ..AttributeChange::default() };
        state.file_system.set_attributes(caller, inode(number), None, &change)?;
    }
    Ok(())
}

/// Sets attributes, and clears set-ID bits where the file system takes the caller for privileged.
/// A change of nothing sets the time of change.
pub(crate) fn set_attributes<F: FileSystem>(
    state: &mut State<F>,
    caller: Caller<'_>,
    request: &Request,
    number: INodeNo,
    handle: Option<Handle>,
    mut change: AttributeChange,
) -> Result<Attributes, Errno> {
    let AttributeChange { mode, uid, gid, size, atime, mtime } = change;
    let nothing = uid.is_none() && gid.is_none() && size.is_none() && atime.is_none() && mtime.is_none();
    let changed = uid.is_some() || gid.is_some() || size.is_some();
    if mode.is_none() && (nothing || (changed && request.uid() != 0)) {
        let shown = state.file_system.attributes(inode(number))?;
        let left = set_id::mode_after(&shown, request);
        if nothing && shown.kind == Kind::Symlink {
            // The mode of a link cannot be set.
            change.uid = Some(shown.uid);
        } else if nothing || left != shown.mode {
            change.mode = Some(left);
        }
    }
    state.file_system.set_attributes(caller, inode(number), handle, &change)
}

/// Copies between two files; each piece is atomic. Returns the bytes copied, fewer at the end of
/// the source.
pub(crate) fn copy<F: FileSystem>(
    state: &mut State<F>,
    caller: Caller<'_>,
    (from, from_offset): (Handle, u64),
    (to, to_offset): (Handle, u64),
    length: u64,
) -> Result<u32, Errno> {
    let mut bytes = vec![0; length.min(MAX_RECORD_DATA as u64) as usize];
    let length = length.min(MAX_COPY);
    let mut copied = 0;
    while copied < length {
        let piece = (length - copied).min(bytes.len() as u64) as usize;
        let result = state.file_system.read(from, from_offset.saturating_add(copied), &mut bytes[..piece]);
        let result = result.and_then(|count| {
            if count > 0 {
                let at = WriteAt::Offset(to_offset.saturating_add(copied));
                state.file_system.write(caller, to, at, &bytes[..count])?;
            }
            Ok(count as u64)
        });
        match result {
            Ok(0) => break,
            Ok(count) => copied += count,
            // What was copied counts.
            Err(_) if copied > 0 => break,
            Err(error) => return Err(error),
        }
    }
    // At most MAX_COPY.
    Ok(copied as u32)
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
