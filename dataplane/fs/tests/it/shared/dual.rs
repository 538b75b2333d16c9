//! A file system that makes each call of a client on the model too. Its inodes and handles are the
//! model's.

use std::fmt::Debug;
use std::ops::Range;

use rustix::io::Errno;
use sietch_fs::FileSystem;
use sietch_fs::access::Caller;
use sietch_fs::file_system::{
    Allocation, AttributeChange, DirectoryEntry, Handle, NewInode, OpenMode, RenameMode, Seek, Usage,
    WriteAt, XattrMode,
};
use sietch_fs::inode::{Attributes, InodeNumber};
use sietch_fs::name::Cookie;
use sietch_fs_oracle::Model;

use super::world::World;

/// The module's header describes it.
pub(super) struct Dual<'a> {
    world: &'a World,
    index: usize,
}

impl<'a> Dual<'a> {
    pub(super) fn new(world: &'a World, index: usize) -> Self {
        Self { world, index }
    }

    /// Makes a call on the model that returned `real` in the file system, and compares.
    fn also<T: Debug>(
        &self,
        name: &str,
        real: Result<T, Errno>,
        is_same: impl Fn(&T, &T) -> bool,
        mut call: impl FnMut(&mut Model) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        let world = self.world;
        if world.is_off() {
            let mut model = world.model.borrow().clone();
            drop(call(&mut model));
            world.in_flight(model);
            return Err(Errno::IO);
        }
        if world.has_died(self.index) {
            if world.buried(self.index) {
                drop(call(&mut world.model.borrow_mut()));
            }
            return Err(Errno::IO);
        }
        if world.has_stopped() || matches!(real, Err(Errno::AGAIN)) {
            return real.and(Err(Errno::AGAIN));
        }
        let expected = call(&mut world.model.borrow_mut());
        let equal = match (&real, &expected) {
            (Ok(real), Ok(expected)) => is_same(real, expected),
            (Err(real), Err(expected)) => real == expected,
            _ => false,
        };
        if !equal {
            world.fail(format!("{name} of client {}:\n  {real:?}\n  {expected:?}", self.index));
        }
        expected
    }

    fn inode(&self, inode: InodeNumber) -> InodeNumber {
        self.world.real(inode)
    }

    fn handle(&self, handle: Handle) -> Handle {
        self.world.real_handle(handle)
    }

    fn same_attributes(&self, real: &Attributes, model: &Attributes) -> bool {
        let plain = |found: &Attributes| Attributes { inode: InodeNumber::ROOT, blocks: 0, ..*found };
        self.world.is_same(real.inode, model.inode) && plain(real) == plain(model)
    }

    fn attributes_of(
        &self,
        name: &str,
        real: Result<Attributes, Errno>,
        call: impl FnMut(&mut Model) -> Result<Attributes, Errno>,
    ) -> Result<Attributes, Errno> {
        self.also(name, real, |real, model| self.same_attributes(real, model), call)
    }

    fn plain<T: Debug + PartialEq>(
        &self,
        name: &str,
        real: Result<T, Errno>,
        call: impl FnMut(&mut Model) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        self.also(name, real, T::eq, call)
    }

    fn opened(&self, real: Handle, model: Handle) -> bool {
        self.world.map_handle(model, real);
        true
    }
}

impl FileSystem for Dual<'_> {
    fn lookup(
        &mut self,
        caller: Caller<'_>,
        directory: InodeNumber,
        name: &[u8],
    ) -> Result<Attributes, Errno> {
        let real = self.inode(directory);
        let found = self.world.call(self.index, |client| client.lookup(caller, real, name));
        self.attributes_of("lookup", found, |model| model.lookup(caller, directory, name))
    }

    fn parent(&mut self, directory: InodeNumber) -> Result<InodeNumber, Errno> {
        let real = self.inode(directory);
        let found = self.world.call(self.index, |client| client.parent(real));
        let is_same = |real: &InodeNumber, model: &InodeNumber| self.world.is_same(*real, *model);
        self.also("parent", found, is_same, |model| model.parent(directory))
    }

    fn attributes(&mut self, inode: InodeNumber) -> Result<Attributes, Errno> {
        let real = self.inode(inode);
        let found = self.world.call(self.index, |client| client.attributes(real));
        self.attributes_of("attributes", found, |model| model.attributes(inode))
    }

    fn set_attributes(
        &mut self,
        caller: Caller<'_>,
        inode: InodeNumber,
        handle: Option<Handle>,
        change: &AttributeChange,
    ) -> Result<Attributes, Errno> {
        let (real, open) = (self.inode(inode), handle.map(|handle| self.handle(handle)));
        let found = self.world.call(self.index, |client| client.set_attributes(caller, real, open, change));
        self.attributes_of("set_attributes", found, |model| {
            model.set_attributes(caller, inode, handle, change)
        })
    }

    fn read_link(&mut self, inode: InodeNumber) -> Result<Vec<u8>, Errno> {
        let real = self.inode(inode);
        let found = self.world.call(self.index, |client| client.read_link(real));
        self.plain("read_link", found, |model| model.read_link(inode))
    }

    fn create(
        &mut self,
        caller: Caller<'_>,
        directory: InodeNumber,
        name: &[u8],
        new: &NewInode<'_>,
    ) -> Result<Attributes, Errno> {
        let real = self.inode(directory);
        let found = self.world.call(self.index, |client| client.create(caller, real, name, new));
        self.attributes_of("create", found, |model| model.create(caller, directory, name, new))
    }

    fn create_unnamed(
        &mut self,
        caller: Caller<'_>,
        directory: InodeNumber,
        mode: u16,
    ) -> Result<(Attributes, Handle), Errno> {
        let real = self.inode(directory);
        let found = self.world.call(self.index, |client| client.create_unnamed(caller, real, mode));
        let is_same = |real: &(Attributes, Handle), model: &(Attributes, Handle)| {
            self.same_attributes(&real.0, &model.0) && self.opened(real.1, model.1)
        };
        self.also("create_unnamed", found, is_same, |model| model.create_unnamed(caller, directory, mode))
    }

    fn link(
        &mut self,
        caller: Caller<'_>,
        inode: InodeNumber,
        directory: InodeNumber,
        name: &[u8],
    ) -> Result<Attributes, Errno> {
        let (real, parent) = (self.inode(inode), self.inode(directory));
        let found = self.world.call(self.index, |client| client.link(caller, real, parent, name));
        self.attributes_of("link", found, |model| model.link(caller, inode, directory, name))
    }

    fn unlink(&mut self, caller: Caller<'_>, directory: InodeNumber, name: &[u8]) -> Result<(), Errno> {
        let real = self.inode(directory);
        let found = self.world.call(self.index, |client| client.unlink(caller, real, name));
        self.plain("unlink", found, |model| model.unlink(caller, directory, name))
    }

    fn remove_directory(
        &mut self,
        caller: Caller<'_>,
        directory: InodeNumber,
        name: &[u8],
    ) -> Result<(), Errno> {
        let real = self.inode(directory);
        let found = self.world.call(self.index, |client| client.remove_directory(caller, real, name));
        self.plain("remove_directory", found, |model| model.remove_directory(caller, directory, name))
    }

    fn rename(
        &mut self,
        caller: Caller<'_>,
        from: (InodeNumber, &[u8]),
        to: (InodeNumber, &[u8]),
        mode: RenameMode,
    ) -> Result<(), Errno> {
        let (old, new) = ((self.inode(from.0), from.1), (self.inode(to.0), to.1));
        let found = self.world.call(self.index, |client| client.rename(caller, old, new, mode));
        self.plain("rename", found, |model| model.rename(caller, from, to, mode))
    }

    fn open(&mut self, caller: Caller<'_>, inode: InodeNumber, mode: OpenMode) -> Result<Handle, Errno> {
        let real = self.inode(inode);
        let found = self.world.call(self.index, |client| client.open(caller, real, mode));
        let is_same = |real: &Handle, model: &Handle| self.opened(*real, *model);
        self.also("open", found, is_same, |model| model.open(caller, inode, mode))
    }

    fn open_created(&mut self, inode: InodeNumber, mode: OpenMode) -> Result<Handle, Errno> {
        let real = self.inode(inode);
        let found = self.world.call(self.index, |client| client.open_created(real, mode));
        let is_same = |real: &Handle, model: &Handle| self.opened(*real, *model);
        self.also("open_created", found, is_same, |model| model.open_created(inode, mode))
    }

    fn close(&mut self, handle: Handle) {
        let real = self.handle(handle);
        let done = self.world.call(self.index, |client| {
            client.close(real);
            Ok(())
        });
        if self.world.has_died(self.index) {
            self.world.buried(self.index);
        } else if done.is_ok() && !self.world.is_off() {
            self.world.model.borrow_mut().close(handle);
        }
    }

    fn retain(&mut self, inode: InodeNumber) -> Result<(), Errno> {
        let real = self.inode(inode);
        let found = self.world.call(self.index, |client| client.retain(real));
        self.plain("retain", found, |model| model.retain(inode))
    }

    fn release(&mut self, inode: InodeNumber, count: u64) {
        let real = self.inode(inode);
        let done = self.world.call(self.index, |client| {
            client.release(real, count);
            Ok(())
        });
        if self.world.has_died(self.index) {
            self.world.buried(self.index);
        } else if done.is_ok() && !self.world.is_off() {
            self.world.model.borrow_mut().release(inode, count);
        }
    }

    fn read(&mut self, handle: Handle, offset: u64, bytes: &mut [u8]) -> Result<usize, Errno> {
        let real = self.handle(handle);
        let mut found = vec![0; bytes.len()];
        let read = self.world.call(self.index, |client| client.read(real, offset, &mut found));
        let read = read.map(|count| found[..count.min(found.len())].to_vec());
        let expected = self.plain("read", read, |model| {
            let count = model.read(handle, offset, bytes)?;
            Ok(bytes[..count].to_vec())
        });
        expected.map(|bytes| bytes.len())
    }

    fn write(&mut self, caller: Caller<'_>, handle: Handle, at: WriteAt, bytes: &[u8]) -> Result<u64, Errno> {
        let real = self.handle(handle);
        let found = self.world.call(self.index, |client| client.write(caller, real, at, bytes));
        self.plain("write", found, |model| model.write(caller, handle, at, bytes))
    }

    fn allocate(
        &mut self,
        caller: Caller<'_>,
        handle: Handle,
        range: Range<u64>,
        allocation: Allocation,
    ) -> Result<(), Errno> {
        let real = self.handle(handle);
        let found =
            self.world.call(self.index, |client| client.allocate(caller, real, range.clone(), allocation));
        self.plain("allocate", found, |model| model.allocate(caller, handle, range.clone(), allocation))
    }

    fn seek(&mut self, handle: Handle, offset: u64, what: Seek) -> Result<u64, Errno> {
        let real = self.handle(handle);
        let found = self.world.call(self.index, |client| client.seek(real, offset, what));
        self.plain("seek", found, |model| model.seek(handle, offset, what))
    }

    fn sync(&mut self) -> Result<(), Errno> {
        let found = self.world.call(self.index, FileSystem::sync);
        self.plain("sync", found, FileSystem::sync)
    }

    fn read_directory(
        &mut self,
        handle: Handle,
        after: Cookie,
        take: &mut dyn FnMut(DirectoryEntry) -> bool,
    ) -> Result<(), Errno> {
        let real = self.handle(handle);
        let found = self.world.call(self.index, |client| {
            let mut entries = Vec::new();
            client.read_directory(real, after, &mut |entry| {
                entries.push(entry);
                true
            })?;
            Ok(entries)
        });
        let is_same = |real: &Vec<DirectoryEntry>, model: &Vec<DirectoryEntry>| {
            let plain = |entry: &DirectoryEntry| (entry.cookie, entry.name.clone(), entry.kind);
            real.iter().map(plain).eq(model.iter().map(plain))
                && real.iter().zip(model).all(|(real, model)| self.world.is_same(real.inode, model.inode))
        };
        let entries = self.also("read_directory", found, is_same, |model| {
            let mut entries = Vec::new();
            model.read_directory(handle, after, &mut |entry| {
                entries.push(entry);
                true
            })?;
            Ok(entries)
        })?;
        for entry in entries {
            if !take(entry) {
                break;
            }
        }
        Ok(())
    }

    fn check_access(&mut self, caller: Caller<'_>, inode: InodeNumber, wanted: u8) -> Result<(), Errno> {
        let real = self.inode(inode);
        let found = self.world.call(self.index, |client| client.check_access(caller, real, wanted));
        self.plain("check_access", found, |model| model.check_access(caller, inode, wanted))
    }

    fn xattr(&mut self, caller: Caller<'_>, inode: InodeNumber, name: &[u8]) -> Result<Vec<u8>, Errno> {
        let real = self.inode(inode);
        let found = self.world.call(self.index, |client| client.xattr(caller, real, name));
        self.plain("xattr", found, |model| model.xattr(caller, inode, name))
    }

    fn xattr_names(&mut self, caller: Caller<'_>, inode: InodeNumber) -> Result<Vec<Box<[u8]>>, Errno> {
        let real = self.inode(inode);
        let sorted = |mut names: Vec<Box<[u8]>>| {
            names.sort();
            names
        };
        let found = self.world.call(self.index, |client| client.xattr_names(caller, real)).map(sorted);
        self.plain("xattr_names", found, |model| model.xattr_names(caller, inode).map(sorted))
    }

    fn set_xattr(
        &mut self,
        caller: Caller<'_>,
        inode: InodeNumber,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<(), Errno> {
        let real = self.inode(inode);
        let found = self.world.call(self.index, |client| client.set_xattr(caller, real, name, value, mode));
        self.plain("set_xattr", found, |model| model.set_xattr(caller, inode, name, value, mode))
    }

    fn remove_xattr(&mut self, caller: Caller<'_>, inode: InodeNumber, name: &[u8]) -> Result<(), Errno> {
        let real = self.inode(inode);
        let found = self.world.call(self.index, |client| client.remove_xattr(caller, real, name));
        self.plain("remove_xattr", found, |model| model.remove_xattr(caller, inode, name))
    }

    fn usage(&mut self) -> Usage {
        self.world.model.borrow_mut().usage()
    }
}
