//! One run that is copied.
//!
//! 1. Of what waits for a medium, the extents that are as they were found are taken: the
//!    generation that is read now is kept until the end of the job.
//! 2. A run is set aside, as long as there is room together; what does not fit is found again in
//!    another round.
//! 3. The extents are read, each block verified, one behind the other into one buffer. One that
//!    cannot be read is reported, and the others close up. If its medium is leaving, it is read
//!    block by block, and its readable parts wait for another job.
//! 4. The buffer is written by one request, read back, compared with the checksums, and flushed.
//! 5. The flip. What of the run is not in use then is given back.

use std::collections::VecDeque;

use sietch_disk::{Buffer, DiskQueue};

use super::job::{Job, Phase};
use super::owner::{Now, Owner};
use super::scan::{Candidate, Direction, List};
use super::{Mover, Step};
use crate::digest::Moved;
use crate::digested::Digested;
use crate::error::Fault;
use crate::items::{self, EXTENT_BLOCKS};
use crate::limits::BLOCK;
use crate::pool::{Copier, Run};

impl Mover {
    /// Begins to copy what waits in a list.
    pub(super) fn begin_job<D: DiskQueue>(
        &mut self,
        list: List,
        base: &mut Digested<Copier<D>>,
        owner: &mut impl Owner,
        now: Now,
    ) -> Result<Step, Fault> {
        let (medium, direction) = list;
        let wanted = self.scan.blocks(list) * BLOCK as u64;
        if let Err(later) = self.bucket.take(wanted, now.nanoseconds) {
            owner.end();
            return Ok(Step::At(later));
        }
        let mut left = VecDeque::new();
        for candidate in self.scan.take_job(list) {
            let found = base.extent_from(candidate.inode, candidate.extent.first)?;
            if found.is_some_and(|found| found.has(&candidate.extent)) {
                left.push_back(candidate);
            }
        }
        // Where there is little room for the tree, a small flip may fit.
        let run = loop {
            let blocks: u32 = left.iter().map(|candidate| candidate.extent.run.blocks).sum();
            if blocks == 0 {
                return Ok(Step::More);
            }
            if let Some(run) = owner.set_aside(medium, blocks, left.len())? {
                break run;
            }
            if left.len() == 1 {
                self.scan.postpone(medium, now);
                return Ok(Step::More);
            }
            left.truncate((left.len() / 4).max(1));
        };
        let buffer = Buffer::new(run.bytes());
        let phase = Phase::Read;
        self.job = Some(Job { direction, run, phase, left, moves: Vec::new(), buffer, filled: 0 });
        Ok(Step::More)
    }

    /// Does one step of a job.
    pub(super) fn copy<D: DiskQueue>(
        &mut self,
        mut job: Job,
        base: &mut Digested<Copier<D>>,
        owner: &mut impl Owner,
        now: Now,
    ) -> Result<Step, Fault> {
        let done = match job.phase {
            Phase::Read => {
                self.read(&mut job, base);
                Ok(if job.left.is_empty() { Phase::Write } else { Phase::Read })
            }
            Phase::Write if job.filled == 0 => {
                owner.end_aside(job.run, true);
                return Ok(Step::More);
            }
            Phase::Write => {
                let data = std::mem::replace(&mut job.buffer, Buffer::new(0));
                base.store_mut().write(job.used(), data).map(|()| Phase::Verify)
            }
            Phase::Verify => verify(&job, base).map(|()| Phase::Flush),
            Phase::Flush => base.store_mut().flush(job.run.medium).map(|()| Phase::Flip),
            Phase::Flip => return self.flip(job, owner, now),
        };
        match done {
            Ok(phase) => {
                job.phase = phase;
                self.job = Some(job);
            }
            Err(fault) => {
                self.moves.wasted += job.blocks();
                self.give_up(job.run.medium, &fault);
                owner.end_aside(job.run, false);
            }
        }
        Ok(Step::More)
    }

    /// Reads some extents of a job.
    fn read<D: DiskQueue>(&mut self, job: &mut Job, base: &mut Digested<Copier<D>>) {
        let mut blocks = 0;
        while blocks < EXTENT_BLOCKS
            && let Some(Candidate { inode, mut extent }) = job.left.pop_front()
        {
            let room = job.run.blocks - job.filled;
            if room == 0 {
                job.left.clear();
                return;
            }
            if extent.run.blocks > room {
                extent = extent.part(extent.first, extent.first + u64::from(room));
            }
            blocks += extent.run.blocks;
            let data = match base.read_extent(inode, &extent) {
                Ok(data) => data,
                Err(fault) => {
                    self.sort_out((job.run.medium, job.direction), Candidate { inode, extent }, &fault, base);
                    // Each block may have taken the disk a while.
                    return;
                }
            };
            let to = Run { start: job.run.start + job.filled, blocks: extent.run.blocks, ..job.run };
            let at = job.filled as usize * BLOCK;
            job.buffer[at..at + to.bytes()].copy_from_slice(&data[..to.bytes()]);
            job.filled += to.blocks;
            job.moves.push(Moved { inode, extent, to });
        }
    }

    /// Remembers what cannot be read of an extent that could not be read as a whole. What can be
    /// read leaves a medium that is leaving.
    fn sort_out<D: DiskQueue>(
        &mut self,
        list: List,
        found: Candidate,
        fault: &Fault,
        base: &mut Digested<Copier<D>>,
    ) {
        let Candidate { inode, extent } = found;
        let medium = extent.run.medium;
        self.moves.damaged += 1;
        if let Some(text) = self.unreadable.report(medium, fault) {
            self.faults.push(text);
        }
        if !self.scan.is_leaving(medium) {
            self.unreadable.add(inode, &extent);
            return;
        }
        let mut is_readable = |block| base.read_extent(inode, &extent.part(block, block + 1)).is_ok();
        let blocks: Vec<bool> = match extent.run.blocks {
            1 => vec![false],
            _ => (extent.first..extent.end()).map(&mut is_readable).collect(),
        };
        // Parts are smaller than the extent, so this comes to an end, whatever the disk does.
        let is_alone = !blocks.contains(&false);
        let mut from = extent.first;
        for same in blocks.chunk_by(|one, next| one == next && !is_alone) {
            let part = extent.part(from, from + same.len() as u64);
            from = part.end();
            if same[0] {
                self.scan.add_part(list, Candidate { inode, extent: part });
            } else {
                self.unreadable.add(inode, &part);
            }
        }
    }

    /// A medium gets no more data.
    fn give_up(&mut self, medium: u8, fault: &Fault) {
        if let Some(is_broken) = self.is_broken.get_mut(usize::from(medium)) {
            *is_broken = true;
        }
        self.scan.forget(medium);
        self.faults.push(format!("nothing is moved to this medium any more: {fault}"));
    }

    fn flip(&mut self, job: Job, owner: &mut impl Owner, now: Now) -> Result<Step, Fault> {
        let blocks = job.blocks();
        let Some(flipped) = owner.flip(job.moves)? else {
            self.moves.wasted += blocks;
            owner.end_aside(job.run, true);
            self.scan.postpone(job.run.medium, now);
            return Ok(Step::More);
        };
        owner.end_aside(job.run, true);
        self.scan.has_moved();
        self.moves.runs += 1;
        self.moves.wasted += flipped.stale;
        match job.direction {
            Direction::Slower => self.moves.demoted += flipped.blocks,
            Direction::Faster => self.moves.promoted += flipped.blocks,
        }
        Ok(Step::More)
    }
}

/// The medium returns what was written.
fn verify<D: DiskQueue>(job: &Job, base: &mut Digested<Copier<D>>) -> Result<(), Fault> {
    let data = base.store_mut().reader().read(job.used())?;
    // Room that was reserved has none.
    let checksums = job.moves.iter().flat_map(|moved| {
        moved.extent.checksums.iter().enumerate().map(move |(index, checksum)| (moved, index, *checksum))
    });
    for (moved, index, expected) in checksums {
        let at = ((moved.to.start - job.run.start) as usize + index) * BLOCK;
        if items::checksum(&data[at..at + BLOCK]) != expected {
            return Err(Fault::Damaged {
                medium: format!("medium {}", moved.to.medium),
                what: "a copy that was just written".to_owned(),
                offset: (u64::from(moved.to.start) + index as u64) * BLOCK as u64,
                cause: "its checksum differs".to_owned(),
            });
        }
    }
    Ok(())
}
