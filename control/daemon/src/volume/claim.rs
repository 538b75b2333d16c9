//! One daemon on one volume.
//!
//! 1. A volume is claimed by a lock on the directory, file or device itself (`flock`). The lock
//!    leaves nothing behind, and the kernel releases it however the daemon ends. `/proc/locks`
//!    names the process that has it.
//! 2. A block device is opened with `O_EXCL` as well. The kernel refuses that while the device is
//!    mounted, swapped to, or part of another device.
//! 3. A reload opens volumes again while the previous ones are still open. A volume in the same
//!    place keeps its claim: [`PreviousClaims`] has the claims that no volume has taken over yet.
//!    Two volumes of one file in the same place are refused.

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;

/// Kept as long as the volume is open.
pub(crate) struct Claim {
    file: File,
    /// Device and inode.
    identity: (u64, u64),
    block_device: bool,
}

/// Claims of a previous configuration that may be taken over.
pub(crate) type PreviousClaims = Vec<Arc<Claim>>;

impl Claim {
    /// Claims the directory `path`. On failure returns the reason and the fix.
    pub(crate) fn directory(path: &Path, previous: &mut PreviousClaims) -> Result<Arc<Self>, String> {
        Self::take(path, OFlags::RDONLY | OFlags::DIRECTORY, previous)
    }

    /// Claims the file or block device `path`, for reading and writing. On failure returns the
    /// reason and the fix.
    pub(crate) fn storage(path: &Path, previous: &mut PreviousClaims) -> Result<Arc<Self>, String> {
        // Without CREATE the kernel minds EXCL of block devices alone.
        Self::take(path, OFlags::RDWR | OFlags::EXCL, previous)
    }

    fn take(path: &Path, flags: OFlags, previous: &mut PreviousClaims) -> Result<Arc<Self>, String> {
        let shown = path.display();
        let metadata = path
            .metadata()
            .map_err(|error| format!("{shown}: {error}; see whether its file system is mounted"))?;
        let named = |claim: &Arc<Self>| same(claim, &metadata);
        if let Some(at) = previous.iter().position(named) {
            return Ok(previous.swap_remove(at));
        }
        let opened = rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty());
        let file = File::from(opened.map_err(|error| match error {
            Errno::BUSY => format!(
                "{shown} is mounted, swapped to, or part of something else; free it first, or name another device"
            ),
            error => format!("{shown}: cannot open it: {error}; see who owns it"),
        })?);
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Err(in_use(path, &file)),
            Err(error) => {
                return Err(format!(
                    "{shown} cannot be locked ({error}), and two daemons on it would destroy it; use another file system"
                ));
            }
        }
        // The file may have been replaced before it was locked.
        let now = file.metadata().map_err(|error| format!("{shown}: {error}; try again"))?;
        let identity = identity(&now);
        Ok(Arc::new(Self { file, identity, block_device: now.file_type().is_block_device() }))
    }

    /// The file or device, opened for reading and writing.
    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// Whether it is a block device.
    pub(crate) fn is_block_device(&self) -> bool {
        self.block_device
    }
}

fn identity(metadata: &std::fs::Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

fn same(claim: &Arc<Claim>, metadata: &std::fs::Metadata) -> bool {
    claim.identity == identity(metadata)
}

/// The process that has it, as far as the kernel reports it.
fn in_use(path: &Path, file: &File) -> String {
    let shown = path.display();
    match holder(file) {
        Some(pid) if pid == std::process::id() => {
            format!("{shown} is another volume of the same file already; name another place")
        }
        Some(pid) => format!(
            "{shown} is in use by pid {pid}, another daemon perhaps; end that process, or name another place"
        ),
        None => format!("{shown} is in use by another process; end that process, or name another place"),
    }
}

/// The process that has an exclusive lock on `file`.
fn holder(file: impl AsFd) -> Option<u32> {
    let stat = rustix::fs::fstat(file).ok()?;
    let (major, minor) = (rustix::fs::major(stat.st_dev), rustix::fs::minor(stat.st_dev));
    let place = format!("{major:02x}:{minor:02x}:{}", stat.st_ino);
    let locks = std::fs::read_to_string("/proc/locks").ok()?;
    locks.lines().find_map(|line| {
        // `1: FLOCK  ADVISORY  WRITE 1234 08:01:5678 0 EOF`; those that wait have `->` behind the
        // number.
        let words: Vec<&str> = line.split_whitespace().collect();
        let [_, "FLOCK", _, "WRITE", pid, at, ..] = words[..] else { return None };
        (at == place).then(|| pid.parse().ok()).flatten()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_claimed_once_and_the_other_is_named() {
        let path = std::env::temp_dir().join(format!("sietch-claim-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        let first = Claim::directory(&path, &mut Vec::new()).unwrap();
        let refused = Claim::directory(&path, &mut Vec::new()).err().unwrap();
        assert!(refused.contains("another volume of the same file"), "{refused}");
        let mut previous = vec![Arc::clone(&first)];
        let taken_over = Claim::directory(&path, &mut previous).unwrap();
        assert!(previous.is_empty() && Arc::ptr_eq(&first, &taken_over));
        drop((first, taken_over));
        Claim::directory(&path, &mut Vec::new()).unwrap();
        std::fs::remove_dir(&path).unwrap();
        assert!(Claim::directory(&path, &mut Vec::new()).is_err());
    }
}
