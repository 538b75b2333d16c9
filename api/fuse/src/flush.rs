//! A thread that makes durable what was done a while ago.
//!
//! The kernel does not tell a FUSE server of `sync(2)` and `syncfs(2)`, so they promise nothing on
//! a mount. What a loss of power takes is bounded all the same:
//!
//! 1. Each period it syncs what was done until the period before. Mostly that is durable by then,
//!    because it was digested, and this costs nothing.
//! 2. An error ends the thread: each later `fsync(2)` of a program gets it.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::io::Errno;
use sietch_fs::FileSystem;
use sietch_fs::file_system::{SyncPoint, sync_to};

use crate::state::Shared;

/// How the thread is ended.
#[derive(Default)]
pub(crate) struct Flush {
    has_ended: Mutex<bool>,
    ended: Condvar,
}

impl Flush {
    fn has_ended(&self) -> MutexGuard<'_, bool> {
        // Nothing under this lock panics.
        self.has_ended.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the thread.
    pub(crate) fn end(&self) {
        *self.has_ended() = true;
        self.ended.notify_one();
    }

    /// Waits; whether it goes on.
    fn wait(&self, period: Duration) -> bool {
        let waited = self.ended.wait_timeout_while(self.has_ended(), period, |has_ended| !*has_ended);
        !*waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// What the thread does.
    pub(crate) fn run<F: FileSystem>(&self, shared: &Shared<F>, period: Duration) {
        let mut before = None;
        while self.wait(period) {
            if step(shared, &mut before).is_err() {
                return;
            }
        }
    }
}

/// Makes durable what was done before the last step, and notes what is there now.
fn step<F: FileSystem>(shared: &Shared<F>, before: &mut Option<SyncPoint>) -> Result<(), Errno> {
    let now = shared.run(None, |state| Ok(state.file_system.sync_point()))?;
    match before.replace(now) {
        Some(point) => sync_to(point, |point| shared.run(None, |state| state.file_system.begin_sync(point))),
        None => Ok(()),
    }
}
