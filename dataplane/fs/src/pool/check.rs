//! Verifying a whole pool.
//!
//! 1. Every node is read from its medium, past the cache: its checksum, its generation, its level,
//!    the order of its keys, and that they are inside the bounds of its parent.
//! 2. Every block belongs to one owner: superblocks, a free run, a chunk of nodes, or an item of
//!    the file system, whose runs the caller reports.
//! 3. Every node is in a chunk, and no two pointers lead to it. So the walk ends.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use sietch_disk::DiskQueue;

use super::limits::FIRST_BLOCK;
use super::medium::offset;
use super::own_items::OwnItem;
use super::superblock::{Superblock, copies};
use super::{Pool, Run};
use crate::error::Fault;
use crate::tree::{Key, Pointer, Store, read_node, seed};

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
}

impl Findings {
    fn add(&mut self, finding: String) {
        if self.findings.len() < MOST {
            self.findings.push(finding);
        }
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

/// Verifies the whole pool, which must have no changes to commit. `runs` gets each item of the file
/// system in the order of the keys, and reports the runs that it owns.
///
/// # Errors
/// The pool is stopped, or has changes. What is wrong on the media is a finding.
pub fn check<D: DiskQueue>(pool: &mut Pool<D>, runs: &mut Runs<'_>) -> Result<Findings, Fault> {
    pool.check_going()?;
    if pool.tree.dirty() > 0 {
        let cause = "a pool with changes cannot be checked; commit first".to_owned();
        return Err(Fault::Refused { medium: pool.home_name(), cause });
    }
    let mut walk = Walk { findings: Findings::default(), owned: Vec::new(), seen: HashSet::new() };
    walk.superblocks(pool);
    let is_whole = walk.tree(pool, runs);
    walk.blocks(pool, is_whole);
    Ok(walk.findings)
}

struct Walk {
    findings: Findings,
    owned: Vec<(Run, Owner)>,
    seen: HashSet<u32>,
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
        for (index, medium) in pool.media.iter_mut().enumerate() {
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
                    Ok(copy) if copy.identity != own.identity || usize::from(copy.index) != index => {
                        self.findings.add(format!("{place}: it is that of another medium"));
                    }
                    Ok(_) => {}
                }
            }
        }
    }

    /// Returns whether all nodes could be read.
    fn tree<D: DiskQueue>(&mut self, pool: &mut Pool<D>, runs: &mut Runs<'_>) -> bool {
        let seed = seed(pool.superblock.identity);
        let sizes: Vec<u32> = pool.media.iter().map(|medium| medium.blocks).collect();
        let (pointer, level) = pool.tree.root();
        let mut steps = vec![Step { pointer, level, low: Key::MIN, high: None }];
        let (mut is_whole, mut found) = (true, Vec::new());
        let Some(home) = pool.media.first_mut() else { return true };
        let name = home.name.clone();
        while let Some(Step { pointer, level, low, high }) = steps.pop() {
            let place = format!("{name}: node at {}", offset(pointer.block));
            if !self.seen.insert(pointer.block) {
                self.findings.add(format!("{place}: two pointers lead to it"));
                is_whole = false;
                continue;
            }
            let node = match read_node(home, seed, pointer, level) {
                Ok(node) => node,
                Err(fault) => {
                    self.findings.add(fault.to_string());
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
            if level > 0 {
                for at in (0..node.count()).rev() {
                    let bound = node.key(at).filter(|_| at > 0).unwrap_or(low);
                    let next = node.key(at + 1).or(high);
                    steps.push(Step { pointer: node.child(at), level: level - 1, low: bound, high: next });
                }
                continue;
            }
            if node.count() == 0 && pool.tree.root().1 > 0 {
                self.findings.add(format!("{place}: a leaf without items"));
            }
            for at in 0..node.count() {
                let (Some(key), value) = (node.key(at), node.value(at)) else { continue };
                if key.is_own() {
                    match OwnItem::read(key, value, &sizes, FIRST_BLOCK) {
                        Some(OwnItem::Free(run)) => self.owned.push((run, Owner::Free)),
                        Some(OwnItem::Chunk(run)) => self.owned.push((run, Owner::Chunk)),
                        None => self.findings.add(format!("{place}: item {key}: it cannot be one of a pool")),
                    }
                    continue;
                }
                self.findings.items += 1;
                found.clear();
                if let Err(cause) = runs(key, value, &mut found) {
                    self.findings.add(format!("{place}: item {key}: {cause}"));
                }
                self.owned.extend(found.iter().map(|run| (*run, Owner::Item(key))));
            }
        }
        is_whole
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
                self.findings.add(format!("{owner}: {run:?} is on none of {} media", pool.media.len()));
                continue;
            };
            let place = format!("{}: blocks {} to {}", medium.name, run.start, run.end());
            if run.start < FIRST_BLOCK || run.end() > medium.blocks || run.blocks == 0 {
                self.findings.add(format!("{place}: of {owner}: they are not inside the medium"));
                continue;
            }
            if run.start < *next {
                let other = before.map_or_else(|| "the superblocks".to_owned(), |o: Owner| o.to_string());
                self.findings.add(format!("{place}: they belong to {owner} and to {other}"));
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
