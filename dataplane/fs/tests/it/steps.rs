//! What was digested is dropped from the overlay in steps, between which base and overlay say the
//! same. Listings pass removed names in steps.

mod long_requests;

use sietch_fs::FileSystem as _;
use sietch_fs::access::{Caller, Credentials};
use sietch_fs::file_system::{Handle, NewInode, OpenMode, WriteAt};
use sietch_fs::inode::{InodeNumber, Kind};
use sietch_fs::name::{Cookie, NameKey};

use crate::setup::{BIRTH, FileSystem, Media};

const STEP: u64 = 4096;
const BYTES: u64 = 1000;

fn file(client: &mut FileSystem, root: &Credentials) -> Handle {
    let caller = Caller { credentials: root, now: BIRTH };
    let new = NewInode { kind: Kind::File, mode: 0o600, device: 0, target: &[] };
    let made = client.create(caller, InodeNumber::ROOT, b"file", &new).expect("room");
    let mode = OpenMode { read: true, write: true, ..OpenMode::default() };
    client.open(caller, made.inode, mode).expect("it is there")
}

fn append(client: &mut FileSystem, root: &Credentials, handle: Handle, byte: u8) {
    let caller = Caller { credentials: root, now: BIRTH };
    client.write(caller, handle, WriteAt::End, &[byte; BYTES as usize]).expect("room");
}

/// The bytes that the file has, one of each append.
fn contents(client: &mut FileSystem, handle: Handle, appends: usize) -> Vec<u8> {
    let mut bytes = vec![0; appends * BYTES as usize + 1];
    let read = client.read(handle, 0, &mut bytes).expect("it can be read");
    assert_eq!(read, appends * BYTES as usize);
    bytes[..read].chunks(BYTES as usize).map(|piece| piece[0]).collect()
}

#[test]
fn an_operation_drops_one_step_and_an_idle_client_everything() {
    let media = Media::new(64 << 20, 4 << 20);
    media.format(NameKey([7; 16]));
    let (mut client, root) = (media.open().expect("a file system"), Credentials::root());
    client.drop_by(STEP);
    let handle = file(&mut client, &root);
    let mut expected: Vec<u8> = (0..200).map(|number| number as u8).collect();
    expected.iter().for_each(|byte| append(&mut client, &root, handle, *byte));
    let (before, end) = (client.log().reclaimed(), client.log().next_position());
    client.service().digest().expect("media that work");
    let mut last = before;
    for byte in 200..230 {
        append(&mut client, &root, handle, byte);
        expected.push(byte);
        let reclaimed = client.log().reclaimed();
        assert!(reclaimed - last <= STEP, "{last} to {reclaimed}");
        last = reclaimed;
        assert_eq!(contents(&mut client, handle, expected.len()), expected);
    }
    assert!(last > before && last < end, "{last} is between {before} and {end}");
    assert!(client.advance_by_step());
    client.advance();
    assert_eq!(client.log().reclaimed(), end);
    assert!(!client.advance_by_step());
    assert_eq!(contents(&mut client, handle, expected.len()), expected);
}

#[test]
fn a_log_that_is_full_of_what_was_digested_has_room() {
    let media = Media::new(64 << 20, 64 << 10);
    media.format(NameKey([7; 16]));
    let (mut client, root) = (media.open().expect("a file system"), Credentials::root());
    client.drop_by(64);
    let handle = file(&mut client, &root);
    let mut appends = 0;
    while client.log().room() > 2 * BYTES {
        append(&mut client, &root, handle, appends as u8);
        appends += 1;
    }
    client.service().digest().expect("media that work");
    // Twice the log: the client waits for a digest, and before that for nothing.
    for _ in 0..200 {
        append(&mut client, &root, handle, appends as u8);
        appends += 1;
    }
    let expected: Vec<_> = (0..appends).map(|number| number as u8).collect();
    assert_eq!(contents(&mut client, handle, appends), expected);
}

/// Names that were removed, digested or not, hold the lock for one step only.
#[test]
fn a_listing_passes_removed_names_in_steps() {
    const NAMES: usize = 3000;
    for is_digested in [false, true] {
        let media = Media::new(64 << 20, 4 << 20);
        media.format(NameKey([7; 16]));
        let (mut client, root) = (media.open().expect("a file system"), Credentials::root());
        let caller = Caller { credentials: &root, now: BIRTH };
        let new = NewInode { kind: Kind::File, mode: 0o600, device: 0, target: &[] };
        for number in 0..NAMES {
            let name = number.to_string();
            client.create(caller, InodeNumber::ROOT, name.as_bytes(), &new).expect("room");
        }
        if is_digested {
            client.service().digest().expect("media that work");
            client.advance();
        }
        let mode = OpenMode { read: true, ..OpenMode::default() };
        let handle = client.open(caller, InodeNumber::ROOT, mode).expect("a directory");
        let mut names = Vec::new();
        let mut listed = |client: &mut FileSystem, after| {
            names.clear();
            let next = client.read_directory_step(handle, after, &mut |entry| {
                names.push(entry.name);
                true
            });
            (next.expect("it can be listed"), names.clone())
        };
        let (next, all) = listed(&mut client, Cookie(0));
        assert_eq!((next, all.len()), (None, NAMES));
        // The last one in the order of the listing stays.
        let (last, removed) = all.split_last().expect("names");
        for name in removed {
            client.unlink(caller, InodeNumber::ROOT, name).expect("it is there");
        }
        let (mut after, mut steps) = (Cookie(0), 0);
        let found = loop {
            steps += 1;
            match listed(&mut client, after) {
                (Some(next), found) => {
                    assert!(found.is_empty() && next > after);
                    after = next;
                }
                (None, found) => break found,
            }
        };
        assert_eq!(found, std::slice::from_ref(last));
        assert!((10..100).contains(&steps), "{steps} steps");
        let mut whole = Vec::new();
        let mut take = |entry: sietch_fs::file_system::DirectoryEntry| {
            whole.push(entry.name);
            true
        };
        client.read_directory(handle, Cookie(0), &mut take).expect("it can be listed");
        assert_eq!(whole, found);
    }
}
