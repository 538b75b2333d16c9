//! What logs add to the digested state: the net effect of the records that are not digested.
//!
//! 1. [`Overlay`] has, for each inode that a record touched, all attributes, and what changed of
//!    its data ([`ranges`]), entries, extended attributes. Everything else is looked up in the
//!    [`Base`] below it. So a lookup costs one table access more than in the base.
//! 2. [`apply`] judges a change, and adds it. The client and the digest share this code: a change
//!    that the client could make is one that the digest accepts.
//! 3. An entry that is removed stays as a mark at its cookie, which hides the entry of the base. A
//!    freed inode stays as a mark too, unless the base never had it.
//! 4. The client drops what was digested ([`Overlay::expire`]). The digest's overlay lives for one
//!    batch: its content is the net effect, which `digest` writes to the pool.
//!
//! What it must never do: change anything of a change that is refused.

pub(crate) mod apply;
pub(crate) mod ranges;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};

use hashbrown::HashMap;

use crate::ascent::MAX_DEPTH;
use crate::base::{Base, Entry, Inode};
use crate::error::Fault;
use crate::file_system::DirectoryEntry;
use crate::inode::{InodeNumber, Kind};
use crate::items::{PIECE, xattr_items};
use crate::name::{Cookie, SLOTS};
use ranges::Ranges;

/// An entry that was added, or the mark of one that was removed.
#[derive(Clone, Debug)]
pub(crate) struct Logged {
    pub name: Box<[u8]>,
    /// The inode and its kind; `None`: removed.
    pub target: Option<(InodeNumber, Kind)>,
    /// The base had no entry here when the first record of this place was made.
    is_new: bool,
    logged: u64,
}

/// A value that was set, or the mark of one that was removed.
#[derive(Clone, Debug)]
pub(crate) struct Value {
    pub value: Option<Box<[u8]>>,
    logged: u64,
}

/// An inode that records touched.
#[derive(Clone, Debug)]
pub(crate) struct State {
    /// All its attributes; `None`: freed. `blocks` is the base's.
    pub inode: Option<Inode>,
    /// The base does not have it.
    pub is_new: bool,
    pub ranges: Ranges,
    pub entries: BTreeMap<Cookie, Logged>,
    /// The place that each record set, in the order of records.
    set: VecDeque<(u64, Cookie)>,
    /// By the first cookie that the name may have, and the name.
    pub xattrs: BTreeMap<(Cookie, Box<[u8]>), Value>,
    /// Target of a symbolic link that is new.
    pub target: Option<Box<[u8]>>,
    /// Owner before the first record that touched it.
    owner: u32,
    /// Position of the last record that touched it.
    logged: u64,
}

impl State {
    fn of(inode: Inode, is_new: bool) -> Self {
        Self {
            inode: Some(inode),
            is_new,
            ranges: Ranges::default(),
            entries: BTreeMap::new(),
            set: VecDeque::new(),
            xattrs: BTreeMap::new(),
            target: None,
            owner: inode.uid,
            logged: 0,
        }
    }

    /// Adds an entry, or the mark of one that was removed.
    fn set_entry(&mut self, cookie: Cookie, entry: Logged) {
        self.set.push_back((entry.logged, cookie));
        self.entries.insert(cookie, entry);
    }

    /// Drops what was logged before `position`. That takes time for what is dropped, not for what
    /// stays: a directory may have more entries than a step drops.
    fn expire(&mut self, position: u64) {
        self.is_new = false;
        self.target = None;
        self.ranges.expire(position);
        while let Some((_, cookie)) = self.set.pop_front_if(|(logged, _)| *logged < position) {
            // A later record may have set it again.
            if self.entries.get(&cookie).is_some_and(|entry| entry.logged < position) {
                self.entries.remove(&cookie);
            }
        }
        self.xattrs.retain(|_, value| value.logged >= position);
    }

    /// The owners whose usage it may change: that before, and that now.
    pub(crate) fn owners(&self) -> impl Iterator<Item = u32> {
        let before = (!self.is_new).then_some(self.owner);
        before.into_iter().chain(self.inode.map(|inode| inode.uid))
    }

    /// Changes that would have the same effect, at least 1. A value counts its items: each can need
    /// a leaf. The entry of a new inode counts at its directory.
    fn effects(&self) -> usize {
        let is_effect = |is_there: bool| is_there || !self.is_new;
        let created = usize::from(self.is_new || self.inode.is_none());
        let entries = self.entries.values().filter(|entry| is_effect(entry.target.is_some())).count();
        let xattrs = self.xattrs.values().filter(|value| is_effect(value.value.is_some()));
        let xattrs: usize =
            xattrs.map(|value| xattr_items(value.value.as_ref().map_or(0, |value| value.len()))).sum();
        let target = self.target.as_ref().map_or(0, |target| target.len().div_ceil(PIECE));
        (created + entries + xattrs + target + self.ranges.pieces().count()).max(1)
    }

    /// Records that are needed for the same effect, if a name needs one of its own.
    fn needed(&self) -> usize {
        let made = usize::from(self.is_new || self.inode.is_none());
        let entries = self.entries.values().filter(|entry| entry.target.is_some() || !entry.is_new).count();
        let is_effect = |value: &&Value| value.value.is_some() || !self.is_new;
        let xattrs = self.xattrs.values().filter(is_effect).count();
        // Where nothing else is left, attributes have changed.
        (made + entries + xattrs + self.ranges.records()).max(1)
    }
}

/// The module's header describes it.
#[derive(Debug, Default)]
pub(crate) struct Overlay {
    inodes: HashMap<InodeNumber, State, foldhash::fast::RandomState>,
    /// What records touched, in their order: the order in which to expire.
    touched: VecDeque<Touched>,
}

/// Records that follow each other and touched the same inode: those of a file that is written
/// without anything in between are one.
#[derive(Debug)]
struct Touched {
    inode: InodeNumber,
    /// Positions of the first and the last of them.
    first: u64,
    last: u64,
}

/// What a listing finds.
pub(crate) enum Listed {
    /// The next entry.
    Entry(DirectoryEntry),
    /// None is before this cookie: so many names were passed that were removed.
    NotBefore(Cookie),
    /// There are no more.
    End,
}

/// The place for a name that a directory does not have.
pub(crate) enum Vacancy {
    /// Here.
    At(Cookie),
    /// The directory has the name.
    Taken(Entry),
    /// All slots of the name's hash are taken.
    Full,
}

impl Overlay {
    /// What records added to an inode.
    pub(crate) fn state(&self, inode: InodeNumber) -> Option<&State> {
        self.inodes.get(&inode)
    }

    /// Records that would have the same effect: each inode, entry, attribute and range of data that
    /// differs from the base.
    pub(crate) fn effects(&self) -> u64 {
        let states = self.inodes.values().filter(|state| state.inode.is_some() || !state.is_new);
        states.map(State::effects).sum::<usize>() as u64
    }

    /// Records that are needed for the same effect: what they create has a name in the same record,
    /// and data in a row are one write, up to the most that a record has.
    pub(crate) fn needed(&self) -> u64 {
        let states = || self.inodes.values().filter(|state| state.inode.is_some() || !state.is_new);
        let named = states().filter(|state| state.is_new && state.inode.is_some_and(|inode| inode.links > 0));
        // The name of each new inode was counted at its directory.
        let needed = states().map(State::needed).sum::<usize>().saturating_sub(named.count());
        needed as u64
    }

    /// Everything, in the order of inodes.
    pub(crate) fn into_states(self) -> Vec<(InodeNumber, State)> {
        let mut states: Vec<_> = self.inodes.into_iter().collect();
        states.sort_unstable_by_key(|(inode, _)| *inode);
        states
    }

    /// An inode as it is now.
    pub(crate) fn inode(&self, base: &mut impl Base, inode: InodeNumber) -> Result<Option<Inode>, Fault> {
        match self.inodes.get(&inode) {
            Some(state) => Ok(state.inode),
            None => base.inode(inode),
        }
    }

    /// The entry with this name.
    pub(crate) fn entry(
        &self,
        base: &mut impl Base,
        directory: InodeNumber,
        name: &[u8],
    ) -> Result<Option<Entry>, Fault> {
        let Some(state) = self.inodes.get(&directory) else { return base.entry(directory, name) };
        let first = base.name_key().cookie(name);
        for (cookie, logged) in state.entries.range(first..Cookie(first.0 + SLOTS)) {
            if let Some((inode, kind)) = logged.target
                && *logged.name == *name
            {
                return Ok(Some(Entry { cookie: *cookie, inode, kind }));
            }
        }
        if state.is_new {
            return Ok(None);
        }
        // What is at the same place in the overlay hides the base's.
        Ok(base.entry(directory, name)?.filter(|entry| !state.entries.contains_key(&entry.cookie)))
    }

    /// The first entry whose cookie is at least `from`. It passes about `removed` names that were
    /// removed, which is less by them.
    pub(crate) fn entry_from(
        &self,
        base: &mut impl Base,
        directory: InodeNumber,
        from: Cookie,
        removed: &mut u64,
    ) -> Result<Listed, Fault> {
        let found = |entry: Option<DirectoryEntry>| entry.map_or(Listed::End, Listed::Entry);
        let Some(state) = self.inodes.get(&directory) else {
            return base.entry_from(directory, from).map(found);
        };
        let mut from = from;
        loop {
            let below = if state.is_new { None } else { base.entry_from(directory, from)? };
            let Some((cookie, logged)) = state.entries.range(from..).next() else { return Ok(found(below)) };
            if below.as_ref().is_some_and(|below| below.cookie < *cookie) {
                return Ok(found(below));
            }
            if let Some((inode, kind)) = logged.target {
                let name = logged.name.clone();
                return Ok(Listed::Entry(DirectoryEntry { cookie: *cookie, name, inode, kind }));
            }
            from = Cookie(cookie.0 + 1);
            if *removed == 0 {
                return Ok(Listed::NotBefore(from));
            }
            *removed -= 1;
        }
    }

    /// Where an entry with this name would be.
    pub(crate) fn vacancy(
        &self,
        base: &mut impl Base,
        directory: InodeNumber,
        name: &[u8],
    ) -> Result<Vacancy, Fault> {
        if let Some(entry) = self.entry(base, directory, name)? {
            return Ok(Vacancy::Taken(entry));
        }
        let first = base.name_key().cookie(name);
        for cookie in (first.0..first.0 + SLOTS).map(Cookie) {
            if !self.is_taken(base, directory, cookie)? {
                return Ok(Vacancy::At(cookie));
            }
        }
        Ok(Vacancy::Full)
    }

    /// Whether an entry is at this place.
    fn is_taken(&self, base: &mut impl Base, directory: InodeNumber, cookie: Cookie) -> Result<bool, Fault> {
        let state = self.inodes.get(&directory);
        if let Some(logged) = state.and_then(|state| state.entries.get(&cookie)) {
            return Ok(logged.target.is_some());
        }
        let has_base = state.is_none_or(|state| !state.is_new);
        Ok(has_base && base.entry_from(directory, cookie)?.is_some_and(|entry| entry.cookie == cookie))
    }

    /// Whether `directory` is `above`, or somewhere below it; `None` where the way to the root is
    /// broken, or longer than any that is followed.
    pub(crate) fn is_below(
        &self,
        base: &mut impl Base,
        directory: InodeNumber,
        above: InodeNumber,
    ) -> Result<Option<bool>, Fault> {
        let mut at = directory;
        for _ in 0..MAX_DEPTH {
            if at == above || at == InodeNumber::ROOT {
                return Ok(Some(at == above));
            }
            let Some(found) = self.inode(base, at)? else { return Ok(None) };
            at = InodeNumber(found.parent);
        }
        Ok(None)
    }

    /// The value of an extended attribute.
    pub(crate) fn xattr(
        &self,
        base: &mut impl Base,
        inode: InodeNumber,
        name: &[u8],
    ) -> Result<Option<Vec<u8>>, Fault> {
        if let Some(state) = self.inodes.get(&inode) {
            if !state.xattrs.is_empty()
                && let Some(logged) = state.xattrs.get(&(base.name_key().cookie(name), name.into()))
            {
                return Ok(logged.value.as_ref().map(|value| value.to_vec()));
            }
            if state.is_new {
                return Ok(None);
            }
        }
        base.xattr(inode, name)
    }

    /// Passes names of extended attributes on, in the order of their hashes from `from` on. It
    /// looks at about `most`, those that were removed too. Returns where it goes on, if there are
    /// more.
    pub(crate) fn xattrs_from(
        &self,
        base: &mut impl Base,
        inode: InodeNumber,
        from: Cookie,
        most: u64,
        take: &mut dyn FnMut(Box<[u8]>),
    ) -> Result<Option<Cookie>, Fault> {
        let none = BTreeMap::new();
        let state = self.inodes.get(&inode);
        let logged = state.map_or(&none, |state| &state.xattrs);
        let has_base = state.is_none_or(|state| !state.is_new);
        let (mut from, mut left) = (from, most);
        let mut below = if has_base { base.xattr_from(inode, from)? } else { None };
        loop {
            let above = logged.range((from, Box::default())..).next().map(|((cookie, _), _)| *cookie);
            let Some(next) = below.iter().map(|(cookie, _)| *cookie).chain(above).min() else {
                return Ok(None);
            };
            // Names of one hash are in one step: base and overlay change between steps.
            let first = Cookie(next.0 - next.0 % SLOTS);
            if left == 0 {
                return Ok(Some(first));
            }
            from = Cookie(first.0 + SLOTS);
            while let Some((cookie, name)) = below.take_if(|(cookie, _)| *cookie < from) {
                left = left.saturating_sub(1);
                below = base.xattr_from(inode, Cookie(cookie.0 + 1))?;
                let key = (first, name);
                if !logged.contains_key(&key) {
                    take(key.1);
                }
            }
            for ((_, name), value) in logged.range((first, Box::default())..(from, Box::default())) {
                left = left.saturating_sub(1);
                if value.value.is_some() {
                    take(name.clone());
                }
            }
        }
    }

    /// The target of a symbolic link.
    pub(crate) fn target(&self, base: &mut impl Base, inode: InodeNumber) -> Result<Vec<u8>, Fault> {
        match self.inodes.get(&inode).and_then(|state| state.target.as_ref()) {
            Some(target) => Ok(target.to_vec()),
            None => base.target(inode),
        }
    }

    /// The record at `position` touched an inode.
    fn touched(&mut self, inode: InodeNumber, position: u64) {
        match self.touched.back_mut() {
            Some(touched) if touched.inode == inode => touched.last = position,
            _ => self.touched.push_back(Touched { inode, first: position, last: position }),
        }
    }

    /// Drops what was logged before `position`: the base has it now. The base may have more: what
    /// stays here says the same of that as the base.
    pub(crate) fn expire(&mut self, position: u64) {
        let mut inodes = Vec::new();
        while let Some(touched) = self.touched.front_mut()
            && touched.first < position
        {
            inodes.push(touched.inode);
            if touched.last >= position {
                touched.first = position;
                break;
            }
            self.touched.pop_front();
        }
        inodes.sort_unstable();
        inodes.dedup();
        for inode in inodes {
            let Some(state) = self.inodes.get_mut(&inode) else { continue };
            if state.logged < position {
                self.inodes.remove(&inode);
                continue;
            }
            state.expire(position);
        }
    }
}
