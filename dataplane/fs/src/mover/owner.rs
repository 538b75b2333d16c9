//! What the mover and the owner of the pool ask of each other.
//!
//! The mover works on a thread of its own. The owner, who digests, does for it only what changes
//! the pool: some lookups in memory, and the flip.

use sietch_disk::DiskQueue;

use crate::digest::{Digest, DigestError, Flipped, Moved};
use crate::error::Fault;
use crate::inode::Timestamp;
use crate::pool::{MediumUse, Root, Run};

/// What the owner of the pool tells the mover.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    /// The current generation. It counts as needed until the next call of [`Owner::begin`] or
    /// [`Owner::end`].
    pub root: Root,
    /// How full each medium is.
    pub media: Vec<MediumUse>,
    /// Changes with every change of a pin.
    pub pin_changes: u64,
}

/// The owner of the pool, as the mover sees it.
///
/// # Errors
/// All methods: the pool is stopped.
pub trait Owner {
    /// The current state.
    fn begin(&mut self) -> Result<View, Fault>;

    /// The mover reads nothing now.
    fn end(&mut self);

    /// Sets a run aside ([`crate::pool::Pool::set_aside`]) for so many extents; `None`: there are
    /// no blocks, or no room for the changes of the flip.
    fn set_aside(&mut self, medium: u8, blocks: u32, extents: usize) -> Result<Option<Run>, Fault>;

    /// Ends that a run is set aside ([`crate::pool::Pool::end_aside`]).
    fn end_aside(&mut self, run: Run, is_good: bool);

    /// Makes copies current ([`Digest::flip`]); `None`: there is no room for that now.
    fn flip(&mut self, moves: Vec<Moved>) -> Result<Option<Flipped>, Fault>;
}

impl<D: DiskQueue> Owner for Digest<D> {
    fn begin(&mut self) -> Result<View, Fault> {
        let (root, pin_changes) = (self.root(), self.pin_changes());
        let pool = self.pool();
        pool.mover_at(root.generation);
        Ok(View { root, media: pool.usage(), pin_changes })
    }

    fn end(&mut self) {
        self.pool().mover_at(u64::MAX);
    }

    fn set_aside(&mut self, medium: u8, blocks: u32, extents: usize) -> Result<Option<Run>, Fault> {
        if self.may_flip(extents) { self.pool().set_aside(medium, blocks) } else { Ok(None) }
    }

    fn end_aside(&mut self, run: Run, is_good: bool) {
        self.pool().end_aside(run, is_good);
    }

    fn flip(&mut self, moves: Vec<Moved>) -> Result<Option<Flipped>, Fault> {
        match Self::flip(self, &moves) {
            Ok(flipped) => Ok(Some(flipped)),
            Err(DigestError::Held) => Ok(None),
            Err(DigestError::Fault(fault)) => Err(fault),
            Err(error @ (DigestError::Ring(_) | DigestError::Stopped | DigestError::Seed { .. })) => {
                Err(Fault::Stopped { medium: "the pool".to_owned(), cause: error.to_string() })
            }
        }
    }
}

/// The caller's clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// Nanoseconds of a clock that does not run backwards.
    pub nanoseconds: u64,
    /// The time of day.
    pub time: Timestamp,
}
