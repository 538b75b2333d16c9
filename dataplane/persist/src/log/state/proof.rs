//! A superblock that proves how far the log is durable: the write in progress, and when the next is
//! due (`super::super::proof`).

use crate::layout::Superblock;
use crate::limits::{PROOF_INTERVAL, PROOF_QUIET};
use crate::log::options::Sequence;

/// A proof on its way.
pub(in crate::log) struct ProofWrite {
    pub(in crate::log) next: Superblock,
    /// Copies still to be passed to the queue, and copies in flight.
    pub(in crate::log) unsent: u64,
    pub(in crate::log) flying: u64,
}

/// When the next proof is due, in nanoseconds of the caller's clock.
#[derive(Clone, Copy, Debug)]
pub(in crate::log) struct ProofSchedule {
    /// Since when records are durable that no proof covers.
    pub(in crate::log) since: u64,
    /// How far the log was durable when that last changed, and when it did.
    pub(in crate::log) durable: Sequence,
    pub(in crate::log) changed: u64,
}

impl ProofSchedule {
    pub(in crate::log) fn due(&self) -> u64 {
        (self.since.saturating_add(PROOF_INTERVAL)).min(self.changed.saturating_add(PROOF_QUIET))
    }
}
