//! How often data are read: a frequency sketch (a count-min sketch whose counts age, as that of
//! TinyLFU, Einziger et al. 2017).
//!
//! 1. A reader adds one to the counts of a *region* of a file: [`REGION`] blocks. That is four
//!    bytes of memory that all readers share, and no write to a medium.
//! 2. The heat of a region is the least of its counts. Other regions may have the same counts, so
//!    it may be too high, and never is too low for what was counted.
//! 3. [`Heat::age`] halves all counts. So a region that is not read any more is cold after some
//!    rounds.
//!
//! Counts of two readers at once may get lost: heat is an estimate. What it must never do: make a
//! reader wait.

use std::hash::{BuildHasher as _, RandomState};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use crate::inode::InodeNumber;

/// Blocks of a region: those of an extent.
pub(crate) const REGION: u64 = crate::items::EXTENT_BLOCKS as u64;
/// Counts that a region has.
const ROWS: usize = 4;
/// Counts of a row: enough for 16 GiB of regions that are all read. 256 KiB in all.
const COLUMNS: usize = 1 << 16;
/// The largest count. Two rounds of ageing make it 3, which is warm.
const MOST: u8 = 15;

/// See the module's account.
#[derive(Debug)]
pub struct Heat {
    counts: Box<[AtomicU8]>,
    hasher: RandomState,
    /// Reads since the last ageing.
    reads: AtomicU64,
}

impl Default for Heat {
    fn default() -> Self {
        let counts = (0..ROWS * COLUMNS).map(|_| AtomicU8::new(0)).collect();
        Self { counts, hasher: RandomState::new(), reads: AtomicU64::new(0) }
    }
}

impl Heat {
    /// The places of a region's counts.
    fn places(&self, inode: InodeNumber, block: u64) -> [usize; ROWS] {
        let hash = self.hasher.hash_one((inode.0, block / REGION));
        // Sixteen bits for each row.
        std::array::from_fn(|row| row * COLUMNS + (hash >> (16 * row)) as usize % COLUMNS)
    }

    /// Block `block` of a file was read.
    pub fn count(&self, inode: InodeNumber, block: u64) {
        for place in self.places(inode, block) {
            let count = &self.counts[place];
            let seen = count.load(Ordering::Relaxed);
            if seen < MOST {
                count.store(seen + 1, Ordering::Relaxed);
            }
        }
        self.reads.fetch_add(1, Ordering::Relaxed);
    }

    /// How often block `block` of a file, or one near it, was read lately: 0 to 15.
    pub fn of(&self, inode: InodeNumber, block: u64) -> u8 {
        let counts = self.places(inode, block).map(|place| self.counts[place].load(Ordering::Relaxed));
        counts.into_iter().min().unwrap_or_default()
    }

    /// Reads that were counted since the last ageing.
    pub fn reads(&self) -> u64 {
        self.reads.load(Ordering::Relaxed)
    }

    /// Halves all counts.
    pub fn age(&self) {
        for count in &self.counts {
            count.store(count.load(Ordering::Relaxed) / 2, Ordering::Relaxed);
        }
        self.reads.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: InodeNumber = InodeNumber(7);

    #[test]
    fn heat_counts_reads_and_ages() {
        let heat = Heat::default();
        for read in 0..40 {
            assert_eq!(heat.of(FILE, 5), read.min(MOST));
            heat.count(FILE, u64::from(read));
        }
        assert_eq!((heat.of(FILE, 63), heat.of(FILE, 64), heat.reads()), (MOST, 0, 40));
        for expected in [7, 3, 1, 0] {
            heat.age();
            assert_eq!((heat.of(FILE, 0), heat.reads()), (expected, 0));
        }
    }

    #[test]
    fn heat_is_never_too_low_and_seldom_too_high() {
        let heat = Heat::default();
        for region in 0..8192 {
            for _ in 0..region % 8 {
                heat.count(InodeNumber(region), 1);
            }
        }
        let mut wrong = 0;
        for region in 0..8192 {
            let (found, counted) = (heat.of(InodeNumber(region), 1), (region % 8) as u8);
            assert!(found >= counted, "region {region}: {found} of {counted}");
            wrong += u32::from(found > counted);
        }
        assert!(wrong < 82, "{wrong} of 8192 are too high");
    }
}
