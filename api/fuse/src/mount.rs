//! A file system of `sietch-fs`, mounted.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Duration;

use sietch_fs::FileSystem;

use crate::changes::{Changes, Waits};
use crate::error::MountError;
use crate::flush::Flush;
use crate::options::Options;
use crate::requests::Requests;
use crate::session::{Session, Unmounter};
use crate::stale::Stale;
use crate::state::Shared;

/// How often another thread that uses the file system is waited for, and how long each time: ten
/// seconds in all.
const LEAVE_CHECKS: u32 = 10_000;
const LEAVE_CHECK: Duration = Duration::from_millis(1);

/// A file system that is mounted. Dropping it unmounts it.
pub struct Mount<F: FileSystem + Send + 'static> {
    session: Session<Requests<F>>,
    shared: Arc<Shared<F>>,
    stale: Arc<Stale>,
    waits: Arc<Waits>,
    flush: Option<Duration>,
}

impl<F: FileSystem + Send + 'static> Mount<F> {
    /// Mounts `file_system` on `directory`. Requests wait until [`Mount::run`].
    ///
    /// # Errors
    /// See [`MountError`].
    pub fn new(file_system: F, directory: &Path, options: &Options) -> Result<Self, MountError> {
        let shared = Arc::new(Shared::new(file_system));
        let stale = Arc::new(Stale::default());
        let waits = Arc::<Waits>::default();
        let changes = Changes { shared: Arc::clone(&shared), waits: Arc::clone(&waits) };
        let requests = Requests::new(changes, Arc::clone(&stale), options);
        let session = Session::new(requests, directory, options)?;
        Ok(Self { session, shared, stale, waits, flush: options.flush })
    }

    /// For another thread, to end [`Mount::run`].
    pub fn unmounter(&self) -> Unmounter {
        self.session.unmounter()
    }

    /// For another thread, to use the file system between the kernel's requests.
    pub fn inner(&self) -> Inner<F> {
        Inner(Arc::downgrade(&self.shared))
    }

    /// Serves requests until the file system is unmounted, and returns it. Nothing of it is open or
    /// retained any more.
    ///
    /// # Errors
    /// [`MountError::Broken`], [`MountError::Panicked`].
    pub fn run(self) -> Result<F, MountError> {
        let Self { session, shared, stale, waits, flush } = self;
        let directory = session.directory().to_owned();
        serve(session, (&stale, &waits), (&shared, flush))?;
        match alone(shared).map(Shared::end) {
            Some(Some(file_system)) => Ok(file_system),
            Some(None) => Err(MountError::Panicked { directory }),
            None => Err(broken(directory, io::Error::other("a thread that uses the file system is left"))),
        }
    }
}

/// Uses a file system that is mounted, from another thread than those that serve the kernel.
pub struct Inner<F>(Weak<Shared<F>>);

impl<F: FileSystem> Inner<F> {
    /// Calls `work` when no request uses the file system; `false`: it is not mounted any more.
    pub fn with(&self, work: impl FnOnce(&mut F)) -> bool {
        let Some(shared) = self.0.upgrade() else { return false };
        let done = shared.run(None, |state| {
            work(&mut state.file_system);
            Ok(())
        });
        done.is_ok()
    }
}

/// Serves requests, beside the thread that tells the kernel what is stale, the one that makes
/// durable what was done a while ago, and those that wait for requests.
fn serve<F: FileSystem + Send + 'static>(
    session: Session<Requests<F>>,
    (stale, waits): (&Arc<Stale>, &Arc<Waits>),
    (shared, period): (&Arc<Shared<F>>, Option<Duration>),
) -> Result<(), MountError> {
    let (kernel, flush) = (session.notifier(), &Flush::default());
    let directory = session.directory().to_owned();
    let thread = |name: &str| std::thread::Builder::new().name(name.to_owned());
    // None of them ends by a panic: those of the file system are caught and noted.
    let result = std::thread::scope(|scope| {
        let telling = Arc::clone(stale);
        let threads = || -> io::Result<()> {
            thread("fuse-stale").spawn_scoped(scope, move || telling.tell(&kernel))?;
            if let Some(period) = period {
                thread("fuse-flush").spawn_scoped(scope, move || {
                    if catch_unwind(AssertUnwindSafe(|| flush.run(shared, period))).is_err() {
                        shared.note_panic();
                    }
                })?;
            }
            for (name, waiting) in waits.threads() {
                thread(name).spawn_scoped(scope, move || waiting.run(|| shared.note_panic()))?;
            }
            Ok(())
        };
        let result = threads().map(|()| session.run());
        stale.end();
        flush.end();
        waits.threads().iter().for_each(|(_, waiting)| waiting.end());
        result
    });
    result.unwrap_or_else(|error| Err(broken(directory, error)))
}

/// What is shared, when no other thread uses it.
fn alone<F: FileSystem>(mut shared: Arc<Shared<F>>) -> Option<Shared<F>> {
    for _ in 0..LEAVE_CHECKS {
        match Arc::try_unwrap(shared) {
            Ok(alone) => return Some(alone),
            Err(used) => shared = used,
        }
        std::thread::sleep(LEAVE_CHECK);
    }
    None
}

fn broken(directory: PathBuf, source: io::Error) -> MountError {
    MountError::Broken { directory, source }
}
