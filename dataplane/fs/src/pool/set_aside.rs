//! Blocks for the mover, which writes them through queues of its own.
//!
//! 1. A run is set aside. No commit says that it is used, so after a crash it is free.
//! 2. The mover copies data there and makes them durable. Then a change says which parts of the run
//!    are in use now ([`Pool::use_aside`]), together with the items that name them.
//! 3. What is left of the run is given back, or kept out of use if its medium failed.
//! 4. While the mover copies, the generation that it reads counts as needed ([`Pool::mover_at`]).

use sietch_disk::DiskQueue;

use super::limits::MAX_RUN;
use super::{Class, MediumUse, Pool, Run, Watermarks};
use crate::error::Fault;

impl<D: DiskQueue> Pool<D> {
    /// How full the medium of each slot is, the home first. An empty slot has no blocks.
    pub fn usage(&self) -> Vec<MediumUse> {
        self.data.usage()
    }

    /// How full each medium is, in the order in which they are given to [`Pool::open`].
    pub fn media_usage(&self) -> Vec<MediumUse> {
        self.usage().into_iter().filter(|medium| medium.blocks > 0).collect()
    }

    /// Whether there is a medium of this class.
    pub fn has_class(&self, class: Class) -> bool {
        self.media.iter().any(|medium| medium.blocks > 0 && medium.class == class)
    }

    /// Sets the watermarks of a medium, if it exists. They are not stored.
    pub fn set_watermarks(&mut self, medium: usize, watermarks: Watermarks) {
        self.data.set_watermarks(medium, watermarks);
    }

    /// The mover needs no generation before this one; [`u64::MAX`]: it reads none.
    pub fn mover_at(&mut self, generation: u64) {
        self.mover = generation;
        self.release();
    }

    /// Sets a run aside of up to `blocks` free blocks of one medium, as many as there are together
    /// and below its high watermark.
    ///
    /// # Errors
    /// An earlier fault stopped the pool.
    pub fn set_aside(&mut self, medium: u8, blocks: u32) -> Result<Option<Run>, Fault> {
        self.check_going()?;
        let Some(found) = self.usage().get(usize::from(medium)).copied() else { return Ok(None) };
        let most = found.below_high().min(u64::from(blocks.min(MAX_RUN)));
        // At most MAX_RUN.
        Ok(if most > 0 { self.data.set_aside(medium, most as u32) } else { None })
    }

    /// A part of a run that is set aside is in use from the next commit on.
    ///
    /// # Errors
    /// [`Fault::Refused`]: it is not set aside. [`Fault::Full`]: as [`Pool::remove`].
    pub fn use_aside(&mut self, part: Run) -> Result<(), Fault> {
        self.check_going()?;
        self.check_run(part)?;
        if !self.data.is_aside(part) {
            let cause = format!("{part:?} is not set aside");
            return Err(Fault::Refused { medium: self.home_name(), cause });
        }
        if !self.has_node_room(true)? {
            return Err(self.full(self.tree.blocks_per_change()));
        }
        self.data.use_aside(part);
        Ok(())
    }

    /// Ends that a run is set aside. What is left of it is free again if `is_good`; otherwise it
    /// stays out of use until the pool is opened again.
    pub fn end_aside(&mut self, run: Run, is_good: bool) {
        self.data.end_aside(run, is_good);
    }
}
