//! The inodes of the model, their handles and their directories.
//!
//! An inode stays while it has a name, a handle or a reference ([`Table::reap`]).

use std::collections::{BTreeMap, HashMap};

use rustix::io::Errno;
use sietch_fs::access::{Caller, EXECUTE, WRITE};
use sietch_fs::file_system::{Handle, OpenMode};
use sietch_fs::inode::{Attributes, InodeNumber, Kind, Timestamp};
use sietch_fs::name::{self, Cookie, MAX_NAME, NameKey, SLOTS};

use super::data::Data;

/// What an inode holds.
#[derive(Clone, Debug)]
pub(super) enum Content {
    File(Data),
    Directory(Directory),
    Symlink(Vec<u8>),
    /// A pipe, a socket, a device.
    Special,
}

/// The entries of a directory.
#[derive(Clone, Debug)]
pub(super) struct Directory {
    pub(super) parent: InodeNumber,
    /// It has no name any more, and takes no entries.
    pub(super) is_removed: bool,
    pub(super) entries: BTreeMap<Cookie, (Box<[u8]>, InodeNumber)>,
}

/// An inode.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) attributes: Attributes,
    pub(super) content: Content,
    pub(super) xattrs: BTreeMap<Box<[u8]>, Vec<u8>>,
    /// References and handles.
    pub(super) uses: u64,
    /// It never had a name (`O_TMPFILE`), and may get one.
    pub(super) is_linkable: bool,
}

impl Node {
    pub(super) fn directory(&self) -> Result<&Directory, Errno> {
        match &self.content {
            Content::Directory(directory) => Ok(directory),
            _ => Err(Errno::NOTDIR),
        }
    }

    pub(super) fn is_directory(&self) -> bool {
        self.attributes.kind == Kind::Directory
    }

    /// What `stat` reports.
    pub(super) fn reported(&self) -> Attributes {
        let (size, blocks) = match &self.content {
            Content::File(data) => (self.attributes.size, data.blocks() * 8),
            Content::Directory(directory) => (directory.entries.len() as u64, 0),
            Content::Symlink(target) => (target.len() as u64, 0),
            Content::Special => (0, 0),
        };
        Attributes { size, blocks, ..self.attributes }
    }
}

/// An open file or directory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Opened {
    pub(super) inode: InodeNumber,
    pub(super) read: bool,
    pub(super) write: bool,
}

/// Whether the name is one that every directory has, a removed one too.
pub(super) fn is_dot(name: &[u8]) -> bool {
    matches!(name, b"." | b"..")
}

/// All inodes and handles.
#[derive(Clone, Debug)]
pub(super) struct Table {
    pub(super) key: NameKey,
    pub(super) nodes: BTreeMap<InodeNumber, Node>,
    pub(super) handles: HashMap<Handle, Opened>,
    next_inode: u64,
    next_handle: u64,
}

impl Table {
    pub(super) fn new(key: NameKey, mode: u16, now: Timestamp) -> Self {
        let mut table = Self {
            key,
            nodes: BTreeMap::new(),
            handles: HashMap::new(),
            next_inode: InodeNumber::ROOT.0,
            next_handle: 1,
        };
        let content = Content::Directory(Directory {
            parent: InodeNumber::ROOT,
            is_removed: false,
            entries: BTreeMap::new(),
        });
        let root = table.insert(Kind::Directory, content, now);
        if let Some(root) = table.nodes.get_mut(&root) {
            root.attributes.mode = mode;
            root.attributes.links = 2;
        }
        table
    }

    /// A new inode of root, with mode 0 and no name.
    pub(super) fn insert(&mut self, kind: Kind, content: Content, now: Timestamp) -> InodeNumber {
        let inode = InodeNumber(self.next_inode);
        self.next_inode += 1;
        let attributes = Attributes {
            inode,
            kind,
            mode: 0,
            links: 0,
            uid: 0,
            gid: 0,
            device: 0,
            size: 0,
            blocks: 0,
            atime: now,
            mtime: now,
            ctime: now,
            btime: now,
        };
        let node = Node { attributes, content, xattrs: BTreeMap::new(), uses: 0, is_linkable: false };
        self.nodes.insert(inode, node);
        inode
    }

    pub(super) fn node(&self, inode: InodeNumber) -> Result<&Node, Errno> {
        self.nodes.get(&inode).ok_or(Errno::NOENT)
    }

    pub(super) fn node_mut(&mut self, inode: InodeNumber) -> Result<&mut Node, Errno> {
        self.nodes.get_mut(&inode).ok_or(Errno::NOENT)
    }

    pub(super) fn opened(&self, handle: Handle) -> Result<Opened, Errno> {
        self.handles.get(&handle).copied().ok_or(Errno::BADF)
    }

    pub(super) fn open(&mut self, inode: InodeNumber, mode: OpenMode) -> Result<Handle, Errno> {
        self.node_mut(inode)?.uses += 1;
        let handle = Handle(self.next_handle);
        self.next_handle += 1;
        self.handles.insert(handle, Opened { inode, read: mode.read, write: mode.write });
        Ok(handle)
    }

    /// Takes uses back, and forgets the inode if nothing refers to it.
    pub(super) fn release(&mut self, inode: InodeNumber, count: u64) {
        if let Some(node) = self.nodes.get_mut(&inode) {
            node.uses = node.uses.saturating_sub(count);
        }
        self.reap(inode);
    }

    /// Forgets an inode if nothing refers to it.
    pub(super) fn reap(&mut self, inode: InodeNumber) {
        if self.nodes.get(&inode).is_some_and(|node| node.attributes.links == 0 && node.uses == 0) {
            self.nodes.remove(&inode);
        }
    }

    /// Checks that the caller may search a directory.
    pub(super) fn check_search(&self, caller: Caller<'_>, directory: InodeNumber) -> Result<(), Errno> {
        let node = self.node(directory)?;
        node.directory()?;
        caller.credentials.check(&node.attributes, EXECUTE)
    }

    /// Finds `name` in a directory that the caller may search.
    pub(super) fn find(
        &self,
        caller: Caller<'_>,
        directory: InodeNumber,
        name: &[u8],
    ) -> Result<Option<InodeNumber>, Errno> {
        self.check_search(caller, directory)?;
        let entries = self.node(directory)?.directory()?;
        if entries.is_removed {
            return Err(Errno::NOENT);
        }
        if name.len() > MAX_NAME {
            return Err(Errno::NAMETOOLONG);
        }
        Ok(self.place(entries, name).map(|cookie| entries.entries[&cookie].1))
    }

    /// Checks that the caller may change the entries of a directory.
    pub(super) fn check_writable(&self, caller: Caller<'_>, directory: InodeNumber) -> Result<(), Errno> {
        caller.credentials.check(&self.node(directory)?.attributes, WRITE | EXECUTE)
    }

    /// Checks that the caller may create `name`, which is not there.
    pub(super) fn check_new(
        &self,
        caller: Caller<'_>,
        directory: InodeNumber,
        name: &[u8],
    ) -> Result<(), Errno> {
        self.check_search(caller, directory)?;
        if is_dot(name) || self.find(caller, directory, name)?.is_some() {
            return Err(Errno::EXIST);
        }
        name::check(name)?;
        self.check_writable(caller, directory)?;
        self.free_place(directory, name).map(|_| ())
    }

    fn slots(&self, name: &[u8]) -> impl Iterator<Item = Cookie> + use<> {
        let first = self.key.cookie(name).0;
        (first..first + SLOTS).map(Cookie)
    }

    fn place(&self, directory: &Directory, name: &[u8]) -> Option<Cookie> {
        self.slots(name)
            .find(|cookie| directory.entries.get(cookie).is_some_and(|(other, _)| **other == *name))
    }

    /// The lowest free slot of the name.
    fn free_place(&self, directory: InodeNumber, name: &[u8]) -> Result<Cookie, Errno> {
        let entries = &self.node(directory)?.directory()?.entries;
        self.slots(name).find(|cookie| !entries.contains_key(cookie)).ok_or(Errno::NOSPC)
    }

    fn directory_mut(&mut self, directory: InodeNumber) -> Result<&mut Directory, Errno> {
        match &mut self.node_mut(directory)?.content {
            Content::Directory(directory) => Ok(directory),
            _ => Err(Errno::NOTDIR),
        }
    }

    /// Makes `name` refer to `inode`; the entry is new, or keeps its place. Counts no links.
    pub(super) fn set_entry(
        &mut self,
        directory: InodeNumber,
        name: &[u8],
        inode: InodeNumber,
    ) -> Result<(), Errno> {
        let cookie = match self.place(self.node(directory)?.directory()?, name) {
            Some(cookie) => cookie,
            None => self.free_place(directory, name)?,
        };
        self.directory_mut(directory)?.entries.insert(cookie, (name.into(), inode));
        Ok(())
    }

    /// Removes an entry. Counts no links.
    pub(super) fn remove_entry(&mut self, directory: InodeNumber, name: &[u8]) -> Result<(), Errno> {
        let cookie = self.place(self.node(directory)?.directory()?, name).ok_or(Errno::NOENT)?;
        self.directory_mut(directory)?.entries.remove(&cookie);
        Ok(())
    }

    /// Moves a directory below another parent; its links are counted there.
    pub(super) fn set_parent(&mut self, directory: InodeNumber, parent: InodeNumber) -> Result<(), Errno> {
        let before = std::mem::replace(&mut self.directory_mut(directory)?.parent, parent);
        self.node_mut(before)?.attributes.links -= 1;
        self.node_mut(parent)?.attributes.links += 1;
        Ok(())
    }

    /// Takes the last name of a directory, or one name of another inode. The entry is gone already.
    pub(super) fn drop_name(&mut self, inode: InodeNumber, now: Timestamp) -> Result<(), Errno> {
        let node = self.node_mut(inode)?;
        node.attributes.ctime = now;
        if let Content::Directory(directory) = &mut node.content {
            directory.is_removed = true;
            node.attributes.links = 0;
            let parent = directory.parent;
            self.node_mut(parent)?.attributes.links -= 1;
        } else {
            node.attributes.links -= 1;
        }
        self.reap(inode);
        Ok(())
    }

    /// The content of a directory changed.
    pub(super) fn touch(&mut self, directory: InodeNumber, now: Timestamp) -> Result<(), Errno> {
        let attributes = &mut self.node_mut(directory)?.attributes;
        attributes.mtime = now;
        attributes.ctime = now;
        Ok(())
    }
}
