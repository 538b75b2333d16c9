//! Blocks for nodes of the tree.
//!
//! 1. They are in *chunks* of the home medium, each recorded by an item of the tree. Which blocks
//!    of a chunk hold nodes is stored nowhere: the pointers in the tree say so.
//! 2. A block that a commit replaced is free when that commit is durable and no reader needs an
//!    older generation. A block that was taken and given back between two commits is free at once:
//!    it was never written.
//! 3. Blocks are taken from one chunk until it has none left, in ascending order, so that a commit
//!    writes adjacent blocks.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Blocks that a word of the map counts.
const WORD: u32 = u64::BITS;

/// Which blocks count as free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FreeBlocks {
    /// Those that are.
    Now,
    /// Also those that a commit replaced and that readers still need: when they have advanced.
    OnceRead,
}

#[derive(Debug)]
struct Chunk {
    blocks: u32,
    /// Free ones.
    free: u32,
    /// A bit for each; set: free.
    map: Vec<u64>,
}

/// See the module's account.
#[derive(Debug, Default)]
pub(super) struct NodeSpace {
    chunks: BTreeMap<u32, Chunk>,
    /// Chunks with free blocks, by their starts.
    with_free: BTreeSet<u32>,
    current: u32,
    free: u64,
    held: VecDeque<(u64, u32)>,
}

impl NodeSpace {
    /// Adds a chunk of free blocks. Returns whether it does not overlap another one.
    pub(super) fn add(&mut self, start: u32, blocks: u32) -> bool {
        let end = start.saturating_add(blocks);
        let before = self.chunks.range(..end).next_back();
        if blocks == 0 || before.is_some_and(|(first, chunk)| first + chunk.blocks > start) {
            return false;
        }
        let word = |at: u32| {
            let left = blocks - at * WORD;
            if left >= WORD { u64::MAX } else { (1 << left) - 1 }
        };
        let map = (0..blocks.div_ceil(WORD)).map(word).collect();
        self.chunks.insert(start, Chunk { blocks, free: blocks, map });
        self.with_free.insert(start);
        self.free += u64::from(blocks);
        true
    }

    /// Free blocks.
    pub(super) fn free(&self) -> u64 {
        self.free
    }

    /// Whether a block of the range is in a chunk.
    pub(super) fn overlaps(&self, start: u32, blocks: u32) -> bool {
        let end = start.saturating_add(blocks);
        self.chunks.range(..end).next_back().is_some_and(|(first, chunk)| first + chunk.blocks > start)
    }

    fn chunk_of(&mut self, block: u32) -> Option<(u32, &mut Chunk)> {
        let (start, chunk) = self.chunks.range_mut(..=block).next_back()?;
        (block - start < chunk.blocks).then_some((*start, chunk))
    }

    /// Takes a block that holds a node. Returns whether it was free.
    pub(super) fn mark_used(&mut self, block: u32) -> bool {
        let Some((start, chunk)) = self.chunk_of(block) else { return false };
        let at = block - start;
        let Some(word) = chunk.map.get_mut((at / WORD) as usize) else { return false };
        let bit = 1 << (at % WORD);
        if *word & bit == 0 {
            return false;
        }
        *word &= !bit;
        chunk.free -= 1;
        let is_full = chunk.free == 0;
        self.free -= 1;
        if is_full {
            self.with_free.remove(&start);
        }
        true
    }

    /// Takes a free block.
    pub(super) fn take(&mut self) -> Option<u32> {
        if !self.with_free.contains(&self.current) {
            self.current = *self.with_free.range(self.current..).next().or(self.with_free.first())?;
        }
        let start = self.current;
        let chunk = self.chunks.get_mut(&start)?;
        let at = chunk.map.iter().position(|word| *word != 0)?;
        // A chunk has 32 bits of blocks.
        let block = start + at as u32 * WORD + chunk.map[at].trailing_zeros();
        self.mark_used(block);
        Some(block)
    }

    /// Gives a block back that was never written.
    pub(super) fn give(&mut self, block: u32) {
        let Some((start, chunk)) = self.chunk_of(block) else { return };
        let at = block - start;
        let Some(word) = chunk.map.get_mut((at / WORD) as usize) else { return };
        *word |= 1 << (at % WORD);
        chunk.free += 1;
        self.free += 1;
        self.with_free.insert(start);
    }

    /// Whether blocks were replaced that are not free yet.
    pub(super) fn is_holding(&self) -> bool {
        !self.held.is_empty()
    }

    /// Gives a block back that the commit with this generation replaces.
    pub(super) fn hold(&mut self, generation: u64, block: u32) {
        self.held.push_back((generation, block));
    }

    /// Everything that commits up to `generation` replaced is free.
    pub(super) fn release(&mut self, generation: u64) {
        while let Some((replaced, block)) = self.held.front().copied()
            && replaced <= generation
        {
            self.held.pop_front();
            self.give(block);
        }
    }

    /// Whether [`NodeSpace::remove_empty`] would remove a chunk.
    pub(super) fn has_empty(&self, keep: u64, counted: FreeBlocks) -> bool {
        let once_released = counted == FreeBlocks::OnceRead;
        let mut held: BTreeMap<u32, u32> = BTreeMap::new();
        let mut free = self.free;
        if once_released {
            free += self.held.len() as u64;
        }
        if free <= keep {
            return false;
        }
        if once_released {
            for (_, block) in &self.held {
                if let Some((start, _)) = self.chunks.range(..=*block).next_back() {
                    *held.entry(*start).or_default() += 1;
                }
            }
        }
        self.chunks.iter().any(|(start, chunk)| {
            let held = held.get(start).copied().unwrap_or_default();
            chunk.free + held == chunk.blocks && free >= keep.saturating_add(u64::from(chunk.blocks))
        })
    }

    /// Removes a chunk of which all blocks are free, if the others have more than `keep` free ones.
    pub(super) fn remove_empty(&mut self, keep: u64) -> Option<(u32, u32)> {
        let empty = |start: &&u32| {
            self.chunks.get(start).is_some_and(|chunk| {
                chunk.free == chunk.blocks && self.free >= keep.saturating_add(u64::from(chunk.blocks))
            })
        };
        let start = *self.with_free.iter().rev().find(empty)?;
        let chunk = self.chunks.remove(&start)?;
        self.with_free.remove(&start);
        self.free -= u64::from(chunk.blocks);
        Some((start, chunk.blocks))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_is_empty_when_what_it_holds_is_released() {
        let mut nodes = NodeSpace::default();
        assert!(nodes.add(4, 8) && nodes.add(32, 4));
        let taken: Vec<u32> = std::iter::from_fn(|| nodes.take()).collect();
        assert_eq!(taken.len(), 12);
        taken.iter().filter(|block| **block != 4).for_each(|block| nodes.hold(1, *block));
        for (keep, is_spare) in [(0, true), (7, true), (8, false), (u64::MAX, false)] {
            assert!(!nodes.has_empty(keep, FreeBlocks::Now));
            assert_eq!(nodes.has_empty(keep, FreeBlocks::OnceRead), is_spare, "{keep}");
        }
        nodes.release(1);
        assert!(nodes.has_empty(7, FreeBlocks::Now) && !nodes.has_empty(8, FreeBlocks::Now));
        assert_eq!(nodes.remove_empty(8), None);
        assert_eq!(nodes.remove_empty(7), Some((32, 4)));
        // A node is left in the other one.
        assert!(!nodes.has_empty(0, FreeBlocks::Now) && !nodes.has_empty(0, FreeBlocks::OnceRead));
    }
}
