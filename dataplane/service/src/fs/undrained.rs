//! What a drain has left on its medium, and why: the files to restore, named by their paths.

use std::fmt;

use sietch_disk::AreaQueue;
use sietch_fs::Fault;
use sietch_fs::check::{FileOn, FilesOn, files_on};
use sietch_fs::mover::Mover;
use sietch_fs::pool::Pool;

/// Bytes of a block.
const BLOCK_BYTES: u64 = sietch_fs::limits::BLOCK as u64;
/// Files that are named.
const NAMED: usize = 20;

/// What went wrong while data moved.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Faults {
    /// The first block that could not be read.
    source: Option<String>,
    /// Other media that could not be written: one fault each.
    destinations: Vec<String>,
}

impl Faults {
    /// Takes those of the last step. A step fails either at its source or at its destination.
    pub(super) fn take(&mut self, mover: &mut Mover) {
        let found = mover.take_faults();
        if mover.failed_media() > self.destinations.len() {
            self.destinations.extend(found);
        } else if self.source.is_none() {
            self.source = found.into_iter().next();
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.source.is_none() && self.destinations.is_empty()
    }
}

/// See the module's account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Undrained {
    /// Bytes of data that are on the medium.
    pub bytes: u64,
    /// Bytes of them that can be read, as far as that is known.
    pub readable: u64,
    /// Bytes for which the other media have room below their high mark.
    pub room: u64,
    /// Files with data that cannot be read.
    pub unreadable: FilesOn,
    faults: Faults,
}

impl Undrained {
    /// `bytes` of data are left in a slot, and the other media have `room`.
    pub(super) fn new(
        pool: &mut Pool<AreaQueue>,
        slot: usize,
        (bytes, room): (u64, u64),
        (mover, faults): (&Mover, Faults),
    ) -> Result<Self, Fault> {
        let unreadable = match &faults.source {
            Some(_) => files_on(pool, slot, NAMED, &|file| mover.is_unreadable(file))?,
            None => FilesOn::default(),
        };
        let lost = mover.unreadable_blocks().map_or(bytes, |blocks| blocks * BLOCK_BYTES);
        Ok(Self { bytes, readable: bytes.saturating_sub(lost), room, unreadable, faults })
    }
}

impl fmt::Display for Undrained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes of data are left on it", self.bytes)?;
        if let Some(fault) = &self.faults.source {
            f.write_str(". Data of these files cannot be read:")?;
            for (at, FileOn { path, blocks }) in self.unreadable.files.iter().enumerate() {
                let comma = if at > 0 { "," } else { "" };
                write!(f, "{comma} {path} ({} bytes)", blocks * BLOCK_BYTES)?;
            }
            if self.unreadable.unlisted > 0 {
                write!(f, ", and {} files more", self.unreadable.unlisted)?;
            }
            write!(f, "; the first fault: {fault}. ")?;
            f.write_str("Restore these files from a backup, or remove them, and run this again")?;
        }
        for fault in &self.faults.destinations {
            write!(f, ". Another medium failed: {fault}; replace it")?;
        }
        if self.readable > 0 {
            let (readable, room) = (self.readable, self.room);
            write!(
                f,
                ". {readable} bytes can be read and have no place elsewhere: the other media have room for {room} below \
                 their high mark; make a medium larger, or add one, and run this again"
            )?;
        }
        Ok(())
    }
}
