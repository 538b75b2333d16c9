//! File systems that are full, with the thread that digests beside the client.

use std::path::{Path, PathBuf};

use rustix::io::Errno;
use sietch_fs::FileSystem as _;
use sietch_fs::access::{Caller, Credentials};
use sietch_fs::file_system::{AttributeChange, NewInode};
use sietch_fs::inode::{InodeNumber, Kind, Timestamp};
use sietch_service::fs::description::MediumDescription;
use sietch_service::fs::{ClassName, CreateOptions, FileSystemClient, create, open};
use sietch_structures::Random;

/// A folder in memory, which is removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let folder = Path::new("/dev/shm").join(format!("sietch-service-fs-{name}-{}", std::process::id()));
        // It may be there from a run that was killed.
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).expect("make a folder");
        Self(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn make(folder: &Path, bytes: u64, log_bytes: u64) {
    let medium = MediumDescription { class: ClassName::Nvm, path: folder.join("data"), bytes, model: None };
    let options = CreateOptions {
        media: vec![medium],
        log_memory: Some(folder.to_owned()),
        log_bytes: Some(log_bytes),
        durability: None,
    };
    create(&folder.join("store"), &options, &mut |_| {}).expect("a file system");
}

fn name(number: usize) -> Vec<u8> {
    let mut name = format!("{number}-").into_bytes();
    name.resize(name.len() + [1, 50, 200][number % 3], b'n');
    name
}

/// Creates files until there is no room. Returns their inodes.
fn fill(client: &mut FileSystemClient, caller: Caller<'_>) -> Vec<InodeNumber> {
    let new = NewInode { kind: Kind::File, mode: 0o600, device: 0, target: &[] };
    let mut files = Vec::new();
    loop {
        match client.create(caller, InodeNumber::ROOT, &name(files.len()), &new) {
            Ok(made) => files.push(made.inode),
            Err(errno) => {
                assert_eq!(errno, Errno::NOSPC);
                return files;
            }
        }
    }
}

/// Each change copies a node of its own, and the client holds the old ones until it has advanced.
/// The digester must wait for that, and not take the pool for full.
#[test]
fn a_full_file_system_takes_changes_all_over_and_is_emptied() {
    let folder = Folder::new("full");
    make(&folder.0, 16 << 20, 4 << 20);
    let root = Credentials::root();
    let caller = Caller { credentials: &root, now: Timestamp { seconds: 1_000_000, nanoseconds: 0 } };
    let mut running = open(&folder.0.join("store")).expect("it opens");
    let files = fill(&mut running.client, caller);
    assert!(files.len() > 3000, "{} files", files.len());
    let mut order: Vec<usize> = (0..files.len()).collect();
    let mut random = Random::new(3);
    order.sort_by_cached_key(|_| random.below(u64::MAX));
    for mode in [0o640, 0o644] {
        let change = AttributeChange { mode: Some(mode), ..AttributeChange::default() };
        for number in &order {
            let changed = running.client.set_attributes(caller, files[*number], None, &change);
            assert!(matches!(changed, Ok(_) | Err(Errno::NOSPC)), "{changed:?}");
        }
    }
    assert_eq!(running.digester.failure(), None);
    for number in &order {
        let removed = running.client.unlink(caller, InodeNumber::ROOT, &name(*number));
        assert_eq!((removed, running.digester.failure()), (Ok(()), None), "file {number}");
    }
    // The log is full of removals, which are digested a few at a time.
    let again = fill(&mut running.client, caller).len();
    assert!(again * 10 > files.len() * 9, "{again} files fit, and {} did before", files.len());
    drop(running.client);
    assert_eq!(running.digester.end(), Ok(()));
}
