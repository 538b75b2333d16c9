//! All that the names of a file system lead to, for comparing whole states.
//!
//! Left out is what two equal file systems may differ in: inode numbers, counts of blocks, where
//! holes are, cookies, and inodes without a name.

use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hasher as _};

use rustix::io::Errno;
use sietch_fs::FileSystem;
use sietch_fs::access::{Caller, Credentials};
use sietch_fs::file_system::{DirectoryEntry, Handle, OpenMode, Seek};
use sietch_fs::inode::{Attributes, InodeNumber, Kind, Timestamp};
use sietch_fs::limits::BLOCK;
use sietch_fs::name::Cookie;

/// What one name leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leaf {
    /// Its attributes; the number of the inode and the count of blocks are 0.
    pub attributes: Attributes,
    /// The first path in the tree that names the same inode.
    pub first_path: Vec<u8>,
    /// Hash of the content of a file.
    pub content: u64,
    /// Target of a symbolic link.
    pub target: Vec<u8>,
    /// Extended attributes.
    pub xattrs: BTreeMap<Box<[u8]>, Vec<u8>>,
}

/// All names, as paths from the root directory, whose path is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tree {
    /// What each leads to.
    pub leaves: BTreeMap<Vec<u8>, Leaf>,
}

impl Tree {
    /// The first difference, in words; `None` if the trees are equal.
    pub fn difference(&self, other: &Self) -> Option<String> {
        let paths = self.leaves.keys().chain(other.leaves.keys());
        let path = paths.filter(|path| self.leaves.get(*path) != other.leaves.get(*path)).min()?;
        let (one, two) = (self.leaves.get(path), other.leaves.get(path));
        Some(format!("/{}:\n  {one:?}\n  {two:?}", path.escape_ascii()))
    }
}

/// Reads everything, as root.
///
/// # Errors
/// An operation failed: none should, for root.
pub fn tree(file_system: &mut dyn FileSystem) -> Result<Tree, Errno> {
    let root = Credentials::root();
    let mut walk = Walk {
        file_system,
        caller: Caller { credentials: &root, now: Timestamp::default() },
        first_paths: HashMap::new(),
        tree: Tree::default(),
    };
    walk.visit(InodeNumber::ROOT, Vec::new(), InodeNumber::ROOT)?;
    Ok(walk.tree)
}

struct Walk<'a> {
    file_system: &'a mut dyn FileSystem,
    caller: Caller<'a>,
    first_paths: HashMap<InodeNumber, Vec<u8>>,
    tree: Tree,
}

impl Walk<'_> {
    fn visit(&mut self, inode: InodeNumber, path: Vec<u8>, parent: InodeNumber) -> Result<(), Errno> {
        let attributes = self.file_system.attributes(inode)?;
        let first_path = self.first_paths.entry(inode).or_insert_with(|| path.clone()).clone();
        let content = if attributes.kind == Kind::File { self.content(inode, attributes.size)? } else { 0 };
        let target = match attributes.kind {
            Kind::Symlink => self.file_system.read_link(inode)?,
            _ => Vec::new(),
        };
        let mut xattrs = BTreeMap::new();
        for name in self.file_system.xattr_names(self.caller, inode)? {
            let value = self.file_system.xattr(self.caller, inode, &name)?;
            xattrs.insert(name, value);
        }
        let is_directory = attributes.kind == Kind::Directory;
        let attributes = Attributes { inode: InodeNumber(0), blocks: 0, ..attributes };
        let leaf = Leaf { attributes, first_path, content, target, xattrs };
        self.tree.leaves.insert(path.clone(), leaf);
        if !is_directory {
            return Ok(());
        }
        // A second path to a directory would be a cycle, or a link: not a tree.
        if self.first_paths[&inode] != path || self.file_system.parent(inode)? != parent {
            return Err(Errno::LOOP);
        }
        for entry in self.entries(inode)? {
            let mut below = path.clone();
            if !below.is_empty() {
                below.push(b'/');
            }
            below.extend_from_slice(&entry.name);
            let found = self.file_system.lookup(self.caller, inode, &entry.name)?;
            if (found.inode, found.kind) != (entry.inode, entry.kind) {
                return Err(Errno::STALE);
            }
            self.visit(entry.inode, below, inode)?;
        }
        Ok(())
    }

    /// Entries by name: the first path of an inode must not depend on the order of cookies.
    fn entries(&mut self, directory: InodeNumber) -> Result<Vec<DirectoryEntry>, Errno> {
        let mode = OpenMode { read: true, write: false, truncate: false };
        let handle = self.file_system.open(self.caller, directory, mode)?;
        let mut entries = Vec::new();
        let listed = self.file_system.read_directory(handle, Cookie(0), &mut |entry| {
            entries.push(entry);
            true
        });
        self.file_system.close(handle);
        listed?;
        entries.sort_by(|one, two| one.name.cmp(&two.name));
        Ok(entries)
    }

    fn content(&mut self, inode: InodeNumber, size: u64) -> Result<u64, Errno> {
        let mode = OpenMode { read: true, write: false, truncate: false };
        let handle = self.file_system.open(self.caller, inode, mode)?;
        let hash = self.hash(handle, size);
        self.file_system.close(handle);
        hash
    }

    /// Hashes the blocks that have a byte other than 0: a hole is equal to zeros.
    fn hash(&mut self, handle: Handle, size: u64) -> Result<u64, Errno> {
        let mut hasher = DefaultHasher::new();
        let mut at = 0;
        while at < size {
            at = match self.file_system.seek(handle, at, Seek::Data) {
                Ok(data) => data / BLOCK as u64 * BLOCK as u64,
                Err(Errno::NXIO) => break,
                Err(errno) => return Err(errno),
            };
            let mut bytes = vec![0; BLOCK];
            let read = self.file_system.read(handle, at, &mut bytes)?;
            if read as u64 != (size - at).min(BLOCK as u64) {
                return Err(Errno::IO);
            }
            if bytes.iter().any(|byte| *byte != 0) {
                hasher.write_u64(at);
                hasher.write(&bytes);
            }
            at += BLOCK as u64;
        }
        Ok(hasher.finish())
    }
}
