//! The digest while it lacks blocks that a client or the mover reads.

use std::path::{Path, PathBuf};

use sietch_fs::change::{Change, Place};
use sietch_fs::inode::{InodeNumber, Kind};
use sietch_fs::log::{Durability, LogIdentity, LogWriter};
use sietch_fs::mover::Owner;

use super::*;
use crate::fs::description::{ClassName, Description, MediumDescription};
use crate::fs::logs::LOG;
use crate::fs::media::Medium;
use crate::fs::recovery::recover;
use crate::fs::requests::RemoteOwner;
use crate::fs::test_folder::append;
use crate::fs::{CreateOptions, create};

const PIECE: u32 = 1 << 20;
/// Pieces of a file that is more than half of the pool.
const PIECES: u64 = 12;
/// Pieces of two files: beside the second, the removal of the first has room if nothing is held.
const REMOVED: u64 = 2;
const BESIDE: u64 = 8;

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = Path::new("/dev/shm").join(format!("sietch-digester-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a folder");
        let folder = Self(path);
        let media = vec![MediumDescription {
            class: ClassName::Nvm,
            path: folder.0.join("data"),
            bytes: 16 << 20,
            model: None,
        }];
        let (log_memory, log_bytes) = (Some(folder.0.clone()), Some(32 << 20));
        let options = CreateOptions { media, log_memory, log_bytes, durability: None };
        create(&folder.0.join("fs"), &options, &mut |_| {}).expect("a file system");
        folder
    }

    /// The digester, without its thread, and a writer of its log.
    fn open(&self) -> (Work, LogWriter<Mapped>) {
        let description = Description::read(&self.0.join("fs")).expect("a description");
        let medium = Medium::open(&description.media[0]).expect("a medium");
        let members = vec![medium.member().expect("a queue")];
        let (mut digest, (memory, reading, _), _) = recover(members, &description).expect("a pool");
        let state = digest.begin_epoch(LOG, description.log.seed).expect("an epoch");
        let identity = LogIdentity { log: LOG, epoch: state.epoch, seed: description.log.seed };
        let mut writer = LogWriter::new(memory, identity, Durability::Operation).expect("a log");
        writer.continue_at(state.position, state.sequence + 1);
        let work = Work::new(digest, Arc::new(reading), (LOG, description.log.seed)).expect("a digester");
        (work, writer)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}

/// Logs a new file in the root directory.
fn file(work: &mut Work, writer: &mut LogWriter<Mapped>, (inode, pieces): (InodeNumber, u64), name: &[u8]) {
    let cookie = work.digest.pool().name_key().cookie(name);
    let place = Some(Place { directory: InodeNumber::ROOT, cookie, name });
    let (kind, mode) = (Kind::File, 0o600);
    append(writer, &Change::Create { inode, place, kind, mode, uid: 0, gid: 0, device: 0, target: &[] });
    for piece in 0..pieces {
        let offset = piece * u64::from(PIECE);
        append(writer, &Change::Write { inode, offset, length: PIECE });
    }
}

/// Digests what was logged.
fn digest(work: &mut Work, writer: &LogWriter<Mapped>) -> Result<(), Failure> {
    work.shared.log(writer.next_position());
    work.work(false)
}

/// Client and mover end right after a batch lacked blocks that they read. That is no reason to give
/// up: now the blocks are free.
#[test]
fn a_batch_that_lacked_blocks_is_tried_again_when_the_client_ends_meanwhile() {
    let folder = Folder::new("held");
    let (mut work, mut writer) = folder.open();
    let numbers = work.digest.inode_numbers(2).expect("numbers");
    let (first, second) = (InodeNumber(numbers.start), InodeNumber(numbers.start + 1));
    file(&mut work, &mut writer, (first, PIECES), b"first");
    digest(&mut work, &writer).expect("room");
    // The client reads it from now on, and nothing newer.
    work.shared.reads(work.digest.root().generation);
    append(&mut writer, &Change::Truncate { inode: first, size: 0 });
    digest(&mut work, &writer).expect("room");
    file(&mut work, &mut writer, (second, PIECES), b"second");
    work.when_held = Some(|shared| {
        shared.reads(u64::MAX);
        shared.state().is_ending = true;
    });
    assert_eq!(digest(&mut work, &writer), Ok(()));
    assert!(work.shared.state().is_ending, "the batch had all blocks at once");
    assert_eq!(work.read, writer.next_position());
}

/// Attributes of the longest value, each of which is many items.
const ATTRIBUTES: u32 = 100;

/// An ordinary user fills the file system with attributes, removes them, and makes others. What a
/// client reads is not free: a batch that needs it waits.
#[test]
fn attributes_wait_for_the_blocks_of_those_that_a_client_reads() {
    let folder = Folder::new("attributes");
    let (mut work, mut writer) = folder.open();
    let inode = InodeNumber(work.digest.inode_numbers(1).expect("numbers").start);
    file(&mut work, &mut writer, (inode, 0), b"file");
    let name = |round: u32, number: u32| format!("user.{round}.{number}").into_bytes();
    let set = |writer: &mut LogWriter<Mapped>, round| {
        for number in 0..ATTRIBUTES {
            append(writer, &Change::SetXattr { inode, name: &name(round, number), length: 65_536 });
        }
    };
    // It goes on when it is asked to.
    work.when_held = Some(|shared| {
        let newest = shared.state().root.generation;
        shared.reads(newest);
    });
    for round in 0..3 {
        set(&mut writer, round);
        assert_eq!(digest(&mut work, &writer), Ok(()), "round {round}");
        for number in 0..ATTRIBUTES {
            append(&mut writer, &Change::RemoveXattr { inode, name: &name(round, number) });
        }
        assert_eq!(digest(&mut work, &writer), Ok(()), "round {round}");
    }
    assert_eq!(work.read, writer.next_position());
}

/// The mover reads an older generation, and asks for something. It is served while the removal of a
/// file waits for the blocks that it holds, although the client is gone.
#[test]
fn the_mover_is_served_while_a_removal_waits_for_its_blocks() {
    let folder = Folder::new("served");
    let (mut work, mut writer) = folder.open();
    let numbers = work.digest.inode_numbers(2).expect("numbers");
    let (first, second) = (InodeNumber(numbers.start), InodeNumber(numbers.start + 1));
    file(&mut work, &mut writer, (first, REMOVED), b"first");
    digest(&mut work, &writer).expect("room");
    work.shared.reads(u64::MAX);
    Owner::begin(&mut work.digest).expect("a view");
    let directory = InodeNumber::ROOT;
    let place = Place { directory, cookie: work.digest.pool().name_key().cookie(b"first"), name: b"first" };
    append(&mut writer, &Change::Unlink { inode: first, place });
    file(&mut work, &mut writer, (second, BESIDE), b"second");
    digest(&mut work, &writer).expect("room");
    assert_eq!(work.digest.free_unnamed(&[first]).expect("room"), 1, "it has a name");
    work.reap().expect("no fault");
    assert!(work.is_held, "the removal has room");
    let shared = Arc::clone(&work.shared);
    std::thread::scope(|scope| {
        let mover = scope.spawn(|| RemoteOwner { requests: &shared.requests, wake: &|| {} }.end());
        let limit = Instant::now() + Duration::from_secs(60);
        while !mover.is_finished() && Instant::now() < limit {
            work.reap().expect("no fault");
            std::thread::sleep(HELD_PAUSE);
        }
        let was_served = mover.is_finished();
        shared.requests.close();
        assert!(was_served, "the mover waits");
    });
    work.reap().expect("no fault");
    assert!(!work.is_held, "nothing holds blocks any more");
}
