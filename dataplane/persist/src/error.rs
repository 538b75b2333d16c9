//! What can go wrong with a log, a queue or a map, and what to do about it.
//!
//! 1. [`Failure`]: a request to the disk failed. The log stops for good, because the state of the
//!    device behind it is unknown.
//! 2. Refusals ([`AppendError`], [`QueueError`] and others): nothing has changed, and the caller
//!    may try again as the text says.
//! 3. Errors of opening and following: the area is damaged, of another version, or in use. Each
//!    names the place, and what is missing.

use std::io;
use std::sync::Arc;

/// The first request that failed. The log stops for good with it: the state of the device beyond is
/// unknown, and a failed write must never be taken back as if it had not happened.
#[derive(Clone, Debug, thiserror::Error)]
#[error(
    "log: {action} at offset {offset}: {source}; nothing is acknowledged any more: check the disk and restart"
)]
pub struct Failure {
    /// What was being done.
    pub action: &'static str,
    /// Where in the area, in bytes.
    pub offset: u64,
    /// Why it failed.
    pub source: Arc<io::Error>,
}

/// Why a payload was not appended. Nothing of it was.
#[derive(Clone, Debug, thiserror::Error)]
pub enum AppendError {
    /// The log has failed.
    #[error(transparent)]
    Failed(#[from] Failure),
    /// Too much is queued for the device; poll and try again.
    #[error("log: {queued} bytes wait for the disk; poll and try again")]
    Busy {
        /// Bytes appended and not yet passed to the device.
        queued: usize,
    },
    /// The area is full up to what the next snapshot needs.
    #[error(
        "log: full, {used} of {limit} usable bytes; delete data and let it compact, or make a larger area"
    )]
    Full {
        /// Bytes in use.
        used: u64,
        /// Bytes that log and snapshot may use together.
        limit: u64,
    },
    /// The payload is larger than [`crate::MAX_RECORD`] or than the area could ever hold.
    #[error("log: a record of {length} bytes is larger than the limit of {limit}")]
    TooLarge {
        /// Bytes of the payload.
        length: usize,
        /// Bytes allowed.
        limit: usize,
    },
}

/// Why a queue did not do something. Nothing has changed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum QueueError {
    /// Its log refused the record.
    #[error(transparent)]
    Append(#[from] AppendError),
    /// It holds as much as it may in memory.
    #[error(
        "queue: full, {entries} entries with {bytes} of {limit} bytes wait to be acknowledged; consume, or allow more memory"
    )]
    Full {
        /// Entries in the queue.
        entries: usize,
        /// Bytes of their payloads.
        bytes: usize,
        /// Bytes allowed.
        limit: usize,
    },
    /// The receipt is of an earlier delivery.
    #[error(
        "queue: entry {id} was acknowledged, or was delivered again since; drop what came of this delivery"
    )]
    Stale {
        /// The entry.
        id: u64,
    },
}

/// Why the head of a log was not given up.
#[derive(Clone, Debug, thiserror::Error)]
pub enum TruncateError {
    /// The log has failed.
    #[error(transparent)]
    Failed(#[from] Failure),
    /// A snapshot or a truncation is on its way.
    #[error("log: a snapshot or a truncation is in progress; poll until it is done")]
    InProgress,
    /// There is no such record yet.
    #[error("log: cannot begin at record {keep}, the last one is {last}")]
    Beyond {
        /// The first record to keep.
        keep: u64,
        /// The last record.
        last: u64,
    },
}

/// Why the size of a log was not changed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ResizeError {
    /// The log has failed.
    #[error(transparent)]
    Failed(#[from] Failure),
    /// Something else is on its way.
    #[error("log: a snapshot, a truncation or a change of size is in progress; poll until it is done")]
    InProgress,
    /// The area is not as large.
    #[error("log: cannot use {wanted} bytes of an area of {capacity}; make the area larger first")]
    Area {
        /// Bytes requested.
        wanted: u64,
        /// Bytes that the disk queue reaches.
        capacity: u64,
    },
    /// Fewer segments than a log must have.
    #[error("log: cannot shrink to {wanted} bytes, it needs {minimum} at least; copy it to a new area")]
    TooSmall {
        /// Bytes requested.
        wanted: u64,
        /// Fewest bytes.
        minimum: u64,
    },
    /// What the log holds would not fit.
    #[error(
        "log: cannot shrink to {wanted} bytes: {used} are in use, {limit} could be; delete data and compact, truncate, or keep {least} bytes"
    )]
    Live {
        /// Bytes requested.
        wanted: u64,
        /// Bytes that log and snapshot use.
        used: u64,
        /// Bytes that they could use in such an area.
        limit: u64,
        /// Fewest bytes as things are.
        least: u64,
    },
    /// The new queue has blocks of another size.
    #[error(
        "log: made of blocks of {formatted} bytes, the new disk queue has blocks of {block}; use a queue over the same area"
    )]
    Block {
        /// Block size of the queue.
        block: usize,
        /// Block size of the log.
        formatted: u32,
    },
}

/// Why a record could not be read.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ReadError {
    /// The log has failed.
    #[error(transparent)]
    Failed(#[from] Failure),
    /// The record was given up, by a truncation or a snapshot.
    #[error(
        "log: record {sequence} was given up, the log begins at {head}; read the snapshot, or go on from there"
    )]
    GivenUp {
        /// The requested record.
        sequence: u64,
        /// The first one there is.
        head: u64,
    },
    /// The device failed to read it, or what it read is not what was written.
    #[error("log: record {sequence} at offset {offset} cannot be read: {source}; check the disk")]
    Damaged {
        /// The record.
        sequence: u64,
        /// Where it should be, in bytes.
        offset: u64,
        /// Why.
        source: Arc<io::Error>,
    },
}

/// Why a step of a snapshot was refused.
#[derive(Clone, Debug, thiserror::Error)]
pub enum SnapshotError {
    /// The log has failed.
    #[error(transparent)]
    Failed(#[from] Failure),
    /// A snapshot is being made already.
    #[error("log: a snapshot is in progress; poll until it is done")]
    InProgress,
    /// No snapshot was begun.
    #[error("log: no snapshot was begun")]
    NotBegun,
    /// Too much is queued for the device; poll and try again.
    #[error("log: {queued} bytes of the snapshot wait for the disk; poll and try again")]
    Busy {
        /// Bytes appended and not yet passed to the device.
        queued: usize,
    },
    /// The snapshot is larger than what is left of the area: abort it.
    #[error("log: no room for the snapshot; it is larger than the records it stands for: make a larger area")]
    NoRoom,
    /// The payload is larger than [`crate::MAX_RECORD`].
    #[error("log: a snapshot record of {length} bytes is larger than the limit of {limit}")]
    TooLarge {
        /// Bytes of the payload.
        length: usize,
        /// Bytes allowed.
        limit: usize,
    },
}

/// Why an area could not be formatted.
#[derive(Debug, thiserror::Error)]
pub enum FormatError {
    /// Too small.
    #[error("log: an area of {capacity} bytes is too small; {minimum} are needed")]
    TooSmall {
        /// Bytes of the area.
        capacity: u64,
        /// Bytes needed.
        minimum: u64,
    },
    /// The requested segment size is not usable.
    #[error(
        "log: segments of {segment_bytes} bytes do not suit an area of {capacity} bytes: at least {minimum} segments of a multiple of 4096 bytes are needed"
    )]
    Segment {
        /// Bytes requested.
        segment_bytes: u32,
        /// Bytes of the area.
        capacity: u64,
        /// Segments needed.
        minimum: u32,
    },
    /// The device failed.
    #[error(transparent)]
    Failed(#[from] Failure),
}

/// Why a log could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The area was never formatted, or a crash cut its first formatting short. It holds no
    /// records.
    #[error("log: the area is not formatted")]
    NotFormatted,
    /// No copy of the superblock can be read, and the area has held a log.
    #[error(
        "log: all superblocks are corrupt or erased (at offsets 0, 4096, 8192 and 12288); restore the area from a backup, or format it and lose its data"
    )]
    Superblocks,
    /// The superblocks that can be read are older than records in the area: newer ones were lost.
    #[error(
        "log: the superblock names epoch {epoch}, but offset {offset} holds a record of epoch {found}: newer superblocks were lost; restore the area from a backup"
    )]
    SuperblockOutdated {
        /// Epoch in the superblock.
        epoch: u32,
        /// Epoch of the record.
        found: u32,
        /// Where the record is, in bytes.
        offset: u64,
    },
    /// A format of another version.
    #[error(
        "log: the area has format version {found}, this program knows {known}; use the program that wrote it"
    )]
    Version {
        /// Version in the superblock.
        found: u32,
        /// Version known.
        known: u32,
    },
    /// The area holds another structure.
    #[error("the area holds a {found}, not a {wanted}; open it as a {found}, or use another area")]
    Content {
        /// What it holds.
        found: String,
        /// What it was opened as.
        wanted: String,
    },
    /// The area holds a structure of another version.
    #[error(
        "{name}: the area has version {found} of it, this program knows {known}; use the program that wrote it"
    )]
    ContentVersion {
        /// The structure.
        name: String,
        /// Version in the superblock.
        found: u32,
        /// Version known.
        known: u32,
    },
    /// The device has changed since the area was formatted.
    #[error(
        "log: formatted in blocks of {formatted_block}, but the device has blocks of {block}; use the device it was made on"
    )]
    BlockSize {
        /// Block size at the time.
        formatted_block: u32,
        /// Block size now.
        block: u32,
    },
    /// The area is shorter than it was, and the log needs what is missing.
    #[error(
        "log: laid out over {formatted} bytes with records up to byte {needed}, but only {capacity} are there: the area was cut short, or newer superblocks were lost; give it at least {needed} bytes with what they held, and shrink the log before the area the next time"
    )]
    AreaTooSmall {
        /// Bytes of the area.
        capacity: u64,
        /// Bytes that the superblock names.
        formatted: u64,
        /// Bytes needed at least.
        needed: u64,
    },
    /// A record that was acknowledged is missing or damaged. This is no torn tail.
    #[error(
        "log: {what} {sequence} at offset {offset} is damaged or missing, and {evidence}; the disk has lost acknowledged data: restore the area from a backup"
    )]
    Corrupt {
        /// "record" or "snapshot record".
        what: &'static str,
        /// Its sequence.
        sequence: u64,
        /// Where it should be, in bytes.
        offset: u64,
        /// How it is known to have been there.
        evidence: String,
    },
    /// The application could not make sense of a record.
    #[error("log: the application refused record {sequence} at offset {offset}: {source}")]
    Rejected {
        /// Its sequence.
        sequence: u64,
        /// Where it is, in bytes.
        offset: u64,
        /// Why.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// All epochs or generations were used.
    #[error(
        "log: the area was opened {epoch} times, more than its format can count; copy its data to a new area"
    )]
    Worn {
        /// The last epoch.
        epoch: u32,
    },
    /// The device failed.
    #[error(transparent)]
    Failed(#[from] Failure),
}

/// Why a payload is no record of a type.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TypeError {
    /// Too short.
    #[error("a payload of {length} bytes is too short for a {name}")]
    Short {
        /// The type wanted.
        name: &'static str,
        /// Bytes of the payload.
        length: usize,
    },
    /// Of another type.
    #[error("a record of type {found} is no {name}, which is type {known}")]
    Type {
        /// The type wanted.
        name: &'static str,
        /// Its number in the payload.
        found: u32,
        /// The number of the type wanted.
        known: u32,
    },
    /// Of another version.
    #[error("a {name} of version {found}: this program knows version {known}; use the program that wrote it")]
    Version {
        /// The type wanted.
        name: &'static str,
        /// Version in the payload.
        found: u16,
        /// Version known.
        known: u16,
    },
}

/// Why a log cannot be followed.
#[derive(Debug, thiserror::Error)]
pub enum FollowError {
    /// It cannot be read.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The device failed.
    #[error(transparent)]
    Failed(#[from] Failure),
    /// The owner gave up records that were not delivered yet.
    #[error("log: follower at record {next}, but the log begins at {head} now; open it anew")]
    Behind {
        /// The record to be delivered next.
        next: u64,
        /// The first one there is.
        head: u64,
    },
    /// Records that were delivered did not survive a crash: they were never acknowledged.
    #[error("log: follower at record {next}, but after a crash the log goes on from {first}; open it anew")]
    Diverged {
        /// The record to be delivered next.
        next: u64,
        /// The first record of the owner after the crash.
        first: u64,
    },
    /// The log is laid out over more than the follower's disk queue reaches.
    #[error(
        "log: laid out over {formatted} bytes, but the follower reaches {capacity}; open it anew over the whole area"
    )]
    Grown {
        /// Bytes of the log.
        formatted: u64,
        /// Bytes of the disk queue.
        capacity: u64,
    },
    /// The area was formatted anew.
    #[error("log: the area was formatted anew; open it anew")]
    Replaced,
    /// The application could not make sense of a record.
    #[error("log: the follower refused record {sequence}: {source}")]
    Rejected {
        /// Its sequence.
        sequence: u64,
        /// Why.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}
