//! Making the changes current.
//!
//! 1. The items of free runs that changed are written to the tree. A chunk of node blocks that is
//!    empty goes back to the data space, where there are many more than the reserve.
//! 2. The changed nodes get their checksums and are written, adjacent ones together. Queued data
//!    writes go on meanwhile: nothing durable refers to either.
//! 3. When all writes on all media are done, every medium that was written is flushed.
//! 4. When all flushes are done, the superblock of the next generation is written, durably, to the
//!    two copies of the generation before the last.
//! 5. Anything that fails stops the pool: what the media then hold is the old generation or the new
//!    one, and opening the pool again says which.

use sietch_disk::{BLOCK, DiskQueue, Part};

use super::limits::{NODES_PER_WRITE, chunk_blocks, node_reserve};
use super::own_items::{chunk_item, free_item};
use super::superblock::{Superblock, copies};
use super::{Counters, FreeBlocks, Pool, Root, Run};
use crate::error::Fault;
use crate::tree::Frame;

impl<D: DiskQueue> Pool<D> {
    /// Makes all changes durable and current, as a whole.
    ///
    /// # Errors
    /// A medium failed: the pool is stopped.
    pub fn commit(&mut self, counters: Counters) -> Result<Root, Fault> {
        self.check_going()?;
        let committed = self.commit_changes(counters);
        self.stop_on(committed)
    }

    fn commit_changes(&mut self, counters: Counters) -> Result<Root, Fault> {
        self.drop_empty_chunks()?;
        self.write_free_items()?;
        if self.tree.dirty() == 0 && counters == self.superblock.root.counters {
            self.flush()?;
            return Ok(self.superblock.root);
        }
        let sealed = self.tree.seal();
        self.write_nodes(&sealed)?;
        self.flush()?;

        let generation = self.superblock.root.generation + 1;
        let (pointer, level) = self.tree.root();
        let free = self.data.free();
        let root = Root { generation, counters, pointer, level, free, ..self.superblock.root };
        let superblock = Superblock { root, ..self.superblock };
        if let Some(home) = self.media.first_mut() {
            home.write_durable(&copies(generation), &superblock.write())?;
        }
        self.superblock = superblock;
        self.tree.committed();
        self.release();
        Ok(root)
    }

    /// Free node blocks that stay when chunks go back to the data space.
    fn kept_nodes(&self) -> u64 {
        let home = self.superblock.blocks;
        2 * node_reserve(home)
            + u64::from(chunk_blocks(home))
            + self.tree.blocks_per_change()
            + self.commit_need()
    }

    /// Whether a commit would give chunks of node blocks back to the data space.
    pub fn has_spare_chunks(&self, counted: FreeBlocks) -> bool {
        self.nodes.has_empty(self.kept_nodes(), counted)
    }

    fn drop_empty_chunks(&mut self) -> Result<(), Fault> {
        loop {
            let Some((start, blocks)) = self.nodes.remove_empty(self.kept_nodes()) else { return Ok(()) };
            let (tree, mut home) = self.tree_and_home();
            tree.remove(&mut home, chunk_item(start))?;
            self.data.free_run(self.superblock.root.generation + 1, Run { medium: 0, start, blocks });
        }
    }

    fn write_free_items(&mut self) -> Result<(), Fault> {
        loop {
            let changed = self.data.take_changed();
            if changed.is_empty() {
                return Ok(());
            }
            for (medium, start, length) in changed {
                // Earlier changes have left enough; see `commit_need`.
                while self.nodes.free() < self.tree.blocks_per_change() {
                    if !self.add_chunk(true)? {
                        return Err(self.full(self.tree.blocks_per_change()));
                    }
                }
                let key = free_item(medium, start);
                let (tree, mut home) = self.tree_and_home();
                match length {
                    Some(length) => tree.insert(&mut home, key, &length.to_le_bytes())?,
                    None => drop(tree.remove(&mut home, key)?),
                }
            }
        }
    }

    fn write_nodes(&mut self, sealed: &[(u32, Frame)]) -> Result<(), Fault> {
        let Some(home) = self.media.first_mut() else { return Ok(()) };
        let mut first = 0;
        while let Some((start, _)) = sealed.get(first) {
            let adjacent = sealed[first..].iter().zip(*start..).take(NODES_PER_WRITE);
            let group = adjacent.take_while(|((block, _), expected)| block == expected);
            let parts: Vec<Part> = group
                .map(|((_, frame), _)| Part { buffer: self.tree.take_bytes(*frame), length: BLOCK })
                .collect();
            // At most NODES_PER_WRITE.
            let run = Run { medium: 0, start: *start, blocks: parts.len() as u32 };
            let count = parts.len();
            home.write_nodes(first, run, parts)?;
            first += count;
        }
        home.drain()?;
        for (first, parts) in home.returned() {
            for ((_, frame), part) in sealed[first..].iter().zip(parts) {
                self.tree.return_bytes(*frame, part.buffer);
            }
        }
        Ok(())
    }

    /// Waits for all writes, then makes them durable on all media.
    fn flush(&mut self) -> Result<(), Fault> {
        for medium in &mut self.media {
            medium.drain()?;
        }
        let mut begun = Vec::with_capacity(self.media.len());
        for medium in &mut self.media {
            begun.push(medium.begin_flush()?);
        }
        for (medium, begun) in self.media.iter_mut().zip(begun) {
            if begun {
                medium.end_flush()?;
            }
        }
        Ok(())
    }
}
