//! Operations on names. The order of the checks is that of Linux (`fs/namei.c`), because it decides
//! which errno an application sees.

use rustix::io::Errno;
use sietch_disk::nvm::Medium;

use super::quota::Need;
use super::{Client, Service};
use crate::access::{Caller, EXECUTE, WRITE};
use crate::ascent::{Ascent, Found, Stamp, Ways};
use crate::base::Entry;
use crate::change::{Change, Place};
use crate::error::Fault;
use crate::file_system::{DirectoryEntry, Handle, NewInode, OpenMode, RenameMode};
use crate::inode::{Attributes, InodeNumber, Kind, MODE_BITS, SET_GID, STICKY};
use crate::lease::{Mode, TREE};
use crate::limits::{MAX_LINKS, MAX_TARGET};
use crate::name::{self, Cookie, MAX_NAME};
use crate::overlay::{Listed, Vacancy};

/// Removed names that a step of a listing passes: others have the file system between steps.
const REMOVED_STEP: u64 = 256;

impl<S: Service<M>, M: Medium> Client<S, M> {
    pub(super) fn find(
        &mut self,
        caller: Caller<'_>,
        directory: InodeNumber,
        name: &[u8],
    ) -> Result<Attributes, Errno> {
        let (_, entry) = self.look(caller, directory, name)?;
        self.stat(entry.ok_or(Errno::NOENT)?.inode)
    }

    pub(super) fn parent_of(&mut self, directory: InodeNumber) -> Result<InodeNumber, Errno> {
        let found = self.inode(directory)?;
        if found.kind == Kind::Directory { Ok(InodeNumber(found.parent)) } else { Err(Errno::NOTDIR) }
    }

    /// Lists entries; where it has passed many removed names, it returns behind which cookie it
    /// goes on.
    pub(super) fn list(
        &mut self,
        handle: Handle,
        after: Cookie,
        take: &mut dyn FnMut(DirectoryEntry) -> bool,
    ) -> Result<Option<Cookie>, Errno> {
        let open = self.handle(handle)?;
        let found = self.inode(open.inode)?;
        if found.kind != Kind::Directory {
            return Err(Errno::NOTDIR);
        }
        if !open.mode.read {
            return Err(Errno::BADF);
        }
        if found.links == 0 {
            return Err(Errno::NOENT);
        }
        let (mut from, mut removed) = (Cookie(after.0.saturating_add(1)), REMOVED_STEP);
        loop {
            match self.see(|overlay, base| overlay.entry_from(base, open.inode, from, &mut removed))? {
                Listed::Entry(entry) => {
                    from = Cookie(entry.cookie.0 + 1);
                    if !take(entry) {
                        return Ok(None);
                    }
                }
                Listed::NotBefore(from) => return Ok(Some(Cookie(from.0 - 1))),
                Listed::End => return Ok(None),
            }
        }
    }

    /// The entry with this name in a directory that the caller may search, and the directory.
    fn look(
        &mut self,
        caller: Caller<'_>,
        directory: InodeNumber,
        name: &[u8],
    ) -> Result<(Attributes, Option<Entry>), Errno> {
        let found = self.directory(caller.credentials, directory)?;
        if found.links == 0 {
            return Err(Errno::NOENT);
        }
        if name.len() > MAX_NAME {
            return Err(Errno::NAMETOOLONG);
        }
        Ok((found, self.see(|overlay, base| overlay.entry(base, directory, name))?))
    }

    /// The place of a name that `directory` does not have, and the directory.
    fn vacant<'n>(
        &mut self,
        caller: Caller<'_>,
        directory: InodeNumber,
        name: &'n [u8],
    ) -> Result<(Place<'n>, Attributes), Errno> {
        self.need(directory, Mode::Exclusive)?;
        self.directory(caller.credentials, directory)?;
        if is_dot(name) {
            return Err(Errno::EXIST);
        }
        let (found, entry) = self.look(caller, directory, name)?;
        if entry.is_some() {
            return Err(Errno::EXIST);
        }
        name::check(name)?;
        self.may_create(caller, &found)?;
        match self.see(|overlay, base| overlay.vacancy(base, directory, name))? {
            Vacancy::Taken(_) => Err(Errno::EXIST),
            Vacancy::Full => Err(Errno::NOSPC),
            Vacancy::At(cookie) => Ok((Place { directory, cookie, name }, found)),
        }
    }

    fn may_create(&mut self, caller: Caller<'_>, directory: &Attributes) -> Result<(), Errno> {
        caller.credentials.check(directory, WRITE | EXECUTE)?;
        if directory.links == 0 { Err(Errno::NOENT) } else { Ok(()) }
    }

    /// Whether the caller may remove an entry; `is_directory`: it must be one, or must not be.
    fn may_remove(
        &mut self,
        caller: Caller<'_>,
        directory: &Attributes,
        entry: &Attributes,
        is_directory: bool,
    ) -> Result<(), Errno> {
        caller.credentials.check(directory, WRITE | EXECUTE)?;
        caller.credentials.check_sticky(directory, entry)?;
        match (is_directory, entry.kind == Kind::Directory) {
            (true, false) => Err(Errno::NOTDIR),
            (false, true) => Err(Errno::ISDIR),
            _ if directory.links == 0 => Err(Errno::NOENT),
            _ => Ok(()),
        }
    }

    pub(super) fn make(
        &mut self,
        caller: Caller<'_>,
        directory: InodeNumber,
        name: &[u8],
        new: &NewInode<'_>,
    ) -> Result<Attributes, Errno> {
        if new.kind == Kind::Symlink {
            check_target(new.target)?;
        }
        let (place, parent) = self.vacant(caller, directory, name)?;
        // A character device 0 is a whiteout, which every user may make.
        let is_device = new.kind == Kind::BlockDevice || new.kind == Kind::CharacterDevice && new.device != 0;
        if is_device && !caller.credentials.is_privileged {
            return Err(Errno::PERM);
        }
        if new.kind == Kind::Directory && parent.links >= MAX_LINKS {
            return Err(Errno::MLINK);
        }
        let charge = self.charge(caller.credentials, caller.credentials.uid, &Need::Inode)?;
        let inode = self.new_number()?;
        let change = creation(caller, &parent, inode, Some(place), new);
        self.commit_charged(caller.now, change, &[], charge)?;
        self.stat(inode)
    }

    pub(super) fn make_unnamed(
        &mut self,
        caller: Caller<'_>,
        directory: InodeNumber,
        mode: u16,
    ) -> Result<(Attributes, Handle), Errno> {
        let parent = self.stat(directory)?;
        if parent.kind != Kind::Directory {
            return Err(Errno::NOTDIR);
        }
        self.may_create(caller, &parent)?;
        let charge = self.charge(caller.credentials, caller.credentials.uid, &Need::Inode)?;
        let inode = self.new_number()?;
        let new = NewInode { kind: Kind::File, mode, device: 0, target: &[] };
        let change = creation(caller, &parent, inode, None, &new);
        self.commit_charged(caller.now, change, &[], charge)?;
        self.linkable.insert(inode);
        let handle = self.open_handle(inode, OpenMode { read: true, write: true, truncate: false });
        Ok((self.stat(inode)?, handle))
    }

    pub(super) fn add_link(
        &mut self,
        caller: Caller<'_>,
        inode: InodeNumber,
        directory: InodeNumber,
        name: &[u8],
    ) -> Result<Attributes, Errno> {
        self.need(inode, Mode::Exclusive)?;
        let found = self.inode(inode)?;
        let (place, _) = self.vacant(caller, directory, name)?;
        if found.kind == Kind::Directory {
            return Err(Errno::PERM);
        }
        if found.links == 0 && !self.linkable.contains(&inode) {
            return Err(Errno::NOENT);
        }
        if found.links >= MAX_LINKS {
            return Err(Errno::MLINK);
        }
        self.commit_with(caller.now, Change::Link { inode, place }, &[])?;
        self.linkable.remove(&inode);
        self.stat(inode)
    }

    pub(super) fn remove(
        &mut self,
        caller: Caller<'_>,
        directory: InodeNumber,
        name: &[u8],
        is_directory: bool,
    ) -> Result<(), Errno> {
        self.need(directory, Mode::Exclusive)?;
        self.directory(caller.credentials, directory)?;
        match name {
            b"." if is_directory => return Err(Errno::INVAL),
            b".." if is_directory => return Err(Errno::NOTEMPTY),
            b"." | b".." => return Err(Errno::ISDIR),
            _ => {}
        }
        let (parent, entry) = self.look(caller, directory, name)?;
        let entry = entry.ok_or(Errno::NOENT)?;
        self.need(entry.inode, Mode::Exclusive)?;
        let found = self.stat(entry.inode)?;
        self.may_remove(caller, &parent, &found, is_directory)?;
        if is_directory && found.size > 0 {
            return Err(Errno::NOTEMPTY);
        }
        let place = Place { directory, cookie: entry.cookie, name };
        self.commit(caller.now, Change::Unlink { inode: entry.inode, place }, &[])?;
        self.removed(caller.now, entry.inode)
    }

    pub(super) fn move_entry(
        &mut self,
        caller: Caller<'_>,
        from: (InodeNumber, &[u8]),
        to: (InodeNumber, &[u8]),
        mode: RenameMode,
        ways: &mut Ways,
    ) -> Result<bool, Errno> {
        self.need(from.0, Mode::Exclusive)?;
        self.need(to.0, Mode::Exclusive)?;
        self.directory(caller.credentials, from.0)?;
        self.directory(caller.credentials, to.0)?;
        if is_dot(from.1) {
            return Err(Errno::BUSY);
        }
        if is_dot(to.1) {
            return Err(if mode == RenameMode::NoReplace { Errno::EXIST } else { Errno::BUSY });
        }
        let (old_parent, old) = self.look(caller, from.0, from.1)?;
        let old = old.ok_or(Errno::NOENT)?;
        self.need(old.inode, Mode::Exclusive)?;
        let (new_parent, _) = self.look(caller, to.0, to.1)?;
        let vacancy = self.see(|overlay, base| overlay.vacancy(base, to.0, to.1))?;
        let (cookie, replaced) = match vacancy {
            Vacancy::Taken(_) if mode == RenameMode::NoReplace => return Err(Errno::EXIST),
            Vacancy::Taken(entry) => (entry.cookie, Some(entry)),
            _ if mode == RenameMode::Exchange => return Err(Errno::NOENT),
            Vacancy::At(cookie) => (cookie, None),
            Vacancy::Full => return Err(Errno::NOSPC),
        };
        if let Some(replaced) = replaced {
            self.need(replaced.inode, Mode::Exclusive)?;
        }
        let exchange = mode == RenameMode::Exchange;
        let crosses = from.0 != to.0;
        let [new_way, old_way] = &mut ways.0;
        if crosses && old.kind == Kind::Directory {
            match self.is_below(to.0, old.inode, new_way)? {
                Some(false) => {}
                Some(true) => return Err(Errno::INVAL),
                None => return Ok(false),
            }
        }
        if let Some(replaced) = replaced
            && crosses
            && replaced.kind == Kind::Directory
        {
            match self.is_below(from.0, replaced.inode, old_way)? {
                Some(false) => {}
                Some(true) => return Err(if exchange { Errno::INVAL } else { Errno::NOTEMPTY }),
                None => return Ok(false),
            }
        }
        if replaced.is_some_and(|replaced| replaced.inode == old.inode) {
            return Ok(true);
        }
        self.may_rename(caller, (&old_parent, &old), (&new_parent, to.1, replaced.as_ref()), exchange)?;
        let change = Change::Rename {
            inode: old.inode,
            from: Place { directory: from.0, cookie: old.cookie, name: from.1 },
            to: Place { directory: to.0, cookie, name: to.1 },
            replaced: replaced.map(|replaced| replaced.inode),
            exchange,
        };
        self.commit_with(caller.now, change, &[])?;
        match replaced {
            Some(replaced) if !exchange => self.removed(caller.now, replaced.inode)?,
            _ => {}
        }
        Ok(true)
    }

    /// The permissions of a rename.
    fn may_rename(
        &mut self,
        caller: Caller<'_>,
        (old_parent, old): (&Attributes, &Entry),
        (new_parent, to, replaced): (&Attributes, &[u8], Option<&Entry>),
        exchange: bool,
    ) -> Result<(), Errno> {
        let moved = self.stat(old.inode)?;
        let is_directory = moved.kind == Kind::Directory;
        self.may_remove(caller, old_parent, &moved, is_directory)?;
        let replaced = match replaced {
            None => {
                name::check(to)?;
                self.may_create(caller, new_parent)?;
                None
            }
            Some(entry) => {
                let other = self.stat(entry.inode)?;
                let expected = if exchange { other.kind == Kind::Directory } else { is_directory };
                self.may_remove(caller, new_parent, &other, expected)?;
                Some(other)
            }
        };
        let crosses = old_parent.inode != new_parent.inode;
        // The `..` of a directory that moves is written.
        if crosses && is_directory {
            caller.credentials.check(&moved, WRITE)?;
        }
        let other_is = replaced.is_some_and(|other| other.kind == Kind::Directory);
        if crosses
            && exchange
            && other_is
            && let Some(other) = replaced
        {
            caller.credentials.check(&other, WRITE)?;
        }
        if crosses && is_directory && !other_is && new_parent.links >= MAX_LINKS {
            return Err(Errno::MLINK);
        }
        if crosses && exchange && other_is && !is_directory && old_parent.links >= MAX_LINKS {
            return Err(Errno::MLINK);
        }
        if !exchange && other_is && replaced.is_some_and(|other| other.size > 0) {
            return Err(Errno::NOTEMPTY);
        }
        Ok(())
    }

    /// Whether `directory` is `above`, or somewhere below it; `None`: a step was done.
    fn is_below(
        &mut self,
        directory: InodeNumber,
        above: InodeNumber,
        way: &mut Ascent,
    ) -> Result<Option<bool>, Errno> {
        // So that no other client moves a directory on the way.
        self.need(TREE, Mode::Exclusive)?;
        let grant = self.leases.held.get(&TREE).map_or(0, |hold| hold.serial);
        let stamp = Stamp { grant, moves: self.moved.count };
        let Self { overlay, service, moved, .. } = self;
        let parent = |inode| {
            let found = overlay.inode(service.base(), inode)?;
            Ok(found.map(|found| InodeNumber(found.parent)))
        };
        let found = way.step((directory, above), stamp, moved.inodes.iter().copied(), parent);
        match found.map_err(|fault: Fault| self.failed(&fault))? {
            Found::IsBelow(is_below) => Ok(Some(is_below)),
            Found::Unfinished => Ok(None),
            Found::NoWay => Err(Errno::INVAL),
        }
    }
}

/// Whether it is a name that every directory has.
fn is_dot(name: &[u8]) -> bool {
    matches!(name, b"." | b"..")
}

/// Refuses what cannot be the target of a symbolic link.
fn check_target(target: &[u8]) -> Result<(), Errno> {
    match target {
        [] => Err(Errno::NOENT),
        _ if target.len() > MAX_TARGET => Err(Errno::NAMETOOLONG),
        _ if target.contains(&0) => Err(Errno::INVAL),
        _ => Ok(()),
    }
}

/// The change that creates an inode: owner and mode follow from the caller and the directory.
fn creation<'a>(
    caller: Caller<'_>,
    parent: &Attributes,
    inode: InodeNumber,
    place: Option<Place<'a>>,
    new: &NewInode<'a>,
) -> Change<'a> {
    let inherits = parent.mode & SET_GID != 0;
    let gid = if inherits { parent.gid } else { caller.credentials.gid };
    let mut mode = new.mode & MODE_BITS;
    match new.kind {
        Kind::Directory => {
            // `mkdir(2)` takes permissions and the sticky bit alone.
            mode &= 0o777 | STICKY;
            mode |= parent.mode & SET_GID;
        }
        Kind::Symlink => mode = 0o777,
        _ => {
            let both = SET_GID | 0o010;
            let may = caller.credentials.is_privileged || caller.credentials.is_member(gid);
            if inherits && mode & both == both && !may {
                mode &= !SET_GID;
            }
        }
    }
    let device = if matches!(new.kind, Kind::CharacterDevice | Kind::BlockDevice) { new.device } else { 0 };
    let target = if new.kind == Kind::Symlink { new.target } else { &[] };
    Change::Create { inode, place, kind: new.kind, mode, uid: caller.credentials.uid, gid, device, target }
}
