//! The items of the digested state: what the tree holds for inodes, entries and data.
//!
//! The page `docs/spec/fs-items.md` has the table of keys. All integers are little endian.
//!
//! | kind | key's object, offset | value |
//! | --- | --- | --- |
//! | [`INODE`] | inode, 0 | attributes |
//! | [`TARGET`] | inode, piece | a piece of a symbolic link's target |
//! | [`XATTR`] | inode, cookie of the name | name, length and first piece of the value |
//! | [`ENTRY`] | directory, cookie | inode, kind and name |
//! | [`EXTENT`] | inode, first block | a run of blocks, and the checksum of each |
//! | [`ORPHAN`] | 0, inode | [`KEPT`] or [`FREED`]: the inode has no name |
//! | [`LOG`] | 0, log | how far it was applied |
//! | [`USER`] | 0, uid | what the user has, and may have |
//! | [`COUNTED`] | 0, 0 | users with a limit; where it is missing, users' items are not right |
//! | [`XATTR_MORE`] + n | inode, cookie | the n-th further piece of a value |
//!
//! A reader treats an item as untrusted although its node had its checksum: the writer may have had
//! a bug, and the checker must not follow it.

use sietch_structures::crc32c;
use zerocopy::little_endian::{I64, U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::base::{Entry, Inode};
use crate::inode::{InodeNumber, Kind, MODE_BITS, Timestamp};
use crate::limits::MAX_XATTR_NAME;
use crate::name::{self, Cookie};
use crate::pool::Run;
use crate::quota::{Amount, Quota};
use crate::tree::{Key, OWN_KINDS};

/// Kinds of keys. Those of object 0 below [`OWN_KINDS`] belong to the pool.
pub(crate) const INODE: u8 = 1;
pub(crate) const TARGET: u8 = 2;
pub(crate) const XATTR: u8 = 3;
pub(crate) const ENTRY: u8 = 4;
pub(crate) const EXTENT: u8 = 5;
pub(crate) const ORPHAN: u8 = OWN_KINDS;
pub(crate) const LOG: u8 = OWN_KINDS + 1;
pub(crate) const USER: u8 = OWN_KINDS + 2;
pub(crate) const COUNTED: u8 = OWN_KINDS + 3;
pub(crate) const XATTR_MORE: u8 = 0x80;

/// Blocks of an extent, at most: their checksums fit an item, and several items a node.
pub(crate) const EXTENT_BLOCKS: u32 = 64;
/// Bytes of a piece of a value or target.
pub(crate) const PIECE: usize = 1024;
/// Bytes of a value in the item that has its name.
pub(crate) const FIRST_PIECE: usize = 768;

/// The value of an orphan's item when nothing refers to the inode any more.
pub(crate) const FREED: u8 = 1;
/// The value while something may.
pub(crate) const KEPT: u8 = 0;

/// The object of items that belong to no inode.
pub(crate) const NO_INODE: u64 = 0;

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawTime {
    seconds: I64,
    nanoseconds: U32,
}

impl RawTime {
    fn of(time: Timestamp) -> Self {
        Self { seconds: I64::new(time.seconds), nanoseconds: U32::new(time.nanoseconds) }
    }

    fn read(self) -> Timestamp {
        Timestamp { seconds: self.seconds.get(), nanoseconds: self.nanoseconds.get() }
    }
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawInode {
    kind: u8,
    reserved: u8,
    mode: U16,
    links: U32,
    uid: U32,
    gid: U32,
    device: U64,
    size: U64,
    blocks: U64,
    parent: U64,
    atime: RawTime,
    mtime: RawTime,
    ctime: RawTime,
    btime: RawTime,
    applied_log: U32,
    applied_sequence: U64,
    reserved_too: U32,
}

const _: () = assert!(size_of::<RawInode>() == 112);
const _: () = assert!(std::mem::offset_of!(RawInode, atime) == 48);

/// The key of an inode's item.
pub(crate) fn inode_key(inode: InodeNumber) -> Key {
    Key { object: inode.0, kind: INODE, offset: 0 }
}

/// An inode as an item.
pub(crate) fn write_inode(inode: &Inode) -> [u8; 112] {
    zerocopy::transmute!(RawInode {
        kind: inode.kind as u8,
        reserved: 0,
        mode: U16::new(inode.mode),
        links: U32::new(inode.links),
        uid: U32::new(inode.uid),
        gid: U32::new(inode.gid),
        device: U64::new(inode.device),
        size: U64::new(inode.size),
        blocks: U64::new(inode.blocks),
        parent: U64::new(inode.parent),
        atime: RawTime::of(inode.atime),
        mtime: RawTime::of(inode.mtime),
        ctime: RawTime::of(inode.ctime),
        btime: RawTime::of(inode.btime),
        applied_log: U32::new(inode.applied.0),
        applied_sequence: U64::new(inode.applied.1),
        reserved_too: U32::new(0),
    })
}

/// The inode that an item has.
pub(crate) fn read_inode(value: &[u8]) -> Option<Inode> {
    let raw = RawInode::read_from_bytes(value).ok()?;
    let inode = Inode {
        kind: Kind::from_value(raw.kind)?,
        mode: raw.mode.get(),
        links: raw.links.get(),
        uid: raw.uid.get(),
        gid: raw.gid.get(),
        device: raw.device.get(),
        size: raw.size.get(),
        blocks: raw.blocks.get(),
        parent: raw.parent.get(),
        atime: raw.atime.read(),
        mtime: raw.mtime.read(),
        ctime: raw.ctime.read(),
        btime: raw.btime.read(),
        applied: (raw.applied_log.get(), raw.applied_sequence.get()),
    };
    (inode.mode & !MODE_BITS == 0).then_some(inode)
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawEntry {
    inode: U64,
    kind: u8,
}

/// The key of an entry.
pub(crate) fn entry_key(directory: InodeNumber, cookie: Cookie) -> Key {
    Key { object: directory.0, kind: ENTRY, offset: cookie.0 }
}

/// An entry as an item.
pub(crate) fn write_entry(inode: InodeNumber, kind: Kind, name: &[u8]) -> Vec<u8> {
    let raw = RawEntry { inode: U64::new(inode.0), kind: kind as u8 };
    [raw.as_bytes(), name].concat()
}

/// The entry that an item has, and its name.
pub(crate) fn read_entry(cookie: Cookie, value: &[u8]) -> Option<(Entry, &[u8])> {
    let (raw, name) = RawEntry::read_from_prefix(value).ok()?;
    name::check(name).ok()?;
    let entry = Entry { cookie, inode: InodeNumber(raw.inode.get()), kind: Kind::from_value(raw.kind)? };
    Some((entry, name))
}

/// The key of an extended attribute, or with `piece` above 0 of a further piece of its value.
pub(crate) fn xattr_key(inode: InodeNumber, cookie: Cookie, piece: usize) -> Key {
    // A value has 65 pieces at most.
    let kind = if piece == 0 { XATTR } else { XATTR_MORE + piece as u8 - 1 };
    Key { object: inode.0, kind, offset: cookie.0 }
}

/// Items of an extended attribute whose value has so many bytes.
pub(crate) fn xattr_items(length: usize) -> usize {
    1 + length.saturating_sub(FIRST_PIECE).div_ceil(PIECE)
}

/// The first item of an extended attribute; the other pieces of the value are items as they are.
pub(crate) fn write_xattr(name: &[u8], value: &[u8]) -> Vec<u8> {
    let length = (value.len() as u32).to_le_bytes();
    // Names have 255 bytes at most.
    let first = &value[..value.len().min(FIRST_PIECE)];
    [&length[..], &[name.len() as u8], name, first].concat()
}

/// Name, length of the value and first piece of an extended attribute.
pub(crate) fn read_xattr(value: &[u8]) -> Option<(&[u8], usize, &[u8])> {
    let (length, rest) = U32::read_from_prefix(value).ok()?;
    let (name_length, rest) = rest.split_first()?;
    let (name, first) = rest.split_at_checked(usize::from(*name_length))?;
    let length = length.get() as usize;
    let whole = first.len() == length.min(FIRST_PIECE);
    (whole && !name.is_empty() && name.len() <= MAX_XATTR_NAME).then_some((name, length, first))
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawExtent {
    medium: u8,
    flags: u8,
    blocks: U16,
    start: U32,
}

/// The room is reserved, and reads as zeros.
const UNWRITTEN: u8 = 1;

/// A run of blocks with the data of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    /// The first block of the file that it has.
    pub first: u64,
    /// Where the data are.
    pub run: Run,
    /// CRC32C of each block; empty where nothing was written.
    pub checksums: Vec<u32>,
}

impl Extent {
    /// Whether it is room without data.
    pub(crate) fn is_unwritten(&self) -> bool {
        self.checksums.is_empty()
    }

    /// The block of the file behind its last one.
    pub(crate) fn end(&self) -> u64 {
        self.first + u64::from(self.run.blocks)
    }

    /// Whether `other` is this extent, or a part of it.
    pub(crate) fn has(&self, other: &Self) -> bool {
        self.first <= other.first
            && other.end() <= self.end()
            && self.part(other.first, other.end()) == *other
    }

    /// The part of it that begins at block `from` of the file and ends before `to`, both inside.
    pub(crate) fn part(&self, from: u64, to: u64) -> Self {
        // An extent has EXTENT_BLOCKS blocks at most.
        let (skip, blocks) = ((from - self.first) as u32, (to - from) as u32);
        let run = Run { medium: self.run.medium, start: self.run.start + skip, blocks };
        let checksums = if self.is_unwritten() {
            Vec::new()
        } else {
            self.checksums[skip as usize..(skip + blocks) as usize].to_vec()
        };
        Self { first: from, run, checksums }
    }
}

/// The key of the extent that begins at a block of a file.
pub(crate) fn extent_key(inode: InodeNumber, first: u64) -> Key {
    Key { object: inode.0, kind: EXTENT, offset: first }
}

/// An extent as an item.
pub(crate) fn write_extent(extent: &Extent) -> Vec<u8> {
    let raw = RawExtent {
        medium: extent.run.medium,
        flags: if extent.is_unwritten() { UNWRITTEN } else { 0 },
        blocks: U16::new(extent.run.blocks as u16),
        start: U32::new(extent.run.start),
    };
    let mut value = raw.as_bytes().to_vec();
    value.extend(extent.checksums.iter().flat_map(|checksum| checksum.to_le_bytes()));
    value
}

/// The extent that an item has.
pub(crate) fn read_extent(first: u64, value: &[u8]) -> Option<Extent> {
    let (raw, rest) = RawExtent::read_from_prefix(value).ok()?;
    let blocks = u32::from(raw.blocks.get());
    let run = Run { medium: raw.medium, start: raw.start.get(), blocks };
    run.start.checked_add(blocks)?;
    first.checked_add(u64::from(blocks))?;
    if blocks == 0 || blocks > EXTENT_BLOCKS || raw.flags & !UNWRITTEN != 0 {
        return None;
    }
    let expected = if raw.flags & UNWRITTEN != 0 { 0 } else { blocks as usize };
    let checksums: Vec<u32> =
        rest.as_chunks::<4>().0.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect();
    (rest.len() == 4 * expected).then_some(Extent { first, run, checksums })
}

/// The key of the mark of an inode without a name.
pub(crate) fn orphan_key(inode: InodeNumber) -> Key {
    Key { object: NO_INODE, kind: ORPHAN, offset: inode.0 }
}

/// How far a log was applied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogState {
    /// Sequence of the last record that was applied.
    pub sequence: u64,
    /// Position behind it.
    pub position: u64,
    /// The epoch of its records ([`crate::log::LogIdentity`]).
    pub epoch: u32,
    /// CRC32C of the seed of its identity; 0: not known.
    pub seed_sum: u32,
}

impl LogState {
    /// Whether the log may have this seed. With another one, none of its records is valid, and it
    /// looks like an empty one.
    pub fn is_of(&self, seed: u64) -> bool {
        self.seed_sum == 0 || self.seed_sum == Self::sum(seed)
    }

    pub(crate) fn sum(seed: u64) -> u32 {
        checksum(&seed.to_le_bytes())
    }
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawLog {
    sequence: U64,
    position: U64,
    epoch: U32,
    seed_sum: U32,
}

/// The key of a log's state.
pub(crate) fn log_key(log: u32) -> Key {
    Key { object: NO_INODE, kind: LOG, offset: u64::from(log) }
}

/// Whether an item is a log's.
pub(crate) fn is_log(key: Key) -> bool {
    (key.object, key.kind) == (NO_INODE, LOG)
}

/// A log's state as an item.
pub(crate) fn write_log(state: LogState) -> [u8; 24] {
    zerocopy::transmute!(RawLog {
        sequence: U64::new(state.sequence),
        position: U64::new(state.position),
        epoch: U32::new(state.epoch),
        seed_sum: U32::new(state.seed_sum),
    })
}

/// The log's state that an item has.
pub(crate) fn read_log(value: &[u8]) -> Option<LogState> {
    let raw = RawLog::read_from_bytes(value).ok()?;
    Some(LogState {
        sequence: raw.sequence.get(),
        position: raw.position.get(),
        epoch: raw.epoch.get(),
        seed_sum: raw.seed_sum.get(),
    })
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawUser {
    blocks: U64,
    inodes: U64,
    most_blocks: U64,
    most_inodes: U64,
}

/// The key of what a user has.
pub(crate) fn user_key(uid: u32) -> Key {
    Key { object: NO_INODE, kind: USER, offset: u64::from(uid) }
}

/// The user whose item has this key; `None`: it is no user's.
pub(crate) fn user_of(key: Key) -> Option<u32> {
    let is_user = (key.object, key.kind) == (NO_INODE, USER);
    u32::try_from(key.offset).ok().filter(|_| is_user)
}

/// What a user has, as an item.
pub(crate) fn write_user(quota: &Quota) -> [u8; 32] {
    zerocopy::transmute!(RawUser {
        blocks: U64::new(quota.used.blocks),
        inodes: U64::new(quota.used.inodes),
        most_blocks: U64::new(quota.limit.blocks),
        most_inodes: U64::new(quota.limit.inodes),
    })
}

/// What an item says that a user has.
pub(crate) fn read_user(value: &[u8]) -> Option<Quota> {
    let raw = RawUser::read_from_bytes(value).ok()?;
    let used = Amount { blocks: raw.blocks.get(), inodes: raw.inodes.get() };
    Some(Quota { used, limit: Amount { blocks: raw.most_blocks.get(), inodes: raw.most_inodes.get() } })
}

/// The key of the mark that users' items are right.
pub(crate) const COUNTED_KEY: Key = Key { object: NO_INODE, kind: COUNTED, offset: 0 };

/// The mark, with the number of users that have a limit.
pub(crate) fn write_counted(limited: u64) -> [u8; 8] {
    limited.to_le_bytes()
}

/// The number of users with a limit that the mark has.
pub(crate) fn read_counted(value: &[u8]) -> Option<u64> {
    value.try_into().ok().map(u64::from_le_bytes)
}

/// CRC32C of a block of data.
pub(crate) fn checksum(block: &[u8]) -> u32 {
    // The CRC has 32 bits.
    crc32c(block)
}
