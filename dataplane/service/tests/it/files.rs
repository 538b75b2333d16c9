//! File systems of [`sietch_service::fs`] with small logs and pools: a client and the thread that
//! digests meet at every edge.

use std::collections::BTreeMap;
use std::fs::Permissions;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use sietch_fs::FileSystem as _;
use sietch_fs::access::{Caller, Credentials};
use sietch_fs::file_system::{
    Allocation, Handle, NewInode, OpenMode, PendingSync, RenameMode, SyncPoint, WriteAt, sync_shared,
};
use sietch_fs::inode::{InodeNumber, Kind, Timestamp};
use sietch_service::fs::description::{FILE, MediumDescription};
use sietch_service::fs::{
    ClassName, CreateOptions, Description, Digester, FileSystemClient, Running, StoreError, create, open,
};
use sietch_structures::Random;

/// The smallest log.
const LOG: u64 = 32 << 10;
const NOW: Timestamp = Timestamp { seconds: 1, nanoseconds: 0 };
/// How long a test that makes progress takes, at most.
const PATIENCE: Duration = Duration::from_secs(60);

/// A folder in memory that goes with the test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = Path::new("/dev/shm").join(format!("sietch-files-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a folder");
        Self(path)
    }

    /// Makes a file system with one medium.
    fn create(&self, class: ClassName, bytes: u64, log_bytes: u64) -> Description {
        let media = vec![MediumDescription { class, path: self.0.join("data"), bytes, model: None }];
        let options = CreateOptions {
            media,
            log_memory: Some(self.0.clone()),
            log_bytes: Some(log_bytes),
            durability: None,
        };
        create(&self.0.join("fs"), &options, &mut |_| {}).expect("a file system")
    }

    fn open(&self) -> Running {
        open(&self.0.join("fs")).expect("it opens")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}

/// Fails if `work` takes longer than [`PATIENCE`]: its thread hangs then.
fn in_time<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, wait) = channel();
    let thread = std::thread::spawn(move || {
        let result = work();
        let _ = done.send(());
        result
    });
    match wait.recv_timeout(PATIENCE) {
        Err(RecvTimeoutError::Timeout) => panic!("no progress for {PATIENCE:?}"),
        Ok(()) | Err(RecvTimeoutError::Disconnected) => thread.join().expect("it does not panic"),
    }
}

/// A client and who calls it.
struct Files {
    client: FileSystemClient,
    who: Credentials,
}

impl Files {
    fn new(client: FileSystemClient) -> Self {
        Self { client, who: Credentials::root() }
    }

    fn open(&mut self, name: &[u8]) -> Result<Handle, Errno> {
        let caller = Caller { credentials: &self.who, now: NOW };
        let mode = OpenMode { read: true, write: true, truncate: false };
        let inode = match self.client.lookup(caller, InodeNumber::ROOT, name) {
            Ok(found) => found.inode,
            Err(Errno::NOENT) => {
                let new = NewInode { kind: Kind::File, mode: 0o600, device: 0, target: &[] };
                self.client.create(caller, InodeNumber::ROOT, name, &new)?.inode
            }
            Err(errno) => return Err(errno),
        };
        self.client.open(caller, inode, mode)
    }

    fn write(&mut self, name: &[u8], at: WriteAt, bytes: &[u8]) -> Result<(), Errno> {
        let handle = self.open(name)?;
        let caller = Caller { credentials: &self.who, now: NOW };
        let written = self.client.write(caller, handle, at, bytes);
        self.client.close(handle);
        written.map(drop)
    }

    fn read(&mut self, name: &[u8]) -> Result<Vec<u8>, Errno> {
        let caller = Caller { credentials: &self.who, now: NOW };
        let found = self.client.lookup(caller, InodeNumber::ROOT, name)?;
        let handle = self.open(name)?;
        let mut bytes = vec![0; found.size as usize];
        let count = self.client.read(handle, 0, &mut bytes);
        self.client.close(handle);
        assert_eq!(count?, bytes.len(), "all bytes of a file are there");
        Ok(bytes)
    }

    fn unlink(&mut self, name: &[u8]) -> Result<(), Errno> {
        let caller = Caller { credentials: &self.who, now: NOW };
        self.client.unlink(caller, InodeNumber::ROOT, name)
    }

    fn rename(&mut self, from: &[u8], to: &[u8]) -> Result<(), Errno> {
        let caller = Caller { credentials: &self.who, now: NOW };
        let root = InodeNumber::ROOT;
        self.client.rename(caller, (root, from), (root, to), RenameMode::Replace)
    }
}

/// Writes until there is no room; how many files that took.
fn fill(files: &mut Files, sync: bool) -> usize {
    for number in 0.. {
        match files.write(format!("f{number}").as_bytes(), WriteAt::Offset(0), &[7; 5000]) {
            Ok(()) => {}
            Err(Errno::NOSPC) => return number,
            Err(errno) => panic!("file {number}: {errno}"),
        }
        if sync {
            files.client.sync().expect("the disk works");
        }
    }
    0
}

/// Random operations on a few files, as a table of their contents has them.
fn program(files: &mut Files, known: &mut BTreeMap<u8, Vec<u8>>, random: &mut Random, sync: bool) {
    let name = random.below(12) as u8;
    let done = match random.below(10) {
        0..=5 => {
            let bytes = vec![random.below(255) as u8 + 1; 1 + random.index(9000)];
            let found = known.get(&name).map_or(0, Vec::len);
            let at = if random.chance(500) { 0 } else { random.index(found + 1) };
            let done = files.write(&[b'a' + name], WriteAt::Offset(at as u64), &bytes);
            if done.is_ok() {
                let content = known.entry(name).or_default();
                content.resize(content.len().max(at + bytes.len()), 0);
                content[at..at + bytes.len()].copy_from_slice(&bytes);
            } else {
                // It was created, maybe.
                known.entry(name).or_default();
                let _ = files.open(&[b'a' + name]).map(|handle| files.client.close(handle));
                if files.read(&[b'a' + name]) == Err(Errno::NOENT) {
                    known.remove(&name);
                }
            }
            done
        }
        6 | 7 => {
            let done = files.unlink(&[b'a' + name]);
            let was = known.remove(&name);
            assert_eq!(done.is_ok(), was.is_some(), "{done:?}");
            Ok(())
        }
        8 => {
            let other = random.below(12) as u8;
            let done = files.rename(&[b'a' + name], &[b'a' + other]);
            if done.is_ok()
                && other != name
                && let Some(content) = known.remove(&name)
            {
                known.insert(other, content);
            }
            done
        }
        _ => {
            if let Some(content) = known.get(&name) {
                assert_eq!(files.read(&[b'a' + name]).as_ref(), Ok(content), "file {name}");
            }
            if sync { files.client.sync() } else { Ok(()) }
        }
    };
    assert!(matches!(done, Ok(()) | Err(Errno::NOSPC | Errno::NOENT)), "{done:?}");
}

fn verify(files: &mut Files, known: &BTreeMap<u8, Vec<u8>>) {
    for name in 0..12 {
        let found = files.read(&[b'a' + name]);
        assert_eq!(found.ok().as_ref(), known.get(&name), "file {name}");
    }
}

fn stress(class: ClassName, seed: u64) {
    let folder = Folder::new(&format!("stress{seed}"));
    folder.create(class, 3 << 20, LOG);
    let mut random = Random::new(seed);
    let mut known = BTreeMap::new();
    for _ in 0..3 {
        let running = folder.open();
        let mut files = Files::new(running.client);
        verify(&mut files, &known);
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(700) {
            program(&mut files, &mut known, &mut random, class != ClassName::Nvm);
        }
        verify(&mut files, &known);
        drop(files);
        running.digester.end().expect("everything is digested");
    }
    let running = folder.open();
    assert_eq!(running.recovered, 0, "the log is digested to its end");
    verify(&mut Files::new(running.client), &known);
}

#[test]
fn a_client_with_the_smallest_log_and_pool() {
    for seed in 0..3 {
        in_time(move || stress(ClassName::Nvm, seed));
    }
}

#[test]
fn a_client_with_the_smallest_log_and_pool_that_synchronises() {
    for seed in 10..13 {
        in_time(move || stress(ClassName::Ssd, seed));
    }
}

/// A full file system refuses writes, and has room again when files are removed. The pads of
/// `fsync` are no records that a client can wait for.
#[test]
fn a_full_file_system_has_room_again() {
    for class in [ClassName::Nvm, ClassName::Ssd] {
        in_time(move || {
            let folder = Folder::new(&format!("full{class}"));
            folder.create(class, 3 << 20, LOG);
            let running = folder.open();
            let mut files = Files::new(running.client);
            let mut least = usize::MAX;
            for _ in 0..5 {
                let count = fill(&mut files, class == ClassName::Ssd);
                least = least.min(count);
                files.client.sync().expect("the disk works");
                let more = files.write(b"more", WriteAt::Offset(0), &[7; 20_000]);
                assert_eq!(more, Err(Errno::NOSPC));
                let _ = files.unlink(b"more");
                for number in 0..count {
                    files.unlink(format!("f{number}").as_bytes()).expect("removing needs no room");
                }
                let _ = files.unlink(format!("f{count}").as_bytes());
            }
            assert!(least > 50, "only {least} files fitted");
            drop(files);
            running.digester.end().expect("everything is digested");
        });
    }
}

/// The room of a file that takes several steps to remove is there for the next operation, although
/// nothing but the removal is logged.
#[test]
fn a_client_without_room_gets_that_of_a_removed_file() {
    in_time(|| {
        let folder = Folder::new("removed");
        folder.create(ClassName::Nvm, 48 << 20, 256 << 10);
        let running = folder.open();
        let mut files = Files::new(running.client);
        for block in 0..8000 {
            let at = WriteAt::Offset(2 * 4096 * block);
            files.write(b"large", at, &[1; 4096]).expect("there is room");
        }
        let other = files.open(b"other").expect("a file");
        let who = Credentials::root();
        let caller = Caller { credentials: &who, now: NOW };
        let mut reserve = || files.client.allocate(caller, other, 0..30 << 20, Allocation::Reserve);
        assert_eq!(reserve(), Err(Errno::NOSPC));
        files.unlink(b"large").expect("removing needs no room");
        let mut reserve = || files.client.allocate(caller, other, 0..30 << 20, Allocation::Reserve);
        assert_eq!(reserve(), Ok(()));
    });
}

/// Zeros in the log's memory, which is mapped and must keep its size.
fn wipe(description: &Description) {
    let file = std::fs::File::options().write(true).open(&description.log.memory).expect("a file");
    file.write_all_at(&[0; LOG as usize], 0).expect("the memory is a file");
}

#[test]
fn a_client_without_a_digester_gets_errors() {
    in_time(|| {
        let folder = Folder::new("ended");
        folder.create(ClassName::Nvm, 3 << 20, LOG);
        let running = folder.open();
        let mut files = Files::new(running.client);
        files.write(b"a", WriteAt::End, &[1; 100]).expect("there is room");
        drop(running.digester);
        let failed = (0..100).find_map(|_| files.write(b"a", WriteAt::End, &[1; 4096]).err());
        assert_eq!(failed, Some(Errno::IO), "the log is full and no thread digests it");
    });
}

/// The log's memory loses what was logged: the client gets an error, and does not wait for ever.
#[test]
fn a_log_that_loses_records_is_an_error() {
    in_time(|| {
        let folder = Folder::new("lost");
        let description = folder.create(ClassName::Nvm, 3 << 20, LOG);
        let running = folder.open();
        let mut files = Files::new(running.client);
        files.write(b"a", WriteAt::End, &[1; 4096]).expect("there is room");
        wipe(&description);
        let mut failed = None;
        while failed.is_none() {
            failed = files.write(b"a", WriteAt::End, &[1; 4096]).err();
            wipe(&description);
        }
        assert_eq!(failed, Some(Errno::IO));
        drop(files);
        let ended = running.digester.end().expect_err("the log was not digested");
        assert!(ended.contains("lost"), "{ended}");
    });
}

/// What a kill leaves: the files as they are while the file system is in use.
fn copies(description: &Description) -> Vec<(PathBuf, Vec<u8>)> {
    let media = description.media.iter().map(|medium| medium.path.clone());
    let logs = std::iter::once(description.log.memory.clone()).chain(description.log.disk.clone());
    media.chain(logs).map(|path| (path.clone(), std::fs::read(&path).expect("a file"))).collect()
}

/// Does `work`, and returns what a kill before it is digested leaves: records gather for a while.
fn killed_after(
    running: &Digester,
    description: &Description,
    mut work: impl FnMut(),
) -> Vec<(PathBuf, Vec<u8>)> {
    for _ in 0..50 {
        let before = running.totals().records;
        work();
        let copies = copies(description);
        if running.totals().records == before {
            return copies;
        }
    }
    panic!("each time, the log was digested before its files were copied");
}

/// Puts the files back, as if the process had been killed when they were copied.
fn restore(copies: &[(PathBuf, Vec<u8>)]) {
    for (path, bytes) in copies {
        let file = std::fs::File::options().write(true).open(path).expect("a file");
        file.write_all_at(bytes, 0).expect("it is written");
    }
}

/// Records that are there although an earlier one is damaged are no end of the log, however long
/// the damaged one is.
#[test]
fn a_log_that_lost_a_record_in_the_middle_is_refused() {
    in_time(|| {
        let folder = Folder::new("middle");
        let description = folder.create(ClassName::Nvm, 8 << 20, 4 << 20);
        let running = folder.open();
        let mut files = Files::new(running.client);
        let mut killed = killed_after(&running.digester, &description, || {
            for name in [b"a", b"b", b"c"] {
                files.write(name, WriteAt::Offset(0), &[name[0]; 64 << 10]).expect("there is room");
            }
        });
        drop((files, running.digester));
        let log = &mut killed.last_mut().expect("a log").1;
        let data = log.windows(4096).rposition(|bytes| bytes.iter().all(|byte| *byte == b'b'));
        log[data.expect("the data of a record")] = 0;
        restore(&killed);
        let refused = open(&folder.0.join("fs")).err().expect("a record is missing");
        assert!(refused.to_string().contains("lost record"), "{refused}");
        // Nothing was changed by the attempt.
        let refused = open(&folder.0.join("fs")).err().expect("a record is missing");
        assert!(refused.to_string().contains("lost record"), "{refused}");
    });
}

/// After a loss of power the memory of the log is made from its copy. A process that is killed
/// meanwhile must not leave memory that looks whole.
#[test]
fn memory_has_its_name_when_it_is_whole() {
    in_time(|| {
        let folder = Folder::new("memory");
        let description = folder.create(ClassName::Ssd, 8 << 20, 16 << 20);
        let running = folder.open();
        let mut files = Files::new(running.client);
        // Less than a quarter of the log.
        let data = vec![1; 3 << 20];
        let killed = killed_after(&running.digester, &description, || {
            files.write(b"a", WriteAt::Offset(0), &data).expect("there is room");
            files.client.sync().expect("the disk works");
        });
        drop((files, running.digester));
        restore(&killed);
        let memory = description.log.memory;
        std::fs::remove_file(&memory).expect("the power fails");
        let start = Instant::now();
        let watcher = std::thread::spawn(move || {
            loop {
                if let Ok(file) = std::fs::File::open(&memory) {
                    let mut bytes = [0; 64];
                    file.read_exact_at(&mut bytes, (3 << 20) - 64).expect("it has its size");
                    return bytes == [1; 64];
                }
                assert!(start.elapsed() < PATIENCE, "no memory is made");
            }
        });
        let running = folder.open();
        assert!(watcher.join().expect("it ends"), "memory without what was synchronised has its name");
        assert!(running.recovered >= 1, "{} records", running.recovered);
        assert_eq!(Files::new(running.client).read(b"a"), Ok(data));
    });
}

/// With the seed, data that a user writes can be made to look like records.
#[test]
fn no_other_user_learns_the_seed_of_a_log() {
    let folder = Folder::new("seed");
    let description = folder.create(ClassName::Ssd, 8 << 20, LOG);
    let name = description.log.memory.display().to_string();
    assert!(!name.contains(&format!("{:016x}", description.log.seed)), "{name}");
    let file = folder.0.join("fs").join(FILE);
    assert_eq!(std::fs::metadata(file).expect("a description").mode() & 0o077, 0);
}

/// A description says which files are opened and made: only one of this user's is believed.
#[test]
fn a_description_that_others_may_write_is_refused() {
    let folder = Folder::new("foreign");
    folder.create(ClassName::Nvm, 8 << 20, LOG);
    let (file, other) = (folder.0.join("fs").join(FILE), folder.0.join("other"));
    std::fs::set_permissions(&file, Permissions::from_mode(0o622)).expect("chmod");
    assert!(matches!(open(&folder.0.join("fs")), Err(StoreError::Foreign { .. })));
    std::fs::set_permissions(&file, Permissions::from_mode(0o600)).expect("chmod");
    std::fs::rename(&file, &other).expect("a rename");
    std::os::unix::fs::symlink(&other, &file).expect("a link");
    assert!(matches!(open(&folder.0.join("fs")), Err(StoreError::Io { .. })));
    std::fs::remove_file(&file).expect("it goes");
    std::fs::rename(&other, &file).expect("a rename");
    drop(folder.open());
}

/// A write, and a sync that is not waited for.
fn begin_sync(files: &mut Files, name: &[u8]) -> (SyncPoint, Option<Box<dyn PendingSync>>) {
    files.write(name, WriteAt::End, &[7; 100]).expect("room");
    let mut point = SyncPoint::default();
    let pending = files.client.begin_sync(&mut point).expect("the disk works");
    (point, pending)
}

#[test]
fn a_sync_that_waits_for_the_disk_leaves_the_client_to_others() {
    in_time(|| {
        let folder = Folder::new("begin");
        folder.create(ClassName::Ssd, 8 << 20, 1 << 20);
        let Running { client, digester, .. } = folder.open();
        let mut files = Files::new(client);
        let (_, first) = begin_sync(&mut files, b"a");
        let mut first = first.expect("it is not durable yet");
        // The first has the disk; the second waits for it, and is not in the first's group.
        let (mut point, second) = begin_sync(&mut files, b"b");
        let mut second = second.expect("it is not durable yet");
        assert_eq!(files.read(b"b"), Ok(vec![7; 100]));
        assert!(first.wait(), "it writes what it needs");
        assert!(!second.wait(), "what came later is not durable");
        let third = files.client.begin_sync(&mut point).expect("the disk works");
        assert!(third.expect("it writes now").wait());
        assert!(files.client.begin_sync(&mut point).expect("the disk works").is_none());
        drop(files);
        digester.end().expect("everything is digested");
    });
}

#[test]
fn a_thread_that_ends_in_a_sync_leaves_the_disk_to_the_next() {
    in_time(|| {
        let folder = Folder::new("dropped");
        folder.create(ClassName::Ssd, 8 << 20, 1 << 20);
        let Running { client, digester, .. } = folder.open();
        let mut files = Files::new(client);
        let (_, first) = begin_sync(&mut files, b"a");
        drop(first.expect("it is not durable yet"));
        files.client.sync().expect("the disk works");
        drop(files);
        digester.end().expect("everything is digested");
    });
}

#[test]
fn threads_that_sync_at_once_find_their_data_on_disk() {
    in_time(|| {
        let folder = Folder::new("threads");
        let description = folder.create(ClassName::Ssd, 16 << 20, 8 << 20);
        let Running { client, digester, .. } = folder.open();
        let files = Mutex::new(Files::new(client));
        let lock = || files.lock().expect("no thread panics");
        let killed = killed_after(&digester, &description, || {
            std::thread::scope(|scope| {
                for thread in 0..8_u8 {
                    let lock = &lock;
                    scope.spawn(move || {
                        for offset in (0..20).map(|write| write * 700) {
                            let write = WriteAt::Offset(offset);
                            lock().write(&[b'a' + thread], write, &[thread; 700]).expect("room");
                            sync_shared(|point| lock().client.begin_sync(point)).expect("the disk works");
                        }
                    });
                }
            });
        });
        drop((files, digester));
        restore(&killed);
        std::fs::remove_file(&description.log.memory).expect("the power fails");
        let mut files = Files::new(folder.open().client);
        for thread in 0..8_u8 {
            assert_eq!(files.read(&[b'a' + thread]), Ok(vec![thread; 14_000]));
        }
    });
}

/// What removals freed is there without another change: a program that asks how much room there is
/// may be the only one.
#[test]
fn room_that_removals_freed_is_there_without_another_change() {
    let folder = Folder::new("idle-room");
    folder.create(ClassName::Nvm, 8 << 20, 1 << 20);
    let Running { client, digester, .. } = folder.open();
    let mut files = Files::new(client);
    let before = files.client.usage().free;
    for number in 0.. {
        match files.write(format!("{number}").as_bytes(), WriteAt::End, &[1; 100_000]) {
            Ok(()) => {}
            Err(Errno::NOSPC) => break,
            Err(errno) => panic!("{errno}"),
        }
    }
    let caller = Caller { credentials: &files.who, now: NOW };
    for number in 0.. {
        match files.client.unlink(caller, InodeNumber::ROOT, format!("{number}").as_bytes()) {
            Ok(()) => {}
            Err(Errno::NOENT) => break,
            Err(errno) => panic!("{errno}"),
        }
    }
    let deadline = Instant::now() + PATIENCE;
    while files.client.usage().free + 64 < before {
        assert!(Instant::now() < deadline, "{:?}, and {before} blocks were free", files.client.usage());
        std::thread::sleep(Duration::from_millis(20));
    }
    drop(files);
    digester.end().expect("all is digested");
}
