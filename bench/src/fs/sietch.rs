//! Sietch's file system: its files, and the subject that calls its client.
//!
//! 1. [`Store`] is a new file system. Its files are removed when it is dropped.
//! 2. [`Native`] calls [`FileSystem`] of the client in this process. There is one client: threads
//!    share it behind a mutex, as the threads of a mount do. While one waits for the disk in
//!    `fsync`, the others go on.
//! 3. A change carries a time, so each reads the clock, as a front end does.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use sietch_fs::FileSystem;
use sietch_fs::access::{Caller, Credentials};
use sietch_fs::file_system::{Handle, NewInode, OpenMode, RenameMode, WriteAt, sync_shared};
use sietch_fs::inode::{InodeNumber, Kind, Timestamp};
use sietch_service::fs::description::MediumDescription;
use sietch_service::fs::{self, ClassName, CreateOptions, Description, Digester, FileSystemClient, Totals};

use super::files::{Files, Open, Use};
use crate::error::{Error, system};

/// When changes are durable where the log is in persistent memory.
pub(super) const AT_ONCE: &str = "at once";

/// How long the digest may take to finish.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long to wait between two looks at the digest.
const PAUSE: Duration = Duration::from_millis(5);

/// Files of a new file system.
#[derive(Debug)]
pub(super) struct Store {
    folder: PathBuf,
    description: Description,
}

impl Store {
    /// Makes a file system in `folder`, with a medium and a log of so many bytes; `None`: the
    /// default.
    pub(super) fn create(
        folder: PathBuf,
        class: ClassName,
        medium: PathBuf,
        bytes: u64,
        log_bytes: Option<u64>,
    ) -> Result<Self, Error> {
        Self::over(folder, vec![self::medium(class, medium, bytes)], log_bytes)
    }

    /// As [`Store::create`], with any media.
    pub(super) fn over(
        folder: PathBuf,
        media: Vec<MediumDescription>,
        log_bytes: Option<u64>,
    ) -> Result<Self, Error> {
        let options = CreateOptions { media, log_memory: None, log_bytes, durability: None };
        let description =
            fs::create(&folder, &options, &mut |_| {}).map_err(failed("making Sietch's files"))?;
        Ok(Self { folder, description })
    }

    /// Bytes of its log.
    pub(super) fn log_bytes(&self) -> u64 {
        self.description.log.bytes
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Opens it.
    pub(super) fn open(&self) -> Result<fs::Running, Error> {
        open_folder(&self.folder)
    }
}

/// A medium of so many bytes, in a new file.
pub(super) fn medium(class: ClassName, path: PathBuf, bytes: u64) -> MediumDescription {
    MediumDescription { class, path, bytes, model: None }
}

/// Opens the file system in a folder.
pub(super) fn open_folder(folder: &Path) -> Result<fs::Running, Error> {
    fs::open(folder).map_err(failed("opening Sietch's files"))
}

impl Drop for Store {
    fn drop(&mut self) {
        let media = self.description.media.iter().map(|medium| &medium.path);
        let log = &self.description.log;
        for path in media.chain([&log.memory]).chain(&log.disk) {
            // What cannot be removed is recognisable by its name.
            let _ = std::fs::remove_file(path);
        }
        // Its own, if it is empty now.
        let _ = log.memory.parent().map(std::fs::remove_dir);
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn failed<E: std::fmt::Display>(action: &'static str) -> impl FnOnce(E) -> Error {
    move |cause| system(action)(io::Error::other(cause.to_string()))
}

/// The client, called directly.
pub(super) struct Native<K> {
    name: &'static str,
    durable: &'static str,
    root: Credentials,
    client: Mutex<FileSystemClient>,
    digester: Digester,
    /// Dropped last: the files go when nothing uses them any more.
    _kept: K,
}

impl Native<Store> {
    /// Opens `store`.
    pub(super) fn open(name: &'static str, durable: &'static str, store: Store) -> Result<Self, Error> {
        Ok(Self::over(name, durable, store.open()?, store))
    }
}

impl<K> Native<K> {
    /// Uses a file system that is open, and keeps what it needs.
    pub(super) fn over(name: &'static str, durable: &'static str, running: fs::Running, kept: K) -> Self {
        let fs::Running { client, digester, .. } = running;
        Self { name, durable, root: Credentials::root(), client: Mutex::new(client), digester, _kept: kept }
    }

    fn client(&self) -> MutexGuard<'_, FileSystemClient> {
        self.client.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn caller(&self) -> Caller<'_> {
        let now = clock_gettime(ClockId::Realtime);
        let now = Timestamp { seconds: now.tv_sec, nanoseconds: now.tv_nsec as u32 };
        Caller { credentials: &self.root, now }
    }
}

fn handle(file: &Open) -> io::Result<Handle> {
    match file {
        Open::Sietch(handle) => Ok(*handle),
        Open::Kernel(_) => Err(io::Error::other("a file of another subject")),
    }
}

const READ_WRITE: OpenMode = OpenMode { read: true, write: true, truncate: false };

impl<K: Sync> Files for Native<K> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn durable(&self) -> &'static str {
        self.durable
    }

    fn create(&self, name: &str, _: Use) -> io::Result<Open> {
        let (caller, mut client) = (self.caller(), self.client());
        let new = NewInode { kind: Kind::File, mode: 0o644, device: 0, target: b"" };
        let made = client.create(caller, InodeNumber::ROOT, name.as_bytes(), &new)?;
        Ok(Open::Sietch(client.open_created(made.inode, READ_WRITE)?))
    }

    fn open(&self, name: &str, _: Use) -> io::Result<Open> {
        let (caller, mut client) = (self.caller(), self.client());
        let found = client.lookup(caller, InodeNumber::ROOT, name.as_bytes())?;
        Ok(Open::Sietch(client.open(caller, found.inode, READ_WRITE)?))
    }

    fn close(&self, file: Open) {
        if let Open::Sietch(handle) = file {
            self.client().close(handle);
        }
    }

    fn append(&self, file: &Open, bytes: &[u8]) -> io::Result<()> {
        let caller = self.caller();
        self.client().write(caller, handle(file)?, WriteAt::End, bytes)?;
        Ok(())
    }

    fn write_at(&self, file: &Open, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let caller = self.caller();
        self.client().write(caller, handle(file)?, WriteAt::Offset(offset), bytes)?;
        Ok(())
    }

    fn read_at(&self, file: &Open, offset: u64, bytes: &mut [u8]) -> io::Result<usize> {
        Ok(self.client().read(handle(file)?, offset, bytes)?)
    }

    fn sync(&self, _: &Open) -> io::Result<()> {
        Ok(sync_shared(|point| self.client().begin_sync(point))?)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let (caller, root) = (self.caller(), InodeNumber::ROOT);
        let (from, to) = ((root, from.as_bytes()), (root, to.as_bytes()));
        Ok(self.client().rename(caller, from, to, RenameMode::Replace)?)
    }

    fn unlink(&self, name: &str) -> io::Result<()> {
        let caller = self.caller();
        Ok(self.client().unlink(caller, InodeNumber::ROOT, name.as_bytes())?)
    }

    fn size(&self, name: &str) -> io::Result<u64> {
        let caller = self.caller();
        Ok(self.client().lookup(caller, InodeNumber::ROOT, name.as_bytes())?.size)
    }

    fn settle(&self) -> io::Result<()> {
        let begun = Instant::now();
        loop {
            if self.digester.is_idle() {
                self.client().advance();
                return Ok(());
            }
            // Blocks that it reads are not used again.
            self.client().advance();
            if let Some(cause) = self.digester.failure() {
                return Err(io::Error::other(cause));
            }
            if begun.elapsed() > PATIENCE {
                return Err(io::ErrorKind::TimedOut.into());
            }
            std::thread::sleep(PAUSE);
        }
    }

    fn totals(&self) -> Option<Totals> {
        Some(self.digester.totals())
    }
}
