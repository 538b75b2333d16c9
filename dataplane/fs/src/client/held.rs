//! What a client knows of its leases: see `leases`.

use std::collections::{BTreeMap, VecDeque};

use foldhash::fast::RandomState;
use hashbrown::{HashMap, HashSet};
use rustix::io::Errno;

use crate::inode::InodeNumber;
use crate::lease::{MAX_KEPT, Mode, Revocation};

/// A lease that the client has.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hold {
    pub mode: Mode,
    /// That of the grant; 0: of an inode that this client made.
    pub serial: u64,
    /// No other client has the inode open.
    pub is_sole: bool,
}

/// Leases, and what the current operation needs.
#[derive(Debug)]
pub(super) struct Leases {
    pub held: HashMap<InodeNumber, Hold, RandomState>,
    /// In the order in which they came; some are gone.
    pub order: VecDeque<InodeNumber>,
    /// Leases that are kept, at most.
    pub most: usize,
    /// What the current operation needs, as far as it is known.
    pub needs: BTreeMap<InodeNumber, Mode>,
    /// An operation waits for what it needs.
    pub waits: bool,
    /// The operation found a need that is not met.
    pub is_stopped: bool,
    /// The operation has changed something.
    pub has_committed: bool,
    /// The need that is waited for.
    pub waiting: Option<InodeNumber>,
    /// What was asked for and did not come yet.
    pub requested: Option<(InodeNumber, Mode)>,
    /// Why what was asked for last does not come.
    pub refused: Option<Errno>,
    /// Revocations of leases that the current operation needs.
    pub deferred: Vec<Revocation>,
    /// Inodes that the service counts as open here.
    pub known_open: HashSet<InodeNumber, RandomState>,
    /// Numbers for new inodes that other clients asked for.
    pub lost_numbers: HashSet<InodeNumber, RandomState>,
    /// Room was asked for.
    pub has_asked_room: bool,
    /// The answer.
    pub room: Option<bool>,
}

impl Default for Leases {
    fn default() -> Self {
        Self {
            held: HashMap::default(),
            order: VecDeque::new(),
            most: MAX_KEPT,
            needs: BTreeMap::new(),
            waits: true,
            is_stopped: false,
            has_committed: false,
            waiting: None,
            requested: None,
            refused: None,
            deferred: Vec::new(),
            known_open: HashSet::default(),
            lost_numbers: HashSet::default(),
            has_asked_room: false,
            room: None,
        }
    }
}

impl Leases {
    pub(super) fn has(&self, inode: InodeNumber, mode: Mode) -> bool {
        self.held.get(&inode).is_some_and(|hold| hold.mode >= mode)
    }

    pub(super) fn insert(&mut self, inode: InodeNumber, hold: Hold) {
        if self.held.insert(inode, hold).is_none() {
            self.order.push_back(inode);
        }
    }

    /// Whether the operation that waits for a lease keeps this one: it is one of those that it
    /// acquired.
    pub(super) fn is_pinned(&self, inode: InodeNumber) -> bool {
        let Some(waiting) = self.waiting else { return false };
        let needed = self.needs.get(&inode).copied();
        inode <= waiting && needed.is_some_and(|mode| self.has(inode, mode))
    }
}
