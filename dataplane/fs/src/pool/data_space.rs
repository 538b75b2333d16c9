//! Free blocks for data, of all media.
//!
//! 1. The *stored* view is what the free items of the tree say after the next commit. Each change
//!    of it marks the items to write ([`DataSpace::take_changed`]).
//! 2. The *available* view is what may be handed out now. A run that was freed is in the stored
//!    view at once. It becomes available when the commit that freed it is durable and no reader
//!    needs an older generation.

use std::collections::{BTreeSet, VecDeque};

use super::Run;
use super::free_map::FreeMap;
use super::medium::Class;

#[derive(Debug, Default)]
struct MediumSpace {
    stored: FreeMap,
    available: FreeMap,
}

/// See the module's account.
#[derive(Debug, Default)]
pub(super) struct DataSpace {
    media: Vec<MediumSpace>,
    classes: Vec<Class>,
    /// Freed by the commit with this generation, oldest first.
    held: VecDeque<(u64, Run)>,
    changed: BTreeSet<(u8, u32)>,
}

impl DataSpace {
    /// No free block, on media of these classes.
    pub(super) fn new(classes: Vec<Class>) -> Self {
        let media = classes.iter().map(|_| MediumSpace::default()).collect();
        Self { media, classes, held: VecDeque::new(), changed: BTreeSet::new() }
    }

    /// A run that is free according to the tree. Returns whether it is free of others.
    pub(super) fn load(&mut self, run: Run) -> bool {
        let Some(space) = self.media.get_mut(usize::from(run.medium)) else { return false };
        if space.stored.overlaps(run.start, run.blocks) {
            return false;
        }
        space.stored.add(run.start, run.blocks, &mut |_| {});
        space.available.add(run.start, run.blocks, &mut |_| {});
        true
    }

    /// Blocks that no file has.
    pub(super) fn free(&self) -> u64 {
        self.media.iter().map(|space| space.stored.free()).sum()
    }

    /// Blocks that may be handed out now.
    pub(super) fn available(&self) -> u64 {
        self.media.iter().map(|space| space.available.free()).sum()
    }

    /// Free items after the next commit, and how many of them it writes.
    pub(super) fn items(&self) -> (usize, usize) {
        (self.media.iter().map(|space| space.stored.runs()).sum(), self.changed.len())
    }

    /// Whether a block of the run is free.
    pub(super) fn overlaps(&self, run: Run) -> bool {
        self.media
            .get(usize::from(run.medium))
            .is_some_and(|space| space.stored.overlaps(run.start, run.blocks))
    }

    /// Takes a run of up to so many blocks: on a medium of this class, else of the next slower one,
    /// else of a faster one; of equal classes where the run is longest.
    pub(super) fn allocate(&mut self, class: Class, blocks: u32) -> Option<Run> {
        let rank = |other: Class| if other >= class { other as u8 } else { 0x80 - other as u8 };
        let candidates = self.media.iter().enumerate().filter_map(|(at, space)| {
            let (start, length) = space.available.best(blocks)?;
            let length = length.min(blocks);
            let spare = space.available.free();
            // At most as many media as a byte counts.
            let run = Run { medium: at as u8, start, blocks: length };
            Some(((rank(self.classes[at]), std::cmp::Reverse((length, spare))), run))
        });
        let run = candidates.min_by_key(|(order, _)| *order)?.1;
        self.take(run);
        Some(run)
    }

    /// Takes a run of `least` to `most` blocks of one medium.
    pub(super) fn allocate_on(&mut self, medium: u8, least: u32, most: u32) -> Option<Run> {
        let space = self.media.get(usize::from(medium))?;
        let (start, length) = space.available.best(most)?;
        let run = Run { medium, start, blocks: length.min(most) };
        if run.blocks < least.max(1) {
            return None;
        }
        self.take(run);
        Some(run)
    }

    fn take(&mut self, run: Run) {
        let Some(space) = self.media.get_mut(usize::from(run.medium)) else { return };
        let changed = &mut self.changed;
        space.available.remove(run.start, run.blocks, &mut |_| {});
        space.stored.remove(run.start, run.blocks, &mut |at| {
            changed.insert((run.medium, at));
        });
    }

    /// Whether runs were freed that are not available yet.
    pub(super) fn is_holding(&self) -> bool {
        !self.held.is_empty()
    }

    /// Frees a run of which no block is free; `generation` is that of the next commit.
    pub(super) fn free_run(&mut self, generation: u64, run: Run) {
        let Some(space) = self.media.get_mut(usize::from(run.medium)) else { return };
        let changed = &mut self.changed;
        space.stored.add(run.start, run.blocks, &mut |at| {
            changed.insert((run.medium, at));
        });
        self.held.push_back((generation, run));
    }

    /// Everything that commits up to `generation` freed is available.
    pub(super) fn release(&mut self, generation: u64) {
        while let Some((freed, run)) = self.held.front().copied()
            && freed <= generation
        {
            self.held.pop_front();
            if let Some(space) = self.media.get_mut(usize::from(run.medium)) {
                space.available.add(run.start, run.blocks, &mut |_| {});
            }
        }
    }

    /// The items that the next commit writes: where a run begins, and its length, if there is one.
    pub(super) fn take_changed(&mut self) -> Vec<(u8, u32, Option<u32>)> {
        let changed = std::mem::take(&mut self.changed);
        let length = |(medium, start): (u8, u32)| {
            let length = self.media.get(usize::from(medium)).and_then(|space| space.stored.length(start));
            (medium, start, length)
        };
        changed.into_iter().map(length).collect()
    }
}
