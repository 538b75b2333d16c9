//! When our addresses are announced.

use crate::limits::{ANNOUNCEMENTS, NEVER};

/// What is still to be said.
#[derive(Debug)]
pub(crate) struct Announcer {
    pub left: u8,
    /// When the next announcement is due.
    pub at: u64,
    /// Whether conflicts are answered at all, and from when on the next one is.
    pub defends: bool,
    pub defend_at: u64,
}

impl Announcer {
    pub(crate) const fn new(announce: bool) -> Self {
        let (left, at) = if announce { (ANNOUNCEMENTS, 0) } else { (0, NEVER) };
        Self { left, at, defends: announce, defend_at: 0 }
    }

    /// When something is to be said; part of what [`crate::neighbour::Neighbours`] has for a
    /// deadline.
    pub(crate) const fn deadline(&self) -> u64 {
        self.at
    }
}
