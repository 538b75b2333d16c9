//! The description of a file system: `fs.toml` in its folder.
//!
//! 1. A folder with a description has a whole file system: it is written last.
//! 2. The first medium is the home of the pool: the fastest one.
//! 3. Only its owner may read or write it: it names files that are opened and made, and the seed of
//!    the log, with which data of a user could be made to look like records.
//! 4. The log is in memory that outlives the process: on persistent memory, or on a tmpfs. In the
//!    second case it has a copy on disk, which `fsync` makes durable.

use std::fmt;
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use rustix::process::geteuid;
use serde::{Deserialize, Serialize};
use sietch_disk::nvm::Model;
use sietch_fs::mover::Settings;
use sietch_fs::pool::{Class, Watermarks};

use super::error::StoreError;

/// Name of the description in the folder of a file system.
pub const FILE: &str = "fs.toml";
/// Name of the socket in the folder of a file system that is served.
pub(super) const SOCKET: &str = "socket";
/// Bytes of a description that are read: far more than one has.
const MAX_BYTES: u64 = 1 << 16;
/// Bytes of a block.
const BLOCK_BYTES: u64 = sietch_fs::limits::BLOCK as u64;
/// Version of the description.
pub(super) const VERSION: u32 = 1;

/// What a medium is made of, as people write it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ClassName {
    /// Persistent memory: a file with direct access, or one on a tmpfs that stands in for it.
    Nvm,
    /// A solid-state disk.
    Ssd,
    /// A rotating disk.
    Hdd,
}

impl From<Class> for ClassName {
    fn from(class: Class) -> Self {
        match class {
            Class::Nvm => Self::Nvm,
            Class::Ssd => Self::Ssd,
            Class::Hdd => Self::Hdd,
        }
    }
}

impl From<ClassName> for Class {
    fn from(name: ClassName) -> Self {
        match name {
            ClassName::Nvm => Self::Nvm,
            ClassName::Ssd => Self::Ssd,
            ClassName::Hdd => Self::Hdd,
        }
    }
}

impl fmt::Display for ClassName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nvm => "nvm",
            Self::Ssd => "ssd",
            Self::Hdd => "hdd",
        })
    }
}

/// When an operation survives a loss of power.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Durability {
    /// When it returns: the log is in persistent memory, or in memory that stands in for it, or
    /// each change waits for the copy of the log on disk.
    Operation,
    /// When `fsync` returns: the log has a copy on disk.
    Fsync,
}

/// What memory stands in for, and is made as slow as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ModelName {
    /// A rotating disk of 7200 rotations a minute.
    Rotating,
}

impl ModelName {
    pub(super) fn model(self) -> Model {
        match self {
            Self::Rotating => Model::ROTATING_DISK,
        }
    }
}

/// The figures.
impl fmt::Display for ModelName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.model().fmt(f)
    }
}

/// A medium.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MediumDescription {
    /// What it is made of.
    pub class: ClassName,
    /// Its file.
    pub path: PathBuf,
    /// Bytes.
    pub bytes: u64,
    /// For measurements, of a file of class hdd on a tmpfs: how slow it is made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<ModelName>,
}

/// A change of the media that was begun. It is in the description until it is finished, so that a
/// file system opens whatever a crash has left of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Change {
    /// A medium gets larger.
    Grow {
        /// Its file.
        path: PathBuf,
        /// Bytes that it will have.
        bytes: u64,
    },
    /// A medium joins.
    Add(MediumDescription),
    /// A medium leaves.
    Drain {
        /// Its file.
        path: PathBuf,
    },
}

impl Change {
    /// The file that it is about.
    pub(super) fn path(&self) -> &Path {
        match self {
            Self::Grow { path, .. } | Self::Drain { path } => path,
            Self::Add(medium) => &medium.path,
        }
    }

    /// The section of the description, on one line.
    pub(super) fn line(&self) -> String {
        let path = format!("path = {:?}", self.path());
        match self {
            Self::Grow { bytes, .. } => format!("[change] kind = \"grow\", {path}, bytes = {bytes}"),
            Self::Add(MediumDescription { class, bytes, .. }) => {
                format!("[change] kind = \"add\", class = \"{class}\", {path}, bytes = {bytes}")
            }
            Self::Drain { .. } => format!("[change] kind = \"drain\", {path}"),
        }
    }
}

/// The log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LogDescription {
    /// The file with its memory.
    pub memory: PathBuf,
    /// Its copy on disk.
    pub disk: Option<PathBuf>,
    /// Bytes of each.
    pub bytes: u64,
    /// Distinguishes its records from those of other logs.
    pub seed: u64,
}

/// How data move between media. The marks are parts of a medium in percent; see
/// [`Watermarks`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Migration {
    /// Bytes a second that are copied, at most; 0: nothing moves.
    pub rate: u64,
    /// Data leave a medium until so much of it is in use.
    pub low: u16,
    /// Data begin to leave a medium when so much of it is in use.
    pub high: u16,
    /// New data go elsewhere when so much of a medium is in use.
    pub hard: u16,
}

impl Default for Migration {
    fn default() -> Self {
        Self { rate: Settings::default().rate, low: 70, high: 85, hard: 95 }
    }
}

impl Migration {
    /// The marks, if they are in order.
    pub(super) fn watermarks(self) -> Option<Watermarks> {
        let part = |percent: u16| percent.checked_mul(10);
        Watermarks::new(part(self.low)?, part(self.high)?, part(self.hard)?)
    }
}

/// A file system.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Description {
    /// Version of this format.
    pub version: u32,
    /// The media, the home first.
    pub media: Vec<MediumDescription>,
    /// The log.
    pub log: LogDescription,
    /// When an operation is to survive a loss of power, where the log has a copy on disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub durability: Option<Durability>,
    /// How data move between media.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub migration: Option<Migration>,
    /// A change of the media that is not finished.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub change: Option<Change>,
}

/// Why a description cannot be read, and the line that is wrong.
fn unparsed(path: &Path, text: &str, error: &toml::de::Error) -> StoreError {
    let fix = match error.span() {
        Some(span) => {
            let before = text.as_bytes().iter().take(span.start);
            format!("correct line {}", before.filter(|byte| **byte == b'\n').count() + 1)
        }
        None => "correct it, or restore it from a copy".to_owned(),
    };
    StoreError::Description { path: path.to_owned(), cause: error.message().trim_end().to_owned(), fix }
}

/// Whether a file has a name that the file system uses itself: in its folder, or beside the memory
/// of its log.
fn is_own_name(folder: &Path, memory: &Path, path: &Path) -> bool {
    let real = |path: &Path| {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return path.to_owned() };
        parent.canonicalize().unwrap_or_else(|_| parent.to_owned()).join(name)
    };
    let (path, memory) = (real(path), real(memory));
    // All of them are text.
    let Some(text) = path.to_str() else { return false };
    let text = text.strip_suffix(".partial").unwrap_or(text);
    let text = text.strip_suffix(".loading").unwrap_or(text);
    let whole = match text.rsplit_once('.') {
        Some((name, number)) if !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()) => {
            name
        }
        _ => text,
    };
    let logs = [memory, real(&folder.join("log"))];
    let others = [FILE, SOCKET].map(|name| real(&folder.join(name)));
    logs.iter().any(|log| log == Path::new(whole)) || others.iter().any(|other| other == Path::new(text))
}

/// Refuses a medium with a name that the file system uses itself.
///
/// # Errors
/// [`StoreError::OwnName`].
pub(super) fn judge_name(folder: &Path, memory: &Path, path: &Path) -> Result<(), StoreError> {
    if is_own_name(folder, memory, path) {
        return Err(StoreError::OwnName { path: path.to_owned() });
    }
    Ok(())
}

/// Random bytes, for what no other user may know or foresee.
pub(super) fn random<const N: usize>(path: &Path) -> Result<[u8; N], StoreError> {
    let mut bytes = [0; N];
    let fail = |source| StoreError::Io { path: path.to_owned(), action: "draw random numbers", source };
    // Requests of up to 256 bytes are not cut short.
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .map_err(|errno| fail(errno.into()))?;
    Ok(bytes)
}

/// Reads a description that only this user may have written.
fn read_own(path: &Path) -> Result<String, StoreError> {
    let fail = |action, source| StoreError::Io { path: path.to_owned(), action, source };
    let of_another =
        |found: &std::fs::Metadata| StoreError::foreign(path, found.uid(), found.mode(), found.nlink());
    // A pipe would wait for its writer.
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
    let file = std::fs::File::options().read(true).custom_flags(flags).open(path);
    let file = file.map_err(|source| match (source.kind(), path.symlink_metadata()) {
        (ErrorKind::PermissionDenied, Ok(found)) => of_another(&found),
        _ => fail("read it", source),
    })?;
    let found = file.metadata().map_err(|source| fail("read its owner", source))?;
    let is_own = found.uid() == geteuid().as_raw() && found.mode() & 0o077 == 0 && found.is_file();
    if !is_own {
        return Err(of_another(&found));
    }
    let mut text = String::new();
    file.take(MAX_BYTES).read_to_string(&mut text).map_err(|source| fail("read it", source))?;
    Ok(text)
}

impl Description {
    /// Reads the description in `folder`.
    ///
    /// # Errors
    /// [`StoreError::Io`], [`StoreError::Description`].
    pub fn read(folder: &Path) -> Result<Self, StoreError> {
        let path = folder.join(FILE);
        let text = read_own(&path)?;
        let wrong = |cause: String| {
            let fix = "correct it, or restore it from a copy".to_owned();
            StoreError::Description { path: path.clone(), cause, fix }
        };
        let description: Self = toml::from_str(&text).map_err(|error| unparsed(&path, &text, &error))?;
        match description.version {
            VERSION if description.media.is_empty() => Err(wrong("it names no medium".to_owned())),
            VERSION if description.migration.unwrap_or_default().watermarks().is_none() => Err(wrong(
                "of [migration], low must be less than high, high less than hard, and hard at most 100"
                    .to_owned(),
            )),
            VERSION => description.judge(&path).map(|()| description),
            other => Err(wrong(format!("it has version {other}, and this program knows {VERSION}"))),
        }
    }

    /// The text of the file at `path`.
    pub(super) fn text(&self, path: &Path) -> Result<String, StoreError> {
        toml::to_string(self).map_err(|error| {
            let fix = "name the files by text in UTF-8".to_owned();
            StoreError::Description { path: path.to_owned(), cause: error.to_string(), fix }
        })
    }

    /// What the text says, if it is whole.
    pub(super) fn of_text(text: &str) -> Option<Self> {
        toml::from_str(text).ok()
    }

    /// Refuses what contradicts itself. `path` is that of the description.
    fn judge(&self, path: &Path) -> Result<(), StoreError> {
        for (at, medium) in self.media.iter().enumerate() {
            if self.place(&medium.path) != Some(at) {
                return Err(StoreError::Contradiction {
                    path: path.to_owned(),
                    line: format!("path = {:?}", medium.path),
                    fact: "two media have this file".to_owned(),
                    fix: "remove the second section, or name its own file".to_owned(),
                });
            }
        }
        let Some(change) = &self.change else { return Ok(()) };
        let fact = match (change, self.place(change.path())) {
            (Change::Grow { .. } | Change::Drain { .. }, None) => "no medium has this file",
            (Change::Drain { .. }, Some(0)) => {
                "this is the first medium, which has the tree and cannot leave"
            }
            (Change::Grow { bytes, .. }, Some(place)) if *bytes <= self.media[place].bytes => {
                "the medium has as many bytes, and a medium only gets larger"
            }
            (Change::Grow { bytes, .. }, _) if !bytes.is_multiple_of(BLOCK_BYTES) => {
                "the number is no multiple of 4096"
            }
            (Change::Add(_), Some(_)) => "a medium has this file already",
            _ => return Ok(()),
        };
        Err(Self::wrong_change(path, change, fact))
    }

    /// The error of a change that cannot have been begun.
    pub(super) fn wrong_change(path: &Path, change: &Change, fact: &str) -> StoreError {
        StoreError::Contradiction {
            path: path.to_owned(),
            line: change.line(),
            fact: format!("no command has begun this: {fact}"),
            fix: "remove the section [change], and run the command again that was meant".to_owned(),
        }
    }

    /// The place of the medium with this file.
    pub(super) fn place(&self, path: &Path) -> Option<usize> {
        self.media.iter().position(|medium| medium.path == path)
    }

    /// When an operation survives a loss of power.
    pub fn durability(&self) -> Durability {
        match self.log.disk {
            Some(_) => self.durability.unwrap_or(Durability::Fsync),
            None => Durability::Operation,
        }
    }

    /// Whether a front end makes each change durable before it returns.
    pub fn syncs_each(&self) -> bool {
        self.log.disk.is_some() && self.durability() == Durability::Operation
    }

    /// Writes the description into `folder`, durably.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub(super) fn write(&self, folder: &Path) -> Result<(), StoreError> {
        let path = folder.join(FILE);
        let fail = |action, source| StoreError::Io { path: path.clone(), action, source };
        let text = self.text(&path)?;
        let partial = folder.join(format!("{FILE}.partial"));
        // What a crash left, or another user put there.
        drop(std::fs::remove_file(&partial));
        let options = std::fs::File::options().write(true).create_new(true).mode(0o600).open(&partial);
        let mut file = options.map_err(|source| fail("create it", source))?;
        let written = file.write_all(text.as_bytes()).and_then(|()| file.sync_all());
        written.map_err(|source| fail("write it", source))?;
        std::fs::rename(&partial, &path).map_err(|source| fail("rename it", source))?;
        let folder = std::fs::File::open(folder).map_err(|source| fail("open its folder", source))?;
        folder.sync_all().map_err(|source| fail("flush its folder", source))
    }
}
