//! The items of one inode: each is judged by itself, and all of them by the inode's sums.

use std::collections::BTreeMap;

use super::data::Damage;
use super::finding::{Finding, shown};
use crate::base::Inode;
use crate::inode::{Kind, Timestamp};
use crate::items::{self, Extent, FIRST_PIECE, FREED, KEPT, PIECE};
use crate::limits::{BLOCK, MAX_FILE, MAX_LINKS, MAX_TARGET, MAX_XATTR_VALUE};
use crate::name::{NameKey, SLOTS};
use crate::pool::Item;
use crate::tree::Key;

const BLOCK_BYTES: u64 = BLOCK as u64;

/// What cannot be, of the attributes of an inode alone.
pub(super) fn implausible(inode: &Inode) -> Option<&'static str> {
    let is_time = |time: Timestamp| time.nanoseconds < 1_000_000_000;
    let is_device = matches!(inode.kind, Kind::CharacterDevice | Kind::BlockDevice);
    if ![inode.atime, inode.mtime, inode.ctime, inode.btime].into_iter().all(is_time) {
        return Some("a time has a second or more of nanoseconds");
    }
    if inode.device != 0 && !is_device {
        return Some("it is no device, and has a device number");
    }
    if inode.kind != Kind::Directory && inode.parent != 0 {
        return Some("it is no directory, and has a parent");
    }
    if inode.links > MAX_LINKS {
        return Some("it has more links than an inode may have");
    }
    match inode.kind {
        Kind::File if inode.size > MAX_FILE => Some("it is larger than the largest file"),
        Kind::Symlink if inode.size == 0 || inode.size > MAX_TARGET as u64 => {
            Some("it is a symbolic link whose target has no bytes, or more than one may have")
        }
        Kind::Fifo | Kind::Socket | Kind::CharacterDevice | Kind::BlockDevice if inode.size != 0 => {
            Some("it has a size, and cannot have content")
        }
        _ => None,
    }
}

/// A value whose pieces are being counted.
#[derive(Debug)]
struct Pieces {
    length: usize,
    found: usize,
}

/// The items of one inode, in the order of their keys.
#[derive(Debug)]
pub(super) struct Group {
    number: u64,
    inode: Option<Inode>,
    orphan: Option<u8>,
    /// Where the inode's item is, or else its first one.
    place: String,
    entries: u64,
    subdirectories: u64,
    /// The kind and hash of the last name, and the names that have it.
    same_hash: ((u8, u64), Vec<Box<[u8]>>),
    target: u64,
    target_pieces: u64,
    xattrs: BTreeMap<u64, Pieces>,
    blocks: u64,
    /// Behind the last extent.
    end: u64,
    /// What is damaged of its data.
    pub damage: Damage,
}

impl Group {
    pub(super) fn new(number: u64) -> Self {
        Self {
            number,
            inode: None,
            orphan: None,
            place: String::new(),
            entries: 0,
            subdirectories: 0,
            same_hash: ((0, 0), Vec::new()),
            target: 0,
            target_pieces: 0,
            xattrs: BTreeMap::new(),
            blocks: 0,
            end: 0,
            damage: Damage::default(),
        }
    }

    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// The inode's own item.
    pub(super) fn begin(&mut self, inode: Inode, orphan: Option<u8>, place: &str) {
        (self.inode, self.orphan, self.place) = (Some(inode), orphan, place.to_owned());
    }

    /// Bytes of the file, if it is one.
    pub(super) fn size(&self) -> Option<u64> {
        self.inode.filter(|inode| inode.kind == Kind::File).map(|inode| inode.size)
    }

    /// Items of this kind need an inode of that kind.
    fn require(&mut self, kind: Option<Kind>, place: &str) -> Result<(), String> {
        match self.inode {
            None if self.place.is_empty() => {
                self.place = place.to_owned();
                Ok(())
            }
            Some(inode) if kind.is_some_and(|kind| kind != inode.kind) => {
                Err(format!("it is a {:?}, and has an item of another kind", inode.kind))
            }
            _ => Ok(()),
        }
    }

    pub(super) fn target(&mut self, item: &Item<'_>) -> Result<(), String> {
        self.require(Some(Kind::Symlink), item.place)?;
        let (at, length) = (item.key.offset, item.value.len() as u64);
        let is_next = at == self.target_pieces && self.target == at.saturating_mul(PIECE as u64);
        self.target_pieces = at.saturating_add(1);
        self.target = self.target.saturating_add(length);
        if !is_next || item.value.is_empty() || item.value.len() > PIECE {
            return Err(format!(
                "piece {at} of its target has {length} bytes and follows {} pieces",
                self.target_pieces
            ));
        }
        if item.value.contains(&0) { Err("its target has a byte 0".to_owned()) } else { Ok(()) }
    }

    /// An entry, whose kind may be unknown.
    pub(super) fn count_entry(&mut self, kind: Option<Kind>) {
        self.entries += 1;
        self.subdirectories += u64::from(kind == Some(Kind::Directory));
    }

    /// A name is at its place, and only there.
    pub(super) fn place(&mut self, name_key: NameKey, key: Key, name: &[u8]) -> Result<(), String> {
        let first = name_key.cookie(name).0;
        if !(first..first.saturating_add(SLOTS)).contains(&key.offset) {
            return Err(format!("is at {}, and its hash is {first}", key.offset));
        }
        let (hash, names) = &mut self.same_hash;
        if *hash != (key.kind, first) {
            (*hash, *names) = ((key.kind, first), Vec::new());
        }
        if names.iter().any(|other| **other == *name) {
            return Err("is there twice".to_owned());
        }
        names.push(name.into());
        Ok(())
    }

    pub(super) fn xattr(&mut self, name_key: NameKey, item: &Item<'_>) -> Result<(), String> {
        self.require(None, item.place)?;
        let read = items::read_xattr(item.value);
        let Some((name, length, first)) = read.filter(|(_, length, _)| *length <= MAX_XATTR_VALUE) else {
            return Err(format!("the extended attribute at {} cannot be read", item.key.offset));
        };
        self.xattrs.insert(item.key.offset, Pieces { length, found: first.len() });
        let placed = self.place(name_key, item.key, name);
        placed.map_err(|cause| format!("the extended attribute {:?} {cause}", shown(name)))
    }

    /// A further piece of a value: all pieces but the last are whole.
    pub(super) fn xattr_piece(&mut self, item: &Item<'_>) -> Result<(), String> {
        self.require(None, item.place)?;
        let index = usize::from(item.key.kind - items::XATTR_MORE);
        let at = item.key.offset;
        let Some(pieces) = self.xattrs.get_mut(&at) else {
            return Err(format!("piece {} of an extended attribute at {at} that is not there", index + 1));
        };
        let expected = pieces.length.saturating_sub(pieces.found).min(PIECE);
        if pieces.found != FIRST_PIECE + index * PIECE || item.value.len() != expected || expected == 0 {
            let length = item.value.len();
            return Err(format!("piece {} of the extended attribute at {at} has {length} bytes", index + 1));
        }
        pieces.found += expected;
        Ok(())
    }

    pub(super) fn extent(&mut self, extent: &Extent) -> Result<(), String> {
        let first = extent.first;
        self.blocks = self.blocks.saturating_add(u64::from(extent.run.blocks));
        let before = self.end;
        self.end = self.end.max(extent.end());
        if first < before {
            return Err(format!(
                "its extent at block {first} begins before block {before}, where another ends"
            ));
        }
        if extent.end() > MAX_FILE / BLOCK_BYTES {
            return Err(format!("its extent at block {first} is behind the largest file"));
        }
        let Some(inode) = self.inode else { return Ok(()) };
        if inode.kind != Kind::File {
            return Err(format!("it is a {:?}, and has an extent", inode.kind));
        }
        if !extent.is_unwritten() && extent.end() > inode.size.div_ceil(BLOCK_BYTES) {
            return Err(format!("its extent at block {first} has data behind the end of the file"));
        }
        Ok(())
    }

    /// Judges the sums of an inode.
    pub(super) fn end(self) -> Vec<Finding> {
        let Some(inode) = self.inode else {
            let what = "it has items, and its attributes are not there".to_owned();
            return vec![self.finding(what, "it: what is left cannot be reached")];
        };
        let mut found = Vec::new();
        if self.blocks != inode.blocks {
            let (is, says) = (self.blocks, inode.blocks);
            let lost =
                if is < says { format!("{} blocks of its data", says - is) } else { "nothing".to_owned() };
            found.push(self.finding(format!("it says {says} blocks, and its extents have {is}"), &lost));
        }
        // Of a directory that is being freed, nothing is known any more.
        let is_freed = self.orphan == Some(FREED);
        if inode.kind == Kind::Directory && !is_freed {
            if self.entries != inode.size {
                let (is, says) = (self.entries, inode.size);
                let lost = if is < says { format!("{} names", says - is) } else { "nothing".to_owned() };
                found.push(self.finding(format!("it says {says} entries, and has {is}"), &lost));
            }
            let expected = if self.orphan == Some(KEPT) { 0 } else { self.subdirectories.saturating_add(2) };
            if u64::from(inode.links) != expected {
                let what = format!("it has {} links, and should have {expected}", inode.links);
                found.push(self.finding(what, "nothing; its links are wrong"));
            }
        } else if inode.kind != Kind::Directory && self.entries > 0 {
            let what = format!("it is a {:?}, and has {} entries", inode.kind, self.entries);
            found.push(self.finding(what, "these names"));
        }
        if inode.kind == Kind::Symlink && self.target != inode.size {
            let what = format!("its target has {} bytes, and it says {}", self.target, inode.size);
            found.push(self.finding(what, "the link's target"));
        }
        for (at, pieces) in self.xattrs.iter().filter(|(_, pieces)| pieces.found != pieces.length) {
            let (is, says) = (pieces.found, pieces.length);
            let what = format!("the extended attribute at {at} has {is} of {says} bytes");
            found.push(self.finding(what, "the attribute's value"));
        }
        found
    }

    fn finding(&self, what: String, lost: &str) -> Finding {
        Finding { place: self.place.clone(), inode: Some(self.number), what, lost: lost.to_owned() }
    }
}
