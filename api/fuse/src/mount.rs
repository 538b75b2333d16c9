//! A mount, from its beginning to its end.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fuser::{Config, MountOption, Session, SessionACL};
use rustix::mount::UnmountFlags;
use sietch_fs::FileSystem;

use crate::error::MountError;
use crate::mount_point::{self, Attached};
use crate::options::Options;
use crate::requests::Requests;
use crate::stale::Stale;
use crate::state::Shared;

/// A file system that is mounted. Dropping it unmounts it.
pub struct Mount<F: FileSystem + Send + 'static> {
    directory: PathBuf,
    session: Session<Requests<F>>,
    attached: Attached,
    shared: Arc<Shared<F>>,
    stale: Arc<Stale>,
    ended: Arc<AtomicBool>,
}

/// Unmounts from another thread than the one that serves.
#[derive(Clone, Debug)]
pub struct Unmounter {
    directory: PathBuf,
    ended: Arc<AtomicBool>,
}

impl Unmounter {
    /// Unmounts the file system, if no program uses it. [`Mount::run`] then returns.
    ///
    /// # Errors
    /// [`MountError::Unmount`]: it is in use (`EBUSY`), or this user may not.
    pub fn unmount(&self) -> Result<(), MountError> {
        self.end(UnmountFlags::empty())
    }

    /// Removes the mount from its directory at once. [`Mount::run`] returns when the last program
    /// that uses it has closed its files.
    ///
    /// # Errors
    /// [`MountError::Unmount`]: this user may not.
    pub fn detach(&self) -> Result<(), MountError> {
        self.end(UnmountFlags::DETACH)
    }

    fn end(&self, flags: UnmountFlags) -> Result<(), MountError> {
        // What is mounted there now is another's.
        if self.ended.load(Ordering::Acquire) {
            return Ok(());
        }
        let failed = |source| MountError::Unmount { directory: self.directory.clone(), source };
        mount_point::unmount(&self.directory, flags).map_err(failed)
    }
}

impl<F: FileSystem + Send + 'static> Mount<F> {
    /// Mounts `file_system` on `directory`. Requests wait until [`Mount::run`].
    ///
    /// # Errors
    /// See [`MountError`].
    pub fn new(file_system: F, directory: &Path, options: &Options) -> Result<Self, MountError> {
        let directory = mount_point::clear(directory, &options.source)?;
        let shared = Arc::new(Shared::new(file_system));
        let stale = Arc::new(Stale::default());
        let requests = Requests::new(Arc::clone(&shared), Arc::clone(&stale), options.keep);
        let refused = |source| {
            let (directory, fix) = (directory.clone(), fix());
            MountError::Refused { directory, source, fix }
        };
        let config = config(options);
        let device = mount_point::attach(&directory, options).map_err(refused)?;
        let attached = Attached(device.is_some().then(|| directory.clone()));
        let session = match device {
            Some(device) => Session::from_fd(requests, device, config.acl, config),
            None => Session::new(requests, &directory, &config),
        };
        let session = session.map_err(refused)?;
        Ok(Self { directory, session, attached, shared, stale, ended: Arc::default() })
    }

    /// For another thread, to end [`Mount::run`].
    pub fn unmounter(&self) -> Unmounter {
        Unmounter { directory: self.directory.clone(), ended: Arc::clone(&self.ended) }
    }

    /// Serves requests until the file system is unmounted, and returns it. Nothing of it is open or
    /// retained any more.
    ///
    /// # Errors
    /// [`MountError::Broken`], [`MountError::Panicked`].
    pub fn run(self) -> Result<F, MountError> {
        let Self { directory, session, mut attached, shared, stale, ended } = self;
        let kernel = session.notifier();
        let telling = Arc::clone(&stale);
        let thread = std::thread::Builder::new().name("fuse-stale".to_owned());
        let result = match thread.spawn(move || telling.tell(&kernel)) {
            Ok(teller) => {
                let result = session.run();
                stale.end();
                // It runs nothing that panics.
                drop(teller.join());
                result
            }
            Err(error) => {
                drop(session);
                Err(error)
            }
        };
        ended.store(true, Ordering::Release);
        if result.is_ok() {
            // The kernel has ended it.
            attached.0 = None;
        }
        let broken = |source| MountError::Broken { directory: directory.clone(), source };
        let file_system = Arc::try_unwrap(shared).ok().map(Shared::end);
        result.map_err(broken)?;
        match file_system {
            Some(Some(file_system)) => Ok(file_system),
            Some(None) => Err(MountError::Panicked { directory }),
            None => Err(broken(io::Error::other("a thread that serves requests is left"))),
        }
    }
}

/// How the session is set up.
fn config(options: &Options) -> Config {
    let mut config = Config::default();
    config.mount_options = vec![
        MountOption::FSName(options.source.clone()),
        MountOption::DefaultPermissions,
        // No read changes atime.
        MountOption::NoAtime,
    ];
    config.mount_options.push(if options.read_only { MountOption::RO } else { MountOption::RW });
    config.mount_options.extend(if options.trusted {
        [MountOption::Suid, MountOption::Dev]
    } else {
        [MountOption::NoSuid, MountOption::NoDev]
    });
    config.acl = if options.allow_other { SessionACL::All } else { SessionACL::Owner };
    config.n_threads = Some(options.threads.max(1));
    config.clone_fd = true;
    config
}

/// What to do where the kernel, or its helper, did not mount.
fn fix() -> &'static str {
    if !Path::new("/dev/fuse").exists() {
        "load FUSE (`modprobe fuse`)"
    } else if rustix::process::geteuid().is_root() {
        "see whether the directory is there and this machine (or container) lets root mount"
    } else {
        "an ordinary user needs fusermount3 (Debian: `apt install fuse3`) and a directory of its own; or run as \
         root"
    }
}
