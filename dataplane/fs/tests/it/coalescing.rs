//! What the digest says that later records made pointless, counted by hand.

use sietch_fs::FileSystem as _;
use sietch_fs::access::{Caller, Credentials};
use sietch_fs::file_system::{NewInode, OpenMode, WriteAt};
use sietch_fs::inode::{InodeNumber, Kind};
use sietch_fs::name::NameKey;

use crate::setup::{BIRTH, FileSystem, Media};

/// A client and who calls it.
struct Files {
    client: FileSystem,
    root: Credentials,
}

impl Files {
    fn new() -> Self {
        let media = Media::new(64 << 20, 16 << 20);
        media.format(NameKey([7; 16]));
        Self { client: media.open().expect("a file system"), root: Credentials::root() }
    }

    /// Writes to a file, which is created if it is not there: at the end, or somewhere else.
    fn write(&mut self, name: &str, at: WriteAt) {
        let caller = Caller { credentials: &self.root, now: BIRTH };
        let (directory, name) = (InodeNumber::ROOT, name.as_bytes());
        let new = NewInode { kind: Kind::File, mode: 0o600, device: 0, target: &[] };
        let found = self.client.lookup(caller, directory, name);
        let found = found.or_else(|_| self.client.create(caller, directory, name, &new)).expect("room");
        let mode = OpenMode { write: true, ..OpenMode::default() };
        let handle = self.client.open(caller, found.inode, mode).expect("it is there");
        self.client.write(caller, handle, at, &[7; 4096]).expect("room");
        self.client.close(handle);
    }

    fn unlink(&mut self, name: &str) {
        let caller = Caller { credentials: &self.root, now: BIRTH };
        self.client.unlink(caller, InodeNumber::ROOT, name.as_bytes()).expect("it is there");
    }

    /// Digests: records, and those that were saved.
    fn digest(&mut self) -> (u64, u64) {
        let batch = self.client.service().digest().expect("media that work");
        self.client.advance();
        (batch.records, batch.records_saved)
    }
}

#[test]
fn a_file_that_came_and_went_needs_no_record() {
    let mut files = Files::new();
    for number in 0..10 {
        files.write(&format!("{number}"), WriteAt::End);
        files.unlink(&format!("{number}"));
    }
    // Create, write, unlink, free; the directory's times have changed.
    assert_eq!(files.digest(), (40, 39));
}

#[test]
fn a_file_needs_one_record_for_its_name_and_one_for_data_in_a_row() {
    let mut files = Files::new();
    for _ in 0..5 {
        files.write("a", WriteAt::End);
    }
    assert_eq!(files.digest(), (6, 4));
    for offset in [0, 8192, 8192, 8192] {
        files.write("a", WriteAt::Offset(offset));
    }
    assert_eq!(files.digest(), (4, 2));
}

#[test]
fn a_removal_of_what_was_digested_is_not_saved() {
    let mut files = Files::new();
    files.write("a", WriteAt::End);
    assert_eq!(files.digest(), (2, 0));
    files.unlink("a");
    files.write("a", WriteAt::End);
    files.unlink("a");
    // The first name and its inode go; the second of both never were.
    assert_eq!(files.digest(), (6, 4));
}
