//! Why a backup cannot be made, read or restored.

use std::io;

use sietch::persist::{FollowError, FormatError, OpenError};

use crate::data::journal::ReplayError;

/// Why a backup cannot be made, read or restored. Each message has its fix.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    /// The log of the store cannot be read.
    #[error("the log of the area: {0}; `sietch kv check` says what is wrong with it")]
    Follow(#[source] FollowError),
    /// The area cannot be reached.
    #[error("the area: {0}; see `sietch vsa list` and the daemon's log")]
    Area(String),
    /// The store drops records faster than they can be read.
    #[error("the store replaced its log {attempts} times before it was read; try again when it writes less")]
    TooFast {
        /// How often it was tried.
        attempts: u32,
    },
    /// A record of the log is damaged.
    #[error("the log of the area: {0}; `sietch kv check` says what is wrong with it")]
    Replay(#[source] ReplayError),
    /// The backup cannot be written.
    #[error("writing the backup: {0}; what was written is no backup")]
    Write(#[source] io::Error),
    /// The backup cannot be read.
    #[error("reading the backup: {0}")]
    Read(#[source] io::Error),
    /// The file is something else.
    #[error("this is no backup of a store; name a file that `sietch kv backup` wrote")]
    NoBackup,
    /// A newer Sietch wrote it.
    #[error(
        "the backup has version {found}, and this program knows version {known}; use the program that wrote it"
    )]
    Version {
        /// Its version.
        found: u32,
        /// That of this program.
        known: u32,
    },
    /// Bytes are not as they were written.
    #[error("the backup is damaged at offset {offset}; nothing was restored; use another copy of it")]
    Checksum {
        /// The place in the file.
        offset: u64,
    },
    /// It ends early.
    #[error("the backup was cut short at offset {offset}; nothing was restored; use a whole copy of it")]
    Truncated {
        /// The place in the file.
        offset: u64,
    },
    /// Something follows its end.
    #[error(
        "something follows the end of the backup at offset {offset}; nothing was restored; use a copy of it alone"
    )]
    Trailing {
        /// The place in the file.
        offset: u64,
    },
    /// A record with a right checksum that no backup has.
    #[error(
        "the backup holds at offset {offset} what no store has written: {}; nothing was restored",
        .cause.reason()
    )]
    Content {
        /// The place in the file.
        offset: u64,
        /// What is wrong.
        cause: ReplayError,
    },
    /// It does not hold what it says.
    #[error("the backup holds {found} keys and says {promised}; nothing was restored")]
    Keys {
        /// Keys in it.
        found: u64,
        /// Keys in its header.
        promised: u64,
    },
    /// The area has data.
    #[error("the area has {keys} keys already; `--replace` restores all the same, and they are lost")]
    NotEmpty {
        /// Keys in it.
        keys: u64,
    },
    /// The area has no room.
    #[error(
        "the area of {capacity} bytes has no room for the backup; it is as it was; make it larger with `sietch vsa resize`"
    )]
    NoRoom {
        /// Bytes of the area.
        capacity: u64,
    },
    /// The area is damaged.
    #[error("the area: {0}; `--replace` restores all the same, and what can still be read there is lost")]
    Damaged(#[source] OpenError),
    /// The area cannot be formatted.
    #[error("the area: {0}")]
    Format(#[source] FormatError),
    /// The log cannot be closed.
    #[error("the area: {0}; check the disk, and restore again")]
    Close(#[source] sietch::persist::Failure),
}
