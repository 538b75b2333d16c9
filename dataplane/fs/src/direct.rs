//! How a program that has a file of a mount open becomes a client of the file system itself.
//!
//! 1. The mount answers for two extended attributes that no file has and no list shows. A program
//!    that may read a file may read them.
//! 2. [`WAY`] says which inode a descriptor is of, and in which folder the service of the file
//!    system is ([`Way`]). The program connects there, takes a lease on the inode, and then reads
//!    and writes the file without the mount.
//! 3. The kernel maps pages of the mount's. Before a program maps a file, it reads [`MAP`]. The
//!    mount notes the inode and takes its lease from every other client.
//! 4. A program reads [`WAY`] after each lease that it got. If the file is mapped it uses the
//!    mount. So either its question came after the mount's note, or its lease was taken back.
//!
//! The note lasts until the kernel forgets the inode. Programs that map files without step 3 may
//! see old pages.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

use crate::inode::InodeNumber;

/// The attribute that says where the file system of a descriptor is.
pub const WAY: &str = "user.sietch.direct";
/// The attribute whose reading says that the file will be mapped. Its value is empty.
pub const MAP: &str = "user.sietch.map";
/// Most bytes of a value of [`WAY`].
pub const MAX_WAY: usize = 32 + 4096;

/// Whether an attribute has one of these names: no program sets it.
pub fn is_reserved(name: &[u8]) -> bool {
    [WAY, MAP].iter().any(|reserved| reserved.as_bytes() == name)
}

/// What a mount says of a descriptor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Way {
    /// The inode.
    pub inode: InodeNumber,
    /// Programs have mapped it.
    pub is_mapped: bool,
    /// The folder of the file system.
    pub folder: PathBuf,
}

impl Way {
    /// The value of [`WAY`]: number, `m` or `-`, and folder, with a space between them.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mapped = if self.is_mapped { 'm' } else { '-' };
        let mut bytes = format!("{} {mapped} ", self.inode.0).into_bytes();
        bytes.extend_from_slice(self.folder.as_os_str().as_bytes());
        bytes
    }

    /// Parses such a value. `None`: it is none.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let mut parts = bytes.splitn(3, |byte| *byte == b' ');
        let inode = std::str::from_utf8(parts.next()?).ok()?.parse().ok()?;
        let is_mapped = match parts.next()? {
            b"m" => true,
            b"-" => false,
            _ => return None,
        };
        let folder = PathBuf::from(OsStr::from_bytes(parts.next()?));
        folder.is_absolute().then_some(Self { inode: InodeNumber(inode), is_mapped, folder })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_way_is_read_as_it_was_written() {
        for (is_mapped, folder) in [(false, "/srv/data"), (true, "/a folder/with  spaces")] {
            let way = Way { inode: InodeNumber(u64::MAX), is_mapped, folder: folder.into() };
            assert_eq!(Way::from_bytes(&way.to_bytes()), Some(way));
        }
    }

    #[test]
    fn what_is_no_way_is_refused() {
        for wrong in ["", "7", "7 -", "7 - relative", "7 x /srv", "x - /srv", "-1 - /srv", "7  /srv"] {
            assert_eq!(Way::from_bytes(wrong.as_bytes()), None, "{wrong:?}");
        }
    }
}
