//! Who may do what to an inode: the rules of POSIX, as Linux applies them.
//!
//! The client asks before it changes anything. The service asks again before it applies a change of
//! a client that it does not trust.

use rustix::io::Errno;

use crate::inode::{Attributes, Kind, SET_GID, STICKY, Timestamp};

/// Permission to read a file, or to list a directory.
pub const READ: u8 = 4;
/// Permission to change a file, or the entries of a directory.
pub const WRITE: u8 = 2;
/// Permission to execute a file, or to look names up in a directory.
pub const EXECUTE: u8 = 1;

/// The user on whose behalf an operation runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Credentials {
    /// File-system user ID.
    pub uid: u32,
    /// File-system group ID.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
    /// Holds the capabilities of root over files (`CAP_DAC_OVERRIDE`, `CAP_FOWNER`, `CAP_CHOWN`,
    /// `CAP_FSETID`, `CAP_MKNOD`).
    pub is_privileged: bool,
}

impl Credentials {
    /// Root's.
    pub fn root() -> Self {
        Self { uid: 0, gid: 0, groups: Vec::new(), is_privileged: true }
    }

    /// An ordinary user's, with one group.
    pub fn user(uid: u32, gid: u32) -> Self {
        Self { uid, gid, groups: Vec::new(), is_privileged: false }
    }

    /// Whether the user is in the group.
    pub fn is_member(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }

    /// Whether the user may do what only the owner may.
    pub fn owns(&self, inode: &Attributes) -> bool {
        self.is_privileged || self.uid == inode.uid
    }

    /// Checks the permissions in `wanted`, a sum of [`READ`], [`WRITE`] and [`EXECUTE`].
    ///
    /// # Errors
    /// `EACCES`.
    pub fn check(&self, inode: &Attributes, wanted: u8) -> Result<(), Errno> {
        if self.is_privileged {
            let executable = inode.kind == Kind::Directory || inode.mode & 0o111 != 0;
            return if wanted & EXECUTE == 0 || executable { Ok(()) } else { Err(Errno::ACCESS) };
        }
        let granted = if self.uid == inode.uid {
            inode.mode >> 6
        } else if self.is_member(inode.gid) {
            inode.mode >> 3
        } else {
            inode.mode
        };
        if u16::from(wanted) & !granted & 7 == 0 { Ok(()) } else { Err(Errno::ACCESS) }
    }

    /// Checks that the user may remove or rename `entry`, whose directory it may write.
    ///
    /// # Errors
    /// `EPERM`: the directory is sticky, and the user owns neither of the two.
    pub fn check_sticky(&self, directory: &Attributes, entry: &Attributes) -> Result<(), Errno> {
        let allowed = directory.mode & STICKY == 0 || self.owns(directory) || self.owns(entry);
        if allowed { Ok(()) } else { Err(Errno::PERM) }
    }

    /// The mode that `chmod(2)` sets: without set-group-ID where the user is not in the group. The
    /// kernel makes no difference between files and directories here.
    pub fn allowed_mode(&self, gid: u32, mode: u16) -> u16 {
        if self.is_privileged || self.is_member(gid) { mode } else { mode & !SET_GID }
    }
}

/// Whose operation it is, and when.
#[derive(Clone, Copy, Debug)]
pub struct Caller<'a> {
    /// The user.
    pub credentials: &'a Credentials,
    /// The time that the operation sets.
    pub now: Timestamp,
}
