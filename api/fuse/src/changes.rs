//! Requests that change something, from their operation to their answer.
//!
//! 1. The operation is tried in a turn of its user. If it has no room, the next commit of the
//!    digest is waited for without the turn, and it is tried again. So a user without room waits
//!    alone.
//! 2. If the digest does not keep up, the answer waits a little. One answer after the other does,
//!    so that several programs together log no faster than one.
//! 3. Where each change is to be durable, and after `fsync`, the answer waits for a sync. The
//!    thread that syncs writes for all whose records the log has by then.
//! 4. The kernel writes pages of a mapping back in its own name, and no program gets the error: the
//!    kernel would drop the pages. If the service does not answer, or says that the operation is to
//!    be called again, the write is tried again each [`AGAIN`], until the service answers or is
//!    gone. Bytes and reply are kept meanwhile: of as many requests as the kernel has under way.
//! 5. What waits for room is kept, with its data, in this process: of one user no more than
//!    [`crate::budget`] allows. What goes beyond gets ENOMEM. Pages that the kernel writes back are
//!    never refused: they would be lost, and the kernel bounds them itself.
//! 6. A request under the kernel's lock of a directory keeps all others from that directory. So it
//!    waits only briefly for its user's limit, or for room in the pool ([`crate::lock_waits`]), and
//!    in a queue without writes. Room in the log always comes, as fast as the media take it.
//! 7. Each of these five waits has a thread ([`crate::waiting`]): those that read requests never
//!    wait for a medium. A request that does not wait is answered by the thread that read it.
//!
//! What it must never do: wait with a turn; try an operation again that was done; wait for a sync
//! that waits in the queue of the same thread.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use sietch_fs::FileSystem;
use sietch_fs::file_system::{SyncPoint, Waited, sync_to};

use crate::budget::{Budget, Share};
use crate::lock_waits::LockWaits;
use crate::state::{Shared, State, Tried};
use crate::turns::User;
use crate::waiting::Waiting;

/// How long a write of pages waits before it is tried again.
const AGAIN: Duration = Duration::from_millis(250);
/// What a request keeps while it waits, besides its data: names, and the answer.
pub(crate) const KEPT: usize = 1 << 10;

/// The threads that wait.
#[derive(Default)]
pub(crate) struct Waits {
    /// For room.
    pub(crate) room: Waiting,
    /// For room, under the lock of a directory.
    pub(crate) names: Waiting,
    /// For the digest to keep up.
    pub(crate) pauses: Waiting,
    /// For the disk of the log.
    pub(crate) syncs: Waiting,
    /// For the service, of pages that the kernel writes back.
    pub(crate) write_back: Waiting,
    /// What may be kept for requests that wait for room.
    budget: Arc<Budget>,
    lock_waits: LockWaits,
}

impl Waits {
    /// The threads, by name.
    pub(crate) fn threads(&self) -> [(&'static str, &Waiting); 5] {
        [
            ("fuse-room", &self.room),
            ("fuse-names", &self.names),
            ("fuse-pauses", &self.pauses),
            ("fuse-syncs", &self.syncs),
            ("fuse-write-back", &self.write_back),
        ]
    }
}

/// What requests that change something have in common.
pub(crate) struct Changes<F> {
    pub(crate) shared: Arc<Shared<F>>,
    pub(crate) waits: Arc<Waits>,
}

impl<F> Clone for Changes<F> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared), waits: Arc::clone(&self.waits) }
    }
}

/// How a request is answered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct How {
    /// Whose request it is.
    pub(crate) user: User,
    /// The answer waits until the change is durable.
    pub(crate) syncs: bool,
    /// No program gets the error.
    pub(crate) is_write_back: bool,
    /// The kernel has locked a directory until the answer: when the request came.
    pub(crate) locked: Option<Instant>,
    /// Bytes that are kept while it waits.
    pub(crate) kept: usize,
}

impl How {
    /// Whether the operation is tried again after this try.
    pub(crate) fn is_tried_again<T>(self, tried: &Tried<T>) -> bool {
        match tried {
            Tried::Waits(..) => true,
            Tried::Done(result, _) => self.is_written_again(result),
        }
    }

    /// Whether no program would know that this failed for the moment.
    fn is_written_again<T>(self, result: &Result<T, Errno>) -> bool {
        self.is_write_back && matches!(result, Err(Errno::TIMEDOUT | Errno::AGAIN))
    }
}

impl<F: FileSystem + Send + 'static> Changes<F> {
    /// Runs an operation, and answers with its result.
    pub(crate) fn run<T: Send + 'static>(
        &self,
        how: How,
        mut operation: impl FnMut(&mut State<F>) -> Result<T, Errno> + Send + 'static,
        answer: impl FnOnce(Result<T, Errno>) + Send + 'static,
    ) {
        let tried = self.shared.attempt(how.user, Waited::default(), &mut operation);
        self.go_on(how, tried, operation, answer);
    }

    /// A share of what is kept for the request's user, which it may have already.
    fn share(&self, how: How, share: Option<Share>) -> Result<Option<Share>, Errno> {
        if how.is_write_back || share.is_some() {
            return Ok(share);
        }
        Budget::take(&self.waits.budget, how.user, how.kept).map(Some).ok_or(Errno::NOMEM)
    }

    /// The error of a request that waited for `waited`, and must not wait any longer.
    fn refusal(&self, how: How, waited: Waited) -> Option<Errno> {
        let (since, errno) = (how.locked?, waited.refusal()?);
        self.waits.lock_waits.is_over(how.user, since).then_some(errno)
    }

    /// The queue of a request that waits for room.
    fn room(&self, how: How) -> &Waiting {
        if how.locked.is_some() { &self.waits.names } else { &self.waits.room }
    }

    /// As [`Changes::run`], for an operation with several steps, each in a turn of its own. The
    /// last one returns `true`.
    pub(crate) fn run_in_turns(
        &self,
        how: How,
        step: impl FnMut(&mut State<F>) -> Result<bool, Errno> + Send + 'static,
        answer: impl FnOnce(Result<(), Errno>) + Send + 'static,
    ) {
        self.go_on_in_turns(how, (Waited::default(), None), step, answer);
    }

    /// As [`Changes::run_in_turns`], after what the next step has waited for.
    fn go_on_in_turns(
        &self,
        how: How,
        (mut waited, share): (Waited, Option<Share>),
        mut step: impl FnMut(&mut State<F>) -> Result<bool, Errno> + Send + 'static,
        answer: impl FnOnce(Result<(), Errno>) + Send + 'static,
    ) {
        loop {
            match self.shared.attempt(how.user, waited, &mut step) {
                Tried::Done(Ok(false), _) => waited = Waited::default(),
                Tried::Done(result, pause) => {
                    let done = Tried::Done(result.map(|_| ()), pause);
                    return self.go_on(how, done, |_| Ok(()), answer);
                }
                Tried::Waits(waited, mut pending) => {
                    if let Some(errno) = self.refusal(how, waited) {
                        return answer(Err(errno));
                    }
                    let share = match self.share(how, share) {
                        Ok(share) => share,
                        Err(errno) => return answer(Err(errno)),
                    };
                    let changes = self.clone();
                    let again = move || {
                        pending.wait();
                        changes.go_on_in_turns(how, (waited, share), step, answer);
                    };
                    return self.room(how).push(how.user, Box::new(again));
                }
            }
        }
    }

    /// As [`Changes::run`], after the first try.
    pub(crate) fn go_on<T: Send + 'static>(
        &self,
        how: How,
        tried: Tried<T>,
        operation: impl FnMut(&mut State<F>) -> Result<T, Errno> + Send + 'static,
        answer: impl FnOnce(Result<T, Errno>) + Send + 'static,
    ) {
        self.go_on_with(how, None, tried, operation, answer);
    }

    /// As [`Changes::go_on`], for a request that may have its share of what is kept.
    fn go_on_with<T: Send + 'static>(
        &self,
        how: How,
        share: Option<Share>,
        tried: Tried<T>,
        mut operation: impl FnMut(&mut State<F>) -> Result<T, Errno> + Send + 'static,
        answer: impl FnOnce(Result<T, Errno>) + Send + 'static,
    ) {
        let changes = self.clone();
        match tried {
            Tried::Waits(waited, mut pending) => {
                if let Some(errno) = self.refusal(how, waited) {
                    return answer(Err(errno));
                }
                let share = match self.share(how, share) {
                    Ok(share) => share,
                    Err(errno) => return answer(Err(errno)),
                };
                let again = move || {
                    pending.wait();
                    let tried = changes.shared.attempt(how.user, waited, &mut operation);
                    changes.go_on_with(how, share, tried, operation, answer);
                };
                self.room(how).push(how.user, Box::new(again));
            }
            Tried::Done(result, _) if how.is_written_again(&result) => {
                let again = move || {
                    std::thread::sleep(AGAIN);
                    changes.run(how, operation, answer);
                };
                self.waits.write_back.push(how.user, Box::new(again));
            }
            Tried::Done(result, None) => changes.finish(how, result, answer),
            Tried::Done(result, Some(mut pause)) => {
                let paused = move || {
                    pause.wait();
                    changes.finish(how, result, answer);
                };
                self.waits.pauses.push(how.user, Box::new(paused));
            }
        }
    }

    /// Answers, after a sync if that is due.
    fn finish<T: Send + 'static>(
        &self,
        how: How,
        result: Result<T, Errno>,
        answer: impl FnOnce(Result<T, Errno>) + Send + 'static,
    ) {
        match result {
            Ok(value) if how.syncs => {
                self.sync(how.user, move |synced| answer(synced.map(|()| value)));
            }
            result => answer(result),
        }
    }

    /// Makes everything durable that was done until now, and answers.
    pub(crate) fn sync(&self, user: User, answer: impl FnOnce(Result<(), Errno>) + Send + 'static) {
        let mut point = SyncPoint::default();
        let begun = self.shared.run(user, |state| state.file_system.begin_sync(&mut point));
        match begun {
            Ok(None) => answer(Ok(())),
            Err(errno) => answer(Err(errno)),
            // The thread begins it anew: it would wait in vain for one that is behind in its queue.
            Ok(Some(_)) => {
                let shared = Arc::clone(&self.shared);
                let syncs = move || {
                    let begin =
                        |point: &mut SyncPoint| shared.run(user, |state| state.file_system.begin_sync(point));
                    answer(sync_to(point, begin));
                };
                self.waits.syncs.push(user, Box::new(syncs));
            }
        }
    }
}
