//! `sietch mount`: the namespace of storage areas as a file system (`docs/spec/namespace.md`).
//!
//! 1. `DIR/VOLUME/NAME` is a file with the bytes of an area ([`filesystem`]). The kernel's FUSE
//!    sends requests to this program, which forwards them to the daemon as the user who mounted:
//!    the mount shows what that user may read. `DIR/VOLUME/NAME.view/` is the view that the area's
//!    holder shows of it ([`views`]).
//! 2. The mount stays until this program is interrupted or `DIR` is unmounted. It survives a
//!    restart of the daemon.
//! 3. An interrupt detaches the mount: open files become unreadable, and no process is kept
//!    waiting.
//! 4. After SIGKILL the mount stays and returns ENOTCONN for everything. The next `sietch mount` of
//!    that directory removes it, if it was Sietch's.

mod areas;
mod error;
mod filesystem;
mod nodes;
mod views;
mod workers;

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use fuser::{Config, MountOption, Session, SessionACL};
use rustix::mount::UnmountFlags;

use crate::administration;
use crate::arguments::mount::MountArguments;
use crate::error::Error;
use crate::output;
use crate::signals;
use filesystem::Names;

/// The source in the mount table.
const SOURCE: &str = "sietch";

/// Serves the mount until a signal or an unmount ends it.
///
/// # Errors
/// [`Error::Control`]: no daemon; [`Error::Mount`]: it cannot be mounted here.
pub(crate) fn run(socket: &Path, arguments: &MountArguments) -> Result<(), Error> {
    // Without a daemon the mount would be empty, so this fails at once.
    drop(administration::connect(socket)?);
    let directory = clear(&arguments.directory)?;
    let failed = |source| Error::Start { what: "a thread of the mount", source };
    let names = Names::new(socket, arguments.allow_other).map_err(failed)?;
    let mut config = Config::default();
    config.mount_options = vec![
        MountOption::RO,
        MountOption::NoSuid,
        MountOption::NoDev,
        MountOption::NoExec,
        MountOption::DefaultPermissions,
        MountOption::FSName(SOURCE.to_owned()),
    ];
    config.acl = if arguments.allow_other { SessionACL::All } else { SessionACL::Owner };
    // Before there is something that a signal would leave behind.
    let (woken, waker) = signals::stream().map_err(failed)?;
    let session = Session::new(names, &directory, &config).map_err(|source| refused(&directory, source))?;
    // The end of the session closes its end, which wakes as a signal does.
    let serving = std::thread::Builder::new()
        .name("mount".to_owned())
        .spawn(move || {
            let ended = session.run();
            drop(io::Write::write(&mut &waker, b"e"));
            ended
        })
        .map_err(failed)?;
    let said =
        output::print(&format!("{} shows the storage areas; Ctrl-C unmounts it\n", directory.display()));
    if said.is_ok() {
        signals::wait(woken);
    }
    if !serving.is_finished() {
        detach(&directory).map_err(|source| Error::Unmount { path: directory, source })?;
        // While a process has a file open, the kernel keeps the session: it ends with this process.
        return said;
    }
    match serving.join() {
        Ok(Ok(())) => said,
        Ok(Err(source)) => Err(Error::Mount { path: directory, source, fix: "mount it again".to_owned() }),
        Err(_) => Err(Error::Mount {
            path: directory,
            source: io::Error::other("its thread panicked"),
            fix: "mount it again".to_owned(),
        }),
    }
}

/// Why the kernel, or its helper, did not mount.
fn refused(directory: &Path, source: io::Error) -> Error {
    let root = rustix::process::geteuid().is_root();
    let fix = if !Path::new("/dev/fuse").exists() {
        "load FUSE (`modprobe fuse`), or read areas without it: `sietch vsa cat`"
    } else if root {
        "see whether the directory is there and this machine (or container) lets root mount"
    } else {
        "an ordinary user needs fusermount3 (Debian: `apt install fuse3`) and a directory of its own; or run as root, or \
         read areas without a mount: `sietch vsa cat`"
    };
    Error::Mount { path: directory.to_owned(), source, fix: fix.to_owned() }
}

/// Detaches the mount from its directory at once, even while it is in use.
fn detach(directory: &Path) -> io::Result<()> {
    match rustix::mount::unmount(directory, UnmountFlags::DETACH) {
        Ok(()) | Err(rustix::io::Errno::INVAL) => return Ok(()),
        Err(rustix::io::Errno::PERM) => {}
        Err(error) => return Err(error.into()),
    }
    let status = Command::new("fusermount3").args(["-u", "-z", "--"]).arg(directory).status()?;
    if status.success() { Ok(()) } else { Err(io::Error::other(format!("fusermount3 ended with {status}"))) }
}

/// The directory by its real name, cleared of what a killed `sietch mount` left there.
fn clear(directory: &Path) -> Result<PathBuf, Error> {
    let file = |source| Error::file(directory, "name a directory that is there")(source);
    // The kernel may have the attributes cached; opening the directory sends a request to the
    // process that serves it.
    let dead = match std::fs::read_dir(directory) {
        Ok(_) => false,
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::NOTCONN.raw_os_error()) => true,
        Err(error) => return Err(file(error)),
    };
    let real = real_path(directory).map_err(file)?;
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let ours = is_ours(&table, &real);
    if dead && ours {
        detach(&real).map_err(|source| Error::Unmount { path: real.clone(), source })?;
    } else if dead || ours {
        let (cause, fix) = if dead {
            ("another program's dead mount is there", "clear it with `umount -l` or `fusermount3 -u -z`")
        } else {
            ("the storage areas are shown there already", "use that, or name another directory")
        };
        return Err(Error::Mount { path: real, source: io::Error::other(cause), fix: fix.to_owned() });
    }
    Ok(real)
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

/// Whether what is mounted last at `directory` is a namespace of Sietch (`proc_pid_mountinfo(5)`).
fn is_ours(table: &str, directory: &Path) -> bool {
    let mut here = table.lines().filter_map(|line| {
        let (mount, file_system) = line.split_once(" - ")?;
        let point = unescape(mount.split(' ').nth(4)?);
        (Path::new(&point) == directory).then_some(file_system)
    });
    here.next_back().is_some_and(|file_system| {
        let mut words = file_system.split(' ');
        words.next().is_some_and(|kind| kind == "fuse" || kind.starts_with("fuse."))
            && words.next() == Some(SOURCE)
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
    fn only_a_mount_of_sietch_at_that_very_directory_is_its_own() {
        let table = "21 1 0:19 / /mnt/a\\040b rw - fuse sietch rw,user_id=0\n\
                     22 1 0:20 / /mnt/other rw - fuse /dev/fuse rw\n\
                     23 1 0:21 / /mnt/over rw - fuse sietch rw\n\
                     24 1 0:22 / /mnt/over rw - tmpfs sietch rw\n";
        for (directory, ours) in [
            ("/mnt/a b", true),
            ("/mnt/a", false),
            ("/mnt/other", false),
            ("/mnt/over", false),
            ("/mnt", false),
        ] {
            assert_eq!(is_ours(table, Path::new(directory)), ours, "{directory}");
        }
    }
}
