//! Checks of single rules, for any file system: limits, and listings that go on while entries come
//! and go. Random programs do not reach these.
//!
//! Each check makes what it needs in the root directory, as root, and removes it.

use std::collections::{BTreeMap, BTreeSet};

use rustix::io::Errno;
use sietch_fs::FileSystem;
use sietch_fs::access::{Caller, Credentials};
use sietch_fs::file_system::{
    Allocation, AttributeChange, DirectoryEntry, Handle, NewInode, OpenMode, Seek, WriteAt, XattrMode,
};
use sietch_fs::inode::{InodeNumber, Kind, Timestamp};
use sietch_fs::limits::{BLOCK, MAX_FILE, MAX_LINKS, MAX_XATTR_NAME, MAX_XATTR_NAMES, MAX_XATTR_VALUE};
use sietch_fs::name::Cookie;
use sietch_structures::Random;

/// A check, and what it found.
pub type Check = fn(&mut dyn FileSystem) -> Result<(), Failure>;

/// All checks, with their names.
pub const CHECKS: [(&str, Check); 7] = [
    ("a listing survives changes", listing_survives_changes),
    ("links are limited", links_are_limited),
    ("extended attributes are limited", xattrs_are_limited),
    ("files are limited", files_are_limited),
    ("changes take capabilities away", changes_take_capabilities_away),
    ("an open file survives its name", open_file_survives_its_name),
    ("a large file is its bytes", large_file_is_its_bytes),
];

/// Why a check failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// An operation failed that must not.
    Failed(Errno),
    /// A rule does not hold.
    Broken(String),
}

impl From<Errno> for Failure {
    fn from(errno: Errno) -> Self {
        Self::Failed(errno)
    }
}

fn expect<T: PartialEq + std::fmt::Debug>(what: &str, found: T, expected: T) -> Result<(), Failure> {
    let text = || format!("{what}: {found:?}, expected {expected:?}");
    if found == expected { Ok(()) } else { Err(Failure::Broken(text())) }
}

const ROOT: InodeNumber = InodeNumber::ROOT;
const READ_WRITE: OpenMode = OpenMode { read: true, write: true, truncate: false };
const READ: OpenMode = OpenMode { read: true, write: false, truncate: false };

/// Root at the n-th second.
fn root(credentials: &Credentials, second: i64) -> Caller<'_> {
    Caller { credentials, now: Timestamp { seconds: 1000 + second, nanoseconds: 0 } }
}

fn create(
    file_system: &mut dyn FileSystem,
    caller: Caller<'_>,
    directory: InodeNumber,
    name: &[u8],
    kind: Kind,
) -> Result<InodeNumber, Errno> {
    let new = NewInode { kind, mode: 0o755, device: 0, target: b"" };
    Ok(file_system.create(caller, directory, name, &new)?.inode)
}

/// A new file, open.
fn create_open(
    file_system: &mut dyn FileSystem,
    caller: Caller<'_>,
    name: &[u8],
) -> Result<(InodeNumber, Handle), Errno> {
    let inode = create(file_system, caller, ROOT, name, Kind::File)?;
    Ok((inode, file_system.open_created(inode, READ_WRITE)?))
}

fn remove_open(
    file_system: &mut dyn FileSystem,
    caller: Caller<'_>,
    name: &[u8],
    handle: Handle,
) -> Result<(), Errno> {
    file_system.close(handle);
    file_system.unlink(caller, ROOT, name)
}

fn numbered(kind: char, number: usize) -> Vec<u8> {
    format!("{kind}{number}").into_bytes()
}

fn next_entries(
    file_system: &mut dyn FileSystem,
    handle: Handle,
    after: Cookie,
    most: usize,
) -> Result<Vec<DirectoryEntry>, Errno> {
    let mut taken = Vec::new();
    file_system.read_directory(handle, after, &mut |entry| {
        let takes = taken.len() < most;
        if takes {
            taken.push(entry);
        }
        takes
    })?;
    Ok(taken)
}

/// Names that stay are listed exactly once, although others come and go between the calls.
///
/// # Errors
/// The file system breaks a rule.
pub fn listing_survives_changes(file_system: &mut dyn FileSystem) -> Result<(), Failure> {
    const NAMES: usize = 250;
    let credentials = Credentials::root();
    let caller = root(&credentials, 0);
    let directory = create(file_system, caller, ROOT, b"listing", Kind::Directory)?;
    for number in 0..NAMES {
        create(file_system, caller, directory, &numbered('s', number), Kind::File)?;
        create(file_system, caller, directory, &numbered('r', number), Kind::Directory)?;
    }
    let handle = file_system.open(caller, directory, READ)?;
    let (mut after, mut seen, mut round) = (Cookie(0), BTreeMap::<Vec<u8>, usize>::new(), 0);
    loop {
        let entries = next_entries(file_system, handle, after, 7)?;
        let Some(last) = entries.last() else { break };
        after = last.cookie;
        for entry in entries {
            *seen.entry(entry.name.into_vec()).or_default() += 1;
        }
        if round < NAMES {
            file_system.remove_directory(caller, directory, &numbered('r', round))?;
            create(file_system, caller, directory, &numbered('n', round), Kind::File)?;
        }
        round += 1;
    }
    file_system.close(handle);
    let missing = (0..NAMES).map(|number| numbered('s', number)).find(|name| seen.get(name) != Some(&1));
    expect("a name that is not listed once", missing, None)?;
    expect("a name that is listed twice", seen.iter().find(|(_, count)| **count > 1), None)?;

    let handle = file_system.open(caller, directory, READ)?;
    let left = next_entries(file_system, handle, Cookie(0), usize::MAX)?;
    file_system.close(handle);
    expect("entries", left.len() as u64, file_system.attributes(directory)?.size)?;
    let cookies: BTreeSet<Cookie> = left.iter().map(|entry| entry.cookie).collect();
    expect("cookies", cookies.len(), left.len())?;
    for entry in left {
        match entry.kind {
            Kind::Directory => file_system.remove_directory(caller, directory, &entry.name)?,
            _ => file_system.unlink(caller, directory, &entry.name)?,
        }
    }
    Ok(file_system.remove_directory(caller, ROOT, b"listing")?)
}

/// A file has at most [`MAX_LINKS`] names; a directory may have more subdirectories.
///
/// # Errors
/// The file system breaks a rule.
pub fn links_are_limited(file_system: &mut dyn FileSystem) -> Result<(), Failure> {
    let credentials = Credentials::root();
    let caller = root(&credentials, 0);
    let directory = create(file_system, caller, ROOT, b"links", Kind::Directory)?;
    let inode = create(file_system, caller, directory, b"l1", Kind::File)?;
    let most = MAX_LINKS as usize;
    for number in 2..=most {
        file_system.link(caller, inode, directory, &numbered('l', number))?;
    }
    let further = file_system.link(caller, inode, directory, b"further").err();
    expect("a further name", further, Some(Errno::MLINK))?;
    expect("links", file_system.attributes(inode)?.links, MAX_LINKS)?;
    file_system.unlink(caller, directory, b"l1")?;
    file_system.link(caller, inode, directory, b"l1")?;
    for number in 1..=most {
        file_system.unlink(caller, directory, &numbered('l', number))?;
    }
    Ok(file_system.remove_directory(caller, ROOT, b"links")?)
}

/// Values and names of extended attributes have their longest lengths.
///
/// # Errors
/// The file system breaks a rule.
pub fn xattrs_are_limited(file_system: &mut dyn FileSystem) -> Result<(), Failure> {
    let credentials = Credentials::root();
    let caller = root(&credentials, 0);
    let inode = create(file_system, caller, ROOT, b"xattrs", Kind::File)?;
    let mut set = |name: &[u8], length: usize| {
        file_system.set_xattr(caller, inode, name, &vec![7; length], XattrMode::Create)
    };
    expect("a value that is too long", set(b"user.long", MAX_XATTR_VALUE + 1), Err(Errno::TOOBIG))?;
    set(b"user.long", MAX_XATTR_VALUE)?;
    let name = |number: usize| format!("user.{number:0width$}", width = MAX_XATTR_NAME - 5).into_bytes();
    // Each name counts with a NUL; the first one is there already.
    let fits = (MAX_XATTR_NAMES - 10) / (MAX_XATTR_NAME + 1);
    for number in 0..fits {
        set(&name(number), 0)?;
    }
    expect("too many names", set(&name(fits), 0), Err(Errno::NOSPC))?;
    expect("names", file_system.xattr_names(caller, inode)?.len(), fits + 1)?;
    expect("a value", file_system.xattr(caller, inode, b"user.long")?, vec![7; MAX_XATTR_VALUE])?;
    file_system.remove_xattr(caller, inode, &name(0))?;
    file_system.set_xattr(caller, inode, &name(fits), b"", XattrMode::Set)?;
    Ok(file_system.unlink(caller, ROOT, b"xattrs")?)
}

/// A file ends at [`MAX_FILE`], and what goes further changes nothing.
///
/// # Errors
/// The file system breaks a rule.
pub fn files_are_limited(file_system: &mut dyn FileSystem) -> Result<(), Failure> {
    let credentials = Credentials::root();
    let caller = root(&credentials, 0);
    let (inode, handle) = create_open(file_system, caller, b"huge")?;
    for (offset, length) in [(MAX_FILE, 1), (MAX_FILE - 1, 2), (u64::MAX, 1), (u64::MAX - 1, 2)] {
        let at = WriteAt::Offset(offset);
        let written = file_system.write(caller, handle, at, &vec![1; length]);
        expect("a write behind the limit", written, Err(Errno::FBIG))?;
    }
    expect("the size", file_system.attributes(inode)?.size, 0)?;
    file_system.write(caller, handle, WriteAt::Offset(MAX_FILE - 1), b"x")?;
    expect("the size", file_system.attributes(inode)?.size, MAX_FILE)?;
    let appended = file_system.write(caller, handle, WriteAt::End, b"y");
    expect("an append behind the limit", appended, Err(Errno::FBIG))?;
    let mut bytes = [9; 3];
    expect("bytes at the end", file_system.read(handle, MAX_FILE - 2, &mut bytes)?, 2)?;
    expect("bytes at the end", bytes, [0, b'x', 9])?;
    let data = file_system.seek(handle, 0, Seek::Data)?;
    expect("the first data", data, MAX_FILE - BLOCK as u64)?;
    for allocation in [Allocation::Reserve, Allocation::Punch, Allocation::ZeroKeepSize] {
        let allocated = file_system.allocate(caller, handle, 0..MAX_FILE + 1, allocation);
        expect("a range behind the limit", allocated, Err(Errno::FBIG))?;
    }
    file_system.allocate(caller, handle, 0..MAX_FILE, Allocation::Punch)?;
    expect("data after the punch", file_system.seek(handle, 0, Seek::Data), Err(Errno::NXIO))?;
    let change = AttributeChange { size: Some(MAX_FILE + 1), ..AttributeChange::default() };
    let resized = file_system.set_attributes(caller, inode, None, &change).err();
    expect("a size behind the limit", resized, Some(Errno::FBIG))?;
    Ok(remove_open(file_system, caller, b"huge", handle)?)
}

/// A change of content or owner removes `security.capability`, also where root makes it.
///
/// # Errors
/// The file system breaks a rule.
pub fn changes_take_capabilities_away(file_system: &mut dyn FileSystem) -> Result<(), Failure> {
    type Step = fn(&mut dyn FileSystem, Caller<'_>, InodeNumber, Handle) -> Result<(), Errno>;
    const NAME: &[u8] = b"security.capability";
    // CAP_NET_RAW, in the form that the kernel takes (VFS_CAP_REVISION_2).
    const VALUE: &[u8] = b"\0\0\0\x02\0\x20\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
    const STEPS: [(&str, bool, Step); 6] = [
        ("write", true, |file_system, caller, _, handle| {
            file_system.write(caller, handle, WriteAt::End, b"x").map(|_| ())
        }),
        ("fallocate", true, |file_system, caller, _, handle| {
            file_system.allocate(caller, handle, 0..10, Allocation::Reserve)
        }),
        ("truncate", true, |file_system, caller, inode, _| {
            let change = AttributeChange { size: Some(3), ..AttributeChange::default() };
            file_system.set_attributes(caller, inode, None, &change).map(|_| ())
        }),
        ("chown", true, |file_system, caller, inode, _| {
            let change = AttributeChange { uid: Some(0), ..AttributeChange::default() };
            file_system.set_attributes(caller, inode, None, &change).map(|_| ())
        }),
        ("chmod", false, |file_system, caller, inode, _| {
            let change = AttributeChange { mode: Some(0o711), ..AttributeChange::default() };
            file_system.set_attributes(caller, inode, None, &change).map(|_| ())
        }),
        ("a write of nothing", false, |file_system, caller, _, handle| {
            file_system.write(caller, handle, WriteAt::End, b"").map(|_| ())
        }),
    ];
    let credentials = Credentials::root();
    let caller = root(&credentials, 0);
    let (inode, handle) = create_open(file_system, caller, b"capable")?;
    for (index, (what, removes, step)) in STEPS.into_iter().enumerate() {
        let caller = root(&credentials, index as i64 + 1);
        file_system.set_xattr(caller, inode, NAME, VALUE, XattrMode::Set)?;
        step(file_system, caller, inode, handle)?;
        let left = file_system.xattr(caller, inode, NAME).err();
        expect(what, left, removes.then_some(Errno::NODATA))?;
    }
    Ok(remove_open(file_system, caller, b"capable", handle)?)
}

/// An open file stays when its name goes, and a retained one too; then nothing is left of it.
///
/// # Errors
/// The file system breaks a rule.
pub fn open_file_survives_its_name(file_system: &mut dyn FileSystem) -> Result<(), Failure> {
    let credentials = Credentials::root();
    let caller = root(&credentials, 0);
    let (inode, handle) = create_open(file_system, caller, b"open")?;
    file_system.retain(inode)?;
    file_system.retain(inode)?;
    file_system.unlink(caller, ROOT, b"open")?;
    file_system.write(caller, handle, WriteAt::Offset(5), b"late")?;
    expect("links", file_system.attributes(inode)?.links, 0)?;
    file_system.close(handle);
    let mut bytes = [0; 16];
    expect("a closed handle", file_system.read(handle, 0, &mut bytes), Err(Errno::BADF))?;
    let handle = file_system.open(caller, inode, READ)?;
    let read = file_system.read(handle, 0, &mut bytes)?;
    expect("content", &bytes[..read], b"\0\0\0\0\0late".as_slice())?;
    file_system.release(inode, 2);
    expect("a file with a handle", file_system.attributes(inode).err(), None)?;
    file_system.close(handle);
    expect("a file without any use", file_system.attributes(inode).err(), Some(Errno::NOENT))?;
    Ok(())
}

/// A file of megabytes has the bytes of a vector which the same random operations change.
///
/// # Errors
/// The file system breaks a rule.
pub fn large_file_is_its_bytes(file_system: &mut dyn FileSystem) -> Result<(), Failure> {
    const STEPS: u64 = 400;
    let credentials = Credentials::root();
    let caller = root(&credentials, 0);
    let (inode, handle) = create_open(file_system, caller, b"large")?;
    let mut bytes = Vec::new();
    let mut random = Random::new(STEPS);
    for step in 0..STEPS {
        let caller = root(&credentials, step as i64);
        change_large(file_system, caller, (inode, handle), &mut bytes, &mut random)?;
        expect("the size", file_system.attributes(inode)?.size, bytes.len() as u64)?;
        let start = random.index(bytes.len() + 10);
        let length = if step % 20 == 0 { LARGE + 10 } else { random.index(100_000) };
        let mut found = vec![9; length];
        let read = file_system.read(handle, start as u64, &mut found)?;
        let expected = bytes.get(start..(start + length).min(bytes.len())).unwrap_or_default();
        expect("bytes read", read, expected.len())?;
        let wrong = found[..read].iter().zip(expected).position(|(one, other)| one != other);
        expect("the first wrong byte", wrong.map(|at| (step, start + at)), None)?;
    }
    Ok(remove_open(file_system, caller, b"large", handle)?)
}

/// The largest size of the large file.
const LARGE: usize = 5 << 20;

/// Changes the file and the vector in the same random way.
fn change_large(
    file_system: &mut dyn FileSystem,
    caller: Caller<'_>,
    (inode, handle): (InodeNumber, Handle),
    bytes: &mut Vec<u8>,
    random: &mut Random,
) -> Result<(), Errno> {
    let start = random.index(LARGE / 2);
    let length = *random.pick(&[1, 4095, 4096, 4097, 100_000, 1 << 20, (1 << 20) + 1, 5 << 19]);
    let length = 1 + random.index(length);
    let end = start + length;
    let grows = |bytes: &mut Vec<u8>| bytes.resize(bytes.len().max(end), 0);
    let zeros = |bytes: &mut Vec<u8>| {
        let size = bytes.len();
        bytes[start.min(size)..end.min(size)].fill(0);
    };
    let allocation = match random.below(8) {
        0..3 => {
            let mut data = vec![0; length];
            random.fill(&mut data);
            grows(bytes);
            bytes[start..end].copy_from_slice(&data);
            return file_system.write(caller, handle, WriteAt::Offset(start as u64), &data).map(|_| ());
        }
        3 if bytes.len() + length <= LARGE => {
            let data = vec![length as u8 | 1; length];
            bytes.extend_from_slice(&data);
            return file_system.write(caller, handle, WriteAt::End, &data).map(|_| ());
        }
        3 | 4 => {
            bytes.resize(start, 0);
            let change = AttributeChange { size: Some(start as u64), ..AttributeChange::default() };
            return file_system.set_attributes(caller, inode, None, &change).map(|_| ());
        }
        5 => Allocation::Punch,
        6 => Allocation::Zero,
        _ => Allocation::Reserve,
    };
    if allocation != Allocation::Reserve {
        zeros(bytes);
    }
    if allocation != Allocation::Punch {
        grows(bytes);
    }
    file_system.allocate(caller, handle, start as u64..end as u64, allocation)
}
