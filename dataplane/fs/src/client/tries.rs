//! Operations of front ends whose users share the file system: they do not wait within.
//!
//! 1. Within a try ([`FileSystem::begin_try`](crate::FileSystem::begin_try)) an operation that
//!    lacks room for its record, its data or its owner, or a lease, ends with `EAGAIN`. The front
//!    end waits for the next commit, or for what the service says, while others use the file
//!    system, and tries the operation again, from its beginning. So a user that has no room waits
//!    alone, and so does one whose file another client has.
//! 2. An operation that has logged something cannot begin again: what follows waits within it. It
//!    finds room in the log, because no try begins a record with less than
//!    [`FOLLOWING`](super::current_try::FOLLOWING) bytes left.
//!    Clearing set-ID bits and capabilities before a write can be done again, and does not count.
//! 3. How long an operation waited goes from try to try ([`Waited`]), so it ends as one that waits
//!    within.
//! 4. What a try was found to need it keeps to its end, although it has several operations; where
//!    it waits for a lease, to the end of the operation ([`super::places`]).
//! 5. A pause for the digest ([`Service::logged_without_pause`]) is the front end's too.

use rustix::io::Errno;
use sietch_disk::nvm::Medium;

use super::current_try::{AtPlace, Try};
use super::{Client, DigestWait, Service};
use crate::file_system::{Pending, Waited};

impl<S: Service<M>, M: Medium> Client<S, M> {
    pub(super) fn start_try(&mut self, waited: Waited) {
        let mut waited = waited;
        if !std::mem::take(&mut waited.is_for_message) {
            for awaited in [&mut waited.room, &mut waited.quota, &mut waited.shown] {
                // There was a commit since the last try.
                awaited.commits += u32::from(awaited.end.is_some_and(|end| self.digested >= end));
            }
        }
        let needs = waited.place.as_ref().and_then(|place| self.leases.places.take(place));
        self.tries = Try { is_on: true, has_place: needs.is_some(), waited, ..Try::default() };
        self.leases.needs = needs.unwrap_or_default();
        self.leases.needs.begin_run();
    }

    pub(super) fn finish_try(&mut self) -> Option<(Waited, Box<dyn Pending>)> {
        let Try { mut waited, retry, pause, place, .. } = std::mem::take(&mut self.tries);
        match place {
            Some(AtPlace::Takes) => {
                let place = waited.place.get_or_insert_default();
                self.leases.places.put(waited.user, place, std::mem::take(&mut self.leases.needs));
            }
            Some(AtPlace::Queues) => {
                self.leases.places.queue(waited.user, waited.place.get_or_insert_default());
                self.end_operation();
            }
            None => {
                waited.place = None;
                self.end_operation();
            }
        }
        retry.or(pause).map(|pending| (waited, pending))
    }

    /// Whether the operation has a place, or may take one.
    pub(super) fn may_take_place(&mut self) -> bool {
        let waited = &self.tries.waited;
        self.tries.has_place || self.leases.places.has_room(waited.user, waited.place.as_ref())
    }

    /// The operation ends, and waits for a lease at its place.
    pub(super) fn take_place(&mut self, pending: Box<dyn Pending>) -> Errno {
        self.tries.place = Some(AtPlace::Takes);
        self.wait_for_message(pending)
    }

    /// The operation ends, and waits for a place: one is free after a message, mostly.
    pub(super) fn queue_for_place(&mut self, pending: Box<dyn Pending>) -> Errno {
        self.tries.place = Some(AtPlace::Queues);
        self.wait_for_message(pending)
    }

    /// The operation ends, and waits for what the service says.
    pub(super) fn wait_for_message(&mut self, pending: Box<dyn Pending>) -> Errno {
        self.tries.waited.is_for_message = true;
        self.tries.retry = Some(pending);
        Errno::AGAIN
    }

    /// Waits until the log is digested further, and takes notice; `None` when all of it is.
    ///
    /// # Errors
    /// As of [`Service::wait`]. `EAGAIN`: the operation ends, and runs again.
    pub(super) fn wait_for_digest(&mut self) -> Result<Option<u64>, Errno> {
        let position = if self.tries.may_repeat() {
            match self.service.begin_wait()? {
                DigestWait::Digested(position) => Some(position),
                DigestWait::Complete => None,
                DigestWait::Pending(pending) => {
                    self.tries.retry = Some(pending);
                    return Err(Errno::AGAIN);
                }
            }
        } else {
            self.service.wait()?
        };
        if let Some(position) = position {
            self.digested(position);
        }
        self.answer_within()?;
        Ok(position)
    }

    /// Runs a part of an operation that may be done again.
    pub(super) fn repeatable<T>(
        &mut self,
        part: impl FnOnce(&mut Self) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        let (had_logged, had_committed) = (self.tries.has_logged, self.leases.has_committed);
        let result = part(self);
        (self.tries.has_logged, self.leases.has_committed) = (had_logged, had_committed);
        result
    }

    /// Tells the service of a record that ends at `position`.
    pub(super) fn report_logged(&mut self, position: u64) {
        if self.tries.is_on {
            let pause = self.service.logged_without_pause(position);
            self.tries.pause = pause.or(self.tries.pause.take());
            self.tries.has_logged = true;
        } else {
            self.service.logged(position);
        }
    }
}
