//! Free blocks for data, of all media.
//!
//! 1. The *stored* view is what the free items of the tree say after the next commit. Each change
//!    of it marks the items to write ([`DataSpace::take_changed`]).
//! 2. The *available* view is what may be handed out now. A run that was freed is in the stored
//!    view at once. It becomes available when the commit that freed it is durable and no reader
//!    needs an older generation.
//! 3. New data go to the fastest medium below its hard watermark, so that a medium is never filled
//!    while another one has room; see [`DataSpace::allocate`].
//! 4. A run that is *set aside* is in the stored view only: nothing durable says that it is used
//!    until [`DataSpace::use_aside`]. So a crash loses none of it.

use std::collections::{BTreeSet, VecDeque};

use super::Run;
use super::free_map::FreeMap;
use super::medium::Class;
use super::watermarks::{MediumUse, Watermarks};

#[derive(Debug)]
struct MediumSpace {
    class: Class,
    /// It gets new data only where no other medium has room.
    is_leaving: bool,
    /// All blocks behind the superblocks.
    blocks: u64,
    watermarks: Watermarks,
    stored: FreeMap,
    available: FreeMap,
}

impl MediumSpace {
    /// A medium without blocks.
    fn new(class: Class) -> Self {
        Self {
            class,
            is_leaving: false,
            blocks: 0,
            watermarks: Watermarks::default(),
            stored: FreeMap::default(),
            available: FreeMap::default(),
        }
    }

    /// Blocks that may be handed out below the hard watermark. What is above it must stay in runs
    /// that can become chunks of nodes: fragments do not count.
    fn below_hard(&self) -> u64 {
        self.below_hard_of(&self.available)
    }

    fn below_hard_of(&self, free: &FreeMap) -> u64 {
        let spare = self.blocks - self.watermarks.hard(self.blocks);
        free.in_chunks().saturating_sub(spare)
    }
}

/// See the module's account.
#[derive(Debug, Default)]
pub(super) struct DataSpace {
    media: Vec<MediumSpace>,
    /// Freed by the commit with this generation, oldest first.
    held: VecDeque<(u64, Run)>,
    /// Not available, and free for every commit.
    aside: Vec<Run>,
    changed: BTreeSet<(u8, u32)>,
}

impl DataSpace {
    /// No free block, on media of these classes and sizes.
    pub(super) fn new(media: impl Iterator<Item = (Class, u64)>) -> Self {
        let medium = |(class, blocks)| MediumSpace { blocks, ..MediumSpace::new(class) };
        Self { media: media.map(medium).collect(), ..Self::default() }
    }

    /// A slot gets a medium of this class, without blocks. Slots before it may be empty.
    pub(super) fn open(&mut self, slot: usize, class: Class) {
        while self.media.len() <= slot {
            self.media.push(MediumSpace::new(class));
        }
        self.media[slot] = MediumSpace::new(class);
    }

    /// A medium gets the blocks of a run behind its end. They are free, and available at once: no
    /// generation has them.
    pub(super) fn enlarge(&mut self, run: Run) {
        let Some(space) = self.media.get_mut(usize::from(run.medium)) else { return };
        let changed = &mut self.changed;
        space.blocks += u64::from(run.blocks);
        space.available.add(run.start, run.blocks, &mut |_| {});
        space.stored.add(run.start, run.blocks, &mut |at| {
            changed.insert((run.medium, at));
        });
    }

    /// A slot loses its medium, all of whose blocks are free. Returns how many there were.
    pub(super) fn close(&mut self, slot: usize) -> u64 {
        let Some(space) = self.media.get_mut(slot) else { return 0 };
        let is_there = |run: &Run| usize::from(run.medium) == slot;
        // At most as many media as a byte counts.
        self.changed.extend(space.stored.starts().map(|start| (slot as u8, start)));
        self.held.retain(|(_, run)| !is_there(run));
        self.aside.retain(|run| !is_there(run));
        let emptied = std::mem::replace(space, MediumSpace::new(space.class));
        emptied.blocks
    }

    /// See [`super::Pool::set_leaving`].
    pub(super) fn set_leaving(&mut self, slot: usize) {
        if let Some(space) = self.media.get_mut(slot) {
            space.is_leaving = true;
        }
    }

    /// Sets the watermarks of a medium, if it exists.
    pub(super) fn set_watermarks(&mut self, medium: usize, watermarks: Watermarks) {
        if let Some(space) = self.media.get_mut(medium) {
            space.watermarks = watermarks;
        }
    }

    /// How full each medium is.
    pub(super) fn usage(&self) -> Vec<MediumUse> {
        let usage = |space: &MediumSpace| MediumUse {
            class: space.class,
            is_leaving: space.is_leaving,
            watermarks: space.watermarks,
            blocks: space.blocks,
            free: space.stored.free(),
            room: space.below_hard_of(&space.stored),
        };
        self.media.iter().map(usage).collect()
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

    /// Blocks of the home that data take, if `blocks` are handed out now.
    pub(super) fn on_home(&self, blocks: u64) -> u64 {
        let Some((home, others)) = self.media.split_first() else { return 0 };
        let elsewhere: u64 = others.iter().map(|space| space.available.free()).sum();
        // Those below its hard mark, and what finds no room on another medium.
        let below = if others.is_empty() { blocks } else { home.below_hard() };
        blocks.min(below.max(blocks.saturating_sub(elsewhere)))
    }

    /// Blocks of the home of which chunks of nodes can be made now.
    pub(super) fn home_in_chunks(&self) -> u64 {
        self.media.first().map_or(0, |space| space.available.in_chunks())
    }

    /// Takes a run of up to so many blocks: on a medium of this class, else of the next slower one,
    /// else of a faster one; of equal classes where the run is longest. A medium above its hard
    /// watermark comes behind all that are below theirs, and the home last: only the home has room
    /// for the tree. Behind all comes one that is leaving.
    pub(super) fn allocate(&mut self, class: Class, blocks: u32) -> Option<Run> {
        let rank = |other: Class| if other >= class { other as u8 } else { 0x80 - other as u8 };
        let is_alone = self.media.iter().filter(|space| space.blocks > 0).count() == 1;
        let candidates = self.media.iter().enumerate().filter_map(|(at, space)| {
            let below = if is_alone { u64::MAX } else { space.below_hard() };
            let is_full = below == 0;
            // At most `blocks`.
            let most = if is_full { blocks } else { u64::from(blocks).min(below) as u32 };
            let (start, length) = space.available.best(most)?;
            let length = length.min(most);
            let spare = space.available.free();
            // At most as many media as a byte counts.
            let run = Run { medium: at as u8, start, blocks: length };
            let last = (space.is_leaving, is_full, is_full && at == 0);
            let order = (last, rank(space.class), std::cmp::Reverse((length, spare)));
            Some((order, run))
        });
        let run = candidates.min_by_key(|(order, _)| *order)?.1;
        self.take(run);
        Some(run)
    }

    /// Sets a run aside of up to `most` blocks of one medium. It stays free for every commit.
    pub(super) fn set_aside(&mut self, medium: u8, most: u32) -> Option<Run> {
        let space = self.media.get_mut(usize::from(medium))?;
        let (start, length) = space.available.best(most)?;
        let run = Run { medium, start, blocks: length.min(most) };
        space.available.remove(run.start, run.blocks, &mut |_| {});
        self.aside.push(run);
        Some(run)
    }

    /// Ends what is set aside inside `run`: what is left of them is available again if `is_good`,
    /// and otherwise not before the pool is opened again.
    pub(super) fn end_aside(&mut self, run: Run, is_good: bool) {
        let Some(space) = self.media.get_mut(usize::from(run.medium)) else { return };
        for aside in self.aside.extract_if(.., |aside| run.contains(*aside)) {
            if is_good {
                space.available.add(aside.start, aside.blocks, &mut |_| {});
            }
        }
    }

    /// Whether the run is a part of one that is set aside.
    pub(super) fn is_aside(&self, run: Run) -> bool {
        self.aside.iter().any(|aside| aside.contains(run))
    }

    /// A part of a run that is set aside is in use from the next commit on. The rest stays set
    /// aside.
    pub(super) fn use_aside(&mut self, part: Run) {
        let Some(at) = self.aside.iter().position(|aside| aside.contains(part)) else { return };
        let aside = self.aside.swap_remove(at);
        let before = Run { blocks: part.start - aside.start, ..aside };
        let behind = Run { start: part.end(), blocks: aside.end() - part.end(), ..aside };
        self.aside.extend([before, behind].into_iter().filter(|rest| rest.blocks > 0));
        if let Some(space) = self.media.get_mut(usize::from(part.medium)) {
            let changed = &mut self.changed;
            space.stored.remove(part.start, part.blocks, &mut |at| {
                changed.insert((part.medium, at));
            });
        }
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

    /// Whether runs are free that are not available yet: freed ones, and those set aside.
    pub(super) fn is_holding(&self) -> bool {
        !self.held.is_empty() || !self.aside.is_empty()
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Nothing fills it further, so its use alone would never say that data should leave it.
    #[test]
    fn a_medium_whose_free_blocks_are_fragments_is_as_a_full_one() {
        let mut space = DataSpace::new([(Class::Nvm, 1000), (Class::Ssd, 1000)].into_iter());
        assert!(space.load(Run { medium: 1, start: 0, blocks: 1000 }));
        let fragments = (0..200).map(|number| Run { medium: 0, start: number * 5, blocks: 1 });
        assert!(fragments.into_iter().all(|run| space.load(run)));
        let run = space.allocate(Class::Nvm, 8).expect("room");
        assert_eq!((run.medium, run.blocks), (1, 8));
        let nvm = space.usage()[0];
        assert!(nvm.used() < nvm.watermarks.high(nvm.blocks) && nvm.room == 0, "{nvm:?}");
        assert!(nvm.is_at_high() && nvm.is_near_hard() && nvm.above_low() > 0, "{nvm:?}");
        // In runs, a quarter that is free is room.
        let mut space = DataSpace::new([(Class::Nvm, 1000), (Class::Ssd, 1000)].into_iter());
        assert!(space.load(Run { medium: 0, start: 0, blocks: 250 }));
        let nvm = space.usage()[0];
        assert_eq!((nvm.room, nvm.is_at_high(), nvm.is_near_hard()), (200, false, false));
    }
}
