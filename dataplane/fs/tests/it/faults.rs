//! Media that rot or fail below a file system.

use rustix::io::Errno;
use sietch_disk::nvm::Medium as _;
use sietch_fs::FileSystem as _;
use sietch_fs::access::{Caller, Credentials};
use sietch_fs::file_system::{Handle, NewInode, OpenMode, WriteAt};
use sietch_fs::inode::{InodeNumber, Kind};
use sietch_fs::limits::BLOCK;
use sietch_fs::name::NameKey;

use crate::setup::{BIRTH, FileSystem, Media, check_whole, findings};

const KEY: NameKey = NameKey([7; 16]);
/// Blocks of the file: more than one extent.
const BLOCKS: usize = 100;
const ROTTEN: usize = 70;

fn content(block: usize) -> Vec<u8> {
    let word = (0x5157_0000_0000_0000 + block as u64).to_le_bytes();
    word.repeat(BLOCK / 8)
}

/// A file system with one file that is digested.
fn one_file() -> (Media, FileSystem, InodeNumber, Handle) {
    let media = Media::new(8 << 20, 1 << 20);
    media.format(KEY);
    let mut client = media.open().expect("a file system");
    let who = Credentials::root();
    let caller = Caller { credentials: &who, now: BIRTH };
    let new = NewInode { kind: Kind::File, mode: 0o600, device: 0, target: &[] };
    let file = client.create(caller, InodeNumber::ROOT, b"file", &new).expect("a new name").inode;
    let mode = OpenMode { read: true, write: true, truncate: false };
    let handle = client.open(caller, file, mode).expect("a file");
    for block in 0..BLOCKS {
        let at = WriteAt::Offset((block * BLOCK) as u64);
        client.write(caller, handle, at, &content(block)).expect("room");
    }
    client.service().digest().expect("a good medium");
    client.advance();
    // The client's own view of the log is gone with it.
    drop(client);
    let mut client = media.open().expect("a file system");
    let handle = client.open(caller, file, mode).expect("a file");
    (media, client, file, handle)
}

/// Where a block of the file is in the pool.
fn place(media: &Media, block: usize) -> usize {
    let wanted = content(block);
    let mut found = vec![0; BLOCK];
    let mut places = (0..media.pool.len()).step_by(BLOCK);
    let is_there = |at: &usize| {
        media.pool.load(*at, &mut found);
        found == wanted
    };
    places.find(is_there).expect("the block is in the pool")
}

/// One block gives `EIO`, and the fault says which; all others are right.
fn one_block_is_lost(
    media: &Media,
    mut client: FileSystem,
    (file, handle): (InodeNumber, Handle),
    at: usize,
) {
    let mut all = vec![0; BLOCKS * BLOCK];
    assert_eq!(client.read(handle, 0, &mut all), Err(Errno::IO));
    assert!(
        all.iter().skip(ROTTEN * BLOCK).take(BLOCK).all(|byte| *byte == 0),
        "no damaged byte is returned"
    );
    for block in 0..BLOCKS {
        let mut bytes = vec![0; BLOCK];
        let read = client.read(handle, (block * BLOCK) as u64, &mut bytes);
        if block == ROTTEN {
            assert_eq!(read, Err(Errno::IO));
        } else {
            assert_eq!((read, bytes), (Ok(BLOCK), content(block)));
        }
    }
    let faults = client.service().faults().to_vec();
    let last = faults.last().expect("a fault");
    let (offset, block) = (format!("at {at}"), format!("block {ROTTEN} of inode {file}"));
    assert!(faults.len() == 2 && last.contains(&offset) && last.contains(&block), "{faults:?}");
    assert!(faults[0].contains(&format!("of inode {file}")), "{faults:?}");
    let found = findings(client);
    let lost = format!("lost: its bytes {} to {}", ROTTEN * BLOCK, (ROTTEN + 1) * BLOCK);
    let start = format!("nvm: data at {at}: inode {file}, /file: block {ROTTEN} of its data ");
    assert_eq!(found.len(), 1, "{found:#?}");
    assert!(found[0].starts_with(&start) && found[0].ends_with(&lost), "{found:#?}");
    assert!(!media.pool.is_off());
}

#[test]
fn a_rotten_block_of_data_is_named_and_the_others_are_read() {
    let (mut media, client, file, handle) = one_file();
    let at = place(&media, ROTTEN);
    let mut word = [0; 8];
    media.pool.load(at + 512, &mut word);
    word[3] ^= 4;
    media.pool.store(at + 512, &word);
    media.pool.fence();
    one_block_is_lost(&media, client, (file, handle), at);
}

#[test]
fn a_block_that_cannot_be_read_is_named_and_the_others_are_read() {
    let (media, client, file, handle) = one_file();
    let at = place(&media, ROTTEN);
    media.faults.blocks.borrow_mut().insert((at / BLOCK) as u64);
    one_block_is_lost(&media, client, (file, handle), at);
}

/// A rotten block can be written anew: nothing of it is needed then.
#[test]
fn a_rotten_block_can_be_replaced() {
    let (mut media, mut client, _, handle) = one_file();
    let at = place(&media, ROTTEN);
    media.pool.store(at, &[9; 8]);
    media.pool.fence();
    let who = Credentials::root();
    let caller = Caller { credentials: &who, now: BIRTH };
    let offset = (ROTTEN * BLOCK) as u64;
    client.write(caller, handle, WriteAt::Offset(offset), &content(ROTTEN)).expect("room");
    client.service().digest().expect("a good medium");
    let mut all = vec![0; BLOCKS * BLOCK];
    assert_eq!(client.read(handle, 0, &mut all), Ok(BLOCKS * BLOCK));
    assert_eq!(all, (0..BLOCKS).flat_map(content).collect::<Vec<u8>>());
    assert_eq!(check_whole(client), Ok(()));
}

/// A change of a part of a rotten block is digested with everything else, and the block stays one
/// that cannot be read.
#[test]
fn a_rotten_block_does_not_stop_the_digest() {
    let (mut media, mut client, _, handle) = one_file();
    let at = place(&media, ROTTEN);
    media.pool.store(at, &[9; 64]);
    media.pool.fence();
    let who = Credentials::root();
    let caller = Caller { credentials: &who, now: BIRTH };
    let offset = |block: usize| (block * BLOCK) as u64;
    for block in [ROTTEN - 1, ROTTEN, ROTTEN + 1] {
        client.write(caller, handle, WriteAt::Offset(offset(block) + 100), b"new").expect("room");
    }
    let batch = client.service().digest().expect("the others are digested");
    client.advance();
    assert!(batch.damage.len() == 1 && batch.damage[0].contains(&format!("block {ROTTEN} ")), "{batch:?}");
    let mut bytes = vec![0; 3];
    for block in [ROTTEN - 1, ROTTEN + 1] {
        assert_eq!(client.read(handle, offset(block) + 100, &mut bytes), Ok(3));
        assert_eq!(bytes, b"new");
    }
    assert_eq!(client.read(handle, offset(ROTTEN) + 100, &mut bytes), Err(Errno::IO));
    client.write(caller, handle, WriteAt::Offset(offset(ROTTEN)), &content(ROTTEN)).expect("room");
    client.service().digest().expect("a good medium");
    client.advance();
    let mut whole = vec![0; BLOCK];
    assert_eq!(client.read(handle, offset(ROTTEN), &mut whole), Ok(BLOCK));
    assert_eq!(whole, content(ROTTEN));
}

/// What was acknowledged is in the log, whatever happens to the pool.
#[test]
fn nothing_is_lost_when_the_pool_cannot_be_written() {
    let (media, mut client, file, handle) = one_file();
    let who = Credentials::root();
    let caller = Caller { credentials: &who, now: BIRTH };
    client.write(caller, handle, WriteAt::Offset(0), &content(5)).expect("room");
    media.faults.writes.set(true);
    client.service().digest().expect_err("the medium fails");
    // The log has room left.
    client.write(caller, handle, WriteAt::Offset(BLOCK as u64), &content(6)).expect("room in the log");
    let again = client.service().digest().expect_err("the digest is stopped");
    assert!(again.to_string().contains("open the pool again"), "{again}");
    drop(client);
    media.faults.writes.set(false);
    let mut client = media.open().expect("a file system");
    let mode = OpenMode { read: true, ..OpenMode::default() };
    let handle = client.open(caller, file, mode).expect("a file");
    let mut both = vec![0; 2 * BLOCK];
    assert_eq!(client.read(handle, 0, &mut both), Ok(2 * BLOCK));
    assert_eq!(both, [content(5), content(6)].concat());
    assert_eq!(check_whole(client), Ok(()));
}
