//! Copies of a superblock: which of them is current, although some cannot be read.
//!
//! 1. A format keeps two copies of each of two generations, a block of [`BLOCK`] bytes each from
//!    the beginning of the area. Generation `g` goes to copies `2 * (g % 2)` and the one behind it.
//!    So an update never touches the generation that it replaces, and one copy that is lost costs
//!    nothing.
//! 2. Each copy is read by itself. One that the device cannot read is one that does not validate:
//!    the others count, and the next superblocks that are written make it readable again.
//! 3. Where no copy validates and one could not be read, the content of the area is unknown. That
//!    is the read's error, never an empty area.

use std::io;
use std::time::Duration;

use crate::{BLOCK, Buffer, Completion, DiskQueue, Operation, SubmitError};

/// Copies of a superblock: two for each of two generations.
pub const COPIES: usize = 4;

/// How often a second is waited for one read: longer than any reset of a disk.
const PATIENCE: usize = 120;

/// Why a copy is no superblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyDamage {
    /// All zeros: never written.
    Blank,
    /// Torn or rotten.
    Damaged,
    /// Whole, but of a format that its reader does not know.
    Version(u32),
}

/// What the copies of an area say.
#[derive(Debug)]
pub struct SuperblockCopies<S> {
    /// The newest that validates.
    pub newest: Option<S>,
    /// Offsets of copies that do not validate, or could not be read.
    pub damaged: Vec<u64>,
    /// Whether a copy was never written.
    pub blank: bool,
    /// Whether a copy is torn or rotten.
    pub rotten: bool,
    /// A format that the reader does not know.
    pub version: Option<u32>,
    /// The first copy that could not be read, and why.
    pub unreadable: Option<(u64, io::Error)>,
}

/// Where copy `index` (0 or 1) of generation `generation` is, in bytes.
pub fn offset(generation: u64, index: u64) -> u64 {
    (2 * (generation % 2) + index) * BLOCK as u64
}

/// Reads all copies. `read` makes a superblock of one, `generation` says which.
///
/// # Errors
/// The queue itself is broken, or does not answer.
pub fn read<D: DiskQueue, S>(
    disk: &mut D,
    read: impl Fn(&[u8]) -> Result<S, CopyDamage>,
    generation: impl Fn(&S) -> u64,
) -> io::Result<SuperblockCopies<S>> {
    let mut copies = SuperblockCopies {
        newest: None,
        damaged: Vec::new(),
        blank: false,
        rotten: false,
        version: None,
        unreadable: None,
    };
    for offset in (0..COPIES as u64).map(|copy| copy * BLOCK as u64) {
        let damage = match read_block(disk, offset)? {
            Err(error) => {
                copies.unreadable.get_or_insert((offset, error));
                copies.damaged.push(offset);
                continue;
            }
            Ok(bytes) => match read(&bytes[..BLOCK]) {
                Ok(found) if copies.newest.as_ref().is_some_and(|b| generation(b) >= generation(&found)) => {
                    continue;
                }
                Ok(found) => {
                    copies.newest = Some(found);
                    continue;
                }
                Err(damage) => damage,
            },
        };
        copies.damaged.push(offset);
        match damage {
            CopyDamage::Blank => copies.blank = true,
            CopyDamage::Damaged => copies.rotten = true,
            CopyDamage::Version(version) => copies.version = Some(version),
        }
    }
    Ok(copies)
}

/// A range of which some blocks cannot be read.
#[derive(Debug)]
pub struct Salvage {
    /// Its bytes; those of blocks that cannot be read are zeros.
    pub bytes: Buffer,
    /// Where, from the start of the range, blocks of [`BLOCK`] bytes begin that cannot be read.
    pub unreadable: Vec<usize>,
    /// What the first of them failed with, and its place in the area.
    pub cause: Option<(u64, io::Error)>,
}

/// Reads `length` bytes, whole blocks, one by one, through an idle queue: for a range that could
/// not be read at once.
///
/// # Errors
/// As [`read`].
pub fn salvage<D: DiskQueue>(disk: &mut D, offset: u64, length: usize) -> io::Result<Salvage> {
    let mut salvage = Salvage { bytes: Buffer::new(length), unreadable: Vec::new(), cause: None };
    for at in (0..length).step_by(BLOCK) {
        match read_block(disk, offset + at as u64)? {
            Ok(block) => salvage.bytes[at..at + BLOCK].copy_from_slice(&block[..BLOCK]),
            Err(error) => {
                salvage.unreadable.push(at);
                salvage.cause.get_or_insert((offset + at as u64, error));
            }
        }
    }
    Ok(salvage)
}

/// One block, or why the device cannot read it.
fn read_block<D: DiskQueue>(disk: &mut D, offset: u64) -> io::Result<io::Result<Buffer>> {
    let read = Operation::Read { offset, length: BLOCK, buffer: Buffer::new(BLOCK) };
    disk.submit(0, read).map_err(|refusal| {
        io::Error::other(match refusal {
            SubmitError::Full(_) => "the disk queue has requests of another user in flight",
            SubmitError::OutOfRange(_) => "the disk queue refused a request inside its area",
        })
    })?;
    let mut completions = Vec::new();
    for _ in 0..PATIENCE {
        disk.wait(Duration::from_secs(1))?;
        disk.complete(&mut completions);
        if let Some(Completion { result, buffer, .. }) = completions.pop() {
            let lost = || io::Error::other("the queue kept the buffer");
            return Ok(result.and_then(|()| buffer.ok_or_else(lost)));
        }
    }
    Err(io::ErrorKind::TimedOut.into())
}
