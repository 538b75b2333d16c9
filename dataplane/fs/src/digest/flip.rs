//! Changes where data are, not what they are: the last step of a move.
//!
//! 1. The mover has copied extents to a run that was set aside, verified the copy and made it
//!    durable.
//! 2. What of an extent is still in the same blocks, with the same checksums, is replaced by the
//!    copy. What was written, cut or freed since stays as it is.
//! 3. The old blocks are freed by the same commit that names the new ones: a crash leaves the one
//!    or the other.

use sietch_disk::DiskQueue;

use super::{Digest, DigestError};
use crate::error::Fault;
use crate::inode::InodeNumber;
use crate::items::{self, Extent};
use crate::pool::Run;

/// Items that change where an extent moves: its own, and those of the free runs around its old
/// blocks; one more for the run of the new ones, or for an extent that was cut meanwhile.
const ITEMS_PER_MOVE: u64 = 4;

/// An extent that was copied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moved {
    /// Its file.
    pub inode: InodeNumber,
    /// What was copied.
    pub(crate) extent: Extent,
    /// Where the copy is: as many blocks.
    pub(crate) to: Run,
}

/// What became of a move.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flipped {
    /// Blocks that are elsewhere now.
    pub blocks: u64,
    /// Blocks that were changed or freed since they were copied.
    pub stale: u64,
}

impl<D: DiskQueue> Digest<D> {
    /// Makes copies current, and frees what they replace. The copies must be durable.
    ///
    /// # Errors
    /// [`DigestError::Held`]: there is no room for the changes now; nothing has changed. Otherwise
    /// as of [`Digest::digest`].
    pub fn flip(&mut self, moves: &[Moved]) -> Result<Flipped, DigestError> {
        if self.is_stopped {
            return Err(DigestError::Stopped);
        }
        if !self.may_flip(moves.len()) {
            return Err(DigestError::Held);
        }
        self.stopping(|digest| {
            // It must not fail half way, also where extents were cut to pieces meanwhile.
            digest.digested.store.use_reserve(true);
            let mut flipped = Flipped::default();
            for moved in moves {
                digest.flip_one(moved, &mut flipped)?;
            }
            if flipped.blocks > 0 {
                digest.digested.store.commit(digest.counters)?;
            }
            Ok(flipped)
        })
    }

    /// Whether so many extents can be flipped now.
    pub fn may_flip(&mut self, extents: usize) -> bool {
        let pool = &mut self.digested.store;
        pool.use_reserve(false);
        pool.has_room((extents as u64).saturating_mul(ITEMS_PER_MOVE), 0)
    }

    /// The media that have data of a file, by their places in the pool.
    ///
    /// # Errors
    /// A medium failed.
    pub fn media_of(&mut self, inode: InodeNumber) -> Result<Vec<u8>, Fault> {
        let (mut media, mut at) = (Vec::new(), 0);
        while let Some(found) = self.digested.extent_from(inode, at)? {
            media.push(found.run.medium);
            at = found.end();
        }
        media.sort_unstable();
        media.dedup();
        Ok(media)
    }

    fn flip_one(&mut self, moved: &Moved, flipped: &mut Flipped) -> Result<(), Fault> {
        let (copied, mut at) = (&moved.extent, moved.extent.first);
        let before = flipped.blocks;
        while at < copied.end()
            && let Some(found) = self.digested.extent_from(moved.inode, at)?
            && found.first < copied.end()
        {
            let (from, end) = (found.first.max(copied.first), found.end().min(copied.end()));
            at = end;
            if found.part(from, end) != copied.part(from, end) {
                continue;
            }
            // An extent has EXTENT_BLOCKS blocks at most.
            let (skip, blocks) = ((from - copied.first) as u32, (end - from) as u32);
            let to = Run { start: moved.to.start + skip, blocks, ..moved.to };
            self.replace(moved.inode, &found, &Extent { run: to, ..found.part(from, end) })?;
            flipped.blocks += u64::from(blocks);
        }
        flipped.stale += u64::from(moved.to.blocks) - (flipped.blocks - before);
        Ok(())
    }

    /// Puts `new` in the place of a part of `old`, which is freed.
    fn replace(&mut self, inode: InodeNumber, old: &Extent, new: &Extent) -> Result<(), Fault> {
        let store = &mut self.digested.store;
        let mut insert = |extent: &Extent| {
            store.insert(items::extent_key(inode, extent.first), &items::write_extent(extent))
        };
        if old.first < new.first {
            insert(&old.part(old.first, new.first))?;
        }
        insert(new)?;
        if new.end() < old.end() {
            insert(&old.part(new.end(), old.end()))?;
        }
        self.digested.store.use_aside(new.run)?;
        self.digested.store.free(old.part(new.first, new.end()).run)
    }
}
