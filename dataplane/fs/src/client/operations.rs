//! The operations of [`FileSystem`], each by the file that has its family.

use std::ops::Range;

use rustix::io::Errno;
use sietch_disk::nvm::Medium;

use super::{Client, Service};
use crate::access::Caller;
use crate::ascent::Ways;
use crate::base::Base as _;
use crate::file_system::{
    Allocation, AttributeChange, DirectoryEntry, FileSystem, Handle, Leased, NewInode, OpenMode, Pending,
    PendingSync, RenameMode, Seek, Sought, SyncPoint, Usage, Waited, WriteAt, XattrMode, sync_shared,
};
use crate::inode::{Attributes, InodeNumber, Kind};
use crate::lease::Mode;
use crate::limits::BLOCK;
use crate::name::Cookie;

impl<S: Service<M>, M: Medium> FileSystem for Client<S, M> {
    fn lookup(
        &mut self,
        caller: Caller<'_>,
        directory: InodeNumber,
        name: &[u8],
    ) -> Result<Attributes, Errno> {
        self.operation(|client| client.find(caller, directory, name))
    }

    fn parent(&mut self, directory: InodeNumber) -> Result<InodeNumber, Errno> {
        self.operation(|client| client.parent_of(directory))
    }

    fn attributes(&mut self, inode: InodeNumber) -> Result<Attributes, Errno> {
        self.operation(|client| client.stat(inode))
    }

    fn set_attributes(
        &mut self,
        caller: Caller<'_>,
        inode: InodeNumber,
        handle: Option<Handle>,
        change: &AttributeChange,
    ) -> Result<Attributes, Errno> {
        self.operation(|client| client.change_attributes(caller, inode, handle, change))
    }

    fn read_link(&mut self, inode: InodeNumber) -> Result<Vec<u8>, Errno> {
        self.operation(|client| {
            if client.inode(inode)?.kind != Kind::Symlink {
                return Err(Errno::INVAL);
            }
            client.see(|overlay, base| overlay.target(base, inode))
        })
    }

    fn create(
        &mut self,
        caller: Caller<'_>,
        directory: InodeNumber,
        name: &[u8],
        new: &NewInode<'_>,
    ) -> Result<Attributes, Errno> {
        self.operation(|client| client.make(caller, directory, name, new))
    }

    fn create_unnamed(
        &mut self,
        caller: Caller<'_>,
        directory: InodeNumber,
        mode: u16,
    ) -> Result<(Attributes, Handle), Errno> {
        self.operation(|client| client.make_unnamed(caller, directory, mode))
    }

    fn link(
        &mut self,
        caller: Caller<'_>,
        inode: InodeNumber,
        directory: InodeNumber,
        name: &[u8],
    ) -> Result<Attributes, Errno> {
        self.operation(|client| client.add_link(caller, inode, directory, name))
    }

    fn unlink(&mut self, caller: Caller<'_>, directory: InodeNumber, name: &[u8]) -> Result<(), Errno> {
        self.operation(|client| client.remove(caller, directory, name, false))
    }

    fn remove_directory(
        &mut self,
        caller: Caller<'_>,
        directory: InodeNumber,
        name: &[u8],
    ) -> Result<(), Errno> {
        self.operation(|client| client.remove(caller, directory, name, true))
    }

    fn rename(
        &mut self,
        caller: Caller<'_>,
        from: (InodeNumber, &[u8]),
        to: (InodeNumber, &[u8]),
        mode: RenameMode,
    ) -> Result<(), Errno> {
        let mut ways = Ways::default();
        while !self.rename_step(caller, from, to, mode, &mut ways)? {}
        Ok(())
    }

    fn rename_step(
        &mut self,
        caller: Caller<'_>,
        from: (InodeNumber, &[u8]),
        to: (InodeNumber, &[u8]),
        mode: RenameMode,
        ways: &mut Ways,
    ) -> Result<bool, Errno> {
        self.operation(|client| client.move_entry(caller, from, to, mode, ways))
    }

    fn open(&mut self, caller: Caller<'_>, inode: InodeNumber, mode: OpenMode) -> Result<Handle, Errno> {
        self.operation(|client| client.open_inode(caller, inode, mode))
    }

    fn open_created(&mut self, inode: InodeNumber, mode: OpenMode) -> Result<Handle, Errno> {
        self.operation(|client| client.open_unchecked(inode, mode))
    }

    fn close(&mut self, handle: Handle) {
        if let Some(open) = self.handles.remove(&handle) {
            self.drop_references(open.inode, |references| references.kept -= 1);
        }
    }

    fn retain(&mut self, inode: InodeNumber) -> Result<(), Errno> {
        // Within the operation: its lease may go with its end, and says then what stays here.
        self.operation(|client| {
            client.inode(inode)?;
            client.references.entry(inode).or_default().kept += 1;
            Ok(())
        })
    }

    fn release(&mut self, inode: InodeNumber, count: u64) {
        self.drop_references(inode, |references| {
            references.kept = references.kept.saturating_sub(count);
        });
    }

    fn know(&mut self, inode: InodeNumber) -> Result<(), Errno> {
        // Within the operation: its lease may go with its end, and says then what stays here.
        self.operation(|client| {
            client.inode(inode)?;
            client.references.entry(inode).or_default().known += 1;
            Ok(())
        })
    }

    fn forget(&mut self, inode: InodeNumber, count: u64) {
        self.drop_references(inode, |references| {
            references.known = references.known.saturating_sub(count);
        });
    }

    fn hold(&mut self, inode: InodeNumber, mode: Mode) -> Result<(), Errno> {
        self.wait_for_lease(inode, mode)
    }

    fn give_up(&mut self, inode: InodeNumber) {
        self.give_up_lease(inode);
    }

    fn read(&mut self, handle: Handle, offset: u64, bytes: &mut [u8]) -> Result<usize, Errno> {
        self.operation(|client| client.read_at(handle, offset, bytes))
    }

    fn write(&mut self, caller: Caller<'_>, handle: Handle, at: WriteAt, bytes: &[u8]) -> Result<u64, Errno> {
        self.operation(|client| client.write_at(caller, handle, at, bytes))
    }

    fn allocate(
        &mut self,
        caller: Caller<'_>,
        handle: Handle,
        range: Range<u64>,
        allocation: Allocation,
    ) -> Result<(), Errno> {
        self.operation(|client| client.allocate_range(caller, handle, range.clone(), allocation))
    }

    fn seek(&mut self, handle: Handle, offset: u64, what: Seek) -> Result<u64, Errno> {
        let mut from = offset;
        loop {
            match self.seek_step(handle, from, what)? {
                Sought::Found(at) => return Ok(at),
                Sought::From(next) => from = next,
            }
        }
    }

    fn seek_step(&mut self, handle: Handle, offset: u64, what: Seek) -> Result<Sought, Errno> {
        self.operation(|client| client.seek_some(handle, offset, what))
    }

    fn sync(&mut self) -> Result<(), Errno> {
        sync_shared(|point| self.begin_sync(point))
    }

    fn begin_sync(&mut self, point: &mut SyncPoint) -> Result<Option<Box<dyn PendingSync>>, Errno> {
        self.check_going()?;
        let position = *point.0.get_or_insert(self.log.next_position());
        self.service.sync(&mut self.log, position)
    }

    fn begin_try(&mut self, waited: Waited) {
        self.start_try(waited);
    }

    fn end_try(&mut self) -> Option<(Waited, Box<dyn Pending>)> {
        self.finish_try()
    }

    fn sync_point(&mut self) -> SyncPoint {
        SyncPoint(Some(self.log.next_position()))
    }

    fn read_directory(
        &mut self,
        handle: Handle,
        after: Cookie,
        take: &mut dyn FnMut(DirectoryEntry) -> bool,
    ) -> Result<(), Errno> {
        let mut after = after;
        while let Some(next) = self.read_directory_step(handle, after, take)? {
            after = next;
        }
        Ok(())
    }

    fn read_directory_step(
        &mut self,
        handle: Handle,
        after: Cookie,
        take: &mut dyn FnMut(DirectoryEntry) -> bool,
    ) -> Result<Option<Cookie>, Errno> {
        self.operation(|client| client.list(handle, after, &mut *take))
    }

    fn check_access(&mut self, caller: Caller<'_>, inode: InodeNumber, wanted: u8) -> Result<(), Errno> {
        let found = self.operation(|client| client.stat(inode))?;
        caller.credentials.check(&found, wanted)
    }

    fn xattr(&mut self, caller: Caller<'_>, inode: InodeNumber, name: &[u8]) -> Result<Vec<u8>, Errno> {
        self.operation(|client| client.get_xattr(caller, inode, name))
    }

    fn xattr_names(&mut self, caller: Caller<'_>, inode: InodeNumber) -> Result<Vec<Box<[u8]>>, Errno> {
        let (mut names, mut from) = (Vec::new(), Some(Cookie(0)));
        while let Some(at) = from {
            from = self.xattr_names_step(caller, inode, at, &mut |name| names.push(name))?;
        }
        Ok(names)
    }

    fn xattr_names_step(
        &mut self,
        caller: Caller<'_>,
        inode: InodeNumber,
        from: Cookie,
        take: &mut dyn FnMut(Box<[u8]>),
    ) -> Result<Option<Cookie>, Errno> {
        self.operation(|client| client.list_xattrs(caller, inode, from, &mut *take))
    }

    fn set_xattr(
        &mut self,
        caller: Caller<'_>,
        inode: InodeNumber,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<(), Errno> {
        while !self.set_xattr_step(caller, inode, name, value, mode)? {}
        Ok(())
    }

    fn set_xattr_step(
        &mut self,
        caller: Caller<'_>,
        inode: InodeNumber,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<bool, Errno> {
        self.operation(|client| client.put_xattr(caller, inode, name, value, mode))
    }

    fn remove_xattr(&mut self, caller: Caller<'_>, inode: InodeNumber, name: &[u8]) -> Result<(), Errno> {
        self.operation(|client| client.drop_xattr(caller, inode, name))
    }

    fn usage(&mut self) -> Usage {
        self.progress();
        let base = self.service.base();
        let (_, blocks) = base.free_blocks();
        let inodes = base.inodes();
        let free = self.usable_blocks().saturating_sub(self.promised_blocks);
        Usage { block_bytes: BLOCK as u32, blocks, free, inodes }
    }
}

impl<S: Service<M>, M: Medium> Leased for Client<S, M> {
    fn set_waits(&mut self, waits: bool) {
        self.leases.waits = waits;
    }

    fn is_going(&self) -> bool {
        self.is_alive()
    }

    fn take_notice(&mut self) -> bool {
        self.advance_by_step()
    }
}
