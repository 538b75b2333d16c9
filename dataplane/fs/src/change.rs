//! What a record of the operation log says.
//!
//! 1. A change names inodes by number and entries by directory, cookie and name. The client has
//!    walked paths and checked permissions already. The digest judges each change again, by
//!    meaning: whether the entry is there, whether the inode is what the change takes it for.
//! 2. One change is one operation: it is applied as a whole or not at all.
//! 3. A change carries its result, never a difference: an offset instead of "append", a mode
//!    instead of "clear this bit".

pub(crate) mod blocks;

use std::ops::Range;

use crate::inode::{InodeNumber, Kind, Timestamp};
use crate::name::Cookie;

/// An entry of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place<'a> {
    /// The directory.
    pub directory: InodeNumber,
    /// The entry's place in it.
    pub cookie: Cookie,
    /// The entry's name.
    pub name: &'a [u8],
}

/// Attributes that a change sets; `None` leaves one as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NewAttributes {
    /// Mode bits.
    pub mode: Option<u16>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Last access.
    pub atime: Option<Timestamp>,
    /// Last modification.
    pub mtime: Option<Timestamp>,
}

/// One operation. The time of the record is the inode's new ctime, and its mtime where content
/// changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change<'a> {
    /// A new inode, with a name, or without (`O_TMPFILE`).
    Create {
        /// Its number: from the client's range, never used before.
        inode: InodeNumber,
        /// Its name.
        place: Option<Place<'a>>,
        /// What it is.
        kind: Kind,
        /// Mode bits.
        mode: u16,
        /// Owner.
        uid: u32,
        /// Group.
        gid: u32,
        /// Device number.
        device: u64,
        /// Target of a symbolic link.
        target: &'a [u8],
    },
    /// A further name of an inode.
    Link {
        /// The inode.
        inode: InodeNumber,
        /// The name.
        place: Place<'a>,
    },
    /// A name goes; a directory that it names is empty.
    Unlink {
        /// The inode that has the name.
        inode: InodeNumber,
        /// The name.
        place: Place<'a>,
    },
    /// An entry moves.
    Rename {
        /// The inode that moves.
        inode: InodeNumber,
        /// From here.
        from: Place<'a>,
        /// To here.
        to: Place<'a>,
        /// The inode that had the new name.
        replaced: Option<InodeNumber>,
        /// The replaced inode moves to the old name.
        exchange: bool,
    },
    /// Data, which the record carries. The file grows if need be.
    Write {
        /// The file.
        inode: InodeNumber,
        /// First byte in the file.
        offset: u64,
        /// Bytes.
        length: u32,
    },
    /// A new size; what is behind it is gone.
    Truncate {
        /// The file.
        inode: InodeNumber,
        /// Bytes.
        size: u64,
    },
    /// Room is reserved where there is none; it reads as zeros. With `zero`, what is there reads as
    /// zeros too.
    Reserve {
        /// The file.
        inode: InodeNumber,
        /// First byte.
        offset: u64,
        /// Bytes.
        length: u64,
        /// The new size of the file.
        size: u64,
        /// What is there is discarded first.
        zero: bool,
    },
    /// A range reads as zeros and gives its blocks back.
    Punch {
        /// The file.
        inode: InodeNumber,
        /// First byte.
        offset: u64,
        /// Bytes.
        length: u64,
    },
    /// Attributes.
    SetAttributes {
        /// The inode.
        inode: InodeNumber,
        /// What changes.
        attributes: NewAttributes,
    },
    /// An extended attribute gets a value, which the record carries.
    SetXattr {
        /// The inode.
        inode: InodeNumber,
        /// Name of the attribute.
        name: &'a [u8],
        /// Bytes of the value.
        length: u32,
    },
    /// An extended attribute goes.
    RemoveXattr {
        /// The inode.
        inode: InodeNumber,
        /// Name of the attribute.
        name: &'a [u8],
    },
    /// The last reference to an inode without a name is gone: it is freed.
    Free {
        /// The inode.
        inode: InodeNumber,
    },
}

/// A record of the log, read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// 1 for the first record of a log, and one more for each next.
    pub sequence: u64,
    /// Where the record begins and where the next one does, in bytes since the log was made.
    pub position: Range<u64>,
    /// When it was made.
    pub time: Timestamp,
    /// What it says.
    pub change: Change<'a>,
    /// The data of a [`Change::Write`] or [`Change::SetXattr`]: where they begin, in bytes since
    /// the log was made, and the bytes.
    pub data: (u64, &'a [u8]),
}
