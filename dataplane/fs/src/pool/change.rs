//! Changes of an open pool, up to the next commit.
//!
//! 1. Before a change of the tree, there are as many free node blocks as the change may take, and
//!    as the items of free runs may take at the commit ([`Pool::commit_need`]). If not, a chunk is
//!    taken from the data space of the home.
//! 2. Changes that may make the tree larger leave the reserve alone. Removals, replacements by
//!    values that are not longer, and all changes after [`Pool::use_reserve`] take from it.
//! 3. A change that fails has changed nothing, or the pool is stopped.

use sietch_disk::{Buffer, DiskQueue};

use super::limits::{MAX_RUN, MIN_CHUNK, chunk_blocks, data_reserve, node_reserve};
use super::medium::Class;
use super::own_items::chunk_item;
use super::{Pool, Run};
use crate::error::Fault;
use crate::tree::{Key, MAX_VALUE};

/// Items of free runs that a leaf has, at least: half of what fits.
const ITEMS_PER_LEAF: u64 = 64;

impl<D: DiskQueue> Pool<D> {
    /// Inserts an item, or replaces its value.
    ///
    /// # Errors
    /// [`Fault::Full`]: see the module's account. [`Fault::Refused`]: the key belongs to the pool,
    /// or the value has more than [`MAX_VALUE`] bytes. Otherwise as [`Pool::get`].
    pub fn insert(&mut self, key: Key, value: &[u8]) -> Result<(), Fault> {
        self.check_going()?;
        self.check_key(key)?;
        if value.len() > MAX_VALUE {
            return Err(self.refused(format!("a value of {} bytes, more than {MAX_VALUE}", value.len())));
        }
        if !self.has_node_room(false)? {
            // A value that is not longer takes no room for good.
            let (tree, mut home) = self.tree_and_home();
            let is_longer = tree.get(&mut home, &key)?.is_none_or(|old| old.len() < value.len());
            if (is_longer && !self.uses_reserve) || !self.has_node_room(true)? {
                return Err(self.full(self.tree.blocks_per_change()));
            }
        }
        let (tree, mut home) = self.tree_and_home();
        tree.insert(&mut home, key, value)
    }

    /// Removes an item. Returns whether it was there.
    ///
    /// # Errors
    /// [`Fault::Full`]: this change has used up the reserve; commit, and repeat. Otherwise as
    /// [`Pool::insert`].
    pub fn remove(&mut self, key: Key) -> Result<bool, Fault> {
        self.check_going()?;
        self.check_key(key)?;
        if !self.has_node_room(true)? {
            return Err(self.full(self.tree.blocks_per_change()));
        }
        let (tree, mut home) = self.tree_and_home();
        tree.remove(&mut home, key)
    }

    /// Takes a run of 1 to `blocks` free blocks, as many as there are together: on a medium of this
    /// class, or else on a slower one, or else on a faster one. Media above their hard watermark
    /// come last ([`super::Watermarks`]).
    ///
    /// # Errors
    /// [`Fault::Full`]: there are none. What is reserved for removals is left alone unless
    /// [`Pool::use_reserve`] says otherwise.
    pub fn allocate(&mut self, class: Class, blocks: u32) -> Result<Run, Fault> {
        self.check_going()?;
        if !self.has_node_room(self.uses_reserve)? {
            return Err(self.full(self.tree.blocks_per_change()));
        }
        let most = self.data_room(self.uses_reserve).min(u64::from(blocks.clamp(1, MAX_RUN)));
        // At most MAX_RUN.
        let run = if most > 0 { self.data.allocate(class, most as u32) } else { None };
        run.ok_or_else(|| self.full(u64::from(blocks)))
    }

    /// Frees a run. It is used again when the commit is durable and no reader needs an older
    /// generation.
    ///
    /// # Errors
    /// [`Fault::Refused`]: the run is not inside a medium, or a block of it is free already, or
    /// belongs to the pool. [`Fault::Full`]: as [`Pool::remove`].
    pub fn free(&mut self, run: Run) -> Result<(), Fault> {
        self.check_going()?;
        self.check_used(run)?;
        if !self.has_node_room(true)? {
            return Err(self.full(self.tree.blocks_per_change()));
        }
        self.data.free_run(self.superblock.root.generation + 1, run);
        Ok(())
    }

    /// Writes data to a run that was allocated since the last commit. The write may be queued.
    ///
    /// # Errors
    /// [`Fault::Refused`]: the run is not one of data, or the buffer is too short. A medium failed:
    /// the pool is stopped.
    pub fn write(&mut self, run: Run, data: Buffer) -> Result<(), Fault> {
        self.check_going()?;
        self.check_used(run)?;
        if data.len() < run.bytes() {
            return Err(self.refused(format!("{} bytes for {} blocks", data.len(), run.blocks)));
        }
        let written = self.medium_mut(run.medium)?.write(run, data);
        self.stop_on(written)
    }

    /// A buffer of at least so many bytes for [`Pool::write`], with any content.
    pub fn buffer(&mut self, bytes: usize) -> Buffer {
        let spare = self.media.iter_mut().find_map(|medium| medium.spare(bytes));
        spare.unwrap_or_else(|| Buffer::new(bytes))
    }

    /// Takes a buffer back that was not written.
    pub fn keep_buffer(&mut self, buffer: Buffer) {
        if let Some(home) = self.media.first_mut() {
            home.keep(buffer);
        }
    }

    /// No reader needs a generation before this one; [`u64::MAX`]: there are no readers. Until it
    /// is called, the generation with which the pool was opened counts as needed, so nothing that a
    /// commit frees is used again.
    pub fn readers_at(&mut self, generation: u64) {
        self.readers = generation;
        self.release();
    }

    /// From now on, changes may or may not take what is reserved for removals: for changes that
    /// belong to a removal, such as the items of an extent that is cut in two. Returns what was so
    /// before.
    pub fn use_reserve(&mut self, may: bool) -> bool {
        std::mem::replace(&mut self.uses_reserve, may)
    }

    /// The current batch still takes so many blocks for data, for which [`Pool::has_room`] found
    /// room: no more than what is beyond them becomes node blocks.
    pub fn set_demand(&mut self, blocks: u64) {
        self.demand = blocks;
    }

    /// Whether so many changes of the tree, and runs of so many blocks, surely fit now. That is
    /// without what is reserved, unless [`Pool::use_reserve`] says otherwise, and without what was
    /// freed and may not be used again yet. A caller that must not fail half way asks first.
    pub fn has_room(&self, changes: u64, blocks: u64) -> bool {
        let reserve = if self.uses_reserve { 0 } else { node_reserve(self.superblock.blocks) };
        // Each change may copy a leaf and split it; the nodes above are fewer.
        let nodes = changes.saturating_mul(2).saturating_mul(9) / 8;
        let needed = reserve + nodes + 2 * self.tree.blocks_per_change() + self.commit_need();
        // Node blocks that are missing are taken from the data space of the home.
        let missing = needed.saturating_sub(self.nodes.free());
        // The last chunk has a few blocks more.
        let missing = if missing > 0 { missing + u64::from(MIN_CHUNK) } else { 0 };
        let home = self.data.home_in_chunks().saturating_sub(self.data.on_home(blocks));
        home >= missing && self.data_room(self.uses_reserve) >= blocks.saturating_add(missing)
    }

    pub(super) fn release(&mut self) {
        let generation = self.readers.min(self.mover).min(self.superblock.root.generation);
        self.nodes.release(generation);
        self.data.release(generation);
    }

    /// A fault ends all changes.
    pub(super) fn stop_on<T>(&mut self, result: Result<T, Fault>) -> Result<T, Fault> {
        if let Err(fault) = &result {
            self.stopped.get_or_insert_with(|| fault.to_string());
        }
        result
    }

    fn check_key(&self, key: Key) -> Result<(), Fault> {
        if key.is_own() { Err(self.refused(format!("key {key} belongs to the pool"))) } else { Ok(()) }
    }

    /// Refuses a run of which a block is free or holds nodes.
    fn check_used(&self, run: Run) -> Result<(), Fault> {
        self.check_run(run)?;
        let holds_nodes = run.medium == 0 && self.nodes.overlaps(run.start, run.blocks);
        if holds_nodes || self.data.overlaps(run) {
            return Err(self.refused(format!("{run:?} is free, or holds nodes")));
        }
        Ok(())
    }

    fn refused(&self, cause: String) -> Fault {
        Fault::Refused { medium: self.home_name(), cause }
    }

    pub(super) fn full(&self, wanted: u64) -> Fault {
        Fault::Full { medium: self.home_name(), wanted }
    }

    /// Data blocks that may be taken now.
    fn data_room(&self, uses_reserve: bool) -> u64 {
        let reserve = if uses_reserve { 0 } else { data_reserve(self.superblock.blocks) };
        self.data.available().saturating_sub(reserve)
    }

    /// Node blocks that the items of free runs take at the commit, at most. Either each of them
    /// changes a leaf of its own, or all of their leaves change.
    pub(super) fn commit_need(&self) -> u64 {
        let (items, changed) = self.data.items();
        // One change more is that of the chunk that a change may need.
        let (items, changed) = (items as u64 + 2, changed as u64 + 2);
        let leaves = changed.min((items + changed) / ITEMS_PER_LEAF + 2);
        let splits = changed / ITEMS_PER_LEAF + 2;
        // The nodes above them are fewer than the leaves, but for the way to the root.
        (leaves + splits) * 9 / 8 + 2 * self.tree.blocks_per_change()
    }

    /// Whether there are free node blocks for one change and the commit, after a chunk was added if
    /// need be.
    pub(super) fn has_node_room(&mut self, uses_reserve: bool) -> Result<bool, Fault> {
        let uses_reserve = uses_reserve || self.uses_reserve;
        let reserve = if uses_reserve { 0 } else { node_reserve(self.superblock.blocks) };
        while self.nodes.free() < reserve + self.tree.blocks_per_change() + self.commit_need() {
            if !self.add_chunk(uses_reserve)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Takes a chunk from the data space of the home. Returns whether there was one.
    pub(super) fn add_chunk(&mut self, uses_reserve: bool) -> Result<bool, Fault> {
        let room = self.data_room(uses_reserve);
        let most = u64::from(chunk_blocks(self.superblock.blocks)).min(room);
        // Its item needs blocks before it gives some.
        let missing = self.tree.blocks_per_change().saturating_sub(self.nodes.free());
        let least = missing.max(u64::from(MIN_CHUNK));
        // A large chunk must not take what the batch needs for data.
        let most = most.min(room.saturating_sub(self.demand).max(least));
        // Both are at most 256, or there is none.
        let (least, most) = (least.min(u64::from(u32::MAX)) as u32, most as u32);
        let Some(run) = self.data.allocate_on(0, least, most) else { return Ok(false) };
        self.nodes.add(run.start, run.blocks);
        let (tree, mut home) = self.tree_and_home();
        let inserted = tree.insert(&mut home, chunk_item(run.start), &run.blocks.to_le_bytes());
        self.stop_on(inserted)?;
        Ok(true)
    }
}
