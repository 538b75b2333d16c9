//! A change of size in progress (`super::super::resize`).

use crate::layout::Superblock;

/// How far a change of size has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::log) enum Phase {
    /// Segments beyond the new end are in use, or another superblock is in the making.
    Waiting,
    /// Superblock copies still to be passed to the queue, and copies in flight.
    Switching { unsent: u64, flying: u64 },
}

/// A change of size on its way.
pub(in crate::log) struct Resize {
    pub(in crate::log) capacity: u64,
    pub(in crate::log) count: u32,
    pub(in crate::log) phase: Phase,
    /// The superblock being written.
    pub(in crate::log) next: Option<Superblock>,
}

impl Resize {
    pub(in crate::log) fn is_switching(&self) -> bool {
        self.phase != Phase::Waiting
    }
}
