//! Random programs find a file system with a bug: each of [`BUGS`] must show, in a short program.

use std::ops::Range;

use rustix::io::Errno;
use sietch_fs::FileSystem;
use sietch_fs::access::{Caller, Credentials};
use sietch_fs::file_system::{
    Allocation, AttributeChange, DirectoryEntry, Handle, NewInode, OpenMode, RenameMode, Seek, Usage,
    WriteAt, XattrMode,
};
use sietch_fs::inode::{Attributes, InodeNumber};
use sietch_fs::limits::BLOCK;
use sietch_fs::name::Cookie;
use sietch_fs_oracle::Model;
use sietch_fs_oracle::program::compare::compare;
use sietch_fs_oracle::program::exhaustive::{sequences, setup};
use sietch_fs_oracle::program::generate::{Mix, generate};
use sietch_fs_oracle::program::minimise::minimise;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bug {
    /// A write to a block that is there already loses its last byte.
    ShortOverwrite,
    /// An append goes where the file ended when it was opened.
    StaleEnd,
    /// Bytes behind the end come back when the file grows.
    NoZeroing,
    /// A punch frees only what it covers as whole blocks.
    PunchKeepsEdges,
    /// `rename` does not replace.
    RenameRefuses,
    /// `rename` leaves the old name.
    RenameLinks,
    /// An exchange is a plain rename.
    NoExchange,
    /// A write by a user leaves set-user-ID.
    KeepsSetUserId,
    /// The times of a directory stay when a name goes.
    UnlinkKeepsTimes,
    /// Sticky directories are like others.
    NoSticky,
    /// A file goes although it is open.
    FreesOpenFiles,
    /// A listing leaves its last entry out.
    ShortListing,
    /// Extended attributes with empty values are not stored.
    NoEmptyXattrs,
}

const BUGS: [Bug; 13] = [
    Bug::ShortOverwrite,
    Bug::StaleEnd,
    Bug::NoZeroing,
    Bug::PunchKeepsEdges,
    Bug::RenameRefuses,
    Bug::RenameLinks,
    Bug::NoExchange,
    Bug::KeepsSetUserId,
    Bug::UnlinkKeepsTimes,
    Bug::NoSticky,
    Bug::FreesOpenFiles,
    Bug::ShortListing,
    Bug::NoEmptyXattrs,
];

/// A model with a bug.
struct Broken {
    model: Model,
    bug: Bug,
    /// Size of each file when a handle of it was opened.
    sizes: std::collections::HashMap<Handle, u64>,
    gone: std::collections::HashSet<InodeNumber>,
}

impl Broken {
    fn new(bug: Bug) -> Self {
        Self { model: Model::new(), bug, sizes: Default::default(), gone: Default::default() }
    }

    fn has(&self, bug: Bug) -> bool {
        self.bug == bug
    }
}

impl FileSystem for Broken {
    fn lookup(
        &mut self,
        caller: Caller<'_>,
        directory: InodeNumber,
        name: &[u8],
    ) -> Result<Attributes, Errno> {
        self.model.lookup(caller, directory, name)
    }

    fn parent(&mut self, directory: InodeNumber) -> Result<InodeNumber, Errno> {
        self.model.parent(directory)
    }

    fn attributes(&mut self, inode: InodeNumber) -> Result<Attributes, Errno> {
        self.model.attributes(inode)
    }

    fn set_attributes(
        &mut self,
        caller: Caller<'_>,
        inode: InodeNumber,
        handle: Option<Handle>,
        change: &AttributeChange,
    ) -> Result<Attributes, Errno> {
        let before = self.model.attributes(inode)?;
        let after = self.model.set_attributes(caller, inode, handle, change)?;
        if self.has(Bug::NoZeroing) && after.size > before.size && before.size > 0 {
            let write = OpenMode { read: true, write: true, truncate: false };
            let handle = self.model.open_created(inode, write)?;
            self.model.write(caller, handle, WriteAt::Offset(before.size), b"x")?;
            self.model.close(handle);
        }
        self.model.attributes(inode)
    }

    fn read_link(&mut self, inode: InodeNumber) -> Result<Vec<u8>, Errno> {
        self.model.read_link(inode)
    }

    fn create(
        &mut self,
        caller: Caller<'_>,
        directory: InodeNumber,
        name: &[u8],
        new: &NewInode<'_>,
    ) -> Result<Attributes, Errno> {
        self.model.create(caller, directory, name, new)
    }

    fn create_unnamed(
        &mut self,
        caller: Caller<'_>,
        directory: InodeNumber,
        mode: u16,
    ) -> Result<(Attributes, Handle), Errno> {
        let (attributes, handle) = self.model.create_unnamed(caller, directory, mode)?;
        self.sizes.insert(handle, 0);
        Ok((attributes, handle))
    }

    fn link(
        &mut self,
        caller: Caller<'_>,
        inode: InodeNumber,
        directory: InodeNumber,
        name: &[u8],
    ) -> Result<Attributes, Errno> {
        self.model.link(caller, inode, directory, name)
    }

    fn unlink(&mut self, caller: Caller<'_>, directory: InodeNumber, name: &[u8]) -> Result<(), Errno> {
        let root = Credentials::root();
        let named = self.model.lookup(Caller { credentials: &root, ..caller }, directory, name);
        let before = self.model.attributes(directory)?;
        let caller = match self.model.unlink(caller, directory, name) {
            Err(Errno::PERM) if self.has(Bug::NoSticky) => Caller { credentials: &root, ..caller },
            result => {
                if result.is_ok() && named.is_ok_and(|named| named.links == 1) {
                    self.gone.extend(named.map(|named| named.inode));
                }
                if result.is_ok() && self.has(Bug::UnlinkKeepsTimes) {
                    let mtime = Some(sietch_fs::file_system::NewTime::At(before.mtime));
                    let change = AttributeChange { mtime, ..AttributeChange::default() };
                    let caller = Caller { credentials: &root, now: before.ctime };
                    self.model.set_attributes(caller, directory, None, &change)?;
                }
                return result;
            }
        };
        self.model.unlink(caller, directory, name)
    }

    fn remove_directory(
        &mut self,
        caller: Caller<'_>,
        directory: InodeNumber,
        name: &[u8],
    ) -> Result<(), Errno> {
        self.model.remove_directory(caller, directory, name)
    }

    fn rename(
        &mut self,
        caller: Caller<'_>,
        from: (InodeNumber, &[u8]),
        to: (InodeNumber, &[u8]),
        mode: RenameMode,
    ) -> Result<(), Errno> {
        let mode = match mode {
            RenameMode::Replace if self.has(Bug::RenameRefuses) => RenameMode::NoReplace,
            RenameMode::Exchange if self.has(Bug::NoExchange) => RenameMode::Replace,
            mode => mode,
        };
        self.model.rename(caller, from, to, mode)?;
        if self.has(Bug::RenameLinks) && mode != RenameMode::Exchange {
            let root = Credentials::root();
            let caller = Caller { credentials: &root, ..caller };
            let moved = self.model.lookup(caller, to.0, to.1)?;
            let _ = self.model.link(caller, moved.inode, from.0, from.1);
        }
        Ok(())
    }

    fn open(&mut self, caller: Caller<'_>, inode: InodeNumber, mode: OpenMode) -> Result<Handle, Errno> {
        let handle = self.model.open(caller, inode, mode)?;
        self.sizes.insert(handle, self.model.attributes(inode)?.size);
        Ok(handle)
    }

    fn open_created(&mut self, inode: InodeNumber, mode: OpenMode) -> Result<Handle, Errno> {
        let handle = self.model.open_created(inode, mode)?;
        self.sizes.insert(handle, self.model.attributes(inode)?.size);
        Ok(handle)
    }

    fn close(&mut self, handle: Handle) {
        self.model.close(handle);
    }

    fn retain(&mut self, inode: InodeNumber) -> Result<(), Errno> {
        self.model.retain(inode)
    }

    fn release(&mut self, inode: InodeNumber, count: u64) {
        self.model.release(inode, count);
    }

    fn read(&mut self, handle: Handle, offset: u64, bytes: &mut [u8]) -> Result<usize, Errno> {
        let is_gone = self.model.inode_of(handle).is_some_and(|inode| self.gone.contains(&inode));
        if self.has(Bug::FreesOpenFiles) && is_gone {
            return Err(Errno::STALE);
        }
        self.model.read(handle, offset, bytes)
    }

    fn write(&mut self, caller: Caller<'_>, handle: Handle, at: WriteAt, bytes: &[u8]) -> Result<u64, Errno> {
        let size = match self.model.inode_of(handle) {
            Some(inode) => self.model.attributes(inode)?.size,
            None => 0,
        };
        let at = match at {
            WriteAt::End if self.has(Bug::StaleEnd) => WriteAt::Offset(self.sizes[&handle]),
            at => at,
        };
        let is_inside = matches!(at, WriteAt::Offset(offset) if offset + bytes.len() as u64 <= size);
        let root = Credentials::root();
        let caller =
            if self.has(Bug::KeepsSetUserId) { Caller { credentials: &root, ..caller } } else { caller };
        if self.has(Bug::ShortOverwrite) && is_inside && bytes.len() > 1 {
            return self.model.write(caller, handle, at, &bytes[..bytes.len() - 1]);
        }
        self.model.write(caller, handle, at, bytes)
    }

    fn allocate(
        &mut self,
        caller: Caller<'_>,
        handle: Handle,
        range: Range<u64>,
        allocation: Allocation,
    ) -> Result<(), Errno> {
        let block = BLOCK as u64;
        let whole = range.start.next_multiple_of(block)..range.end / block * block;
        let keeps = self.has(Bug::PunchKeepsEdges) && allocation == Allocation::Punch && !whole.is_empty();
        self.model.allocate(caller, handle, if keeps { whole } else { range }, allocation)
    }

    fn seek(&mut self, handle: Handle, offset: u64, what: Seek) -> Result<u64, Errno> {
        self.model.seek(handle, offset, what)
    }

    fn sync(&mut self) -> Result<(), Errno> {
        self.model.sync()
    }

    fn read_directory(
        &mut self,
        handle: Handle,
        after: Cookie,
        take: &mut dyn FnMut(DirectoryEntry) -> bool,
    ) -> Result<(), Errno> {
        let mut entries = Vec::new();
        self.model.read_directory(handle, after, &mut |entry| {
            entries.push(entry);
            true
        })?;
        if self.has(Bug::ShortListing) && entries.len() > 1 {
            entries.pop();
        }
        for entry in entries {
            if !take(entry) {
                break;
            }
        }
        Ok(())
    }

    fn check_access(&mut self, caller: Caller<'_>, inode: InodeNumber, wanted: u8) -> Result<(), Errno> {
        self.model.check_access(caller, inode, wanted)
    }

    fn xattr(&mut self, caller: Caller<'_>, inode: InodeNumber, name: &[u8]) -> Result<Vec<u8>, Errno> {
        self.model.xattr(caller, inode, name)
    }

    fn xattr_names(&mut self, caller: Caller<'_>, inode: InodeNumber) -> Result<Vec<Box<[u8]>>, Errno> {
        self.model.xattr_names(caller, inode)
    }

    fn set_xattr(
        &mut self,
        caller: Caller<'_>,
        inode: InodeNumber,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<(), Errno> {
        self.model.set_xattr(caller, inode, name, value, mode)?;
        if self.has(Bug::NoEmptyXattrs) && value.is_empty() {
            self.model.remove_xattr(caller, inode, name)?;
        }
        Ok(())
    }

    fn remove_xattr(&mut self, caller: Caller<'_>, inode: InodeNumber, name: &[u8]) -> Result<(), Errno> {
        self.model.remove_xattr(caller, inode, name)
    }

    fn usage(&mut self) -> Usage {
        self.model.usage()
    }
}

#[test]
fn random_programs_find_each_bug_and_are_shortened() {
    for bug in BUGS {
        let mut fails = |program: &[_]| compare(&mut Model::new(), &mut Broken::new(bug), program).is_err();
        let mut programs =
            (1..300).flat_map(|seed| [Mix::ALL, Mix::NAMES, Mix::DATA].map(|mix| generate(seed, 150, &mix)));
        let found = programs.find(|program| fails(program));
        let shortest = minimise(&found.unwrap_or_else(|| panic!("{bug:?} was not found")), &mut fails);
        assert!(shortest.len() <= 7, "{bug:?}: {shortest:#?}");
    }
}

#[test]
fn two_equal_file_systems_do_not_differ() {
    for program in sequences(1) {
        let program = [setup(), program].concat();
        compare(&mut Model::new(), &mut Model::new(), &program).expect("they are equal");
    }
}
