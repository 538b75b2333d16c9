//! A split-ownership ring: it is in two regions of memory, each written by one side only.
//!
//! ```text
//!  producer's region:  producer -> | u32 | 0 | newest u64 |  ...  slots -> | u64 | ... |
//!  consumer's region:  consumer -> | u32 |
//! ```
//!
//! Entries have 48 bits. The newest is beside the producer word as well ([`crate::tail_hint`]).
//!
//! Neither side can write what the other one owns: the mapping itself refuses. So a hostile peer
//! can put invalid values into its own words, which [`crate::spsc`] checks, but it cannot touch
//! this side's.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64};

use crate::mapping::{Mapping, UntrustedMapping};
use crate::spsc::RingMemory;
use crate::tail_hint;

/// Bytes from the producer word to the newest entry.
pub const NEWEST: usize = 8;

/// Where the words of a ring are, in bytes from the start of their regions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SplitOwnershipLayout {
    /// The producer word, in the producer's region, and [`NEWEST`] bytes behind it the newest
    /// entry.
    pub producer: usize,
    /// The first slot, in the producer's region.
    pub slots: usize,
    /// Slots: a power of two.
    pub capacity: u32,
    /// The consumer word, in the consumer's region.
    pub consumer: usize,
}

/// One side's view of such a ring. Keeps both regions mapped.
#[derive(Debug)]
pub struct SplitOwnershipRing {
    producer: NonNull<u32>,
    newest: NonNull<u64>,
    consumer: NonNull<u32>,
    slots: NonNull<u64>,
    capacity: u32,
    /// Unused: a waiter is woken through the counted need-wakeup word of its region.
    flags: AtomicU32,
    _mine: Arc<Mapping>,
    _theirs: Arc<UntrustedMapping>,
}

// SAFETY: the pointers lead into the two mappings, which are `Send` and which the ring keeps alive.
unsafe impl Send for SplitOwnershipRing {}

/// The address of `bytes` bytes at `offset` of a region, aligned for `T`.
fn at<T>(start: *mut u8, length: usize, offset: usize, bytes: usize) -> Option<NonNull<T>> {
    let inside = offset.is_multiple_of(align_of::<T>()) && offset.checked_add(bytes)? <= length;
    // A region starts on a page, so an aligned offset is an aligned address.
    if inside { NonNull::new(start.wrapping_add(offset).cast::<T>()) } else { None }
}

impl SplitOwnershipRing {
    /// The ring that we produce, or `None` if it does not fit the regions.
    ///
    /// # Safety
    /// It is used for one producer only, and nothing else in this process uses its words and slots.
    pub unsafe fn outgoing(
        mine: &Arc<Mapping>,
        theirs: &Arc<UntrustedMapping>,
        layout: SplitOwnershipLayout,
    ) -> Option<Self> {
        let (start, length) = (mine.as_ptr(), mine.len());
        Self::new(
            at(start, length, layout.producer, 4)?,
            at(start, length, layout.producer.checked_add(NEWEST)?, 8)?,
            at(theirs.as_ptr().cast_mut(), theirs.len(), layout.consumer, 4)?,
            at(start, length, layout.slots, 8 * layout.capacity as usize)?,
            layout.capacity,
            mine,
            theirs,
        )
    }

    /// The ring that the peer produces, or `None` if it does not fit the regions.
    ///
    /// # Safety
    /// It is used for one consumer only, and nothing else in this process uses its words.
    pub unsafe fn incoming(
        mine: &Arc<Mapping>,
        theirs: &Arc<UntrustedMapping>,
        layout: SplitOwnershipLayout,
    ) -> Option<Self> {
        let (start, length) = (theirs.as_ptr().cast_mut(), theirs.len());
        Self::new(
            at(start, length, layout.producer, 4)?,
            at(start, length, layout.producer.checked_add(NEWEST)?, 8)?,
            at(mine.as_ptr(), mine.len(), layout.consumer, 4)?,
            at(start, length, layout.slots, 8 * layout.capacity as usize)?,
            layout.capacity,
            mine,
            theirs,
        )
    }

    fn new(
        producer: NonNull<u32>,
        newest: NonNull<u64>,
        consumer: NonNull<u32>,
        slots: NonNull<u64>,
        capacity: u32,
        mine: &Arc<Mapping>,
        theirs: &Arc<UntrustedMapping>,
    ) -> Option<Self> {
        let (_mine, _theirs) = (Arc::clone(mine), Arc::clone(theirs));
        let flags = AtomicU32::new(0);
        (capacity.is_power_of_two() && capacity <= tail_hint::MOST_SLOTS).then_some(Self {
            producer,
            newest,
            consumer,
            slots,
            capacity,
            flags,
            _mine,
            _theirs,
        })
    }

    #[inline]
    fn newest(&self) -> &AtomicU64 {
        // SAFETY: as for the producer word, beside which it is.
        unsafe { AtomicU64::from_ptr(self.newest.as_ptr()) }
    }

    #[inline]
    fn slot(&self, index: u32) -> *mut u64 {
        let slot = index & (self.capacity - 1);
        // SAFETY: masked, so below the capacity, and the constructors found all slots inside their
        // region.
        unsafe { self.slots.add(slot as usize).as_ptr() }
    }
}

impl RingMemory<u64> for SplitOwnershipRing {
    #[inline]
    fn capacity(&self) -> u32 {
        self.capacity
    }

    #[inline]
    fn producer(&self) -> &AtomicU32 {
        // SAFETY: aligned, inside a region that `self` keeps mapped; every access in this process
        // is atomic, and only the side that owns the region stores (the constructors' contract).
        unsafe { AtomicU32::from_ptr(self.producer.as_ptr()) }
    }

    #[inline]
    fn consumer(&self) -> &AtomicU32 {
        // SAFETY: as above.
        unsafe { AtomicU32::from_ptr(self.consumer.as_ptr()) }
    }

    #[inline]
    fn flags(&self) -> &AtomicU32 {
        &self.flags
    }

    #[inline]
    fn read(&self, index: u32) -> u64 {
        // SAFETY: inside its region and aligned. Volatile: the peer may write at the same time, and
        // the value is copied once.
        unsafe { self.slot(index).read_volatile() }
    }

    #[inline]
    fn read_newest(&self, index: u32) -> u64 {
        tail_hint::load(self.newest(), index).unwrap_or_else(|| self.read(index))
    }

    #[inline]
    fn note_newest(&self, index: u32) {
        // The slot is in this side's region, so it holds the entry written there.
        tail_hint::store(self.newest(), index, self.read(index));
    }

    #[inline]
    fn write(&self, index: u32, entry: u64) {
        // SAFETY: as in `read`; only a producer writes, and its slots are in our own region.
        unsafe { self.slot(index).write_volatile(entry) }
    }
}
