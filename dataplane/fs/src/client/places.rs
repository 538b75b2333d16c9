//! Operations that wait for leases while others use the file system.
//!
//! 1. An operation within a try ([`super::tries`]) that lacks a lease asks for it and ends. What it
//!    needs stays at its *place*, from which its next try goes on. Until then it keeps its leases
//!    as one that waits within does: those before the lease that it waits for, in the order of
//!    inode numbers. So operations of one client, too, never wait in a circle. One that has logged
//!    something waits within, and those at places cannot go on meanwhile: where another client
//!    waits for what they keep, an urgent revocation ends that. What an earlier run needed and the
//!    last one does not, because another client changed a name meanwhile, is not kept.
//! 2. The front end has the place with [`Waited`](crate::file_system::Waited). When that is
//!    dropped, the place is left: nothing is kept for it any more.
//! 3. Places are few ([`MOST`]), because the service lets a client wait for few leases. An
//!    operation that finds no place asks for nothing and keeps nothing, and looks again after the
//!    next message. Those of a user that are without a place get one in the order in which they
//!    came.
//! 4. No user has all places: one has at most [`SHARE`] times as many as are free, so that there is
//!    one for the next user. A user with fewer places comes first.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Weak};

use foldhash::fast::RandomState;
use hashbrown::HashMap;
use rustix::io::Errno;

use crate::inode::InodeNumber;
use crate::lease::{MAX_WAITING, Mode};

/// Operations of a client that wait for leases at places, at most. One more may wait within.
const MOST: usize = MAX_WAITING / 2;
/// Places of a user for each that is free: a single user has three quarters of them.
const SHARE: usize = 3;

/// What an operation needs, as far as it is known.
#[derive(Debug, Default)]
pub(super) struct Needs {
    pub modes: BTreeMap<InodeNumber, Mode>,
    /// Of those, what the current run has not used yet.
    unused: BTreeSet<InodeNumber>,
    /// The need that is waited for.
    pub waiting: Option<InodeNumber>,
    /// Why it does not come.
    pub refused: Option<Errno>,
}

impl Needs {
    /// The operation runs, from its beginning.
    pub(super) fn begin_run(&mut self) {
        self.unused = self.modes.keys().copied().collect();
    }

    /// The run uses a lease that the operation has.
    pub(super) fn used(&mut self, inode: InodeNumber) {
        if !self.unused.is_empty() {
            self.unused.remove(&inode);
        }
    }

    /// The run ends for lack of a lease. If the operation had not needed it before, something has
    /// changed, or the run came further than those before: what it did not use until now it does
    /// not need.
    pub(super) fn lacks(&mut self, inode: InodeNumber, mode: Mode) {
        self.used(inode);
        if self.modes.get(&inode).is_some_and(|known| *known >= mode) {
            return;
        }
        for left in std::mem::take(&mut self.unused) {
            self.modes.remove(&left);
        }
        self.modes.insert(inode, mode);
    }

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

/// Whose operation it is.
pub(crate) type User = Option<u32>;

/// The place of an operation, or its turn to get one, until it is dropped.
#[derive(Debug, Default)]
pub(crate) struct Place(Arc<()>);

impl Place {
    fn is(&self, taken: &Weak<()>) -> bool {
        Weak::as_ptr(taken) == Arc::as_ptr(&self.0)
    }
}

/// A place that is taken.
#[derive(Debug)]
struct Taken {
    operation: Weak<()>,
    user: User,
    needs: Needs,
}

/// The places that are taken, and what the operations at them need.
#[derive(Debug, Default)]
pub(super) struct Places {
    taken: Vec<Taken>,
    /// Operations without a place by their users, in the order in which they came.
    queues: HashMap<User, VecDeque<Weak<()>>, RandomState>,
}

impl Places {
    pub(super) fn is_empty(&self) -> bool {
        self.taken.is_empty()
    }

    fn taken_by(&self, user: User) -> usize {
        self.taken.iter().filter(|taken| taken.user == user).count()
    }

    /// Whether there is a place for one more operation of a user, which may have waited for it.
    pub(super) fn has_room(&mut self, user: User, own: Option<&Place>) -> bool {
        self.queues.retain(|_, queue| {
            while queue.front().is_some_and(|waits| waits.strong_count() == 0) {
                queue.pop_front();
            }
            !queue.is_empty()
        });
        let (count, free) = (self.taken_by(user), MOST - self.taken.len());
        let others = self.queues.keys().filter(|other| **other != user && self.taken_by(**other) < count);
        let others = others.count();
        let before = self.queues.get_mut(&user).map_or(0, |queue| {
            queue.retain(|waits| waits.strong_count() > 0);
            let place = own.and_then(|own| queue.iter().position(|waits| own.is(waits)));
            place.unwrap_or(queue.len())
        });
        count < SHARE * free && others + before < free
    }

    /// An operation of a user waits for a place.
    pub(super) fn queue(&mut self, user: User, place: &Place) {
        let queue = self.queues.entry(user).or_default();
        if !queue.iter().any(|waits| place.is(waits)) {
            queue.push_back(Arc::downgrade(&place.0));
        }
    }

    /// An operation of a user waits at a place.
    pub(super) fn put(&mut self, user: User, place: &Place, needs: Needs) {
        if let Some(queue) = self.queues.get_mut(&user) {
            queue.retain(|waits| !place.is(waits));
        }
        self.taken.push(Taken { operation: Arc::downgrade(&place.0), user, needs });
    }

    /// The operation at a place goes on.
    pub(super) fn take(&mut self, place: &Place) -> Option<Needs> {
        let index = self.taken.iter().position(|taken| place.is(&taken.operation))?;
        Some(self.taken.swap_remove(index).needs)
    }

    /// Removes places that were left; whether there were some.
    pub(super) fn clear_left(&mut self) -> bool {
        let before = self.taken.len();
        self.taken.retain(|taken| taken.operation.strong_count() > 0);
        self.taken.len() < before
    }

    /// What the operations need.
    pub(super) fn needs(&self) -> impl Iterator<Item = &Needs> {
        self.taken.iter().map(|taken| &taken.needs)
    }

    /// No operation gets a lease that is waited for.
    pub(super) fn refuse(&mut self, inode: InodeNumber, errno: Errno) {
        self.taken.iter_mut().for_each(|taken| taken.needs.refuse(inode, errno));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: User = Some(1);
    const TWO: User = Some(2);

    /// A user takes places until there is none for it.
    fn fill(places: &mut Places, user: User) -> Vec<Place> {
        let mut taken = Vec::new();
        while places.has_room(user, None) {
            let place = Place::default();
            places.put(user, &place, Needs::default());
            taken.push(place);
        }
        taken
    }

    #[test]
    fn operations_of_a_user_get_places_in_the_order_in_which_they_came() {
        let mut places = Places::default();
        let taken = fill(&mut places, ONE);
        let (first, second) = (Place::default(), Place::default());
        places.queue(ONE, &first);
        places.queue(ONE, &second);
        places.queue(ONE, &first);
        assert!(!places.has_room(ONE, Some(&first)));
        for place in taken {
            places.take(&place).expect("it is there");
        }
        let taken: Vec<_> = (0..MOST - 1).map(|_| Place::default()).collect();
        taken.iter().for_each(|place| places.put(None, place, Needs::default()));
        assert!(!places.has_room(ONE, None) && !places.has_room(ONE, Some(&second)), "another was first");
        assert!(places.has_room(ONE, Some(&first)));
        drop(first);
        assert!(!places.has_room(ONE, None));
        assert!(places.has_room(ONE, Some(&second)), "the first was given up");
        places.put(ONE, &second, Needs::default());
        places.take(&taken[0]).expect("it is there");
        assert!(places.has_room(ONE, None), "none waits for a place");
    }

    #[test]
    fn no_user_has_all_places_and_one_with_fewer_comes_first() {
        let mut places = Places::default();
        let one = fill(&mut places, ONE);
        assert_eq!(one.len(), MOST / 4 * 3);
        let two = fill(&mut places, TWO);
        assert_eq!(two.len(), MOST / 16 * 3);
        let three = fill(&mut places, Some(3));
        assert_eq!(places.taken.len(), MOST);
        // A place of the first user is free: the second one has fewer, and the last one none.
        let (first, second, last) = (Place::default(), Place::default(), Place::default());
        places.queue(ONE, &first);
        places.queue(TWO, &second);
        places.queue(Some(4), &last);
        places.take(&one[0]).expect("it is there");
        assert!(!places.has_room(ONE, Some(&first)) && !places.has_room(TWO, Some(&second)));
        assert!(places.has_room(Some(4), Some(&last)));
        drop(three);
        assert!(places.clear_left());
        assert!(places.has_room(TWO, Some(&second)), "the last user leaves one");
    }

    #[test]
    fn what_the_last_run_did_not_use_is_not_needed_any_more() {
        let [directory, one, two] = [3, 1, 2].map(InodeNumber);
        let mut needs = Needs::default();
        needs.begin_run();
        needs.lacks(directory, Mode::Shared);
        needs.begin_run();
        needs.used(directory);
        needs.lacks(one, Mode::Shared);
        // The lease of the directory went: the run ends before it could use the other one.
        needs.begin_run();
        needs.lacks(directory, Mode::Shared);
        assert_eq!(needs.modes, [(directory, Mode::Shared), (one, Mode::Shared)].into());
        // The name is of another inode now.
        needs.begin_run();
        needs.used(directory);
        needs.lacks(two, Mode::Shared);
        assert_eq!(needs.modes, [(directory, Mode::Shared), (two, Mode::Shared)].into());
        needs.begin_run();
        needs.used(directory);
        needs.used(two);
        needs.lacks(directory, Mode::Exclusive);
        assert_eq!(needs.modes, [(directory, Mode::Exclusive), (two, Mode::Shared)].into());
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
