//! Files whose pages the kernel must discard, names of directories that it must, and the thread
//! that tells it.
//!
//! The kernel may hold locks of a file or directory until a request about it is answered, and it
//! takes them to discard something. A thread that serves requests therefore never tells the kernel
//! itself, and waits for that thread only for a moment ([`LONGEST_WAIT`]).

use std::collections::{BTreeSet, VecDeque};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fuser::{INodeNo, Notifier};
use sietch_fs::inode::InodeNumber;

use crate::places::Place;

/// How long a lookup waits until a former name is discarded: mostly some microseconds, but never
/// as long as the kernel has that directory locked.
const LONGEST_WAIT: Duration = Duration::from_millis(50);

/// Former names that wait. What is more stays in the kernel, as if no notification were sent.
const MAX_NAMES: usize = 1024;

/// What the kernel must discard.
enum Discard {
    Pages(u64),
    Name(Place),
}

#[derive(Default)]
struct Waiting {
    inodes: BTreeSet<u64>,
    /// Directories and their former names.
    names: VecDeque<(InodeNumber, Place)>,
    /// The directory whose name is being discarded, and the one that has that name.
    current: Option<[InodeNumber; 2]>,
    ended: bool,
}

impl Waiting {
    /// Whether a name of `directory`, or one in it, is to be discarded.
    fn has(&self, directory: InodeNumber) -> bool {
        self.current.is_some_and(|current| current.contains(&directory))
            || self.names.iter().any(|(other, place)| *other == directory || place.parent == directory)
    }
}

/// The files that wait for it.
#[derive(Default)]
pub(crate) struct Stale {
    waiting: Mutex<Waiting>,
    changed: Condvar,
}

impl Stale {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        // Nothing under this lock panics half-way.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the kernel's pages of `inode` discarded soon.
    pub(crate) fn add(&self, inode: INodeNo) {
        self.waiting().inodes.insert(inode.0);
        self.changed.notify_all();
    }

    /// The kernel is about to get to know `directory`, and had it at the `former` place. That is
    /// discarded soon. If it is to be already, or a name in this directory, the kernel asks again
    /// because of that: this waits a moment.
    pub(crate) fn found(&self, directory: InodeNumber, former: Option<Place>) {
        let mut waiting = self.waiting();
        if let Some(former) = former {
            if waiting.names.len() < MAX_NAMES {
                waiting.names.push_back((directory, former));
                self.changed.notify_all();
            }
        } else if waiting.has(directory) {
            drop(self.changed.wait_timeout_while(waiting, LONGEST_WAIT, |waiting| waiting.has(directory)));
        }
    }

    /// Ends the thread.
    pub(crate) fn end(&self) {
        self.waiting().ended = true;
        self.changed.notify_all();
    }

    fn next(&self) -> Option<Discard> {
        let mut waiting = self.waiting();
        if waiting.current.take().is_some() {
            self.changed.notify_all();
        }
        loop {
            if waiting.ended {
                return None;
            }
            if let Some((directory, former)) = waiting.names.pop_front() {
                waiting.current = Some([directory, former.parent]);
                return Some(Discard::Name(former));
            }
            if let Some(inode) = waiting.inodes.pop_first() {
                return Some(Discard::Pages(inode));
            }
            waiting = self.changed.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// What the thread does.
    pub(crate) fn tell(self: Arc<Self>, kernel: &Notifier) {
        while let Some(discard) = self.next() {
            let (inode, outcome) = match &discard {
                Discard::Pages(inode) => (*inode, kernel.inval_inode(INodeNo(*inode), 0, 0)),
                Discard::Name(Place { parent, name }) => {
                    (parent.0, kernel.inval_entry(INodeNo(parent.0), OsStr::from_bytes(name)))
                }
            };
            // ENOENT: the kernel has forgotten it, and with it what it had cached.
            if let Err(error) = outcome
                && error.kind() != std::io::ErrorKind::NotFound
            {
                tracing::warn!(inode, %error, "cannot invalidate what the kernel has cached");
            }
        }
    }
}
