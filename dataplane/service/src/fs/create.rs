//! Making a file system: the files of the media and of the log, the pool, and last the description.
//! What is made before that is in a [`draft`].

mod draft;

use std::path::{Path, PathBuf};

use sietch_disk::area;
use sietch_fs::log::MIN_RING;
use sietch_fs::name::NameKey;
use sietch_fs::pool::{Class, FormatOptions, format};

use super::description::{
    ClassName, Description, Durability, FILE, LogDescription, MediumDescription, VERSION, judge_name, random,
};
use super::error::StoreError;
use super::{logs, media};
use draft::Draft;
pub use draft::Interrupt;
pub(super) use draft::forget;

const BLOCK: u64 = sietch_disk::BLOCK as u64;

/// What a new file system is made of.
#[derive(Clone, Debug)]
pub struct CreateOptions {
    /// The media: class, file, bytes.
    pub media: Vec<MediumDescription>,
    /// The folder for the memory of the log: on a tmpfs, or with direct access. `None`: beside the
    /// first medium of class nvm, or else `/dev/shm`.
    pub log_memory: Option<PathBuf>,
    /// Bytes of the log. `None`: what [`default_log_bytes`] says.
    pub log_bytes: Option<u64>,
    /// When an operation is to survive a loss of power, where the log has a copy on disk. `None`:
    /// after `fsync`.
    pub durability: Option<Durability>,
}

/// The log has this part of the fastest medium, so that making a small file system stays quick.
const MEDIUM_PART: u64 = 8;
/// It has at most this part of the room where its memory is, which other programs need too.
const MEMORY_PART: u64 = 16;
/// Bytes of the log, at least and at most, where nothing else is wanted. In the most, a busy mail
/// server writes for a second, and most of its files live for less.
const LOG_BYTES: (u64, u64) = (64 << 20, 128 << 20);

/// Bytes of the log of a file system whose fastest medium has `medium` bytes, with `room` bytes
/// where the memory of the log is.
fn default_log_bytes(medium: u64, room: u64) -> u64 {
    let bytes = (medium / MEDIUM_PART).min(room / MEMORY_PART).clamp(LOG_BYTES.0, LOG_BYTES.1);
    bytes / BLOCK * BLOCK
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
    create_interruptibly(folder, options, &Interrupt::default(), progress)
}

/// As [`create`], and another thread may interrupt it. What a creation left whose process was
/// killed is removed first.
///
/// # Errors
/// As there.
pub fn create_interruptibly(
    folder: &Path,
    options: &CreateOptions,
    interrupt: &Interrupt,
    progress: &mut dyn FnMut(u64),
) -> Result<Description, StoreError> {
    let fail = |action, source| StoreError::Io { path: folder.to_owned(), action, source };
    std::fs::create_dir_all(folder).map_err(|source| fail("create it", source))?;
    if folder.join(FILE).symlink_metadata().is_ok() {
        return Err(StoreError::Exists { path: folder.to_owned() });
    }
    let folder = folder.canonicalize().map_err(|source| fail("find its real name", source))?;
    let description = describe(&folder, options)?;
    let draft = Draft::begin(&folder, &description)?;
    let made = interrupt
        .begin(&folder, &description)
        .and_then(|()| make_files(&folder, &description, interrupt, progress));
    let ended = interrupt.end((&folder, &description), made);
    draft.end();
    ended.map(|()| description)
}

fn describe(folder: &Path, options: &CreateOptions) -> Result<Description, StoreError> {
    let wrong = |option, cause: &str| StoreError::Option { option, cause: cause.to_owned() };
    let mut media = options.media.clone();
    media.sort_by_key(|medium| Class::from(medium.class));
    let Some(home) = media.first() else {
        return Err(wrong("--nvm, --ssd, --hdd", "a file system needs a medium; give one of them"));
    };
    let seed = random::<8>(folder).map(u64::from_le_bytes)?;
    let is_nvm = home.class == ClassName::Nvm;
    let beside = if is_nvm { home.path.parent().map(Path::to_owned) } else { None };
    let memory = options.log_memory.clone().or(beside).unwrap_or_else(|| "/dev/shm".into());
    let bytes = match options.log_bytes {
        Some(bytes) => bytes,
        None => default_log_bytes(home.bytes, room(&memory)?),
    };
    if bytes < MIN_RING || !bytes.is_multiple_of(BLOCK) {
        return Err(wrong("--log", "the log must be a multiple of 4096 bytes, and 32768 (32kib) at least"));
    }
    // Every user sees the name, and no other may know the seed.
    let log = LogDescription {
        memory: logs::memory_in(&memory, u64::from_le_bytes(random(folder)?)),
        disk: (!is_nvm).then(|| folder.join("log")),
        bytes,
        seed,
    };
    media.iter().try_for_each(|medium| judge_name(folder, &log.memory, &medium.path))?;
    let durability = options.durability;
    Ok(Description { version: VERSION, media, log, durability, migration: None, change: None })
}

/// Bytes that are free in a folder.
fn room(folder: &Path) -> Result<u64, StoreError> {
    let fail = |source| StoreError::Io { path: folder.to_owned(), action: "read the free space", source };
    let found = rustix::fs::statvfs(folder).map_err(|errno| fail(errno.into()))?;
    Ok(found.f_bavail.saturating_mul(found.f_frsize))
}

fn make_files(
    folder: &Path,
    description: &Description,
    interrupt: &Interrupt,
    progress: &mut dyn FnMut(u64),
) -> Result<(), StoreError> {
    let mut done = 0;
    let log = &description.log;
    logs::make_folder(log)?;
    logs::collect(description);
    let files = description.media.iter().map(|medium| (&medium.path, medium.bytes));
    let logs = [Some(&log.memory), log.disk.as_ref()].into_iter().flatten().map(|path| (path, log.bytes));
    for (path, bytes) in files.chain(logs) {
        interrupt.go_on(folder)?;
        area::create(path, bytes, &mut |written| progress(done + written))?;
        done += bytes;
    }
    // An empty log.
    logs::note(folder, description).into_iter().for_each(logs::Noted::digested);
    let mut members = Vec::new();
    for medium in &description.media {
        let medium = media::Medium::open(medium)?;
        medium.judge_model(Path::new(FILE))?;
        members.push(medium.member()?);
    }
    // As a mount does: the log must be memory.
    let memory = media::open_own(&log.memory, log.bytes)?;
    drop(media::log_memory(memory, &log.memory, log.bytes)?);
    let identity = u128::from_le_bytes(random(&description.log.memory)?);
    let name_key = NameKey(random(&description.log.memory)?);
    Ok(format(&mut members, &FormatOptions { identity, name_key })?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_grows_with_the_medium_and_leaves_memory_to_others() {
        const GIB: u64 = 1 << 30;
        let cases = [
            (GIB / 64, 32 * GIB, 64 << 20),
            (GIB, 32 * GIB, 128 << 20),
            (20 * GIB, 32 * GIB, 128 << 20),
            (20 * GIB, 3 * GIB / 2, 96 << 20),
            (20 * GIB, GIB / 2, 64 << 20),
        ];
        for (medium, room, expected) in cases {
            assert_eq!(default_log_bytes(medium, room), expected, "{medium} bytes, room of {room}");
        }
        assert!(default_log_bytes(GIB + 12_345, 32 * GIB).is_multiple_of(BLOCK));
    }
}
