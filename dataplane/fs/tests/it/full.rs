//! A pool that is filled through the client until an operation gets `ENOSPC`.

use rustix::io::Errno;
use sietch_fs::FileSystem as _;
use sietch_fs::access::{Caller, Credentials};
use sietch_fs::file_system::{AttributeChange, NewInode, OpenMode, WriteAt};
use sietch_fs::inode::{InodeNumber, Kind};
use sietch_fs::name::NameKey;
use sietch_sim::Random;

use crate::setup::{BIRTH, FileSystem, Media, check_whole};

const KEY: NameKey = NameKey([7; 16]);
/// Bytes of a write; not whole blocks, so that blocks are shared and written anew.
const PIECE: usize = 10_000;
/// Writes of a file.
const PIECES: usize = 20;
const MODE: OpenMode = OpenMode { read: true, write: true, truncate: false };

struct Full {
    media: Media,
    client: FileSystem,
    /// Each file, and the pieces that were acknowledged.
    files: Vec<(InodeNumber, usize)>,
}

fn name(file: usize) -> Vec<u8> {
    format!("file {file}").into_bytes()
}

fn content(file: usize, piece: usize) -> Vec<u8> {
    let mut random = Random::new((file * 1000 + piece) as u64);
    (0..PIECE).map(|_| random.below(256) as u8).collect()
}

fn make(client: &mut FileSystem, file: usize) -> Result<InodeNumber, Errno> {
    let who = Credentials::root();
    let caller = Caller { credentials: &who, now: BIRTH };
    let new = NewInode { kind: Kind::File, mode: 0o600, device: 0, target: &[] };
    client.create(caller, InodeNumber::ROOT, &name(file), &new).map(|made| made.inode)
}

/// Writes pieces to a new file; how many were acknowledged, and why no more.
fn write(client: &mut FileSystem, inode: InodeNumber, file: usize) -> (usize, Result<(), Errno>) {
    let who = Credentials::root();
    let caller = Caller { credentials: &who, now: BIRTH };
    let handle = client.open(caller, inode, MODE).expect("a file");
    let mut outcome = (PIECES, Ok(()));
    for piece in 0..PIECES {
        let at = WriteAt::Offset((piece * PIECE) as u64);
        if let Err(errno) = client.write(caller, handle, at, &content(file, piece)) {
            outcome = (piece, Err(errno));
            break;
        }
    }
    client.close(handle);
    outcome
}

/// Fills a file system of `bytes`, whose log has `log`.
fn full(bytes: usize, log: usize) -> Full {
    let media = Media::new(bytes, log);
    media.format(KEY);
    let mut client = media.open().expect("a file system");
    let mut files = Vec::new();
    let errno = loop {
        let file = files.len();
        let inode = match make(&mut client, file) {
            Ok(inode) => inode,
            Err(errno) => break errno,
        };
        let (pieces, done) = write(&mut client, inode, file);
        files.push((inode, pieces));
        if let Err(errno) = done {
            break errno;
        }
    };
    assert_eq!((errno, client.service().faults()), (Errno::NOSPC, <&[String]>::default()));
    assert!(files.len() > 2, "there is room for some files");
    Full { media, client, files }
}

/// Everything that was acknowledged is there.
fn verify(client: &mut FileSystem, files: &[(InodeNumber, usize)]) {
    let who = Credentials::root();
    let caller = Caller { credentials: &who, now: BIRTH };
    for (file, (inode, pieces)) in files.iter().enumerate() {
        let found = client.lookup(caller, InodeNumber::ROOT, &name(file)).expect("its name");
        assert_eq!((found.inode, found.size), (*inode, (pieces * PIECE) as u64), "file {file}");
        let handle = client.open(caller, *inode, MODE).expect("a file");
        for piece in 0..*pieces {
            let mut bytes = vec![0; PIECE];
            assert_eq!(client.read(handle, (piece * PIECE) as u64, &mut bytes), Ok(PIECE));
            assert!(bytes == content(file, piece), "file {file}, piece {piece}");
        }
        client.close(handle);
    }
}

fn remove(client: &mut FileSystem, file: usize) {
    let who = Credentials::root();
    let caller = Caller { credentials: &who, now: BIRTH };
    let removed = client.unlink(caller, InodeNumber::ROOT, &name(file));
    assert_eq!(
        removed,
        Ok(()),
        "removing needs no room: {:?}, {:?}",
        client.usage(),
        client.service().faults()
    );
}

const SIZES: [(usize, usize); 3] = [(3 << 20, 256 << 10), (6 << 20, 64 << 10), (4 << 20, 4 << 20)];

#[test]
fn what_was_written_before_there_was_no_room_reads_back() {
    for (bytes, log) in SIZES {
        let Full { mut client, files, .. } = full(bytes, log);
        verify(&mut client, &files);
        client.service().digest().expect("what was promised fits");
        client.advance();
        verify(&mut client, &files);
        assert_eq!(check_whole(client), Ok(()));
    }
}

#[test]
fn a_full_file_system_is_emptied_and_has_its_room_again() {
    for (bytes, log) in SIZES {
        let Full { media, mut client, files } = full(bytes, log);
        for round in 0..3 {
            for file in 0..files.len() {
                remove(&mut client, file);
            }
            let mut again = 0;
            for (file, (_, pieces)) in files.iter().enumerate() {
                let inode = make(&mut client, file).expect("room for a file");
                let (written, _) = write(&mut client, inode, file);
                again += written;
                assert!(
                    written == *pieces || file + 1 >= files.len() - 1,
                    "round {round}, file {file}: {written}"
                );
            }
            let before: usize = files.iter().map(|(_, pieces)| pieces).sum();
            assert!(again + PIECES >= before, "round {round}: {again} pieces, and {before} before");
        }
        for file in 0..files.len() {
            remove(&mut client, file);
        }
        assert_eq!(client.service().faults(), <&[String]>::default());
        assert_eq!(check_whole(client), Ok(()));
        let mut left = media.open().expect("a file system");
        let empty = Media::new(bytes, log);
        empty.format(KEY);
        let mut fresh = empty.open().expect("a file system");
        assert_eq!(left.usage().inodes, fresh.usage().inodes);
    }
}

#[test]
fn a_crash_of_a_full_file_system_loses_nothing() {
    for (seed, (bytes, log)) in SIZES.into_iter().enumerate() {
        let Full { media, client, files } = full(bytes, log);
        drop(client);
        media.crash(&mut Random::new(seed as u64));
        let mut client = media.open().expect("recovery needs no room that is not there");
        verify(&mut client, &files);
        remove(&mut client, 0);
        assert_eq!(check_whole(client), Ok(()));
    }
}

/// Names alone take room too.
#[test]
fn a_file_system_full_of_names_is_emptied() {
    let media = Media::new(5 << 19, 256 << 10);
    media.format(KEY);
    let mut client = media.open().expect("a file system");
    let mut files = 0;
    let errno = loop {
        match make(&mut client, files) {
            Ok(_) => files += 1,
            Err(errno) => break errno,
        }
    };
    assert_eq!((errno, client.service().faults()), (Errno::NOSPC, <&[String]>::default()));
    assert!(files > 1000, "{files} files");
    drop(client);
    media.crash(&mut Random::new(9));
    let mut client = media.open().expect("a file system");
    for file in 0..files {
        remove(&mut client, file);
    }
    make(&mut client, 0).expect("room");
    assert_eq!(client.service().faults(), <&[String]>::default());
    assert_eq!(check_whole(client), Ok(()));
    assert_eq!(media.open().expect("a file system").usage().inodes, 2);
}

/// The name of file `number`; names of several lengths make leaves of several sizes.
fn long_name(number: usize) -> Vec<u8> {
    let mut name = name(number);
    name.resize(name.len() + [1, 50, 200][number % 3], b'n');
    name
}

/// Creates files with long names until there is no room. Returns their inodes.
fn fill_with_names(client: &mut FileSystem, caller: Caller<'_>) -> Vec<InodeNumber> {
    let new = NewInode { kind: Kind::File, mode: 0o600, device: 0, target: &[] };
    let mut files = Vec::new();
    loop {
        match client.create(caller, InodeNumber::ROOT, &long_name(files.len()), &new) {
            Ok(made) => files.push(made.inode),
            Err(Errno::NOSPC) => return files,
            Err(errno) => panic!("{errno} after {} files: {:?}", files.len(), client.service().faults()),
        }
    }
}

/// Each change is of a leaf of its own, and has no room promised: so many of them in one batch do
/// not fit a pool that is full. They must be digested in smaller ones.
#[test]
fn a_full_pool_takes_changes_all_over_its_tree_and_can_be_emptied() {
    let root = Credentials::root();
    let caller = Caller { credentials: &root, now: BIRTH };
    let media = Media::new(4 << 20, 1 << 20);
    media.format(KEY);
    let mut client = media.open().expect("a file system");
    let empty = client.usage().free;
    let files = fill_with_names(&mut client, caller);
    assert!(files.len() > 1000, "only {} files fit", files.len());
    let mut order: Vec<usize> = (0..files.len()).collect();
    let mut random = Random::new(3);
    order.sort_by_cached_key(|_| random.below(u64::MAX));
    let change = AttributeChange { mode: Some(0o640), ..AttributeChange::default() };
    for number in &order {
        let changed = client.set_attributes(caller, files[*number], None, &change);
        assert!(matches!(changed, Ok(_) | Err(Errno::NOSPC)), "{changed:?}: {:?}", client.service().faults());
    }
    drop(client);
    let mut client = media.open().expect("a full pool opens");
    for number in &order {
        let removed = client.unlink(caller, InodeNumber::ROOT, &long_name(*number));
        assert_eq!(removed, Ok(()), "{number}: {:?}", client.service().faults());
    }
    drop(client);
    let mut client = media.open().expect("an empty pool opens");
    // Chunks of nodes are given back late.
    assert!(client.usage().free * 10 > empty * 9, "{} of {empty} blocks are free", client.usage().free);
    assert!(fill_with_names(&mut client, caller).len() * 10 > files.len() * 9);
}
