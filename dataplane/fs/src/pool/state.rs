//! The state of an open pool, and lookups.

use sietch_disk::{Buffer, DiskQueue};

use super::data_space::DataSpace;
use super::medium::{Medium, Member, check_run};
use super::node_space::NodeSpace;
use super::superblock::Superblock;
use super::{Root, Run};
use crate::error::Fault;
use crate::name::NameKey;
use crate::tree::{Key, Space, Store, Tree};

/// An open pool: its one writer. See [`crate::pool`].
pub struct Pool<D> {
    pub(super) media: Vec<Medium<D>>,
    pub(super) tree: Tree,
    pub(super) data: DataSpace,
    pub(super) nodes: NodeSpace,
    /// That of the home, as it was committed last.
    pub(super) superblock: Superblock,
    /// No reader needs a generation before this one.
    pub(super) readers: u64,
    /// Nor does the mover.
    pub(super) mover: u64,
    /// Whether changes may take what is reserved for removals.
    pub(super) uses_reserve: bool,
    /// Data blocks that the current batch still takes: no chunk of nodes is made of them.
    pub(super) demand: u64,
    /// The fault that ended all changes.
    pub(super) stopped: Option<String>,
}

impl<D> std::fmt::Debug for Pool<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool")
            .field("root", &self.superblock.root)
            .field("stopped", &self.stopped)
            .finish_non_exhaustive()
    }
}

/// The home medium, for the tree.
pub(super) struct Home<'a, D> {
    pub medium: &'a mut Medium<D>,
    pub nodes: &'a mut NodeSpace,
    /// That of the next commit.
    pub generation: u64,
}

impl<D: DiskQueue> Store for Home<'_, D> {
    fn read_block(&mut self, block: u32) -> Result<Buffer, Fault> {
        self.medium.read_block(block)
    }

    fn damaged(&self, block: u32, cause: String) -> Fault {
        self.medium.damaged(block, cause)
    }
}

impl<D: DiskQueue> Space for Home<'_, D> {
    fn take_block(&mut self) -> Result<u32, Fault> {
        self.nodes.take().ok_or_else(|| Fault::Full { medium: self.medium.name.clone(), wanted: 1 })
    }

    fn give_block(&mut self, block: u32, is_new: bool) {
        if is_new {
            self.nodes.give(block);
        } else {
            self.nodes.hold(self.generation, block);
        }
    }
}

impl<D: DiskQueue> Pool<D> {
    /// The key of the name hashes.
    pub fn name_key(&self) -> NameKey {
        self.superblock.name_key
    }

    /// What was committed last.
    pub fn root(&self) -> Root {
        self.superblock.root
    }

    /// Blocks that no file has, and blocks in all.
    pub fn free_blocks(&self) -> (u64, u64) {
        (self.data.free(), self.superblock.root.total)
    }

    /// Whether blocks of data or of nodes wait until readers need no older generation.
    pub fn is_holding(&self) -> bool {
        self.data.is_holding() || self.nodes.is_holding()
    }

    /// Nodes that the next commit writes. They are in memory until then, so a caller that has no
    /// limit of its own commits when there are some ten thousand.
    pub fn changed_nodes(&self) -> usize {
        self.tree.dirty()
    }

    /// What the media are called in messages, the home first.
    pub(crate) fn medium_names(&self) -> Vec<String> {
        self.media.iter().map(|medium| medium.name.clone()).collect()
    }

    /// The value of an item.
    ///
    /// # Errors
    /// A medium failed, or a node does not have its checksum; or an earlier fault stopped the pool.
    pub fn get(&mut self, key: Key) -> Result<Option<Vec<u8>>, Fault> {
        self.check_going()?;
        let (tree, mut home) = self.tree_and_home();
        Ok(tree.get(&mut home, &key)?.map(<[u8]>::to_vec))
    }

    /// The first item at or behind `from`.
    ///
    /// # Errors
    /// As [`Pool::get`].
    pub fn next(&mut self, from: Key) -> Result<Option<(Key, Vec<u8>)>, Fault> {
        self.check_going()?;
        let (tree, mut home) = self.tree_and_home();
        Ok(tree.next(&mut home, from)?.map(|(key, value)| (key, value.to_vec())))
    }

    /// The last item at or before `from`.
    ///
    /// # Errors
    /// As [`Pool::get`].
    pub fn previous(&mut self, from: Key) -> Result<Option<(Key, Vec<u8>)>, Fault> {
        self.check_going()?;
        let (tree, mut home) = self.tree_and_home();
        Ok(tree.previous(&mut home, from)?.map(|(key, value)| (key, value.to_vec())))
    }

    /// Reads data; sees queued writes.
    ///
    /// # Errors
    /// The run is not on a medium, or the medium failed.
    pub fn read(&mut self, run: Run) -> Result<Buffer, Fault> {
        self.check_going()?;
        self.check_run(run)?;
        let medium = self.medium_mut(run.medium)?;
        medium.read(run)
    }

    /// Gives the media back. What was not committed is lost.
    pub fn into_members(self) -> Vec<Member<D>> {
        self.media.into_iter().filter_map(Medium::into_member).collect()
    }

    pub(super) fn check_going(&self) -> Result<(), Fault> {
        match &self.stopped {
            Some(cause) => Err(Fault::Stopped { medium: self.home_name(), cause: cause.clone() }),
            None => Ok(()),
        }
    }

    pub(super) fn tree_and_home(&mut self) -> (&mut Tree, Home<'_, D>) {
        let generation = self.superblock.root.generation + 1;
        // A pool has a home: opening requires it.
        let home = Home { medium: &mut self.media[0], nodes: &mut self.nodes, generation };
        (&mut self.tree, home)
    }

    pub(super) fn home_name(&self) -> String {
        self.media.first().map_or_else(String::new, |medium| medium.name.clone())
    }

    pub(super) fn medium_mut(&mut self, medium: u8) -> Result<&mut Medium<D>, Fault> {
        let count = self.media.len();
        let name = self.home_name();
        self.media
            .get_mut(usize::from(medium))
            .ok_or_else(|| Fault::Refused { medium: name, cause: format!("medium {medium} of {count}") })
    }

    /// Refuses a run that cannot be one of data.
    pub(super) fn check_run(&self, run: Run) -> Result<(), Fault> {
        check_run(&self.media, run)
    }
}
