//! What inodes are to each other: names, parents, and whether the root leads to them.

use foldhash::fast::RandomState;
use hashbrown::HashMap;

use super::finding::{Finding, Findings};
use crate::base::{Entry, Inode};
use crate::inode::{InodeNumber, Kind};
use crate::items::FREED;
use crate::limits::BLOCK;

/// Whether the root leads to a directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Reached {
    #[default]
    Unknown,
    /// It is on the way that is being followed.
    Here,
    Yes,
    No,
}

/// What is known of an inode.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    /// What its item says; `None`: there was no item.
    kind: Option<Kind>,
    /// What the first entry says that came before the item.
    named_as: Option<Kind>,
    /// The value of its mark, if it has one.
    orphan: Option<u8>,
    reached: Reached,
    /// The block of its item, or else of what refers to it.
    node: u32,
    links: u32,
    names: u32,
    parent: u64,
    /// The directory and cookie of its first name.
    directory: u64,
    cookie: u64,
}

/// The module's header describes it.
#[derive(Debug, Default)]
pub(super) struct Table {
    inodes: HashMap<u64, Known, RandomState>,
}

impl Table {
    fn known(&mut self, inode: u64, node: u32) -> &mut Known {
        self.inodes.entry(inode).or_insert(Known { node, ..Known::default() })
    }

    /// An inode has the mark that it has no name.
    pub(super) fn mark(&mut self, inode: u64, mark: u8, node: u32) {
        self.known(inode, node).orphan = Some(mark);
    }

    /// The mark of an inode.
    pub(super) fn orphan(&self, inode: u64) -> Option<u8> {
        self.inodes.get(&inode).and_then(|known| known.orphan)
    }

    /// An inode's item. Returns what an entry said, if that is another kind.
    pub(super) fn add(&mut self, number: u64, inode: &Inode, node: u32) -> Option<Kind> {
        let known = self.known(number, node);
        known.kind = Some(inode.kind);
        known.node = node;
        known.links = inode.links;
        known.parent = inode.parent;
        known.named_as.filter(|named_as| *named_as != inode.kind)
    }

    /// An entry of `directory`.
    pub(super) fn name(&mut self, entry: &Entry, directory: u64, node: u32) -> Result<(), String> {
        let known = self.known(entry.inode.0, node);
        if known.names == 0 {
            (known.directory, known.cookie) = (directory, entry.cookie.0);
        }
        known.names = known.names.saturating_add(1);
        let other = known.kind.or(known.named_as).filter(|kind| *kind != entry.kind);
        known.named_as.get_or_insert(entry.kind);
        match other {
            Some(kind) => Err(format!("says {:?}, and it is a {kind:?}", entry.kind)),
            None => Ok(()),
        }
    }

    /// Directory and cookie of an inode's first name.
    pub(super) fn place(&self, inode: u64) -> Option<(u64, u64)> {
        self.inodes.get(&inode).filter(|known| known.names > 0).map(|known| (known.directory, known.cookie))
    }

    /// Inodes without a name.
    pub(super) fn nameless(&self) -> u64 {
        self.inodes.values().filter(|known| known.orphan.is_some() && known.kind.is_some()).count() as u64
    }

    /// Judges all inodes, after the walk.
    pub(super) fn judge(&mut self, home: &str, findings: &mut Findings) {
        let root = InodeNumber::ROOT.0;
        let mut numbers: Vec<u64> = self.inodes.keys().copied().collect();
        numbers.sort_unstable();
        if !numbers.is_empty() && self.inodes.get(&root).is_none_or(|root| root.kind.is_none()) {
            let finding = Finding::of_pool(home, "there is no root directory".to_owned());
            findings.add(finding.losing("all paths"));
        }
        for inode in numbers {
            let Some(known) = self.inodes.get(&inode).copied() else { continue };
            let mut add = |what: String, lost: &str| {
                let place = format!("{home}: node at {}", u64::from(known.node) * BLOCK as u64);
                findings.add(Finding { place, inode: Some(inode), what, ..Finding::default() }.losing(lost));
            };
            if let Some((what, lost)) = self.judge_names(inode, &known) {
                add(what, lost);
            }
            if known.kind == Some(Kind::Directory)
                && let Some((what, lost)) = self.judge_directory(inode, &known)
            {
                add(what, lost);
            }
        }
    }

    /// Names and links of an inode.
    fn judge_names(&self, inode: u64, known: &Known) -> Option<(String, &'static str)> {
        let Known { names, links, .. } = *known;
        let Some(kind) = known.kind else {
            return Some(match names {
                0 => ("it is marked as one without a name, and does not exist".to_owned(), "nothing"),
                _ => (format!("{names} entries name it, and it does not exist"), "the file or directory"),
            });
        };
        if inode == InodeNumber::ROOT.0 {
            let is_named = names > 0 || known.orphan.is_some();
            return is_named
                .then(|| ("the root has a name, or a mark that it has none".to_owned(), "nothing"));
        }
        match (names, known.orphan) {
            (0, None) => Some((
                format!("no entry names it, it has {links} links, and no mark says that it has no name"),
                "its name; its room stays in use",
            )),
            (1.., Some(_)) => Some((
                "entries name it, and a mark says that it has no name".to_owned(),
                "nothing yet; the next start frees it",
            )),
            (0, Some(mark)) => (mark != FREED && links != 0)
                .then(|| (format!("it has {links} links and no name"), "nothing; its links are wrong")),
            (_, None) if kind == Kind::Directory => {
                (names > 1).then(|| (format!("it is a directory with {names} names"), "nothing; one must go"))
            }
            (_, None) => (names != links).then(|| {
                (format!("it has {links} links and {names} names"), "nothing yet; removing names may free it")
            }),
        }
    }

    /// Parent of a directory, and the way to the root.
    fn judge_directory(&mut self, inode: u64, known: &Known) -> Option<(String, &'static str)> {
        let root = InodeNumber::ROOT.0;
        if inode == root {
            return (known.parent != root)
                .then(|| (format!("the root's parent is {}", known.parent), "nothing; .. is wrong"));
        }
        if known.names == 0 {
            return None;
        }
        if known.parent != known.directory {
            let what = format!("its parent is {}, and inode {} names it", known.parent, known.directory);
            return Some((what, "nothing; .. is wrong"));
        }
        if self.is_reached(inode) {
            return None;
        }
        Some(("the root does not lead to it: it is in a cycle, or below what is lost".to_owned(), "its path"))
    }

    /// Whether the names of directories lead from `inode` to the root.
    fn is_reached(&mut self, inode: u64) -> bool {
        let mut way = Vec::new();
        let mut at = inode;
        let reached = loop {
            if at == InodeNumber::ROOT.0 {
                break Reached::Yes;
            }
            let Some(known) = self.inodes.get_mut(&at) else { break Reached::No };
            match known.reached {
                Reached::Unknown if known.names > 0 && known.kind == Some(Kind::Directory) => {
                    known.reached = Reached::Here;
                    way.push(at);
                    at = known.directory;
                }
                Reached::Yes => break Reached::Yes,
                Reached::Unknown | Reached::Here | Reached::No => break Reached::No,
            }
        };
        for inode in way {
            if let Some(known) = self.inodes.get_mut(&inode) {
                known.reached = reached;
            }
        }
        reached == Reached::Yes
    }
}
