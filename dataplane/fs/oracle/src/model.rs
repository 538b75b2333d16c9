//! An independent, simple file system in memory, with the semantics and the errno of Linux.
//!
//! 1. [`table`] has the inodes, the handles and the entries. `entries`, `attributes`, `content`
//!    and `xattrs` are the operations, with their checks in the kernel's order.
//! 2. An operation checks everything first and changes then, so an error leaves all as it was.
//! 3. Reads do not change the last access (`noatime`). A directory's size is the number of its
//!    entries. Room that is reserved is no data and is not counted as blocks.
//! 4. A copy of the model is cheap: files share their blocks. Crash tests keep one for each prefix
//!    of a program.
//!
//! What it must never do: fail for want of room, or depend on anything but the calls so far.

mod attributes;
mod content;
mod data;
mod entries;
mod table;
mod xattrs;

use std::ops::Range;

use rustix::io::Errno;
use sietch_fs::FileSystem;
use sietch_fs::access::Caller;
use sietch_fs::file_system::{
    Allocation, AttributeChange, DirectoryEntry, Handle, NewInode, OpenMode, RenameMode, Seek, Usage,
    WriteAt, XattrMode,
};
use sietch_fs::inode::{Attributes, InodeNumber, Timestamp};
use sietch_fs::limits::BLOCK;
use sietch_fs::name::{Cookie, NameKey};

use table::Table;

/// Blocks that [`FileSystem::usage`] reports in all. They are not a limit.
const BLOCKS: u64 = 1 << 32;

/// The model: see [`FileSystem`] for its operations.
#[derive(Clone, Debug)]
pub struct Model {
    table: Table,
}

impl Default for Model {
    fn default() -> Self {
        Self::new()
    }
}

impl Model {
    /// An empty file system. Its root directory is root's, with mode 0755, made at the epoch.
    pub fn new() -> Self {
        Self::with_root(NameKey([7; 16]), 0o755, Timestamp::default())
    }

    /// An empty file system with a key for its cookies, and its root directory's mode and time.
    pub fn with_root(key: NameKey, mode: u16, now: Timestamp) -> Self {
        Self { table: Table::new(key, mode, now) }
    }

    /// The inode that a handle is of.
    pub fn inode_of(&self, handle: Handle) -> Option<InodeNumber> {
        self.table.opened(handle).map(|opened| opened.inode).ok()
    }
}

impl FileSystem for Model {
    fn lookup(
        &mut self,
        caller: Caller<'_>,
        directory: InodeNumber,
        name: &[u8],
    ) -> Result<Attributes, Errno> {
        let inode = self.table.find(caller, directory, name)?.ok_or(Errno::NOENT)?;
        self.attributes(inode)
    }

    fn parent(&mut self, directory: InodeNumber) -> Result<InodeNumber, Errno> {
        let parent = self.table.node(directory)?.directory()?.parent;
        self.table.node(parent).map(|_| parent)
    }

    fn attributes(&mut self, inode: InodeNumber) -> Result<Attributes, Errno> {
        Ok(self.table.node(inode)?.reported())
    }

    fn set_attributes(
        &mut self,
        caller: Caller<'_>,
        inode: InodeNumber,
        handle: Option<Handle>,
        change: &AttributeChange,
    ) -> Result<Attributes, Errno> {
        attributes::set(&mut self.table, caller, inode, handle, change)
    }

    fn read_link(&mut self, inode: InodeNumber) -> Result<Vec<u8>, Errno> {
        match &self.table.node(inode)?.content {
            table::Content::Symlink(target) => Ok(target.clone()),
            _ => Err(Errno::INVAL),
        }
    }

    fn create(
        &mut self,
        caller: Caller<'_>,
        directory: InodeNumber,
        name: &[u8],
        new: &NewInode<'_>,
    ) -> Result<Attributes, Errno> {
        entries::create(&mut self.table, caller, directory, name, new)
    }

    fn create_unnamed(
        &mut self,
        caller: Caller<'_>,
        directory: InodeNumber,
        mode: u16,
    ) -> Result<(Attributes, Handle), Errno> {
        entries::create_unnamed(&mut self.table, caller, directory, mode)
    }

    fn link(
        &mut self,
        caller: Caller<'_>,
        inode: InodeNumber,
        directory: InodeNumber,
        name: &[u8],
    ) -> Result<Attributes, Errno> {
        entries::link(&mut self.table, caller, inode, directory, name)
    }

    fn unlink(&mut self, caller: Caller<'_>, directory: InodeNumber, name: &[u8]) -> Result<(), Errno> {
        entries::unlink(&mut self.table, caller, directory, name)
    }

    fn remove_directory(
        &mut self,
        caller: Caller<'_>,
        directory: InodeNumber,
        name: &[u8],
    ) -> Result<(), Errno> {
        entries::remove_directory(&mut self.table, caller, directory, name)
    }

    fn rename(
        &mut self,
        caller: Caller<'_>,
        from: (InodeNumber, &[u8]),
        to: (InodeNumber, &[u8]),
        mode: RenameMode,
    ) -> Result<(), Errno> {
        entries::rename(&mut self.table, caller, from, to, mode)
    }

    fn open(&mut self, caller: Caller<'_>, inode: InodeNumber, mode: OpenMode) -> Result<Handle, Errno> {
        content::open(&mut self.table, caller, inode, mode)
    }

    fn open_created(&mut self, inode: InodeNumber, mode: OpenMode) -> Result<Handle, Errno> {
        content::open_created(&mut self.table, inode, mode)
    }

    fn close(&mut self, handle: Handle) {
        if let Some(opened) = self.table.handles.remove(&handle) {
            self.table.release(opened.inode, 1);
        }
    }

    fn retain(&mut self, inode: InodeNumber) -> Result<(), Errno> {
        self.table.node_mut(inode)?.uses += 1;
        Ok(())
    }

    fn release(&mut self, inode: InodeNumber, count: u64) {
        self.table.release(inode, count);
    }

    fn read(&mut self, handle: Handle, offset: u64, bytes: &mut [u8]) -> Result<usize, Errno> {
        content::read(&self.table, handle, offset, bytes)
    }

    fn write(&mut self, caller: Caller<'_>, handle: Handle, at: WriteAt, bytes: &[u8]) -> Result<u64, Errno> {
        content::write(&mut self.table, caller, handle, at, bytes)
    }

    fn allocate(
        &mut self,
        caller: Caller<'_>,
        handle: Handle,
        range: Range<u64>,
        allocation: Allocation,
    ) -> Result<(), Errno> {
        content::allocate(&mut self.table, caller, handle, range, allocation)
    }

    fn seek(&mut self, handle: Handle, offset: u64, what: Seek) -> Result<u64, Errno> {
        content::seek(&self.table, handle, offset, what)
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
        let opened = self.table.opened(handle)?;
        let directory = self.table.node(opened.inode)?.directory()?;
        if !opened.read {
            return Err(Errno::BADF);
        }
        if directory.is_removed {
            return Err(Errno::NOENT);
        }
        for (cookie, (name, inode)) in directory.entries.range(Cookie(after.0.saturating_add(1))..) {
            let kind = self.table.node(*inode)?.attributes.kind;
            if !take(DirectoryEntry { cookie: *cookie, name: name.clone(), inode: *inode, kind }) {
                break;
            }
        }
        Ok(())
    }

    fn check_access(&mut self, caller: Caller<'_>, inode: InodeNumber, wanted: u8) -> Result<(), Errno> {
        caller.credentials.check(&self.table.node(inode)?.attributes, wanted)
    }

    fn xattr(&mut self, caller: Caller<'_>, inode: InodeNumber, name: &[u8]) -> Result<Vec<u8>, Errno> {
        xattrs::get(&self.table, caller, inode, name)
    }

    fn xattr_names(&mut self, caller: Caller<'_>, inode: InodeNumber) -> Result<Vec<Box<[u8]>>, Errno> {
        xattrs::names(&self.table, caller, inode)
    }

    fn set_xattr(
        &mut self,
        caller: Caller<'_>,
        inode: InodeNumber,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<(), Errno> {
        xattrs::set(&mut self.table, caller, inode, name, value, mode)
    }

    fn remove_xattr(&mut self, caller: Caller<'_>, inode: InodeNumber, name: &[u8]) -> Result<(), Errno> {
        xattrs::remove(&mut self.table, caller, inode, name)
    }

    fn usage(&mut self) -> Usage {
        let used: u64 = self.table.nodes.values().map(|node| node.reported().blocks / 8).sum();
        Usage {
            block_bytes: BLOCK as u32,
            blocks: BLOCKS,
            free: BLOCKS.saturating_sub(used),
            inodes: self.table.nodes.len() as u64,
        }
    }
}
