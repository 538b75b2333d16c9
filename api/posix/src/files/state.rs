//! The open files of mounts, and the file systems that this process is a client of.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::c_int;
use std::os::fd::RawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use sietch_fs::Leased;
use sietch_fs::file_system::{Handle, PendingSync};
use sietch_fs::inode::InodeNumber;

use super::mounts::{self, Identity};
use super::words;
use crate::signal::handlers::{self, Section};
use crate::system::cancellation::Whole;
use crate::system::sys::{self, Errno};
use crate::system::{fork, kernel};

/// How long a file system that could not be reached is left alone, in nanoseconds.
const RETRY_AFTER: u64 = 1_000_000_000;

/// The last descriptor of the C library's standard streams, which closes and opens these numbers
/// past this library (`fclose(3)`, `freopen(3)`): they stay the kernel's.
const LAST_STANDARD: c_int = 2;

/// A file system that this process became a client of.
pub struct AttachedStore {
    /// Its operations.
    pub client: Box<dyn Leased + Send>,
    /// Waits until the service says something; `false`: it says nothing more.
    pub wait: Box<dyn FnMut() -> bool + Send>,
    /// All descriptors that it has.
    pub descriptors: Vec<RawFd>,
    /// Each change is to be durable when it returns.
    pub syncs: bool,
}

/// Becomes a client of the file system whose service is in a folder. `Err`: why not.
pub type Attach = fn(&Path) -> Result<AttachedStore, String>;

static ATTACH: OnceLock<Attach> = OnceLock::new();

/// Says how a process becomes a client; the first one stays.
pub fn set_attach(attach: Attach) {
    let _ = ATTACH.set(attach);
}

/// An open file of a mount, of one open file description.
#[derive(Debug)]
pub(crate) struct File {
    pub(crate) device: u64,
    pub(crate) inode: u64,
    pub(crate) may_read: bool,
    pub(crate) may_write: bool,
    pub(crate) appends: bool,
    /// Each write is followed by a sync (`O_SYNC`, `O_DSYNC`).
    pub(crate) syncs: bool,
    /// Descriptors of this process.
    references: u32,
    /// Differs from that of every other file that had its number here.
    pub(crate) serial: u64,
    /// Calls that the kernel did since there was a lease, and after how many there shall be one.
    pub(crate) calls: u32,
    pub(crate) patience: u32,
    /// Calls that the client did since there is one.
    pub(crate) calls_here: u32,
    /// Calls at the position that the kernel does now.
    pub(crate) in_kernel: u32,
    /// Another process may have the description.
    pub(crate) is_shared: bool,
    /// What the client has of it.
    pub(crate) open: Option<Open>,
}

impl File {
    /// Whether no other process, and no call of the kernel's, uses the position.
    pub(crate) fn has_position(&self) -> bool {
        self.in_kernel == 0 && !self.is_shared
    }

    /// A file that was opened: whether for reading and for writing, whether with `O_APPEND` and
    /// with `O_DSYNC`.
    pub(crate) fn new(
        identity: Identity,
        (may_read, may_write): (bool, bool),
        (appends, syncs): (bool, bool),
    ) -> Self {
        let Identity { device, inode } = identity;
        Self {
            device,
            inode,
            may_read,
            may_write,
            appends,
            syncs,
            references: 0,
            serial: 0,
            calls: 0,
            patience: mounts::calls(),
            calls_here: 0,
            in_kernel: 0,
            is_shared: false,
            open: None,
        }
    }
}

/// A handle of a client.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Open {
    pub(crate) store: usize,
    pub(crate) serial: u64,
    pub(crate) handle: Handle,
}

/// A file system, by the folder of its service.
pub(crate) struct Store {
    folder: PathBuf,
    /// Number of the client: handles of an earlier one mean nothing.
    pub(crate) serial: u64,
    client: Option<Box<dyn Leased + Send>>,
    descriptors: Vec<RawFd>,
    /// What clients have opened here, and may not have closed in this process's table: a child in
    /// the same memory may have ended them in its own.
    opened: Vec<(RawFd, Identity)>,
    /// Each change is to be durable when it returns.
    pub(crate) syncs: bool,
    /// Who this process was when it became a client: limits of users are those of this one.
    pub(crate) uid: u32,
    /// Before that time it is not tried again.
    retry_at: u64,
    /// Inodes that may be used while there is a lease on them, by the number of their claim.
    pub(crate) claims: BTreeMap<u64, Claim>,
    /// Handles of the client's, by inode.
    pub(crate) handles: BTreeMap<u64, Handles>,
}

/// Handles of an inode.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Handles {
    pub(crate) count: u32,
    /// There was one that may write.
    pub(crate) has_writer: bool,
}

/// Of an inode: see [`super::claim`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Claim {
    pub(crate) number: u64,
    pub(crate) is_valid: bool,
    /// Since the kernel has asked for the size.
    pub(crate) has_written: bool,
}

/// The module's header describes it.
pub(crate) struct State {
    files: Vec<Option<File>>,
    free: Vec<usize>,
    /// Files that were closed where nothing can be freed.
    closed: Vec<usize>,
    pub(crate) stores: Vec<Store>,
    /// Inodes that this process maps, by device.
    pub(crate) mapped: BTreeSet<(u64, u64)>,
    /// Inodes of which the kernel does not know the size, by device.
    pub(crate) behind: BTreeSet<(u64, u64)>,
    /// Files that were put here.
    serials: u64,
    /// Children that are being made and will have all descriptions: see [`spawning`].
    spawning: u32,
    /// Claims that were begun.
    pub(crate) claims: u64,
    /// Calls that the kernel did.
    pub(crate) calls: u32,
    /// How long it took to get a lease, on average of the last ones.
    pub(crate) lease_nanos: u64,
}

/// Whether a descriptor is still of this file.
fn is_open((fd, file): &(RawFd, Identity)) -> bool {
    mounts::identity(*fd) == Some(*file)
}

/// The effective user.
fn user() -> u32 {
    // SAFETY: touches no memory.
    let uid = unsafe { sys::syscall(libc::SYS_geteuid, [0; 6]) };
    uid.ok().and_then(|uid| u32::try_from(uid).ok()).unwrap_or_default()
}

impl State {
    const EMPTY: Self = Self {
        files: Vec::new(),
        free: Vec::new(),
        closed: Vec::new(),
        stores: Vec::new(),
        mapped: BTreeSet::new(),
        behind: BTreeSet::new(),
        serials: 0,
        spawning: 0,
        claims: 0,
        calls: 0,
        lease_nanos: 0,
    };
}

static STATE: Mutex<State> = Mutex::new(State::EMPTY);

/// That of a child of a fork in which no handler ran: another thread of its parent may have had the
/// lock, and nothing releases it there. Such a process has no files here.
static ORPHANED: Mutex<State> = Mutex::new(State::EMPTY);
static IS_ORPHANED: AtomicBool = AtomicBool::new(false);

/// Runs `work` with everything that is known. No handler of the program runs in this thread
/// meanwhile, and it is not cancelled.
pub(crate) fn with<T>(work: impl FnOnce(&mut State) -> T) -> T {
    let _whole = Whole::begin();
    let _section = Section::enter();
    // A child that was made by a system call: no handler has run.
    if let Some(own) = fork::own_word_of_files()
        && own.load(Relaxed) == 0
    {
        own.store(1, Relaxed);
        orphan();
    }
    let mut state = lock();
    if !state.closed.is_empty() && !handlers::is_running() {
        state.sweep();
    }
    work(&mut state)
}

fn lock() -> MutexGuard<'static, State> {
    let state = if IS_ORPHANED.load(Relaxed) { &ORPHANED } else { &STATE };
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Gives all files to the kernel, and leaves the clients to the parent.
#[cold]
fn orphan() {
    IS_ORPHANED.store(true, Relaxed);
    SYNCS.store(0, Release);
    mounts::forget_all();
    for fd in words::range(0, u32::MAX) {
        if words::take(fd) == words::HIDDEN {
            let _ = kernel::close(fd);
        }
    }
}

impl State {
    /// The file of a descriptor, by its number here.
    pub(crate) fn of(&self, fd: c_int) -> Option<usize> {
        let word = words::get(fd);
        if word == 0 || word == words::HIDDEN { None } else { Some(word as usize - 1) }
    }

    pub(crate) fn file(&mut self, number: usize) -> Option<&mut File> {
        self.files.get_mut(number)?.as_mut()
    }

    /// Takes a file that `fd` was opened for.
    pub(crate) fn put(&mut self, fd: c_int, mut file: File) {
        self.serials += 1;
        (file.references, file.serial) = (1, self.serials);
        file.is_shared |= self.spawning != 0;
        let number = self.free.pop().unwrap_or_else(|| {
            self.files.push(None);
            self.closed.reserve(self.files.len());
            self.free.reserve(self.files.len());
            self.files.len() - 1
        });
        let word = u32::try_from(number + 1).unwrap_or(words::HIDDEN);
        if word != words::HIDDEN && fd > LAST_STANDARD && words::set(fd, word) {
            self.files[number] = Some(file);
        } else {
            self.free.push(number);
        }
    }

    /// Another descriptor of a file's description.
    pub(crate) fn duplicate(&mut self, number: usize, new: c_int) {
        let Some(file) = self.file(number) else { return };
        file.references += 1;
        if new <= LAST_STANDARD {
            file.is_shared = true;
            self.drop_reference(number);
        } else if !words::set(new, number as u32 + 1) {
            self.drop_reference(number);
        }
    }

    /// Something else than the calls of this library may use the description of a descriptor.
    pub(crate) fn share_one(&mut self, fd: c_int) {
        if let Some(file) = self.of(fd).and_then(|number| self.file(number)) {
            file.is_shared = true;
        }
    }

    /// A descriptor with this word was closed.
    pub(crate) fn close(&mut self, word: u32) {
        if word != 0 && word != words::HIDDEN {
            self.drop_reference(word as usize - 1);
        }
    }

    fn drop_reference(&mut self, number: usize) {
        let Some(file) = self.file(number) else { return };
        file.references = file.references.saturating_sub(1);
        if file.references == 0 {
            // There is room for all files there.
            self.closed.push(number);
            if !handlers::is_running() {
                self.sweep();
            }
        }
    }

    /// Gives up what was closed.
    fn sweep(&mut self) {
        while let Some(number) = self.closed.pop() {
            let Some(file) = self.files.get_mut(number).and_then(Option::take) else { continue };
            if let Some(open) = file.open {
                self.close_handle(&file, open);
            }
            self.free.push(number);
        }
    }

    /// Closes what the client has of a file. The lease on one that was written goes with its last
    /// handle: the next process that opens the file does not wait for an answer of this one.
    fn close_handle(&mut self, file: &File, open: Open) {
        let closed = self.call(open, |client, handle| {
            client.close(handle);
            Ok(())
        });
        let Some(store) = self.stores.get_mut(open.store).filter(|_| closed.is_ok()) else { return };
        let Some(handles) = store.handles.get_mut(&file.inode) else { return };
        handles.count = handles.count.saturating_sub(1);
        if handles.count == 0 {
            let had_writer = handles.has_writer;
            store.handles.remove(&file.inode);
            if had_writer {
                store.give_up(file.inode);
            }
        }
    }

    /// The kernel maps a file from now on.
    pub(crate) fn map(&mut self, file: Identity) {
        self.mapped.insert((file.device, file.inode));
        self.stores.iter_mut().for_each(|store| store.give_up(file.inode));
    }

    /// Calls a client. `EIO` if it is not the one that the handle is of, or panicked.
    pub(crate) fn call<T>(
        &mut self,
        open: Open,
        work: impl FnOnce(&mut (dyn Leased + Send), Handle) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        let store = self.stores.get_mut(open.store).ok_or(libc::EIO)?;
        if store.serial != open.serial {
            return Err(libc::EIO);
        }
        store.run(|client| work(client, open.handle))
    }

    /// The file system whose service is in `folder`, of which this process is a client then.
    /// `None`: it cannot be one.
    pub(crate) fn store(&mut self, folder: &Path) -> Option<usize> {
        let found = self.stores.iter().position(|store| store.folder == folder);
        let at = found.unwrap_or_else(|| {
            self.stores.push(Store {
                folder: folder.to_owned(),
                serial: 0,
                client: None,
                descriptors: Vec::new(),
                opened: Vec::new(),
                syncs: false,
                uid: 0,
                retry_at: 0,
                claims: BTreeMap::new(),
                handles: BTreeMap::new(),
            });
            self.stores.len() - 1
        });
        self.stores.get_mut(at)?.attach(at).then_some(at)
    }

    /// Leaves the file systems that have descriptors in a range: the program wants the numbers.
    pub(crate) fn give_up(&mut self, range: std::ops::RangeInclusive<c_int>) {
        for store in &mut self.stores {
            if store.descriptors.iter().any(|fd| range.contains(fd)) {
                store.leave();
            }
        }
    }

    /// Whether this process is a client of any file system.
    pub(crate) fn is_client(&self) -> bool {
        self.stores.iter().any(|store| store.client.is_some())
    }

    /// Whether the client of a handle can still do something.
    pub(crate) fn is_going(&self, open: Open) -> bool {
        self.stores.get(open.store).is_some_and(|store| {
            store.serial == open.serial && store.client.as_ref().is_some_and(|client| client.is_going())
        })
    }
}

impl Store {
    /// Becomes a client, if this process is none.
    fn attach(&mut self, at: usize) -> bool {
        if self.client.as_ref().is_some_and(|client| client.is_going()) {
            return true;
        }
        self.leave();
        let may_begin = may_begin() && kernel::now() >= self.retry_at;
        let Some(attach) = ATTACH.get().filter(|_| may_begin) else { return false };
        // Its threads run no handler of the program.
        let mask = handlers::block_for_threads();
        let folder = self.folder.clone();
        let attached =
            catch_unwind(move || attach(&folder)).unwrap_or_else(|_| Err("it panicked".to_owned()));
        let is_attached = match attached {
            Ok(attached) => self.take(at, attached),
            Err(cause) => {
                mounts::report(&cause);
                false
            }
        };
        handlers::restore(mask);
        if !is_attached {
            self.retry_at = kernel::now() + RETRY_AFTER;
        }
        is_attached
    }

    fn take(&mut self, at: usize, attached: AttachedStore) -> bool {
        let AttachedStore { mut client, wait, descriptors, syncs } = attached;
        let serial = self.serial + 1;
        let looking = std::thread::Builder::new().name("sietch-files".to_owned());
        if looking.spawn(move || look_after(at, serial, wait)).is_err() {
            return false;
        }
        client.set_waits(false);
        self.opened.retain(is_open);
        self.opened.extend(descriptors.iter().filter_map(|fd| Some((*fd, mounts::identity(*fd)?))));
        for fd in &descriptors {
            words::set(*fd, words::HIDDEN);
        }
        (self.descriptors, self.syncs, self.uid) = (descriptors, syncs, user());
        self.client = Some(client);
        self.serial = serial;
        true
    }

    /// Stops to be a client. What was done survives.
    fn leave(&mut self) {
        self.forget_descriptors();
        self.claims.clear();
        self.handles.clear();
        self.serial += 1;
        let client = self.client.take();
        // One that has panicked may do so again.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(client)));
    }

    /// Closes what clients that have ended left open. All of it stays known: the next caller may be
    /// a process with another table.
    fn close_opened(&mut self) {
        for entry in self.opened.iter().filter(|entry| is_open(entry)) {
            let _ = kernel::close(entry.0);
        }
    }

    fn forget_descriptors(&mut self) -> Vec<RawFd> {
        let descriptors = std::mem::take(&mut self.descriptors);
        for fd in &descriptors {
            if words::get(*fd) == words::HIDDEN {
                words::take(*fd);
            }
        }
        descriptors
    }

    /// Calls the client.
    pub(crate) fn run<T>(
        &mut self,
        work: impl FnOnce(&mut (dyn Leased + Send)) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        let client = self.client.as_mut().ok_or(libc::EIO)?;
        match catch_unwind(AssertUnwindSafe(|| work(client.as_mut()))) {
            Ok(result) => result,
            Err(_) => {
                // Its state cannot be trusted any more.
                self.leave();
                Err(libc::EIO)
            }
        }
    }

    /// Gives the lease on an inode back, if there was a claim.
    fn give_up(&mut self, inode: u64) {
        if self.claims.remove(&inode).is_some() {
            let _ = self.run(|client| {
                client.give_up(InodeNumber(inode));
                Ok(())
            });
        }
    }

    /// Waits for a lease, as far as the client knows.
    pub(crate) fn hold(&mut self, inode: u64, mode: sietch_fs::lease::Mode) -> Result<(), Errno> {
        self.run(|client| client.hold(InodeNumber(inode), mode).map_err(|errno| errno.raw_os_error()))
    }
}

/// File systems that this process became a client of, so far.
pub(crate) fn stores() -> usize {
    with(|state| state.stores.len())
}

/// Calls the client of a file system, if there is one. What one that was ended has written is the
/// service's.
pub(crate) fn with_store<T>(
    at: usize,
    work: impl FnOnce(&mut (dyn Leased + Send)) -> Result<T, Errno>,
) -> Option<Result<T, Errno>> {
    with(|state| {
        let is_going = |store: &&mut Store| store.client.as_ref().is_some_and(|client| client.is_going());
        let store = state.stores.get_mut(at).filter(is_going)?;
        Some(store.run(work))
    })
}

/// Calls that take rights from this process, under way or done: no client begins.
static RETIREMENTS: AtomicU32 = AtomicU32::new(0);

/// Syncs that threads wait for. Each has a part of its client: the memory and the disk of the log.
static SYNCS: AtomicU32 = AtomicU32::new(0);

/// Whether this process may become a client.
pub(crate) fn may_begin() -> bool {
    RETIREMENTS.load(Acquire) == 0
}

/// Ends every client, for good: this process is about to lose rights, and a client has media and
/// log open by the rights that it had. Nothing of one is open or mapped when this returns.
pub(crate) fn retire() {
    // Before the lock, under which clients begin.
    RETIREMENTS.fetch_add(1, AcqRel);
    if mounts::are_any() {
        with(|state| state.stores.iter_mut().for_each(Store::leave));
    }
    while SYNCS.load(Acquire) != 0 {
        kernel::pause();
    }
    // Nothing of a client is left that would close its descriptors.
    if mounts::are_any() {
        with(|state| state.stores.iter_mut().for_each(Store::close_opened));
    }
}

/// The process has lost nothing after all.
pub(crate) fn resume() {
    RETIREMENTS.fetch_sub(1, AcqRel);
}

/// A sync that this thread waits for while others use the client. No handler of the program runs in
/// it meanwhile: one that gives up rights would wait for the sync that it has interrupted.
pub(crate) struct Syncing {
    // Ends before it is counted off.
    pending: Option<Box<dyn PendingSync>>,
    _section: Section,
}

impl Syncing {
    /// Counts a sync that was begun. To be made where the client is used, under its lock.
    pub(crate) fn new(pending: Box<dyn PendingSync>) -> Self {
        SYNCS.fetch_add(1, AcqRel);
        Self { pending: Some(pending), _section: Section::enter() }
    }

    /// Whether everything is durable then; if not, the client has to be asked again.
    pub(crate) fn wait(mut self) -> bool {
        self.pending.as_mut().is_some_and(|pending| pending.wait())
    }
}

impl Drop for Syncing {
    fn drop(&mut self) {
        drop(self.pending.take());
        SYNCS.fetch_sub(1, AcqRel);
    }
}

/// In a child that was made without the handlers of a fork: leaves what is its parent's, before
/// code of the program runs. Elsewhere this does nothing.
pub(crate) fn leave_if_child() {
    if mounts::are_any() && fork::own_word_of_files().is_some_and(|own| own.load(Relaxed) == 0) {
        with(|_| ());
    }
}

/// Answers what the service says while no call does.
fn look_after(at: usize, serial: u64, mut wait: Box<dyn FnMut() -> bool + Send>) {
    while wait() {
        let mut has_more = true;
        while has_more {
            let noticed = with(|state| {
                let store = state.stores.get_mut(at).filter(|store| store.serial == serial)?;
                store.run(|client| Ok(client.take_notice())).ok()
            });
            let Some(more) = noticed else { return };
            has_more = more;
        }
    }
    // The next service needs the files that this client has locked.
    with(|state| {
        let store = state.stores.get_mut(at).filter(|store| store.serial == serial);
        store.into_iter().for_each(Store::leave);
    });
}

/// Makes a child in which no handler of a fork runs, and which has all descriptions: those of now,
/// and those that other threads put here until `make` returns. The lock is not held meanwhile: the
/// mount may have the child's program, and may wait for this process.
pub(crate) fn spawning<T>(make: impl FnOnce() -> T) -> T {
    if !mounts::are_any() {
        return make();
    }
    with(|state| {
        state.share();
        state.spawning += 1;
    });
    // If the thread is cancelled here, files are shared from now on, which is slower.
    let made = make();
    let errno = sys::errno();
    with(|state| state.spawning = state.spawning.saturating_sub(1));
    sys::set_errno(errno);
    made
}

/// What a fork holds: the lock, taken by the thread that forks, in which no handler runs meanwhile.
struct Forking(std::cell::UnsafeCell<Option<(MutexGuard<'static, State>, Section)>>);

// SAFETY: used between the two ends of a fork alone, by the thread that has the lock.
unsafe impl Sync for Forking {}

static FORKING: Forking = Forking(std::cell::UnsafeCell::new(None));

/// Before a fork: nothing is half done in the child.
pub(crate) fn before_fork() {
    let section = Section::enter();
    let guard = lock();
    // SAFETY: this thread has the lock, so no other one is here.
    unsafe { *FORKING.0.get() = Some((guard, section)) };
}

/// After a fork, in the parent.
pub(crate) fn after_fork_in_parent() {
    // SAFETY: this thread has the lock.
    if let Some((mut state, _section)) = unsafe { (*FORKING.0.get()).take() } {
        state.share();
    }
}

/// After a fork, in the child.
pub(crate) fn after_fork_in_child() {
    // SAFETY: this thread has the lock; it is the only one here.
    if let Some((mut state, _section)) = unsafe { (*FORKING.0.get()).take() } {
        state.leave_to_parent();
        if let Some(own) = fork::own_word_of_files() {
            own.store(1, Relaxed);
        }
    }
}

impl State {
    /// Another process has every description from now on.
    fn share(&mut self) {
        for file in self.files.iter_mut().flatten() {
            file.is_shared = true;
        }
    }

    fn leave_to_parent(&mut self) {
        // Those of other threads, which do not exist here.
        SYNCS.store(0, Release);
        self.spawning = 0;
        self.share();
        for file in self.files.iter_mut().flatten() {
            (file.open, file.in_kernel, file.calls, file.calls_here) = (None, 0, 0, 0);
        }
        for store in &mut self.stores {
            // The parent's: its end would be the parent's end.
            std::mem::forget(store.client.take());
            store.claims.clear();
            store.handles.clear();
            store.serial += 1;
            store.retry_at = 0;
            for fd in store.forget_descriptors() {
                let _ = kernel::close(fd);
            }
            store.close_opened();
        }
    }
}
