//! Views: the contents of a storage area as a tree of files, for `sietch mount` and `sietch vsa
//! ls`.
//!
//! 1. An application that holds an area declares that it serves a view of it
//!    ([`crate::Client::serve_view`]). A request reaches the lease's thread through the daemon,
//!    which has checked that the user may read the area.
//! 2. The thread queues the request and rings the lease's doorbell. The loop checks a flag once an
//!    iteration and answers one request between two iterations
//!    ([`crate::Lease::answer_view_request`]) with its [`View`]. The thread puts the bytes into
//!    sealed memory and sends the reply.
//! 3. A view that has to wait for its disk returns [`Unavailable::Pending`] and is called again in
//!    a later iteration. The daemon waits for at most a second, so older requests are dropped.
//! 4. A reply is cut to the length that was requested. [`LogView`], [`MapView`] and [`QueueView`]
//!    are views of the persistent structures.

mod requests;
mod structures;

pub use sietch_protocol::view::{FileAttributes, FileKind, ViewError, ViewPage, escape, unescape};
pub use structures::{LogView, MapView, QueueView};

pub(crate) use requests::{PendingRequest, RequestQueue, ViewOutcome};

/// The file that a request names, and the user who sent it.
#[derive(Clone, Copy, Debug)]
pub struct ViewTarget<'a> {
    /// Components of the path; none for the root. None of them is empty, `.` or `..`.
    pub path: &'a [&'a str],
    /// The user who asks, as the kernel reports it. It may read the area; a view may be stricter.
    pub uid: u32,
}

/// Why a view returns nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unavailable {
    /// An error, which is sent as the reply.
    Error(ViewError),
    /// Not yet: the view is called again in a later iteration.
    Pending,
}

impl From<ViewError> for Unavailable {
    fn from(error: ViewError) -> Self {
        Self::Error(error)
    }
}

/// A tree of files. Its methods run between two iterations of a data loop: they should take
/// microseconds, and must not block.
pub trait View {
    /// The attributes of a file or directory.
    ///
    /// # Errors
    /// See [`Unavailable`].
    fn stat(&mut self, at: &ViewTarget<'_>) -> Result<FileAttributes, Unavailable>;

    /// Entries of a directory from `cursor` on, 0 at first: as many as fit a [`ViewPage`], or
    /// fewer, and the cursor of the next page.
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

#[cfg(test)]
mod tests;
