//! The format of a record.
//!
//! 1. All integers are little endian. A record is its *front* (a header line of 64 bytes, the
//!    fields of its kind, its names, zeros up to a whole line) and its *payload* (the data of a
//!    write, the value of an attribute, the target of a symbolic link; zeros up to a whole line).
//!    The front of a write is the header line alone, so whole lines of data cost nothing more.
//! 2. The checksum is a CRC32C over all lines of the record, zeros included. In place of the magic
//!    and the checksum it covers the log's seed XOR the record's position. So a record of another
//!    log or epoch, of another lap or place does not validate. It is computed in one pass.
//! 3. A change has one encoding: what a field does not say is 0, and the reader insists on it.
//! 4. [`check`] decides what a record may say. The writer calls it before it writes and the reader
//!    after it has read: what was written can be read.
//! 5. A pad is a header line that says how many bytes behind it are nothing. It has the sequence of
//!    the record that follows, and consumes none.

use crc_fast::{CrcAlgorithm, Digest};
use zerocopy::little_endian::{I64, U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::change::{Change, NewAttributes, Place};
use crate::inode::{InodeNumber, Kind, MODE_BITS, Timestamp};
use crate::limits::{MAX_FILE, MAX_RECORD_DATA, MAX_TARGET, MAX_XATTR_NAME, MAX_XATTR_VALUE};
use crate::name::{self, Cookie, FIRST_COOKIE, MAX_NAME};

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
    payload: U32,
    kind: u8,
    flags: u8,
    /// Lines of the front.
    front: u8,
    reserved: u8,
    log: U32,
    epoch: U32,
    sequence: U64,
    seconds: I64,
    nanoseconds: U32,
    /// Bytes of the first and of the second name.
    names: [u8; 2],
    /// Records just before this one that were not known to be durable when it was made.
    unproven: U16,
    inode: U64,
    /// The first field of the kind: an offset, a size or a directory.
    word: U64,
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

/// More fields of [`Change::Create`].
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct CreateFields {
    cookie: U64,
    device: U64,
    uid: U32,
    gid: U32,
    mode: U16,
    kind: u8,
    reserved: [u8; 5],
}

/// More fields of [`Change::Rename`].
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RenameFields {
    from_cookie: U64,
    to_directory: U64,
    to_cookie: U64,
    replaced: U64,
}

/// More fields of [`Change::SetAttributes`].
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct AttributeFields {
    atime_seconds: I64,
    mtime_seconds: I64,
    atime_nanoseconds: U32,
    mtime_nanoseconds: U32,
    uid: U32,
    gid: U32,
    mode: U16,
    reserved: [u8; 6],
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

mod kind {
    pub(super) const CREATE: u8 = 1;
    pub(super) const LINK: u8 = 2;
    pub(super) const UNLINK: u8 = 3;
    pub(super) const RENAME: u8 = 4;
    pub(super) const WRITE: u8 = 5;
    pub(super) const TRUNCATE: u8 = 6;
    pub(super) const RESERVE: u8 = 7;
    pub(super) const PUNCH: u8 = 8;
    pub(super) const SET_ATTRIBUTES: u8 = 9;
    pub(super) const SET_XATTR: u8 = 10;
    pub(super) const REMOVE_XATTR: u8 = 11;
    pub(super) const FREE: u8 = 12;
    pub(super) const PAD: u8 = 13;
}

mod flag {
    /// A creation with a name.
    pub(super) const NAMED: u8 = 1;
    /// A rename over something.
    pub(super) const REPLACES: u8 = 1;
    /// A rename that exchanges.
    pub(super) const EXCHANGE: u8 = 2;
    /// A reservation that zeroes.
    pub(super) const ZERO: u8 = 1;
    pub(super) const MODE: u8 = 1;
    pub(super) const UID: u8 = 2;
    pub(super) const GID: u8 = 4;
    pub(super) const ATIME: u8 = 8;
    pub(super) const MTIME: u8 = 16;
}

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

fn ensure(is_right: bool, otherwise: &'static str) -> Result<(), Invalid> {
    if is_right { Ok(()) } else { Err(Invalid(otherwise)) }
}

/// Judges what a record says, without knowing the file system.
pub(crate) fn check(time: Timestamp, change: &Change<'_>, payload: usize) -> Result<(), Invalid> {
    check_time(time)?;
    let carries = match *change {
        Change::Write { length, .. } | Change::SetXattr { length, .. } => length as usize,
        Change::Create { target, .. } => target.len(),
        _ => 0,
    };
    ensure(payload == carries, "the record does not carry the bytes that it names")?;
    let inode = inode_of(change);
    ensure(inode.0 != 0, "inode 0 is none")?;
    match change {
        Change::Create { .. } => check_create(change),
        Change::Link { place, .. } | Change::Unlink { place, .. } => check_place(inode, place),
        Change::Rename { from, to, replaced, exchange, .. } => {
            check_place(inode, from)?;
            check_place(inode, to)?;
            ensure((from.directory, from.name) != (to.directory, to.name), "a rename to the same name")?;
            ensure(
                replaced.is_none_or(|other| other.0 != 0 && other != inode),
                "it replaces itself or none",
            )?;
            ensure(replaced.is_some() || !exchange, "an exchange with nothing")
        }
        Change::Write { offset, length, .. } => {
            ensure(payload <= MAX_RECORD_DATA, "more data than a record carries")?;
            check_range(*offset, u64::from(*length))
        }
        Change::Truncate { size, .. } => ensure(*size <= MAX_FILE, "a size past the largest file"),
        Change::Reserve { offset, length, size, .. } => {
            ensure(*size <= MAX_FILE, "a size past the largest file")?;
            check_range(*offset, *length)
        }
        Change::Punch { offset, length, .. } => check_range(*offset, *length),
        Change::SetAttributes { attributes, .. } => check_attributes(attributes),
        Change::SetXattr { name, .. } => {
            ensure(payload <= MAX_XATTR_VALUE, "a value past the largest")?;
            check_xattr_name(name)
        }
        Change::RemoveXattr { name, .. } => check_xattr_name(name),
        Change::Free { .. } => Ok(()),
    }
}

fn check_create(change: &Change<'_>) -> Result<(), Invalid> {
    let Change::Create { inode, place, kind, mode, device, target, .. } = change else { return Ok(()) };
    match place {
        Some(place) => check_place(*inode, place)?,
        None => ensure(*kind == Kind::File, "only a file may have no name")?,
    }
    ensure(mode & !MODE_BITS == 0, "mode bits that do not exist")?;
    let is_device = matches!(kind, Kind::CharacterDevice | Kind::BlockDevice);
    ensure(is_device || *device == 0, "a device number of what is no device")?;
    ensure(target.is_empty() != (*kind == Kind::Symlink), "a target belongs to a symbolic link")?;
    ensure(target.len() <= MAX_TARGET, "a target past the longest")?;
    ensure(!target.contains(&0), "a target with NUL")
}

fn check_place(inode: InodeNumber, place: &Place<'_>) -> Result<(), Invalid> {
    ensure(place.directory.0 != 0, "directory 0 is none")?;
    ensure(place.directory != inode, "an inode in itself")?;
    let cookies = FIRST_COOKIE.0..=i64::MAX.cast_unsigned();
    ensure(cookies.contains(&place.cookie.0), "a cookie that no entry has")?;
    ensure(name::check(place.name).is_ok(), "a name that no entry has")
}

fn check_xattr_name(name: &[u8]) -> Result<(), Invalid> {
    let is_right = (1..=MAX_XATTR_NAME).contains(&name.len()) && !name.contains(&0);
    ensure(is_right, "a name that no attribute has")
}

fn check_range(offset: u64, length: u64) -> Result<(), Invalid> {
    ensure(length > 0, "a range of no bytes")?;
    let end = offset.checked_add(length);
    ensure(end.is_some_and(|end| end <= MAX_FILE), "a range past the largest file")
}

fn check_attributes(attributes: &NewAttributes) -> Result<(), Invalid> {
    ensure(attributes.mode.unwrap_or(0) & !MODE_BITS == 0, "mode bits that do not exist")?;
    check_time(attributes.atime.unwrap_or_default())?;
    check_time(attributes.mtime.unwrap_or_default())
}

fn check_time(time: Timestamp) -> Result<(), Invalid> {
    ensure(time.nanoseconds < 1_000_000_000, "a time with a second or more of nanoseconds")
}

fn inode_of(change: &Change<'_>) -> InodeNumber {
    match *change {
        Change::Create { inode, .. }
        | Change::Link { inode, .. }
        | Change::Unlink { inode, .. }
        | Change::Rename { inode, .. }
        | Change::Write { inode, .. }
        | Change::Truncate { inode, .. }
        | Change::Reserve { inode, .. }
        | Change::Punch { inode, .. }
        | Change::SetAttributes { inode, .. }
        | Change::SetXattr { inode, .. }
        | Change::RemoveXattr { inode, .. }
        | Change::Free { inode } => inode,
    }
}

/// What a record says beside its change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    pub sequence: u64,
    pub unproven: u16,
    pub time: Timestamp,
}

/// Writes the fields behind the header and the names, one after the other.
struct Front<'b> {
    out: &'b mut [u8],
    length: usize,
}

impl Front<'_> {
    fn push(&mut self, bytes: &[u8]) {
        self.out[self.length..self.length + bytes.len()].copy_from_slice(bytes);
        self.length += bytes.len();
    }
}

/// Bytes of the front of a record with this change.
pub(crate) fn front_bytes(change: &Change<'_>) -> usize {
    let (fields, names) = match change {
        Change::Create { place, .. } => {
            (size_of::<CreateFields>(), place.as_ref().map_or(0, |place| place.name.len()))
        }
        Change::Link { place, .. } | Change::Unlink { place, .. } => (size_of::<U64>(), place.name.len()),
        Change::Rename { from, to, .. } => (size_of::<RenameFields>(), from.name.len() + to.name.len()),
        Change::Reserve { .. } => (2 * size_of::<U64>(), 0),
        Change::Punch { .. } => (size_of::<U64>(), 0),
        Change::SetAttributes { .. } => (size_of::<AttributeFields>(), 0),
        Change::SetXattr { name, .. } | Change::RemoveXattr { name, .. } => (0, name.len()),
        Change::Write { .. } | Change::Truncate { .. } | Change::Free { .. } => (0, 0),
    };
    (LINE + fields + names).next_multiple_of(LINE)
}

/// Writes the front of a record to `out`, which is as long as [`front_bytes`] says, with the magic
/// and the checksum replaced as [`begin_checksum`] does it. [`check`] holds for the change.
pub(crate) fn encode_front(
    identity: &LogIdentity,
    position: u64,
    stamp: Stamp,
    change: &Change<'_>,
    payload: usize,
    out: &mut [u8],
) {
    let lines = out.len() / LINE;
    out.fill(0);
    let mut header = Header::new_zeroed();
    // The lengths were checked: see the assertions beside `MAX_RECORD`.
    header.payload = U32::new(payload as u32);
    header.front = lines as u8;
    header.log = U32::new(identity.log);
    header.epoch = U32::new(identity.epoch);
    header.sequence = U64::new(stamp.sequence);
    header.seconds = I64::new(stamp.time.seconds);
    header.nanoseconds = U32::new(stamp.time.nanoseconds);
    header.unproven = U16::new(stamp.unproven);
    header.inode = U64::new(inode_of(change).0);
    encode_fields(change, &mut header, &mut Front { out, length: LINE });
    out[..LINE].copy_from_slice(header.as_bytes());
    begin_checksum(identity, position, out);
}

fn encode_fields(change: &Change<'_>, header: &mut Header, front: &mut Front<'_>) {
    match *change {
        Change::Create { .. } => encode_create(change, header, front),
        Change::Link { place, .. } => encode_entry(kind::LINK, &place, header, front),
        Change::Unlink { place, .. } => encode_entry(kind::UNLINK, &place, header, front),
        Change::Rename { from, to, replaced, exchange, .. } => {
            header.kind = kind::RENAME;
            header.flags |= if replaced.is_some() { flag::REPLACES } else { 0 };
            header.flags |= if exchange { flag::EXCHANGE } else { 0 };
            header.names = [from.name.len() as u8, to.name.len() as u8];
            header.word = U64::new(from.directory.0);
            let fields = RenameFields {
                from_cookie: U64::new(from.cookie.0),
                to_directory: U64::new(to.directory.0),
                to_cookie: U64::new(to.cookie.0),
                replaced: U64::new(replaced.map_or(0, |inode| inode.0)),
            };
            front.push(fields.as_bytes());
            front.push(from.name);
            front.push(to.name);
        }
        Change::Write { offset, .. } => {
            header.kind = kind::WRITE;
            header.word = U64::new(offset);
        }
        Change::Truncate { size, .. } => {
            header.kind = kind::TRUNCATE;
            header.word = U64::new(size);
        }
        Change::Reserve { offset, length, size, zero, .. } => {
            header.kind = kind::RESERVE;
            header.flags = if zero { flag::ZERO } else { 0 };
            header.word = U64::new(offset);
            front.push(&length.to_le_bytes());
            front.push(&size.to_le_bytes());
        }
        Change::Punch { offset, length, .. } => {
            header.kind = kind::PUNCH;
            header.word = U64::new(offset);
            front.push(&length.to_le_bytes());
        }
        Change::SetAttributes { attributes, .. } => {
            header.kind = kind::SET_ATTRIBUTES;
            encode_attributes(&attributes, header, front);
        }
        Change::SetXattr { name, .. } => encode_name(kind::SET_XATTR, name, header, front),
        Change::RemoveXattr { name, .. } => encode_name(kind::REMOVE_XATTR, name, header, front),
        Change::Free { .. } => header.kind = kind::FREE,
    }
}

fn encode_create(change: &Change<'_>, header: &mut Header, front: &mut Front<'_>) {
    let Change::Create { place, kind, mode, uid, gid, device, .. } = *change else { return };
    header.kind = kind::CREATE;
    let mut fields = CreateFields {
        cookie: U64::ZERO,
        device: U64::new(device),
        uid: U32::new(uid),
        gid: U32::new(gid),
        mode: U16::new(mode),
        kind: kind as u8,
        reserved: [0; 5],
    };
    let mut name: &[u8] = &[];
    if let Some(place) = place {
        header.flags = flag::NAMED;
        header.word = U64::new(place.directory.0);
        fields.cookie = U64::new(place.cookie.0);
        name = place.name;
    }
    header.names[0] = name.len() as u8;
    front.push(fields.as_bytes());
    front.push(name);
}

fn encode_entry(kind: u8, place: &Place<'_>, header: &mut Header, front: &mut Front<'_>) {
    header.word = U64::new(place.directory.0);
    front.push(&place.cookie.0.to_le_bytes());
    encode_name(kind, place.name, header, front);
}

fn encode_name(kind: u8, name: &[u8], header: &mut Header, front: &mut Front<'_>) {
    header.kind = kind;
    header.names[0] = name.len() as u8;
    front.push(name);
}

fn encode_attributes(attributes: &NewAttributes, header: &mut Header, front: &mut Front<'_>) {
    let present = [
        (flag::MODE, attributes.mode.is_some()),
        (flag::UID, attributes.uid.is_some()),
        (flag::GID, attributes.gid.is_some()),
        (flag::ATIME, attributes.atime.is_some()),
        (flag::MTIME, attributes.mtime.is_some()),
    ];
    header.flags = present.iter().map(|(flag, is_present)| flag * u8::from(*is_present)).sum();
    let (atime, mtime) = (attributes.atime.unwrap_or_default(), attributes.mtime.unwrap_or_default());
    let fields = AttributeFields {
        atime_seconds: I64::new(atime.seconds),
        mtime_seconds: I64::new(mtime.seconds),
        atime_nanoseconds: U32::new(atime.nanoseconds),
        mtime_nanoseconds: U32::new(mtime.nanoseconds),
        uid: U32::new(attributes.uid.unwrap_or(0)),
        gid: U32::new(attributes.gid.unwrap_or(0)),
        mode: U16::new(attributes.mode.unwrap_or(0)),
        reserved: [0; 6],
    };
    front.push(fields.as_bytes());
}

/// A pad, whose checksum is still to be computed over this line.
pub(crate) fn encode_pad(identity: &LogIdentity, position: u64, stamp: Stamp, skipped: u32) -> [u8; LINE] {
    let mut header = Header::new_zeroed();
    header.kind = kind::PAD;
    header.payload = U32::new(skipped);
    header.front = 1;
    header.log = U32::new(identity.log);
    header.epoch = U32::new(identity.epoch);
    header.sequence = U64::new(stamp.sequence);
    header.unproven = U16::new(stamp.unproven);
    let mut line = [0; LINE];
    line.copy_from_slice(header.as_bytes());
    begin_checksum(identity, position, &mut line);
    line
}

/// Puts what the checksum covers in place of the magic and the checksum.
fn begin_checksum(identity: &LogIdentity, position: u64, record: &mut [u8]) {
    record[..UNCHECKED].copy_from_slice(&(identity.seed ^ position).to_le_bytes());
}

/// Completes the header line of a record with this checksum.
pub(crate) fn finish(line: &mut [u8], checksum: u32) {
    line[..4].copy_from_slice(&MAGIC.to_le_bytes());
    line[4..UNCHECKED].copy_from_slice(&checksum.to_le_bytes());
}

/// The checksum of bytes that are in one piece.
pub(crate) fn checksum(bytes: &[u8]) -> u32 {
    // The CRC has 32 bits.
    crc_fast::checksum(CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

/// The checksum of bytes that come in pieces.
pub(crate) struct PiecewiseChecksum(Digest);

impl PiecewiseChecksum {
    pub(crate) fn new() -> Self {
        Self(Digest::new(CrcAlgorithm::Crc32Iscsi))
    }

    pub(crate) fn update(&mut self, piece: &[u8]) {
        self.0.update(piece);
    }

    pub(crate) fn finish(&self) -> u32 {
        // The CRC has 32 bits.
        self.0.finalize() as u32
    }
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
        checksum(bytes) == self.checksum.get()
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

/// More records than the header can count were not known to be durable.
pub(crate) const UNKNOWN: u16 = u16::MAX;

/// The fields and names of a front, to be taken one after the other.
struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    fn bytes(&mut self, length: usize) -> Result<&'a [u8], Invalid> {
        let (taken, rest) = self.rest.split_at_checked(length).ok_or(Invalid("a front that is too short"))?;
        self.rest = rest;
        Ok(taken)
    }

    fn take<T: FromBytes>(&mut self) -> Result<T, Invalid> {
        T::read_from_bytes(self.bytes(size_of::<T>())?).map_err(|_| Invalid("a front that is too short"))
    }

    fn word(&mut self) -> Result<u64, Invalid> {
        Ok(self.take::<U64>()?.get())
    }

    fn place(&mut self, directory: u64, cookie: u64, name: u8) -> Result<Place<'a>, Invalid> {
        let name = self.bytes(usize::from(name))?;
        Ok(Place { directory: InodeNumber(directory), cookie: Cookie(cookie), name })
    }
}

/// What the record says whose header this is and whose bytes these are, and its payload. The
/// checksum was verified, but its maker is not trusted.
pub(crate) fn decode<'a>(header: &Header, bytes: &'a [u8]) -> Result<(Change<'a>, &'a [u8]), Invalid> {
    let too_short = Invalid("a record that is too short");
    let (front, behind) = bytes.split_at_checked(header.front()).ok_or(too_short)?;
    let (payload, padding) = behind.split_at_checked(header.payload()).ok_or(too_short)?;
    ensure(header.reserved == 0, "a reserved field that says something")?;
    ensure(padding.len() < LINE && padding.iter().all(|byte| *byte == 0), "padding that says something")?;
    let mut fields = Fields { rest: front.get(LINE..).ok_or(too_short)? };
    let change = decode_fields(header, &mut fields, payload)?;
    let rest = fields.rest;
    ensure(rest.len() < LINE && rest.iter().all(|byte| *byte == 0), "a front that says more")?;
    check(header.time(), &change, payload.len())?;
    Ok((change, payload))
}

fn decode_fields<'a>(
    header: &Header,
    fields: &mut Fields<'a>,
    payload: &'a [u8],
) -> Result<Change<'a>, Invalid> {
    let inode = InodeNumber(header.inode.get());
    let word = header.word.get();
    let length = header.payload.get();
    let (names, flags) = (header.names, header.flags);
    // Names, flags and the word that a kind does not have are 0.
    let expect = |first: bool, second: bool, mask: u8, has_word: bool| {
        ensure(
            (first || names[0] == 0)
                && (second || names[1] == 0)
                && flags & !mask == 0
                && (has_word || word == 0),
            "a field that the kind does not have",
        )
    };
    Ok(match header.kind {
        kind::CREATE => {
            expect(true, false, flag::NAMED, true)?;
            decode_create(header, fields, payload)?
        }
        kind::LINK | kind::UNLINK => {
            expect(true, false, 0, true)?;
            let cookie = fields.word()?;
            let place = fields.place(word, cookie, names[0])?;
            if header.kind == kind::LINK {
                Change::Link { inode, place }
            } else {
                Change::Unlink { inode, place }
            }
        }
        kind::RENAME => {
            expect(true, true, flag::REPLACES | flag::EXCHANGE, true)?;
            decode_rename(header, fields)?
        }
        kind::WRITE => {
            expect(false, false, 0, true)?;
            Change::Write { inode, offset: word, length }
        }
        kind::TRUNCATE => {
            expect(false, false, 0, true)?;
            Change::Truncate { inode, size: word }
        }
        kind::RESERVE => {
            expect(false, false, flag::ZERO, true)?;
            let (length, size) = (fields.word()?, fields.word()?);
            Change::Reserve { inode, offset: word, length, size, zero: flags & flag::ZERO != 0 }
        }
        kind::PUNCH => {
            expect(false, false, 0, true)?;
            Change::Punch { inode, offset: word, length: fields.word()? }
        }
        kind::SET_ATTRIBUTES => {
            expect(false, false, flag::MODE | flag::UID | flag::GID | flag::ATIME | flag::MTIME, false)?;
            Change::SetAttributes { inode, attributes: decode_attributes(flags, fields)? }
        }
        kind::SET_XATTR => {
            expect(true, false, 0, false)?;
            Change::SetXattr { inode, name: fields.bytes(usize::from(names[0]))?, length }
        }
        kind::REMOVE_XATTR => {
            expect(true, false, 0, false)?;
            Change::RemoveXattr { inode, name: fields.bytes(usize::from(names[0]))? }
        }
        kind::FREE => {
            expect(false, false, 0, false)?;
            Change::Free { inode }
        }
        _ => return Err(Invalid("a kind that does not exist")),
    })
}

fn decode_create<'a>(
    header: &Header,
    fields: &mut Fields<'a>,
    target: &'a [u8],
) -> Result<Change<'a>, Invalid> {
    let raw: CreateFields = fields.take()?;
    ensure(raw.reserved == [0; 5], "a reserved field that says something")?;
    let (directory, cookie) = (header.word.get(), raw.cookie.get());
    let place = if header.flags & flag::NAMED != 0 {
        Some(fields.place(directory, cookie, header.names[0])?)
    } else {
        ensure((directory, cookie, header.names[0]) == (0, 0, 0), "a place of what has no name")?;
        None
    };
    Ok(Change::Create {
        inode: InodeNumber(header.inode.get()),
        place,
        kind: Kind::from_value(raw.kind).ok_or(Invalid("a kind of inode that does not exist"))?,
        mode: raw.mode.get(),
        uid: raw.uid.get(),
        gid: raw.gid.get(),
        device: raw.device.get(),
        target,
    })
}

fn decode_rename<'a>(header: &Header, fields: &mut Fields<'a>) -> Result<Change<'a>, Invalid> {
    let raw: RenameFields = fields.take()?;
    let from = fields.place(header.word.get(), raw.from_cookie.get(), header.names[0])?;
    let to = fields.place(raw.to_directory.get(), raw.to_cookie.get(), header.names[1])?;
    let has_replaced = header.flags & flag::REPLACES != 0;
    ensure(has_replaced || raw.replaced.get() == 0, "a replaced inode without its flag")?;
    Ok(Change::Rename {
        inode: InodeNumber(header.inode.get()),
        from,
        to,
        replaced: has_replaced.then_some(InodeNumber(raw.replaced.get())),
        exchange: header.flags & flag::EXCHANGE != 0,
    })
}

fn decode_attributes(flags: u8, fields: &mut Fields<'_>) -> Result<NewAttributes, Invalid> {
    let raw: AttributeFields = fields.take()?;
    ensure(raw.reserved == [0; 6], "a reserved field that says something")?;
    let time =
        |seconds: I64, nanoseconds: U32| Timestamp { seconds: seconds.get(), nanoseconds: nanoseconds.get() };
    let (atime, mtime) =
        (time(raw.atime_seconds, raw.atime_nanoseconds), time(raw.mtime_seconds, raw.mtime_nanoseconds));
    let attributes = NewAttributes {
        mode: (flags & flag::MODE != 0).then_some(raw.mode.get()),
        uid: (flags & flag::UID != 0).then_some(raw.uid.get()),
        gid: (flags & flag::GID != 0).then_some(raw.gid.get()),
        atime: (flags & flag::ATIME != 0).then_some(atime),
        mtime: (flags & flag::MTIME != 0).then_some(mtime),
    };
    let absent = attributes.mode.map_or(raw.mode.get(), |_| 0) == 0
        && attributes.uid.map_or(raw.uid.get(), |_| 0) == 0
        && attributes.gid.map_or(raw.gid.get(), |_| 0) == 0
        && attributes.atime.map_or(atime, |_| Timestamp::default()) == Timestamp::default()
        && attributes.mtime.map_or(mtime, |_| Timestamp::default()) == Timestamp::default();
    ensure(absent, "an attribute without its flag")?;
    Ok(attributes)
}
