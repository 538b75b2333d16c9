//! Extended attributes: namespaces, permissions, limits.
//!
//! Only files and directories have attributes in `user.`.
//!
//! | namespace | read | written |
//! | --- | --- | --- |
//! | `user.` | by its readers | by its writers; a sticky directory's by its owner |
//! | `trusted.` | by privileged users, hidden from others | by privileged users |
//! | `security.` | by all | by privileged users |
//! | others, `system.` among them | not supported | not supported |

use rustix::io::Errno;
use sietch_fs::access::{Caller, READ, WRITE};
use sietch_fs::file_system::XattrMode;
use sietch_fs::inode::{InodeNumber, Kind, STICKY};
use sietch_fs::limits::{MAX_XATTR_NAME, MAX_XATTR_NAMES, MAX_XATTR_VALUE};

use super::table::{Node, Table};

const NAMESPACES: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];

fn check_name(name: &[u8]) -> Result<(), Errno> {
    match name {
        [] => Err(Errno::RANGE),
        _ if name.len() > MAX_XATTR_NAME => Err(Errno::RANGE),
        _ if name.contains(&0) => Err(Errno::INVAL),
        _ => Ok(()),
    }
}

/// The name without its namespace is checked after the permissions.
fn check_namespace(name: &[u8]) -> Result<(), Errno> {
    match NAMESPACES.iter().find_map(|namespace| name.strip_prefix(*namespace)) {
        Some([]) => Err(Errno::INVAL),
        Some(_) => Ok(()),
        None => Err(Errno::OPNOTSUPP),
    }
}

fn check_read(caller: Caller<'_>, node: &Node, name: &[u8]) -> Result<(), Errno> {
    let has_no_user_namespace = !matches!(node.attributes.kind, Kind::File | Kind::Directory);
    if name.starts_with(b"system.") || name.starts_with(b"security.") {
        return check_namespace(name);
    }
    if name.starts_with(b"trusted.") {
        return if caller.credentials.is_privileged { check_namespace(name) } else { Err(Errno::NODATA) };
    }
    if name.starts_with(b"user.") && has_no_user_namespace {
        return Err(Errno::NODATA);
    }
    caller.credentials.check(&node.attributes, READ)?;
    check_namespace(name)
}

fn check_write(caller: Caller<'_>, node: &Node, name: &[u8]) -> Result<(), Errno> {
    let attributes = &node.attributes;
    if name.starts_with(b"system.") {
        return check_namespace(name);
    }
    if name.starts_with(b"security.") || name.starts_with(b"trusted.") {
        return if caller.credentials.is_privileged { check_namespace(name) } else { Err(Errno::PERM) };
    }
    if name.starts_with(b"user.") {
        let is_sticky = attributes.kind == Kind::Directory && attributes.mode & STICKY != 0;
        let is_allowed = match attributes.kind {
            Kind::File | Kind::Directory => !is_sticky || caller.credentials.owns(attributes),
            _ => false,
        };
        if !is_allowed {
            return Err(Errno::PERM);
        }
    }
    caller.credentials.check(attributes, WRITE)?;
    check_namespace(name)
}

pub(super) fn get(
    table: &Table,
    caller: Caller<'_>,
    inode: InodeNumber,
    name: &[u8],
) -> Result<Vec<u8>, Errno> {
    check_name(name)?;
    let node = table.node(inode)?;
    check_read(caller, node, name)?;
    node.xattrs.get(name).cloned().ok_or(Errno::NODATA)
}

pub(super) fn names(table: &Table, caller: Caller<'_>, inode: InodeNumber) -> Result<Vec<Box<[u8]>>, Errno> {
    let is_seen = |name: &[u8]| caller.credentials.is_privileged || !name.starts_with(b"trusted.");
    Ok(table.node(inode)?.xattrs.keys().filter(|name| is_seen(name)).cloned().collect())
}

pub(super) fn set(
    table: &mut Table,
    caller: Caller<'_>,
    inode: InodeNumber,
    name: &[u8],
    value: &[u8],
    mode: XattrMode,
) -> Result<(), Errno> {
    check_name(name)?;
    if value.len() > MAX_XATTR_VALUE {
        return Err(Errno::TOOBIG);
    }
    let node = table.node_mut(inode)?;
    check_write(caller, node, name)?;
    match (mode, node.xattrs.contains_key(name)) {
        (XattrMode::Create, true) => return Err(Errno::EXIST),
        (XattrMode::Replace, false) => return Err(Errno::NODATA),
        (_, true) => {}
        (_, false) => {
            let names: usize = node.xattrs.keys().map(|name| name.len() + 1).sum();
            if names + name.len() + 1 > MAX_XATTR_NAMES {
                return Err(Errno::NOSPC);
            }
        }
    }
    node.xattrs.insert(name.into(), value.to_vec());
    node.attributes.ctime = caller.now;
    Ok(())
}

pub(super) fn remove(
    table: &mut Table,
    caller: Caller<'_>,
    inode: InodeNumber,
    name: &[u8],
) -> Result<(), Errno> {
    check_name(name)?;
    let node = table.node_mut(inode)?;
    check_write(caller, node, name)?;
    node.xattrs.remove(name).ok_or(Errno::NODATA)?;
    node.attributes.ctime = caller.now;
    Ok(())
}
