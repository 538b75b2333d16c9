//! Takes a medium out of a file system that is not open.
//!
//! 1. The description says that the medium is leaving. A mount from then on goes on with it: new
//!    data go elsewhere, and its mover takes the others away.
//! 2. What the logs have is digested, and the [mover](sietch_fs::mover) takes all data to the other
//!    media: each move is copied, verified, flushed and one commit, so a crash loses nothing. How
//!    far it has come is in the tree.
//! 3. One commit takes the medium out of the table of the media. Then the description has it no
//!    more. Its file stays: it has old data, and belongs to no pool.
//! 4. If something cannot move, the medium stays, with what is left on it, and is as before. What
//!    cannot be read keeps nothing else from moving: it is named at the end
//!    ([`undrained`](super::undrained)).

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use sietch_disk::AreaQueue;
use sietch_fs::mover::{Mover, Now, Settings, Step};
use sietch_fs::pool::{Copier, MediaError, MediumUse};
use sietch_fs::{Digest, Digested};

use super::description::{Change, Description};
use super::error::StoreError;
use super::logs;
use super::media::Medium;
use super::media_change::{Locked, open_pool};
use super::recovery::{now, recover};
use super::undrained::{Faults, Undrained};

/// Bytes of a block.
const BLOCK_BYTES: u64 = sietch_fs::limits::BLOCK as u64;
/// No rate: nothing else uses the file system.
const RATE: u64 = u64::MAX >> 20;
/// Pauses in which nothing moved, after which there is no room.
const PAUSES: u32 = 8;

/// Takes the medium with the file `path` out of the file system in `folder`. `progress` gets the
/// bytes that are left on it. Returns how many bytes were moved.
///
/// # Errors
/// See [`StoreError`]. The medium is a part of the file system then, with the data that are left.
pub fn drain(folder: &Path, path: &Path, progress: &mut dyn FnMut(u64)) -> Result<u64, StoreError> {
    let mut locked = Locked::new(folder)?;
    let change = Change::Drain { path: path.to_owned() };
    if locked.made.as_ref() == Some(&change) {
        return Ok(0);
    }
    let place = locked.place(path)?;
    if place == 0 {
        return Err(MediaError::Home { medium: path.display().to_string() }.into());
    }
    let marks = locked.description.migration.unwrap_or_default().watermarks().unwrap_or_default();
    for slot in locked.pool.slots() {
        locked.pool.set_watermarks(slot, marks);
    }
    let used = has_room(path, place, &locked.pool.media_usage())?;
    logs::leave_taken_folder(folder, &mut locked.description)?;
    locked.remove_leftover(&change)?;
    locked.begin(change.clone())?;
    let Locked { description, media, pool, .. } = &mut locked;
    let slot = pool.slots()[place];
    let leaving = Description { change: Some(change), ..description.clone() };
    let moved = move_all(&leaving, media, (path, slot), progress).and_then(|()| {
        *pool = open_pool(media)?;
        pool.remove_medium(slot)?;
        Ok(())
    });
    match moved {
        Ok(()) => drop(locked.description.media.remove(place)),
        // What the pool has, the next command sees.
        Err(error @ (StoreError::Fault(_) | StoreError::Media(MediaError::Fault(_)))) => return Err(error),
        Err(error) => {
            locked.end()?;
            return Err(error);
        }
    }
    locked.end()?;
    Ok(used)
}

/// Refuses if the other media have no room for what is on one. Returns how many bytes that is.
fn has_room(path: &Path, place: usize, media: &[MediumUse]) -> Result<u64, StoreError> {
    let used = media.get(place).map_or(0, MediumUse::used);
    let others = media.iter().enumerate().filter(|(other, _)| *other != place);
    let room: u64 = others.map(|(_, medium)| medium.below_high()).sum();
    let (used, room) = (used * BLOCK_BYTES, room * BLOCK_BYTES);
    if used > room {
        return Err(StoreError::NoRoomElsewhere { path: path.to_owned(), left: used, room });
    }
    Ok(used)
}

/// Moves everything off the medium in a slot.
fn move_all(
    description: &Description,
    media: &[Medium],
    (path, slot): (&Path, usize),
    progress: &mut dyn FnMut(u64),
) -> Result<(), StoreError> {
    let members = || media.iter().map(Medium::member).collect::<Result<Vec<_>, _>>();
    let (mut digest, logs, _) = recover(members()?, description)?;
    drop(logs);
    let mut base = Digested::new(Copier::new(members()?, digest.root())?);
    let mut mover = Mover::new(Settings { rate: RATE, ..Settings::default() }, Arc::default());
    let left = |digest: &mut Digest<AreaQueue>| digest.pool().usage().get(slot).map_or(0, MediumUse::used);
    let (start, mut skipped, mut pauses, mut faults) = (Instant::now(), 0, 0, Faults::default());
    let mut last = left(&mut digest);
    while pauses < PAUSES {
        let elapsed = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let at = Now { nanoseconds: elapsed.saturating_add(skipped), time: now() };
        let step = mover.step(&mut base, &mut digest, at)?;
        faults.take(&mut mover);
        let after = left(&mut digest);
        if after != last {
            (last, pauses) = (after, 0);
            progress(after * BLOCK_BYTES);
        }
        match step {
            Step::More => {}
            Step::At(_) if last == 0 => break,
            // Nothing but this mover would make room meanwhile.
            Step::At(later) => {
                skipped = skipped.saturating_add(later.saturating_sub(at.nanoseconds));
                pauses += 1;
            }
            Step::Idle => break,
        }
    }
    mover.abandon(&mut digest);
    if last == 0 {
        return Ok(());
    }
    let others = digest.pool().usage().into_iter().filter(|medium| !medium.is_leaving);
    let room = others.map(|medium| medium.below_high()).sum::<u64>() * BLOCK_BYTES;
    drop(digest);
    let (path, bytes) = (path.to_owned(), last * BLOCK_BYTES);
    if faults.is_empty() {
        return Err(StoreError::NoRoomElsewhere { path, left: bytes, room });
    }
    let left = Undrained::new(&mut open_pool(media)?, slot, (bytes, room), (&mover, faults))?;
    Err(StoreError::NotDrained { path, left: Box::new(left) })
}

#[cfg(test)]
mod tests;
