//! A truncation in progress (`super::super::truncate`).

use crate::layout::Superblock;
use crate::log::options::Sequence;

/// How far a truncation has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::log) enum Phase {
    /// Waits for writes of the log.
    Draining,
    /// A flush should be started.
    FlushWanted,
    /// The flush is in flight.
    Flushing,
    /// Superblock copies still to be passed to the queue, and copies in flight.
    Switching { unsent: u64, flying: u64 },
}

/// A truncation on its way.
pub(in crate::log) struct Truncation {
    pub(in crate::log) phase: Phase,
    /// Last record that must be durable before.
    pub(in crate::log) end: Sequence,
    /// The superblock to be written.
    pub(in crate::log) next: Superblock,
    /// Segments of the log that it makes free: the oldest ones.
    pub(in crate::log) replaces: usize,
    /// Whether the snapshot is given up too.
    pub(in crate::log) drops_snapshot: bool,
    /// Whether it names the run of this epoch, which no superblock did.
    pub(in crate::log) heads: bool,
}
