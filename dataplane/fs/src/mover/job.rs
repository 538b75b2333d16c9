//! One run that is copied: its state.

use std::collections::VecDeque;

use sietch_disk::Buffer;

use super::scan::{Candidate, Direction};
use crate::digest::Moved;
use crate::pool::Run;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
/// What is done next.
pub(super) enum Phase {
    Read,
    Write,
    Verify,
    Flush,
    Flip,
}

/// See the module's account.
pub(super) struct Job {
    pub direction: Direction,
    /// What was set aside.
    pub run: Run,
    pub phase: Phase,
    /// What is to be read.
    pub left: VecDeque<Candidate>,
    /// What was read, and where it goes.
    pub moves: Vec<Moved>,
    pub buffer: Buffer,
    /// Blocks of the run that have data.
    pub filled: u32,
}

impl Job {
    /// Blocks that were read.
    pub(super) fn blocks(&self) -> u64 {
        u64::from(self.filled)
    }

    /// The part of the run that has data.
    pub(super) fn used(&self) -> Run {
        Run { blocks: self.filled, ..self.run }
    }
}
