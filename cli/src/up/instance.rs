//! The record of a running `sietch up`: its processes, and where its store answers.
//!
//! 1. The record is beside the daemon's socket, and every user may read it. A second file beside
//!    it is mode 0600.
//! 2. The owner holds an exclusive `flock` on the second file while it runs, and the kernel
//!    releases that lock however the owner ends. So a record without a lock is a leftover.
//! 3. Each version of the record is a new file that takes the name, so that a reader never finds
//!    half of one.
//! 4. The lock is not on the record: a user who can open a file can lock it, and could so keep an
//!    instance from starting, or have a leftover taken for an instance.
//! 5. The owner removes both files at the end. A claimant that gets the lock checks that the file
//!    still has its name, because the former owner may have removed it in between.
//! 6. Other users cannot test the lock. To them a record counts if its process runs; they only
//!    display it.

use std::fs::File;
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde::{Deserialize, Serialize};
use sietch::StartupReport;

use crate::error::Error;
use crate::style::escaped;

/// `sietch status` takes the lock for microseconds, which must not count as a running instance.
const LOCK_TRIES: u32 = 5;

/// Between two tries.
const LOCK_PAUSE: Duration = Duration::from_millis(10);

/// What is said of a file system that was unmounted on purpose.
pub(crate) const UNMOUNTED: &str = "it stays unmounted until `sietch reload`";

/// The largest record that is read.
const MAX_RECORD: u64 = 64 * 1024;

/// The record of an instance.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Record {
    /// The process of `sietch up`.
    pub pid: i32,
    /// The store's process.
    pub store: Option<u32>,
    /// The data directory.
    pub data: PathBuf,
    /// The store's startup report, once it serves.
    pub ready: Option<StartupReport>,
    /// What does not run although it should.
    pub failing: Vec<Failing>,
    /// File systems that were unmounted on purpose. While there are any, SIGUSR1 mounts them again.
    pub unmounted: Vec<String>,
}

/// A part that could not be started several times, and is tried again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Failing {
    /// As in `the store`.
    pub part: String,
    /// Starts that failed in a row.
    pub attempts: u32,
    /// Why the last one did.
    pub why: String,
}

impl std::fmt::Display for Failing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { part, attempts, why } = self;
        write!(
            f,
            "{part} does not run, and is tried again every few seconds ({attempts} starts failed): {why}"
        )
    }
}

/// The right to be the instance. Dropping it removes the record.
#[derive(Debug)]
pub(crate) struct Claim {
    path: PathBuf,
    _lock: File,
}

/// The file that is locked for a record.
fn lock_of(path: &Path) -> PathBuf {
    path.with_extension("up-lock")
}

/// The next version of a record, until it takes the name.
fn draft_of(path: &Path) -> PathBuf {
    path.with_extension("up-new")
}

/// Takes the right to be the instance whose record is `path`, and names this process there.
///
/// # Errors
/// [`Error::AlreadyRunning`]; [`Error::File`] if the record cannot be made.
pub(crate) fn claim(path: &Path) -> Result<Claim, Error> {
    let failed = |cause: rustix::io::Errno| {
        let fix = "check the owner of its folder, or choose another socket with `--socket`";
        Error::file(path, fix)(cause.into())
    };
    let own = Mode::RUSR | Mode::WUSR;
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let locked = lock_of(path);
    let mut tries = 0;
    loop {
        let lock = rustix::fs::open(&locked, flags, own).map(File::from).map_err(failed)?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) if still_named(&lock, &locked) => {
                let claim = Claim { path: path.to_owned(), _lock: lock };
                let pid = rustix::process::getpid().as_raw_nonzero().get();
                claim.write(&Record { pid, ..Record::default() })?;
                return Ok(claim);
            }
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) if tries >= LOCK_TRIES => {
                let record = File::open(path).ok().and_then(read).unwrap_or_default();
                let addresses = record
                    .ready
                    .as_ref()
                    .map_or_else(String::new, |ready| format!(", serving {}", addresses(ready)));
                return Err(Error::AlreadyRunning { pid: record.pid, addresses });
            }
            Err(rustix::io::Errno::WOULDBLOCK) => {
                tries += 1;
                std::thread::sleep(LOCK_PAUSE);
            }
            Err(cause) => return Err(failed(cause)),
        }
    }
}

impl Claim {
    /// Replaces the record.
    ///
    /// # Errors
    /// [`Error::File`]: the disk is full, perhaps.
    pub(crate) fn write(&self, record: &Record) -> Result<(), Error> {
        let text = crate::output::json(record)?;
        let draft = draft_of(&self.path);
        // Of an owner that was killed.
        let _ = std::fs::remove_file(&draft);
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR | Mode::RGRP | Mode::ROTH;
        rustix::fs::open(&draft, flags, mode)
            .map_err(std::io::Error::from)
            .and_then(|file| File::from(file).write_all(text.as_bytes()))
            .and_then(|()| std::fs::rename(&draft, &self.path))
            .map_err(Error::file(&self.path, "make room there, and let its folder belong to this user"))
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        // A record that stays is a leftover without a lock, which every reader ignores.
        let _ = std::fs::remove_file(draft_of(&self.path));
        let _ = std::fs::remove_file(&self.path);
        let _ = std::fs::remove_file(lock_of(&self.path));
    }
}

/// The record at `path`, if its owner runs.
///
/// # Errors
/// [`Error::File`]: it is there but cannot be read.
pub(crate) fn find(path: &Path) -> Result<Option<Record>, Error> {
    let fix = "run this as the user who ran `sietch up`";
    let file = match open_plain(path) {
        Ok(file) => file,
        Err(cause) if cause.kind() == ErrorKind::NotFound => return Ok(None),
        Err(cause) => return Err(Error::file(path, fix)(cause)),
    };
    let is_running = match open_plain(&lock_of(path)) {
        // Two users made them: a forgery.
        Ok(lock) if owner(&lock)? != owner(&file)? => false,
        Ok(lock) => flock(&lock, FlockOperation::NonBlockingLockShared) == Err(rustix::io::Errno::WOULDBLOCK),
        Err(cause) if cause.kind() == ErrorKind::NotFound => false,
        // Another user's.
        Err(cause) if cause.kind() == ErrorKind::PermissionDenied => {
            let is_running = |record: &Record| Path::new("/proc").join(record.pid.to_string()).exists();
            return Ok(read(file).filter(is_running));
        }
        Err(cause) => return Err(Error::file(path, fix)(cause)),
    };
    Ok(if is_running { read(file) } else { None })
}

/// Opens a regular file without following a symbolic link and without blocking.
fn open_plain(path: &Path) -> std::io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    if file.metadata()?.is_file() { Ok(file) } else { Err(ErrorKind::NotFound.into()) }
}

fn owner(file: &File) -> Result<u32, Error> {
    let failed =
        Error::file(Path::new("the record of an instance"), "run this as the user who ran `sietch up`");
    file.metadata().map(|about| about.uid()).map_err(failed)
}

/// Whether this process may signal the process that the record names. Its own user's record: yes.
/// Another user's: only root, and only if the named process belongs to the record's owner.
///
/// # Errors
/// [`Error::File`].
fn may_stop(path: &Path, record: &Record) -> Result<bool, Error> {
    let fix = "run this as the user who ran `sietch up`";
    let whose = owner(&open_plain(path).map_err(Error::file(path, fix))?)?;
    let own = rustix::process::geteuid().as_raw();
    let process = std::fs::metadata(format!("/proc/{}", record.pid)).map(|about| about.uid());
    Ok(whose == own || own == 0 && process.is_ok_and(|uid| uid == whose))
}

/// The process of the instance whose record `path` is, if this user may signal it.
///
/// The record names a process id, for which a pidfd is opened; then the record is read again. If
/// its owner still holds it, the pidfd is the owner's.
///
/// # Errors
/// [`Error::NotRunning`], [`Error::Signal`], [`Error::File`].
pub(crate) fn process(path: &Path, record: &Record) -> Result<OwnedFd, Error> {
    let pid = record.pid;
    let gone = || Error::NotRunning { path: path.to_owned() };
    if !may_stop(path, record)? {
        return Err(gone());
    }
    let failed = |cause: rustix::io::Errno| Error::Signal { pid, source: cause.into() };
    let process = Pid::from_raw(pid).ok_or_else(|| failed(rustix::io::Errno::SRCH))?;
    let process = pidfd_open(process, PidfdFlags::empty()).map_err(failed)?;
    match find(path)? {
        Some(again) if again.pid == pid => Ok(process),
        _ => Err(gone()),
    }
}

/// The store's addresses, that of the VNIC first.
pub(crate) fn addresses(ready: &StartupReport) -> String {
    let all = ready.vnic.iter().chain(&ready.vnic6).chain(&ready.kernel);
    let all: Vec<String> = all.map(std::string::ToString::to_string).collect();
    if all.is_empty() { "nowhere".to_owned() } else { all.join(" and ") }
}

fn still_named(file: &File, path: &Path) -> bool {
    match (file.metadata(), std::fs::symlink_metadata(path)) {
        (Ok(ours), Ok(named)) => (ours.dev(), ours.ino()) == (named.dev(), named.ino()),
        _ => false,
    }
}

/// The content of the file, if it is a record.
fn read(file: File) -> Option<Record> {
    let mut text = String::new();
    file.take(MAX_RECORD).read_to_string(&mut text).ok()?;
    let mut record: Record = serde_json::from_str(&text).ok()?;
    // They are printed on the terminal of another user, perhaps.
    for name in &mut record.unmounted {
        *name = escaped(name);
    }
    Some(record)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("sietch-instance-{name}-{}.up", std::process::id()))
    }

    #[test]
    fn a_second_claim_names_the_owner_of_the_first() {
        let path = path("second");
        let first = claim(&path).expect("free");
        let own = i32::try_from(std::process::id()).expect("a pid");
        assert_eq!(find(&path).expect("readable"), Some(Record { pid: own, ..Record::default() }));
        let ready = StartupReport { kernel: "127.0.0.1:6379".parse().ok(), ..StartupReport::default() };
        first.write(&Record { pid: 42, ready: Some(ready), ..Record::default() }).expect("write");
        let refused = claim(&path).expect_err("taken").to_string();
        assert_eq!(refused, "sietch is already running: pid 42, serving 127.0.0.1:6379");
        assert_eq!(find(&path).expect("readable").map(|record| record.pid), Some(42));
        drop(first);
        assert!(!path.exists() && !lock_of(&path).exists());
        drop(claim(&path).expect("free again"));
    }

    #[test]
    fn a_reader_never_finds_half_a_record() {
        let path = path("replaced");
        let claim = claim(&path).expect("free");
        let record = |store| Record { pid: 42, store: Some(store), ..Record::default() };
        claim.write(&record(0)).expect("write");
        let over = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for store in 0..2000 {
                    claim.write(&record(store)).expect("write");
                }
                over.store(true, std::sync::atomic::Ordering::Relaxed);
            });
            while !over.load(std::sync::atomic::Ordering::Relaxed) {
                let found = find(&path).expect("readable");
                assert!(found.as_ref().is_some_and(|found| found.store.is_some()), "{found:?}");
            }
        });
        drop(claim);
        assert!(!path.exists() && !draft_of(&path).exists());
    }

    /// A user who can read the record can lock it; that has no effect.
    #[test]
    fn another_users_lock_on_the_record_neither_prevents_a_start_nor_makes_it_live() {
        let path = path("other-user");
        std::fs::write(&path, "{\"pid\": 1}").expect("write");
        let other_user = File::open(&path).expect("open");
        flock(&other_user, FlockOperation::NonBlockingLockExclusive).expect("lock");
        assert_eq!(find(&path).expect("readable"), None);
        let claim = claim(&path).expect("free");
        let mode = std::os::unix::fs::PermissionsExt::mode(
            &std::fs::metadata(lock_of(&path)).expect("there").permissions(),
        );
        assert_eq!(mode & 0o777, 0o600);
        drop(claim);
    }

    #[test]
    fn a_record_of_a_dead_owner_is_a_leftover() {
        let path = path("leftover");
        std::fs::write(&path, "{\"pid\": 42}").expect("write");
        assert_eq!(find(&path).expect("readable"), None);
        drop(claim(&path).expect("free"));
    }
}
