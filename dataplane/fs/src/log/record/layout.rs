//! The header line, the fields of each kind, and the checksum.

use sietch_structures::crc32c;
use zerocopy::little_endian::{I64, U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::inode::Timestamp;
use crate::limits::{MAX_RECORD_DATA, MAX_TARGET, MAX_XATTR_NAME, MAX_XATTR_VALUE};
use crate::name::MAX_NAME;

/// Records begin at multiples of this many bytes: a cache line, which persistent memory stores
/// without reading it first.
pub const LINE: usize = 64;

const MAGIC: u32 = u32::from_le_bytes(*b"SFLR");

/// The header line of every record.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Header {
    magic: U32,
    checksum: U32,
    /// Bytes behind the front, without zeros; of a pad, bytes that are nothing.
    pub(super) payload: U32,
    pub(super) kind: u8,
    pub(super) flags: u8,
    /// Lines of the front.
    pub(super) front: u8,
    pub(super) reserved: u8,
    pub(super) log: U32,
    pub(super) epoch: U32,
    pub(super) sequence: U64,
    pub(super) seconds: I64,
    pub(super) nanoseconds: U32,
    /// Bytes of the first and of the second name.
    pub(super) names: [u8; 2],
    /// Records just before this one that were not known to be durable when it was made.
    pub(super) unproven: U16,
    pub(super) inode: U64,
    /// The first field of the kind: an offset, a size or a directory.
    pub(super) word: U64,
}

const _: () = assert!(size_of::<Header>() == LINE);
const _: () = assert!(std::mem::offset_of!(Header, checksum) == 4);
const _: () = assert!(std::mem::offset_of!(Header, log) == 16);
const _: () = assert!(std::mem::offset_of!(Header, sequence) == 24);
const _: () = assert!(std::mem::offset_of!(Header, names) == 44);
const _: () = assert!(std::mem::offset_of!(Header, inode) == 48);
const _: () = assert!(std::mem::offset_of!(Header, word) == 56);
/// Bytes of the magic and the checksum, which the checksum does not cover.
const UNCHECKED: usize = 8;

/// More fields of [`crate::Change::Create`].
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct CreateFields {
    pub(super) cookie: U64,
    pub(super) device: U64,
    pub(super) uid: U32,
    pub(super) gid: U32,
    pub(super) mode: U16,
    pub(super) kind: u8,
    pub(super) reserved: [u8; 5],
}

/// More fields of [`crate::Change::Rename`].
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RenameFields {
    pub(super) from_cookie: U64,
    pub(super) to_directory: U64,
    pub(super) to_cookie: U64,
    pub(super) replaced: U64,
}

/// More fields of [`crate::Change::SetAttributes`].
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct AttributeFields {
    pub(super) atime_seconds: I64,
    pub(super) mtime_seconds: I64,
    pub(super) atime_nanoseconds: U32,
    pub(super) mtime_nanoseconds: U32,
    pub(super) uid: U32,
    pub(super) gid: U32,
    pub(super) mode: U16,
    pub(super) reserved: [u8; 6],
}

const _: () = assert!(size_of::<CreateFields>() == 32);
const _: () = assert!(size_of::<RenameFields>() == 32);
const _: () = assert!(size_of::<AttributeFields>() == 40);

/// Longest front, in bytes: that of a rename, with two names.
pub(crate) const MAX_FRONT: usize = (LINE + size_of::<RenameFields>() + 2 * MAX_NAME).next_multiple_of(LINE);

/// Longest record, in bytes. No kind has both the longest front and the longest payload.
pub const MAX_RECORD: usize = MAX_FRONT + MAX_RECORD_DATA;

const _: () = assert!(MAX_FRONT / LINE <= u8::MAX as usize);
const _: () = assert!(MAX_XATTR_VALUE <= MAX_RECORD_DATA && MAX_TARGET <= MAX_RECORD_DATA);
const _: () = assert!(MAX_NAME <= u8::MAX as usize && MAX_XATTR_NAME <= u8::MAX as usize);

pub(super) mod kind {
    pub(in crate::log::record) const CREATE: u8 = 1;
    pub(in crate::log::record) const LINK: u8 = 2;
    pub(in crate::log::record) const UNLINK: u8 = 3;
    pub(in crate::log::record) const RENAME: u8 = 4;
    pub(in crate::log::record) const WRITE: u8 = 5;
    pub(in crate::log::record) const TRUNCATE: u8 = 6;
    pub(in crate::log::record) const RESERVE: u8 = 7;
    pub(in crate::log::record) const PUNCH: u8 = 8;
    pub(in crate::log::record) const SET_ATTRIBUTES: u8 = 9;
    pub(in crate::log::record) const SET_XATTR: u8 = 10;
    pub(in crate::log::record) const REMOVE_XATTR: u8 = 11;
    pub(in crate::log::record) const FREE: u8 = 12;
    pub(in crate::log::record) const PAD: u8 = 13;
}

pub(super) mod flag {
    /// A creation with a name.
    pub(in crate::log::record) const NAMED: u8 = 1;
    /// A rename over something.
    pub(in crate::log::record) const REPLACES: u8 = 1;
    /// A rename that exchanges.
    pub(in crate::log::record) const EXCHANGE: u8 = 2;
    /// A reservation that zeroes.
    pub(in crate::log::record) const ZERO: u8 = 1;
    pub(in crate::log::record) const MODE: u8 = 1;
    pub(in crate::log::record) const UID: u8 = 2;
    pub(in crate::log::record) const GID: u8 = 4;
    pub(in crate::log::record) const ATIME: u8 = 8;
    pub(in crate::log::record) const MTIME: u8 = 16;
}

/// More records than the header can count were not known to be durable.
pub(crate) const UNKNOWN: u16 = u16::MAX;

/// Whose records they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogIdentity {
    /// Number of the log.
    pub log: u32,
    /// Which of its owners, one after the other. A log in which records may be durable that were
    /// not acknowledged goes on under a new epoch.
    pub epoch: u32,
    /// Random and secret, one for each epoch: data in the log cannot be made to look like records.
    pub seed: u64,
}

/// A record that no log may contain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Invalid(pub &'static str);

pub(super) fn ensure(is_right: bool, otherwise: &'static str) -> Result<(), Invalid> {
    if is_right { Ok(()) } else { Err(Invalid(otherwise)) }
}

/// What a record says beside its change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    pub sequence: u64,
    pub unproven: u16,
    pub time: Timestamp,
}

/// Puts what the checksum covers in place of the magic and the checksum.
pub(super) fn begin_checksum(identity: &LogIdentity, position: u64, record: &mut [u8]) {
    record[..UNCHECKED].copy_from_slice(&(identity.seed ^ position).to_le_bytes());
}

/// Completes the header line of a record with this checksum.
pub(crate) fn finish(line: &mut [u8], checksum: u32) {
    line[..4].copy_from_slice(&MAGIC.to_le_bytes());
    line[4..UNCHECKED].copy_from_slice(&checksum.to_le_bytes());
}

impl Header {
    /// The header in this line, if it can be one of this log: its checksum is not verified.
    pub(crate) fn peek(identity: &LogIdentity, line: &[u8]) -> Option<Self> {
        let (header, _) = Self::ref_from_prefix(line).ok()?;
        let is_ours = header.magic.get() == MAGIC
            && header.log.get() == identity.log
            && header.epoch.get() == identity.epoch;
        let front = usize::from(header.front) * LINE;
        let fits = (LINE..=MAX_FRONT).contains(&front) && header.payload.get() as usize <= MAX_RECORD_DATA;
        (is_ours && fits).then_some(*header)
    }

    /// Whether the checksum is that of the record at `position`, which is `bytes`. Overwrites the
    /// magic and the checksum there.
    pub(crate) fn is_genuine(&self, identity: &LogIdentity, position: u64, bytes: &mut [u8]) -> bool {
        begin_checksum(identity, position, bytes);
        crc32c(bytes) == self.checksum.get()
    }

    pub(crate) fn sequence(&self) -> u64 {
        self.sequence.get()
    }

    /// The last sequence that was known to be durable when the record was made.
    pub(crate) fn proven(&self) -> u64 {
        match self.unproven.get() {
            UNKNOWN => 0,
            unproven => self.sequence().saturating_sub(1 + u64::from(unproven)),
        }
    }

    pub(crate) fn is_pad(&self) -> bool {
        self.kind == kind::PAD
    }

    /// Bytes from this record to the next.
    pub(crate) fn length(&self) -> usize {
        self.checked_length() + if self.is_pad() { self.payload.get() as usize } else { 0 }
    }

    /// Bytes that the checksum covers.
    pub(crate) fn checked_length(&self) -> usize {
        if self.is_pad() {
            return LINE;
        }
        self.front() + (self.payload.get() as usize).next_multiple_of(LINE)
    }

    /// Bytes of the front.
    pub(crate) fn front(&self) -> usize {
        usize::from(self.front) * LINE
    }

    pub(crate) fn payload(&self) -> usize {
        self.payload.get() as usize
    }

    pub(crate) fn time(&self) -> Timestamp {
        Timestamp { seconds: self.seconds.get(), nanoseconds: self.nanoseconds.get() }
    }

    /// Judges a pad.
    pub(crate) fn check_pad(&self) -> Result<(), Invalid> {
        ensure((self.payload() + LINE).is_multiple_of(LINE), "a pad that is not whole lines")?;
        let mut plain = Self { payload: U32::ZERO, ..*self };
        plain.reserved |= plain.flags | plain.names[0] | plain.names[1];
        let zero = plain.reserved == 0
            && plain.front == 1
            && plain.inode.get() == 0
            && plain.word.get() == 0
            && plain.seconds.get() == 0
            && plain.nanoseconds.get() == 0;
        ensure(zero, "a pad that says something")
    }
}
