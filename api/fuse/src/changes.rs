//! Requests that may wait, from their operation to their answer.
//!
//! 1. The operation is tried in a turn of its user. If it has no room, the next commit of the
//!    digest is waited for without the turn, and it is tried again. So a user without room waits
//!    alone. So does a user whose file another client has: what the service says is waited for.
//! 2. If the digest does not keep up, the answer waits a little. One answer after the other does,
//!    so that several programs together log no faster than one.
//! 3. Where each change is to be durable, and after `fsync`, the answer waits for a sync. The
//!    thread that syncs writes for all whose records the log has by then.
//! 4. The kernel writes pages of a mapping back in its own name, and no program gets the error: the
//!    kernel would drop the pages. If the service does not answer, or says that the operation is to
//!    be called again, the write is tried again each [`AGAIN`], until the service answers or is
//!    gone. Bytes and reply are kept meanwhile: of as many requests as the kernel has under way.
//! 5. What waits for room or a lease is kept, with its data, in this process: of one user no more
//!    than [`crate::budget`] allows. What goes beyond gets ENOMEM. Pages that the kernel writes
//!    back are never refused: they would be lost, and the kernel bounds them itself.
//! 6. A request under the kernel's lock of a directory keeps all others from that directory. So it
//!    waits only briefly for its user's limit, or for room in the pool ([`crate::lock_waits`]), and
//!    in a queue without writes. Room in the log always comes, as fast as the media take it.
//! 7. The steps of a request that waited once are jobs of their own: others that wait are tried
//!    meanwhile.
//! 8. Each of these six waits, and the steps, have a thread ([`crate::waiting`]): those that read
//!    requests never wait for a medium. A request that does not wait is answered by the thread that
//!    read it.
//!
//! What it must never do: wait with a turn; try an operation again that was done; wait for a sync
//! that waits in the queue of the same thread.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use sietch_fs::FileSystem;
use sietch_fs::file_system::{Pending, SyncPoint, Waited, sync_to};

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
    /// For what the service says: leases, and the answer whether there is room.
    pub(crate) service: Waiting,
    /// For their turn: further steps of those that waited.
    pub(crate) steps: Waiting,
    /// For the digest to keep up.
    pub(crate) pauses: Waiting,
    /// For the disk of the log.
    pub(crate) syncs: Waiting,
    /// For the service, of pages that the kernel writes back.
    pub(crate) write_back: Waiting,
    /// What may be kept for requests that wait for room or leases.
    budget: Arc<Budget>,
    lock_waits: LockWaits,
}

impl Waits {
    /// The threads, by name.
    pub(crate) fn threads(&self) -> [(&'static str, &Waiting); 7] {
        [
            ("fuse-room", &self.room),
            ("fuse-names", &self.names),
            ("fuse-service", &self.service),
            ("fuse-steps", &self.steps),
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
    fn refusal(&self, how: How, waited: &Waited) -> Option<Errno> {
        let (since, errno) = (how.locked?, waited.refusal()?);
        self.waits.lock_waits.is_over(how.user, since).then_some(errno)
    }

    /// Has a request go on after what it waits for.
    fn wait(&self, how: How, is_for_message: bool, again: impl FnOnce() + Send + 'static) {
        let again = Box::new(again);
        if is_for_message {
            // One message is for several: in their order, the first to wait is the first to look.
            self.waits.service.push(None, again);
        } else if how.locked.is_some() {
            self.waits.names.push(how.user, again);
        } else {
            self.waits.room.push(how.user, again);
        }
    }

    /// As [`Changes::run`], for an operation with several steps, each in a turn of its own. The
    /// last one returns the result.
    pub(crate) fn run_in_turns<T: Send + 'static>(
        &self,
        how: How,
        step: impl FnMut(&mut State<F>) -> Result<Option<T>, Errno> + Send + 'static,
        answer: impl FnOnce(Result<T, Errno>) + Send + 'static,
    ) {
        self.go_on_in_turns(how, (Waited::default(), None), step, answer);
    }

    /// As [`Changes::run_in_turns`], after what the next step has waited for.
    fn go_on_in_turns<T: Send + 'static>(
        &self,
        how: How,
        (mut waited, share): (Waited, Option<Share>),
        mut step: impl FnMut(&mut State<F>) -> Result<Option<T>, Errno> + Send + 'static,
        answer: impl FnOnce(Result<T, Errno>) + Send + 'static,
    ) {
        loop {
            match self.shared.attempt(how.user, waited, &mut step) {
                Tried::Done(Ok(None), _) if share.is_some() => {
                    let changes = self.clone();
                    let next = move || changes.go_on_in_turns(how, (Waited::default(), share), step, answer);
                    return self.waits.steps.push(how.user, Box::new(next));
                }
                Tried::Done(Ok(None), _) => waited = Waited::default(),
                Tried::Done(Ok(Some(value)), pause) => return self.pause(how, pause, Ok(value), answer),
                Tried::Done(Err(error), pause) => return self.pause(how, pause, Err(error), answer),
                Tried::Waits(waited, mut pending) => {
                    if let Some(errno) = self.refusal(how, &waited) {
                        return answer(Err(errno));
                    }
                    let share = match self.share(how, share) {
                        Ok(share) => share,
                        Err(errno) => return answer(Err(errno)),
                    };
                    let (changes, is_for_message) = (self.clone(), waited.is_for_message());
                    let again = move || {
                        pending.wait();
                        changes.go_on_in_turns(how, (waited, share), step, answer);
                    };
                    return self.wait(how, is_for_message, again);
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
                if let Some(errno) = self.refusal(how, &waited) {
                    return answer(Err(errno));
                }
                let share = match self.share(how, share) {
                    Ok(share) => share,
                    Err(errno) => return answer(Err(errno)),
                };
                let is_for_message = waited.is_for_message();
                let again = move || {
                    pending.wait();
                    let tried = changes.shared.attempt(how.user, waited, &mut operation);
                    changes.go_on_with(how, share, tried, operation, answer);
                };
                self.wait(how, is_for_message, again);
            }
            Tried::Done(result, _) if how.is_written_again(&result) => {
                let again = move || {
                    std::thread::sleep(AGAIN);
                    changes.run(how, operation, answer);
                };
                self.waits.write_back.push(how.user, Box::new(again));
            }
            Tried::Done(result, pause) => self.pause(how, pause, result, answer),
        }
    }

    /// Answers, after a pause if the digest does not keep up.
    fn pause<T: Send + 'static>(
        &self,
        how: How,
        pause: Option<Box<dyn Pending>>,
        result: Result<T, Errno>,
        answer: impl FnOnce(Result<T, Errno>) + Send + 'static,
    ) {
        let Some(mut pause) = pause else { return self.finish(how, result, answer) };
        let changes = self.clone();
        let paused = move || {
            pause.wait();
            changes.finish(how, result, answer);
        };
        self.waits.pauses.push(how.user, Box::new(paused));
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
