//! What a client knows of the current try of an operation: see `tries`.

use crate::file_system::{Awaited, Pending, Waited};

/// Bytes of the log that a try leaves for the records that follow its first one: more than the
/// record that frees an inode takes.
pub(super) const FOLLOWING: u64 = 4096;

/// The try of an operation, if there is one.
#[derive(Default)]
pub(super) struct Try {
    pub is_on: bool,
    /// The operation has logged something.
    pub has_logged: bool,
    /// Of this operation.
    pub waited: Waited,
    /// What the next try waits for.
    pub retry: Option<Box<dyn Pending>>,
    /// This try goes on from a place.
    pub has_place: bool,
    /// Where the operation waits for a lease.
    pub place: Option<AtPlace>,
    /// What the answer waits for.
    pub pause: Option<Box<dyn Pending>>,
}

/// Where an operation waits for a lease: see [`super::places`].
#[derive(Clone, Copy)]
pub(super) enum AtPlace {
    /// At a place, from which the next try goes on.
    Takes,
    /// In the queue for one.
    Queues,
}

impl Try {
    /// An operation begins. The tries of one go on with what it waited for; one that runs again
    /// without a try, with what it asked.
    pub(super) fn begin_operation(&mut self) {
        if !self.is_on {
            self.waited = Waited { question: self.waited.question.take(), ..Waited::default() };
        }
    }

    /// An operation ends, and does not run again if it is without a try.
    pub(super) fn end_operation(&mut self) {
        if !self.is_on {
            self.waited.question = None;
        }
    }

    /// Whether the operation may still end and begin again.
    pub(super) fn may_repeat(&self) -> bool {
        self.is_on && !self.has_logged
    }
}

impl Awaited {
    /// Where the log ended when the first of these waits began: now, if this is the first.
    pub(super) fn since(&mut self, end: u64) -> u64 {
        *self.end.get_or_insert(end)
    }
}
