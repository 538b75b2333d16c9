//! Files whose pages the kernel must discard, and the thread that tells it.
//!
//! The kernel may hold locks of a file until a request about that file is answered, and it takes
//! them to discard pages. A thread that serves requests therefore never tells the kernel itself.

use std::collections::BTreeSet;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use fuser::{INodeNo, Notifier};

#[derive(Default)]
struct Waiting {
    inodes: BTreeSet<u64>,
    ended: bool,
}

/// The files that wait for it.
#[derive(Default)]
pub(crate) struct Stale {
    waiting: Mutex<Waiting>,
    added: Condvar,
}

impl Stale {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        // Nothing under this lock panics half-way.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the kernel's pages of `inode` discarded soon.
    pub(crate) fn add(&self, inode: INodeNo) {
        self.waiting().inodes.insert(inode.0);
        self.added.notify_one();
    }

    /// Ends the thread.
    pub(crate) fn end(&self) {
        self.waiting().ended = true;
        self.added.notify_one();
    }

    fn next(&self) -> Option<u64> {
        let mut waiting = self.waiting();
        loop {
            if waiting.ended {
                return None;
            }
            if let Some(inode) = waiting.inodes.pop_first() {
                return Some(inode);
            }
            waiting = self.added.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// What the thread does.
    pub(crate) fn tell(self: Arc<Self>, kernel: &Notifier) {
        while let Some(inode) = self.next() {
            // ENOENT: the kernel has forgotten the file, and with it the pages.
            if let Err(error) = kernel.inval_inode(INodeNo(inode), 0, 0)
                && error.kind() != std::io::ErrorKind::NotFound
            {
                tracing::warn!(inode, %error, "cannot invalidate the kernel's pages");
            }
        }
    }
}
