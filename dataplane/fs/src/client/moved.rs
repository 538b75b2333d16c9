//! Which inodes a client has moved lately from one directory to another.

use std::collections::VecDeque;

use crate::change::Change;
use crate::inode::InodeNumber;

/// Moves that are known, at most: more than happen between two steps of a request.
const KEPT: usize = 1024;

/// The module's header describes it.
#[derive(Debug, Default)]
pub(super) struct Moved {
    /// The newest last.
    pub inodes: VecDeque<InodeNumber>,
    /// All that were moved.
    pub count: u64,
}

impl Moved {
    /// A change was made.
    pub(super) fn note(&mut self, change: &Change<'_>) {
        for inode in change.moves() {
            if self.inodes.len() == KEPT {
                self.inodes.pop_front();
            }
            self.inodes.push_back(inode);
            self.count += 1;
        }
    }
}
