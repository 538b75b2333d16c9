//! `sietch kv backup` and `sietch kv restore`.
//!
//! 1. A backup reads the area through a descriptor that only reads, which the daemon gives to the
//!    area's user and to administrators, or piece by piece where there can be none ([`pieces`]).
//!    The store goes on meanwhile.
//! 2. To a pipe it is written when all of it is in memory. A file is written beside its name by a
//!    process whose pipe it is, and takes the name once it is whole and durable. Until then it is
//!    locked ([`lock_partial`]), so that two backups never write or rename one file.
//! 3. A restore acquires the area as a store does: from the daemon, which makes an area that is
//!    missing and notes its owner. Without a daemon it runs one meanwhile, that of `sietch up`, and
//!    a process of its own does the rest.
//! 4. What the store, or another user, has written is read as the area's user, not as root.

mod pieces;

use std::fs::{File, OpenOptions};
use std::io::{BufReader, BufWriter, ErrorKind, IsTerminal as _, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::fs::{FlockOperation, OFlags, flock};
use sietch::disk::{AreaQueue, BlockingQueue};
use sietch_kv::backup::{BackupError, Image};
use sietch_protocol::Connection;

use crate::administration;
use crate::arguments::{Account, BackupArguments, RestoreArguments};
use crate::error::Error;
use crate::paths;
use crate::privilege;
use crate::style;
use crate::up::{self, Places};
use pieces::PieceQueue;

/// The name of standard input and output.
const PIPE: &str = "-";

fn failed(cause: BackupError) -> Error {
    Error::Store(Box::new(cause))
}

/// A backup that cannot be restored, by the name of its file.
fn unreadable(file: &Path, cause: &BackupError) -> Error {
    let file = if file.as_os_str() == PIPE { Path::new("standard input") } else { file };
    Error::Store(format!("{}: {cause}", file.display()).into())
}

fn area_failed(cause: impl std::fmt::Display) -> BackupError {
    BackupError::Area(cause.to_string())
}

/// Writes a backup of a store that may be running.
///
/// # Errors
/// [`Error::Control`]: no daemon, or it refuses; [`Error::Store`]: what [`Image`] says.
pub(crate) fn backup(socket: &Path, arguments: &BackupArguments) -> Result<(), Error> {
    if arguments.file.as_os_str() != PIPE {
        return write_file(socket, arguments);
    }
    if std::io::stdout().is_terminal() {
        return Err(Error::BackupToTerminal);
    }
    let mut image = read_area(socket, &arguments.vsa)?;
    image.write(&mut BufWriter::with_capacity(1 << 20, std::io::stdout().lock())).map_err(failed)?;
    let keys = style::grouped(image.keys());
    say(&format!("{}: {keys} keys as of record {} of its log are backed up", arguments.vsa, image.sequence));
    Ok(())
}

fn read_area(socket: &Path, name: &str) -> Result<Image, Error> {
    let mut connection = administration::connect(socket)?;
    let (area, file) = connection.read_vsa(name)?;
    become_user(area.uid)?;
    let Some(file) = file else {
        let mut connection = Some(connection);
        return Image::of_log(&mut || {
            let connection = match connection.take() {
                Some(connection) => connection,
                None => administration::connect(socket).map_err(area_failed)?,
            };
            Ok(PieceQueue::new(connection, area.path.clone(), area.size))
        })
        .map_err(failed);
    };
    Image::of_log(&mut || open_copy(&file)).map_err(failed)
}

/// Gives up root for the area's user.
fn become_user(uid: u32) -> Result<(), Error> {
    if rustix::process::geteuid().is_root() && uid != 0 {
        privilege::give_up(Account { uid, gid: uid })?;
    }
    Ok(())
}

/// A queue over all of a file as it is now: an area may have grown.
fn open_copy(file: &OwnedFd) -> Result<BlockingQueue, BackupError> {
    let file = File::from(file.try_clone().map_err(area_failed)?);
    let size = file.metadata().map_err(area_failed)?.len();
    let whole = size - size % sietch::disk::BLOCK as u64;
    BlockingQueue::open(file.into(), whole).map_err(area_failed)
}

/// The fix where a backup cannot be written.
const FIX: &str = "name a file that you may write, on a disk with room";

/// The fix where the name of the unfinished file is taken.
const REMOVE: &str = "remove it, or name another file for the backup";

/// Writes a file that only its owner reads, whole or not at all.
fn write_file(socket: &Path, arguments: &BackupArguments) -> Result<(), Error> {
    let path = arguments.file.as_path();
    let mut name = path.as_os_str().to_owned();
    name.push(".partial");
    let partial = PathBuf::from(name);
    let file = lock_partial(&partial)?;
    let failed = |source| Error::Start { what: "backup", source };
    let written = file.try_clone().and_then(|out| {
        let mut writer = own_program(socket);
        writer.args(["kv", "backup", PIPE, "--vsa", &arguments.vsa]).stdout(out).status()
    });
    match written.map_err(failed) {
        Ok(status) if status.success() => {}
        outcome => {
            // The first error is the one to report, and the other process has done so.
            if is_at(&file, &partial) {
                let _ = std::fs::remove_file(&partial);
            }
            std::process::exit(outcome?.code().unwrap_or(1));
        }
    }
    file.sync_all().map_err(Error::file(&partial, FIX))?;
    take_name(&file, &partial, path)?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(Error::file(folder, FIX))
}

/// Gives a file that is whole its name. No other backup removes it before: this one has its lock.
///
/// # Errors
/// [`Error::BackupReplaced`]: the file is not at `partial` any more. [`Error::File`].
fn take_name(file: &File, partial: &Path, path: &Path) -> Result<(), Error> {
    if !is_at(file, partial) {
        return Err(Error::BackupReplaced { path: partial.to_owned() });
    }
    std::fs::rename(partial, path).map_err(Error::file(path, FIX))
}

/// Makes the file that a backup writes. Its lock lasts until the descriptor, and that of the
/// process that writes, are closed.
///
/// A backup removes a file of that name only while it has the lock of this file: the maker has
/// ended. A file that it cannot open stays, because it may be another backup's by then. What
/// another user has put there is neither followed nor written to.
///
/// # Errors
/// [`Error::BackupRuns`]: another backup has the lock. [`Error::File`].
fn lock_partial(partial: &Path) -> Result<File, Error> {
    let lock = |file: &File| flock(file, FlockOperation::NonBlockingLockExclusive);
    let busy = || Error::BackupRuns { path: partial.to_owned() };
    // Each round ends early only if another backup has begun meanwhile.
    for _ in 0..16 {
        let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(partial);
        match made {
            Ok(file) if lock(&file).is_ok() && is_at(&file, partial) => return Ok(file),
            Ok(_) => continue,
            Err(source) if source.kind() == ErrorKind::AlreadyExists => {}
            Err(source) => return Err(Error::file(partial, FIX)(source)),
        }
        let flags = OFlags::NOFOLLOW.union(OFlags::NONBLOCK).bits().cast_signed();
        let left = OpenOptions::new().write(true).custom_flags(flags).open(partial);
        let left = match left {
            Ok(file) if lock(&file).is_err() => return Err(busy()),
            Ok(file) => file,
            // It has got its name, or another backup has removed it.
            Err(source) if source.kind() == ErrorKind::NotFound => continue,
            Err(source) => return Err(Error::file(partial, REMOVE)(source)),
        };
        if is_at(&left, partial) {
            std::fs::remove_file(partial).map_err(Error::file(partial, FIX))?;
        }
    }
    Err(busy())
}

/// Returns whether `path` is the name of this open file.
fn is_at(file: &File, path: &Path) -> bool {
    let identity = |metadata: std::fs::Metadata| (metadata.dev(), metadata.ino());
    match (file.metadata(), std::fs::symlink_metadata(path)) {
        (Ok(file), Ok(named)) => identity(file) == identity(named),
        _ => false,
    }
}

/// `sietch` with the daemon at `socket`.
fn own_program(socket: &Path) -> Command {
    let mut command = Command::new(up::child::program());
    command.arg0("sietch").arg("--socket").arg(socket).stdin(Stdio::null());
    command
}

/// Restores a backup into the area of a store that does not run.
///
/// # Errors
/// As [`backup`]. The area is as it was then, unless the message says otherwise.
pub(crate) fn restore(socket: Option<PathBuf>, arguments: &RestoreArguments) -> Result<(), Error> {
    let places = Places::of(&arguments.control, socket)?;
    if let Some(instance) = up::instance::find(&paths::record(&places.socket))? {
        return Err(Error::StoreRuns { pid: instance.pid });
    }
    let Some(daemon) = Daemon::reach(&places)? else {
        return restore_through(&places.socket, arguments);
    };
    // The kernel tells the daemon of the end of this process by the rights that this process has
    // then. So this one keeps them, and another one restores.
    let mut worker = own_program(&places.socket);
    worker.stdin(Stdio::inherit()).args(["kv", "restore", "--vsa", &arguments.vsa]);
    worker.arg("--config").arg(&places.file).arg("--data").arg(&places.data);
    worker.args(arguments.replace.then_some("--replace")).arg("--").arg(&arguments.file);
    let status = worker.status().map_err(|source| Error::Start { what: "restore", source })?;
    drop(daemon);
    if status.success() { Ok(()) } else { std::process::exit(status.code().unwrap_or(1)) }
}

/// Restores into an area of the daemon at `socket`.
fn restore_through(socket: &Path, arguments: &RestoreArguments) -> Result<(), Error> {
    let mut input = open_backup(&arguments.file)?;
    let name = arguments.vsa.as_str();
    become_user(user_of(&mut administration::connect(socket)?, name)?)?;
    let (header, image) = Image::read(&mut input).map_err(|cause| unreadable(&arguments.file, &cause))?;
    let queue = acquire(socket, name)?;
    let mut identity = [0; 16];
    File::open("/dev/urandom")
        .and_then(|mut random| random.read_exact(&mut identity))
        .map_err(Error::file(Path::new("/dev/urandom"), "let this user read it"))?;
    image.restore(queue, u128::from_ne_bytes(identity), arguments.replace).map_err(failed)?;
    let keys = style::grouped(header.keys);
    say(&format!("{name}: {keys} keys are restored; start the store with `sietch up`"));
    Ok(())
}

fn open_backup(path: &Path) -> Result<Box<dyn std::io::Read>, Error> {
    if path.as_os_str() == PIPE {
        return Ok(Box::new(BufReader::new(std::io::stdin())));
    }
    let file = File::open(path).map_err(Error::file(path, "name a file that `sietch kv backup` wrote"))?;
    Ok(Box::new(BufReader::with_capacity(1 << 20, file)))
}

/// The user that may have an area.
fn user_of(connection: &mut Connection, name: &str) -> Result<u32, Error> {
    let named = connection.status()?.vsas.into_iter().find(|vsa| vsa.name == name);
    if let Some(vsa) = named {
        return Ok(vsa.uid);
    }
    let path = if name.starts_with('/') { name.to_owned() } else { format!("/main/{name}") };
    let found = connection.vsas()?.into_iter().find(|area| area.path == path);
    found.map(|area| area.uid).ok_or_else(|| Error::NoSuchArea { name: name.to_owned() })
}

fn acquire(socket: &Path, name: &str) -> Result<AreaQueue, Error> {
    let mut client = sietch::Client::connect(socket, "kv-restore")?;
    Ok(client.acquire_vsa(name)?.queue)
}

/// A daemon that runs as long as this is kept.
struct Daemon(Child, Connection);

impl Daemon {
    /// Starts one, if none runs.
    fn reach(places: &Places) -> Result<Option<Self>, Error> {
        if administration::connect(&places.socket).is_ok() {
            return Ok(None);
        }
        let failed = |source| Error::Start { what: "daemon", source };
        let mut child = own_program(&places.socket)
            .args(["daemon", "--without-network", "--config"])
            .arg(&places.file)
            .arg("--data")
            .arg(&places.data)
            .args(["--parent", &std::process::id().to_string()])
            .stdout(Stdio::piped())
            .spawn()
            .map_err(failed)?;
        let mut ready = [0];
        let said = child.stdout.take().map_or(Ok(0), |mut pipe| pipe.read(&mut ready)).map_err(failed)?;
        if said == 0 {
            let status = child.wait().map_err(failed)?;
            return Err(failed(std::io::Error::other(format!("{status}; it says why above"))));
        }
        let connection = administration::connect(&places.socket)?;
        Ok(Some(Self(child, connection)))
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let Self(child, connection) = self;
        // A daemon that does not answer ends with this process, at a signal of the kernel.
        if connection.shutdown().is_ok() {
            let _ = child.wait();
        }
    }
}

/// A line on standard error: standard output may be the backup.
fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder that is removed at the end of its test.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("sietch-backup-{name}-{}", std::process::id()));
            std::fs::create_dir(&path).expect("make a folder");
            Self(path)
        }

        /// The unfinished file, and the name of the whole one.
        fn names(&self) -> (PathBuf, PathBuf) {
            (self.0.join("b.partial"), self.0.join("b"))
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    /// Backups of one file, each of which makes, locks and names it in a loop.
    #[test]
    fn a_locked_file_is_removed_by_no_other_backup() {
        const THREADS: usize = 8;
        const ROUNDS: usize = 20_000;
        let folder = Folder::new("race");
        let (partial, path) = folder.names();
        let named = std::thread::scope(|scope| {
            let backup = || {
                let mut named = 0;
                for _ in 0..ROUNDS {
                    if let Ok(file) = lock_partial(&partial) {
                        take_name(&file, &partial, &path).expect("it is still there");
                        named += 1;
                    }
                }
                named
            };
            let threads = [(); THREADS].map(|()| scope.spawn(backup));
            threads.into_iter().map(|thread| thread.join().expect("no panic")).sum::<usize>()
        });
        assert!(named > 0, "none had the lock");
        assert!(!partial.exists() && path.exists());
    }

    #[test]
    fn a_file_that_was_replaced_gets_no_name() {
        let folder = Folder::new("replaced");
        let (partial, path) = folder.names();
        let file = lock_partial(&partial).expect("the lock");
        std::fs::remove_file(&partial).expect("remove");
        let other = lock_partial(&partial).expect("the lock of another one");
        assert!(matches!(take_name(&file, &partial, &path), Err(Error::BackupReplaced { .. })));
        assert!(is_at(&other, &partial) && !path.exists());
        take_name(&other, &partial, &path).expect("its name");
        assert!(is_at(&other, &path));
    }

    #[test]
    fn a_link_is_neither_followed_nor_removed() {
        let folder = Folder::new("link");
        let (partial, target) = folder.names();
        std::fs::write(&target, "whole").expect("write");
        std::os::unix::fs::symlink(&target, &partial).expect("link");
        assert!(matches!(lock_partial(&partial), Err(Error::File { .. })));
        assert!(partial.is_symlink());
        assert_eq!(std::fs::read(&target).expect("read"), b"whole");
    }
}
