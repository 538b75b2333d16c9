//! Why a file system cannot be made or opened.

use std::io;
use std::path::PathBuf;

use sietch_disk::OpenError as QueueError;
use sietch_disk::area::AreaError;
use sietch_fs::Fault;
use sietch_fs::digest::DigestError;
use sietch_fs::log::{MirrorError, RingError};
use sietch_fs::pool::{FormatError, MediaError, OpenError};

use super::undrained::Undrained;

/// Why a file system cannot be made or opened.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The description cannot be read or written.
    #[error("{}: {action}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What was being done.
        action: &'static str,
        /// Why it failed.
        source: io::Error,
    },
    /// The description is not one.
    #[error("{}: {cause}; restore it from a copy, or make the file system anew", path.display())]
    Description {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        cause: String,
    },
    /// A line of the description says something else than the media.
    #[error("{}: `{line}`: {fact}; {fix}", path.display())]
    Contradiction {
        /// The description.
        path: PathBuf,
        /// What it says.
        line: String,
        /// What is so.
        fact: String,
        /// What to do.
        fix: String,
    },
    /// The folder has a file system.
    #[error("{}: has a file system already; choose another folder, or remove that one", path.display())]
    Exists {
        /// The folder.
        path: PathBuf,
    },
    /// A medium's file.
    #[error(transparent)]
    Area(#[from] AreaError),
    /// A file that another user may have written.
    #[error(
        "{}: must belong to this user, with mode 0600 and one name; run as its owner, or remove it if it was put there \
         by another user",
        path.display()
    )]
    Foreign {
        /// The file.
        path: PathBuf,
    },
    /// The process that serves it.
    #[error("{}: {cause}; see `sietch fs serve`", path.display())]
    Service {
        /// Its socket.
        path: PathBuf,
        /// What is wrong.
        cause: String,
    },
    /// A medium's queue.
    #[error("{}: {source}", path.display())]
    Queue {
        /// The medium's file.
        path: PathBuf,
        /// Why.
        source: QueueError,
    },
    /// The media cannot be made a pool.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// The media are not the pool.
    #[error(transparent)]
    Pool(#[from] OpenError),
    /// The media cannot be changed.
    #[error(transparent)]
    Media(#[from] MediaError),
    /// It is open.
    #[error(
        "{}: is in use: {used}; unmount it, or end `sietch fs serve`, and run this again",
        path.display()
    )]
    InUse {
        /// The folder.
        path: PathBuf,
        /// What another process has open.
        used: AreaError,
    },
    /// It has no such medium.
    #[error("{}: has no medium {}; its media are {media}", path.display(), medium.display())]
    NoMedium {
        /// The folder.
        path: PathBuf,
        /// What was named.
        medium: PathBuf,
        /// The media that it has.
        media: String,
    },
    /// The other media cannot take what is on one.
    #[error(
        "{}: {left} bytes of data are on it, and the other media have room for {room} below their high mark; remove \
         files, make a medium larger, add one, or raise `high` of [migration] in fs.toml",
        path.display()
    )]
    NoRoomElsewhere {
        /// The medium's file.
        path: PathBuf,
        /// Bytes that are on it.
        left: u64,
        /// Bytes that the others take.
        room: u64,
    },
    /// Some data cannot leave a medium.
    #[error("{}: is not drained, and stays in use: {left}", path.display())]
    NotDrained {
        /// The medium's file.
        path: PathBuf,
        /// What is on it, and why.
        left: Box<Undrained>,
    },
    /// A medium that would break what was promised.
    #[error(
        "{}: `fsync` of this file system promises that data survive a loss of power, and a medium of class nvm may be memory that does not; add it as ssd or hdd, or make a new file system with it", path.display()
    )]
    Promise {
        /// The medium's file.
        path: PathBuf,
    },
    /// A size that a medium cannot have.
    #[error("{}: {cause}", path.display())]
    Size {
        /// The medium's file.
        path: PathBuf,
        /// Why not.
        cause: String,
    },
    /// A medium failed.
    #[error(transparent)]
    Fault(#[from] Fault),
    /// The log cannot be digested.
    #[error(transparent)]
    Digest(#[from] DigestError),
    /// The log's memory does not fit.
    #[error("the log {}: {source}", path.display())]
    Ring {
        /// The log's file.
        path: PathBuf,
        /// Why.
        source: RingError,
    },
    /// The log's copy on disk.
    #[error("the log {}: {source}", path.display())]
    Mirror {
        /// The log's file.
        path: PathBuf,
        /// Why.
        source: MirrorError,
    },
    /// The log has records for which there is no room.
    #[error(
        "the log {}: its next record needs {wanted} blocks, and there is no room for it; everything before it, and every \
         other log, is applied. Keep a copy of the file and fill it with zeros to go on without what follows",
        path.display()
    )]
    NoRoom {
        /// The log's file.
        path: PathBuf,
        /// Blocks.
        wanted: u64,
    },
    /// What users have cannot be stored.
    #[error("{}: has no room to store what users have; remove files and try again", path.display())]
    Uncounted {
        /// The folder.
        path: PathBuf,
    },
    /// The log has a record that cannot be applied.
    #[error(
        "the log {}: the record at {position} cannot be applied: {cause}; everything before it is applied. Keep a \
         copy of the file and fill it with zeros to go on without what follows",
        path.display()
    )]
    Log {
        /// The log's file.
        path: PathBuf,
        /// Where the record begins.
        position: u64,
        /// What is wrong with it.
        cause: String,
    },
    /// The description has another seed than the log.
    #[error(
        "the seed in fs.toml is not that of the log {}: it would look empty, and what only it has would be lost; correct the line `seed` from a copy of fs.toml",
        path.display()
    )]
    Seed {
        /// The log's file.
        path: PathBuf,
    },
}

impl StoreError {
    /// Whether another process has it open.
    pub fn is_busy(&self) -> bool {
        matches!(self, Self::Area(AreaError::Busy { .. }))
    }

    /// Whether it says that what is on a medium is damaged.
    pub fn is_damage(&self) -> bool {
        let damaged = |fault: &Fault| matches!(fault, Fault::Damaged { .. });
        match self {
            Self::Pool(OpenError::Superblocks { .. }) => true,
            Self::Pool(OpenError::Fault(fault)) | Self::Fault(fault) => damaged(fault),
            _ => false,
        }
    }
}
