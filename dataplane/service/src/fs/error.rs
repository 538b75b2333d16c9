//! Why a file system cannot be made or opened.

use std::io;
use std::path::{Path, PathBuf};

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
    #[error("{}: {cause}; {fix}", path.display())]
    Description {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        cause: String,
        /// What to do.
        fix: String,
    },
    /// An option of a new file system.
    #[error("`{option}`: {cause}")]
    Option {
        /// As the command has it.
        option: &'static str,
        /// What is wrong, and what is right.
        cause: String,
    },
    /// A medium would have the name of another file of the file system.
    #[error(
        "{}: the file system itself uses this name (fs.toml, socket, log, log.N, and these with .partial); choose \
         another file for the medium",
        path.display()
    )]
    OwnName {
        /// The file.
        path: PathBuf,
    },
    /// Something else has the name of the socket.
    #[error(
        "{}: is no socket, and the service needs this name; move the file elsewhere, and if it is a medium, write its \
         new path in fs.toml",
        path.display()
    )]
    NoSocket {
        /// The file.
        path: PathBuf,
    },
    /// A file is not there.
    #[error(
        "{}: {what} is not there; restore it or mount its disk, or correct its path in fs.toml; \"Replace a disk\" in \
         docs/howto/file-system.md says what to do with a disk that failed",
        path.display()
    )]
    Missing {
        /// The file.
        path: PathBuf,
        /// What it is.
        what: String,
    },
    /// A file has another size than the description says.
    #[error(
        "{}: has {found} bytes, and by fs.toml it should have {wanted}. {} If only the line `bytes` of fs.toml was \
         changed, write `bytes = {found}` there",
        path.display(),
        wrong_size(path, *wanted, *found)
    )]
    WrongSize {
        /// The file.
        path: PathBuf,
        /// Bytes that it should have.
        wanted: u64,
        /// Bytes that it has.
        found: u64,
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
        "{}: belongs to user {owner}, with mode {mode:04o} and {names} names; it must belong to this user, {user}, with \
         mode 0600 and one name: {}",
        path.display(),
        fix_of_owner(path, (*user, *owner), *mode)
    )]
    Foreign {
        /// The file.
        path: PathBuf,
        /// The user of this process.
        user: u32,
        /// The user to whom it belongs.
        owner: u32,
        /// Its mode.
        mode: u32,
        /// How many names it has.
        names: u64,
    },
    /// A folder for the memory of the log that another user may have made.
    #[error(
        "{}: this folder for the memory of the log belongs to user {owner}, with mode {mode:04o}, and others may \
         exchange what is in it; move it away. If `fs.toml` has a `disk` of the log, the next mount makes the folder \
         from that",
        path.display()
    )]
    ForeignFolder {
        /// The folder.
        path: PathBuf,
        /// The user to whom it belongs.
        owner: u32,
        /// Its mode.
        mode: u32,
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
        "{}: is in use: {used}; unmount it, or end `sietch fs serve`, and run this again (under `sietch up`: \
         `umount DIR`, and `sietch reload` afterwards)",
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
         other log, is applied. Make a medium larger (`sietch fs grow`) or add one (`sietch fs add`), and run this again. \
         {START_ANEW}",
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
        "the log {}: the record at {position} cannot be applied: {cause}; everything before it is applied. If \
         fs.toml has a copy of the log on disk (`disk`), first move this file elsewhere and run this again: it is read \
         back from the copy. {START_ANEW}",
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

/// How to give up what is in a log. The copy keeps it.
const START_ANEW: &str = "Only if that does not help: move the file elsewhere, keep it, and make a new file of zeros in \
                          its place, of the same size and with mode 0600, to go on without what follows";

/// What to do about a file that has another size.
fn wrong_size(path: &Path, wanted: u64, found: u64) -> String {
    if found < wanted {
        return "It was cut short or replaced: restore it from a copy.".to_owned();
    }
    let path = path.display();
    format!("It was made longer or replaced: keep a copy of it, and cut it: `truncate -s {wanted} {path}`.")
}

/// What to do about a file that another user has, or may have written.
fn fix_of_owner(path: &Path, (user, owner): (u32, u32), mode: u32) -> String {
    let path = path.display();
    if owner != user {
        return format!(
            "run this as user {owner}, or, if you know that what it has is right, `chown {user} {path}` and \
             `chmod 600 {path}`"
        );
    }
    if mode & 0o077 != 0 {
        return format!("if no other user has changed it, `chmod 600 {path}`");
    }
    format!("find its other names (`find DIR -samefile {path}`) and remove those")
}

impl StoreError {
    /// A file that another user has, or may have written.
    pub(super) fn foreign(path: &Path, owner: u32, mode: u32, names: u64) -> Self {
        let (path, user) = (path.to_owned(), rustix::process::geteuid().as_raw());
        Self::Foreign { path, user, owner, mode: mode & 0o7777, names }
    }

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

#[cfg(test)]
mod tests;
