//! Operations on open files: open, read, write, fallocate, lseek.

use std::ops::Range;

use rustix::io::Errno;
use sietch_fs::access::{Caller, READ, WRITE};
use sietch_fs::file_system::{Allocation, Handle, OpenMode, Seek, WriteAt};
use sietch_fs::inode::{InodeNumber, Kind};
use sietch_fs::limits::MAX_FILE;

use super::attributes::{modify, resize};
use super::data::Data;
use super::table::{Content, Node, Table};

fn data(node: &Node) -> Option<&Data> {
    if let Content::File(data) = &node.content { Some(data) } else { None }
}

pub(super) fn open(
    table: &mut Table,
    caller: Caller<'_>,
    inode: InodeNumber,
    mode: OpenMode,
) -> Result<Handle, Errno> {
    let attributes = table.node(inode)?.attributes;
    let changes = mode.write || mode.truncate;
    match attributes.kind {
        Kind::Symlink => return Err(Errno::LOOP),
        Kind::Directory if changes => return Err(Errno::ISDIR),
        _ => {}
    }
    let wanted = if mode.read { READ } else { 0 } | if changes { WRITE } else { 0 };
    caller.credentials.check(&attributes, wanted)?;
    let handle = open_created(table, inode, mode)?;
    if mode.truncate {
        let node = table.node_mut(inode)?;
        modify(node, caller);
        resize(node, 0);
    }
    Ok(handle)
}

/// Opens without regard to permissions. A front end opens pipes, sockets and devices itself.
pub(super) fn open_created(table: &mut Table, inode: InodeNumber, mode: OpenMode) -> Result<Handle, Errno> {
    match table.node(inode)?.attributes.kind {
        Kind::File => {}
        Kind::Directory if mode.write || mode.truncate => return Err(Errno::ISDIR),
        Kind::Directory => {}
        Kind::Symlink => return Err(Errno::LOOP),
        Kind::Fifo | Kind::Socket | Kind::CharacterDevice | Kind::BlockDevice => return Err(Errno::NXIO),
    }
    table.open(inode, mode)
}

pub(super) fn read(table: &Table, handle: Handle, offset: u64, bytes: &mut [u8]) -> Result<usize, Errno> {
    let opened = table.opened(handle)?;
    if !opened.read {
        return Err(Errno::BADF);
    }
    let node = table.node(opened.inode)?;
    let data = data(node).ok_or(Errno::ISDIR)?;
    let length = node.attributes.size.saturating_sub(offset).min(bytes.len() as u64) as usize;
    data.read(offset, &mut bytes[..length]);
    Ok(length)
}

/// The file behind a handle that is open for writing.
fn written(table: &mut Table, handle: Handle) -> Result<&mut Node, Errno> {
    let opened = table.opened(handle)?;
    if !opened.write {
        return Err(Errno::BADF);
    }
    table.node_mut(opened.inode)
}

pub(super) fn write(
    table: &mut Table,
    caller: Caller<'_>,
    handle: Handle,
    at: WriteAt,
    bytes: &[u8],
) -> Result<u64, Errno> {
    let node = written(table, handle)?;
    let offset = match at {
        WriteAt::Offset(offset) => offset,
        WriteAt::End => node.attributes.size,
    };
    if bytes.is_empty() {
        return Ok(offset);
    }
    let end = offset.checked_add(bytes.len() as u64).filter(|end| *end <= MAX_FILE).ok_or(Errno::FBIG)?;
    modify(node, caller);
    node.attributes.size = node.attributes.size.max(end);
    if let Content::File(data) = &mut node.content {
        data.write(offset, bytes);
    }
    Ok(offset)
}

pub(super) fn allocate(
    table: &mut Table,
    caller: Caller<'_>,
    handle: Handle,
    range: Range<u64>,
    allocation: Allocation,
) -> Result<(), Errno> {
    table.opened(handle)?;
    if range.is_empty() {
        return Err(Errno::INVAL);
    }
    let node = written(table, handle)?;
    let Content::File(data) = &mut node.content else { return Err(Errno::NODEV) };
    if range.end > MAX_FILE {
        return Err(Errno::FBIG);
    }
    if !matches!(allocation, Allocation::Reserve | Allocation::ReserveKeepSize) {
        data.punch(range.clone());
    }
    if matches!(allocation, Allocation::Reserve | Allocation::Zero) {
        node.attributes.size = node.attributes.size.max(range.end);
    }
    modify(node, caller);
    Ok(())
}

pub(super) fn seek(table: &Table, handle: Handle, offset: u64, what: Seek) -> Result<u64, Errno> {
    let opened = table.opened(handle)?;
    let node = table.node(opened.inode)?;
    let data = data(node).ok_or(Errno::INVAL)?;
    let size = node.attributes.size;
    if offset >= size {
        return Err(Errno::NXIO);
    }
    match what {
        Seek::Data => data.next_data(offset).filter(|found| *found < size).ok_or(Errno::NXIO),
        Seek::Hole => Ok(data.next_hole(offset).min(size)),
    }
}
