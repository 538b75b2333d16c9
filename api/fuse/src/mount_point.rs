//! The directory on which a file system is mounted.
//!
//! 1. After SIGKILL a mount stays, and returns ENOTCONN for everything. The next mount of that
//!    directory clears it, if it was Sietch's.
//! 2. A directory on which Sietch serves already is refused: a second mount would hide the first.
//! 3. A mount is never removed by its path after the kernel has ended it: what is there then is
//!    another's. `fuser` 0.18 does that where it mounted itself, so a process that may mount does
//!    so here ([`attach`]). An ordinary user needs `fusermount3`, and `fuser` for it.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};

use crate::error::MountError;
use crate::options::Options;

/// Unmounts `directory`, if nothing uses it or `flags` say so.
pub(crate) fn unmount(directory: &Path, flags: UnmountFlags) -> io::Result<()> {
    match rustix::mount::unmount(directory, flags) {
        // EINVAL: it is not mounted any more.
        Ok(()) | Err(Errno::INVAL) => return Ok(()),
        Err(Errno::PERM) => {}
        Err(error) => return Err(error.into()),
    }
    let lazy: &[&str] = if flags.contains(UnmountFlags::DETACH) { &["-z"] } else { &[] };
    let status = Command::new("fusermount3").arg("-u").args(lazy).arg("--").arg(directory).status()?;
    if status.success() { Ok(()) } else { Err(io::Error::other(format!("fusermount3 ended with {status}"))) }
}

/// Mounts FUSE on `directory`, and returns the descriptor that serves it; none if only the
/// privileged helper may mount.
pub(crate) fn attach(directory: &Path, options: &Options) -> io::Result<Option<OwnedFd>> {
    let device = File::options().read(true).write(true).open("/dev/fuse")?;
    let kind = directory.metadata()?.mode();
    let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    let others = if options.allow_other { ",allow_other" } else { "" };
    let data = format!(
        "fd={},rootmode={kind:o},user_id={uid},group_id={gid},default_permissions{others}",
        device.as_raw_fd()
    );
    // No read changes the last access.
    let mut flags = MountFlags::NOATIME;
    flags.set(MountFlags::RDONLY, options.read_only);
    flags.set(MountFlags::NOEXEC, !options.executable);
    flags.set(MountFlags::NOSUID | MountFlags::NODEV, !options.trusted);
    let data = CString::new(data)?;
    match rustix::mount::mount(&options.source, directory, "fuse", flags, data.as_c_str()) {
        Ok(()) => Ok(Some(device.into())),
        Err(Errno::PERM) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// What [`attach`] mounted, until the kernel has ended it. Dropping it detaches it.
pub(crate) struct Attached(pub(crate) Option<PathBuf>);

impl Drop for Attached {
    fn drop(&mut self) {
        if let Some(directory) = self.0.take()
            && let Err(error) = unmount(&directory, UnmountFlags::DETACH)
        {
            tracing::warn!(directory = %directory.display(), %error, "cannot detach a mount");
        }
    }
}

/// The directory by its real name, cleared of what a killed mount of `source` left there.
pub(crate) fn clear(directory: &Path, source: &str) -> Result<PathBuf, MountError> {
    let failed = |source| MountError::Directory { directory: directory.to_owned(), source };
    // The kernel may have the attributes cached; opening the directory sends a request to the
    // process that serves it.
    let dead = match std::fs::read_dir(directory) {
        Ok(_) => false,
        Err(error) if error.raw_os_error() == Some(Errno::NOTCONN.raw_os_error()) => true,
        Err(error) => return Err(failed(error)),
    };
    let real = real_path(directory).map_err(failed)?;
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let ours = is_ours(&table, &real, source);
    let cause = match (dead, ours) {
        (false, false) => return Ok(real),
        (true, true) => {
            return match unmount(&real, UnmountFlags::DETACH) {
                Ok(()) => Ok(real),
                Err(source) => Err(MountError::Unmount { directory: real, source }),
            };
        }
        (true, false) => "another program's dead mount is there; clear it with `umount -l`",
        (false, true) => "this is mounted there already; use that, or name another directory",
    };
    Err(MountError::Taken { directory: real, cause })
}

/// A path without links, also where its last part cannot be queried.
fn real_path(directory: &Path) -> io::Result<PathBuf> {
    if let Ok(real) = directory.canonicalize() {
        return Ok(real);
    }
    let absolute = std::path::absolute(directory)?;
    match (absolute.parent(), absolute.file_name()) {
        (Some(parent), Some(name)) => Ok(parent.canonicalize()?.join(name)),
        _ => Ok(absolute),
    }
}

/// Whether what is mounted last at `directory` is FUSE with this source (`proc_pid_mountinfo(5)`).
fn is_ours(table: &str, directory: &Path, source: &str) -> bool {
    let mut here = table.lines().filter_map(|line| {
        let (mount, file_system) = line.split_once(" - ")?;
        let point = unescape(mount.split(' ').nth(4)?);
        (Path::new(&point) == directory).then_some(file_system)
    });
    here.next_back().is_some_and(|file_system| {
        let mut words = file_system.split(' ');
        words.next().is_some_and(|kind| kind == "fuse" || kind.starts_with("fuse."))
            && words.next().is_some_and(|word| unescape(word) == source)
    })
}

/// The mount table writes a few characters as three octal digits.
fn unescape(text: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")]
        .iter()
        .fold(text.to_owned(), |text, (code, plain)| text.replace(code, plain))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_last_mount_of_that_very_directory_and_source_is_ours() {
        let table = "21 1 0:19 / /mnt/a\\040b rw - fuse sietch-fs rw,user_id=0\n\
                     22 1 0:20 / /mnt/other rw - fuse /dev/fuse rw\n\
                     23 1 0:21 / /mnt/over rw - fuse sietch-fs rw\n\
                     24 1 0:22 / /mnt/over rw - tmpfs sietch-fs rw\n";
        for (directory, ours) in [
            ("/mnt/a b", true),
            ("/mnt/a", false),
            ("/mnt/other", false),
            ("/mnt/over", false),
            ("/mnt", false),
        ] {
            assert_eq!(is_ours(table, Path::new(directory), "sietch-fs"), ours, "{directory}");
        }
        assert!(!is_ours(table, Path::new("/mnt/a b"), "sietch"));
    }
}
