//! Making a file system: the files of the media and of the log, the pool, and last the description.

use std::path::{Path, PathBuf};

use sietch_disk::area;
use sietch_fs::log::MIN_RING;
use sietch_fs::name::NameKey;
use sietch_fs::pool::{Class, FormatOptions, format};

use super::description::{
    ClassName, Description, Durability, FILE, LogDescription, MediumDescription, VERSION,
};
use super::error::StoreError;
use super::media;

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
    /// When an operation is to survive a loss of power, where the log has a copy on disk. `None`:
    /// after `fsync`.
    pub durability: Option<Durability>,
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
        // A description that is not whole, or not durable, goes first.
        drop(std::fs::remove_file(folder.join(FILE)));
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
    // Every user sees the name, and no other may know the seed.
    let name = format!("sietch-log-{:016x}", u64::from_le_bytes(random(folder)?));
    let log = LogDescription {
        memory: memory.join(&name),
        disk: (!is_nvm).then(|| folder.join("log")),
        bytes: options.log_bytes,
        seed,
    };
    Ok(Description { version: VERSION, media, log, durability: options.durability, migration: None })
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
