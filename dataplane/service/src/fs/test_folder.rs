//! A file system in a folder of a test.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use sietch_disk::BLOCK;
use sietch_disk::nvm::Mapped;
use sietch_fs::access::{Caller, Credentials};
use sietch_fs::change::Change as LogChange;
use sietch_fs::file_system::{NewInode, OpenMode, WriteAt};
use sietch_fs::inode::{InodeNumber, Kind, Timestamp};
use sietch_fs::log::LogWriter;
use sietch_fs::{Client, FileSystem as _};

use super::description::{Change, ClassName, Description, Durability, MediumDescription};
use super::media_change::Locked;
use super::{CreateOptions, Running, check, create, open};

pub(super) const MIB: u64 = 1 << 20;
const NOW: Timestamp = Timestamp { seconds: 1_000_000, nanoseconds: 0 };

/// A file system of 16 MiB in memory, in a folder that is removed at the end.
pub(super) struct Folder(PathBuf);

impl Folder {
    pub(super) fn new(name: &str) -> Self {
        let path = Path::new("/dev/shm").join(format!("sietch-media-{name}-{}", std::process::id()));
        // It may be there from a run that was killed.
        drop(std::fs::remove_dir_all(&path));
        std::fs::create_dir_all(&path).expect("a folder");
        let folder = Self(path);
        let media = vec![folder.medium("home", ClassName::Nvm, 16), folder.medium("slow", ClassName::Hdd, 1)];
        let (log_memory, log_bytes) = (Some(folder.0.clone()), Some(4 * MIB));
        let durability: Option<Durability> = None;
        let options = CreateOptions { media, log_memory, log_bytes, durability };
        create(&folder.store(), &options, &mut |_| {}).expect("a file system");
        folder.write("before", 12);
        folder
    }

    pub(super) fn store(&self) -> PathBuf {
        self.0.join("store")
    }

    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub(super) fn medium(&self, name: &str, class: ClassName, mib: u64) -> MediumDescription {
        MediumDescription { class, path: self.file(name), bytes: mib * MIB, model: None }
    }

    pub(super) fn read(&self) -> Description {
        Description::read(&self.store()).expect("a description")
    }

    pub(super) fn open(&self) -> Running {
        open(&self.store()).expect("it opens")
    }

    /// Writes a file of so many MiB, and ends.
    pub(super) fn write(&self, name: &str, mib: u64) {
        let mut running = self.open();
        let blocks = mib * MIB / BLOCK as u64;
        write(&mut running.client, name, blocks);
        end(running);
    }

    /// How long it takes to read `count` blocks of a file of so many MiB, each far from the one
    /// before.
    pub(super) fn read_apart(&self, name: &str, count: u32, mib: u64) -> Duration {
        let mut running = self.open();
        let blocks = mib * MIB / BLOCK as u64;
        let took = as_root(|caller| {
            let client = &mut running.client;
            let found = client.lookup(caller, InodeNumber::ROOT, name.as_bytes()).expect("a name");
            let mode = OpenMode { read: true, ..OpenMode::default() };
            let handle = client.open(caller, found.inode, mode).expect("a file");
            let begin = Instant::now();
            for at in 0..u64::from(count) {
                // From both ends to the middle.
                let block = if at % 2 == 0 { at * 64 } else { blocks - at * 64 };
                let mut bytes = vec![0; BLOCK];
                assert_eq!(client.read(handle, block * BLOCK as u64, &mut bytes), Ok(BLOCK));
                assert!(bytes == content(block), "block {block}");
            }
            let took = begin.elapsed();
            client.close(handle);
            took
        });
        end(running);
        took
    }

    /// Removes a file.
    pub(super) fn remove(&self, name: &str) {
        let mut running = self.open();
        as_root(|caller| running.client.unlink(caller, InodeNumber::ROOT, name.as_bytes())).expect("a file");
        end(running);
    }

    /// The file system is whole, and has what was written.
    pub(super) fn verify(&self, name: &str, mib: u64) {
        verify_file(&self.store(), name, mib * MIB / BLOCK as u64);
    }

    /// Bytes that the media have, and whether a change is begun.
    pub(super) fn sizes(&self) -> (Vec<u64>, bool) {
        let description = self.read();
        (description.media.iter().map(|medium| medium.bytes / MIB).collect(), description.change.is_some())
    }

    /// As the description is when `change` was begun.
    pub(super) fn begin(&self, change: Change) {
        Locked::new(&self.store()).expect("not open").begin(change).expect("room");
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}

/// Logs a change; data are sevens.
pub(super) fn append(writer: &mut LogWriter<Mapped>, change: &LogChange<'_>) {
    let bytes = match *change {
        LogChange::Write { length, .. } | LogChange::SetXattr { length, .. } => length as usize,
        _ => 0,
    };
    writer.append(NOW, change, &vec![7; bytes]).expect("room in the log");
}

fn as_root<T>(work: impl FnOnce(Caller<'_>) -> T) -> T {
    let credentials = Credentials::root();
    work(Caller { credentials: &credentials, now: NOW })
}

fn content(block: u64) -> Vec<u8> {
    (block << 8 | 5).to_le_bytes().repeat(BLOCK / 8)
}

type Local = crate::fs::FileSystemClient;

fn write(client: &mut Local, name: &str, blocks: u64) {
    let new = NewInode { kind: Kind::File, mode: 0o600, device: 0, target: &[] };
    as_root(|caller| {
        let made = client.create(caller, InodeNumber::ROOT, name.as_bytes(), &new).expect("room").inode;
        let handle =
            client.open(caller, made, OpenMode { write: true, ..OpenMode::default() }).expect("a file");
        for block in 0..blocks {
            let at = WriteAt::Offset(block * BLOCK as u64);
            client.write(caller, handle, at, &content(block)).expect("room");
        }
        client.close(handle);
    });
}

/// Writes a file of so many blocks, which survives a loss of power.
pub(super) fn write_durably(client: &mut Local, name: &str, blocks: u64) {
    write(client, name, blocks);
    assert_eq!(client.sync(), Ok(()));
}

/// The file system in `store` is whole, and has what was written.
pub(super) fn verify_file(store: &Path, name: &str, blocks: u64) {
    let checked = check(store, true).expect("it is not open");
    assert!(checked.is_whole(), "{:#?}", checked.pool.findings);
    let mut running = open(store).expect("it opens");
    verify(&mut running.client, name, blocks);
    end(running);
}

fn verify(client: &mut Local, name: &str, blocks: u64) {
    as_root(|caller| {
        let found = client.lookup(caller, InodeNumber::ROOT, name.as_bytes()).expect("a name");
        assert_eq!(found.size, blocks * BLOCK as u64);
        let handle =
            client.open(caller, found.inode, OpenMode { read: true, ..OpenMode::default() }).expect("a file");
        let mut bytes = vec![0; BLOCK];
        for block in 0..blocks {
            assert_eq!(client.read(handle, block * BLOCK as u64, &mut bytes), Ok(BLOCK));
            assert!(bytes == content(block), "block {block}");
        }
        client.close(handle);
    });
}

pub(super) fn end(running: Running) {
    drop::<Client<_, _>>(running.client);
    assert_eq!(running.digester.end(), Ok(()));
}
