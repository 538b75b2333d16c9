//! The newest entry of a ring, beside the producer word. A consumer that polls that word has the
//! entry on the same cache line, and need not wait for the slot's line.
//!
//! 1. The word holds an entry of 48 bits and the last sixteen bits of its index. The producer
//!    writes it just before it publishes.
//! 2. The consumer sees that an entry is published and reads the hint first. It finds that entry or
//!    a later one, because the word was written before the index that it saw; the sixteen bits tell
//!    which. A ring has at most 2^15 slots, so the sixteen bits name the index.
//! 3. If the hint holds a later entry, the consumer reads the slot. The hint is a copy, and never
//!    the only place of an entry.
//!
//! A hostile producer can write anything here, as it can into its slots. The consumer validates an
//! entry from either place.

use crate::sync::{AtomicU64, Ordering};

/// Bits of an entry.
pub const BITS: u32 = 48;
/// The most slots of a ring with a tail hint.
pub const MOST_SLOTS: u32 = 1 << 15;

const MASK: u64 = (1 << BITS) - 1;

/// Writes `entry`, with running index `index`. Publish the index afterwards, with release.
#[inline]
pub fn store(word: &AtomicU64, index: u32, entry: u64) {
    word.store(u64::from(index) << BITS | entry & MASK, Ordering::Relaxed);
}

/// The entry with running index `index`, which was seen to be published, if it is the newest.
#[inline]
pub fn load(word: &AtomicU64, index: u32) -> Option<u64> {
    let found = word.load(Ordering::Relaxed);
    (found >> BITS == u64::from(index as u16)).then_some(found & MASK)
}
