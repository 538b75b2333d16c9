//! What a program consists of: operations over a few users, names, inodes and handles.

use std::ops::Range;

use sietch_fs::access::Credentials;
use sietch_fs::file_system::{Allocation, AttributeChange, OpenMode, RenameMode, Seek, WriteAt, XattrMode};
use sietch_fs::inode::Kind;

/// One of the users of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum User {
    /// Privileged.
    Root,
    /// User 1000 of group 1000, also in group 3000.
    First,
    /// User 2000 of group 2000, also in the group of [`User::First`].
    Second,
}

/// All of them.
pub const USERS: [User; 3] = [User::Root, User::First, User::Second];

/// The groups that `chown` sets in random programs.
pub const GROUPS: [u32; 4] = [0, 1000, 2000, 3000];

impl User {
    /// The user's IDs.
    pub fn credentials(self) -> Credentials {
        let (id, groups) = match self {
            Self::Root => return Credentials::root(),
            Self::First => (1000, vec![3000]),
            Self::Second => (2000, vec![1000]),
        };
        Credentials { groups, ..Credentials::user(id, id) }
    }
}

/// A number for a name of an entry; see [`Name::bytes`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Name(pub u8);

/// Numbers of names that an entry can have.
pub const NAMES: Range<u8> = 0..5;

/// A name that is too long.
pub const LONG_NAME: Name = Name(5);

/// Numbers of names that no new entry can have: one too long, `.` and `..`. Front ends resolve the
/// last two, so what removes or looks up entries never gets them.
pub const ODD_NAMES: Range<u8> = 5..8;

impl Name {
    /// The name itself.
    pub fn bytes(self) -> Vec<u8> {
        match self.0 {
            4 => [b"\xff \n".as_slice(), &[b'n'; 252]].concat(),
            5 => vec![b'n'; 256],
            6 => b".".to_vec(),
            7 => b"..".to_vec(),
            number => vec![b'a' + number % 26],
        }
    }
}

/// A number for a name of an extended attribute; see [`XattrName::bytes`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct XattrName(pub u8);

/// Numbers of names that an extended attribute can have.
pub const XATTR_NAMES: Range<u8> = 0..5;

/// Numbers of names that an extended attribute cannot have.
pub const ODD_XATTR_NAMES: Range<u8> = 5..10;

impl XattrName {
    /// The name itself.
    pub fn bytes(self) -> Vec<u8> {
        match self.0 {
            0 => b"user.a".to_vec(),
            1 => b"user.b".to_vec(),
            2 => b"trusted.a".to_vec(),
            3 => b"security.a".to_vec(),
            4 => [b"user.".as_slice(), &[b'x'; 250]].concat(),
            5 => [b"user.".as_slice(), &[b'x'; 251]].concat(),
            6 => b"user.".to_vec(),
            7 => b"other.a".to_vec(),
            8 => b"system.a".to_vec(),
            _ => Vec::new(),
        }
    }
}

/// A place for an inode. Slot 0 always has the root directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct InodeSlot(pub u8);

/// Slots for inodes.
pub const INODE_SLOTS: u8 = 8;

/// A place for a handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HandleSlot(pub u8);

/// Slots for handles.
pub const HANDLE_SLOTS: u8 = 4;

/// Bytes of a write or an attribute: `length` of them, which follow from `fill` and their place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fill {
    /// Which bytes.
    pub fill: u8,
    /// How many.
    pub length: u32,
}

impl Fill {
    /// The bytes. None is 0, and neighbours differ.
    pub fn bytes(self) -> Vec<u8> {
        let byte = |index: u32| {
            let mixed =
                (index + 1).wrapping_mul(0x9e37_79b1) ^ u32::from(self.fill).wrapping_mul(0x85eb_ca6b);
            (mixed >> 13) as u8 | 1
        };
        (0..self.length).map(byte).collect()
    }
}

/// One call of a [`sietch_fs::FileSystem`].
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "the fields are the arguments of the calls")]
pub enum Operation {
    /// The inode found goes to `into`.
    Lookup {
        user: User,
        directory: InodeSlot,
        name: Name,
        into: InodeSlot,
    },
    /// The inode goes to `into`.
    Parent {
        inode: InodeSlot,
        into: InodeSlot,
    },
    Attributes {
        inode: InodeSlot,
    },
    SetAttributes {
        user: User,
        inode: InodeSlot,
        handle: Option<HandleSlot>,
        change: AttributeChange,
    },
    ReadLink {
        inode: InodeSlot,
    },
    /// The target of a symbolic link has `target` bytes.
    Create {
        user: User,
        directory: InodeSlot,
        name: Name,
        kind: Kind,
        mode: u16,
        target: u16,
        into: InodeSlot,
    },
    CreateUnnamed {
        user: User,
        directory: InodeSlot,
        mode: u16,
        into: InodeSlot,
        handle: HandleSlot,
    },
    Link {
        user: User,
        inode: InodeSlot,
        directory: InodeSlot,
        name: Name,
    },
    Unlink {
        user: User,
        directory: InodeSlot,
        name: Name,
    },
    RemoveDirectory {
        user: User,
        directory: InodeSlot,
        name: Name,
    },
    Rename {
        user: User,
        from: (InodeSlot, Name),
        to: (InodeSlot, Name),
        mode: RenameMode,
    },
    Open {
        user: User,
        inode: InodeSlot,
        mode: OpenMode,
        into: HandleSlot,
    },
    OpenCreated {
        inode: InodeSlot,
        mode: OpenMode,
        into: HandleSlot,
    },
    Close {
        handle: HandleSlot,
    },
    /// Releases what the slot has.
    Forget {
        inode: InodeSlot,
    },
    Read {
        handle: HandleSlot,
        offset: u64,
        length: u32,
    },
    Write {
        user: User,
        handle: HandleSlot,
        at: WriteAt,
        data: Fill,
    },
    Allocate {
        user: User,
        handle: HandleSlot,
        range: Range<u64>,
        allocation: Allocation,
    },
    Seek {
        handle: HandleSlot,
        offset: u64,
        what: Seek,
    },
    Sync,
    /// Lists everything, `step` entries a call.
    List {
        handle: HandleSlot,
        step: u8,
    },
    Access {
        user: User,
        inode: InodeSlot,
        wanted: u8,
    },
    Xattr {
        user: User,
        inode: InodeSlot,
        name: XattrName,
    },
    XattrNames {
        user: User,
        inode: InodeSlot,
    },
    SetXattr {
        user: User,
        inode: InodeSlot,
        name: XattrName,
        value: Fill,
        mode: XattrMode,
    },
    RemoveXattr {
        user: User,
        inode: InodeSlot,
        name: XattrName,
    },
}

/// Operations in the order in which they run.
pub type Program = Vec<Operation>;

/// A program as text, an operation a line.
pub fn text(program: &[Operation]) -> String {
    program.iter().enumerate().map(|(step, operation)| format!("{step:>4} {operation:?}\n")).collect()
}
