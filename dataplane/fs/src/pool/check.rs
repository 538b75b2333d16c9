//! Verifying a whole pool.
//!
//! 1. Every node is read from its medium, past the cache: its checksum, its generation, its level,
//!    the order of its keys, and that they are inside the bounds of its parent.
//! 2. Every block belongs to one owner: superblocks, a free run, a chunk of nodes, or an item of
//!    the file system, whose runs the caller reports.
//! 3. Every node is in a chunk, and no two pointers lead to it. So the walk ends.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use sietch_disk::{Buffer, DiskQueue};

use super::limits::FIRST_BLOCK;
use super::medium::{check_run, offset};
use super::own_items::OwnItem;
use super::superblock::{Superblock, copies};
use super::{Pool, Run};
use crate::error::Fault;
use crate::tree::{Key, Node, Pointer, Store, read_node, seed};

/// Findings after which no more are listed.
const MOST: usize = 1000;

/// What [`check`] found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// What is wrong, and where; empty if nothing is.
    pub findings: Vec<String>,
    /// Nodes of the tree.
    pub nodes: u64,
    /// Items of the file system.
    pub items: u64,
    /// Blocks of its runs.
    pub used: u64,
    /// Free blocks.
    pub free: u64,
    /// Blocks in chunks of nodes.
    pub chunks: u64,
    /// Objects of the items that a finding is about, with its place in the list.
    pub(crate) objects: Vec<(usize, u64)>,
}

impl Findings {
    fn add(&mut self, finding: String) {
        if self.findings.len() < MOST {
            self.findings.push(finding);
        }
    }

    fn add_of(&mut self, owners: &[Owner], finding: String) {
        if self.findings.len() < MOST {
            let at = self.findings.len();
            let objects = owners.iter().filter_map(|owner| match owner {
                Owner::Item(key) => Some((at, key.object)),
                Owner::Free | Owner::Chunk => None,
            });
            self.objects.extend(objects);
        }
        self.add(finding);
    }
}

/// What a run belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Owner {
    Free,
    Chunk,
    Item(Key),
}

impl std::fmt::Display for Owner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Free => f.write_str("free space"),
            Self::Chunk => f.write_str("nodes of the tree"),
            Self::Item(key) => write!(f, "item {key}"),
        }
    }
}

/// Reports the runs of an item of the file system, or what is wrong with it.
pub type Runs<'a> = dyn FnMut(Key, &[u8], &mut Vec<Run>) -> Result<(), String> + 'a;

/// An item of the file system, as a check meets it.
pub(crate) struct Item<'a> {
    pub key: Key,
    pub value: &'a [u8],
    /// The block of its node, on the home.
    pub node: u32,
    /// Medium and offset of its node.
    pub place: &'a str,
    /// Reads data from its medium.
    pub read: &'a mut dyn FnMut(Run) -> Result<Buffer, Fault>,
}

/// What a check does with the superblocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Superblocks {
    /// Every copy must be that of the pool.
    Verified,
    /// Another process writes them meanwhile.
    Left,
}

/// As [`Runs`], with all that is known of the item.
pub(crate) type Visit<'a> = dyn FnMut(&mut Item<'_>, &mut Vec<Run>) -> Result<(), String> + 'a;

/// Verifies the whole pool, which must have no changes to commit. `runs` gets each item of the file
/// system in the order of the keys, and reports the runs that it owns.
///
/// # Errors
/// The pool is stopped, or has changes. What is wrong on the media is a finding.
pub fn check<D: DiskQueue>(pool: &mut Pool<D>, runs: &mut Runs<'_>) -> Result<Findings, Fault> {
    check_items(pool, Superblocks::Verified, &mut |item, found| runs(item.key, item.value, found))
}

/// As [`check`].
///
/// # Errors
/// As of [`check`].
pub(crate) fn check_items<D: DiskQueue>(
    pool: &mut Pool<D>,
    superblocks: Superblocks,
    visit: &mut Visit<'_>,
) -> Result<Findings, Fault> {
    pool.check_going()?;
    if pool.tree.dirty() > 0 {
        let cause = "a pool with changes cannot be checked; commit first".to_owned();
        return Err(Fault::Refused { medium: pool.home_name(), cause });
    }
    let sizes = pool.media.iter().map(|medium| medium.blocks).collect();
    let mut walk = Walk { findings: Findings::default(), owned: Vec::new(), seen: HashSet::new(), sizes };
    if superblocks == Superblocks::Verified {
        walk.superblocks(pool);
    }
    let is_whole = walk.tree(pool, visit);
    walk.blocks(pool, is_whole);
    Ok(walk.findings)
}

struct Walk {
    findings: Findings,
    owned: Vec<(Run, Owner)>,
    seen: HashSet<u32>,
    /// Blocks of each medium.
    sizes: Vec<u32>,
}

/// A node to visit, and the keys that it may have.
struct Step {
    pointer: Pointer,
    level: u8,
    low: Key,
    high: Option<Key>,
}

impl Walk {
    fn superblocks<D: DiskQueue>(&mut self, pool: &mut Pool<D>) {
        let own = pool.superblock;
        let home = copies(own.root.generation);
        let is_foreign = |copy: &Superblock, slot: usize| {
            let has_key = slot == 0 || own.key_of(slot) == Some(copy.root.generation);
            copy.identity != own.identity || usize::from(copy.index) != slot || !has_key
        };
        for (index, medium) in pool.media.iter_mut().enumerate().filter(|(_, medium)| medium.blocks > 0) {
            // The other copies of the home are of an older generation, which may be torn.
            for block in (0..FIRST_BLOCK).filter(|block| index > 0 || home.contains(block)) {
                let place = format!("{}: superblock at {}", medium.name, offset(block));
                let bytes = match medium.read_block(block) {
                    Ok(bytes) => bytes,
                    Err(fault) => {
                        self.findings.add(fault.to_string());
                        continue;
                    }
                };
                match Superblock::read(&bytes) {
                    Err(_) => self.findings.add(format!("{place}: the copy is damaged")),
                    Ok(copy) if index == 0 && copy != own => {
                        let (found, wanted) = (copy.root.generation, own.root.generation);
                        self.findings.add(format!("{place}: it has generation {found}, not {wanted}"));
                    }
                    Ok(copy) if is_foreign(&copy, index) => {
                        self.findings.add(format!("{place}: it is that of another medium"));
                    }
                    Ok(_) => {}
                }
            }
        }
    }

    /// Returns whether all nodes could be read.
    fn tree<D: DiskQueue>(&mut self, pool: &mut Pool<D>, visit: &mut Visit<'_>) -> bool {
        let seed = seed(pool.superblock.identity);
        let (pointer, level) = pool.tree.root();
        let mut steps = vec![Step { pointer, level, low: Key::MIN, high: None }];
        let mut is_whole = true;
        let name = pool.home_name();
        while let Some(Step { pointer, level, low, high }) = steps.pop() {
            let place = format!("{name}: node at {}", offset(pointer.block));
            if !self.seen.insert(pointer.block) {
                self.findings.add(format!("{place}: two pointers lead to it; {}", lost(low, high)));
                is_whole = false;
                continue;
            }
            let Some(home) = pool.media.first_mut() else { return is_whole };
            let node = match read_node(home, seed, pointer, level) {
                Ok(node) => node,
                Err(fault) => {
                    self.findings.add(format!("{}; {}", what_failed(&fault), lost(low, high)));
                    is_whole = false;
                    continue;
                }
            };
            self.findings.nodes += 1;
            let (first, last) = (node.key(0), node.count().checked_sub(1).and_then(|at| node.key(at)));
            let is_outside = first.is_some_and(|key| key < low)
                || last.is_some_and(|key| high.is_some_and(|high| key >= high));
            if is_outside {
                self.findings.add(format!("{place}: it has keys outside the bounds of its parent"));
            }
            if level == 0 {
                self.leaf(pool, &node, (pointer.block, &place), visit);
                continue;
            }
            for at in (0..node.count()).rev() {
                let bound = node.key(at).filter(|_| at > 0).unwrap_or(low);
                let next = node.key(at + 1).or(high);
                steps.push(Step { pointer: node.child(at), level: level - 1, low: bound, high: next });
            }
        }
        is_whole
    }

    /// The items of a leaf.
    fn leaf<D: DiskQueue>(
        &mut self,
        pool: &mut Pool<D>,
        leaf: &Node,
        (node, place): (u32, &str),
        visit: &mut Visit<'_>,
    ) {
        if leaf.count() == 0 && pool.tree.root().1 > 0 {
            self.findings.add(format!("{place}: a leaf without items"));
        }
        let mut found = Vec::new();
        let mut read = |run: Run| {
            check_run(&pool.media, run)?;
            pool.medium_mut(run.medium)?.read(run)
        };
        for at in 0..leaf.count() {
            let (Some(key), value) = (leaf.key(at), leaf.value(at)) else { continue };
            if key.is_own() {
                match OwnItem::read(key, value, &self.sizes, FIRST_BLOCK) {
                    Some(OwnItem::Free(run)) => self.owned.push((run, Owner::Free)),
                    Some(OwnItem::Chunk(run)) => self.owned.push((run, Owner::Chunk)),
                    None => self.findings.add(format!("{place}: item {key}: it cannot be one of a pool")),
                }
                continue;
            }
            self.findings.items += 1;
            found.clear();
            if let Err(cause) = visit(&mut Item { key, value, node, place, read: &mut read }, &mut found) {
                self.findings.add(format!("{place}: item {key}: {cause}"));
            }
            self.owned.extend(found.iter().map(|run| (*run, Owner::Item(key))));
        }
    }

    /// Every block has one owner.
    fn blocks<D: DiskQueue>(&mut self, pool: &Pool<D>, is_whole: bool) {
        self.owned.sort_unstable();
        let mut next: Vec<u32> = pool.media.iter().map(|_| FIRST_BLOCK).collect();
        let (mut before, mut chunks) = (None, BTreeMap::new());
        for (run, owner) in std::mem::take(&mut self.owned) {
            let blocks = u64::from(run.blocks);
            match owner {
                Owner::Free => self.findings.free += blocks,
                Owner::Chunk => self.findings.chunks += blocks,
                Owner::Item(_) => self.findings.used += blocks,
            }
            let Some((medium, next)) =
                pool.media.get(usize::from(run.medium)).zip(next.get_mut(usize::from(run.medium)))
            else {
                let finding = format!("{owner}: {run:?} is on none of {} media", pool.media.len());
                self.findings.add_of(&[owner], finding);
                continue;
            };
            let place = format!("{}: blocks {} to {}", medium.name, run.start, run.end());
            if run.start < FIRST_BLOCK || run.end() > medium.blocks || run.blocks == 0 {
                let finding = format!("{place}: of {owner}: they are not inside the medium");
                self.findings.add_of(&[owner], finding);
                continue;
            }
            if run.start < *next {
                let other = before.map_or_else(|| "the superblocks".to_owned(), |o: Owner| o.to_string());
                let owners: Vec<Owner> = before.into_iter().chain([owner]).collect();
                self.findings.add_of(&owners, format!("{place}: they belong to {owner} and to {other}"));
            } else if run.start > *next && is_whole {
                self.findings.add(format!("{}: blocks {next} to {}: lost", medium.name, run.start));
            }
            if run.end() > *next {
                (*next, before) = (run.end(), Some(owner));
            }
            if owner == Owner::Chunk {
                chunks.insert(run.start, run.end());
            }
        }
        for (medium, next) in pool.media.iter().zip(next) {
            if next < medium.blocks && is_whole {
                self.findings.add(format!("{}: blocks {next} to {}: lost", medium.name, medium.blocks));
            }
        }
        if is_whole {
            let is_stray =
                |block: &u32| chunks.range(..=block).next_back().is_none_or(|(_, end)| end <= block);
            let stray: BTreeSet<u32> = self.seen.iter().copied().filter(is_stray).collect();
            for block in stray {
                let name = pool.home_name();
                self.findings.add(format!("{name}: node at {}: it is in no chunk", offset(block)));
            }
        }
    }
}

/// A fault, without the advice to run a check.
fn what_failed(fault: &Fault) -> String {
    match fault {
        Fault::Damaged { medium, what, offset, cause } => {
            format!("{medium}: {what} at {offset} is damaged: {cause}")
        }
        other => other.to_string(),
    }
}

/// What is lost with a node that has the keys from `low` to `high`.
fn lost(low: Key, high: Option<Key>) -> String {
    match high {
        Some(high) => format!("lost: the items from {low} to {high}"),
        None => format!("lost: the items from {low} on"),
    }
}
