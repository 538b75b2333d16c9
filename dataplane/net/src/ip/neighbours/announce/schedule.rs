//! When our addresses are announced.

use crate::limits::{ANNOUNCEMENTS, NEVER};

/// Announcements that are still due.
#[derive(Debug)]
pub(crate) struct Announcer {
    pub left: u8,
    /// When the next announcement is due.
    pub at: u64,
    /// Whether conflicts are answered at all, and from when the next one may be.
    pub defends: bool,
    pub defend_at: u64,
}

impl Announcer {
    pub(crate) const fn new(announce: bool) -> Self {
        let (left, at) = if announce { (ANNOUNCEMENTS, 0) } else { (0, NEVER) };
        Self { left, at, defends: announce, defend_at: 0 }
    }

    /// When the next announcement is due; part of the deadline of
    /// [`crate::ip::neighbours::Neighbours`].
    pub(crate) const fn deadline(&self) -> u64 {
        self.at
    }
}
