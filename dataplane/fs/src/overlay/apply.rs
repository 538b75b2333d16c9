//! Judges a change and adds it to an overlay.
//!
//! 1. A change is judged by what is there now: each check comes before the first effect.
//! 2. A change whose inode says that it was applied already ([`Inode::applied`]) is skipped. A log
//!    that is digested again after a crash therefore has no effect twice.
//! 3. The record's time becomes the ctime of each inode that is touched, and the mtime where
//!    content changes.

use std::ops::Range;

use crate::base::{Base, Data, Inode};
use crate::change::{Change, NewAttributes, Place, Record};
use crate::error::Fault;
use crate::inode::{InodeNumber, Kind, MODE_BITS};
use crate::limits::{BLOCK, MAX_FILE, MAX_LINKS, MAX_TARGET, MAX_XATTR_NAME, MAX_XATTR_VALUE};
use crate::name::{self, SLOTS};
use crate::overlay::ranges::Source;
use crate::overlay::{Logged, Overlay, State, Value};
use crate::quota;

/// Why a change was not added.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// It contradicts what is there.
    Invalid(&'static str),
    /// What is there could not be read.
    Fault(Fault),
}

impl From<Fault> for Refusal {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

/// Whether a change had an effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Applied {
    /// It had.
    Now,
    /// It was applied before.
    Before,
}

const BLOCK_BYTES: u64 = BLOCK as u64;

/// Adds the change of `record` of the log `log`.
pub(crate) fn apply(
    overlay: &mut Overlay,
    base: &mut impl Base,
    log: u32,
    record: &Record<'_>,
) -> Result<Applied, Refusal> {
    judge(Work { overlay, base, log, record, trusts_ways: false })
}

/// As [`apply`], where the way from each directory to the root was followed before.
pub(crate) fn apply_own(
    overlay: &mut Overlay,
    base: &mut impl Base,
    log: u32,
    record: &Record<'_>,
) -> Result<Applied, Refusal> {
    judge(Work { overlay, base, log, record, trusts_ways: true })
}

fn judge(mut work: Work<'_, '_, impl Base>) -> Result<Applied, Refusal> {
    let (log, record) = (work.log, work.record);
    let first = match record.change {
        Change::Create { inode, .. }
        | Change::Link { inode, .. }
        | Change::Unlink { inode, .. }
        | Change::Rename { inode, .. }
        | Change::Write { inode, .. }
        | Change::Truncate { inode, .. }
        | Change::Reserve { inode, .. }
        | Change::Punch { inode, .. }
        | Change::SetAttributes { inode, .. }
        | Change::SetXattr { inode, .. }
        | Change::RemoveXattr { inode, .. }
        | Change::Free { inode } => inode,
    };
    let found = work.overlay.inode(work.base, first)?;
    if found.is_some_and(|inode| inode.applied.0 == log && inode.applied.1 >= record.sequence) {
        return Ok(Applied::Before);
    }
    match record.change {
        Change::Create { .. } => work.create(found)?,
        Change::Link { inode, place } => work.link(inode, place, found)?,
        Change::Unlink { inode, place } => work.unlink(inode, place)?,
        Change::Rename { inode, from, to, replaced, exchange } => {
            work.rename(inode, from, to, replaced, exchange)?;
        }
        Change::SetAttributes { inode, attributes } => work.set_attributes(inode, &attributes, found)?,
        Change::SetXattr { inode, name, length } => {
            let value = record.data.1;
            require(
                value.len() == length as usize && value.len() <= MAX_XATTR_VALUE,
                "a value of another length",
            )?;
            work.set_xattr(inode, name, Some(value), found)?;
        }
        Change::RemoveXattr { inode, name } => work.set_xattr(inode, name, None, found)?,
        Change::Free { inode } => work.free(inode, found)?,
        Change::Write { .. } | Change::Truncate { .. } | Change::Reserve { .. } | Change::Punch { .. } => {
            work.data(first, found)?;
        }
    }
    Ok(Applied::Now)
}

fn require(condition: bool, cause: &'static str) -> Result<(), Refusal> {
    if condition { Ok(()) } else { Err(Refusal::Invalid(cause)) }
}

struct Work<'a, 'r, B> {
    overlay: &'a mut Overlay,
    base: &'a mut B,
    log: u32,
    record: &'a Record<'r>,
    /// No directory is moved into itself.
    trusts_ways: bool,
}

/// Whether a change also touches an inode's content.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Touch {
    Attributes,
    Content,
}

impl<B: Base> Work<'_, '_, B> {
    /// An inode that must be there.
    fn existing(&mut self, inode: InodeNumber) -> Result<Inode, Refusal> {
        self.overlay.inode(self.base, inode)?.ok_or(Refusal::Invalid("an inode that does not exist"))
    }

    /// A directory that must be there and have a name.
    fn directory(&mut self, inode: InodeNumber) -> Result<Inode, Refusal> {
        let found = self.existing(inode)?;
        require(found.kind == Kind::Directory, "a directory that is none")?;
        require(found.links > 0, "a directory that was removed")?;
        Ok(found)
    }

    /// Checks that nothing is at `place`, and that the name may be there.
    fn vacant(&mut self, place: Place<'_>) -> Result<(), Refusal> {
        require(name::check(place.name).is_ok(), "a name that cannot be one")?;
        let first = self.base.name_key().cookie(place.name);
        require((first.0..first.0 + SLOTS).contains(&place.cookie.0), "a cookie that is not the name's")?;
        require(
            self.overlay.entry(self.base, place.directory, place.name)?.is_none(),
            "a name that is taken",
        )?;
        let taken = self.overlay.is_taken(self.base, place.directory, place.cookie)?;
        require(!taken, "a cookie that is taken")
    }

    /// Checks that `place` names `inode`.
    fn occupied(&mut self, place: Place<'_>, inode: InodeNumber) -> Result<(), Refusal> {
        let entry = self.overlay.entry(self.base, place.directory, place.name)?;
        let same = entry.is_some_and(|entry| entry.cookie == place.cookie && entry.inode == inode);
        require(same, "an entry that is not there")
    }

    /// The state of an inode that exists, touched by this record.
    fn touch(&mut self, inode: InodeNumber, touch: Touch) -> Result<&mut State, Refusal> {
        let position = self.record.position.start;
        self.overlay.touched(inode, position);
        let state = match self.overlay.inodes.entry(inode) {
            hashbrown::hash_map::Entry::Occupied(entry) => entry.into_mut(),
            hashbrown::hash_map::Entry::Vacant(entry) => {
                let found = self.base.inode(inode)?;
                let found = found.ok_or(Refusal::Invalid("an inode that does not exist"))?;
                entry.insert(State::of(found, false))
            }
        };
        state.logged = position;
        if let Some(found) = &mut state.inode {
            found.ctime = self.record.time;
            if touch == Touch::Content {
                found.mtime = self.record.time;
            }
            found.applied = (self.log, self.record.sequence);
        }
        Ok(state)
    }

    /// Changes the attributes of an inode that exists.
    fn update(
        &mut self,
        inode: InodeNumber,
        touch: Touch,
        change: impl FnOnce(&mut Inode),
    ) -> Result<(), Refusal> {
        let state = self.touch(inode, touch)?;
        if let Some(found) = &mut state.inode {
            change(found);
        }
        Ok(())
    }

    /// Adds an entry, or with `None` removes it, and counts it.
    fn set_entry(
        &mut self,
        place: Place<'_>,
        target: Option<(InodeNumber, Kind)>,
        count: i64,
        subdirectories: i64,
    ) -> Result<(), Refusal> {
        let logged = self.record.position.start;
        let state = self.touch(place.directory, Touch::Content)?;
        // The mark of a removed entry is needed even in a new directory: a digest may end between
        // the two records.
        // A place that no record used before has an entry of the base, or gets one of its own now.
        let is_new = state.entries.get(&place.cookie).map_or(target.is_some(), |earlier| earlier.is_new);
        state.set_entry(place.cookie, Logged { name: place.name.into(), target, is_new, logged });
        if let Some(directory) = &mut state.inode {
            directory.size = directory.size.saturating_add_signed(count);
            // Bounded by MAX_LINKS, checked before.
            directory.links = directory.links.saturating_add_signed(subdirectories as i32);
        }
        Ok(())
    }

    fn create(&mut self, found: Option<Inode>) -> Result<(), Refusal> {
        let Change::Create { inode, place, kind, mode, uid, gid, device, target } = self.record.change else {
            return Ok(());
        };
        require(inode.0 > InodeNumber::ROOT.0 && found.is_none(), "a number that is in use")?;
        require(self.overlay.state(inode).is_none(), "a number that was used")?;
        require(mode & !MODE_BITS == 0, "a mode with other bits")?;
        let is_link = kind == Kind::Symlink;
        require(is_link != target.is_empty() && target.len() <= MAX_TARGET, "a target that cannot be one")?;
        require(place.is_some() || kind == Kind::File, "an inode without a name that is no file")?;
        let is_directory = kind == Kind::Directory;
        if let Some(place) = place {
            let parent = self.directory(place.directory)?;
            require(!is_directory || parent.links < MAX_LINKS, "too many subdirectories")?;
            self.vacant(place)?;
        }
        let time = self.record.time;
        let links = match (place, is_directory) {
            (None, _) => 0,
            (_, true) => 2,
            (_, false) => 1,
        };
        let parent = place.filter(|_| is_directory).map_or(0, |place| place.directory.0);
        let new = Inode {
            kind,
            mode,
            links,
            uid,
            gid,
            device,
            size: target.len() as u64,
            blocks: 0,
            parent,
            atime: time,
            mtime: time,
            ctime: time,
            btime: time,
            applied: (self.log, self.record.sequence),
        };
        if let Some(place) = place {
            self.set_entry(place, Some((inode, kind)), 1, i64::from(is_directory))?;
        }
        let position = self.record.position.start;
        let mut state = State::of(new, true);
        state.logged = position;
        state.target = is_link.then(|| target.into());
        self.overlay.inodes.insert(inode, state);
        self.overlay.touched(inode, position);
        Ok(())
    }

    fn link(&mut self, inode: InodeNumber, place: Place<'_>, found: Option<Inode>) -> Result<(), Refusal> {
        let found = found.ok_or(Refusal::Invalid("an inode that does not exist"))?;
        require(found.kind != Kind::Directory, "a second name of a directory")?;
        require(found.links < MAX_LINKS, "too many links")?;
        self.directory(place.directory)?;
        self.vacant(place)?;
        self.set_entry(place, Some((inode, found.kind)), 1, 0)?;
        self.update(inode, Touch::Attributes, |found| found.links += 1)
    }

    fn unlink(&mut self, inode: InodeNumber, place: Place<'_>) -> Result<(), Refusal> {
        let found = self.existing(inode)?;
        self.directory(place.directory)?;
        self.occupied(place, inode)?;
        let is_directory = found.kind == Kind::Directory;
        require(!is_directory || found.size == 0, "a directory with entries")?;
        self.set_entry(place, None, -1, -i64::from(is_directory))?;
        self.drop_name(inode)
    }

    /// An inode loses a name; a directory its only one.
    fn drop_name(&mut self, inode: InodeNumber) -> Result<(), Refusal> {
        self.update(inode, Touch::Attributes, |found| {
            found.links = if found.kind == Kind::Directory { 0 } else { found.links.saturating_sub(1) };
        })
    }

    fn rename(
        &mut self,
        inode: InodeNumber,
        from: Place<'_>,
        to: Place<'_>,
        replaced: Option<InodeNumber>,
        exchange: bool,
    ) -> Result<(), Refusal> {
        let moved = self.existing(inode)?;
        let source = self.directory(from.directory)?;
        let target = self.directory(to.directory)?;
        self.occupied(from, inode)?;
        require(from.directory != to.directory || from.cookie != to.cookie, "a rename to itself")?;
        let other = match replaced {
            None => {
                require(!exchange, "an exchange with nothing")?;
                self.vacant(to)?;
                None
            }
            Some(other) => {
                self.occupied(to, other)?;
                require(other != inode, "a rename to another name of the same inode")?;
                Some((other, self.existing(other)?))
            }
        };
        let (is_directory, other_is) =
            (moved.kind == Kind::Directory, other.is_some_and(|(_, o)| o.kind == Kind::Directory));
        let crosses = from.directory != to.directory;
        if let Some((_, other)) = other
            && !exchange
        {
            require(is_directory == other_is, "a directory in place of a file, or a file of a directory")?;
            require(!other_is || other.size == 0, "a directory with entries")?;
        }
        if exchange && crosses && other_is && !is_directory {
            require(source.links < MAX_LINKS, "too many subdirectories")?;
        }
        if is_directory && crosses {
            require(other_is || target.links < MAX_LINKS, "too many subdirectories")?;
            require(!self.is_below(to.directory, inode)?, "a directory into itself")?;
        }
        if let Some((other, _)) = other
            && exchange
            && other_is
            && crosses
        {
            require(!self.is_below(from.directory, other)?, "a directory into itself")?;
        }
        self.exchange_entries(
            from,
            to,
            (inode, moved.kind),
            other.map(|(inode, other)| (inode, other.kind)),
            exchange,
        )?;
        self.update(inode, Touch::Attributes, |moved| {
            if is_directory {
                moved.parent = to.directory.0;
            }
        })?;
        match other {
            Some((other, _)) if exchange => self.update(other, Touch::Attributes, |other| {
                if other_is {
                    other.parent = from.directory.0;
                }
            }),
            Some((other, _)) => self.drop_name(other),
            None => Ok(()),
        }
    }

    /// The entries of a rename that was judged.
    fn exchange_entries(
        &mut self,
        from: Place<'_>,
        to: Place<'_>,
        moved: (InodeNumber, Kind),
        other: Option<(InodeNumber, Kind)>,
        exchange: bool,
    ) -> Result<(), Refusal> {
        let directories = |kind: Kind| i64::from(kind == Kind::Directory);
        let moving = directories(moved.1);
        let other_moving = other.map_or(0, |(_, kind)| directories(kind));
        if exchange {
            self.set_entry(from, other, 0, other_moving - moving)?;
            return self.set_entry(to, Some(moved), 0, moving - other_moving);
        }
        self.set_entry(from, None, -1, -moving)?;
        self.set_entry(to, Some(moved), i64::from(other.is_none()), moving - other_moving)
    }

    /// Whether `directory` is `above`, or somewhere below it.
    fn is_below(&mut self, directory: InodeNumber, above: InodeNumber) -> Result<bool, Refusal> {
        if self.trusts_ways {
            return Ok(false);
        }
        let found = self.overlay.is_below(self.base, directory, above)?;
        found.ok_or(Refusal::Invalid("a directory that is too deep"))
    }

    fn set_attributes(
        &mut self,
        inode: InodeNumber,
        new: &NewAttributes,
        found: Option<Inode>,
    ) -> Result<(), Refusal> {
        require(found.is_some(), "an inode that does not exist")?;
        require(new.mode.is_none_or(|mode| mode & !MODE_BITS == 0), "a mode with other bits")?;
        self.update(inode, Touch::Attributes, |found| {
            found.mode = new.mode.unwrap_or(found.mode);
            found.uid = new.uid.unwrap_or(found.uid);
            found.gid = new.gid.unwrap_or(found.gid);
            found.atime = new.atime.unwrap_or(found.atime);
            found.mtime = new.mtime.unwrap_or(found.mtime);
        })
    }

    fn set_xattr(
        &mut self,
        inode: InodeNumber,
        name: &[u8],
        value: Option<&[u8]>,
        found: Option<Inode>,
    ) -> Result<(), Refusal> {
        require(found.is_some(), "an inode that does not exist")?;
        require(!name.is_empty() && name.len() <= MAX_XATTR_NAME, "an attribute's name that cannot be one")?;
        if inode == InodeNumber::ROOT && quota::is_about(name) {
            let is_limit = quota::user(name).is_some() && value.and_then(quota::limit).is_some();
            require(is_limit, "a limit that cannot be one")?;
        }
        if value.is_none() {
            let there = self.overlay.xattr(self.base, inode, name)?.is_some();
            require(there, "an attribute that is not there")?;
        }
        let logged = self.record.position.start;
        let first = self.base.name_key().cookie(name);
        let state = self.touch(inode, Touch::Attributes)?;
        state.xattrs.insert((first, name.into()), Value { value: value.map(Box::from), logged });
        Ok(())
    }

    fn free(&mut self, inode: InodeNumber, found: Option<Inode>) -> Result<(), Refusal> {
        let found = found.ok_or(Refusal::Invalid("an inode that does not exist"))?;
        require(found.links == 0, "an inode with a name is freed")?;
        let state = self.touch(inode, Touch::Attributes)?;
        let mut freed = State::of(found, state.is_new);
        freed.owner = state.owner;
        freed.logged = state.logged;
        freed.inode = None;
        *state = freed;
        Ok(())
    }

    fn data(&mut self, inode: InodeNumber, found: Option<Inode>) -> Result<(), Refusal> {
        let found = found.ok_or(Refusal::Invalid("an inode that does not exist"))?;
        require(found.kind == Kind::File, "data of what is no file")?;
        let (position, data) = (self.record.position.start, self.record.data);
        let within = |offset: u64, length: u64| {
            let end = offset.checked_add(length).filter(|end| *end <= MAX_FILE);
            end.ok_or(Refusal::Invalid("data behind the largest file"))
        };
        match self.record.change {
            Change::Write { offset, length, .. } => {
                require(data.1.len() == length as usize, "data of another length")?;
                let end = within(offset, u64::from(length))?;
                let state = self.touch(inode, Touch::Content)?;
                state.ranges.put(offset..end, Source::Log(data.0), position);
                if let Some(found) = &mut state.inode {
                    found.size = found.size.max(end);
                }
            }
            Change::Truncate { size, .. } => {
                within(size, 0)?;
                // Behind the end of the file, a block has zeros already.
                let is_cut = size < found.size
                    && !size.is_multiple_of(BLOCK_BYTES)
                    && self.has_data(inode, size / BLOCK_BYTES)?;
                let state = self.touch(inode, Touch::Content)?;
                if size < found.size {
                    state.ranges.truncate(size, position);
                    if is_cut {
                        let end = size.next_multiple_of(BLOCK_BYTES);
                        state.ranges.put(size..end, Source::Zeros, position);
                    }
                }
                if let Some(found) = &mut state.inode {
                    found.size = size;
                }
            }
            Change::Punch { offset, length, .. } => {
                let end = within(offset, length)?;
                self.hole(inode, offset..end)?;
                self.touch(inode, Touch::Content)?;
            }
            Change::Reserve { offset, length, size, zero, .. } => {
                let end = within(offset, length)?;
                within(size, 0)?;
                require(size >= found.size, "a reservation that cuts the file")?;
                if zero {
                    self.hole(inode, offset..end)?;
                }
                let state = self.touch(inode, Touch::Content)?;
                state.ranges.reserve(offset..end, position);
                if let Some(found) = &mut state.inode {
                    found.size = size;
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Puts a hole into a file that exists. What it cuts from a block with data is zeros there.
    fn hole(&mut self, inode: InodeNumber, range: Range<u64>) -> Result<(), Refusal> {
        let position = self.record.position.start;
        let mut at = range.start;
        while at < range.end {
            let block = at / BLOCK_BYTES;
            let is_whole = at.is_multiple_of(BLOCK_BYTES) && range.end - at >= BLOCK_BYTES;
            let (end, source) = if is_whole {
                (range.end - range.end % BLOCK_BYTES, Source::Hole)
            } else {
                let source = if self.has_data(inode, block)? { Source::Zeros } else { Source::Hole };
                (range.end.min((block + 1) * BLOCK_BYTES), source)
            };
            self.touch(inode, Touch::Content)?.ranges.put(at..end, source, position);
            at = end;
        }
        Ok(())
    }

    /// Whether a block of a file has data.
    fn has_data(&mut self, inode: InodeNumber, block: u64) -> Result<bool, Fault> {
        let range = block * BLOCK_BYTES..(block + 1) * BLOCK_BYTES;
        let Some(state) = self.overlay.inodes.get(&inode) else {
            return base_has_data(self.base, inode, range);
        };
        for stretch in state.ranges.stretches(range) {
            let range = stretch.range;
            let found = match stretch.source {
                Some(Source::Log(_) | Source::Zeros) => true,
                Some(Source::Hole) => false,
                None if state.is_new => false,
                None => base_has_data(self.base, inode, range)?,
            };
            if found {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// Whether the base has data in a part of one block.
fn base_has_data(base: &mut impl Base, inode: InodeNumber, part: Range<u64>) -> Result<bool, Fault> {
    // A block is in one extent.
    Ok(matches!(base.data_in(inode, part, &mut 2)?, Data::Found(_)))
}
