//! Requests about views, queued by the lease's thread and answered by the loops.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sietch_protocol::view::{ViewError, ViewOperation, ViewReply, ViewRequest};

use super::{Unavailable, View, ViewTarget};

/// How long a request is kept: twice as long as the daemon waits for its reply.
const MAX_AGE: Duration = Duration::from_secs(2);

/// The result of a request: the reply and the bytes of a piece, or the error.
pub(crate) type ViewOutcome = Result<(ViewReply, Vec<u8>), ViewError>;

/// Calls the method of `view` that `request` names.
fn evaluate(
    view: &mut dyn View,
    uid: u32,
    request: &ViewRequest,
) -> Result<(ViewReply, Vec<u8>), Unavailable> {
    let Some(path) = request.components() else { return Err(ViewError::Missing.into()) };
    let at = ViewTarget { path: &path, uid };
    match request.operation {
        ViewOperation::Stat => Ok((ViewReply::Stat(view.stat(&at)?), Vec::new())),
        ViewOperation::List { cursor } => Ok((ViewReply::Page(view.list(&at, cursor)?), Vec::new())),
        ViewOperation::Read { offset, length } => {
            let length = usize::try_from(length).unwrap_or(0);
            let mut bytes = view.read(&at, offset, length)?;
            bytes.truncate(length);
            Ok((ViewReply::Piece, bytes))
        }
    }
}

/// A request about the area of one grant.
#[derive(Debug)]
pub(crate) struct PendingRequest {
    pub(crate) id: u64,
    pub(crate) grant: u64,
    pub(crate) uid: u32,
    pub(crate) request: ViewRequest,
    pub(crate) since: Instant,
}

/// Requests on their way to the loops. The daemon bounds how many wait for one connection.
#[derive(Debug, Default)]
pub(crate) struct RequestQueue {
    nonempty: AtomicBool,
    waiting: Mutex<VecDeque<PendingRequest>>,
}

impl RequestQueue {
    fn waiting(&self) -> MutexGuard<'_, VecDeque<PendingRequest>> {
        // A view that panics does so without the lock.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a request. The caller rings the loop's doorbell.
    pub(crate) fn push(&self, request: PendingRequest) {
        self.waiting().push_back(request);
        self.nonempty.store(true, Ordering::Release);
    }

    /// Drops every request: the connection that they came over has ended.
    pub(crate) fn clear(&self) {
        self.waiting().clear();
    }

    /// Whether requests wait: one load in the usual case.
    #[inline]
    pub(crate) fn has_requests(&self) -> bool {
        self.nonempty.load(Ordering::Acquire)
    }

    /// Answers the first request about `grant`. Returns its id and outcome, and whether another
    /// request about `grant` waits.
    #[cold]
    pub(crate) fn answer(&self, grant: u64, view: &mut dyn View) -> (Option<(u64, ViewOutcome)>, bool) {
        let next = {
            let mut waiting = self.waiting();
            let index = waiting.iter().position(|request| request.grant == grant);
            let next = index.and_then(|index| waiting.remove(index));
            self.nonempty.store(!waiting.is_empty(), Ordering::Release);
            next
        };
        let Some(pending) = next else { return (None, false) };
        let outcome = match evaluate(view, pending.uid, &pending.request) {
            Ok(reply) => Some((pending.id, Ok(reply))),
            Err(Unavailable::Error(error)) => Some((pending.id, Err(error))),
            Err(Unavailable::Pending) if pending.since.elapsed() < MAX_AGE => {
                self.push(pending);
                None
            }
            Err(Unavailable::Pending) => {
                let error = ViewError::Failed("its disk has not answered in time".to_owned());
                Some((pending.id, Err(error)))
            }
        };
        (outcome, self.waiting().iter().any(|request| request.grant == grant))
    }
}
