//! The free blocks.
//!
//! 1. Free runs are kept by their first block, and neighbours are joined. None of this is on the
//!    medium: it follows from the areas.
//! 2. A request gets the smallest single run that holds it: an area in one piece can be granted as
//!    a device of its own.
//! 3. Where no run is long enough, the request gets the longest runs, as few as possible.

use std::collections::BTreeMap;

use crate::layout::Extent;

/// See the module's account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Space {
    /// First block to number of blocks.
    runs: BTreeMap<u64, u64>,
    free: u64,
}

impl Space {
    /// All blocks from `start` on are free.
    pub(crate) fn new(start: u64, blocks: u64) -> Self {
        Self { runs: (blocks > 0).then_some((start, blocks)).into_iter().collect(), free: blocks }
    }

    /// Free blocks.
    pub(crate) fn free(&self) -> u64 {
        self.free
    }

    /// The free run that holds `block`.
    fn around(&self, block: u64) -> Option<(u64, u64)> {
        let (&start, &blocks) = self.runs.range(..=block).next_back()?;
        (block < start + blocks).then_some((start, blocks))
    }

    /// Takes exactly these blocks. `false` if one of them is not free.
    pub(crate) fn take(&mut self, extent: Extent) -> bool {
        let Some((start, blocks)) = self.around(extent.start) else { return false };
        let (Some(end), run_end) = (extent.start.checked_add(extent.blocks), start + blocks) else {
            return false;
        };
        if extent.blocks == 0 || end > run_end {
            return false;
        }
        self.runs.remove(&start);
        if extent.start > start {
            self.runs.insert(start, extent.start - start);
        }
        if run_end > end {
            self.runs.insert(end, run_end - end);
        }
        self.free -= extent.blocks;
        true
    }

    /// Gives blocks back that were taken.
    pub(crate) fn release(&mut self, extent: Extent) {
        let (mut start, mut blocks) = (extent.start, extent.blocks);
        if let Some((&before, &length)) = self.runs.range(..start).next_back()
            && before + length == start
        {
            self.runs.remove(&before);
            (start, blocks) = (before, length + blocks);
        }
        if let Some(after) = self.runs.remove(&(start + blocks)) {
            blocks += after;
        }
        self.runs.insert(start, blocks);
        self.free += extent.blocks;
    }

    /// How many of the blocks from `start` on are free, up to `most`.
    pub(crate) fn free_from(&self, start: u64, most: u64) -> u64 {
        self.around(start).map_or(0, |(first, blocks)| (first + blocks - start).min(most))
    }

    /// Takes `blocks` in at most `pieces` runs. `None`, and takes nothing, if that is impossible.
    pub(crate) fn allocate(&mut self, blocks: u64, pieces: usize) -> Option<Vec<Extent>> {
        if blocks > self.free || pieces == 0 {
            return None;
        }
        let whole =
            self.runs.iter().filter(|(_, length)| **length >= blocks).min_by_key(|(_, length)| **length);
        if let Some((&start, _)) = whole {
            let extent = Extent { start, blocks };
            self.take(extent);
            return Some(vec![extent]);
        }
        let mut runs: Vec<(u64, u64)> = self.runs.iter().map(|(start, length)| (*start, *length)).collect();
        runs.sort_by_key(|(start, length)| (std::cmp::Reverse(*length), *start));
        let (mut chosen, mut left) = (Vec::new(), blocks);
        for (start, length) in runs.into_iter().take(pieces) {
            let blocks = length.min(left);
            chosen.push(Extent { start, blocks });
            left -= blocks;
            if left == 0 {
                break;
            }
        }
        if left > 0 {
            return None;
        }
        chosen.sort_by_key(|extent| extent.start);
        for extent in &chosen {
            self.take(*extent);
        }
        Some(chosen)
    }
}
