//! Carries operations out on a file system.
//!
//! 1. [`State`] has what the slots refer to in one file system. An inode in a slot is retained, so
//!    it stays when its last name goes.
//! 2. The time of an operation follows from its place in the program: two runs set the same times.
//! 3. An operation whose slot is empty does nothing ([`Outcome::Skipped`]).

use std::collections::{BTreeSet, HashMap};

use rustix::io::Errno;
use sietch_fs::FileSystem;
use sietch_fs::access::{Caller, Credentials};
use sietch_fs::file_system::{Handle, NewInode};
use sietch_fs::inode::{Attributes, InodeNumber, Kind, Timestamp};
use sietch_fs::name::Cookie;

use super::operation::{Fill, HANDLE_SLOTS, HandleSlot, INODE_SLOTS, InodeSlot, Operation, User};

/// Calls of a listing after which it is taken to be endless.
const MAX_CALLS: usize = 10_000;

/// Device number of each device that a program creates: as a character device, `/dev/null`.
pub const DEVICE: u64 = 0x103;

/// The time of the first operation. Times that programs set themselves are before it.
pub const FIRST_TIME: Timestamp = Timestamp { seconds: 1_000_000, nanoseconds: 500_000_000 };

/// What an operation returned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// A slot that the operation needs is empty.
    Skipped,
    /// It failed.
    Failed(Errno),
    /// It succeeded, and returns nothing.
    Done,
    /// An inode, as a number in the order of first appearance.
    Inode(usize),
    /// Attributes, with such a number and without the count of blocks.
    Attributes(Attributes),
    /// An offset.
    Offset(u64),
    /// Bytes.
    Bytes(Vec<u8>),
    /// Names of a directory with their inodes, sorted.
    Entries(BTreeSet<(Vec<u8>, usize, u8)>),
    /// Names of extended attributes, sorted.
    Names(BTreeSet<Box<[u8]>>),
    /// The file system breaks a rule that needs no comparison.
    Broken(&'static str),
}

/// What the slots refer to in one file system.
#[derive(Clone, Debug)]
pub struct State {
    inodes: [Option<InodeNumber>; INODE_SLOTS as usize],
    handles: [Option<Handle>; HANDLE_SLOTS as usize],
    seen: HashMap<InodeNumber, usize>,
    steps: u32,
}

impl Default for State {
    fn default() -> Self {
        Self::new()
    }
}

impl State {
    /// Before the first operation.
    pub fn new() -> Self {
        let mut inodes = [None; INODE_SLOTS as usize];
        inodes[0] = Some(InodeNumber::ROOT);
        Self { inodes, handles: [None; HANDLE_SLOTS as usize], seen: HashMap::new(), steps: 0 }
    }

    /// The time of the next operation.
    pub fn now(&self) -> Timestamp {
        Timestamp { seconds: FIRST_TIME.seconds + i64::from(self.steps), ..FIRST_TIME }
    }

    /// What a slot has.
    pub fn inode(&self, slot: InodeSlot) -> Option<InodeNumber> {
        *self.inodes.get(usize::from(slot.0))?
    }

    /// What a slot has.
    pub fn handle(&self, slot: HandleSlot) -> Option<Handle> {
        *self.handles.get(usize::from(slot.0))?
    }

    fn number(&mut self, inode: InodeNumber) -> usize {
        let next = self.seen.len();
        *self.seen.entry(inode).or_insert(next)
    }

    fn attributes(&mut self, attributes: Attributes) -> Attributes {
        let number = self.number(attributes.inode);
        Attributes { inode: InodeNumber(number as u64), blocks: 0, ..attributes }
    }

    /// Puts an inode in a slot and releases the one before. The root's slot never changes.
    fn hold(
        &mut self,
        file_system: &mut dyn FileSystem,
        slot: InodeSlot,
        inode: Option<InodeNumber>,
    ) -> Result<(), Errno> {
        let Some(place) = self.inodes.get_mut(usize::from(slot.0)).filter(|_| slot.0 != 0) else {
            return Ok(());
        };
        if let Some(inode) = inode {
            file_system.retain(inode)?;
        }
        if let Some(before) = std::mem::replace(place, inode) {
            file_system.release(before, 1);
        }
        Ok(())
    }

    fn keep(&mut self, file_system: &mut dyn FileSystem, slot: HandleSlot, handle: Option<Handle>) {
        let Some(place) = self.handles.get_mut(usize::from(slot.0)) else { return };
        if let Some(before) = std::mem::replace(place, handle) {
            file_system.close(before);
        }
    }

    /// Closes all handles and releases all inodes.
    pub fn release_all(&mut self, file_system: &mut dyn FileSystem) {
        for slot in 0..HANDLE_SLOTS {
            self.keep(file_system, HandleSlot(slot), None);
        }
        for slot in 1..INODE_SLOTS {
            if let Some(inode) = self.inodes[usize::from(slot)].take() {
                file_system.release(inode, 1);
            }
        }
    }
}

/// Carries an operation out.
pub fn apply(file_system: &mut dyn FileSystem, state: &mut State, operation: &Operation) -> Outcome {
    let credentials = user(operation).map_or_else(Credentials::root, User::credentials);
    let caller = Caller { credentials: &credentials, now: state.now() };
    state.steps += 1;
    let mut run = Run { file_system, state, caller };
    let outcome = match operation {
        Operation::Lookup { .. }
        | Operation::Parent { .. }
        | Operation::Create { .. }
        | Operation::CreateUnnamed { .. }
        | Operation::Link { .. }
        | Operation::Unlink { .. }
        | Operation::RemoveDirectory { .. }
        | Operation::Rename { .. } => run.names(operation),
        Operation::Open { .. }
        | Operation::OpenCreated { .. }
        | Operation::Close { .. }
        | Operation::Read { .. }
        | Operation::Write { .. }
        | Operation::Allocate { .. }
        | Operation::Seek { .. }
        | Operation::Sync
        | Operation::List { .. } => run.content(operation),
        _ => run.inode(operation),
    };
    match outcome {
        Ok(outcome) => outcome,
        Err(Stop::Skipped) => Outcome::Skipped,
        Err(Stop::Failed(errno)) => Outcome::Failed(errno),
    }
}

/// On whose behalf an operation runs; reads through handles have no user.
pub fn user(operation: &Operation) -> Option<User> {
    match operation {
        Operation::Lookup { user, .. }
        | Operation::SetAttributes { user, .. }
        | Operation::Create { user, .. }
        | Operation::CreateUnnamed { user, .. }
        | Operation::Link { user, .. }
        | Operation::Unlink { user, .. }
        | Operation::RemoveDirectory { user, .. }
        | Operation::Rename { user, .. }
        | Operation::Open { user, .. }
        | Operation::Write { user, .. }
        | Operation::Allocate { user, .. }
        | Operation::Access { user, .. }
        | Operation::Xattr { user, .. }
        | Operation::XattrNames { user, .. }
        | Operation::SetXattr { user, .. }
        | Operation::RemoveXattr { user, .. } => Some(*user),
        _ => None,
    }
}

enum Stop {
    Skipped,
    Failed(Errno),
}

impl From<Errno> for Stop {
    fn from(errno: Errno) -> Self {
        Self::Failed(errno)
    }
}

struct Run<'a, 'b> {
    file_system: &'a mut dyn FileSystem,
    state: &'a mut State,
    caller: Caller<'b>,
}

impl Run<'_, '_> {
    fn slot(&self, slot: InodeSlot) -> Result<InodeNumber, Stop> {
        self.state.inode(slot).ok_or(Stop::Skipped)
    }

    fn handle(&self, slot: HandleSlot) -> Result<Handle, Stop> {
        self.state.handle(slot).ok_or(Stop::Skipped)
    }

    /// Holds the inode of attributes that an operation returned.
    fn held(&mut self, attributes: Attributes, into: InodeSlot) -> Result<Outcome, Stop> {
        self.state.hold(self.file_system, into, Some(attributes.inode))?;
        Ok(Outcome::Attributes(self.state.attributes(attributes)))
    }

    /// Operations on entries.
    fn names(&mut self, operation: &Operation) -> Result<Outcome, Stop> {
        let caller = self.caller;
        match *operation {
            Operation::Lookup { directory, name, into, .. } => {
                let directory = self.slot(directory)?;
                let attributes = self.file_system.lookup(caller, directory, &name.bytes())?;
                self.held(attributes, into)
            }
            Operation::Parent { inode, into } => {
                let parent = self.file_system.parent(self.slot(inode)?)?;
                self.state.hold(self.file_system, into, Some(parent))?;
                Ok(Outcome::Inode(self.state.number(parent)))
            }
            Operation::Create { directory, name, kind, mode, target, into, .. } => {
                let directory = self.slot(directory)?;
                let device = match kind {
                    Kind::CharacterDevice | Kind::BlockDevice => DEVICE,
                    _ => 0,
                };
                let target = vec![b't'; usize::from(target)];
                let new = NewInode { kind, mode, device, target: &target };
                let attributes = self.file_system.create(caller, directory, &name.bytes(), &new)?;
                self.held(attributes, into)
            }
            Operation::CreateUnnamed { directory, mode, into, handle, .. } => {
                let directory = self.slot(directory)?;
                let (attributes, opened) = self.file_system.create_unnamed(caller, directory, mode)?;
                self.state.keep(self.file_system, handle, Some(opened));
                self.held(attributes, into)
            }
            Operation::Link { inode, directory, name, .. } => {
                let (inode, directory) = (self.slot(inode)?, self.slot(directory)?);
                let attributes = self.file_system.link(caller, inode, directory, &name.bytes())?;
                Ok(Outcome::Attributes(self.state.attributes(attributes)))
            }
            Operation::Unlink { directory, name, .. } => {
                self.file_system.unlink(caller, self.slot(directory)?, &name.bytes())?;
                Ok(Outcome::Done)
            }
            Operation::RemoveDirectory { directory, name, .. } => {
                self.file_system.remove_directory(caller, self.slot(directory)?, &name.bytes())?;
                Ok(Outcome::Done)
            }
            Operation::Rename { from, to, mode, .. } => {
                let (old, new) = (from.1.bytes(), to.1.bytes());
                let (from, to) = ((self.slot(from.0)?, &*old), (self.slot(to.0)?, &*new));
                self.file_system.rename(caller, from, to, mode)?;
                Ok(Outcome::Done)
            }
            _ => Ok(Outcome::Skipped),
        }
    }

    /// Operations on handles.
    fn content(&mut self, operation: &Operation) -> Result<Outcome, Stop> {
        let caller = self.caller;
        match *operation {
            Operation::Open { inode, mode, into, .. } => {
                let opened = self.file_system.open(caller, self.slot(inode)?, mode)?;
                self.state.keep(self.file_system, into, Some(opened));
                Ok(Outcome::Done)
            }
            Operation::OpenCreated { inode, mode, into } => {
                let opened = self.file_system.open_created(self.slot(inode)?, mode)?;
                self.state.keep(self.file_system, into, Some(opened));
                Ok(Outcome::Done)
            }
            Operation::Close { handle } => {
                self.handle(handle)?;
                self.state.keep(self.file_system, handle, None);
                Ok(Outcome::Done)
            }
            Operation::Read { handle, offset, length } => {
                let mut bytes = vec![0xaa; length as usize];
                let read = self.file_system.read(self.handle(handle)?, offset, &mut bytes)?;
                if read > bytes.len() {
                    return Ok(Outcome::Broken("read returned more bytes than asked for"));
                }
                bytes.truncate(read);
                Ok(Outcome::Bytes(bytes))
            }
            Operation::Write { handle, at, data, .. } => {
                let begin = self.file_system.write(caller, self.handle(handle)?, at, &data.bytes())?;
                Ok(Outcome::Offset(begin))
            }
            Operation::Allocate { handle, ref range, allocation, .. } => {
                self.file_system.allocate(caller, self.handle(handle)?, range.clone(), allocation)?;
                Ok(Outcome::Done)
            }
            Operation::Seek { handle, offset, what } => {
                Ok(Outcome::Offset(self.file_system.seek(self.handle(handle)?, offset, what)?))
            }
            Operation::List { handle, step } => self.list(handle, step),
            Operation::Sync => {
                self.file_system.sync()?;
                Ok(Outcome::Done)
            }
            _ => Ok(Outcome::Skipped),
        }
    }

    fn list(&mut self, handle: HandleSlot, step: u8) -> Result<Outcome, Stop> {
        let handle = self.handle(handle)?;
        let mut entries = BTreeSet::new();
        let mut after = Cookie(0);
        for _ in 0..MAX_CALLS {
            let mut taken = Vec::new();
            self.file_system.read_directory(handle, after, &mut |entry| {
                let takes = taken.len() < usize::from(step.max(1));
                if takes {
                    taken.push(entry);
                }
                takes
            })?;
            if taken.is_empty() {
                return Ok(Outcome::Entries(entries));
            }
            for entry in taken {
                if entry.cookie <= after || i64::try_from(entry.cookie.0).is_err() {
                    return Ok(Outcome::Broken("cookies do not ascend"));
                }
                after = entry.cookie;
                let number = self.state.number(entry.inode);
                if !entries.insert((entry.name.into_vec(), number, entry.kind as u8)) {
                    return Ok(Outcome::Broken("an entry was listed twice"));
                }
            }
        }
        Ok(Outcome::Broken("a listing does not end"))
    }

    /// Operations on inodes.
    fn inode(&mut self, operation: &Operation) -> Result<Outcome, Stop> {
        let caller = self.caller;
        match *operation {
            Operation::Attributes { inode } => {
                let attributes = self.file_system.attributes(self.slot(inode)?)?;
                Ok(Outcome::Attributes(self.state.attributes(attributes)))
            }
            Operation::SetAttributes { inode, handle, ref change, .. } => {
                let inode = self.slot(inode)?;
                let handle = handle.map(|handle| self.handle(handle)).transpose()?;
                let attributes = self.file_system.set_attributes(caller, inode, handle, change)?;
                Ok(Outcome::Attributes(self.state.attributes(attributes)))
            }
            Operation::ReadLink { inode } => {
                Ok(Outcome::Bytes(self.file_system.read_link(self.slot(inode)?)?))
            }
            Operation::Forget { inode } => {
                self.slot(inode)?;
                self.state.hold(self.file_system, inode, None)?;
                Ok(Outcome::Done)
            }
            Operation::Access { inode, wanted, .. } => {
                self.file_system.check_access(caller, self.slot(inode)?, wanted)?;
                Ok(Outcome::Done)
            }
            Operation::Xattr { inode, name, .. } => {
                Ok(Outcome::Bytes(self.file_system.xattr(caller, self.slot(inode)?, &name.bytes())?))
            }
            Operation::XattrNames { inode, .. } => {
                let names = self.file_system.xattr_names(caller, self.slot(inode)?)?;
                Ok(Outcome::Names(names.into_iter().collect()))
            }
            Operation::SetXattr { inode, name, value, mode, .. } => {
                let (inode, value) = (self.slot(inode)?, Fill::bytes(value));
                self.file_system.set_xattr(caller, inode, &name.bytes(), &value, mode)?;
                Ok(Outcome::Done)
            }
            Operation::RemoveXattr { inode, name, .. } => {
                self.file_system.remove_xattr(caller, self.slot(inode)?, &name.bytes())?;
                Ok(Outcome::Done)
            }
            _ => Ok(Outcome::Skipped),
        }
    }
}
