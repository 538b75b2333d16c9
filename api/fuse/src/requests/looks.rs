//! Requests that change nothing. They wait for leases as those that change something wait for room:
//! see [`crate::changes`].
//!
//! 1. A request with one step gives its answer when that step is done.
//! 2. A listing has many steps. What they found goes into the reply, which the steps and the answer
//!    share. Where a later step cannot be done at once the answer has what was found before: the
//!    kernel asks for the rest.

use std::cell::RefCell;
use std::ffi::OsStr;

use fuser::{
    FileHandle, INodeNo, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyLseek,
    ReplyXattr, Request,
};
use rustix::io::Errno;
use sietch_fs::FileSystem;
use sietch_fs::access::Caller;
use sietch_fs::file_system::{Handle, Seek, Sought, Waited};
use sietch_fs::lease::Mode;
use sietch_fs::name::Cookie;

use super::{MAX_TRANSFER, Requests};
use crate::attributes::{errno, inode, now, stale};
use crate::changes::{How, KEPT};
use crate::listing::{InTurns, Listed, list, list_with_attributes};
use crate::operations::own;
use crate::replies::{Shared, owned, reply_empty, reply_entry, reply_value};
use crate::state::{State, Tried};

thread_local! {
    /// What was read last, so that a read does not clear a new buffer each time.
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

impl<F: FileSystem + Send + 'static> Requests<F> {
    /// How a request is answered that changes nothing.
    pub(super) fn how_looked(&self, request: &Request) -> How {
        How { syncs: false, ..self.how(request) }
    }

    /// Runs an operation that changes nothing, for a user that the kernel permits it, and answers:
    /// later, if another client has what it looks at.
    pub(super) fn look<T: Send + 'static>(
        &self,
        request: &Request,
        operation: impl FnMut(&mut State<F>, Caller<'_>) -> Result<T, Errno> + Send + 'static,
        answer: impl FnOnce(Result<T, fuser::Errno>) + Send + 'static,
    ) {
        self.run_permitted((request, self.how_looked(request)), operation, answer);
    }

    pub(super) fn look_up(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let (parent, name, keep) = (inode(parent), owned(name), self.keep);
        let find = move |state: &mut State<F>, caller: Caller<'_>| {
            // The first two are for handles of `open_by_handle_at(2)` and NFS.
            let shown = match &*name {
                b"." => state.file_system.attributes(parent)?,
                b".." => {
                    let above = state.file_system.parent(parent)?;
                    state.file_system.attributes(above)?
                }
                name => state.file_system.lookup(caller, parent, name)?,
            };
            state.retain(shown)
        };
        self.look(request, find, move |found| reply_entry(found, keep, reply));
    }

    /// Makes durable what any client has changed of an inode: that of another one is when its lease
    /// has passed.
    pub(super) fn sync_inode(&self, request: &Request, number: INodeNo, reply: ReplyEmpty) {
        let (changes, user) = (self.changes.clone(), Some(request.uid()));
        let hold =
            move |state: &mut State<F>, _: Caller<'_>| state.file_system.hold(inode(number), Mode::Shared);
        self.look(request, hold, move |held| match held {
            Ok(()) => changes.sync(user, move |synced| reply_empty(synced.map_err(errno), reply)),
            Err(errno) => reply.error(errno),
        });
    }

    pub(super) fn read_at(
        &self,
        request: &Request,
        handle: Handle,
        offset: u64,
        size: usize,
        reply: ReplyData,
    ) {
        // A read that waits has no bytes yet.
        let how = self.how_looked(request);
        BUFFER.with_borrow_mut(|buffer| {
            if buffer.len() < size {
                buffer.resize(size, 0);
            }
            let bytes = &mut buffer[..size];
            let read = |state: &mut State<F>| state.file_system.read(handle, offset, bytes);
            match self.changes.shared.attempt(how.user, Waited::default(), read) {
                Tried::Done(Ok(count), _) => reply.data(&buffer[..count.min(size)]),
                Tried::Done(Err(error), _) => reply.error(errno(error)),
                Tried::Waits(waited, pending) => {
                    let read = move |state: &mut State<F>| {
                        let mut bytes = vec![0; size];
                        let count = state.file_system.read(handle, offset, &mut bytes)?;
                        bytes.truncate(count);
                        Ok(bytes)
                    };
                    let answer = move |read: Result<Vec<u8>, Errno>| match read {
                        Ok(bytes) => reply.data(&bytes),
                        Err(error) => reply.error(errno(error)),
                    };
                    self.changes.go_on(how, Tried::Waits(waited, pending), read, answer);
                }
            }
        });
    }

    pub(super) fn list(
        &self,
        request: &Request,
        number: INodeNo,
        handle: FileHandle,
        offset: u64,
        reply: ReplyDirectory,
    ) {
        let how = How { kept: KEPT + MAX_TRANSFER as usize, ..self.how_looked(request) };
        let (reply, mut steps) = (Shared::new(reply), InTurns::from(offset));
        let adds = reply.clone();
        let step = move |state: &mut State<F>| {
            adds.with(|reply| steps.step(|offset| list(state, number, handle, offset, reply)))
        };
        self.changes.run_in_turns(how, step, move |listed| match (listed, reply.take()) {
            (Ok(Listed), Some(reply)) => reply.ok(),
            (Err(error), Some(reply)) => reply.error(errno(error)),
            (_, None) => {}
        });
    }

    pub(super) fn list_with_attributes(
        &self,
        request: &Request,
        number: INodeNo,
        handle: FileHandle,
        offset: u64,
        reply: ReplyDirectoryPlus,
    ) {
        let how = How { kept: KEPT + MAX_TRANSFER as usize, ..self.how_looked(request) };
        let (reply, mut steps, keep) = (Shared::new(reply), InTurns::from(offset), self.keep);
        let adds = reply.clone();
        let step = move |state: &mut State<F>| {
            adds.with(|reply| {
                steps.step(|offset| list_with_attributes(state, number, handle, offset, keep, reply))
            })
        };
        self.changes.run_in_turns(how, step, move |listed| match (listed, reply.take()) {
            (Ok(Listed), Some(reply)) => reply.ok(),
            (Err(error), Some(reply)) => reply.error(errno(error)),
            (_, None) => {}
        });
    }

    pub(super) fn list_xattrs(&self, request: &Request, number: INodeNo, size: u32, reply: ReplyXattr) {
        // The kernel does not hide the names that only root may see.
        let (mut names, mut from, credentials) = (Vec::new(), Cookie(0), own(request));
        let step = move |state: &mut State<F>| {
            let caller = Caller { credentials: &credentials, now: now() };
            let mut take = |name: Box<[u8]>| {
                names.extend_from_slice(&name);
                names.push(0);
            };
            let next = state.file_system.xattr_names_step(caller, inode(number), from, &mut take);
            match next.map_err(stale)? {
                Some(next) => {
                    from = next;
                    Ok(None)
                }
                None => Ok(Some(std::mem::take(&mut names))),
            }
        };
        let answer = move |names: Result<Vec<u8>, Errno>| reply_value(names.map_err(errno), size, reply);
        self.changes.run_in_turns(self.how_looked(request), step, answer);
    }

    pub(super) fn seek(
        &self,
        request: &Request,
        handle: Handle,
        mut from: u64,
        what: Seek,
        reply: ReplyLseek,
    ) {
        let step = move |state: &mut State<F>| match state.file_system.seek_step(handle, from, what)? {
            Sought::Found(at) => Ok(Some(at)),
            Sought::From(next) => {
                from = next;
                Ok(None)
            }
        };
        self.changes.run_in_turns(self.how_looked(request), step, move |found| match found {
            // Within the largest file.
            Ok(at) => reply.offset(at as i64),
            Err(error) => reply.error(errno(error)),
        });
    }
}
