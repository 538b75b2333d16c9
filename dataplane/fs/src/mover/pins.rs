//! Which files belong on which class of media, because someone said so.
//!
//! 1. The extended attribute [`PIN`](crate::pin::PIN) of a file has the name of a class: `nvm`,
//!    `ssd` or `hdd`. If the last medium of that class has left, the file counts as not pinned.
//! 2. That of a directory counts for all files below it that have none, and no nearer directory
//!    with one, at the time at which the mover looks. The hand meets the attributes in the order of
//!    inodes. At the end of a round, the directories that it found are walked, and the next round
//!    knows the files ([`Pins::walk`]).
//! 3. A file with names in several such directories belongs to the fastest one's class.
//!
//! Nothing is stored: after a restart the first round finds all pins again.

use hashbrown::{HashMap, HashSet};

use crate::digested::{Digested, Store};
use crate::error::Fault;
use crate::inode::{InodeNumber, Kind};
use crate::items;
use crate::name::Cookie;
use crate::pool::Class;

/// Files and directories that are pinned by a directory above, at most. 32 MiB of memory; further
/// ones are treated as if they were not pinned.
const MOST: usize = 1 << 20;

type Map<V> = HashMap<InodeNumber, V, foldhash::fast::RandomState>;

/// See the module's account.
#[derive(Debug, Default)]
pub(super) struct Pins {
    /// Files by what a directory above says.
    inherited: Map<Class>,
    /// What the last walk is finding.
    next: Map<Class>,
    /// Directories with an attribute of their own, as the round found them.
    directories: Map<Class>,
    /// Directories to walk, with the cookie to go on at.
    queue: Vec<(InodeNumber, Class, Cookie)>,
    walked: HashSet<InodeNumber, foldhash::fast::RandomState>,
}

impl Pins {
    /// What the directories above a file say.
    pub(super) fn inherited(&self, file: InodeNumber) -> Option<Class> {
        self.inherited.get(&file).copied()
    }

    /// Whether a directory pins files.
    pub(super) fn has_directories(&self) -> bool {
        !self.directories.is_empty() || !self.inherited.is_empty()
    }

    /// A round begins.
    pub(super) fn begin_round(&mut self) {
        self.directories.clear();
    }

    /// The hand met a directory with a pin.
    pub(super) fn add_directory(&mut self, directory: InodeNumber, class: Class) {
        self.directories.insert(directory, class);
    }

    /// The round is over: the directories that it found are to be walked.
    pub(super) fn end_round(&mut self) {
        self.next.clear();
        self.walked.clear();
        self.queue = self.directories.iter().map(|(inode, class)| (*inode, *class, Cookie(0))).collect();
        // Fastest last, so that it is walked first.
        self.queue.sort_unstable_by_key(|(inode, class, _)| (std::cmp::Reverse(*class), *inode));
        if self.queue.is_empty() {
            self.inherited.clear();
        }
    }

    pub(super) fn is_walking(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Walks over `most` entries. Returns whether it is done and what it found differs from what
    /// was known.
    pub(super) fn walk<S: Store>(&mut self, base: &mut Digested<S>, most: usize) -> Result<bool, Fault> {
        for _ in 0..most {
            let Some((directory, class, cookie)) = self.queue.last().copied() else { break };
            let from = items::entry_key(directory, cookie);
            let found = base.store.next(from)?;
            let Some((key, value)) =
                found.filter(|(key, _)| key.object == directory.0 && key.kind == items::ENTRY)
            else {
                self.queue.pop();
                continue;
            };
            if let Some((_, _, next)) = self.queue.last_mut() {
                *next = Cookie(key.offset + 1);
            }
            let Some((entry, _)) = items::read_entry(Cookie(key.offset), &value) else { continue };
            if self.next.len() + self.walked.len() >= MOST {
                continue;
            }
            match entry.kind {
                Kind::Directory
                    if !self.directories.contains_key(&entry.inode) && self.walked.insert(entry.inode) =>
                {
                    self.queue.push((entry.inode, class, Cookie(0)));
                }
                Kind::File => {
                    let known = self.next.entry(entry.inode).or_insert(class);
                    *known = class.min(*known);
                }
                _ => {}
            }
        }
        if self.is_walking() || self.next == self.inherited {
            return Ok(false);
        }
        self.inherited = std::mem::take(&mut self.next);
        Ok(true)
    }
}
