//! Reading one generation of a pool, on another thread or in another process than its writer.
//!
//! 1. A reader has queues of its own over the same media, and only reads.
//! 2. It reads the generation of its [`Root`], which the writer must not leave behind
//!    ([`super::Pool::readers_at`]) before the reader has advanced.
//! 3. Nodes stay in memory across generations: most are part of the next one too.

use sietch_disk::{Buffer, DiskQueue};

use super::error::OpenError;
use super::limits::READER_NODES;
use super::medium::{Class, Medium, Member, check_run};
use super::open::{identify, same_pool};
use super::{Root, Run};
use crate::error::Fault;
use crate::name::NameKey;
use crate::tree::{Key, Tree, seed};

/// See the module's account.
pub struct Reader<D> {
    pub(super) media: Vec<Medium<D>>,
    tree: Tree,
    root: Root,
    name_key: NameKey,
}

impl<D> std::fmt::Debug for Reader<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reader").field("root", &self.root).finish_non_exhaustive()
    }
}

impl<D: DiskQueue> Reader<D> {
    /// A reader of the generation with this root, on the media of the pool, the home first.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn new(members: Vec<Member<D>>, root: Root) -> Result<Self, OpenError> {
        Self::with_nodes(members, root, READER_NODES)
    }

    /// As [`Reader::new`], with at most so many nodes in memory.
    ///
    /// # Errors
    /// As [`Reader::new`].
    pub fn with_nodes(members: Vec<Member<D>>, root: Root, nodes: usize) -> Result<Self, OpenError> {
        let (media, superblock) = identify(members)?;
        same_pool(&superblock, &root, &media)?;
        // It changes nothing, so the generation of changes does not count.
        let tree = Tree::new(root.pointer, root.level, u64::MAX, seed(root.identity), nodes);
        Ok(Self { media, tree, root, name_key: superblock.name_key })
    }

    /// Reads another generation of the same pool from now on.
    pub fn advance(&mut self, root: Root) {
        self.tree.set_root(root.pointer, root.level);
        self.root = root;
    }

    /// What it reads.
    pub fn root(&self) -> Root {
        self.root
    }

    /// The key of the name hashes.
    pub fn name_key(&self) -> NameKey {
        self.name_key
    }

    /// Whether there is a medium of this class.
    pub fn has_class(&self, class: Class) -> bool {
        self.media.iter().any(|medium| medium.blocks > 0 && medium.class == class)
    }

    /// The value of an item.
    ///
    /// # Errors
    /// A medium failed, or a node does not have its checksum.
    pub fn get(&mut self, key: Key) -> Result<Option<Vec<u8>>, Fault> {
        // A pool has a home: opening requires it.
        Ok(self.tree.get(&mut self.media[0], &key)?.map(<[u8]>::to_vec))
    }

    /// The first item at or behind `from`.
    ///
    /// # Errors
    /// As [`Reader::get`].
    pub fn next(&mut self, from: Key) -> Result<Option<(Key, Vec<u8>)>, Fault> {
        let found = self.tree.next(&mut self.media[0], from)?;
        Ok(found.map(|(key, value)| (key, value.to_vec())))
    }

    /// The last item at or before `from`.
    ///
    /// # Errors
    /// As [`Reader::get`].
    pub fn previous(&mut self, from: Key) -> Result<Option<(Key, Vec<u8>)>, Fault> {
        let found = self.tree.previous(&mut self.media[0], from)?;
        Ok(found.map(|(key, value)| (key, value.to_vec())))
    }

    /// Reads data.
    ///
    /// # Errors
    /// The run is not on a medium, or the medium failed.
    pub fn read(&mut self, run: Run) -> Result<Buffer, Fault> {
        check_run(&self.media, run)?;
        self.media[usize::from(run.medium)].read(run)
    }

    /// Copies data, if their medium is memory. Returns whether it did.
    ///
    /// # Errors
    /// The run is not on a medium.
    pub fn read_now(&mut self, run: Run, out: &mut [u8]) -> Result<bool, Fault> {
        check_run(&self.media, run)?;
        Ok(self.media[usize::from(run.medium)].read_now(run, out))
    }

    /// Gives the media back.
    pub fn into_members(self) -> Vec<Member<D>> {
        self.media.into_iter().filter_map(Medium::into_member).collect()
    }
}
