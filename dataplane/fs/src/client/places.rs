//! Operations that wait for leases while others use the file system.
//!
//! 1. An operation within a try ([`super::tries`]) that lacks a lease asks for it and ends. What it
//!    needs stays at its *place*, from which its next try goes on. Until then it keeps its leases
//!    as one that waits within does: those before the lease that it waits for, in the order of
//!    inode numbers. So operations of one client, too, never wait in a circle. One that has logged
//!    something waits within, and those at places cannot go on meanwhile: where another client
//!    waits for what they keep, an urgent revocation ends that.
//! 2. The front end has the place with [`Waited`](crate::file_system::Waited). When that is
//!    dropped, the place is left: nothing is kept for it any more.
//! 3. Places are few ([`MOST`]), because the service lets a client wait for few leases. An
//!    operation that finds no place asks for nothing and keeps nothing, and looks again after the
//!    next message. Those without a place get one in the order in which they came.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Weak};

use rustix::io::Errno;

use crate::inode::InodeNumber;
use crate::lease::{MAX_WAITING, Mode};

/// Operations of a client that wait for leases at places, at most. One more may wait within.
const MOST: usize = MAX_WAITING / 2;

/// What an operation needs, as far as it is known.
#[derive(Debug, Default)]
pub(super) struct Needs {
    pub modes: BTreeMap<InodeNumber, Mode>,
    /// The need that is waited for.
    pub waiting: Option<InodeNumber>,
    /// Why it does not come.
    pub refused: Option<Errno>,
}

impl Needs {
    /// The lease that the operation keeps on an inode, if it has it.
    pub(super) fn keeps(&self, inode: InodeNumber) -> Option<Mode> {
        if self.waiting.is_some_and(|waiting| inode <= waiting) {
            self.modes.get(&inode).copied()
        } else {
            None
        }
    }

    /// The operation waits for the lease on an inode.
    pub(super) fn wait_for(&mut self, inode: InodeNumber) {
        if self.waiting.replace(inode) != Some(inode) {
            self.refused = None;
        }
    }

    /// The operation does not get the lease on an inode.
    pub(super) fn refuse(&mut self, inode: InodeNumber, errno: Errno) {
        if self.waiting == Some(inode) {
            self.refused = Some(errno);
        }
    }
}

/// The place of an operation, or its turn to get one, until it is dropped.
#[derive(Debug, Default)]
pub(crate) struct Place(Arc<()>);

impl Place {
    fn is(&self, taken: &Weak<()>) -> bool {
        Weak::as_ptr(taken) == Arc::as_ptr(&self.0)
    }
}

/// The places that are taken, and what the operations at them need.
#[derive(Debug, Default)]
pub(super) struct Places {
    taken: Vec<(Weak<()>, Needs)>,
    /// Operations without a place, in the order in which they came.
    queue: VecDeque<Weak<()>>,
}

impl Places {
    pub(super) fn is_empty(&self) -> bool {
        self.taken.is_empty()
    }

    /// Whether there is a place for one more operation, which may have waited for it.
    pub(super) fn has_room(&mut self, own: Option<&Place>) -> bool {
        self.queue.retain(|waits| waits.strong_count() > 0);
        let place = own.and_then(|own| self.queue.iter().position(|waits| own.is(waits)));
        self.taken.len() + place.unwrap_or(self.queue.len()) < MOST
    }

    /// An operation waits for a place.
    pub(super) fn queue(&mut self, place: &Place) {
        if !self.queue.iter().any(|waits| place.is(waits)) {
            self.queue.push_back(Arc::downgrade(&place.0));
        }
    }

    /// An operation waits at a place.
    pub(super) fn put(&mut self, place: &Place, needs: Needs) {
        self.queue.retain(|waits| !place.is(waits));
        self.taken.push((Arc::downgrade(&place.0), needs));
    }

    /// The operation at a place goes on.
    pub(super) fn take(&mut self, place: &Place) -> Option<Needs> {
        let index = self.taken.iter().position(|(taken, _)| place.is(taken))?;
        Some(self.taken.swap_remove(index).1)
    }

    /// Removes places that were left; whether there were some.
    pub(super) fn clear_left(&mut self) -> bool {
        let before = self.taken.len();
        self.taken.retain(|(taken, _)| taken.strong_count() > 0);
        self.taken.len() < before
    }

    /// What the operations need.
    pub(super) fn needs(&self) -> impl Iterator<Item = &Needs> {
        self.taken.iter().map(|(_, needs)| needs)
    }

    /// No operation gets a lease that is waited for.
    pub(super) fn refuse(&mut self, inode: InodeNumber, errno: Errno) {
        self.taken.iter_mut().for_each(|(_, needs)| needs.refuse(inode, errno));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_get_places_in_the_order_in_which_they_came() {
        let mut places = Places::default();
        let taken: Vec<_> = (0..MOST).map(|_| Place::default()).collect();
        taken.iter().for_each(|place| places.put(place, Needs::default()));
        let (first, second) = (Place::default(), Place::default());
        places.queue(&first);
        places.queue(&second);
        places.queue(&first);
        assert!(!places.has_room(Some(&first)));
        places.take(&taken[0]).expect("it is there");
        assert!(!places.has_room(None) && !places.has_room(Some(&second)), "another one was first");
        assert!(places.has_room(Some(&first)));
        drop(first);
        assert!(!places.has_room(None));
        assert!(places.has_room(Some(&second)), "the first was given up");
        places.put(&second, Needs::default());
        assert!(!places.has_room(None));
        places.take(&taken[1]).expect("it is there");
        assert!(places.has_room(None), "none waits for a place");
    }

    #[test]
    fn a_refusal_is_of_the_lease_that_is_waited_for() {
        let mut needs = Needs::default();
        needs.wait_for(InodeNumber(2));
        needs.refuse(InodeNumber(2), Errno::NOLCK);
        needs.wait_for(InodeNumber(2));
        assert_eq!(needs.refused, Some(Errno::NOLCK));
        needs.wait_for(InodeNumber(3));
        assert_eq!(needs.refused, None);
    }
}
