//! All programs of a few operations over a small alphabet.
//!
//! Nearly all crash bugs that are known of file systems show in sequences of one or two operations
//! on few files (Mohan et al., OSDI 2018). [`setup`] makes these files; the sequences follow it.

use sietch_fs::file_system::{
    Allocation, AttributeChange, NewTime, OpenMode, RenameMode, WriteAt, XattrMode,
};
use sietch_fs::inode::{Kind, Timestamp};
use sietch_fs::limits::BLOCK;

use super::generate::open_root;
use super::operation::{Fill, HandleSlot, InodeSlot, Name, Operation, Program, User, XattrName};

const ROOT: InodeSlot = InodeSlot(0);
const FILE: InodeSlot = InodeSlot(1);
const DIRECTORY: InodeSlot = InodeSlot(2);
const INNER: InodeSlot = InodeSlot(3);
const EMPTY: InodeSlot = InodeSlot(4);
const NEW: InodeSlot = InodeSlot(5);
const UNNAMED: InodeSlot = InodeSlot(6);

const A: Name = Name(0);
const B: Name = Name(1);
const C: Name = Name(2);
const D: Name = Name(3);
const LONG: Name = Name(4);

const OF_FILE: HandleSlot = HandleSlot(0);
const OF_INNER: HandleSlot = HandleSlot(1);

/// Owner of everything in the programs.
const USER: User = User::First;

const READ_WRITE: OpenMode = OpenMode { read: true, write: true, truncate: false };

fn create(directory: InodeSlot, name: Name, kind: Kind, into: InodeSlot) -> Operation {
    let mode = if kind == Kind::Directory { 0o755 } else { 0o644 };
    Operation::Create { user: USER, directory, name, kind, mode, target: 5, into }
}

fn open(inode: InodeSlot, mode: OpenMode, into: HandleSlot) -> Operation {
    Operation::Open { user: USER, inode, mode, into }
}

fn write(handle: HandleSlot, at: WriteAt, length: usize) -> Operation {
    Operation::Write { user: USER, handle, at, data: Fill { fill: length as u8, length: length as u32 } }
}

fn at(offset: usize) -> WriteAt {
    WriteAt::Offset(offset as u64)
}

fn set(inode: InodeSlot, change: AttributeChange) -> Operation {
    Operation::SetAttributes { user: USER, inode, handle: None, change }
}

fn truncate(size: u64) -> Operation {
    set(FILE, AttributeChange { size: Some(size), ..AttributeChange::default() })
}

fn rename(from: (InodeSlot, Name), to: (InodeSlot, Name), mode: RenameMode) -> Operation {
    Operation::Rename { user: USER, from, to, mode }
}

fn allocate(start: usize, end: usize, allocation: Allocation) -> Operation {
    Operation::Allocate { user: USER, handle: OF_FILE, range: start as u64..end as u64, allocation }
}

fn set_xattr(fill: u8, mode: XattrMode) -> Operation {
    let value = Fill { fill, length: 100 };
    Operation::SetXattr { user: USER, inode: FILE, name: XattrName(0), value, mode }
}

/// Makes `/a` (also `/c`) of a block and a piece, `/d/b` of 100 bytes, and the empty directory
/// `/b`. The two files stay open.
pub fn setup() -> Program {
    vec![
        open_root(0o777),
        create(ROOT, A, Kind::File, FILE),
        open(FILE, READ_WRITE, OF_FILE),
        write(OF_FILE, at(0), BLOCK + 904),
        Operation::Link { user: USER, inode: FILE, directory: ROOT, name: C },
        create(ROOT, D, Kind::Directory, DIRECTORY),
        create(DIRECTORY, B, Kind::File, INNER),
        open(INNER, READ_WRITE, OF_INNER),
        write(OF_INNER, at(0), 100),
        create(ROOT, B, Kind::Directory, EMPTY),
    ]
}

/// The operations that sequences consist of. Each of them succeeds after [`setup`], apart from the
/// last two, which need another one before them.
pub fn alphabet() -> Program {
    [names(), content(), attributes()].concat()
}

fn names() -> Program {
    vec![
        create(ROOT, LONG, Kind::File, NEW),
        create(DIRECTORY, A, Kind::File, NEW),
        create(DIRECTORY, C, Kind::Directory, NEW),
        create(ROOT, LONG, Kind::Symlink, NEW),
        create(EMPTY, A, Kind::Fifo, NEW),
        Operation::Link { user: USER, inode: FILE, directory: DIRECTORY, name: A },
        Operation::Unlink { user: USER, directory: ROOT, name: A },
        Operation::Unlink { user: USER, directory: ROOT, name: C },
        Operation::Unlink { user: USER, directory: DIRECTORY, name: B },
        Operation::RemoveDirectory { user: USER, directory: ROOT, name: B },
        rename((ROOT, A), (DIRECTORY, B), RenameMode::Replace),
        rename((DIRECTORY, B), (ROOT, C), RenameMode::Replace),
        rename((ROOT, A), (ROOT, C), RenameMode::Replace),
        rename((ROOT, A), (ROOT, LONG), RenameMode::NoReplace),
        rename((ROOT, D), (ROOT, B), RenameMode::Replace),
        rename((ROOT, B), (DIRECTORY, C), RenameMode::Replace),
        rename((ROOT, A), (ROOT, D), RenameMode::Exchange),
        rename((DIRECTORY, B), (ROOT, B), RenameMode::Exchange),
        Operation::CreateUnnamed {
            user: USER,
            directory: ROOT,
            mode: 0o600,
            into: UNNAMED,
            handle: HandleSlot(2),
        },
    ]
}

fn content() -> Program {
    vec![
        write(OF_FILE, at(0), BLOCK),
        write(OF_FILE, at(BLOCK - 5), 10),
        write(OF_FILE, at(3 * BLOCK + 1), 7),
        write(OF_FILE, WriteAt::End, 1),
        write(OF_FILE, WriteAt::End, 2 * BLOCK),
        write(OF_INNER, at(50), 100),
        write(OF_INNER, WriteAt::End, BLOCK),
        truncate(0),
        truncate(10),
        truncate(BLOCK as u64),
        truncate(3 * BLOCK as u64 + 5),
        open(FILE, OpenMode { read: false, write: true, truncate: true }, HandleSlot(3)),
        allocate(0, BLOCK, Allocation::Punch),
        allocate(100, BLOCK + 100, Allocation::Punch),
        allocate(BLOCK, 4 * BLOCK, Allocation::Reserve),
        allocate(BLOCK, 4 * BLOCK, Allocation::ReserveKeepSize),
        allocate(10, 2 * BLOCK, Allocation::Zero),
        Operation::Close { handle: OF_INNER },
        Operation::Sync,
    ]
}

fn attributes() -> Program {
    let time = Some(NewTime::At(Timestamp { seconds: 77, nanoseconds: 5 }));
    vec![
        set(FILE, AttributeChange { mode: Some(0o6711), ..AttributeChange::default() }),
        set(DIRECTORY, AttributeChange { gid: Some(3000), ..AttributeChange::default() }),
        set(INNER, AttributeChange { atime: time, mtime: Some(NewTime::Now), ..AttributeChange::default() }),
        set_xattr(1, XattrMode::Create),
        set_xattr(2, XattrMode::Set),
        // These two need another one before them.
        Operation::RemoveXattr { user: USER, inode: FILE, name: XattrName(0) },
        Operation::Link { user: USER, inode: UNNAMED, directory: DIRECTORY, name: LONG },
    ]
}

/// All sequences of `length` operations. Each is to be run after [`setup`].
pub fn sequences(length: u32) -> impl Iterator<Item = Program> {
    let alphabet = alphabet();
    let letters = alphabet.len();
    (0..letters.pow(length)).map(move |number| {
        let letter = |place: u32| alphabet[number / letters.pow(place) % letters].clone();
        (0..length).rev().map(letter).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::super::run::{Outcome, State, apply};
    use super::*;
    use crate::Model;

    #[test]
    fn operations_succeed_after_the_setup() {
        let (mut model, mut state) = (Model::new(), State::new());
        for operation in setup() {
            let outcome = apply(&mut model, &mut state, &operation);
            assert!(!matches!(outcome, Outcome::Failed(_) | Outcome::Skipped), "{operation:?}: {outcome:?}");
        }
        let alphabet = alphabet();
        for operation in &alphabet[..alphabet.len() - 2] {
            let (mut model, mut state) = (model.clone(), state.clone());
            let outcome = apply(&mut model, &mut state, operation);
            assert!(!matches!(outcome, Outcome::Failed(_) | Outcome::Skipped), "{operation:?}: {outcome:?}");
        }
    }

    #[test]
    fn each_sequence_comes_once() {
        let letters = alphabet().len();
        assert_eq!((sequences(1).count(), sequences(2).count()), (letters, letters * letters));
        assert!(sequences(1).map(|one| one[0].clone()).eq(alphabet()));
    }
}
