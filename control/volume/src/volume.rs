//! Opening a volume and changing it, crash-safe at every write.
//!
//! 1. *Format*: blank all superblock copies. Write an empty checkpoint to half 1. Flush both. Write
//!    both superblocks of generation 1, durably.
//! 2. *Open*: the newest superblock that validates names the half. Read its checkpoint and the
//!    records after it, each the direct successor of the one before. A record after the first gap,
//!    or a later one in the other half, proves that an acknowledged change is missing: refuse.
//!    Check that no two areas share a block. Then start a new epoch with a checkpoint (3), so that
//!    leftovers of a dead owner never count again.
//! 3. *Checkpoint*: write all areas to the other half; flush; write both superblocks of the next
//!    generation, durably. The journal starts after it.
//! 4. *Commit*: if the journal has no room, write a checkpoint first. Then write one record
//!    durably. After that the change is in effect.
//! 5. *Create and grow*: take free blocks, zero them, flush the zeros, commit. *Shrink and delete*:
//!    commit, then the blocks are free.
//! 6. Room in the metadata is checked before any write: a checkpoint of the new state, and one
//!    record, must fit a half.

use std::collections::BTreeMap;

use sietch_disk::DiskQueue;
use sietch_disk::superblock_copies::{self, Salvage, SuperblockCopies};

use crate::error::{Failure, FormatError, OpenError, VolumeError};
use crate::layout::{Area, Change, Checkpoint, Extent, Record, Superblock, VERSION, checkpoint_bytes};
use crate::limits::{
    BLOCK, HALF_RANGE, HALVES_START, MAX_AREAS, MAX_EXTENTS, MAX_NAME, MIN_CAPACITY, SUPERBLOCKS, USUAL_HALF,
};
use crate::space::Space;
use crate::transfer::{failure, flush, read, write, zero};

/// How a volume is formatted.
#[derive(Clone, Copy, Debug)]
pub struct FormatOptions {
    /// Distinguishes this volume from every other that the device has held or will hold: random.
    pub identity: u128,
    /// Bytes of a half; `None`: chosen by the capacity.
    pub half_bytes: Option<u64>,
}

/// Blocks taken for an area, and not yet given to it. [`Reservation::zero`] it, then
/// [`Volume::commit`] it, or [`Volume::release`] it.
#[derive(Debug)]
#[must_use = "its blocks stay taken until it is committed or released"]
pub struct Reservation {
    area: Area,
    fresh: Vec<Extent>,
}

/// A reservation whose blocks are zeros, durably: nothing of a previous owner is in them. There is
/// no other way to it than [`Reservation::zero`].
#[derive(Debug)]
#[must_use = "its blocks stay taken until it is committed"]
pub struct Zeroed(Reservation);

impl Reservation {
    /// Writes zeros over the blocks and flushes them. The queue must be idle; it may be another one
    /// over the same device than the metadata's.
    ///
    /// # Errors
    /// The first request that failed, and the reservation, to be released.
    pub fn zero<D: DiskQueue>(self, disk: &mut D) -> Result<Zeroed, (Failure, Self)> {
        match zero(disk, &self.fresh) {
            Ok(()) => Ok(Zeroed(self)),
            Err(failure) => Err((failure, self)),
        }
    }
}

/// See the module's account.
pub struct Volume {
    superblock: Superblock,
    areas: BTreeMap<u64, Area>,
    space: Space,
    next_id: u64,
    /// Of the last record.
    sequence: u64,
    /// The offset of the next record.
    position: u64,
    failed: Option<Failure>,
}

/// Bytes that the metadata of a volume of `capacity` bytes occupies in each half.
fn half_for(capacity: u64) -> u64 {
    // A small volume spends a sixteenth on each.
    (capacity / 16).next_multiple_of(BLOCK).clamp(HALF_RANGE.0, USUAL_HALF)
}

impl Volume {
    /// Formats all of `disk` as an empty volume. Earlier data is lost.
    ///
    /// # Errors
    /// See [`FormatError`].
    pub fn format<D: DiskQueue>(disk: &mut D, options: FormatOptions) -> Result<(), FormatError> {
        let capacity = disk.capacity() / BLOCK * BLOCK;
        let half_bytes = options.half_bytes.unwrap_or_else(|| half_for(capacity));
        let superblock =
            Superblock { generation: 1, identity: options.identity, capacity, half_bytes, epoch: 0 };
        let metadata = HALVES_START.saturating_add(half_bytes.saturating_mul(2));
        let allowed = (HALF_RANGE.0..=HALF_RANGE.1).contains(&half_bytes) && half_bytes.is_multiple_of(BLOCK);
        if !allowed || capacity < MIN_CAPACITY || capacity < metadata + 2 * BLOCK {
            let least = MIN_CAPACITY.max(metadata.saturating_add(2 * BLOCK));
            return Err(FormatError::TooSmall { capacity, metadata, least });
        }
        // The order does not matter. If an older volume's half becomes current while its newest
        // superblock is missing, `replay` detects that.
        for copy in 0..SUPERBLOCKS {
            write(disk, "blanking a superblock", copy * BLOCK, &[0; BLOCK as usize], false)?;
        }
        let empty = Checkpoint { epoch: 0, generation: 1, sequence: 0, next_id: 1, areas: Vec::new() };
        let at = superblock.half(1);
        write(disk, "writing a checkpoint", at, &empty.write(superblock.seed(), at), false)?;
        flush(disk)?;
        write_superblocks(disk, &superblock)?;
        Ok(())
    }

    /// Opens the volume on `disk`, and begins a new epoch of it.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open<D: DiskQueue>(disk: &mut D) -> Result<Self, OpenError> {
        let superblock = newest(disk)?;
        if superblock.capacity > disk.capacity() {
            return Err(OpenError::TooShort { wanted: superblock.capacity, found: disk.capacity() });
        }
        let mut volume = replay(disk, superblock)?;
        volume.superblock.epoch += 1;
        volume.checkpoint(disk)?;
        Ok(volume)
    }

    /// Bytes for areas in all.
    pub fn capacity(&self) -> u64 {
        self.superblock.data().1 * BLOCK
    }

    /// Bytes that no area has.
    pub fn free(&self) -> u64 {
        self.space.free() * BLOCK
    }

    /// Every area, in the order in which they were made.
    pub fn areas(&self) -> impl Iterator<Item = &Area> {
        self.areas.values()
    }

    /// The area `name`.
    pub fn find(&self, name: &str) -> Option<&Area> {
        self.areas.values().find(|area| area.name == name)
    }

    /// Why nothing can be changed any more, if so.
    pub fn failure(&self) -> Option<&Failure> {
        self.failed.as_ref()
    }

    /// Creates the area `name` of `size` zeroed bytes for user `uid`.
    ///
    /// # Errors
    /// See [`VolumeError`].
    pub fn create<D: DiskQueue>(
        &mut self,
        disk: &mut D,
        name: &str,
        uid: u32,
        size: u64,
    ) -> Result<(), VolumeError> {
        let reservation = self.reserve(name, uid, size)?;
        self.finish(disk, reservation)
    }

    /// Grows the area `name` with zeros, or shrinks it.
    ///
    /// # Errors
    /// See [`VolumeError`].
    pub fn resize<D: DiskQueue>(&mut self, disk: &mut D, name: &str, size: u64) -> Result<(), VolumeError> {
        let now = self.find(name).ok_or(VolumeError::Unknown)?.size();
        if size < now {
            return self.shrink(disk, name, size);
        }
        if size == now {
            return Ok(());
        }
        let reservation = self.reserve_growth(name, size)?;
        self.finish(disk, reservation)
    }

    fn finish<D: DiskQueue>(&mut self, disk: &mut D, reservation: Reservation) -> Result<(), VolumeError> {
        match reservation.zero(disk) {
            Ok(zeroed) => self.commit(disk, zeroed),
            Err((failure, reservation)) => {
                // Only zeros were written, to blocks of no area: the volume continues.
                self.release(reservation);
                Err(failure.into())
            }
        }
    }

    /// Takes blocks for a new area.
    ///
    /// # Errors
    /// See [`VolumeError`].
    pub fn reserve(&mut self, name: &str, uid: u32, size: u64) -> Result<Reservation, VolumeError> {
        self.check_working()?;
        if name.is_empty() || name.len() > MAX_NAME {
            return Err(VolumeError::Invalid { cause: "that is no name", fix: "take 1 to 32 letters" });
        }
        let blocks = whole(size)?;
        if self.find(name).is_some() {
            return Err(VolumeError::Exists);
        }
        if self.areas.len() >= MAX_AREAS {
            return Err(VolumeError::MetadataFull { areas: self.areas.len() });
        }
        let fresh = self.allocate(blocks, MAX_EXTENTS)?;
        let area = Area { id: self.next_id, uid, name: name.to_owned(), extents: fresh.clone() };
        if let Err(error) = self.check_metadata(1, fresh.len()) {
            self.release_extents(&fresh);
            return Err(error);
        }
        self.next_id += 1;
        Ok(Reservation { area, fresh })
    }

    /// Takes blocks for a longer area: directly behind it if they are free.
    ///
    /// # Errors
    /// See [`VolumeError`].
    pub fn reserve_growth(&mut self, name: &str, size: u64) -> Result<Reservation, VolumeError> {
        self.check_working()?;
        let blocks = whole(size)?;
        let mut area = self.find(name).ok_or(VolumeError::Unknown)?.clone();
        let now = area.size() / BLOCK;
        let more = blocks.checked_sub(now).filter(|more| *more > 0).ok_or(VolumeError::Invalid {
            cause: "that is not longer than it is",
            fix: "shrink it instead",
        })?;
        if more > self.space.free() {
            return Err(VolumeError::Full { requested: more * BLOCK, free: self.free() });
        }
        let mut fresh = Vec::new();
        let end = area.extents.last().map_or(0, |last| last.start + last.blocks);
        let behind = Extent { start: end, blocks: self.space.free_from(end, more) };
        if behind.blocks > 0 && self.space.take(behind) {
            fresh.push(behind);
        }
        let rest = more - fresh.iter().map(|extent| extent.blocks).sum::<u64>();
        if rest > 0 {
            match self.allocate(rest, MAX_EXTENTS.saturating_sub(area.extents.len())) {
                Ok(elsewhere) => fresh.extend(elsewhere),
                Err(error) => {
                    self.release_extents(&fresh);
                    return Err(error);
                }
            }
        }
        if let Err(error) = self.check_metadata(0, fresh.len()) {
            self.release_extents(&fresh);
            return Err(error);
        }
        for extent in &fresh {
            match area.extents.last_mut() {
                Some(last) if last.start + last.blocks == extent.start => last.blocks += extent.blocks,
                _ => area.extents.push(*extent),
            }
        }
        Ok(Reservation { area, fresh })
    }

    /// Assigns the blocks of a reservation to its area. The area must not have changed since.
    ///
    /// # Errors
    /// [`VolumeError::Failed`]; the volume then accepts no further change.
    pub fn commit<D: DiskQueue>(&mut self, disk: &mut D, zeroed: Zeroed) -> Result<(), VolumeError> {
        let Zeroed(Reservation { area, fresh }) = zeroed;
        let done = self.record(disk, Change::Put(area));
        if done.is_err() {
            // It is unknown whether the medium has the record. The blocks remain taken until the
            // next opening.
            drop(fresh);
        }
        done
    }

    /// Gives the blocks of `reservation` back.
    pub fn release(&mut self, reservation: Reservation) {
        self.release_extents(&reservation.fresh);
    }

    fn shrink<D: DiskQueue>(&mut self, disk: &mut D, name: &str, size: u64) -> Result<(), VolumeError> {
        self.check_working()?;
        let mut left = whole(size)?;
        let mut area = self.find(name).ok_or(VolumeError::Unknown)?.clone();
        let mut freed = Vec::new();
        area.extents.retain_mut(|extent| {
            let kept = extent.blocks.min(left);
            left -= kept;
            if kept < extent.blocks {
                freed.push(Extent { start: extent.start + kept, blocks: extent.blocks - kept });
            }
            extent.blocks = kept;
            kept > 0
        });
        self.record(disk, Change::Put(area))?;
        self.release_extents(&freed);
        Ok(())
    }

    /// Removes the area `name`. Its blocks are free, and are zeroed before they are assigned again.
    ///
    /// # Errors
    /// See [`VolumeError`].
    pub fn delete<D: DiskQueue>(&mut self, disk: &mut D, name: &str) -> Result<(), VolumeError> {
        self.check_working()?;
        let area = self.find(name).ok_or(VolumeError::Unknown)?.clone();
        self.record(disk, Change::Delete(area.id))?;
        self.release_extents(&area.extents);
        Ok(())
    }

    /// The extents of a range of the area `name`.
    ///
    /// # Errors
    /// [`VolumeError::Unknown`]; [`VolumeError::Invalid`]: not whole blocks inside it.
    pub fn range(&self, name: &str, offset: u64, length: u64) -> Result<Vec<Extent>, VolumeError> {
        let area = self.find(name).ok_or(VolumeError::Unknown)?;
        let end = offset.checked_add(length).filter(|end| *end <= area.size());
        let (Some(end), true) =
            (end, length > 0 && offset.is_multiple_of(BLOCK) && length.is_multiple_of(BLOCK))
        else {
            let cause = "that range is not whole blocks of the area";
            return Err(VolumeError::Invalid { cause, fix: "name blocks of 4096 bytes inside it" });
        };
        let (first, last) = (offset / BLOCK, end / BLOCK);
        let (mut at, mut pieces) = (0, Vec::new());
        for extent in &area.extents {
            let from = first.clamp(at, at + extent.blocks);
            let to = last.clamp(at, at + extent.blocks);
            if from < to {
                pieces.push(Extent { start: extent.start + from - at, blocks: to - from });
            }
            at += extent.blocks;
        }
        Ok(pieces)
    }

    /// Makes a range of the area `name` read as zeros, durably.
    ///
    /// # Errors
    /// See [`VolumeError`].
    pub fn trim<D: DiskQueue>(
        &mut self,
        disk: &mut D,
        name: &str,
        offset: u64,
        length: u64,
    ) -> Result<(), VolumeError> {
        Ok(zero(disk, &self.range(name, offset, length)?)?)
    }

    fn check_working(&self) -> Result<(), VolumeError> {
        match &self.failed {
            Some(failure) => Err(failure.clone().into()),
            None => Ok(()),
        }
    }

    fn allocate(&mut self, blocks: u64, pieces: usize) -> Result<Vec<Extent>, VolumeError> {
        let (requested, free) = (blocks.saturating_mul(BLOCK), self.free());
        self.space.allocate(blocks, pieces).ok_or(match requested > free {
            true => VolumeError::Full { requested, free },
            false => VolumeError::Fragmented { requested },
        })
    }

    fn release_extents(&mut self, extents: &[Extent]) {
        for extent in extents {
            self.space.release(*extent);
        }
    }

    /// Whether a checkpoint of all areas and so many more, and one record, fit a half.
    fn check_metadata(&self, areas: usize, extents: usize) -> Result<(), VolumeError> {
        let pieces: usize = self.areas.values().map(|area| area.extents.len()).sum();
        let bytes = checkpoint_bytes(self.areas.len() + areas, pieces + extents);
        if bytes + BLOCK <= self.superblock.half_bytes {
            return Ok(());
        }
        Err(VolumeError::MetadataFull { areas: self.areas.len() })
    }

    /// Puts a change into effect.
    fn record<D: DiskQueue>(&mut self, disk: &mut D, change: Change) -> Result<(), VolumeError> {
        self.check_working()?;
        let half = self.superblock.half(self.superblock.generation % 2);
        if self.position + BLOCK > half + self.superblock.half_bytes {
            self.checkpoint(disk)?;
        }
        let record = Record { epoch: self.superblock.epoch, sequence: self.sequence + 1, change };
        let bytes = record.write(self.superblock.seed(), self.position);
        let written = write(disk, "writing a record", self.position, &bytes, true);
        self.note(written)?;
        self.sequence += 1;
        self.position += BLOCK;
        apply(&mut self.areas, record.change);
        Ok(())
    }

    /// Writes all areas to the other half, and continues there.
    fn checkpoint<D: DiskQueue>(&mut self, disk: &mut D) -> Result<(), Failure> {
        let next = Superblock { generation: self.superblock.generation + 1, ..self.superblock };
        let at = next.half(next.generation % 2);
        let checkpoint = Checkpoint {
            epoch: next.epoch,
            generation: next.generation,
            sequence: self.sequence,
            next_id: self.next_id,
            areas: self.areas.values().cloned().collect(),
        };
        let bytes = checkpoint.write(next.seed(), at);
        let written = write(disk, "writing a checkpoint", at, &bytes, false)
            .and_then(|()| flush(disk))
            .and_then(|()| write_superblocks(disk, &next));
        self.note(written)?;
        self.superblock = next;
        self.position = at + bytes.len() as u64;
        Ok(())
    }

    /// The first failure stops the volume.
    fn note(&mut self, written: Result<(), Failure>) -> Result<(), Failure> {
        if let Err(failure) = &written {
            self.failed.get_or_insert_with(|| failure.clone());
        }
        written
    }
}

impl std::fmt::Debug for Volume {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Volume")
            .field("superblock", &self.superblock)
            .field("areas", &self.areas)
            .finish_non_exhaustive()
    }
}

/// Whole blocks of `size` bytes.
fn whole(size: u64) -> Result<u64, VolumeError> {
    if size == 0 || !size.is_multiple_of(BLOCK) {
        let cause = "that size is not a positive multiple of 4096 bytes";
        return Err(VolumeError::Invalid { cause, fix: "write it in MiB or GiB" });
    }
    Ok(size / BLOCK)
}

/// Writes both copies of a superblock, durably.
fn write_superblocks<D: DiskQueue>(disk: &mut D, superblock: &Superblock) -> Result<(), Failure> {
    let bytes = superblock.write();
    for index in 0..2 {
        let offset = Superblock::copy_offset(superblock.generation, index);
        write(disk, "writing a superblock", offset, &bytes, true)?;
    }
    Ok(())
}

/// The newest superblock that validates.
fn newest<D: DiskQueue>(disk: &mut D) -> Result<Superblock, OpenError> {
    if disk.capacity() < MIN_CAPACITY {
        return Err(OpenError::NotFormatted);
    }
    let failure = |offset, error| OpenError::Failed(failure("reading the superblocks", offset, error));
    let found = superblock_copies::read(disk, Superblock::read, |superblock| superblock.generation)
        .map_err(|error| failure(0, error))?;
    match found {
        // A later program may have left copies of ours behind.
        SuperblockCopies { version: Some(found), .. } => Err(OpenError::Version { found, known: VERSION }),
        SuperblockCopies { newest: Some(superblock), .. } => Ok(superblock),
        SuperblockCopies { unreadable: Some((offset, error)), .. } => Err(failure(offset, error)),
        SuperblockCopies { rotten: true, .. } => {
            Err(OpenError::Damaged { cause: "no superblock is whole", offset: 0 })
        }
        SuperblockCopies { .. } => Err(OpenError::NotFormatted),
    }
}

/// The state that the half of `superblock` holds.
fn replay<D: DiskQueue>(disk: &mut D, superblock: Superblock) -> Result<Volume, OpenError> {
    let (seed, length) = (superblock.seed(), superblock.half_bytes as usize);
    let current = superblock.generation % 2;
    let at = superblock.half(current);
    let half = read_half(disk, at, length)?;
    let damaged = |cause, offset| OpenError::Damaged { cause, offset };
    let (checkpoint, taken) = Checkpoint::read(seed, at, &half.bytes[..length])
        .filter(|(found, _)| found.generation == superblock.generation && found.epoch == superblock.epoch)
        .ok_or_else(|| unreadable(&half).unwrap_or(damaged("the checkpoint does not validate", at)))?;
    let mut areas: BTreeMap<u64, Area> = checkpoint.areas.into_iter().map(|area| (area.id, area)).collect();
    let (mut sequence, mut next_id) = (checkpoint.sequence, checkpoint.next_id);
    let mut position = at + taken as u64;
    let mut ended = false;
    for block in half.bytes[taken..length].chunks_exact(BLOCK as usize) {
        let record = Record::read(seed, position, block).filter(|record| record.epoch == superblock.epoch);
        match record {
            Some(record) if !ended && record.sequence == sequence + 1 => {
                sequence += 1;
                if let Change::Put(area) = &record.change {
                    next_id = next_id.max(area.id.saturating_add(1));
                }
                apply(&mut areas, record.change);
            }
            Some(record) if record.sequence > sequence => {
                return Err(damaged("a record before this one is missing", position));
            }
            _ => {
                // The very next record may be there, and have been acknowledged.
                let lost = !ended && half.unreadable.contains(&((position - at) as usize));
                if let Some(failed) = unreadable(&half).filter(|_| lost) {
                    return Err(failed);
                }
                ended = true;
            }
        }
        position += BLOCK;
    }
    // A record of a newer generation means that its superblocks were durable once.
    let other_at = superblock.half(1 - current);
    let other = read_half(disk, other_at, length)?.bytes;
    for (offset, block) in
        (other_at..).step_by(BLOCK as usize).zip(other[..length].chunks_exact(BLOCK as usize))
    {
        let newer = |record: &Record| record.epoch > superblock.epoch || record.sequence > sequence;
        if Record::read(seed, offset, block).as_ref().is_some_and(newer) {
            return Err(damaged("newer superblocks have been lost", offset));
        }
    }
    let space = occupy(&superblock, &areas).ok_or_else(|| damaged("two areas share a block", at))?;
    Ok(Volume { superblock, areas, space, next_id, sequence, position, failed: None })
}

/// A half, at once; or block by block if that fails, and then without those that cannot be read.
fn read_half<D: DiskQueue>(disk: &mut D, at: u64, length: usize) -> Result<Salvage, Failure> {
    let cause = match read(disk, at, length) {
        Ok(bytes) => return Ok(Salvage { bytes, unreadable: Vec::new(), cause: None }),
        Err(cause) => cause,
    };
    let salvage =
        superblock_copies::salvage(disk, at, length).map_err(|error| failure("reading", at, error))?;
    // If nothing can be read, it is not a block that is bad.
    let any = salvage.unreadable.len() * (BLOCK as usize) < length;
    if any { Ok(salvage) } else { Err(cause) }
}

/// The first block of a half that cannot be read.
fn unreadable(half: &Salvage) -> Option<OpenError> {
    let (offset, error) = half.cause.as_ref()?;
    Some(failure("reading", *offset, copy_of(error)).into())
}

/// The same error once more.
fn copy_of(error: &std::io::Error) -> std::io::Error {
    match error.raw_os_error() {
        Some(number) => std::io::Error::from_raw_os_error(number),
        None => std::io::Error::new(error.kind(), error.to_string()),
    }
}

fn apply(areas: &mut BTreeMap<u64, Area>, change: Change) {
    match change {
        Change::Put(area) => drop(areas.insert(area.id, area)),
        Change::Delete(id) => drop(areas.remove(&id)),
    }
}

/// The free blocks beside `areas`. `None` if two areas share a block or a name, or one is outside
/// the volume.
fn occupy(superblock: &Superblock, areas: &BTreeMap<u64, Area>) -> Option<Space> {
    let (first, blocks) = superblock.data();
    let mut space = Space::new(first, blocks);
    let mut names = std::collections::BTreeSet::new();
    for area in areas.values() {
        let named = !area.name.is_empty() && names.insert(&area.name);
        if !named || !area.extents.iter().all(|extent| space.take(*extent)) {
            return None;
        }
    }
    Some(space)
}
