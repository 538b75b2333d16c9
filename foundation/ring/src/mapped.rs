//! A ring in mapped memory, laid out as AF_XDP lays out its rings.
//!
//! ```text
//!  producer -> | u32 | .. consumer -> | u32 | .. flags -> | u32 | .. slots -> | T | T | .. | T |
//! ```
//!
//! The offsets come from the kernel, or from the maker of the memory. They are checked once against
//! the mapping, and every access afterwards masks its index.

use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use crate::mapping::Mapping;
use crate::spsc::RingMemory;

#[cfg(test)]
mod tests;

/// An entry of a shared ring.
///
/// # Safety
/// The type has no padding and no invalid bit pattern: whatever a peer wrote there is a value of
/// the type.
pub unsafe trait Descriptor: Copy + 'static {}

// SAFETY: integers have neither padding nor invalid patterns.
unsafe impl Descriptor for u32 {}
// SAFETY: as above.
unsafe impl Descriptor for u64 {}

/// The most slots a ring may have: 2^20, sixteen times the deepest queue in use. It bounds what one
/// call can do.
pub(crate) const MAX_CAPACITY: u32 = 1 << 20;

/// Where a ring is in its mapping, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingLayout {
    /// The producer word.
    pub producer: usize,
    /// The consumer word.
    pub consumer: usize,
    /// The flags word.
    pub flags: usize,
    /// The first slot.
    pub slots: usize,
    /// Slots: a power of two.
    pub capacity: u32,
}

/// Why a ring cannot be where the layout says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// Not a power of two, or over [`MAX_CAPACITY`].
    #[error("a ring of {0} slots: the number must be a power of two and at most {MAX_CAPACITY}")]
    Capacity(u32),
    /// A word or the slots stick out of the mapping, are not aligned, or overlap.
    #[error(
        "ring layout {layout:?} does not fit a mapping of {length} bytes: both sides must agree on one layout"
    )]
    Misplaced {
        /// What was requested.
        layout: RingLayout,
        /// Bytes in the mapping.
        length: usize,
    },
}

impl RingLayout {
    /// Bytes from the start of the mapping to the end of the last slot, or `None` if that
    /// overflows.
    pub fn end<T>(&self) -> Option<usize> {
        (self.capacity as usize).checked_mul(size_of::<T>())?.checked_add(self.slots)
    }

    fn check<T>(&self, mapping: &Mapping) -> Result<(), LayoutError> {
        if !self.capacity.is_power_of_two() || self.capacity > MAX_CAPACITY {
            return Err(LayoutError::Capacity(self.capacity));
        }
        let words = [self.producer, self.consumer, self.flags];
        let end = self.end::<T>().unwrap_or(usize::MAX);
        let placed = words.iter().all(|&word| {
            mapping.word(word).is_some() && (word + size_of::<u32>() <= self.slots || word >= end)
        });
        let distinct = words[0] != words[1] && words[1] != words[2] && words[0] != words[2];
        // A mapping starts on a page, so an aligned offset is an aligned address.
        if placed && distinct && self.slots.is_multiple_of(align_of::<T>()) && end <= mapping.len() {
            Ok(())
        } else {
            Err(LayoutError::Misplaced { layout: *self, length: mapping.len() })
        }
    }
}

/// A ring of `T` in a [`Mapping`], which it keeps alive.
#[derive(Debug)]
pub struct MappedRing<T> {
    producer: NonNull<u32>,
    consumer: NonNull<u32>,
    flags: NonNull<u32>,
    slots: NonNull<T>,
    capacity: u32,
    /// Keeps the memory mapped.
    _mapping: Arc<Mapping>,
    entry: PhantomData<T>,
}

// SAFETY: the pointers lead into `_mapping`, which is `Send` and which the ring keeps alive.
unsafe impl<T: Descriptor + Send> Send for MappedRing<T> {}

impl<T: Descriptor> MappedRing<T> {
    /// The ring at `layout` in `mapping`.
    ///
    /// # Errors
    /// [`LayoutError`] if it does not fit.
    ///
    /// # Safety
    /// In this process the bytes of the ring are used only through one producer and one consumer
    /// made of such rings. Nothing is asked of other processes.
    pub unsafe fn new(mapping: Arc<Mapping>, layout: RingLayout) -> Result<Self, LayoutError> {
        layout.check::<T>(&mapping)?;
        let misplaced = LayoutError::Misplaced { layout, length: mapping.len() };
        let word = |offset: usize| {
            mapping.word(offset).and_then(|word| NonNull::new(word.as_ptr())).ok_or(misplaced)
        };
        let (producer, consumer, flags) =
            (word(layout.producer)?, word(layout.consumer)?, word(layout.flags)?);
        // SAFETY: `check` found `slots` inside the mapping.
        let slots = unsafe { mapping.as_ptr().add(layout.slots) };
        let slots = NonNull::new(slots.cast::<T>()).ok_or(misplaced)?;
        Ok(Self {
            producer,
            consumer,
            flags,
            slots,
            capacity: layout.capacity,
            _mapping: mapping,
            entry: PhantomData,
        })
    }

    #[inline]
    fn slot(&self, index: u32) -> *mut T {
        let slot = index & (self.capacity - 1);
        // SAFETY: masked, so below the capacity, and `check` found all slots inside the mapping.
        unsafe { self.slots.add(slot as usize).as_ptr() }
    }
}

/// The word behind `pointer`.
///
/// # Safety
/// It is aligned and lives as long as `'ring`.
#[inline]
unsafe fn atomic<'ring>(pointer: NonNull<u32>) -> &'ring AtomicU32 {
    // SAFETY: the caller says so; all accesses in this process are atomic.
    unsafe { AtomicU32::from_ptr(pointer.as_ptr()) }
}

impl<T: Descriptor> RingMemory<T> for MappedRing<T> {
    #[inline]
    fn capacity(&self) -> u32 {
        self.capacity
    }

    #[inline]
    fn producer(&self) -> &AtomicU32 {
        // SAFETY: `new` took it from the mapping, which `self` keeps alive.
        unsafe { atomic(self.producer) }
    }

    #[inline]
    fn consumer(&self) -> &AtomicU32 {
        // SAFETY: as above.
        unsafe { atomic(self.consumer) }
    }

    #[inline]
    fn flags(&self) -> &AtomicU32 {
        // SAFETY: as above.
        unsafe { atomic(self.flags) }
    }

    #[inline]
    fn read(&self, index: u32) -> T {
        // SAFETY: inside the mapping and aligned (`slot`). Volatile, because another process may
        // write at the same time: the value is copied exactly once, and any bit pattern is a `T`
        // (`Descriptor`).
        unsafe { self.slot(index).read_volatile() }
    }

    #[inline]
    fn write(&self, index: u32, entry: T) {
        // SAFETY: as in `read`; in this process only the producer writes slots.
        unsafe { self.slot(index).write_volatile(entry) }
    }
}
