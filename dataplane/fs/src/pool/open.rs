//! Opening a pool.
//!
//! 1. The home's superblock says which media there are. Each other one must be of the same pool, in
//!    its slot, and the one that the home means. Slots without a medium have no block.
//! 2. The home is flushed before anything else: the superblock that was found may be one that a
//!    killed process had written, and that is not durable yet. A damaged copy of it is written
//!    anew.
//! 3. All nodes above the leaves are read. They have the pointers to all nodes, and so say which
//!    blocks of the chunks are free.
//! 4. The items of free runs are read.

use std::collections::HashMap;

use sietch_disk::{Buffer, DiskQueue};

use super::Pool;
use super::data_space::DataSpace;
use super::error::OpenError;
use super::limits::{FIRST_BLOCK, MAX_MEDIA, WRITER_NODES};
use super::medium::{Medium, Member};
use super::node_space::NodeSpace;
use super::own_items::OwnItem;
use super::root::Root;
use super::superblock::{Superblock, copies, newest};
use crate::error::Fault;
use crate::tree::{Key, Node, Store, Tree, seed};

impl<D: DiskQueue> Pool<D> {
    /// Opens the pool on these media, the home first.
    ///
    /// Until [`Pool::readers_at`] is called, its generation counts as needed by readers.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(members: Vec<Member<D>>) -> Result<Self, OpenError> {
        Self::open_with(members, WRITER_NODES)
    }

    /// As [`Pool::open`], with at most so many clean nodes in memory.
    ///
    /// # Errors
    /// As [`Pool::open`].
    pub fn open_with(members: Vec<Member<D>>, nodes_in_memory: usize) -> Result<Self, OpenError> {
        let (mut media, superblock) = identify(members)?;
        if let Some(home) = media.first_mut() {
            home.flush()?;
            let own = copies(superblock.root.generation);
            let is_other = |block: &u32| {
                home.read_block(*block).map_or(true, |bytes| Superblock::read(&bytes) != Ok(superblock))
            };
            let others: Vec<u32> = own.into_iter().filter(is_other).collect();
            home.write_durable(&others, &superblock.write())?;
        }
        Self::assemble(media, superblock, nodes_in_memory)
    }

    /// The state with this root, for reading, while another process changes the pool and keeps what
    /// a reader of `root` needs. Nothing is written.
    ///
    /// # Errors
    /// As [`Pool::open`].
    pub(crate) fn view(members: Vec<Member<D>>, root: Root) -> Result<Self, OpenError> {
        let (media, mut superblock) = identify(members)?;
        same_pool(&superblock, &root, &media)?;
        superblock.root = root;
        Self::assemble(media, superblock, WRITER_NODES)
    }

    fn assemble(
        media: Vec<Medium<D>>,
        superblock: Superblock,
        nodes_in_memory: usize,
    ) -> Result<Self, OpenError> {
        let root = superblock.root;
        let tree =
            Tree::new(root.pointer, root.level, root.generation + 1, seed(root.identity), nodes_in_memory);
        let blocks = |medium: &Medium<D>| u64::from(medium.blocks.saturating_sub(FIRST_BLOCK));
        let data = DataSpace::new(media.iter().map(|medium| (medium.class, blocks(medium))));
        let mut pool = Self {
            media,
            tree,
            data,
            nodes: NodeSpace::default(),
            superblock,
            readers: root.generation,
            mover: u64::MAX,
            uses_reserve: false,
            demand: 0,
            stopped: None,
        };
        pool.load()?;
        Ok(pool)
    }

    fn load(&mut self) -> Result<(), Fault> {
        self.load_own_items()?;
        let (root, level) = self.tree.root();
        let seed = seed(self.superblock.identity);
        let (media, nodes) = (&mut self.media, &mut self.nodes);
        let Some(home) = media.first_mut() else { return Ok(()) };
        let mut pointers = HashMap::from([(root.block, root)]);
        mark_used(home, nodes, root.block)?;
        for level in (1..=level).rev() {
            let mut blocks: Vec<u32> = pointers.keys().copied().collect();
            blocks.sort_unstable();
            let mut below = HashMap::new();
            home.read_many(&blocks, &mut |home, block, bytes: Buffer| {
                let pointer = pointers.get(&block).copied().unwrap_or_default();
                let node =
                    Node::parse(bytes, seed, pointer, level).map_err(|cause| home.damaged(block, cause))?;
                for at in 0..node.count() {
                    let child = node.child(at);
                    mark_used(home, nodes, child.block)?;
                    if level > 1 {
                        below.insert(child.block, child);
                    }
                }
                Ok(())
            })?;
            pointers = below;
        }
        Ok(())
    }

    /// Free runs and chunks.
    fn load_own_items(&mut self) -> Result<(), Fault> {
        let sizes: Vec<u32> = self.media.iter().map(|medium| medium.blocks).collect();
        let mut from = Key::MIN;
        loop {
            let (tree, mut home) = self.tree_and_home();
            let Some((key, value)) = tree.next(&mut home, from)? else { break };
            if !key.is_own() {
                break;
            }
            let item = OwnItem::read(key, value, &sizes, FIRST_BLOCK);
            let is_taken = match item {
                Some(OwnItem::Free(run)) => {
                    let is_node = run.medium == 0 && self.nodes.overlaps(run.start, run.blocks);
                    !is_node && self.data.load(run)
                }
                Some(OwnItem::Chunk(run)) => {
                    !self.data.overlaps(run) && self.nodes.add(run.start, run.blocks)
                }
                None => false,
            };
            if !is_taken {
                return Err(Fault::Damaged {
                    medium: self.home_name(),
                    what: format!("item {key} of the tree"),
                    offset: 0,
                    cause: "it names blocks that are not there, or that another item names".into(),
                });
            }
            from = Key { offset: key.offset + 1, ..key };
        }
        Ok(())
    }
}

fn mark_used<D: DiskQueue>(home: &Medium<D>, nodes: &mut NodeSpace, block: u32) -> Result<(), Fault> {
    if nodes.mark_used(block) {
        return Ok(());
    }
    Err(home.damaged(block, "two pointers lead to it, or it is in no chunk of nodes".into()))
}

/// Refuses a root of another pool.
pub(super) fn same_pool<D: DiskQueue>(
    superblock: &Superblock,
    root: &Root,
    media: &[Medium<D>],
) -> Result<(), OpenError> {
    if superblock.identity == root.identity {
        return Ok(());
    }
    let medium = media.first().map_or_else(String::new, |medium| medium.name.clone());
    Err(OpenError::Foreign { medium, found: superblock.identity, wanted: root.identity })
}

/// Verifies that the media are those of one pool, in order. Returns them, and the home's
/// superblock.
pub(super) fn identify<D: DiskQueue>(
    members: Vec<Member<D>>,
) -> Result<(Vec<Medium<D>>, Superblock), OpenError> {
    let count = members.len();
    let mut media: Vec<Medium<D>> = members.into_iter().map(Medium::new).collect();
    let Some((home, others)) = media.split_first_mut() else {
        return Err(OpenError::Count { count, needed: 1 });
    };
    let superblock = newest(home)?;
    if superblock.index != 0 {
        let found = usize::from(superblock.index);
        return Err(OpenError::Swapped { medium: home.name.clone(), found, given: 0 });
    }
    let slots = superblock.slots();
    for (at, medium) in others.iter_mut().enumerate() {
        // Where there are too many, that is said below.
        let slot = slots.get(at).copied().unwrap_or(at + 1);
        identify_other(&superblock, medium, slot)?;
    }
    (home.class, home.blocks) = (superblock.class, superblock.blocks);
    let needed = 1 + slots.len();
    if count != needed || count > MAX_MEDIA {
        return Err(OpenError::Count { count, needed });
    }
    let home = home.class;
    let mut in_slots: Vec<Medium<D>> = Vec::with_capacity(count);
    for (medium, slot) in media.into_iter().zip(std::iter::once(0).chain(slots)) {
        while in_slots.len() < slot {
            in_slots.push(Medium::empty(in_slots.len(), home));
        }
        in_slots.push(medium);
    }
    Ok((in_slots, superblock))
}

/// Verifies that a medium is the one in this slot of the pool of `home`.
fn identify_other<D: DiskQueue>(
    home: &Superblock,
    medium: &mut Medium<D>,
    slot: usize,
) -> Result<(), OpenError> {
    let other = newest(medium)?;
    if other.identity != home.identity {
        let (found, wanted) = (other.identity, home.identity);
        return Err(OpenError::Foreign { medium: medium.name.clone(), found, wanted });
    }
    let index = usize::from(other.index);
    if index > 0 && home.key_of(index).is_some_and(|key| key != other.root.generation) {
        return Err(OpenError::Left { medium: medium.name.clone(), slot: index });
    }
    if index != slot {
        return Err(OpenError::Swapped { medium: medium.name.clone(), found: index, given: slot });
    }
    let (class, blocks) = match home.table.and_then(|table| table.get(slot)) {
        Some(listed) => (listed.class, listed.blocks),
        None => (other.class, other.blocks),
    };
    if medium.blocks < blocks {
        let (has, needed) = (u64::from(medium.blocks), u64::from(blocks));
        return Err(OpenError::TooSmall { medium: medium.name.clone(), blocks: has, needed });
    }
    (medium.class, medium.blocks) = (class, blocks);
    Ok(())
}
