//! Golden file: a log that an earlier version wrote reads the same, and is written the same.
//!
//! With `SIETCH_WRITE_GOLDEN=1` a missing file is written by the code at hand. One that exists is
//! never changed.

use std::path::PathBuf;

use sietch_disk::nvm::Medium;
use sietch_fs::Change;
use sietch_fs::change::{NewAttributes, Place};
use sietch_fs::inode::{InodeNumber, Kind, Timestamp};
use sietch_fs::log::{Durability, LogIdentity, LogReader, LogWriter, MIN_RING};
use sietch_fs::name::Cookie;
use sietch_sim::Memory;

const IDENTITY: LogIdentity = LogIdentity { log: 3, epoch: 2, seed: 0x5157_6c6f_6700_0001 };
/// The log begins here, so that a pad is at the end of the ring.
const START: u64 = MIN_RING - 1024;

fn place(name: &[u8], cookie: u64) -> Place<'_> {
    Place { directory: InodeNumber(1), cookie: Cookie(cookie), name }
}

/// A change of each kind, with its data.
fn changes() -> Vec<(Change<'static>, &'static [u8])> {
    let create = |inode, place, kind, device, target| Change::Create {
        inode: InodeNumber(inode),
        place,
        kind,
        mode: 0o640,
        uid: 1000,
        gid: 100,
        device,
        target,
    };
    let inode = InodeNumber(20);
    let time = |seconds| Some(Timestamp { seconds, nanoseconds: 7 });
    let attributes =
        NewAttributes { mode: Some(0o755), uid: Some(1), gid: Some(2), atime: time(-1), mtime: time(9) };
    let rename = |replaced, exchange| Change::Rename {
        inode,
        from: place(b"file", 4096),
        to: place(b"new", 8192),
        replaced,
        exchange,
    };
    vec![
        (create(20, Some(place(b"file", 4096)), Kind::File, 0, b""), b""),
        (create(21, None, Kind::File, 0, b""), b""),
        (create(22, Some(place(b"link", 12_288)), Kind::Symlink, 0, b"../target"), b""),
        (create(23, Some(place(b"null", 16_384)), Kind::CharacterDevice, 0x103, b""), b""),
        (Change::Link { inode, place: place(b"other", 20_480) }, b""),
        (Change::Write { inode, offset: 5, length: 9 }, b"some data"),
        (Change::Write { inode, offset: 4096, length: 200 }, &[0x5a; 200]),
        (Change::Truncate { inode, size: 100 }, b""),
        (Change::Reserve { inode, offset: 8192, length: 4096, size: 12_288, zero: true }, b""),
        (Change::Punch { inode, offset: 1, length: 2 }, b""),
        (Change::SetAttributes { inode, attributes }, b""),
        (Change::SetXattr { inode, name: b"user.a", length: 5 }, b"value"),
        (Change::RemoveXattr { inode, name: b"user.a" }, b""),
        (rename(None, false), b""),
        (rename(Some(InodeNumber(21)), false), b""),
        (rename(Some(InodeNumber(22)), true), b""),
        (Change::Unlink { inode, place: place(b"other", 20_480) }, b""),
        (Change::Free { inode }, b""),
    ]
}

const NOW: Timestamp = Timestamp { seconds: 1_790_000_000, nanoseconds: 123_456_789 };

fn write() -> Vec<u8> {
    let memory = Memory::new(MIN_RING as usize);
    let mut writer = LogWriter::new(memory.clone(), IDENTITY, Durability::Operation).expect("a ring");
    writer.continue_at(START, 41);
    for (change, data) in changes() {
        writer.append(NOW, &change, data).expect("room");
    }
    let end = (writer.next_position() - MIN_RING) as usize;
    let mut bytes = vec![0; 1024 + end];
    memory.load(START as usize, &mut bytes[..1024]);
    memory.load(0, &mut bytes[1024..]);
    bytes
}

#[test]
fn a_log_of_version_1_is_read_and_written_the_same() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/operation-log-v1");
    if !path.exists() && std::env::var_os("SIETCH_WRITE_GOLDEN").is_some() {
        std::fs::write(&path, write()).expect("a writable directory");
    }
    let golden = std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    assert!(golden == write(), "the writer writes other bytes");
    let mut memory = Memory::new(MIN_RING as usize);
    memory.store(START as usize, &golden[..1024]);
    memory.store(0, &golden[1024..]);
    let mut reader = LogReader::new(&memory, IDENTITY, START, 41).expect("a ring");
    for (sequence, (change, data)) in (41..).zip(changes()) {
        let record = reader.next().expect("no damage").expect("a record");
        assert_eq!((record.sequence, record.time, record.change), (sequence, NOW, change));
        let carried = if let Change::Create { target, .. } = change { target } else { data };
        assert_eq!(record.data.1, carried);
    }
    assert_eq!(reader.next(), Ok(None));
    assert_eq!(reader.verify_end(usize::MAX), Ok(true));
}
