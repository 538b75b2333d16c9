//! The snapshot in progress (`super::super::snapshot`).

use crate::layout::{Run, Superblock};
use crate::log::options::Sequence;
use crate::stream::Stream;

/// How far a snapshot has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::log) enum Phase {
    /// Between begin and finish.
    Writing,
    /// Sealed; its writes and those of the log before it are not all done.
    Draining,
    /// A flush should be started.
    FlushWanted,
    /// The flush is in flight.
    Flushing,
    /// Superblock copies still to be passed to the queue, and copies in flight.
    Switching { unsent: u64, flying: u64 },
    /// Given up; its writes are not all done.
    Aborting,
}

pub(in crate::log) struct Building {
    pub(in crate::log) stream: Stream,
    pub(in crate::log) phase: Phase,
    /// First record of the log that the snapshot does not stand for, and where it is.
    pub(in crate::log) start: Run,
    /// Last record of the log that the snapshot may hold traces of.
    pub(in crate::log) end: Sequence,
    /// Segments of the log that the snapshot makes free: the oldest ones.
    pub(in crate::log) replaces: usize,
    /// The superblock to be written.
    pub(in crate::log) next: Option<Superblock>,
}

/// The snapshot in progress, if there is one.
pub(in crate::log) struct Snapshot {
    pub(in crate::log) building: Option<Box<Building>>,
    /// Snapshots begun in this epoch: part of their identity.
    pub(in crate::log) begun: u32,
}

impl Snapshot {
    pub(in crate::log) fn new() -> Self {
        Self { building: None, begun: 0 }
    }

    pub(in crate::log) fn is_idle(&self) -> bool {
        self.building.is_none()
    }

    /// Whether its superblock is being written.
    pub(in crate::log) fn is_switching(&self) -> bool {
        self.building.as_ref().is_some_and(|building| building.next.is_some())
    }

    pub(in crate::log) fn offset_of(&self, ticket: u64) -> u64 {
        self.building.as_ref().map_or(0, |building| building.stream.offset_of(ticket))
    }
}
