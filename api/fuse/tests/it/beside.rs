//! A model that is mounted and that the test uses as well, as another client does.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::io::Errno;
use sietch_fs::FileSystem;
use sietch_fs::access::{Caller, Credentials};
use sietch_fs::file_system::{
    Allocation, AttributeChange, DirectoryEntry, Handle, NewInode, OpenMode, Pending, PendingSync,
    RenameMode, Seek, SyncPoint, Usage, Waited, Ways, WriteAt, XattrMode,
};
use sietch_fs::inode::{Attributes, InodeNumber, Kind, Timestamp};
use sietch_fs::name::Cookie;
use sietch_fs_oracle::Model;

/// The name whose lookup panics.
pub(crate) const PANICS: &str = "panics";
/// A name that another client creates just before the kernel does.
pub(crate) const OVERTAKEN: &str = "overtaken";
/// As [`OVERTAKEN`]; another client removes it before the next request.
pub(crate) const FLEETING: &str = "fleeting";

/// What syncs and writes wait for while it is closed. Until it opens, an operation that is done in
/// steps has another one.
#[derive(Default)]
pub(crate) struct Gate {
    is_closed: Mutex<bool>,
    opened: Condvar,
    /// Requests that have found it closed.
    pub(crate) arrivals: AtomicUsize,
}

impl Gate {
    fn is_closed(&self) -> MutexGuard<'_, bool> {
        self.is_closed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn close(&self) {
        *self.is_closed() = true;
    }

    pub(crate) fn open(&self) {
        *self.is_closed() = false;
        self.opened.notify_all();
    }

    fn pass(&self) {
        let waited = self.opened.wait_while(self.is_closed(), |is_closed| *is_closed);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    /// Waits at the gate, if it is closed.
    fn arrive(gate: &Arc<Self>) -> Option<Waiting> {
        let is_closed = *gate.is_closed();
        is_closed.then(|| {
            gate.arrivals.fetch_add(1, Ordering::Relaxed);
            Waiting(Arc::clone(gate))
        })
    }
}

struct Waiting(Arc<Gate>);

impl Pending for Waiting {
    fn wait(&mut self) {
        self.0.pass();
    }
}

impl PendingSync for Waiting {
    fn wait(&mut self) -> bool {
        self.0.pass();
        true
    }
}

#[derive(Default)]
pub(crate) struct Inside {
    pub(crate) gate: Arc<Gate>,
    /// The gate stops no write, and the answer to each waits at it.
    pub(crate) pauses: bool,
    /// Writes that the service does not answer.
    pub(crate) unanswered: usize,
    /// Operations do not wait within, and one that has to wait was stopped by this.
    is_try: bool,
    has_written: bool,
    stopped: Option<(Waited, Box<dyn Pending>)>,
    pub(crate) model: Model,
    /// What the front end holds.
    pub(crate) retained: HashMap<InodeNumber, u64>,
    pub(crate) handles: HashSet<Handle>,
    /// Calls of `sync`.
    pub(crate) syncs: usize,
    /// What another client appends just after the next append.
    pub(crate) appended_next: Option<Vec<u8>>,
    /// A user whose limit is reached: it writes nothing more.
    pub(crate) at_limit: Option<u32>,
    /// Another client has this inode while the gate is closed, and all that is open.
    pub(crate) elsewhere: Option<InodeNumber>,
    /// Names and attributes are not changed while the gate is closed.
    pub(crate) delays_changes: bool,
    /// A user whose removals are never free: what it creates waits for its limit.
    pub(crate) waits_for_limit: Option<u32>,
}

/// A commit that frees nothing.
struct Commit;

impl Pending for Commit {
    fn wait(&mut self) {
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The model. Clones are the same one.
#[derive(Clone, Default)]
pub(crate) struct Beside {
    inside: Arc<Mutex<Inside>>,
}

impl Beside {
    pub(crate) fn inside(&self) -> MutexGuard<'_, Inside> {
        self.inside.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Works on the model as another client of root does.
    pub(crate) fn client<T>(&self, work: impl FnOnce(&mut Model, Caller<'_>) -> Result<T, Errno>) -> T {
        let credentials = Credentials::root();
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
        let now = Timestamp { seconds: now.tv_sec, nanoseconds: now.tv_nsec as u32 };
        work(&mut self.inside().model, Caller { credentials: &credentials, now })
            .expect("the model permits it")
    }

    /// The inode of a name in the root directory.
    pub(crate) fn find(&self, name: &str) -> InodeNumber {
        self.client(|model, caller| model.lookup(caller, InodeNumber::ROOT, name.as_bytes())).inode
    }

    /// The first bytes of a file in the root directory.
    pub(crate) fn content(&self, name: &str, length: usize) -> Vec<u8> {
        let found = self.find(name);
        self.client(|model, caller| {
            let mode = OpenMode { read: true, ..OpenMode::default() };
            let handle = model.open(caller, found, mode)?;
            let mut bytes = vec![0; length];
            model.read(handle, 0, &mut bytes)?;
            model.close(handle);
            Ok(bytes)
        })
    }

    /// Waits for an inode, or for what is open, that another client has. In a try it ends.
    fn looks_at(&self, inode: Option<InodeNumber>) -> Result<(), Errno> {
        let mut inside = self.inside();
        let is_elsewhere = inside.elsewhere.is_some_and(|elsewhere| inode.is_none_or(|at| at == elsewhere));
        if let Some(mut waiting) = is_elsewhere.then(|| Gate::arrive(&inside.gate)).flatten() {
            if inside.is_try {
                inside.stopped = Some((Waited::for_lease(), Box::new(waiting)));
                return Err(Errno::AGAIN);
            }
            drop(inside);
            Pending::wait(&mut waiting);
        }
        Ok(())
    }

    /// Whether a change of names or attributes, within a try, has to wait.
    fn delays_change(&self) -> bool {
        let mut inside = self.inside();
        let waiting = (inside.delays_changes && inside.is_try).then(|| Gate::arrive(&inside.gate)).flatten();
        let is_delayed = waiting.is_some();
        if let Some(waiting) = waiting {
            inside.stopped = Some((Waited::for_lease(), Box::new(waiting)));
        }
        is_delayed
    }

    fn opened(&self, handle: Result<Handle, Errno>) -> Result<Handle, Errno> {
        let handle = handle?;
        assert!(self.inside().handles.insert(handle), "a handle twice");
        Ok(handle)
    }
}

impl FileSystem for Beside {
    fn lookup(
        &mut self,
        caller: Caller<'_>,
        directory: InodeNumber,
        name: &[u8],
    ) -> Result<Attributes, Errno> {
        assert_ne!(name, PANICS.as_bytes(), "the test wants it");
        let found = self.inside().model.lookup(caller, directory, name)?;
        self.looks_at(Some(found.inode))?;
        Ok(found)
    }

    fn parent(&mut self, directory: InodeNumber) -> Result<InodeNumber, Errno> {
        self.inside().model.parent(directory)
    }

    fn attributes(&mut self, inode: InodeNumber) -> Result<Attributes, Errno> {
        self.looks_at(Some(inode))?;
        self.inside().model.attributes(inode)
    }

    fn set_attributes(
        &mut self,
        caller: Caller<'_>,
        inode: InodeNumber,
        handle: Option<Handle>,
        change: &AttributeChange,
    ) -> Result<Attributes, Errno> {
        if self.delays_change() {
            return Err(Errno::AGAIN);
        }
        self.inside().model.set_attributes(caller, inode, handle, change)
    }

    fn read_link(&mut self, inode: InodeNumber) -> Result<Vec<u8>, Errno> {
        self.looks_at(Some(inode))?;
        self.inside().model.read_link(inode)
    }

    fn create(
        &mut self,
        caller: Caller<'_>,
        directory: InodeNumber,
        name: &[u8],
        new: &NewInode<'_>,
    ) -> Result<Attributes, Errno> {
        if [OVERTAKEN, FLEETING].map(str::as_bytes).contains(&name) {
            let new = NewInode { kind: Kind::File, mode: 0o600, device: 0, target: &[] };
            self.client(|model, caller| model.create(caller, directory, name, &new));
        }
        let mut inside = self.inside();
        if inside.waits_for_limit == Some(caller.credentials.uid) {
            inside.stopped = Some((Waited::for_limit(), Box::new(Commit)));
            return Err(Errno::AGAIN);
        }
        inside.model.create(caller, directory, name, new)
    }

    fn create_unnamed(
        &mut self,
        caller: Caller<'_>,
        directory: InodeNumber,
        mode: u16,
    ) -> Result<(Attributes, Handle), Errno> {
        self.inside().model.create_unnamed(caller, directory, mode)
    }

    fn link(
        &mut self,
        caller: Caller<'_>,
        inode: InodeNumber,
        directory: InodeNumber,
        name: &[u8],
    ) -> Result<Attributes, Errno> {
        self.inside().model.link(caller, inode, directory, name)
    }

    fn unlink(&mut self, caller: Caller<'_>, directory: InodeNumber, name: &[u8]) -> Result<(), Errno> {
        if self.delays_change() {
            return Err(Errno::AGAIN);
        }
        self.inside().model.unlink(caller, directory, name)
    }

    fn remove_directory(
        &mut self,
        caller: Caller<'_>,
        directory: InodeNumber,
        name: &[u8],
    ) -> Result<(), Errno> {
        self.inside().model.remove_directory(caller, directory, name)
    }

    fn rename(
        &mut self,
        caller: Caller<'_>,
        from: (InodeNumber, &[u8]),
        to: (InodeNumber, &[u8]),
        mode: RenameMode,
    ) -> Result<(), Errno> {
        self.inside().model.rename(caller, from, to, mode)
    }

    fn rename_step(
        &mut self,
        caller: Caller<'_>,
        from: (InodeNumber, &[u8]),
        to: (InodeNumber, &[u8]),
        mode: RenameMode,
        _: &mut Ways,
    ) -> Result<bool, Errno> {
        if Gate::arrive(&self.inside().gate).is_some() {
            return Ok(false);
        }
        self.rename(caller, from, to, mode).map(|()| true)
    }

    fn open(&mut self, caller: Caller<'_>, inode: InodeNumber, mode: OpenMode) -> Result<Handle, Errno> {
        self.looks_at(Some(inode))?;
        let handle = self.inside().model.open(caller, inode, mode);
        self.opened(handle)
    }

    fn open_created(&mut self, inode: InodeNumber, mode: OpenMode) -> Result<Handle, Errno> {
        let handle = self.inside().model.open_created(inode, mode);
        self.opened(handle)
    }

    fn close(&mut self, handle: Handle) {
        assert!(self.inside().handles.remove(&handle), "closed what is not open");
        self.inside().model.close(handle);
    }

    fn retain(&mut self, inode: InodeNumber) -> Result<(), Errno> {
        self.inside().model.retain(inode)?;
        *self.inside().retained.entry(inode).or_default() += 1;
        Ok(())
    }

    fn release(&mut self, inode: InodeNumber, count: u64) {
        let mut inside = self.inside();
        let held = inside.retained.get_mut(&inode).expect("it was retained");
        *held = held.checked_sub(count).expect("no more than was retained");
        inside.model.release(inode, count);
    }

    fn read(&mut self, handle: Handle, offset: u64, bytes: &mut [u8]) -> Result<usize, Errno> {
        self.looks_at(None)?;
        self.inside().model.read(handle, offset, bytes)
    }

    fn write(&mut self, caller: Caller<'_>, handle: Handle, at: WriteAt, bytes: &[u8]) -> Result<u64, Errno> {
        let mut inside = self.inside();
        let stops = !inside.pauses;
        if let Some(mut waiting) = stops.then(|| Gate::arrive(&inside.gate)).flatten() {
            if inside.is_try {
                inside.stopped = Some((Waited::default(), Box::new(waiting)));
                return Err(Errno::AGAIN);
            }
            drop(inside);
            Pending::wait(&mut waiting);
            inside = self.inside();
        }
        if inside.unanswered > 0 {
            inside.unanswered -= 1;
            return Err(Errno::TIMEDOUT);
        }
        if inside.at_limit == Some(caller.credentials.uid) {
            return Err(Errno::DQUOT);
        }
        let start = inside.model.write(caller, handle, at, bytes)?;
        inside.has_written = true;
        if at == WriteAt::End
            && let Some(next) = inside.appended_next.take()
        {
            inside.model.write(caller, handle, WriteAt::End, &next)?;
        }
        Ok(start)
    }

    fn allocate(
        &mut self,
        caller: Caller<'_>,
        handle: Handle,
        range: Range<u64>,
        allocation: Allocation,
    ) -> Result<(), Errno> {
        self.inside().model.allocate(caller, handle, range, allocation)
    }

    fn seek(&mut self, handle: Handle, offset: u64, what: Seek) -> Result<u64, Errno> {
        self.looks_at(None)?;
        self.inside().model.seek(handle, offset, what)
    }

    fn sync(&mut self) -> Result<(), Errno> {
        let mut inside = self.inside();
        inside.syncs += 1;
        inside.model.sync()
    }

    fn begin_sync(&mut self, _: &mut SyncPoint) -> Result<Option<Box<dyn PendingSync>>, Errno> {
        self.sync()?;
        let waiting = Gate::arrive(&self.inside().gate);
        Ok(waiting.map(|waiting| Box::new(waiting) as Box<dyn PendingSync>))
    }

    fn begin_try(&mut self, _: Waited) {
        let mut inside = self.inside();
        (inside.is_try, inside.has_written) = (true, false);
        // It is there after a creation alone.
        let (root, now) = (Credentials::root(), Timestamp { seconds: 1, nanoseconds: 0 });
        let caller = Caller { credentials: &root, now };
        let _ = inside.model.unlink(caller, InodeNumber::ROOT, FLEETING.as_bytes());
    }

    fn end_try(&mut self) -> Option<(Waited, Box<dyn Pending>)> {
        let mut inside = self.inside();
        inside.is_try = false;
        let pause = (inside.pauses && inside.has_written).then(|| Gate::arrive(&inside.gate)).flatten();
        let pause = pause.map(|pause| (Waited::default(), Box::new(pause) as Box<dyn Pending>));
        inside.stopped.take().or(pause)
    }

    fn read_directory(
        &mut self,
        handle: Handle,
        after: Cookie,
        take: &mut dyn FnMut(DirectoryEntry) -> bool,
    ) -> Result<(), Errno> {
        self.looks_at(None)?;
        self.inside().model.read_directory(handle, after, take)
    }

    fn check_access(&mut self, caller: Caller<'_>, inode: InodeNumber, wanted: u8) -> Result<(), Errno> {
        self.inside().model.check_access(caller, inode, wanted)
    }

    fn xattr(&mut self, caller: Caller<'_>, inode: InodeNumber, name: &[u8]) -> Result<Vec<u8>, Errno> {
        self.inside().model.xattr(caller, inode, name)
    }

    fn xattr_names(&mut self, caller: Caller<'_>, inode: InodeNumber) -> Result<Vec<Box<[u8]>>, Errno> {
        self.inside().model.xattr_names(caller, inode)
    }

    fn xattr_names_step(
        &mut self,
        caller: Caller<'_>,
        inode: InodeNumber,
        from: Cookie,
        take: &mut dyn FnMut(Box<[u8]>),
    ) -> Result<Option<Cookie>, Errno> {
        if Gate::arrive(&self.inside().gate).is_some() {
            return Ok(Some(from));
        }
        self.xattr_names(caller, inode)?.into_iter().for_each(take);
        Ok(None)
    }

    fn set_xattr(
        &mut self,
        caller: Caller<'_>,
        inode: InodeNumber,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<(), Errno> {
        self.inside().model.set_xattr(caller, inode, name, value, mode)
    }

    fn set_xattr_step(
        &mut self,
        caller: Caller<'_>,
        inode: InodeNumber,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<bool, Errno> {
        if Gate::arrive(&self.inside().gate).is_some() {
            return Ok(false);
        }
        self.set_xattr(caller, inode, name, value, mode).map(|()| true)
    }

    fn remove_xattr(&mut self, caller: Caller<'_>, inode: InodeNumber, name: &[u8]) -> Result<(), Errno> {
        self.inside().model.remove_xattr(caller, inode, name)
    }

    fn usage(&mut self) -> Usage {
        self.inside().model.usage()
    }
}
