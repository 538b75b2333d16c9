//! Operations on names: create, link, unlink, rename. The checks are in the kernel's order.

use rustix::io::Errno;
use sietch_fs::access::{Caller, WRITE};
use sietch_fs::file_system::{Handle, NewInode, OpenMode, RenameMode};
use sietch_fs::inode::{Attributes, InodeNumber, Kind, MODE_BITS, SET_GID, STICKY};
use sietch_fs::limits::{MAX_LINKS, MAX_TARGET};

use super::data::Data;
use super::table::{Content, Directory, Node, Table, is_dot};

/// Set-group-ID, and execution by the group: the sum which makes the bit mean what it says.
const EFFECTIVE_SET_GID: u16 = SET_GID | 0o010;

/// Mode and group of an inode that is created in `directory`.
fn inherit(caller: Caller<'_>, directory: &Attributes, kind: Kind, mode: u16) -> (u16, u32) {
    let inherits = directory.mode & SET_GID != 0;
    let gid = if inherits { directory.gid } else { caller.credentials.gid };
    let mode = match kind {
        Kind::Symlink => 0o777,
        Kind::Directory => mode & (0o777 | STICKY) | directory.mode & SET_GID,
        _ => {
            let foreign = !caller.credentials.is_privileged && !caller.credentials.is_member(directory.gid);
            let strips = inherits && foreign && mode & EFFECTIVE_SET_GID == EFFECTIVE_SET_GID;
            mode & MODE_BITS & if strips { !SET_GID } else { MODE_BITS }
        }
    };
    (mode, gid)
}

fn new_content(directory: InodeNumber, new: &NewInode<'_>) -> Content {
    match new.kind {
        Kind::File => Content::File(Data::default()),
        Kind::Symlink => Content::Symlink(new.target.to_vec()),
        Kind::Directory => Content::Directory(Directory {
            parent: directory,
            is_removed: false,
            entries: std::collections::BTreeMap::new(),
        }),
        Kind::Fifo | Kind::Socket | Kind::CharacterDevice | Kind::BlockDevice => Content::Special,
    }
}

fn check_target(new: &NewInode<'_>) -> Result<(), Errno> {
    match new.target {
        _ if new.kind != Kind::Symlink => Ok(()),
        [] => Err(Errno::NOENT),
        target if target.len() > MAX_TARGET => Err(Errno::NAMETOOLONG),
        target if target.contains(&0) => Err(Errno::INVAL),
        _ => Ok(()),
    }
}

/// Inserts an inode with its owner and mode, without a name.
fn insert(
    table: &mut Table,
    caller: Caller<'_>,
    directory: InodeNumber,
    new: &NewInode<'_>,
) -> Result<InodeNumber, Errno> {
    let (mode, gid) = inherit(caller, &table.node(directory)?.attributes, new.kind, new.mode);
    let inode = table.insert(new.kind, new_content(directory, new), caller.now);
    let attributes = &mut table.node_mut(inode)?.attributes;
    attributes.mode = mode;
    attributes.uid = caller.credentials.uid;
    attributes.gid = gid;
    if matches!(new.kind, Kind::CharacterDevice | Kind::BlockDevice) {
        attributes.device = new.device;
    }
    Ok(inode)
}

pub(super) fn create(
    table: &mut Table,
    caller: Caller<'_>,
    directory: InodeNumber,
    name: &[u8],
    new: &NewInode<'_>,
) -> Result<Attributes, Errno> {
    check_target(new)?;
    table.check_new(caller, directory, name)?;
    // A character device 0 is a whiteout, which every user may make.
    let is_device = new.kind == Kind::BlockDevice || new.kind == Kind::CharacterDevice && new.device != 0;
    if is_device && !caller.credentials.is_privileged {
        return Err(Errno::PERM);
    }
    let inode = insert(table, caller, directory, new)?;
    let is_directory = new.kind == Kind::Directory;
    table.node_mut(inode)?.attributes.links = if is_directory { 2 } else { 1 };
    if is_directory {
        table.node_mut(directory)?.attributes.links += 1;
    }
    table.set_entry(directory, name, inode)?;
    table.touch(directory, caller.now)?;
    Ok(table.node(inode)?.reported())
}

pub(super) fn create_unnamed(
    table: &mut Table,
    caller: Caller<'_>,
    directory: InodeNumber,
    mode: u16,
) -> Result<(Attributes, Handle), Errno> {
    let is_removed = table.node(directory)?.directory()?.is_removed;
    table.check_writable(caller, directory)?;
    if is_removed {
        return Err(Errno::NOENT);
    }
    let new = NewInode { kind: Kind::File, mode, device: 0, target: b"" };
    let inode = insert(table, caller, directory, &new)?;
    table.node_mut(inode)?.is_linkable = true;
    let handle = table.open(inode, OpenMode { read: true, write: true, truncate: false })?;
    Ok((table.node(inode)?.reported(), handle))
}

pub(super) fn link(
    table: &mut Table,
    caller: Caller<'_>,
    inode: InodeNumber,
    directory: InodeNumber,
    name: &[u8],
) -> Result<Attributes, Errno> {
    table.node(inode)?;
    table.check_new(caller, directory, name)?;
    let node = table.node_mut(inode)?;
    if node.is_directory() {
        return Err(Errno::PERM);
    }
    if node.attributes.links == 0 && !node.is_linkable {
        return Err(Errno::NOENT);
    }
    if node.attributes.links >= MAX_LINKS {
        return Err(Errno::MLINK);
    }
    node.is_linkable = false;
    node.attributes.links += 1;
    node.attributes.ctime = caller.now;
    table.set_entry(directory, name, inode)?;
    table.touch(directory, caller.now)?;
    Ok(table.node(inode)?.reported())
}

/// Checks that the caller may take the entry `victim` out of `directory`.
fn check_removable(
    table: &Table,
    caller: Caller<'_>,
    directory: InodeNumber,
    victim: InodeNumber,
    as_directory: bool,
) -> Result<(), Errno> {
    table.check_writable(caller, directory)?;
    let victim = table.node(victim)?;
    caller.credentials.check_sticky(&table.node(directory)?.attributes, &victim.attributes)?;
    match (as_directory, victim.is_directory()) {
        (true, false) => Err(Errno::NOTDIR),
        (false, true) => Err(Errno::ISDIR),
        _ => Ok(()),
    }
}

fn check_empty(node: &Node) -> Result<(), Errno> {
    match &node.content {
        Content::Directory(directory) if !directory.entries.is_empty() => Err(Errno::NOTEMPTY),
        _ => Ok(()),
    }
}

pub(super) fn unlink(
    table: &mut Table,
    caller: Caller<'_>,
    directory: InodeNumber,
    name: &[u8],
) -> Result<(), Errno> {
    table.check_search(caller, directory)?;
    if is_dot(name) {
        return Err(Errno::ISDIR);
    }
    let victim = table.find(caller, directory, name)?.ok_or(Errno::NOENT)?;
    check_removable(table, caller, directory, victim, false)?;
    table.remove_entry(directory, name)?;
    table.touch(directory, caller.now)?;
    table.drop_name(victim, caller.now)
}

pub(super) fn remove_directory(
    table: &mut Table,
    caller: Caller<'_>,
    directory: InodeNumber,
    name: &[u8],
) -> Result<(), Errno> {
    table.check_search(caller, directory)?;
    match name {
        b"." => return Err(Errno::INVAL),
        b".." => return Err(Errno::NOTEMPTY),
        _ => {}
    }
    let victim = table.find(caller, directory, name)?.ok_or(Errno::NOENT)?;
    check_removable(table, caller, directory, victim, true)?;
    check_empty(table.node(victim)?)?;
    table.remove_entry(directory, name)?;
    table.touch(directory, caller.now)?;
    table.drop_name(victim, caller.now)
}

/// Whether `inode` is `directory`, or one of the directories above it.
fn is_above(table: &Table, inode: InodeNumber, directory: InodeNumber) -> Result<bool, Errno> {
    let mut at = directory;
    loop {
        if at == inode {
            return Ok(true);
        }
        let parent = table.node(at)?.directory()?.parent;
        if parent == at {
            return Ok(false);
        }
        at = parent;
    }
}

/// A rename whose two names were looked up.
struct Rename<'a> {
    from: (InodeNumber, &'a [u8]),
    to: (InodeNumber, &'a [u8]),
    moved: InodeNumber,
    /// What has the new name.
    target: Option<InodeNumber>,
    exchanges: bool,
}

fn check_rename(table: &Table, caller: Caller<'_>, rename: &Rename<'_>) -> Result<(), Errno> {
    let moves_directory = table.node(rename.moved)?.is_directory();
    check_removable(table, caller, rename.from.0, rename.moved, moves_directory)?;
    let Some(target) = rename.target else {
        table.check_new(caller, rename.to.0, rename.to.1)?;
        return check_new_parent(table, caller, rename, rename.moved);
    };
    let target_is_directory = table.node(target)?.is_directory();
    let as_directory = if rename.exchanges { target_is_directory } else { moves_directory };
    check_removable(table, caller, rename.to.0, target, as_directory)?;
    check_new_parent(table, caller, rename, rename.moved)?;
    if rename.exchanges {
        return check_new_parent(table, caller, rename, target);
    }
    check_empty(table.node(target)?)
}

/// A directory that gets another parent is changed itself: its `..` is.
fn check_new_parent(
    table: &Table,
    caller: Caller<'_>,
    rename: &Rename<'_>,
    inode: InodeNumber,
) -> Result<(), Errno> {
    let node = table.node(inode)?;
    if rename.from.0 == rename.to.0 || !node.is_directory() {
        return Ok(());
    }
    caller.credentials.check(&node.attributes, WRITE)
}

pub(super) fn rename(
    table: &mut Table,
    caller: Caller<'_>,
    from: (InodeNumber, &[u8]),
    to: (InodeNumber, &[u8]),
    mode: RenameMode,
) -> Result<(), Errno> {
    table.check_search(caller, from.0)?;
    table.check_search(caller, to.0)?;
    if is_dot(from.1) {
        return Err(Errno::BUSY);
    }
    if is_dot(to.1) {
        return Err(if mode == RenameMode::NoReplace { Errno::EXIST } else { Errno::BUSY });
    }
    let moved = table.find(caller, from.0, from.1)?.ok_or(Errno::NOENT)?;
    let target = table.find(caller, to.0, to.1)?;
    match (mode, target) {
        (RenameMode::NoReplace, Some(_)) => return Err(Errno::EXIST),
        (RenameMode::Exchange, None) => return Err(Errno::NOENT),
        _ => {}
    }
    let exchanges = mode == RenameMode::Exchange;
    if from.0 != to.0 {
        if table.node(moved)?.is_directory() && is_above(table, moved, to.0)? {
            return Err(Errno::INVAL);
        }
        let target_above = match target {
            Some(target) if table.node(target)?.is_directory() => is_above(table, target, from.0)?,
            _ => false,
        };
        if target_above {
            return Err(if exchanges { Errno::INVAL } else { Errno::NOTEMPTY });
        }
    }
    if target == Some(moved) {
        return Ok(());
    }
    let rename = Rename { from, to, moved, target, exchanges };
    check_rename(table, caller, &rename)?;
    apply_rename(table, caller, &rename)
}

fn apply_rename(table: &mut Table, caller: Caller<'_>, rename: &Rename<'_>) -> Result<(), Errno> {
    let (from, to) = (rename.from, rename.to);
    match rename.target {
        Some(target) if rename.exchanges => {
            table.set_entry(from.0, from.1, target)?;
            table.set_entry(to.0, to.1, rename.moved)?;
            table.node_mut(target)?.attributes.ctime = caller.now;
            if table.node(target)?.is_directory() {
                table.set_parent(target, from.0)?;
            }
        }
        target => {
            table.remove_entry(from.0, from.1)?;
            table.set_entry(to.0, to.1, rename.moved)?;
            if let Some(target) = target {
                table.drop_name(target, caller.now)?;
            }
        }
    }
    if table.node(rename.moved)?.is_directory() {
        table.set_parent(rename.moved, to.0)?;
    }
    table.node_mut(rename.moved)?.attributes.ctime = caller.now;
    table.touch(from.0, caller.now)?;
    table.touch(to.0, caller.now)
}
