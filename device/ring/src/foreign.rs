//! Bytes that somebody else may be writing.
//!
//! 1. A peer that owns a region of shared memory can change any byte of it at any time. A `&[u8]` over such bytes would promise
//!    the compiler that they stand still, which nobody can promise. [`Foreign`] therefore names bytes by address and length,
//!    never as a slice, and all that can be done with them is to copy them out.
//! 2. What was copied is the reader's own. Whoever validates, validates the copy, and reads the original no second time.
//! 3. A barrier after each copy keeps the compiler from fetching from the original what it could take from the copy.
//!
//! A copy that races with the peer's writes may hold a mixture of old and new bytes. That is the peer's own doing, and no
//! different from having been sent that mixture.

use std::fmt;
use std::marker::PhantomData;

#[cfg(test)]
mod tests;

/// Bytes in memory that others may write meanwhile. Can only be copied out.
#[derive(Clone, Copy)]
pub struct Foreign<'memory> {
    start: *const u8,
    length: usize,
    memory: PhantomData<&'memory [u8]>,
}

impl<'memory> Foreign<'memory> {
    /// No bytes.
    pub const EMPTY: Self = Self { start: std::ptr::null(), length: 0, memory: PhantomData };

    /// The `length` bytes from `start` on.
    ///
    /// # Safety
    /// They lie in one mapping that stays readable as long as `'memory`. Other processes may write them; in this process nobody
    /// holds a reference through which they could be written.
    #[inline]
    pub const unsafe fn from_raw(start: *const u8, length: usize) -> Self {
        Self { start, length, memory: PhantomData }
    }

    /// Bytes of one's own, for whoever takes both kinds.
    #[inline]
    pub const fn from_slice(bytes: &'memory [u8]) -> Self {
        Self { start: bytes.as_ptr(), length: bytes.len(), memory: PhantomData }
    }

    /// How many bytes.
    #[inline]
    pub const fn len(&self) -> usize {
        self.length
    }

    /// Whether there are none.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// All but the first `bytes`.
    #[inline]
    pub const fn skip(self, bytes: usize) -> Self {
        let bytes = if bytes < self.length { bytes } else { self.length };
        // `wrapping_add` needs no promise; the result is inside or one past the end.
        Self { start: self.start.wrapping_add(bytes), length: self.length - bytes, memory: PhantomData }
    }

    /// The first `bytes`, or all if there are fewer.
    #[inline]
    pub const fn take(self, bytes: usize) -> Self {
        Self { length: if bytes < self.length { bytes } else { self.length }, ..self }
    }

    /// Copies the bytes from `offset` on into `out`, all of it.
    ///
    /// # Panics
    /// If there are not so many.
    #[inline]
    pub fn copy_to(&self, offset: usize, out: &mut [u8]) {
        assert!(
            offset <= self.length && out.len() <= self.length - offset,
            "{} bytes at {offset} are not within {} foreign bytes",
            out.len(),
            self.length
        );
        // SAFETY: inside the range that `from_raw` vouched for (asserted above), readable as long as `'memory`. `out` is an
        // exclusive reference, so the two do not overlap. The source may change while it is copied: no reference to it
        // exists, and any byte is a `u8`.
        unsafe { copy_once(self.start.add(offset), out.as_mut_ptr(), out.len()) };
    }

    /// A copy of all bytes. Allocates.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut copy = vec![0; self.length];
        self.copy_to(0, &mut copy);
        copy
    }
}

/// Copies `length` bytes, and keeps the compiler from reading the source again for what it knows to be in the copy.
///
/// # Safety
/// Source and destination are valid for so many bytes, and do not overlap.
#[inline]
unsafe fn copy_once(from: *const u8, to: *mut u8, length: usize) {
    // SAFETY: the caller's.
    unsafe { std::ptr::copy_nonoverlapping(from, to, length) };
    // An empty block that may, for all the compiler knows, have written both sides: nothing is forwarded across it.
    #[cfg(not(miri))]
    // SAFETY: it does nothing.
    unsafe {
        std::arch::asm!("/* {0} {1} */", in(reg) from, in(reg) to, options(nostack, preserves_flags));
    }
}

impl fmt::Debug for Foreign<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Foreign({} bytes)", self.length)
    }
}
