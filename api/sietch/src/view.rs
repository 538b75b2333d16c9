//! Showing what is in a storage area, as files: `sietch mount`, `sietch vsa ls`.
//!
//! 1. An application that holds an area says that it shows a view of it ([`crate::Client::serve_view`]).
//!    Somebody's question reaches the lease's thread through the daemon, which has looked whether
//!    that user may read the area.
//! 2. The thread writes the question down, sets `asked` and rings the lease's doorbell. The loop,
//!    which looks at `asked` once a turn, answers one question between two turns
//!    ([`crate::Lease::answer_view_request`]) with its [`View`]; the thread makes sealed memory of it and sends
//!    it.
//! 3. A view that has to wait for its disk says [`Unavailable::Later`] and is asked again in a later
//!    turn. Whoever asked waits for a second at most, so a question older than [`PATIENCE`] is
//!    dropped.
//! 4. What a view answers is cut to what was asked for. There are views of structures ready made:
//!    [`LogView`], [`MapView`], [`QueueView`].

mod structures;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

pub use sietch_protocol::view::{FileAttributes, FileKind, ViewError, ViewPage, escape, unescape};
use sietch_protocol::view::{ViewOperation, ViewReply, ViewRequest};
pub use structures::{LogView, MapView, QueueView};

/// How long a question is kept: twice as long as anybody waits for its answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// What is asked about, and by whom.
#[derive(Clone, Copy, Debug)]
pub struct ViewTarget<'a> {
    /// Components of the path; none for the root. None of them is empty, `.` or `..`.
    pub path: &'a [&'a str],
    /// The user who asks, as the kernel knows it. It may read the area; a view may be stricter.
    pub uid: u32,
}

/// Why there is nothing to see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unavailable {
    /// It is for whoever asked to know.
    Refused(ViewError),
    /// Not yet: ask again in a later turn.
    Later,
}

impl From<ViewError> for Unavailable {
    fn from(refusal: ViewError) -> Self {
        Self::Refused(refusal)
    }
}

/// A tree of files. What it does runs between two turns of a data loop: it should take
/// microseconds, and never wait.
pub trait View {
    /// What a path is.
    ///
    /// # Errors
    /// See [`Unavailable`].
    fn stat(&mut self, at: &ViewTarget<'_>) -> Result<FileAttributes, Unavailable>;

    /// Entries of a directory from `cursor` on, 0 at first: as many as find room in a [`ViewPage`], or
    /// fewer, and where the next page begins.
    ///
    /// # Errors
    /// See [`Unavailable`].
    fn list(&mut self, at: &ViewTarget<'_>, cursor: u64) -> Result<ViewPage, Unavailable>;

    /// At most `length` bytes of a file from `offset` on; fewer only at its end.
    ///
    /// # Errors
    /// See [`Unavailable`].
    fn read(&mut self, at: &ViewTarget<'_>, offset: u64, length: usize) -> Result<Vec<u8>, Unavailable>;
}

/// What a loop says of a view.
pub(crate) type Seen = Result<(ViewReply, Vec<u8>), ViewError>;

/// Asks `view`.
fn ask(view: &mut dyn View, uid: u32, question: &ViewRequest) -> Result<(ViewReply, Vec<u8>), Unavailable> {
    let Some(path) = question.components() else { return Err(ViewError::Missing.into()) };
    let at = ViewTarget { path: &path, uid };
    match question.operation {
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

/// A question about the area of one grant.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) id: u64,
    pub(crate) grant: u64,
    pub(crate) uid: u32,
    pub(crate) question: ViewRequest,
    pub(crate) since: Instant,
}

/// Questions on their way to the loops. The daemon lets no more wait than a few a connection.
#[derive(Debug, Default)]
pub(crate) struct Questions {
    asked: AtomicBool,
    waiting: Mutex<VecDeque<Asked>>,
}

impl Questions {
    fn waiting(&self) -> MutexGuard<'_, VecDeque<Asked>> {
        // A view that panics does so without the lock.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a question. The caller rings the loop's doorbell.
    pub(crate) fn put(&self, asked: Asked) {
        self.waiting().push_back(asked);
        self.asked.store(true, Ordering::Release);
    }

    /// Forgets every question: nobody waits for the answers.
    pub(crate) fn clear(&self) {
        self.waiting().clear();
    }

    /// One load, in the usual case.
    #[inline]
    pub(crate) fn is_asked(&self) -> bool {
        self.asked.load(Ordering::Acquire)
    }

    /// Answers the first question about `grant`; says what was answered, and whether another one
    /// waits.
    #[cold]
    pub(crate) fn answer(&self, grant: u64, view: &mut dyn View) -> (Option<(u64, Seen)>, bool) {
        let next = {
            let mut waiting = self.waiting();
            let place = waiting.iter().position(|asked| asked.grant == grant);
            let next = place.and_then(|place| waiting.remove(place));
            self.asked.store(!waiting.is_empty(), Ordering::Release);
            next
        };
        let Some(asked) = next else { return (None, false) };
        let told = match ask(view, asked.uid, &asked.question) {
            Ok(seen) => Some((asked.id, Ok(seen))),
            Err(Unavailable::Refused(refusal)) => Some((asked.id, Err(refusal))),
            Err(Unavailable::Later) if asked.since.elapsed() < PATIENCE => {
                self.put(asked);
                None
            }
            Err(Unavailable::Later) => {
                Some((asked.id, Err(ViewError::Failed("its disk has not answered in time".to_owned()))))
            }
        };
        (told, self.waiting().iter().any(|asked| asked.grant == grant))
    }
}

#[cfg(test)]
mod tests;
