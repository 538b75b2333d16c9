//! Changes of the tree.
//!
//! 1. On the way down, each node that is not dirty yet moves to a new block (a *shadow*), and its
//!    parent's pointer follows. The old block is given back.
//! 2. An item that does not fit its leaf splits it: the right part moves to a new node, whose bound
//!    is inserted into the parent, which may split in turn. The blocks for all of this are taken
//!    before anything changes. A root that splits gets a parent.
//! 3. After a removal, a node that has become small is merged with a sibling if both fit one node.
//!    An empty node is removed. What follows a first child takes over its bound: keys from there on
//!    lead to it. A root with one child gives way to it.
//! 4. A sibling that cannot be read is not merged with. The removal is done nevertheless.

use super::cache::Frame;
use super::key::Key;
use super::node::{MAX_LEVEL, MERGE_BELOW, Node, POINTER, Pointer, ROOM};
use super::{Space, Tree};
use crate::error::Fault;

/// The nodes from the root to the parent of a leaf, each with the child that was taken.
#[derive(Default)]
struct Path {
    steps: [Option<(Frame, usize)>; MAX_LEVEL as usize],
    length: usize,
}

impl Path {
    /// A tree has at most as many levels as there are steps.
    fn push(&mut self, frame: Frame, child: usize) {
        if let Some(step) = self.steps.get_mut(self.length) {
            *step = Some((frame, child));
            self.length += 1;
        }
    }

    fn pop(&mut self) -> Option<(Frame, usize)> {
        self.length = self.length.checked_sub(1)?;
        self.steps[self.length].take()
    }

    /// From the leaf's parent to the root.
    fn upwards(&self) -> impl Iterator<Item = Frame> + '_ {
        self.steps[..self.length].iter().rev().flatten().map(|(frame, _)| *frame)
    }
}

impl Tree {
    /// Blocks that one change may take, at most: a shadow and a split for each level, and a root.
    pub(crate) fn blocks_per_change(&self) -> u64 {
        2 * (u64::from(self.level) + 1) + 1
    }

    /// Inserts an item, or replaces its value.
    pub(crate) fn insert(&mut self, space: &mut impl Space, key: Key, value: &[u8]) -> Result<(), Fault> {
        let (path, leaf) = self.descend(space, &key)?;
        let node = self.cache.node_mut(leaf);
        match node.search(&key) {
            Ok(at) if node.used() - node.value(at).len() + value.len() <= ROOM => node.replace(at, value),
            Ok(at) => {
                let spare = self.spare_blocks(space, &path)?;
                self.cache.node_mut(leaf).remove(at);
                self.split(space, path, spare, leaf, (at, key, value))?;
            }
            Err(at) if node.fits(value.len()) => node.insert(at, key, value),
            Err(at) => {
                let spare = self.spare_blocks(space, &path)?;
                self.split(space, path, spare, leaf, (at, key, value))?;
            }
        }
        Ok(())
    }

    /// Removes an item. Returns whether it was there.
    pub(crate) fn remove(&mut self, space: &mut impl Space, key: Key) -> Result<bool, Fault> {
        if self.get(space, &key)?.is_none() {
            return Ok(false);
        }
        let (path, leaf) = self.descend(space, &key)?;
        if let Ok(at) = self.cache.node(leaf).search(&key) {
            self.cache.node_mut(leaf).remove(at);
            self.shrink(space, path, leaf);
        }
        Ok(true)
    }

    /// The leaf that covers `key` and the way to it, all of them dirty.
    fn descend(&mut self, space: &mut impl Space, key: &Key) -> Result<(Path, Frame), Fault> {
        let mut path = Path::default();
        let frame = self.load(space, self.root, self.level)?;
        let (mut frame, pointer) = self.shadow(space, frame)?;
        self.root = pointer;
        for level in (0..self.level).rev() {
            let node = self.cache.node(frame);
            let at = node.child_for(key);
            let before = node.child(at);
            let child = self.load(space, before, level)?;
            let (child, pointer) = self.shadow(space, child)?;
            if pointer != before {
                self.cache.node_mut(frame).set_child(at, pointer);
            }
            path.push(frame, at);
            frame = child;
        }
        Ok((path, frame))
    }

    /// Moves a clean node to a new block.
    fn shadow(&mut self, space: &mut impl Space, frame: Frame) -> Result<(Frame, Pointer), Fault> {
        if self.cache.is_dirty(frame) {
            return Ok((frame, self.cache.pointer(frame)));
        }
        let old = self.cache.pointer(frame);
        let pointer = Pointer { block: space.take_block()?, generation: self.generation, checksum: 0 };
        self.cache.make_dirty(frame, pointer);
        space.give_block(old.block, false);
        Ok((frame, pointer))
    }

    /// Blocks for the nodes that a split of the leaf adds, the one for the leaf last.
    fn spare_blocks(&mut self, space: &mut impl Space, path: &Path) -> Result<Vec<u32>, Fault> {
        let full = path.upwards().take_while(|frame| !self.cache.node(*frame).fits(POINTER)).count();
        let grows = usize::from(full == path.length);
        if grows > 0 && self.level == MAX_LEVEL {
            return Err(space.damaged(self.root.block, format!("a tree cannot have {MAX_LEVEL} levels")));
        }
        let mut blocks = Vec::with_capacity(1 + full + grows);
        for _ in 0..1 + full + grows {
            match space.take_block() {
                Ok(block) => blocks.push(block),
                Err(fault) => {
                    blocks.drain(..).for_each(|block| space.give_block(block, true));
                    return Err(fault);
                }
            }
        }
        Ok(blocks)
    }

    /// Splits a leaf and inserts the item; then its parents, as far as they are full.
    fn split(
        &mut self,
        space: &mut impl Space,
        mut path: Path,
        mut spare: Vec<u32>,
        leaf: Frame,
        item: (usize, Key, &[u8]),
    ) -> Result<(), Fault> {
        let (at, key, value) = item;
        let Some((mut bound, mut pointer)) = self.divide(leaf, &mut spare, at, key, value) else {
            return Ok(());
        };
        let mut below = leaf;
        while let Some((frame, child)) = path.pop() {
            if !self.cache.node(frame).has_place(child + 1, &bound) {
                // A node below has keys that its parent does not lead to.
                let block = self.cache.pointer(frame).block;
                return Err(
                    space.damaged(block, format!("its bounds are not those of its children: {bound}"))
                );
            }
            let node = self.cache.node_mut(frame);
            if node.fits(POINTER) {
                node.insert_child(child + 1, bound, pointer);
                return Ok(());
            }
            // The value of a child is its pointer.
            let mut holder = Node::new(1, 0);
            holder.insert_child(0, bound, pointer);
            let Some(next) = self.divide(frame, &mut spare, child + 1, bound, holder.value(0)) else {
                return Ok(());
            };
            (bound, pointer) = next;
            below = frame;
        }
        let Some(block) = spare.pop() else { return Ok(()) };
        self.level += 1;
        let mut root = Node::new(self.level, self.generation);
        root.insert_child(0, Key::MIN, self.cache.pointer(below));
        root.insert_child(1, bound, pointer);
        self.root = Pointer { block, generation: self.generation, checksum: 0 };
        self.cache.add_dirty(self.root, root);
        Ok(())
    }

    /// Divides a node and inserts the item into one of the two. Returns the bound of the right one,
    /// and what leads to it.
    fn divide(
        &mut self,
        frame: Frame,
        spare: &mut Vec<u32>,
        at: usize,
        key: Key,
        value: &[u8],
    ) -> Option<(Key, Pointer)> {
        let pointer = Pointer { block: spare.pop()?, generation: self.generation, checksum: 0 };
        let left = self.cache.node_mut(frame);
        let division = left.divide_for(at, value.len());
        let mut right = left.split_off(division.keeps);
        match division.right {
            Some(at) => right.insert(at, key, value),
            None => left.insert(at, key, value),
        }
        let bound = right.key(0)?;
        self.cache.add_dirty(pointer, right);
        Some((bound, pointer))
    }

    /// After a removal from `frame`: merges and removes nodes on the way up.
    fn shrink(&mut self, space: &mut impl Space, mut path: Path, mut frame: Frame) {
        let mut level = 0;
        while let Some((parent, at)) = path.pop() {
            let node = self.cache.node(frame);
            if node.count() == 0 {
                self.cache.node_mut(parent).remove_child(at);
                self.release(space, frame);
            } else if node.used() >= MERGE_BELOW || !self.merge(space, parent, at, frame, level) {
                return;
            }
            frame = parent;
            level += 1;
        }
        if self.level > 0 && self.cache.node(frame).count() == 0 {
            *self.cache.node_mut(frame) = Node::new(0, self.generation);
            self.level = 0;
        }
        while self.level > 0 && self.cache.node(frame).count() == 1 {
            let child = self.cache.node(frame).child(0);
            self.release(space, frame);
            self.root = child;
            self.level -= 1;
            let Ok(next) = self.load(space, child, self.level) else { return };
            frame = next;
        }
    }

    /// Merges child `at` of `parent`, which is in `frame`, with a sibling. Returns whether it did.
    fn merge(&mut self, space: &mut impl Space, parent: Frame, at: usize, frame: Frame, level: u8) -> bool {
        let left = at.checked_sub(1);
        for sibling_at in left.into_iter().chain([at + 1]) {
            let node = self.cache.node(parent);
            if sibling_at >= node.count() {
                continue;
            }
            let right_at = at.max(sibling_at);
            let (pointer, Some(bound)) = (node.child(sibling_at), node.key(right_at)) else { continue };
            let Ok(sibling) = self.load(space, pointer, level) else { continue };
            if self.cache.node(frame).used() + self.cache.node(sibling).used() > ROOM {
                continue;
            }
            if sibling_at > at {
                let right = std::mem::replace(self.cache.node_mut(sibling), Node::vacant());
                self.cache.node_mut(frame).append(&right, bound);
            } else {
                let right = self.cache.node(frame).copy();
                let mut merged = std::mem::replace(self.cache.node_mut(sibling), Node::vacant());
                merged.append(&right, bound);
                merged.set_generation(self.generation);
                *self.cache.node_mut(frame) = merged;
                let own = self.cache.pointer(frame);
                self.cache.node_mut(parent).set_child(sibling_at, own);
            }
            self.cache.node_mut(parent).remove(right_at);
            self.release(space, sibling);
            return true;
        }
        false
    }

    /// A node leaves the tree.
    fn release(&mut self, space: &mut impl Space, frame: Frame) {
        let is_new = self.cache.is_dirty(frame);
        space.give_block(self.cache.pointer(frame).block, is_new);
        self.cache.remove(frame);
    }
}
