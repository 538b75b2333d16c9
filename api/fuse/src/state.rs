//! The file system behind its lock, with what the kernel holds of it.

use std::collections::{HashMap, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;
use sietch_fs::FileSystem;
use sietch_fs::file_system::{Handle, Pending, Waited};
use sietch_fs::inode::{Attributes, InodeNumber};
use sietch_fs::lease::Mode;

use crate::turns::{Turns, User};

/// A file system that is mounted.
pub(crate) struct State<F> {
    /// The file system.
    pub(crate) file_system: F,
    /// How often the kernel looked each inode up, less what it forgot.
    references: HashMap<InodeNumber, u64>,
    /// What the kernel has open.
    handles: HashSet<Handle>,
    /// Inodes that programs map ([`sietch_fs::direct`]), of those in `references`.
    mapped: HashSet<InodeNumber>,
    panicked: bool,
}

impl<F: FileSystem> State<F> {
    fn note_panic(&mut self) {
        tracing::error!("the file system panicked; every request gets EIO from now on");
        self.panicked = true;
    }

    /// Keeps an inode for the kernel, to which a reply says its number.
    pub(crate) fn retain(&mut self, shown: Attributes) -> Result<Attributes, Errno> {
        self.file_system.know(shown.inode)?;
        *self.references.entry(shown.inode).or_default() += 1;
        Ok(shown)
    }

    /// The kernel takes `count` lookups back.
    pub(crate) fn forget(&mut self, inode: InodeNumber, count: u64) {
        let Some(held) = self.references.get_mut(&inode) else { return };
        let count = count.min(*held);
        *held -= count;
        if *held == 0 {
            self.references.remove(&inode);
            self.mapped.remove(&inode);
        }
        self.file_system.forget(inode, count);
    }

    /// Notes that programs map an inode, and takes it from every client that does not know.
    pub(crate) fn map(&mut self, inode: InodeNumber) -> Result<(), Errno> {
        if self.references.contains_key(&inode) {
            self.mapped.insert(inode);
        }
        self.file_system.hold(inode, Mode::Exclusive)
    }

    /// Whether programs map an inode. If not, one that asks wants it: it need not wait until this
    /// client is asked for its lease.
    pub(crate) fn ask_way(&mut self, inode: InodeNumber) -> bool {
        let is_mapped = self.mapped.contains(&inode);
        if !is_mapped {
            self.file_system.give_up(inode);
        }
        is_mapped
    }

    /// Remembers what the kernel has open.
    pub(crate) fn opened(&mut self, handle: Handle) -> Handle {
        self.handles.insert(handle);
        handle
    }

    /// The kernel closes it.
    pub(crate) fn close(&mut self, handle: Handle) {
        if self.handles.remove(&handle) {
            self.file_system.close(handle);
        }
    }

    fn release_all(&mut self) {
        for handle in std::mem::take(&mut self.handles) {
            self.file_system.close(handle);
        }
        for (inode, count) in std::mem::take(&mut self.references) {
            self.file_system.forget(inode, count);
        }
    }
}

/// What a try of an operation came to.
pub(crate) enum Tried<T> {
    /// It did nothing, for lack of room or a lease: what the next try waits for.
    Waits(Waited, Box<dyn Pending>),
    /// The operation's result, and what its answer waits for.
    Done(Result<T, Errno>, Option<Box<dyn Pending>>),
}

/// The state, for all threads.
pub(crate) struct Shared<F> {
    /// Each operation has a turn before it has the state.
    turns: Turns,
    state: Mutex<State<F>>,
}

impl<F: FileSystem> Shared<F> {
    /// Nothing of it is known to the kernel yet.
    pub(crate) fn new(file_system: F) -> Self {
        let (references, handles, mapped) = (HashMap::new(), HashSet::new(), HashSet::new());
        let state = State { file_system, references, handles, mapped, panicked: false };
        Self { turns: Turns::default(), state: Mutex::new(state) }
    }

    fn lock(&self) -> MutexGuard<'_, State<F>> {
        // A panic is caught under the lock, and noted.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs one operation, or a step of one, in a turn of its user. An operation whose time grows
    /// with its arguments has several steps.
    ///
    /// # Errors
    /// The operation's; `EIO` if it panics, or an earlier one did.
    pub(crate) fn run<T>(
        &self,
        user: User,
        operation: impl FnOnce(&mut State<F>) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        let _turn = self.turns.take(user);
        let mut state = self.lock();
        if state.panicked {
            return Err(Errno::IO);
        }
        let result = catch_unwind(AssertUnwindSafe(|| operation(&mut state)));
        result.unwrap_or_else(|_| {
            state.note_panic();
            Err(Errno::IO)
        })
    }

    /// Notes that the file system panicked where it does not have the state: in a wait.
    pub(crate) fn note_panic(&self) {
        self.lock().note_panic();
    }

    /// As [`Shared::run`], for an operation that waits neither for room nor for leases within its
    /// turn. `waited` is what its last try waited for.
    pub(crate) fn attempt<T>(
        &self,
        user: User,
        waited: Waited,
        operation: impl FnOnce(&mut State<F>) -> Result<T, Errno>,
    ) -> Tried<T> {
        let mut pending = None;
        let result = self.run(user, |state| {
            state.file_system.begin_try(waited.of_user(user));
            let result = operation(state);
            pending = state.file_system.end_try();
            result
        });
        match (result, pending) {
            (Err(Errno::AGAIN), Some((waited, pending))) => Tried::Waits(waited, pending),
            // It was enough without what it lacked.
            (result, Some((waited, _))) if waited.is_for_message() => Tried::Done(result, None),
            (result, pending) => Tried::Done(result, pending.map(|(_, pending)| pending)),
        }
    }

    /// Releases what the kernel still has, and returns the file system; none if it panicked.
    pub(crate) fn end(self) -> Option<F> {
        let released = self.run(None, |state| {
            state.release_all();
            Ok(())
        });
        let state = self.state.into_inner().unwrap_or_else(PoisonError::into_inner);
        released.is_ok().then_some(state.file_system)
    }
}
