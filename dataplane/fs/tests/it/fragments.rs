//! Files and free space in single blocks: what a batch takes must not grow with all of them.

use rustix::io::Errno;
use sietch_fs::FileSystem as _;
use sietch_fs::access::{Caller, Credentials};
use sietch_fs::file_system::{
    Allocation, AttributeChange, Handle, NewInode, OpenMode, Seek, Sought, WriteAt,
};
use sietch_fs::inode::{InodeNumber, Kind};
use sietch_fs::name::NameKey;

use crate::setup::{BIRTH, FileSystem, Media, check_whole};

const BLOCK: u64 = 4096;
/// Blocks of the file.
const BLOCKS: u64 = 4096;

struct Fragments {
    client: FileSystem,
    root: Credentials,
}

impl Fragments {
    /// A file every second block of which is a hole, digested. And the batches that this took,
    /// behind those of the file.
    fn new() -> (Self, Handle, usize) {
        let media = Media::new(64 << 20, 64 << 20);
        media.format(NameKey([7; 16]));
        let client = media.open().expect("a file system");
        let mut made = Self { client, root: Credentials::root() };
        let file = made.file(b"file");
        for at in (0..BLOCKS * BLOCK).step_by(1 << 20) {
            made.write(file, at, &[7; 1 << 20]).expect("room");
        }
        made.digest();
        for block in (0..BLOCKS).step_by(2) {
            made.punch(file, block..block + 1);
        }
        let batches = made.digest();
        (made, file, batches)
    }

    fn file(&mut self, name: &[u8]) -> Handle {
        let caller = Caller { credentials: &self.root, now: BIRTH };
        let new = NewInode { kind: Kind::File, mode: 0o600, device: 0, target: &[] };
        let made = self.client.create(caller, InodeNumber::ROOT, name, &new).expect("room");
        let mode = OpenMode { read: true, write: true, truncate: false };
        self.client.open(caller, made.inode, mode).expect("it is there")
    }

    fn write(&mut self, file: Handle, at: u64, bytes: &[u8]) -> Result<u64, Errno> {
        let caller = Caller { credentials: &self.root, now: BIRTH };
        self.client.write(caller, file, WriteAt::Offset(at), bytes)
    }

    fn allocate(&mut self, file: Handle, blocks: std::ops::Range<u64>, what: Allocation) {
        let caller = Caller { credentials: &self.root, now: BIRTH };
        let bytes = blocks.start * BLOCK..blocks.end * BLOCK;
        self.client.allocate(caller, file, bytes, what).expect("an open file");
    }

    fn punch(&mut self, file: Handle, blocks: std::ops::Range<u64>) {
        self.allocate(file, blocks, Allocation::Punch);
    }

    /// Digests everything; how many batches that took.
    fn digest(&mut self) -> usize {
        let mut batches = 0;
        while self.client.service().digest().expect("media that work").records > 0 {
            batches += 1;
        }
        self.client.advance();
        batches
    }

    fn whole(self) {
        assert_eq!(check_whole(self.client), Ok(()));
    }
}

#[test]
fn holes_of_a_large_file_are_digested_together() {
    let (mut made, file, batches) = Fragments::new();
    assert!(batches < 64, "{batches} batches of {} holes", BLOCKS / 2);
    let other = made.file(b"other");
    let mut written = 0;
    while made.write(other, written * 16 * BLOCK, &[8; 16 * BLOCK as usize]).is_ok() {
        written += 1;
    }
    assert!(written * 16 > BLOCKS / 2, "all holes are room: {written}");
    assert_eq!(made.client.service().faults(), <&[String]>::default());
    made.digest();
    // A file of thousands of extents is cut at once, in a pool that is full.
    let caller = Caller { credentials: &made.root, now: BIRTH };
    let empty = AttributeChange { size: Some(0), ..AttributeChange::default() };
    let inode = made.client.lookup(caller, InodeNumber::ROOT, b"file").expect("it is there").inode;
    made.client.set_attributes(caller, inode, Some(file), &empty).expect("it takes no room");
    let batches = made.digest();
    assert!(batches < 4, "{batches}");
    made.write(other, written * 16 * BLOCK, &[8; 16 * BLOCK as usize]).expect("room again");
    made.digest();
    assert_eq!(made.client.service().faults(), <&[String]>::default());
    made.whole();
}

/// The place that a search finds, and its steps.
fn seek(client: &mut FileSystem, file: Handle, what: Seek) -> (Result<u64, Errno>, usize) {
    let (mut at, mut steps) = (0, 1);
    loop {
        match client.seek_step(file, at, what) {
            Ok(Sought::From(next)) => {
                assert!(next > at, "{next} is no step from {at}");
                (at, steps) = (next, steps + 1);
            }
            Ok(Sought::Found(place)) => return (Ok(place), steps),
            Err(errno) => return (Err(errno), steps),
        }
    }
}

#[test]
fn a_search_over_many_extents_is_done_in_steps() {
    let (mut made, file, _) = Fragments::new();
    // Room in the holes makes extents without data; data elsewhere are in the log, in thousands of
    // pieces.
    let blank = made.file(b"blank");
    let end = 4096 * BLOCK;
    for block in (0..4096).step_by(2) {
        made.allocate(blank, block..block + 1, Allocation::Reserve);
    }
    made.write(blank, end, b"x").expect("room");
    for is_digested in [false, true] {
        if is_digested {
            made.digest();
        }
        let (found, steps) = seek(&mut made.client, blank, Seek::Data);
        assert_eq!(found, Ok(end));
        assert!(!is_digested || steps > 4, "{steps}");
        assert_eq!(seek(&mut made.client, blank, Seek::Hole), (Ok(0), 1));
    }
    for block in (0..BLOCKS).step_by(2) {
        made.write(file, block * BLOCK, &[9; BLOCK as usize]).expect("room");
    }
    for _ in 0..2 {
        let (found, steps) = seek(&mut made.client, file, Seek::Hole);
        assert_eq!(found, Ok(BLOCKS * BLOCK));
        assert!(steps > 4, "{steps}");
        assert_eq!(seek(&mut made.client, file, Seek::Data), (Ok(0), 1));
        made.digest();
    }
    // Pieces of a block are looked at together, however many they are.
    for at in (1..BLOCK).step_by(2) {
        made.write(blank, 8192 * BLOCK + at, b"x").expect("room");
    }
    let caller = Caller { credentials: &made.root, now: BIRTH };
    let hole = end..8192 * BLOCK + BLOCK - 2;
    made.client.allocate(caller, blank, hole, Allocation::Punch).expect("an open file");
    assert_eq!(seek(&mut made.client, blank, Seek::Data).0, Ok(8192 * BLOCK));
    made.digest();
    made.whole();
}
