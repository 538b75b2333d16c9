//! Inodes: numbers, kinds, times and attributes, as every layer sees them.

use std::fmt;

/// The number of an inode. 0 is none, 1 is the root directory. A number is never used for two
/// inodes: 64 bits outlast every medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InodeNumber(pub u64);

impl InodeNumber {
    /// The root directory.
    pub const ROOT: Self = Self(1);
}

impl fmt::Display for InodeNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What an inode is. The values are those of the formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// A regular file.
    File = 1,
    /// A directory.
    Directory = 2,
    /// A symbolic link.
    Symlink = 3,
    /// A named pipe.
    Fifo = 4,
    /// The name of a Unix socket.
    Socket = 5,
    /// A character device.
    CharacterDevice = 6,
    /// A block device.
    BlockDevice = 7,
}

impl Kind {
    /// The kind with this value in a format.
    pub fn from_value(value: u8) -> Option<Self> {
        Some(match value {
            1 => Self::File,
            2 => Self::Directory,
            3 => Self::Symlink,
            4 => Self::Fifo,
            5 => Self::Socket,
            6 => Self::CharacterDevice,
            7 => Self::BlockDevice,
            _ => return None,
        })
    }
}

/// A point in time since the Unix epoch, as `struct timespec` has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp {
    /// Seconds; negative before 1970.
    pub seconds: i64,
    /// Nanoseconds of the second, below 1,000,000,000.
    pub nanoseconds: u32,
}

/// Permission bits, set-user-ID, set-group-ID and sticky bit.
pub const MODE_BITS: u16 = 0o7777;
/// Set-user-ID on execution.
pub const SET_UID: u16 = 0o4000;
/// Set-group-ID on execution; on a directory, new entries inherit the group.
pub const SET_GID: u16 = 0o2000;
/// On a directory, only owners remove entries.
pub const STICKY: u16 = 0o1000;

/// What `stat(2)` reports of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// Its number.
    pub inode: InodeNumber,
    /// What it is.
    pub kind: Kind,
    /// [`MODE_BITS`].
    pub mode: u16,
    /// Names that it has; a directory has two, and one for each subdirectory.
    pub links: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of a device, as `mknod(2)` takes it.
    pub device: u64,
    /// Bytes of a file or of a symbolic link's target; of a directory, entries.
    pub size: u64,
    /// Units of 512 bytes that its data take.
    pub blocks: u64,
    /// Last access.
    pub atime: Timestamp,
    /// Last change of its content.
    pub mtime: Timestamp,
    /// Last change of its attributes.
    pub ctime: Timestamp,
    /// When it was created.
    pub btime: Timestamp,
}
