//! The digested state of the file system, as a client and the digest see it below what the logs
//! add.

use std::ops::Range;

use crate::error::Fault;
use crate::file_system::DirectoryEntry;
use crate::inode::{InodeNumber, Kind, Timestamp};
use crate::name::{Cookie, NameKey};
use crate::pool::Class;
use crate::quota::Quota;

/// An inode, as it is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inode {
    /// What it is.
    pub kind: Kind,
    /// Mode bits.
    pub mode: u16,
    /// Names; of a directory, 2 and its subdirectories. 0: it waits for its last reference to go.
    pub links: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number.
    pub device: u64,
    /// Bytes; of a symbolic link, its target's; of a directory, its entries.
    pub size: u64,
    /// Blocks of [`crate::limits::BLOCK`] bytes that its data take.
    pub blocks: u64,
    /// The directory that has this directory; its own number for the root; 0 for other kinds.
    pub parent: u64,
    /// Last access.
    pub atime: Timestamp,
    /// Last change of its content.
    pub mtime: Timestamp,
    /// Last change of its attributes.
    pub ctime: Timestamp,
    /// When it was created.
    pub btime: Timestamp,
    /// The last change that was applied: its log, and its sequence there.
    pub applied: (u32, u64),
}

/// The name of an extended attribute, and its place.
pub type NameAt = (Cookie, Box<[u8]>);

/// An entry of a directory, without its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its place.
    pub cookie: Cookie,
    /// The inode that it names.
    pub inode: InodeNumber,
    /// What that is.
    pub kind: Kind,
}

/// Data of a file that were looked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Data {
    /// Here, in bytes: not necessarily all that follow each other.
    Found(Range<u64>),
    /// None is before this byte.
    NotBefore(u64),
    /// There are none.
    None,
}

/// What is below the log. Methods take `&mut self`, because they fill caches.
///
/// # Errors
/// All methods: a medium failed, or returned something that does not have its checksum.
pub trait Base {
    /// The key of the name hashes.
    fn name_key(&self) -> NameKey;

    /// An inode.
    fn inode(&mut self, inode: InodeNumber) -> Result<Option<Inode>, Fault>;

    /// The entry with this name.
    fn entry(&mut self, directory: InodeNumber, name: &[u8]) -> Result<Option<Entry>, Fault>;

    /// The first entry whose cookie is at least `from`.
    fn entry_from(&mut self, directory: InodeNumber, from: Cookie) -> Result<Option<DirectoryEntry>, Fault>;

    /// The target of a symbolic link.
    fn target(&mut self, inode: InodeNumber) -> Result<Vec<u8>, Fault>;

    /// The value of an extended attribute.
    fn xattr(&mut self, inode: InodeNumber, name: &[u8]) -> Result<Option<Vec<u8>>, Fault>;

    /// The first extended attribute whose cookie is at least `from`: that, and its name.
    fn xattr_from(&mut self, inode: InodeNumber, from: Cookie) -> Result<Option<NameAt>, Fault>;

    /// Reads data; holes are zeros.
    fn read(&mut self, inode: InodeNumber, offset: u64, bytes: &mut [u8]) -> Result<(), Fault>;

    /// The first data that begin in `range` or reach into it; they may end behind. What is reserved
    /// and was never written is not data. At least one extent is looked at, and `extents` at most,
    /// which is less by them.
    fn data_in(&mut self, inode: InodeNumber, range: Range<u64>, extents: &mut u64) -> Result<Data, Fault>;

    /// Blocks for data that no file has, and blocks in all.
    fn free_blocks(&self) -> (u64, u64);

    /// Inodes in use.
    fn inodes(&self) -> u64;

    /// Whether data can be on a medium of this class.
    fn has_class(&self, class: Class) -> bool;

    /// How many of some blocks of a file have room, written or reserved: of those in the first
    /// `extents` extents. That is less by the extents that were looked at, and 0 if there may be
    /// more.
    fn allocated(&mut self, inode: InodeNumber, blocks: Range<u64>, extents: &mut u64) -> Result<u64, Fault>;

    /// Users with a limit; `None`: users are not counted.
    fn limited_users(&mut self) -> Result<Option<u64>, Fault>;

    /// The first user from `uid` on that has something or a limit.
    fn quota_from(&mut self, uid: u32) -> Result<Option<(u32, Quota)>, Fault>;
}
