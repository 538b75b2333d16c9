//! What a client knows of its leases: see `leases`.

use std::collections::VecDeque;
use std::sync::Arc;

use foldhash::fast::RandomState;
use hashbrown::{HashMap, HashSet};
use rustix::io::Errno;

use super::places::{Needs, Places};
use super::question::Question;
use crate::inode::InodeNumber;
use crate::lease::quota::is_of_a_limit;
use crate::lease::{MAX_KEPT, Mode, Revocation};

/// A lease that the client has.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hold {
    pub mode: Mode,
    /// That of the grant; 0: of an inode that this client made.
    pub serial: u64,
    /// No other client has the inode open.
    pub is_sole: bool,
    /// An operation needed it since it was last considered for release.
    pub is_used: bool,
}

/// Leases, and what the current operation needs.
#[derive(Debug)]
pub(super) struct Leases {
    pub held: HashMap<InodeNumber, Hold, RandomState>,
    /// In the order in which they came or were last passed over; some are gone.
    pub order: VecDeque<InodeNumber>,
    /// Leases that are kept, at most.
    pub most: usize,
    /// What the current operation needs.
    pub needs: Needs,
    /// Operations that wait while others run.
    pub places: Places,
    /// An operation waits for what it needs.
    pub waits: bool,
    /// The operation found a need that is not met.
    pub is_stopped: bool,
    /// The operation has changed something.
    pub has_committed: bool,
    /// What was asked for and did not come yet.
    pub requested: HashMap<InodeNumber, Mode, RandomState>,
    /// Revocations of leases that operations need.
    pub deferred: Vec<Revocation>,
    /// Inodes that the service counts as open here.
    pub known_open: HashSet<InodeNumber, RandomState>,
    /// Numbers for new inodes that other clients asked for.
    pub lost_numbers: HashSet<InodeNumber, RandomState>,
    /// The question for room that is not answered yet.
    pub question: Option<Arc<Question>>,
}

impl Default for Leases {
    fn default() -> Self {
        Self {
            held: HashMap::default(),
            order: VecDeque::new(),
            most: MAX_KEPT,
            needs: Needs::default(),
            places: Places::default(),
            waits: true,
            is_stopped: false,
            has_committed: false,
            requested: HashMap::default(),
            deferred: Vec::new(),
            known_open: HashSet::default(),
            lost_numbers: HashSet::default(),
            question: None,
        }
    }
}

impl Leases {
    pub(super) fn has(&self, inode: InodeNumber, mode: Mode) -> bool {
        self.held.get(&inode).is_some_and(|hold| hold.mode >= mode)
    }

    /// Whether all that the operation needs is there, but for leases of limits.
    pub(super) fn lacks_limits_alone(&self) -> bool {
        self.needs.modes.iter().all(|(inode, mode)| is_of_a_limit(*inode) || self.has(*inode, *mode))
    }

    /// Whether there is this lease for an operation, which uses it.
    pub(super) fn uses(&mut self, inode: InodeNumber, mode: Mode) -> bool {
        match self.held.get_mut(&inode) {
            Some(hold) if hold.mode >= mode => {
                hold.is_used = true;
                true
            }
            _ => false,
        }
    }

    /// The next lease to release: the first one that no operation needed since it was last passed
    /// over. `None`: operations that wait keep all of them.
    pub(super) fn next_unused(&mut self) -> Option<(InodeNumber, Hold)> {
        // Each is passed over once because it was used.
        for _ in 0..=2 * self.order.len() {
            let inode = self.order.pop_front()?;
            if self.is_pinned(inode) {
                self.order.push_back(inode);
                continue;
            }
            match self.held.get_mut(&inode) {
                Some(hold) if hold.is_used => {
                    hold.is_used = false;
                    self.order.push_back(inode);
                }
                Some(hold) => return Some((inode, *hold)),
                None => {}
            }
        }
        None
    }

    pub(super) fn insert(&mut self, inode: InodeNumber, hold: Hold) {
        if self.held.insert(inode, hold).is_none() {
            self.order.push_back(inode);
        }
    }

    /// Whether an operation that waits for a lease keeps this one: it is one of those that it
    /// acquired.
    pub(super) fn is_pinned(&self, inode: InodeNumber) -> bool {
        let mut needs = std::iter::once(&self.needs).chain(self.places.needs());
        needs.any(|needs| needs.keeps(inode).is_some_and(|mode| self.has(inode, mode)))
    }

    /// Whether an operation waits for the lease on this inode.
    pub(super) fn is_waited_for(&self, inode: InodeNumber) -> bool {
        let mut needs = std::iter::once(&self.needs).chain(self.places.needs());
        needs.any(|needs| needs.waiting == Some(inode))
    }

    /// The lease on this inode does not come.
    pub(super) fn refuse(&mut self, inode: InodeNumber, errno: Errno) {
        if self.requested.remove(&inode).is_some() {
            self.needs.refuse(inode, errno);
            self.places.refuse(inode, errno);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Leases on these inodes, in this order.
    fn held(inodes: std::ops::RangeInclusive<u64>) -> Leases {
        let mut leases = Leases::default();
        for inode in inodes {
            let hold = Hold { mode: Mode::Shared, serial: inode, is_sole: false, is_used: false };
            leases.insert(InodeNumber(inode), hold);
        }
        leases
    }

    fn release(leases: &mut Leases) -> Option<u64> {
        let (inode, _) = leases.next_unused()?;
        leases.held.remove(&inode);
        Some(inode.0)
    }

    /// A directory that every operation needs stays, however long ago its lease came.
    #[test]
    fn a_lease_that_is_used_outlasts_those_that_are_not() {
        let mut leases = held(1..=4);
        for next in 5..100 {
            assert!(leases.uses(InodeNumber(1), Mode::Shared));
            assert!(!leases.uses(InodeNumber(1), Mode::Exclusive), "it has no such lease");
            let came = *held(next..=next).held.get(&InodeNumber(next)).expect("one");
            leases.insert(InodeNumber(next), came);
            assert_eq!(release(&mut leases), Some(next - 3), "the oldest of the others");
        }
        assert_eq!(leases.held.len(), 4);
    }

    /// All are used: the oldest goes, after each was passed over once.
    #[test]
    fn leases_that_are_all_used_go_in_their_order() {
        let mut leases = held(1..=8);
        for inode in 1..=8 {
            assert!(leases.uses(InodeNumber(inode), Mode::Shared));
        }
        assert_eq!(leases.next_unused().map(|(inode, _)| inode.0), Some(1));
        leases.held.remove(&InodeNumber(1));
        assert_eq!(
            (2..=8).map(|_| release(&mut leases)).collect::<Vec<_>>(),
            (2..=8).map(Some).collect::<Vec<_>>()
        );
        assert_eq!(release(&mut leases), None);
    }

    /// What the operation that waits needs stays, and only that.
    #[test]
    fn leases_of_the_operation_that_waits_stay() {
        let mut leases = held(1..=3);
        assert!(leases.uses(InodeNumber(3), Mode::Shared));
        leases.needs.modes = [(InodeNumber(1), Mode::Shared), (InodeNumber(2), Mode::Shared)].into();
        leases.needs.waiting = Some(InodeNumber(2));
        assert_eq!(release(&mut leases), Some(3));
        assert_eq!(release(&mut leases), None);
        leases.needs.waiting = None;
        assert!(release(&mut leases).is_some());
    }
}
