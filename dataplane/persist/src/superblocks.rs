//! Choosing the superblock of an area.
//!
//! 1. Of the copies that validate, the one with the highest generation counts ([`sietch_disk::copies`]).
//! 2. It is cut to the area, if that is shorter and all that the superblock names lies before its end.

use sietch_disk::copies::{self, Copies};
use sietch_disk::{Buffer, DiskQueue, Operation};

use crate::error::OpenError;
use crate::layout::{Superblock, VERSION, peek};
use crate::limits::{DATA_START, MIN_SEGMENTS, SUPERBLOCK};
use crate::scan::{execute, failure};

const READING: &str = "reading the superblocks";

/// A superblock and the offsets of damaged copies.
pub(crate) struct Found {
    /// As it is in the area; the size is that of the area, if the area is smaller.
    pub superblock: Superblock,
    pub damaged: Vec<u64>,
    /// The size that it names, in bytes.
    pub formatted: u64,
}

/// Reads all superblock copies and chooses one.
pub(crate) fn superblock<D: DiskQueue>(disk: &mut D) -> Result<Found, OpenError> {
    if disk.capacity() < DATA_START + SUPERBLOCK as u64 {
        return Err(OpenError::NotFormatted);
    }
    let copies = copies::read(disk, Superblock::read, |superblock| superblock.generation)
        .map_err(|e| failure(READING, 0, e))?;
    let Copies { newest, damaged, blank, version, unreadable, .. } = copies;
    if let Some(found) = version {
        return Err(OpenError::Version { found, known: VERSION });
    }
    let Some(mut superblock) = newest else {
        if let Some((offset, error)) = unreadable {
            return Err(failure(READING, offset, error).into());
        }
        // Formatting leaves blank copies until it is done, and the first segment is the first to be written.
        let first =
            Operation::Read { offset: DATA_START, length: SUPERBLOCK, buffer: Buffer::new(SUPERBLOCK) };
        let first = execute(disk, READING, DATA_START, first)?;
        let unused = peek(first.as_deref().unwrap_or_default()).is_none();
        return Err(if blank && unused { OpenError::NotFormatted } else { OpenError::Superblocks });
    };
    let block = disk.block_size() as u32;
    if superblock.block % block != 0 {
        return Err(OpenError::Geometry { formatted_block: superblock.block, block });
    }
    let formatted = superblock.capacity;
    fit(&mut superblock, disk.capacity())?;
    Ok(Found { superblock, damaged, formatted })
}

/// Cuts a superblock to an area of `capacity` bytes, if what it names lies there.
fn fit(superblock: &mut Superblock, capacity: u64) -> Result<(), OpenError> {
    let formatted = superblock.capacity;
    if formatted <= capacity {
        return Ok(());
    }
    let count = (capacity - DATA_START) / u64::from(superblock.segment_bytes);
    // No more than before, which has 32 bits.
    let count = superblock.segment_count.min(count as u32);
    let named = superblock.snapshot.map(|snapshot| snapshot.segment);
    let named = superblock.runs.iter().map(|run| run.segment).chain(named);
    let furthest = named.max().unwrap_or_default().max(MIN_SEGMENTS - 1);
    if furthest >= count {
        let needed = superblock.segment_start(furthest + 1);
        return Err(OpenError::Cut { capacity, formatted, needed });
    }
    (superblock.segment_count, superblock.capacity) = (count, capacity);
    Ok(())
}
