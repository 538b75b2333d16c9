//! A FUSE session on a directory: it is mounted, serves the kernel's requests, and is unmounted.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fuser::{Config, Filesystem, MountOption, Notifier, SessionACL};
use rustix::mount::UnmountFlags;

use crate::error::MountError;
use crate::mount_point::{self, Attached};
use crate::options::Options;

/// Anything that answers the kernel's requests, mounted on a directory. Dropping it unmounts it.
pub struct Session<R: Filesystem> {
    directory: PathBuf,
    session: fuser::Session<R>,
    attached: Attached,
    ended: Arc<AtomicBool>,
}

/// Unmounts from another thread than the one that serves.
#[derive(Clone, Debug)]
pub struct Unmounter {
    directory: PathBuf,
    ended: Arc<AtomicBool>,
}

impl Unmounter {
    /// Unmounts the directory, if no program uses it. [`Session::run`] then returns.
    ///
    /// # Errors
    /// [`MountError::Unmount`]: it is in use (`EBUSY`), or this user may not.
    pub fn unmount(&self) -> Result<(), MountError> {
        self.end(UnmountFlags::empty())
    }

    /// Removes the mount from its directory at once. [`Session::run`] returns when the last program
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

impl<R: Filesystem> Session<R> {
    /// Mounts on `directory`. Requests wait until [`Session::run`].
    ///
    /// # Errors
    /// See [`MountError`].
    pub fn new(requests: R, directory: &Path, options: &Options) -> Result<Self, MountError> {
        let directory = mount_point::clear(directory, &options.source)?;
        let refused = |source| MountError::Refused { directory: directory.clone(), source, fix: fix() };
        let config = config(options);
        let device = mount_point::attach(&directory, options).map_err(refused)?;
        let attached = Attached(device.is_some().then(|| directory.clone()));
        let session = match device {
            Some(device) => fuser::Session::from_fd(requests, device, config.acl, config),
            None => fuser::Session::new(requests, &directory, &config),
        };
        let session = session.map_err(refused)?;
        Ok(Self { directory, session, attached, ended: Arc::default() })
    }

    /// The directory, by its real name.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// For another thread, to end [`Session::run`].
    pub fn unmounter(&self) -> Unmounter {
        Unmounter { directory: self.directory.clone(), ended: Arc::clone(&self.ended) }
    }

    /// To tell the kernel what it must discard.
    pub(crate) fn notifier(&self) -> Notifier {
        self.session.notifier()
    }

    /// Serves requests until the directory is unmounted.
    ///
    /// # Errors
    /// [`MountError::Broken`].
    pub fn run(self) -> Result<(), MountError> {
        let Self { directory, session, mut attached, ended } = self;
        let result = session.run();
        ended.store(true, Ordering::Release);
        if result.is_ok() {
            // The kernel has ended it.
            attached.0 = None;
        }
        result.map_err(|source| MountError::Broken { directory, source })
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
    if !options.executable {
        config.mount_options.push(MountOption::NoExec);
    }
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
