//! Changes of the media of a file system that is not open: one grows, or one is added.
//!
//! 1. The files of the media are locked from the beginning to the end, so nothing else opens them.
//! 2. The order of a change: the description says what is begun; the file is made or gets longer,
//!    durably; one commit of the pool makes the change; the description says what the media are
//!    now.
//! 3. A crash leaves a change that is begun. The home says whether the pool has made it
//!    ([`sietch_fs::pool::belonging`]), so the file system opens all the same, with the media of
//!    before or those of after ([`media::open_all`]).
//! 4. Each command first settles what another one has left: it finishes in the description what the
//!    pool has made, and takes back what it has not ([`leftover`]). The same command, run again,
//!    then finishes.
//!
//! Records that are not digested stay in the log.

mod leftover;

use std::path::{Path, PathBuf};

use sietch_disk::area::{self, AreaError};
use sietch_disk::{AreaQueue, BLOCK};
use sietch_fs::Fault;
use sietch_fs::pool::limits::MAX_MEDIA;
use sietch_fs::pool::{MediaError, Pool};

use super::description::{Change, ClassName, Description, FILE, MediumDescription, judge_name, random};
use super::error::StoreError;
use super::media::{self, Medium};

/// How often the description is read again because another command has changed it meanwhile.
const TRIES: usize = 3;

/// A file system that is locked.
pub(super) struct Locked {
    folder: PathBuf,
    /// The media that the pool has.
    pub description: Description,
    pub media: Vec<Medium>,
    pub pool: Pool<AreaQueue>,
    /// The change that an earlier command had begun, if the pool has made it.
    pub made: Option<Change>,
    /// The change that an earlier command had begun, if the pool has not made it.
    pub begun: Option<Change>,
}

/// Makes the medium with the file `path` larger, so that it has `bytes`.
///
/// # Errors
/// See [`StoreError`]. The medium has its old size then, except after [`StoreError::Fault`]: the
/// same call finishes what was begun.
pub fn grow(folder: &Path, path: &Path, bytes: u64) -> Result<(), StoreError> {
    let mut locked = Locked::new(folder)?;
    let change = Change::Grow { path: path.to_owned(), bytes };
    if locked.made.as_ref() == Some(&change) {
        return Ok(());
    }
    let place = locked.place(path)?;
    let old = locked.description.media[place].bytes;
    let blocks = blocks(path, bytes)?;
    if bytes == old {
        // The same command has done it before.
        return Ok(());
    }
    if bytes < old {
        let cause = format!("has {old} bytes, and a medium only gets larger: name a size of more");
        return Err(StoreError::Size { path: path.to_owned(), cause });
    }
    locked.remove_leftover(&change)?;
    locked.begin(change)?;
    if let Err(error) = area::extend(path, old, bytes) {
        // If this fails too, the change stays begun, and the next command takes it back.
        area::cut(path, old)?;
        locked.end()?;
        return Err(error.into());
    }
    locked.media[place].set_bytes(bytes);
    locked.pool = open_pool(&locked.media)?;
    let slot = locked.pool.slots()[place];
    match locked.pool.grow_medium(slot, blocks) {
        Ok(_) => {}
        // The home has no room for an item more. Nothing was changed.
        Err(error @ MediaError::Fault(Fault::Full { .. })) => {
            area::cut(path, old)?;
            locked.end()?;
            return Err(error.into());
        }
        Err(error) => return Err(error.into()),
    }
    locked.description.media[place].bytes = bytes;
    locked.end()
}

/// Adds a medium. `progress` gets the bytes of its file that are written so far.
///
/// # Errors
/// See [`StoreError`]. The media are those of before then, except after [`StoreError::Fault`]: the
/// same call finishes what was begun.
pub fn add(
    folder: &Path,
    medium: &MediumDescription,
    progress: &mut dyn FnMut(u64),
) -> Result<(), StoreError> {
    let mut locked = Locked::new(folder)?;
    let change = Change::Add(medium.clone());
    if locked.made.as_ref() == Some(&change) || locked.description.media.contains(medium) {
        return Ok(());
    }
    blocks(&medium.path, medium.bytes)?;
    judge_name(folder, &locked.description.log.memory, &medium.path)?;
    if medium.class == ClassName::Nvm && locked.description.log.disk.is_some() {
        // Nothing says that what is on it survives a loss of power, as `fsync` promises here.
        return Err(StoreError::Promise { path: medium.path.clone() });
    }
    if locked.media.len() >= MAX_MEDIA {
        return Err(MediaError::Count { most: MAX_MEDIA }.into());
    }
    locked.remove_leftover(&change)?;
    // The file that the same command has made before.
    let is_made = locked.begun.as_ref() == Some(&change) && locked.is_leftover(&medium.path, medium)?;
    if !is_made && medium.path.symlink_metadata().is_ok() {
        return Err(AreaError::Exists { path: medium.path.clone() }.into());
    }
    locked.begin(change)?;
    let made = if is_made { Ok(()) } else { area::create(&medium.path, medium.bytes, progress) };
    if let Err(error) = made {
        locked.end()?;
        return Err(error.into());
    }
    let key = u64::from_le_bytes(random(folder)?);
    let opened = Medium::open(medium)?;
    if let Err(error) = opened.judge_model(&folder.join(FILE)) {
        drop(std::fs::remove_file(&medium.path));
        locked.end()?;
        return Err(error);
    }
    let slot = match locked.pool.add_medium(opened.member()?, key) {
        // Whether the pool has it, the next command sees.
        Err(MediaError::Fault(fault)) if !matches!(fault, Fault::Full { .. }) => return Err(fault.into()),
        Err(error) => {
            drop(std::fs::remove_file(&medium.path));
            locked.end()?;
            return Err(error.into());
        }
        Ok(slot) => slot,
    };
    let place = locked.pool.slots().iter().position(|other| *other == slot);
    locked.description.media.insert(place.unwrap_or(locked.media.len()), medium.clone());
    locked.end()
}

/// Blocks of a medium with so many bytes.
fn blocks(path: &Path, bytes: u64) -> Result<u32, StoreError> {
    let blocks = u32::try_from(bytes / BLOCK as u64).ok().filter(|_| bytes.is_multiple_of(BLOCK as u64));
    blocks.filter(|blocks| *blocks > 0).ok_or_else(|| StoreError::Size {
        path: path.to_owned(),
        cause: format!("cannot have {bytes} bytes: name a multiple of 4096, less than 16tib"),
    })
}

pub(super) fn open_pool(media: &[Medium]) -> Result<Pool<AreaQueue>, StoreError> {
    let members = media.iter().map(Medium::member).collect::<Result<Vec<_>, _>>()?;
    let mut pool = Pool::open(members)?;
    pool.readers_at(u64::MAX);
    Ok(pool)
}

impl Locked {
    /// Locks a file system, and settles what an earlier command has left.
    pub(super) fn new(folder: &Path) -> Result<Self, StoreError> {
        for _ in 0..TRIES {
            let written = Description::read(folder)?;
            let mut description = written.clone();
            let media = media::open_all(folder, &mut description).map_err(|error| match error {
                StoreError::Area(used @ AreaError::Busy { .. }) => {
                    StoreError::InUse { path: folder.to_owned(), used }
                }
                other => other,
            })?;
            // Another command may have ended in between.
            if Description::read(folder)? == written {
                return Self::settled(folder, description, media);
            }
        }
        let cause = "other commands change it all the time".to_owned();
        Err(StoreError::Description { path: folder.join(FILE), cause, fix: "run this again".to_owned() })
    }

    fn settled(
        folder: &Path,
        mut description: Description,
        mut media: Vec<Medium>,
    ) -> Result<Self, StoreError> {
        let mut pool = open_pool(&media)?;
        let change = description.change.take();
        let is_made = match &change {
            None => false,
            Some(Change::Add(medium)) => description.place(&medium.path).is_some(),
            Some(Change::Drain { path }) => description.place(path).is_none(),
            Some(Change::Grow { path, bytes }) => match description.place(path) {
                None => false,
                Some(place) => {
                    let has = u64::from(pool.blocks_of(pool.slots()[place])) * BLOCK as u64;
                    if has != description.media[place].bytes {
                        // Never below what the pool has, whatever an old description says.
                        drop(pool);
                        area::cut(path, has)?;
                        description.media[place].bytes = has;
                        media[place].set_bytes(has);
                        pool = open_pool(&media)?;
                    }
                    has == *bytes
                }
            },
        };
        let (made, begun) = if is_made { (change, None) } else { (None, change) };
        let locked = Self { folder: folder.to_owned(), description, media, pool, made, begun };
        if locked.made.is_some() || matches!(locked.begun, Some(Change::Grow { .. })) {
            locked.description.write(folder)?;
        }
        Ok(locked)
    }

    /// The place of the medium with this file.
    pub(super) fn place(&self, path: &Path) -> Result<usize, StoreError> {
        self.description.place(path).ok_or_else(|| {
            let media: Vec<String> =
                self.description.media.iter().map(|medium| medium.path.display().to_string()).collect();
            let (path, medium) = (self.folder.clone(), path.to_owned());
            StoreError::NoMedium { path, medium, media: media.join(", ") }
        })
    }

    /// Says in the description that a change is begun.
    pub(super) fn begin(&mut self, change: Change) -> Result<(), StoreError> {
        let begun = Description { change: Some(change), ..self.description.clone() };
        begun.write(&self.folder)
    }

    /// Says in the description what the media are, and that no change is under way.
    pub(super) fn end(&self) -> Result<(), StoreError> {
        self.description.write(&self.folder)
    }
}

#[cfg(test)]
mod tests;
