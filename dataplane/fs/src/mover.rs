//! Moves data between media: cold data to slower ones, hot data back.
//!
//! 1. When a medium is fuller than its high watermark, the mover takes cold data away until it is
//!    at its low one ([`Watermarks`](crate::pool::Watermarks)). When a faster medium is below its
//!    low watermark, data that are read often come to it. A *pin* overrides both: data of a pinned
//!    file go to that medium's class, and stay there ([`pins`]).
//!    From a medium that is *leaving* ([`Pool::set_leaving`](crate::pool::Pool::set_leaving)),
//!    everything goes to the others.
//! 2. A *hand* walks over all extents in the order of the tree, some items a step ([`hand`]). In
//!    its first round it takes only data that were not read lately ([`Heat`]) and not written
//!    lately. If a round finds none, the next one takes warmer data. Nothing is sorted, and nothing
//!    is stored.
//! 3. What it takes is gathered by destination, up to [`JOB_BLOCKS`]: extents of many files become
//!    one run there, which is written by one request ([`copy`]).
//! 4. The order of a job: set a run aside; copy, and verify the source's checksums; write; read
//!    back and verify again; flush the destination; *flip*, which is one commit that replaces the
//!    extents that are still the ones that were copied, and frees the old blocks. So every crash
//!    leaves the old data or the new ones, and both have the same checksums.
//! 5. The generation that a job reads counts as needed until its flip, so no block that it copies
//!    is used for something else meanwhile.
//! 6. Each call of [`Mover::step`] does one bounded piece of work. The caller decides when: it
//!    pauses while the foreground has work, and waits when the bucket of [`Settings::rate`] is
//!    empty.
//!
//! A block that is damaged at its source stays there ([`unreadable`]): its extent is reported once,
//! and left alone. From a medium that is leaving, the other blocks of the extent move all the same.
//! A destination that fails, or returns something else than was written, gets no more data.
//!
//! What it must never do: name a copy before it is durable and verified; free a block before
//! something durable names its copy; write a block that was not set aside for it; change what a
//! file has.

mod copy;
mod hand;
mod job;
mod limits;
mod owner;
mod pins;
mod scan;
mod unreadable;

use std::sync::Arc;

use sietch_disk::DiskQueue;
use sietch_structures::TokenBucket;

use crate::digested::Digested;
use crate::error::Fault;
use crate::heat::Heat;
use crate::inode::InodeNumber;
use crate::limits::BLOCK;
use crate::pool::Copier;
use crate::pool::limits::MAX_MEDIA;
use job::Job;
pub use limits::JOB_BLOCKS;
use limits::{HALF_LIFE, REMEMBERED};
pub use owner::{Now, Owner, View};
use pins::Pins;
use scan::{Scan, Wanted};
use unreadable::Unreadable;

/// How the mover works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Bytes a second that are copied, at most.
    pub rate: u64,
    /// Runs of blocks that cannot be read, and are remembered so that they are not tried again.
    pub remembered: usize,
}

impl Default for Settings {
    /// 64 MiB a second: a quarter of what a rotating disk writes.
    fn default() -> Self {
        Self { rate: 64 << 20, remembered: REMEMBERED }
    }
}

/// What a step says of the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// There is more to do.
    More,
    /// There is more to do at this time, in nanoseconds: the rate is used up, or pinned files may
    /// have new data.
    At(u64),
    /// There is nothing to do before the pool changes, or data were read.
    Idle,
}

/// The sums of what was moved.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Moves {
    /// Runs that were written.
    pub runs: u64,
    /// Blocks that went to a slower medium.
    pub demoted: u64,
    /// Blocks that came to a faster one.
    pub promoted: u64,
    /// Blocks that were copied in vain, because they were changed meanwhile or the destination
    /// failed.
    pub wasted: u64,
    /// Extents that could not be read.
    pub damaged: u64,
}

/// See the module's account.
pub struct Mover {
    heat: Arc<Heat>,
    bucket: TokenBucket,
    aged_at: u64,
    scan: Scan,
    pins: Pins,
    job: Option<Job>,
    unreadable: Unreadable,
    /// The sum of [`Moves::runs`] when the round began.
    runs_before: u64,
    /// Of each medium: it failed as a destination.
    is_broken: [bool; MAX_MEDIA],
    faults: Vec<String>,
    moves: Moves,
}

impl Mover {
    /// A mover that has seen nothing. Readers count in `heat` what they read.
    pub fn new(settings: Settings, heat: Arc<Heat>) -> Self {
        Self {
            heat,
            bucket: TokenBucket::new(settings.rate, u64::from(JOB_BLOCKS) * BLOCK as u64),
            aged_at: 0,
            scan: Scan::default(),
            pins: Pins::default(),
            job: None,
            unreadable: Unreadable::new(settings.remembered),
            runs_before: 0,
            is_broken: Default::default(),
            faults: Vec::new(),
            moves: Moves::default(),
        }
    }

    /// The sums of what was moved.
    pub fn moves(&self) -> &Moves {
        &self.moves
    }

    /// Whether data of a file could not be read; also said of any file once more runs of blocks
    /// could not be read than are remembered.
    pub fn is_unreadable(&self, file: InodeNumber) -> bool {
        self.unreadable.is_of(file)
    }

    /// Blocks that could not be read; `None`: more than are remembered.
    pub fn unreadable_blocks(&self) -> Option<u64> {
        self.unreadable.blocks()
    }

    /// Media that failed as destinations, and get no more data.
    pub fn failed_media(&self) -> usize {
        self.is_broken.iter().filter(|is_broken| **is_broken).count()
    }

    /// What went wrong since the last call.
    pub fn take_faults(&mut self) -> Vec<String> {
        std::mem::take(&mut self.faults)
    }

    /// Whether blocks are set aside for it, or a generation is kept for it.
    pub fn is_copying(&self) -> bool {
        self.job.is_some()
    }

    /// Gives up what it copies, so that the owner has all blocks that are free.
    pub fn abandon(&mut self, owner: &mut impl Owner) {
        if let Some(job) = self.job.take() {
            self.moves.wasted += job.blocks();
            owner.end_aside(job.run, true);
        }
        owner.end();
    }

    /// Does one piece of work.
    ///
    /// # Errors
    /// A node of the tree cannot be read, or the owner is stopped: nothing more is moved. What
    /// concerns only some data is in [`Mover::take_faults`].
    pub fn step<D: DiskQueue>(
        &mut self,
        base: &mut Digested<Copier<D>>,
        owner: &mut impl Owner,
        now: Now,
    ) -> Result<Step, Fault> {
        if now.nanoseconds.saturating_sub(self.aged_at) >= HALF_LIFE {
            self.heat.age();
            self.aged_at = now.nanoseconds;
        }
        if let Some(job) = self.job.take() {
            return self.copy(job, base, owner, now);
        }
        let view = owner.begin()?;
        base.store_mut().reader().advance(view.root);
        let step = match self.scan.wanted(&view, &self.heat, &self.pins, now) {
            Wanted::Now => Step::More,
            Wanted::At(later) => Step::At(later),
            Wanted::No => Step::Idle,
        };
        if step != Step::More {
            owner.end();
            return Ok(step);
        }
        if let Some(list) = self.scan.ready() {
            return self.begin_job(list, base, owner, now);
        }
        self.look(base, &view, now)?;
        Ok(step)
    }
}
