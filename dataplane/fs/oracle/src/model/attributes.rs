//! Changes of attributes, and what clears set-user-ID and set-group-ID.

use rustix::io::Errno;
use sietch_fs::access::{Caller, Credentials, WRITE};
use sietch_fs::file_system::{AttributeChange, Handle, NewTime};
use sietch_fs::inode::{Attributes, InodeNumber, Kind, MODE_BITS, SET_GID, SET_UID, Timestamp};
use sietch_fs::limits::MAX_FILE;

use super::table::{Content, Node, Table};

/// The attribute with the capabilities of a program, which a change of the file takes away.
pub(super) const CAPABILITIES: &[u8] = b"security.capability";

/// Whether a change takes set-group-ID away. Without execution by the group the bit means
/// mandatory locks, and stays if the user is in the group.
fn drops_set_gid(credentials: &Credentials, inode: &Attributes) -> bool {
    let in_group = credentials.is_privileged || credentials.is_member(inode.gid);
    inode.mode & SET_GID != 0 && (inode.mode & 0o010 != 0 || !in_group)
}

/// The mode after the content of a file was changed.
fn mode_after_write(credentials: &Credentials, inode: &Attributes) -> u16 {
    if credentials.is_privileged || inode.kind != Kind::File {
        return inode.mode;
    }
    let set_gid = if drops_set_gid(credentials, inode) { SET_GID } else { 0 };
    inode.mode & !SET_UID & !set_gid
}

/// The mode after `chown`, which clears the bits for root also.
fn mode_after_chown(credentials: &Credentials, inode: &Attributes) -> u16 {
    if inode.kind == Kind::Directory {
        return inode.mode;
    }
    let set_gid = if drops_set_gid(credentials, inode) { SET_GID } else { 0 };
    inode.mode & !SET_UID & !set_gid
}

/// The content of a file changes: the times, the mode, the capabilities.
pub(super) fn modify(node: &mut Node, caller: Caller<'_>) {
    node.attributes.mode = mode_after_write(caller.credentials, &node.attributes);
    node.attributes.mtime = caller.now;
    node.attributes.ctime = caller.now;
    node.xattrs.remove(CAPABILITIES);
}

/// Sets the size; what is behind it is gone.
pub(super) fn resize(node: &mut Node, size: u64) {
    if let Content::File(data) = &mut node.content {
        data.truncate(size);
        node.attributes.size = size;
    }
}

fn check_size(
    table: &Table,
    caller: Caller<'_>,
    inode: InodeNumber,
    handle: Option<Handle>,
    size: u64,
) -> Result<(), Errno> {
    let attributes = &table.node(inode)?.attributes;
    match handle {
        Some(handle) => {
            let opened = table.opened(handle)?;
            if opened.inode != inode {
                return Err(Errno::BADF);
            }
            if attributes.kind != Kind::File || !opened.write {
                return Err(Errno::INVAL);
            }
        }
        None => {
            match attributes.kind {
                Kind::File => {}
                Kind::Directory => return Err(Errno::ISDIR),
                _ => return Err(Errno::INVAL),
            }
            caller.credentials.check(attributes, WRITE)?;
        }
    }
    if size > MAX_FILE { Err(Errno::FBIG) } else { Ok(()) }
}

fn check_owner(credentials: &Credentials, inode: &Attributes, change: &AttributeChange) -> Result<(), Errno> {
    let is_owner = credentials.uid == inode.uid;
    let uid = change.uid.is_none_or(|uid| is_owner && uid == inode.uid);
    let gid = change.gid.is_none_or(|gid| is_owner && (gid == inode.gid || credentials.is_member(gid)));
    if credentials.is_privileged || uid && gid { Ok(()) } else { Err(Errno::PERM) }
}

fn check_times(credentials: &Credentials, inode: &Attributes, change: &AttributeChange) -> Result<(), Errno> {
    for time in [change.atime, change.mtime] {
        if matches!(time, Some(NewTime::At(Timestamp { nanoseconds: 1_000_000_000.., .. }))) {
            return Err(Errno::INVAL);
        }
    }
    match (change.atime, change.mtime) {
        (None, None) => Ok(()),
        // What ftruncate sets on the way.
        (None, Some(NewTime::Now)) if change.size.is_some() => Ok(()),
        (Some(NewTime::Now), Some(NewTime::Now)) if !credentials.owns(inode) => {
            credentials.check(inode, WRITE)
        }
        _ if credentials.owns(inode) => Ok(()),
        _ => Err(Errno::PERM),
    }
}

fn time(now: Timestamp, new: NewTime) -> Timestamp {
    match new {
        NewTime::Now => now,
        NewTime::At(time) => time,
    }
}

pub(super) fn set(
    table: &mut Table,
    caller: Caller<'_>,
    inode: InodeNumber,
    handle: Option<Handle>,
    change: &AttributeChange,
) -> Result<Attributes, Errno> {
    let old = table.node(inode)?.attributes;
    let credentials = caller.credentials;
    if let Some(size) = change.size {
        check_size(table, caller, inode, handle, size)?;
    }
    if change.mode.is_some() && old.kind == Kind::Symlink {
        return Err(Errno::OPNOTSUPP);
    }
    check_owner(credentials, &old, change)?;
    if change.mode.is_some() && !credentials.owns(&old) {
        return Err(Errno::PERM);
    }
    check_times(credentials, &old, change)?;

    let node = table.node_mut(inode)?;
    let changes_owner = change.uid.is_some() || change.gid.is_some();
    let changes_time = change.atime.is_some() || change.mtime.is_some();
    if changes_owner || changes_time || change.mode.is_some() {
        node.attributes.ctime = caller.now;
    }
    if changes_owner {
        node.attributes.mode = mode_after_chown(credentials, &old);
        if old.kind != Kind::Directory {
            node.xattrs.remove(CAPABILITIES);
        }
    }
    node.attributes.uid = change.uid.unwrap_or(old.uid);
    node.attributes.gid = change.gid.unwrap_or(old.gid);
    if let Some(size) = change.size {
        // Also where the file has this size already, as POSIX says and ext4 does.
        modify(node, caller);
        resize(node, size);
    }
    if let Some(mode) = change.mode {
        node.attributes.mode = credentials.allowed_mode(node.attributes.gid, mode & MODE_BITS);
    }
    node.attributes.atime = change.atime.map_or(old.atime, |new| time(caller.now, new));
    if let Some(new) = change.mtime {
        node.attributes.mtime = time(caller.now, new);
    }
    Ok(node.reported())
}
