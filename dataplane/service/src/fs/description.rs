//! The description of a file system: `fs.toml` in its folder.
//!
//! 1. [`create`] makes the files of the media and of the log, formats the pool, and writes the
//!    description last. So a folder with a description has a whole file system.
//! 2. The first medium is the home of the pool: the fastest one.
//! 3. The log is in memory that outlives the process: on persistent memory, or on a tmpfs. In the
//!    second case it has a copy on disk, which `fsync` makes durable.

use std::fmt;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sietch_disk::area;
use sietch_fs::log::MIN_RING;
use sietch_fs::name::NameKey;
use sietch_fs::pool::{Class, FormatOptions, format};

use super::error::StoreError;
use super::media;

/// Name of the description in the folder of a file system.
pub const FILE: &str = "fs.toml";
/// Version of the description.
const VERSION: u32 = 1;
/// Bytes of a log without other wishes: at a gigabyte a second, a sixteenth of a second.
pub const DEFAULT_LOG: u64 = 64 << 20;

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
    /// When it returns: the log is in persistent memory, or in memory that stands in for it.
    Operation,
    /// When `fsync` returns: the log has a copy on disk.
    Fsync,
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
}

impl Description {
    /// Reads the description in `folder`.
    ///
    /// # Errors
    /// [`StoreError::Io`], [`StoreError::Description`].
    pub fn read(folder: &Path) -> Result<Self, StoreError> {
        let path = folder.join(FILE);
        let text = std::fs::read_to_string(&path).map_err(|source| StoreError::Io {
            path: path.clone(),
            action: "read it",
            source,
        })?;
        let wrong = |cause: String| StoreError::Description { path: path.clone(), cause };
        let description: Self = toml::from_str(&text).map_err(|error| wrong(error.to_string()))?;
        match description.version {
            VERSION if description.media.is_empty() => Err(wrong("it names no medium".to_owned())),
            VERSION => Ok(description),
            other => Err(wrong(format!("it has version {other}, and this program knows {VERSION}"))),
        }
    }

    /// When an operation survives a loss of power.
    pub fn durability(&self) -> Durability {
        if self.log.disk.is_some() { Durability::Fsync } else { Durability::Operation }
    }

    fn write(&self, folder: &Path) -> Result<(), StoreError> {
        let path = folder.join(FILE);
        let fail = |action, source| StoreError::Io { path: path.clone(), action, source };
        let text = toml::to_string(self)
            .map_err(|error| StoreError::Description { path: path.clone(), cause: error.to_string() })?;
        let partial = folder.join(format!("{FILE}.partial"));
        let mut file = std::fs::File::create(&partial).map_err(|source| fail("create it", source))?;
        let written = file.write_all(text.as_bytes()).and_then(|()| file.sync_all());
        written.map_err(|source| fail("write it", source))?;
        std::fs::rename(&partial, &path).map_err(|source| fail("rename it", source))?;
        let folder = std::fs::File::open(folder).map_err(|source| fail("open its folder", source))?;
        folder.sync_all().map_err(|source| fail("flush its folder", source))
    }
}

/// What a new file system is made of.
#[derive(Clone, Debug)]
pub struct CreateOptions {
    /// The media: class, file, bytes.
    pub media: Vec<MediumDescription>,
    /// The folder for the memory of the log: on a tmpfs, or with direct access. `None`: beside the
    /// first medium of class nvm, or else `/dev/shm`.
    pub log_memory: Option<PathBuf>,
    /// Bytes of the log.
    pub log_bytes: u64,
}

/// Makes a file system in `folder`, which is created if it is not there. `progress` gets the bytes
/// written so far.
///
/// # Errors
/// See [`StoreError`]. Files that were made before it failed are removed.
pub fn create(
    folder: &Path,
    options: &CreateOptions,
    progress: &mut dyn FnMut(u64),
) -> Result<Description, StoreError> {
    let fail = |action, source| StoreError::Io { path: folder.to_owned(), action, source };
    std::fs::create_dir_all(folder).map_err(|source| fail("create it", source))?;
    if folder.join(FILE).symlink_metadata().is_ok() {
        return Err(StoreError::Exists { path: folder.to_owned() });
    }
    let folder = folder.canonicalize().map_err(|source| fail("find its real name", source))?;
    let description = describe(&folder, options)?;
    let mut made = Vec::new();
    let result = make_files(&description, &mut made, progress).and_then(|()| description.write(&folder));
    if result.is_err() {
        for path in made {
            // The first error is the one to report; a file that is not there is no loss.
            drop(std::fs::remove_file(path));
        }
    }
    result.map(|()| description)
}

fn describe(folder: &Path, options: &CreateOptions) -> Result<Description, StoreError> {
    let wrong = |cause: &str| StoreError::Description { path: folder.join(FILE), cause: cause.to_owned() };
    let mut media = options.media.clone();
    media.sort_by_key(|medium| Class::from(medium.class));
    let Some(home) = media.first() else { return Err(wrong("no medium is given")) };
    if options.log_bytes < MIN_RING || !options.log_bytes.is_multiple_of(sietch_disk::BLOCK as u64) {
        return Err(wrong("the log must be a multiple of 4096 bytes, and 32768 at least"));
    }
    let seed = random::<8>(folder).map(u64::from_le_bytes)?;
    let is_nvm = home.class == ClassName::Nvm;
    let beside = if is_nvm { home.path.parent().map(Path::to_owned) } else { None };
    let memory = options.log_memory.clone().or(beside).unwrap_or_else(|| "/dev/shm".into());
    let name = format!("sietch-log-{seed:016x}");
    let log = LogDescription {
        memory: memory.join(&name),
        disk: (!is_nvm).then(|| folder.join("log")),
        bytes: options.log_bytes,
        seed,
    };
    Ok(Description { version: VERSION, media, log })
}

fn random<const N: usize>(path: &Path) -> Result<[u8; N], StoreError> {
    let mut bytes = [0; N];
    let fail = |source| StoreError::Io { path: path.to_owned(), action: "draw random numbers", source };
    // Requests of up to 256 bytes are not cut short.
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .map_err(|errno| fail(errno.into()))?;
    Ok(bytes)
}

fn make_files(
    description: &Description,
    made: &mut Vec<PathBuf>,
    progress: &mut dyn FnMut(u64),
) -> Result<(), StoreError> {
    let mut done = 0;
    let log = &description.log;
    let files = description.media.iter().map(|medium| (&medium.path, medium.bytes));
    let logs = [Some(&log.memory), log.disk.as_ref()].into_iter().flatten().map(|path| (path, log.bytes));
    for (path, bytes) in files.chain(logs) {
        area::create(path, bytes, &mut |written| progress(done + written))?;
        made.push(path.clone());
        done += bytes;
    }
    let mut members = Vec::new();
    for medium in &description.media {
        members.push(media::Medium::open(medium)?.member()?);
    }
    let identity = u128::from_le_bytes(random(&description.log.memory)?);
    let name_key = NameKey(random(&description.log.memory)?);
    Ok(format(&mut members, &FormatOptions { identity, name_key })?)
}
