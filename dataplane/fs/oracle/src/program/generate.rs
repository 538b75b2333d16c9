//! Random programs from a seed.
//!
//! 1. [`Mix`] says how often each kind of operation comes.
//! 2. The generator keeps a [`Model`] in which the program so far has run. It draws operations and
//!    tries them on a copy of the model; most often it takes the first one that succeeds.

use std::ops::Range;

use sietch_fs::file_system::{
    Allocation, AttributeChange, NewTime, OpenMode, RenameMode, Seek, WriteAt, XattrMode,
};
use sietch_fs::inode::{Kind, Timestamp};
use sietch_fs::limits::{BLOCK, MAX_FILE};
use sietch_structures::Random;

use super::operation::{
    Fill, GROUPS, HANDLE_SLOTS, HandleSlot, INODE_SLOTS, InodeSlot, LONG_NAME, NAMES, Name, ODD_NAMES,
    ODD_XATTR_NAMES, Operation, Program, USERS, User, XATTR_NAMES, XattrName,
};
use super::run::{Outcome, State, apply};
use crate::Model;

/// Draws after which an operation is taken although it fails.
const TRIES: usize = 8;

/// What programs consist of. The first four are relative weights.
#[derive(Clone, Copy, Debug)]
pub struct Mix {
    /// Operations on entries.
    pub names: u32,
    /// Operations on handles.
    pub content: u32,
    /// Operations on attributes.
    pub attributes: u32,
    /// Operations on extended attributes.
    pub xattrs: u32,
    /// Operations of which 1,000 are taken whether they succeed or not.
    pub blind: u32,
    /// Root alone, or users who may not do everything.
    pub users: &'static [User],
    /// Offsets near the largest that a file may have, and behind it.
    pub has_huge_offsets: bool,
}

impl Mix {
    /// Everything.
    pub const ALL: Self = Self {
        names: 40,
        content: 35,
        attributes: 15,
        xattrs: 10,
        blind: 200,
        users: &USERS,
        has_huge_offsets: true,
    };
    /// Few files, much data.
    pub const DATA: Self =
        Self { names: 10, content: 85, attributes: 5, xattrs: 0, users: &[User::Root], ..Self::ALL };
    /// Many names, little data.
    pub const NAMES: Self = Self { names: 80, content: 10, attributes: 5, xattrs: 5, ..Self::ALL };
}

/// A random program of `length` operations.
pub fn generate(seed: u64, length: usize, mix: &Mix) -> Program {
    let mut generator =
        Generator { random: Random::new(seed), model: Model::new(), state: State::new(), mix: *mix };
    let mut program = Vec::with_capacity(length);
    if length > 0 && generator.random.chance(950) {
        let mode = *generator.random.pick(&[0o777, 0o777, 0o1777, 0o2777, 0o3777]);
        let operation = open_root(mode);
        apply(&mut generator.model, &mut generator.state, &operation);
        program.push(operation);
    }
    while program.len() < length {
        program.push(generator.next());
    }
    program
}

/// An operation for one of several clients of a file system, of which `model` has the content and
/// `state` what the client refers to.
pub fn draw(random: &mut Random, model: &Model, state: &State, mix: &Mix) -> Operation {
    let random = Random::new(random.word());
    Generator { random, model: model.clone(), state: state.clone(), mix: *mix }.next()
}

/// Lets every user create entries in the root directory.
pub(super) fn open_root(mode: u16) -> Operation {
    Operation::SetAttributes {
        user: User::Root,
        inode: InodeSlot(0),
        handle: None,
        change: AttributeChange { mode: Some(mode), ..AttributeChange::default() },
    }
}

struct Generator {
    random: Random,
    model: Model,
    state: State,
    mix: Mix,
}

impl Generator {
    fn next(&mut self) -> Operation {
        let tries = if self.random.chance(self.mix.blind) { 1 } else { TRIES };
        let mut operation = self.draw();
        for _ in 1..tries {
            let (mut model, mut state) = (self.model.clone(), self.state.clone());
            let outcome = apply(&mut model, &mut state, &operation);
            if !matches!(outcome, Outcome::Failed(_) | Outcome::Skipped) {
                break;
            }
            operation = self.draw();
        }
        apply(&mut self.model, &mut self.state, &operation);
        operation
    }

    fn draw(&mut self) -> Operation {
        let Mix { names, content, attributes, xattrs, .. } = self.mix;
        let drawn = self.random.below(u64::from(names + content + attributes + xattrs)) as u32;
        if drawn < names {
            self.names()
        } else if drawn < names + content {
            self.content()
        } else if drawn < names + content + attributes {
            self.attributes()
        } else {
            self.xattrs()
        }
    }

    fn user(&mut self) -> User {
        *self.random.pick(self.mix.users)
    }

    fn number(&mut self, range: Range<u8>) -> u8 {
        self.random.between(u64::from(range.start), u64::from(range.end) - 1) as u8
    }

    /// A name; one in fifty is too long.
    fn name(&mut self) -> Name {
        if self.random.chance(20) { LONG_NAME } else { Name(self.number(NAMES)) }
    }

    /// A name for a new entry; one in fifty cannot be one.
    fn new_name(&mut self) -> Name {
        let range = if self.random.chance(20) { ODD_NAMES } else { NAMES };
        Name(self.number(range))
    }

    fn xattr_name(&mut self) -> XattrName {
        let range = if self.random.chance(50) { ODD_XATTR_NAMES } else { XATTR_NAMES };
        XattrName(self.number(range))
    }

    fn inode(&mut self) -> InodeSlot {
        InodeSlot(self.number(0..INODE_SLOTS))
    }

    /// A directory: the root, most often.
    fn directory(&mut self) -> InodeSlot {
        if self.random.chance(400) { InodeSlot(0) } else { self.inode() }
    }

    fn handle(&mut self) -> HandleSlot {
        HandleSlot(self.number(0..HANDLE_SLOTS))
    }

    fn mode(&mut self) -> u16 {
        match self.random.below(10) {
            0..5 => *self.random.pick(&[0o644, 0o666, 0o755, 0o777, 0o700, 0o600]),
            5..8 => *self.random.pick(&[0o4755, 0o2755, 0o6777, 0o1777, 0o2777, 0o2745, 0o3777, 0o4711]),
            _ => self.random.below(0o10000) as u16,
        }
    }

    fn kind(&mut self) -> Kind {
        match self.random.below(20) {
            0..10 => Kind::File,
            10..15 => Kind::Directory,
            15..17 => Kind::Symlink,
            _ => *self.random.pick(&[
                Kind::Fifo,
                Kind::Socket,
                Kind::CharacterDevice,
                Kind::BlockDevice,
                Kind::Symlink,
            ]),
        }
    }

    fn names(&mut self) -> Operation {
        let user = self.user();
        let (directory, name) = (self.directory(), self.name());
        match self.random.below(100) {
            0..15 => Operation::Lookup { user, directory, name, into: self.inode() },
            15..17 => Operation::Parent { inode: self.inode(), into: self.inode() },
            17..45 => {
                let (kind, mode, into) = (self.kind(), self.mode(), self.inode());
                let name = self.new_name();
                let target = *self.random.pick(&[1, 1, 5, 60, 100, 4094, 4095, 4096, 0]);
                Operation::Create { user, directory, name, kind, mode, target, into }
            }
            45..48 => {
                let (mode, into, handle) = (self.mode(), self.inode(), self.handle());
                Operation::CreateUnnamed { user, directory, mode, into, handle }
            }
            48..56 => Operation::Link { user, inode: self.inode(), directory, name: self.new_name() },
            56..68 => Operation::Unlink { user, directory, name },
            68..74 => Operation::RemoveDirectory { user, directory, name },
            _ => {
                let to = (self.directory(), self.name());
                let mode = *self.random.pick(&[
                    RenameMode::Replace,
                    RenameMode::Replace,
                    RenameMode::Replace,
                    RenameMode::NoReplace,
                    RenameMode::Exchange,
                ]);
                Operation::Rename { user, from: (directory, name), to, mode }
            }
        }
    }

    /// An offset in the first blocks of a file: at a block, beside it, or anywhere.
    fn offset(&mut self) -> u64 {
        let block = BLOCK as u64;
        if self.mix.has_huge_offsets && self.random.chance(15) {
            return MAX_FILE - 2 * block + self.random.below(4 * block);
        }
        match self.random.below(4) {
            0 => self.random.below(6) * block,
            1 => self.random.between(1, 6) * block - self.random.between(1, 3),
            _ => self.random.below(5 * block),
        }
    }

    fn length(&mut self) -> u32 {
        let block = BLOCK as u64;
        let length = match self.random.below(8) {
            0 => self.random.between(1, 3) * block,
            1 => block,
            2..5 => self.random.between(1, 100),
            5 => 0,
            _ => self.random.between(1, 3 * block),
        };
        length as u32
    }

    fn fill(&mut self) -> Fill {
        Fill { fill: self.random.below(256) as u8, length: self.length() }
    }

    fn open_mode(&mut self) -> OpenMode {
        match self.random.below(10) {
            0..2 => OpenMode { read: true, write: false, truncate: false },
            2..4 => OpenMode { read: false, write: true, truncate: false },
            4 => OpenMode { read: self.random.chance(500), write: true, truncate: true },
            _ => OpenMode { read: true, write: true, truncate: false },
        }
    }

    fn content(&mut self) -> Operation {
        let user = self.user();
        let handle = self.handle();
        match self.random.below(100) {
            0..15 => {
                let (inode, mode) = (self.inode(), self.open_mode());
                // Directories can only be read.
                let only_read = OpenMode { read: true, write: false, truncate: false };
                let mode = if self.random.chance(300) { only_read } else { mode };
                Operation::Open { user, inode, mode, into: handle }
            }
            15..17 => {
                let mode = OpenMode { read: true, write: true, truncate: false };
                Operation::OpenCreated { inode: self.inode(), mode, into: handle }
            }
            17..21 => Operation::Close { handle },
            21..38 => Operation::Read { handle, offset: self.offset(), length: self.length() },
            38..68 => {
                let at = if self.random.chance(250) { WriteAt::End } else { WriteAt::Offset(self.offset()) };
                Operation::Write { user, handle, at, data: self.fill() }
            }
            68..75 => self.truncation(user, handle),
            75..86 => {
                let start = self.offset();
                let allocation = *self.random.pick(&[
                    Allocation::Reserve,
                    Allocation::ReserveKeepSize,
                    Allocation::Punch,
                    Allocation::Punch,
                    Allocation::Zero,
                    Allocation::ZeroKeepSize,
                ]);
                let range = start..start + u64::from(self.length());
                Operation::Allocate { user, handle, range, allocation }
            }
            86..92 => {
                let what = *self.random.pick(&[Seek::Data, Seek::Hole]);
                Operation::Seek { handle, offset: self.offset(), what }
            }
            92..94 => Operation::Sync,
            94..97 => Operation::Forget { inode: InodeSlot(self.number(1..INODE_SLOTS)) },
            _ => Operation::List { handle, step: self.number(1..4) },
        }
    }

    fn truncation(&mut self, user: User, handle: HandleSlot) -> Operation {
        let handle = if self.random.chance(300) { Some(handle) } else { None };
        // A handle of another inode makes no sense in a call of a kernel.
        let by_handle = |slot: &InodeSlot| {
            let opened = handle.and_then(|handle| self.state.handle(handle));
            let inode = self.state.inode(*slot);
            inode.is_some_and(|inode| opened.is_some_and(|opened| self.model.inode_of(opened) == Some(inode)))
        };
        let matching = (0..INODE_SLOTS).map(InodeSlot).find(by_handle);
        let (inode, handle) = match matching {
            Some(inode) => (inode, handle),
            None => (self.inode(), None),
        };
        let size = if self.random.chance(100) { 0 } else { self.offset() };
        let change = AttributeChange { size: Some(size), ..AttributeChange::default() };
        Operation::SetAttributes { user, inode, handle, change }
    }

    fn time(&mut self) -> Option<NewTime> {
        match self.random.below(3) {
            0 => None,
            1 => Some(NewTime::Now),
            _ => Some(NewTime::At(Timestamp {
                seconds: self.random.between(1, 1000) as i64,
                nanoseconds: self.random.below(1_000_000_000) as u32,
            })),
        }
    }

    fn attributes(&mut self) -> Operation {
        let (user, inode) = (self.user(), self.inode());
        let mut change = AttributeChange::default();
        match self.random.below(100) {
            0..15 => return Operation::Attributes { inode },
            15..20 => return Operation::ReadLink { inode },
            20..35 => {
                return Operation::Access { user, inode, wanted: self.random.below(8) as u8 };
            }
            35..65 => change.mode = Some(self.mode()),
            65..85 => {
                change.uid =
                    if self.random.chance(500) { Some(*self.random.pick(&GROUPS[..3])) } else { None };
                change.gid = if self.random.chance(700) { Some(*self.random.pick(&GROUPS)) } else { None };
            }
            _ => (change.atime, change.mtime) = (self.time(), self.time()),
        }
        Operation::SetAttributes { user, inode, handle: None, change }
    }

    fn xattrs(&mut self) -> Operation {
        let (user, inode, name) = (self.user(), self.inode(), self.xattr_name());
        match self.random.below(10) {
            0..2 => Operation::Xattr { user, inode, name },
            2 => Operation::XattrNames { user, inode },
            3..5 => Operation::RemoveXattr { user, inode, name },
            _ => {
                let mode = *self.random.pick(&[XattrMode::Set, XattrMode::Create, XattrMode::Replace]);
                let length = *self.random.pick(&[0, 1, 10, 100, 500]);
                let value = Fill { fill: self.random.below(256) as u8, length };
                Operation::SetXattr { user, inode, name, value, mode }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_makes_the_same_program_and_most_operations_succeed() {
        for mix in [Mix::ALL, Mix::DATA, Mix::NAMES] {
            let program = generate(7, 1000, &mix);
            assert_eq!(program, generate(7, 1000, &mix));
            let (mut model, mut state) = (Model::new(), State::new());
            let succeeds = |operation: &&Operation| {
                let outcome = apply(&mut model, &mut state, operation);
                !matches!(outcome, Outcome::Failed(_) | Outcome::Skipped)
            };
            let succeeded = program.iter().filter(succeeds).count();
            assert!((600..1000).contains(&succeeded), "{mix:?}: {succeeded} of 1,000 succeed");
        }
    }
}
