//! A copy-on-write B-tree in blocks of one medium.
//!
//! 1. Items are in the leaves ([`node`]). The tree knows where its root is, and the number of
//!    levels above the leaves.
//! 2. A change ([`edit`]) never writes a node that something durable refers to. It moves each node
//!    on the way from the root to the leaf to a new block, once for each commit, and changes the
//!    copy.
//! 3. [`Tree::seal`] computes the checksums of the changed nodes, children first, because a parent
//!    has the checksums of its children. Then the root's pointer stands for the whole tree.
//! 4. A lookup reads a node only if it is not in memory ([`cache`]), and verifies it against its
//!    pointer. Each level down is one less than the level above, so a damaged tree has no cycles.
//!
//! What it must never do: return an item of a node that does not have the checksum of its pointer.

mod cache;
mod edit;
mod key;
mod node;

use sietch_disk::Buffer;

use crate::error::Fault;
use cache::Cache;

pub(crate) use cache::Frame;

#[cfg(test)]
pub(crate) use node::reseal;
pub(crate) use node::{MAX_LEVEL, Node, Pointer, seed};

pub use key::{Key, OWN_KINDS};
pub use node::MAX_VALUE;

/// Where nodes are read from.
pub(crate) trait Store {
    /// Reads a block.
    fn read_block(&mut self, block: u32) -> Result<Buffer, Fault>;

    /// The block is not the node that it should be.
    fn damaged(&self, block: u32, cause: String) -> Fault;
}

/// Where nodes get their blocks.
pub(crate) trait Space: Store {
    /// A block that nothing durable, and no reader, refers to.
    fn take_block(&mut self) -> Result<u32, Fault>;

    /// A block that the tree does not need any more. `is_new`: it was taken since the last commit,
    /// and nothing durable refers to it.
    fn give_block(&mut self, block: u32, is_new: bool);
}

/// Reads a node past the cache.
pub(crate) fn read_node(
    store: &mut impl Store,
    seed: u32,
    pointer: Pointer,
    level: u8,
) -> Result<Node, Fault> {
    let bytes = store.read_block(pointer.block)?;
    Node::parse(bytes, seed, pointer, level).map_err(|cause| store.damaged(pointer.block, cause))
}

/// See the module's account.
#[derive(Debug)]
pub(crate) struct Tree {
    root: Pointer,
    level: u8,
    /// Generation of the next commit: that of all dirty nodes.
    generation: u64,
    seed: u32,
    cache: Cache,
}

/// A leaf, and the keys that it may hold.
struct Leaf {
    frame: Frame,
    /// The first one.
    low: Key,
    /// The first one behind it.
    high: Option<Key>,
}

impl Tree {
    /// The tree with this root, of a pool with this seed. The next commit has `generation`. `limit`
    /// bounds the clean nodes in memory.
    pub(crate) fn new(root: Pointer, level: u8, generation: u64, seed: u32, limit: usize) -> Self {
        Self { root, level, generation, seed, cache: Cache::new(limit) }
    }

    /// What leads to the root, and its level.
    pub(crate) fn root(&self) -> (Pointer, u8) {
        (self.root, self.level)
    }

    /// Takes another root.
    pub(crate) fn set_root(&mut self, root: Pointer, level: u8) {
        (self.root, self.level) = (root, level);
    }

    /// Nodes that the next commit writes.
    pub(crate) fn dirty(&self) -> usize {
        self.cache.dirty()
    }

    fn load(&mut self, store: &mut impl Store, pointer: Pointer, level: u8) -> Result<Frame, Fault> {
        if let Some(frame) = self.cache.find(pointer) {
            return Ok(frame);
        }
        let node = read_node(store, self.seed, pointer, level)?;
        if node.count() == 0 && level < self.level {
            return Err(store.damaged(pointer.block, "a leaf below the root has no items".into()));
        }
        Ok(self.cache.add_clean(pointer, node))
    }

    /// The leaf that covers `key`.
    fn leaf(&mut self, store: &mut impl Store, key: &Key) -> Result<Leaf, Fault> {
        let (mut pointer, mut level) = (self.root, self.level);
        let (mut low, mut high) = (Key::MIN, None);
        loop {
            let frame = self.load(store, pointer, level)?;
            let Some(below) = level.checked_sub(1) else { return Ok(Leaf { frame, low, high }) };
            let node = self.cache.node(frame);
            let at = node.child_for(key);
            if at > 0
                && let Some(bound) = node.key(at)
            {
                low = bound;
            }
            high = node.key(at + 1).or(high);
            (pointer, level) = (node.child(at), below);
        }
    }

    /// The value of an item.
    pub(crate) fn get(&mut self, store: &mut impl Store, key: &Key) -> Result<Option<&[u8]>, Fault> {
        let (mut pointer, mut level) = (self.root, self.level);
        loop {
            let frame = self.load(store, pointer, level)?;
            let node = self.cache.node(frame);
            let Some(below) = level.checked_sub(1) else {
                let node = self.cache.node(frame);
                return Ok(node.search(key).ok().map(|at| node.value(at)));
            };
            (pointer, level) = (node.child(node.child_for(key)), below);
        }
    }

    /// The first item at or behind `from`.
    pub(crate) fn next(&mut self, store: &mut impl Store, from: Key) -> Result<Option<(Key, &[u8])>, Fault> {
        let mut leaf = self.leaf(store, &from)?;
        let at = self.cache.node(leaf.frame).search(&from).unwrap_or_else(|at| at);
        if at < self.cache.node(leaf.frame).count() {
            return Ok(self.item(leaf.frame, at));
        }
        // Only the root may be empty, so the next leaf has an item.
        let Some(high) = leaf.high else { return Ok(None) };
        leaf = self.leaf(store, &high)?;
        match self.cache.node(leaf.frame).key(0) {
            Some(key) if key >= from => Ok(self.item(leaf.frame, 0)),
            _ => Err(self.out_of_order(store, leaf.frame)),
        }
    }

    /// The last item at or before `from`.
    pub(crate) fn previous(
        &mut self,
        store: &mut impl Store,
        from: Key,
    ) -> Result<Option<(Key, &[u8])>, Fault> {
        let mut leaf = self.leaf(store, &from)?;
        let at = match self.cache.node(leaf.frame).search(&from) {
            Ok(at) => Some(at),
            Err(at) => at.checked_sub(1),
        };
        if let Some(at) = at {
            return Ok(self.item(leaf.frame, at));
        }
        let Some(before) = leaf.low.before() else { return Ok(None) };
        leaf = self.leaf(store, &before)?;
        let last = self.cache.node(leaf.frame).count().saturating_sub(1);
        match self.cache.node(leaf.frame).key(last) {
            Some(key) if key <= from => Ok(self.item(leaf.frame, last)),
            _ => Err(self.out_of_order(store, leaf.frame)),
        }
    }

    /// A caller that goes on from what it got must not go round in circles.
    fn out_of_order(&self, store: &impl Store, frame: Frame) -> Fault {
        let cause = "it has keys outside the bounds of its parent".to_owned();
        store.damaged(self.cache.pointer(frame).block, cause)
    }

    fn item(&self, frame: Frame, at: usize) -> Option<(Key, &[u8])> {
        let node = self.cache.node(frame);
        node.key(at).map(|key| (key, node.value(at)))
    }

    /// Computes the checksums of all dirty nodes, and lists them with their blocks, in the order of
    /// the blocks.
    pub(crate) fn seal(&mut self) -> Vec<(u32, Frame)> {
        let mut sealed = Vec::with_capacity(self.cache.dirty());
        if let Some(frame) = self.dirty_frame(self.root) {
            self.root.checksum = self.seal_below(frame, &mut sealed);
        }
        sealed.sort_unstable_by_key(|(block, _)| *block);
        sealed
    }

    fn dirty_frame(&mut self, pointer: Pointer) -> Option<Frame> {
        if pointer.generation != self.generation {
            return None;
        }
        self.cache.find(pointer).filter(|frame| self.cache.is_dirty(*frame))
    }

    /// The depth is the number of levels.
    fn seal_below(&mut self, frame: Frame, sealed: &mut Vec<(u32, Frame)>) -> u32 {
        if self.cache.node(frame).level() > 0 {
            for at in 0..self.cache.node(frame).count() {
                let mut pointer = self.cache.node(frame).child(at);
                if let Some(child) = self.dirty_frame(pointer) {
                    pointer.checksum = self.seal_below(child, sealed);
                    self.cache.node_mut(frame).set_child(at, pointer);
                }
            }
        }
        let block = self.cache.pointer(frame).block;
        let checksum = self.cache.node_mut(frame).seal(self.seed, block);
        self.cache.set_checksum(frame, checksum);
        sealed.push((block, frame));
        checksum
    }

    /// Gives the block of a sealed node away to be written.
    pub(crate) fn take_bytes(&mut self, frame: Frame) -> Buffer {
        self.cache.node_mut(frame).take_bytes()
    }

    /// A sealed node was written.
    pub(crate) fn return_bytes(&mut self, frame: Frame, bytes: Buffer) {
        self.cache.node_mut(frame).return_bytes(bytes);
        self.cache.make_clean(frame);
    }

    /// All dirty nodes are durable, and the commit that wrote them is.
    pub(crate) fn committed(&mut self) {
        self.generation += 1;
        self.cache.trim();
    }
}
