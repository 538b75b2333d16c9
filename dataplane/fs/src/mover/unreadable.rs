//! Data that could not be read where they are.
//!
//! 1. Runs of blocks are remembered by their file and first block, with their place: what was
//!    written there since is somewhere else, and is tried again.
//! 2. So many are remembered. What is not is found again in each round; a round in which nothing
//!    moved is then the last one until the pool changes.
//! 3. Of each medium, the first [`FAILURES`] faults are named. Beyond them nothing is taken from
//!    it, unless it is leaving: then everything is tried that may be readable.

use std::collections::BTreeMap;

use super::limits::FAILURES;
use crate::error::Fault;
use crate::inode::InodeNumber;
use crate::items::Extent;
use crate::pool::Run;
use crate::pool::limits::MAX_MEDIA;

/// See the module's account.
#[derive(Debug)]
pub(super) struct Unreadable {
    /// By file and first block.
    runs: BTreeMap<(InodeNumber, u64), Run>,
    most: usize,
    /// Runs were not remembered, ever and in this round.
    has_more: bool,
    has_forgotten: bool,
    /// Of each medium: extents that could not be read.
    failures: [u32; MAX_MEDIA],
}

impl Unreadable {
    /// Remembers so many runs.
    pub(super) fn new(most: usize) -> Self {
        let (runs, failures) = (BTreeMap::new(), Default::default());
        Self { runs, most, has_more: false, has_forgotten: false, failures }
    }

    /// Counts an extent that could not be read. Returns what is to be said of it.
    pub(super) fn report(&mut self, medium: u8, fault: &Fault) -> Option<String> {
        let failures = self.failures.get_mut(usize::from(medium))?;
        *failures = failures.saturating_add(1);
        match *failures {
            ..=FAILURES => Some(format!("not moved: {fault}")),
            failures if failures == FAILURES + 1 => Some(format!(
                "more data of medium {medium} cannot be read, and are not named here; `sietch fs check --data` \
                 names them"
            )),
            _ => None,
        }
    }

    /// Whether so much of a medium could not be read that it may have failed.
    pub(super) fn fails(&self, medium: u8) -> bool {
        self.failures.get(usize::from(medium)).is_none_or(|failures| *failures >= FAILURES)
    }

    /// Remembers that an extent cannot be read.
    pub(super) fn add(&mut self, inode: InodeNumber, extent: &Extent) {
        let key = (inode, extent.first);
        if self.runs.len() < self.most || self.runs.contains_key(&key) {
            self.runs.insert(key, extent.run);
        } else {
            (self.has_more, self.has_forgotten) = (true, true);
        }
    }

    /// What of an extent may be readable: all of it, or what is behind the blocks that are not;
    /// `None`: nothing.
    pub(super) fn readable_part(&self, inode: InodeNumber, extent: Extent) -> Option<Extent> {
        let Some(run) = self.runs.get(&(inode, extent.first)) else { return Some(extent) };
        if (run.medium, run.start) != (extent.run.medium, extent.run.start) {
            return Some(extent);
        }
        let readable = extent.first + u64::from(run.blocks);
        (readable < extent.end()).then(|| extent.part(readable, extent.end()))
    }

    /// Whether data of a file could not be read, or may be what is not remembered.
    pub(super) fn is_of(&self, file: InodeNumber) -> bool {
        self.has_more || self.runs.range((file, 0)..=(file, u64::MAX)).next().is_some()
    }

    /// Blocks that could not be read; `None`: some are not remembered.
    pub(super) fn blocks(&self) -> Option<u64> {
        (!self.has_more).then(|| self.runs.values().map(|run| u64::from(run.blocks)).sum())
    }

    /// A round begins.
    pub(super) fn begin_round(&mut self) {
        self.has_forgotten = false;
    }

    /// Whether runs were not remembered since the round began.
    pub(super) fn has_forgotten(&self) -> bool {
        self.has_forgotten
    }
}
