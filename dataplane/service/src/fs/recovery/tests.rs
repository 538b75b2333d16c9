//! Logs for which the pool has no room, and logs of another history than the pool.

use std::path::{Path, PathBuf};

use sietch_fs::change::{Change, Place};
use sietch_fs::inode::{InodeNumber, Kind};
use sietch_fs::log::{Durability, LogWriter};

use super::*;
use crate::fs::description::{ClassName, MediumDescription};
use crate::fs::logs::Files;
use crate::fs::media::Medium;
use crate::fs::test_folder::append;
use crate::fs::{CreateOptions, create};

const OTHER: u32 = 2;
const NAME: &[u8] = b"large";
const PIECE: u32 = 1 << 20;

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = Path::new("/dev/shm").join(format!("sietch-recovery-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a folder");
        let folder = Self(path);
        let data = folder.0.join("data");
        let media =
            vec![MediumDescription { class: ClassName::Nvm, path: data, bytes: 16 << 20, model: None }];
        let options = CreateOptions {
            media,
            log_memory: Some(folder.0.clone()),
            log_bytes: Some(16 << 20),
            durability: None,
        };
        create(&folder.0.join("fs"), &options, &mut |_| {}).expect("a file system");
        folder
    }

    fn description(&self) -> Description {
        Description::read(&self.0.join("fs")).expect("a description")
    }

    fn recover(&self) -> Result<(Digest<AreaQueue>, u64), StoreError> {
        let description = self.description();
        let medium = Medium::open(&description.media[0])?;
        let (digest, _, records) = recover(vec![medium.member()?], &description)?;
        Ok((digest, records))
    }

    /// The writer of a log in a new epoch.
    fn writer(&self, digest: &mut Digest<AreaQueue>, number: u32) -> LogWriter<Mapped> {
        let log = numbered(&self.description().log, number);
        let state = digest.begin_epoch(number, log.seed).expect("an epoch");
        let files = Files::open(&log).expect("the log's files");
        let (memory, _) = media::log_memory(files.memory, &log.memory, log.bytes).expect("its memory");
        let identity = LogIdentity { log: number, epoch: state.epoch, seed: log.seed };
        let mut writer = LogWriter::new(memory, identity, Durability::Operation).expect("a log");
        writer.continue_at(state.position, state.sequence + 1);
        writer
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}

/// A file of `pieces` MiB.
fn file(writer: &mut LogWriter<Mapped>, inode: InodeNumber, place: Option<Place<'_>>, pieces: u64) {
    let (kind, mode) = (Kind::File, 0o600);
    append(writer, &Change::Create { inode, place, kind, mode, uid: 0, gid: 0, device: 0, target: &[] });
    for piece in 0..pieces {
        let offset = piece * u64::from(PIECE);
        append(writer, &Change::Write { inode, offset, length: PIECE });
    }
}

/// A file system with a file of 8 MiB, and numbers for two more inodes.
fn half_full(folder: &Folder) -> (Digest<AreaQueue>, Place<'static>, [InodeNumber; 3]) {
    let (mut digest, _) = folder.recover().expect("it is new");
    let first = digest.inode_numbers(3).expect("numbers").start;
    let inodes = [first, first + 1, first + 2].map(InodeNumber);
    let cookie = digest.pool().name_key().cookie(NAME);
    let place = Place { directory: InodeNumber::ROOT, cookie, name: NAME };
    file(&mut folder.writer(&mut digest, LOG), inodes[0], Some(place), 8);
    drop(digest);
    let (digest, records) = folder.recover().expect("it fits");
    assert_eq!(records, 9);
    (digest, place, inodes)
}

/// The order of logs does not matter, also where one makes the room that another one needs.
#[test]
fn a_log_without_room_waits_for_one_that_makes_some() {
    let folder = Folder::new("waits");
    let (mut digest, place, inodes) = half_full(&folder);
    file(&mut folder.writer(&mut digest, OTHER), inodes[1], None, 12);
    let mut first = folder.writer(&mut digest, LOG);
    append(&mut first, &Change::Unlink { inode: inodes[0], place });
    append(&mut first, &Change::Free { inode: inodes[0] });
    drop((first, digest));
    let (_, records) = folder.recover().expect("all fits");
    assert_eq!(records, 13 + 2);
}

/// What never fits is named; other logs lose nothing, and it is still there.
#[test]
fn a_log_that_does_not_fit_keeps_no_other_from_being_digested() {
    let folder = Folder::new("full");
    let (mut digest, _, inodes) = half_full(&folder);
    file(&mut folder.writer(&mut digest, OTHER), inodes[1], None, 12);
    file(&mut folder.writer(&mut digest, LOG), inodes[2], None, 0);
    let before = digest.log_state(LOG).expect("its state").position;
    drop(digest);
    let other = numbered(&folder.description().log, OTHER).memory;
    for _ in 0..2 {
        match folder.recover() {
            Err(StoreError::NoRoom { path, wanted }) => assert!(path == other && wanted > 0, "{path:?}"),
            Err(error) => panic!("{error}"),
            Ok((_, records)) => panic!("{records} records fit"),
        }
    }
    let medium = Medium::open(&folder.description().media[0]).expect("a medium");
    let pool = Pool::open(vec![medium.member().expect("a queue")]).expect("a pool");
    let mut digest = Digest::new(pool, now()).expect("a digest");
    assert!(digest.log_state(LOG).expect("its state").position > before);
    // As the error says: without what it has, the file system opens.
    let bytes = std::fs::metadata(&other).expect("the log").len();
    std::fs::write(&other, vec![0; bytes as usize]).expect("zeros");
    drop((digest, medium));
    folder.recover().map(drop).expect("it opens");
}

/// With another seed the log looks empty. What it has is not given up for that.
#[test]
fn a_log_with_another_seed_is_refused() {
    let folder = Folder::new("seed");
    let (mut digest, _, inodes) = half_full(&folder);
    file(&mut folder.writer(&mut digest, LOG), inodes[1], None, 2);
    drop(digest);
    let path = folder.0.join("fs/fs.toml");
    let whole = std::fs::read_to_string(&path).expect("a description");
    let seed = folder.description().log.seed;
    std::fs::write(&path, whole.replace(&format!("seed = {seed}"), "seed = 1")).expect("write it");
    assert_eq!(folder.description().log.seed, 1);
    assert!(matches!(folder.recover(), Err(StoreError::Seed { .. })));
    std::fs::write(&path, whole).expect("write it back");
    assert_eq!(folder.recover().expect("the seed is right").1, 3);
}

/// Records of the history that was given up are behind the end of the restored one, with the
/// sequences that follow it.
#[test]
fn a_medium_that_was_restored_takes_no_record_of_its_future() {
    let folder = Folder::new("restored");
    let (digest, _, inodes) = half_full(&folder);
    drop(digest);
    let (data, copy) = (folder.0.join("data"), folder.0.join("copy"));
    std::fs::copy(&data, &copy).expect("a copy");
    let (mut digest, _) = folder.recover().expect("it opens");
    file(&mut folder.writer(&mut digest, LOG), inodes[1], None, 4);
    drop(digest);
    // A clock of seconds tells the histories apart; two epochs may have begun in one of them.
    std::thread::sleep(std::time::Duration::from_millis(2100));
    std::fs::copy(&copy, &data).expect("the copy");
    let (mut digest, records) = folder.recover().expect("it opens");
    assert_eq!(records, 0);
    file(&mut folder.writer(&mut digest, LOG), inodes[2], None, 0);
    drop(digest);
    assert_eq!(folder.recover().expect("it opens").1, 1);
}
