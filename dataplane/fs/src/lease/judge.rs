//! Whether the writer of a record held what the record needs.

use std::collections::HashMap;

use super::{ClientNumber, LeaseTable};
use crate::change::Change;
use crate::inode::InodeNumber;

/// Judges records of one log, on behalf of the digest.
pub trait Judge {
    /// Whether a record at `position` may change this inode.
    fn may_change(&mut self, inode: InodeNumber, position: u64) -> bool;

    /// Whether a record at `position` may create it.
    fn may_create(&mut self, inode: InodeNumber, position: u64) -> bool;

    /// Blocks that the records of the log may need which are not digested. `None`: any number.
    fn budget(&self) -> Option<u64> {
        None
    }
}

/// Permits everything: there is one client.
#[derive(Clone, Copy, Debug, Default)]
pub struct Anything;

impl Judge for Anything {
    fn may_change(&mut self, _: InodeNumber, _: u64) -> bool {
        true
    }

    fn may_create(&mut self, _: InodeNumber, _: u64) -> bool {
        true
    }
}

/// Permits what a client holds, within its budget.
#[derive(Debug)]
pub struct Held<'a> {
    table: &'a LeaseTable,
    client: ClientNumber,
    budget: u64,
}

impl<'a> Held<'a> {
    /// What `client` holds, and its budget of blocks ([`super::Rooms::budget`]).
    pub fn new(table: &'a LeaseTable, client: ClientNumber, budget: u64) -> Self {
        Self { table, client, budget }
    }
}

impl Judge for Held<'_> {
    fn may_change(&mut self, inode: InodeNumber, position: u64) -> bool {
        self.table.may_change(self.client, inode, position)
    }

    fn may_create(&mut self, inode: InodeNumber, position: u64) -> bool {
        self.table.owner(inode) == Some(self.client) && self.may_change(inode, position)
    }

    fn budget(&self) -> Option<u64> {
        Some(self.budget)
    }
}

/// Judges the logs of several clients after a crash, when no lease is known: what one log changed,
/// no other log may change. The module's account says why honest clients never do.
#[derive(Debug, Default)]
pub struct Replay {
    changed: HashMap<InodeNumber, ClientNumber>,
}

impl Replay {
    /// For the records of one log.
    pub fn of(&mut self, client: ClientNumber) -> impl Judge {
        ReplayOf { replay: self, client }
    }
}

struct ReplayOf<'a> {
    replay: &'a mut Replay,
    client: ClientNumber,
}

impl Judge for ReplayOf<'_> {
    fn may_change(&mut self, inode: InodeNumber, _: u64) -> bool {
        *self.replay.changed.entry(inode).or_insert(self.client) == self.client
    }

    fn may_create(&mut self, inode: InodeNumber, position: u64) -> bool {
        self.may_change(inode, position)
    }
}

impl Change<'_> {
    /// The inodes that a change needs exclusively, but for [`super::TREE`], and the one that it
    /// creates.
    pub(crate) fn needs(&self) -> Needs {
        let (mut inodes, mut created) = ([None; 4], None);
        match *self {
            Change::Create { inode, place, .. } => {
                created = Some(inode);
                inodes[0] = place.map(|place| place.directory);
            }
            Change::Link { inode, place } | Change::Unlink { inode, place } => {
                (inodes[0], inodes[1]) = (Some(place.directory), Some(inode));
            }
            Change::Rename { inode, from, to, replaced, .. } => {
                inodes = [Some(from.directory), Some(to.directory), Some(inode), replaced];
            }
            Change::Write { inode, .. }
            | Change::Truncate { inode, .. }
            | Change::Reserve { inode, .. }
            | Change::Punch { inode, .. }
            | Change::SetAttributes { inode, .. }
            | Change::SetXattr { inode, .. }
            | Change::RemoveXattr { inode, .. }
            | Change::Free { inode } => inodes[0] = Some(inode),
        }
        Needs { inodes, created }
    }

    /// The inodes that a change moves from one directory to another: if one of them is a directory,
    /// the change needs [`super::TREE`].
    pub(crate) fn moves(&self) -> impl Iterator<Item = InodeNumber> + use<> {
        let moved = match *self {
            Change::Rename { inode, from, to, replaced, exchange } if from.directory != to.directory => {
                [Some(inode), replaced.filter(|_| exchange)]
            }
            _ => [None, None],
        };
        moved.into_iter().flatten()
    }
}

/// See [`Change::needs`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Needs {
    inodes: [Option<InodeNumber>; 4],
    /// The inode that is created.
    pub created: Option<InodeNumber>,
}

impl Needs {
    /// Inodes that are there.
    pub(crate) fn inodes(&self) -> impl Iterator<Item = InodeNumber> + use<> {
        self.inodes.into_iter().flatten()
    }
}
