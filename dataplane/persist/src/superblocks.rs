//! Choosing the superblock of an area.
//!
//! 1. Of the copies that validate, the one with the highest generation counts
//!    ([`sietch_disk::superblock_copies`]).
//! 2. Where none validates and a copy is blank, the area was never used, or its beginning was
//!    erased. Formatting leaves blank copies until it is done, and no records. So the area counts
//!    as unused only if there is no record where a log has some ([`has_records`]).
//! 3. It is cut to the area, if that is shorter and all that the superblock names is before its
//!    end.

use sietch_disk::superblock_copies::{self, SuperblockCopies};
use sietch_disk::{Buffer, DiskQueue, Operation};

use crate::disk_request::{failure, refused, wait_for};
use crate::error::{Failure, OpenError};
use crate::layout::{ALIGN, Superblock, VERSION, peek};
use crate::limits::{
    BATCH, DATA_START, MIN_SEGMENTS, SEARCH_IN_FLIGHT, SEARCHED_BYTES, SEARCHED_HEADS, SUPERBLOCK,
    usual_segment,
};

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
pub(crate) fn newest<D: DiskQueue>(disk: &mut D) -> Result<Found, OpenError> {
    if disk.capacity() < DATA_START + SUPERBLOCK as u64 {
        return Err(OpenError::NotFormatted);
    }
    let copies = superblock_copies::read(disk, Superblock::read, |superblock| superblock.generation)
        .map_err(|e| failure(READING, 0, e))?;
    let SuperblockCopies { newest, damaged, blank, version, unreadable, .. } = copies;
    if let Some(found) = version {
        return Err(OpenError::Version { found, known: VERSION });
    }
    let Some(mut superblock) = newest else {
        if let Some((offset, error)) = unreadable {
            return Err(failure(READING, offset, error).into());
        }
        let unused = blank && !has_records(disk)?;
        return Err(if unused { OpenError::NotFormatted } else { OpenError::Superblocks });
    };
    let block = disk.block_size() as u32;
    if superblock.block % block != 0 {
        return Err(OpenError::BlockSize { formatted_block: superblock.block, block });
    }
    let formatted = superblock.capacity;
    fit(&mut superblock, disk.capacity())?;
    Ok(Found { superblock, damaged, formatted })
}

/// Whether records of a log are in the first segments, or at the head of another one.
fn has_records<D: DiskQueue>(disk: &mut D) -> Result<bool, Failure> {
    let capacity = disk.capacity();
    let closely = (DATA_START + SEARCHED_BYTES).min(capacity);
    let first = (DATA_START..closely).step_by(BATCH).map(|offset| (offset, BATCH as u64));
    let segment = usual_segment(capacity);
    let count = (capacity - DATA_START) / segment;
    let far = (count.saturating_sub(SEARCHED_HEADS) / SEARCHED_HEADS).max(1);
    let spread = (SEARCHED_HEADS..count).step_by(far as usize);
    let heads = (0..count.min(SEARCHED_HEADS)).chain(spread);
    let heads = heads.map(|number| (DATA_START + number * segment, SUPERBLOCK as u64));
    let mut reads = first.chain(heads.filter(|&(offset, _)| offset >= closely));
    let most = disk.depth().min(SEARCH_IN_FLIGHT);
    let (mut found, mut failed, mut completions) = (false, None, Vec::new());
    loop {
        while disk.in_flight() < most && !found && failed.is_none() {
            let Some((offset, length)) = reads.next() else { break };
            // Whole blocks of the largest kind: a log has no part of one at its end.
            let length = length.min(capacity - offset) as usize / SUPERBLOCK * SUPERBLOCK;
            if length > 0 {
                let read = Operation::Read { offset, length, buffer: Buffer::new(length) };
                disk.submit(offset, read).map_err(|e| refused(READING, offset, &e))?;
            }
        }
        if disk.in_flight() == 0 {
            return failed.map_or(Ok(found), Err);
        }
        wait_for(disk, READING, DATA_START, &mut completions)?;
        for completion in completions.drain(..) {
            match completion.result {
                Ok(_) => found |= completion.buffer.is_some_and(|buffer| holds_record(&buffer)),
                Err(error) => failed = Some(failure(READING, completion.token, error)),
            }
        }
    }
}

/// Whether a record begins somewhere in `bytes`.
fn holds_record(bytes: &[u8]) -> bool {
    (0..bytes.len()).step_by(ALIGN).any(|at| peek(&bytes[at..]).is_some())
}

/// Cuts a superblock to an area of `capacity` bytes, if what it names is there.
fn fit(superblock: &mut Superblock, capacity: u64) -> Result<(), OpenError> {
    let formatted = superblock.capacity;
    if formatted <= capacity {
        return Ok(());
    }
    let count = (capacity - DATA_START) / u64::from(superblock.segment_bytes);
    let count = superblock.segment_count.min(u32::try_from(count).unwrap_or(u32::MAX));
    let named = superblock.snapshot.map(|snapshot| snapshot.segment);
    let named = superblock.runs.iter().map(|run| run.segment).chain(named);
    let furthest = named.max().unwrap_or_default().max(MIN_SEGMENTS - 1);
    if furthest >= count {
        let needed = superblock.segment_start(furthest + 1);
        return Err(OpenError::AreaTooSmall { capacity, formatted, needed });
    }
    (superblock.segment_count, superblock.capacity) = (count, capacity);
    Ok(())
}
