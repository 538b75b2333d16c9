//! Names of directory entries, and the order in which a directory lists them.
//!
//! 1. A name has 1 to 255 bytes, without `/` and NUL, and is not `.` or `..`.
//! 2. Entries are listed in the order of their [`Cookie`]s. A cookie follows from the name: 56 bits
//!    of a keyed hash, and a slot of 7 bits which distinguishes names with equal hashes. So it
//!    stays valid while other entries come and go, and after a restart (`telldir(3)`, NFS).
//! 3. The key belongs to the file system: a user who does not know it cannot prepare names that
//!    collide. A directory with 128 names of one hash refuses a further one (`ENOSPC`).

use rustix::io::Errno;
use siphasher::sip::SipHasher13;
use std::hash::Hasher as _;

/// Longest name, in bytes (`NAME_MAX`).
pub const MAX_NAME: usize = 255;

/// Names with equal hashes that a directory may have.
pub const SLOTS: u64 = 128;

/// Cookies below this one are for `.` and `..`, and for the beginning.
pub const FIRST_COOKIE: Cookie = Cookie(SLOTS);

/// The place of an entry in its directory: positive as an `off_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cookie(pub u64);

/// The key of a file system's name hashes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NameKey(pub [u8; 16]);

impl NameKey {
    /// The first of the [`SLOTS`] cookies that `name` may have.
    pub fn cookie(&self, name: &[u8]) -> Cookie {
        let mut hasher = SipHasher13::new_with_key(&self.0);
        hasher.write(name);
        // The top bit stays clear, and slot 0 of hash 0 is not used: see FIRST_COOKIE.
        let hash = (hasher.finish() >> 1) & !(SLOTS - 1);
        Cookie(hash.max(FIRST_COOKIE.0))
    }
}

/// Refuses what cannot be the name of an entry.
///
/// # Errors
/// `ENAMETOOLONG`, `EINVAL` (empty, `/` or NUL), `EEXIST` (`.` and `..`: every directory has them).
pub fn check(name: &[u8]) -> Result<(), Errno> {
    match name {
        _ if name.len() > MAX_NAME => Err(Errno::NAMETOOLONG),
        [] => Err(Errno::INVAL),
        b"." | b".." => Err(Errno::EXIST),
        _ if name.iter().any(|byte| matches!(byte, 0 | b'/')) => Err(Errno::INVAL),
        _ => Ok(()),
    }
}
