//! How a program that has a file of a mount open becomes a client of the file system itself.
//!
//! 1. The mount answers two requests by `ioctl(2)` on a descriptor.
//! 2. [`WAY`] says which inode a descriptor is of, and in which folder the service of the file
//!    system is ([`Way`]). The program connects there, takes a lease on the inode, and then reads
//!    and writes the file without the mount, which gives its own lease back with the answer.
//! 3. The kernel maps pages of the mount's. Before a program maps a file, it sends [`MAP`]. The
//!    mount notes the inode and takes its lease from every other client.
//! 4. A program sends [`WAY`] after each lease that it got. If the file is mapped it uses the
//!    mount. So either its question came after the mount's note, or its lease was taken back.
//!
//! The note lasts until the kernel forgets the inode. Programs that map files without step 3 may
//! see old pages.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

use crate::inode::InodeNumber;

/// Most bytes of an answer to [`WAY`].
pub const MAX_WAY: usize = 32 + 4096;
/// Asks where the file system of a descriptor is: `_IOR('S', 1, char[MAX_WAY])` of
/// `asm-generic/ioctl.h`. Returns the bytes of the answer ([`Way::to_bytes`]).
pub const WAY: u32 = (2 << 30) | ((MAX_WAY as u32) << 16) | LETTER | 1;
/// Says that the file will be mapped: `_IO('S', 2)`. Returns 0.
pub const MAP: u32 = LETTER | 2;

/// What distinguishes the requests from those of other drivers.
const LETTER: u32 = (b'S' as u32) << 8;

// A size has 14 bits there.
const _: () = assert!(MAX_WAY < 1 << 14);

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
    /// The answer to [`WAY`]: number, `m` or `-`, and folder, with a space between them.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mapped = if self.is_mapped { 'm' } else { '-' };
        let mut bytes = format!("{} {mapped} ", self.inode.0).into_bytes();
        bytes.extend_from_slice(self.folder.as_os_str().as_bytes());
        bytes
    }

    /// Parses such an answer. `None`: it is none.
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
