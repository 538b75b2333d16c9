//! Files with known content, for tests that move them.

use rustix::io::Errno;
use sietch_fs::FileSystem as _;
use sietch_fs::access::{Caller, Credentials};
use sietch_fs::file_system::{Allocation, NewInode, OpenMode, WriteAt, XattrMode};
use sietch_fs::inode::{InodeNumber, Kind, Timestamp};
use sietch_fs::limits::BLOCK;
use sietch_fs::pin::PIN;

use super::driver::Driver;
use crate::setup::{BIRTH, FileSystem};

/// What a block of a file has.
pub(super) fn content(file: u64, block: u64) -> Vec<u8> {
    (file << 32 | block << 4 | 5).to_le_bytes().repeat(BLOCK / 8)
}

fn as_root<T>(now: Timestamp, work: impl FnOnce(Caller<'_>) -> T) -> T {
    let credentials = Credentials::root();
    work(Caller { credentials: &credentials, now })
}

/// Makes a file or a directory.
pub(super) fn make(client: &mut FileSystem, directory: InodeNumber, name: &str, kind: Kind) -> InodeNumber {
    let new = NewInode { kind, mode: 0o700, device: 0, target: &[] };
    as_root(BIRTH, |caller| client.create(caller, directory, name.as_bytes(), &new))
        .expect("a new name")
        .inode
}

/// Writes blocks of a file at a time.
pub(super) fn write_at(
    client: &mut FileSystem,
    file: InodeNumber,
    blocks: std::ops::Range<u64>,
    now: Timestamp,
) -> Result<(), Errno> {
    let mode = OpenMode { write: true, ..OpenMode::default() };
    as_root(now, |caller| {
        let handle = client.open(caller, file, mode).expect("a file");
        for block in blocks {
            let at = WriteAt::Offset(block * BLOCK as u64);
            client.write(caller, handle, at, &content(file.0, block))?;
        }
        client.close(handle);
        Ok(())
    })
}

/// A file of so many blocks in the root directory, written when the file system was made, and
/// digested.
pub(super) fn file(client: &mut FileSystem, driver: &mut Driver, name: &str, blocks: u64) -> InodeNumber {
    let made = make(client, InodeNumber::ROOT, name, Kind::File);
    write_at(client, made, 0..blocks, BIRTH).expect("room");
    driver.digest_all(client);
    made
}

/// Reads a block; the first error.
pub(super) fn read(client: &mut FileSystem, file: InodeNumber, block: u64) -> Result<Vec<u8>, Errno> {
    let mode = OpenMode { read: true, ..OpenMode::default() };
    as_root(BIRTH, |caller| {
        let handle = client.open(caller, file, mode)?;
        let mut bytes = vec![0; BLOCK];
        let read = client.read(handle, block * BLOCK as u64, &mut bytes);
        client.close(handle);
        read.map(|_| bytes)
    })
}

/// Blocks have their content, but for those that are lost.
pub(super) fn verify(client: &mut FileSystem, file: InodeNumber, blocks: u64, lost: &[u64]) {
    for block in 0..blocks {
        let expected = if lost.contains(&block) { Err(Errno::IO) } else { Ok(content(file.0, block)) };
        assert!(read(client, file, block) == expected, "block {block} of {file}");
    }
}

/// Pins a file or directory, or takes the pin away.
pub(super) fn pin(client: &mut FileSystem, driver: &mut Driver, inode: InodeNumber, class: Option<&str>) {
    as_root(BIRTH, |caller| match class {
        Some(class) => client.set_xattr(caller, inode, PIN, class.as_bytes(), XattrMode::Set),
        None => client.remove_xattr(caller, inode, PIN),
    })
    .expect("room for an attribute");
    driver.digest_all(client);
}

/// Pins a file or directory; what the client says.
pub(super) fn try_pin(client: &mut FileSystem, inode: InodeNumber, class: &str) -> Result<(), Errno> {
    as_root(BIRTH, |caller| client.set_xattr(caller, inode, PIN, class.as_bytes(), XattrMode::Set))
}

pub(super) fn rename(client: &mut FileSystem, from: (InodeNumber, &str), to: (InodeNumber, &str)) {
    use sietch_fs::file_system::RenameMode;
    let (from, to) = ((from.0, from.1.as_bytes()), (to.0, to.1.as_bytes()));
    as_root(BIRTH, |caller| client.rename(caller, from, to, RenameMode::Replace)).expect("both are there");
}

/// Takes all data of a file away.
pub(super) fn truncate(client: &mut FileSystem, file: InodeNumber) {
    use sietch_fs::file_system::AttributeChange;
    let change = AttributeChange { size: Some(0), ..AttributeChange::default() };
    as_root(BIRTH, |caller| client.set_attributes(caller, file, None, &change)).expect("removing works");
}

/// Writes other content than [`content`], by one operation.
pub(super) fn write_other(client: &mut FileSystem, file: InodeNumber, blocks: usize) {
    let mode = OpenMode { write: true, ..OpenMode::default() };
    as_root(BIRTH, |caller| {
        let handle = client.open(caller, file, mode).expect("a file");
        client.write(caller, handle, WriteAt::Offset(0), &vec![0x77; blocks * BLOCK]).expect("room");
        client.close(handle);
    });
}

/// A file has what [`write_other`] wrote.
pub(super) fn verify_other(client: &mut FileSystem, file: InodeNumber, blocks: u64) {
    for block in 0..blocks {
        assert!(read(client, file, block) == Ok(vec![0x77; BLOCK]), "block {block} of {file}");
    }
}

/// Reserves so many blocks behind the end of a file that has one, without changing its size beyond
/// them.
pub(super) fn reserve(client: &mut FileSystem, file: InodeNumber, blocks: u64, allocation: Allocation) {
    let mode = OpenMode { write: true, ..OpenMode::default() };
    as_root(BIRTH, |caller| {
        let handle = client.open(caller, file, mode).expect("a file");
        client.allocate(caller, handle, 0..blocks * BLOCK as u64, allocation).expect("room");
        client.close(handle);
    });
}
