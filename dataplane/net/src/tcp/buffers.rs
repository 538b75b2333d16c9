//! Byte rings of flows, and the pool that their memory comes from.
//!
//! 1. An empty ring owns no memory. Its first byte takes a buffer of the smallest class from the
//!    pool. When the ring runs out of room it moves into a buffer of a larger class; classes are
//!    powers of two.
//! 2. A ring that becomes empty returns its buffer at once. The pool is a stack per class, so the
//!    next flow gets memory that is still in the cache. A flow that alternates between empty and
//!    full does not reach the allocator.
//! 3. The pool counts every byte that rings hold, and refuses more than its limit. It keeps at most
//!    [`POOLED_BYTES`] of free buffers for later.
//!
//! Invariant: a ring never returns a byte that was not written into it.

use crate::limits::{POOLED_BYTES, SMALLEST_BUFFER};
use crate::packet::Payload;

/// Size classes: 4 KiB up to 64 MiB.
const CLASSES: usize = 15;

/// Memory for rings.
#[derive(Debug)]
pub(crate) struct Pool {
    free: [Vec<Box<[u8]>>; CLASSES],
    pooled: usize,
    used: usize,
    limit: usize,
}

impl Pool {
    /// A pool whose rings hold at most `limit` bytes.
    pub(crate) fn new(limit: usize) -> Self {
        Self { free: std::array::from_fn(|_| Vec::new()), pooled: 0, used: 0, limit }
    }

    /// Bytes that rings hold.
    pub(crate) fn used(&self) -> usize {
        self.used
    }

    /// Bytes that rings may still take.
    pub(crate) fn free(&self) -> usize {
        self.limit.saturating_sub(self.used)
    }

    /// Bytes that rings may hold at most.
    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    /// Whether a send buffer of this many bytes may be taken. A quarter of the memory is reserved
    /// for receiving: without that, two hosts whose memory is full of data to send could receive
    /// nothing from each other and would wait for ever.
    pub(crate) fn has_send_memory(&self, bytes: usize) -> bool {
        let size = bytes.max(SMALLEST_BUFFER).next_power_of_two();
        self.used.saturating_add(size) <= self.limit - self.limit / 4
    }

    fn class(bytes: usize) -> usize {
        (bytes.max(SMALLEST_BUFFER).next_power_of_two() / SMALLEST_BUFFER).trailing_zeros() as usize
    }

    fn take(&mut self, bytes: usize) -> Option<Box<[u8]>> {
        let class = Self::class(bytes);
        let size = SMALLEST_BUFFER << class;
        if class >= CLASSES || self.used + size > self.limit {
            return None;
        }
        self.used += size;
        Some(match self.free[class].pop() {
            Some(buffer) => {
                self.pooled -= size;
                buffer
            }
            None => vec![0; size].into_boxed_slice(),
        })
    }

    /// A buffer of the smallest class, if one is ready.
    #[inline]
    fn take_small(&mut self) -> Option<Box<[u8]>> {
        if self.used + SMALLEST_BUFFER > self.limit {
            return None;
        }
        let buffer = self.free[0].pop()?;
        self.pooled -= SMALLEST_BUFFER;
        self.used += SMALLEST_BUFFER;
        Some(buffer)
    }

    /// Takes back a buffer that a ring held.
    #[inline]
    pub(crate) fn recycle(&mut self, buffer: Box<[u8]>) {
        let size = buffer.len();
        if size == SMALLEST_BUFFER && self.pooled + size <= POOLED_BYTES {
            self.used -= size;
            self.pooled += size;
            self.free[0].push(buffer);
        } else if size > 0 {
            self.give_large(buffer);
        }
    }

    #[inline(never)]
    fn give_large(&mut self, buffer: Box<[u8]>) {
        let size = buffer.len();
        self.used -= size;
        if self.pooled + size <= POOLED_BYTES {
            self.pooled += size;
            self.free[Self::class(size)].push(buffer);
        }
    }
}

/// A ring of bytes whose first `len` are in use. Bytes beyond may be written ahead of time with
/// [`Ring::write_at`] (out-of-order data) and come into use with [`Ring::extend`].
#[derive(Debug, Default)]
pub(crate) struct Ring {
    buffer: Box<[u8]>,
    start: u32,
    len: u32,
}

impl Ring {
    /// Bytes in use.
    #[inline]
    pub(crate) const fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether no byte is in use.
    #[inline]
    pub(crate) const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes that fit without moving into another buffer.
    #[inline]
    pub(crate) fn capacity(&self) -> usize {
        self.buffer.len()
    }

    /// Takes a buffer of the smallest class that is ready for `bytes`, if there is no storage and
    /// nothing counted elsewhere. For sending: the memory reserved for receiving is not touched.
    #[inline]
    pub(crate) fn fetch_small(&mut self, pool: &mut Pool, bytes: usize) -> bool {
        let small = self.buffer.is_empty() && self.len == 0 && bytes <= SMALLEST_BUFFER;
        if !small || pool.used + SMALLEST_BUFFER > pool.limit - pool.limit / 4 {
            return false;
        }
        let Some(buffer) = pool.take_small() else { return false };
        self.buffer = buffer;
        self.start = 0;
        true
    }

    /// Makes the capacity at least `needed`, up to `most`. Returns whether it is.
    #[inline]
    pub(crate) fn reserve(&mut self, pool: &mut Pool, needed: usize, most: usize) -> bool {
        if needed <= self.capacity() {
            return true;
        }
        // The common case of a flow that was empty.
        if self.buffer.is_empty()
            && needed <= SMALLEST_BUFFER.min(most)
            && let Some(buffer) = pool.take_small()
        {
            self.buffer = buffer;
            self.start = 0;
            return true;
        }
        self.grow(pool, needed, most)
    }

    #[cold]
    fn grow(&mut self, pool: &mut Pool, needed: usize, most: usize) -> bool {
        if needed > most {
            return false;
        }
        let Some(mut buffer) = pool.take(needed) else { return false };
        // What is beyond `len` may be out-of-order data: it moves along.
        let (first, second) = self.slices_at(0, self.capacity());
        buffer[..first.len()].copy_from_slice(first);
        buffer[first.len()..first.len() + second.len()].copy_from_slice(second);
        pool.recycle(std::mem::replace(&mut self.buffer, buffer));
        self.start = 0;
        true
    }

    /// The capacity that it has, or would have after [`Ring::reserve`] of this many bytes.
    pub(crate) fn size_for(&self, needed: usize) -> usize {
        self.capacity().max(needed.max(SMALLEST_BUFFER).next_power_of_two())
    }

    /// Moves into the smallest buffer that holds the bytes in use. What was written ahead of time
    /// is lost.
    pub(crate) fn shrink(&mut self, pool: &mut Pool) {
        if self.is_empty() {
            return self.release(pool);
        }
        let size = self.capacity();
        if Pool::class(self.len()) == Pool::class(size) {
            return;
        }
        // The smaller buffer replaces the larger one in the account, so it is available even if the
        // pool is used up.
        pool.used -= size;
        let smaller = self.copy_out(pool);
        pool.used += size;
        if let Some(smaller) = smaller {
            pool.recycle(std::mem::replace(&mut self.buffer, smaller));
            self.start = 0;
        }
    }

    /// Makes room for `more` bytes behind those in use, in a buffer of at most `most` bytes: where
    /// memory is short, a smaller one is better than none. Returns how many fit now. For sending:
    /// the memory reserved for receiving is not touched.
    pub(crate) fn make_room(&mut self, pool: &mut Pool, more: usize, most: usize) -> usize {
        let mut wanted = (self.len() + more).min(most);
        while wanted > self.capacity() && !(pool.has_send_memory(wanted) && self.reserve(pool, wanted, most))
        {
            wanted = if wanted > SMALLEST_BUFFER { wanted.next_power_of_two() / 2 } else { 0 };
        }
        self.capacity().saturating_sub(self.len())
    }

    /// Takes storage and bytes out, and continues counting the bytes.
    pub(crate) fn take_storage(&mut self) -> Self {
        let len = self.len;
        std::mem::replace(self, Self { buffer: Box::default(), start: 0, len })
    }

    /// Counts bytes that are stored elsewhere. The ring has no storage.
    pub(crate) fn count_external(&mut self, bytes: usize) {
        debug_assert!(self.buffer.is_empty(), "a ring has its bytes or counts those elsewhere");
        self.len += bytes as u32;
    }

    /// Takes the buffer out and returns where in it the bytes in use begin. The ring is empty then;
    /// the pool still counts the buffer as held.
    pub(crate) fn take_buffer(&mut self) -> (Box<[u8]>, usize) {
        let start = self.start as usize;
        (self.start, self.len) = (0, 0);
        (std::mem::take(&mut self.buffer), start)
    }

    /// A buffer of the pool with a copy of the bytes in use at its beginning.
    pub(crate) fn copy_out(&self, pool: &mut Pool) -> Option<Box<[u8]>> {
        let mut buffer = pool.take(self.len())?;
        let (first, second) = self.slices();
        buffer[..first.len()].copy_from_slice(first);
        buffer[first.len()..self.len()].copy_from_slice(second);
        Some(buffer)
    }

    /// Returns the memory and its content to the pool.
    #[inline]
    pub(crate) fn release(&mut self, pool: &mut Pool) {
        pool.recycle(std::mem::take(&mut self.buffer));
        self.start = 0;
        self.len = 0;
    }

    /// The bytes in use, in order.
    #[inline]
    pub(crate) fn slices(&self) -> (&[u8], &[u8]) {
        self.slices_at(0, self.len())
    }

    /// `length` bytes from `offset` on.
    ///
    /// # Panics
    /// If they are beyond the capacity.
    #[inline]
    pub(crate) fn slices_at(&self, offset: usize, length: usize) -> (&[u8], &[u8]) {
        assert!(offset + length <= self.capacity());
        self.slices_within(offset, length).unwrap_or_default()
    }

    /// `length` bytes from `offset` on, unless they are beyond the capacity.
    #[inline]
    pub(crate) fn slices_within(&self, offset: usize, length: usize) -> Option<(&[u8], &[u8])> {
        if offset + length > self.capacity() {
            return None;
        }
        if length == 0 {
            return Some((&[], &[]));
        }
        let begin = (self.start as usize + offset) & (self.capacity() - 1);
        let first = length.min(self.capacity() - begin);
        Some((&self.buffer[begin..begin + first], &self.buffer[..length - first]))
    }

    /// Writes `data` at `offset` from the first byte in use.
    ///
    /// # Panics
    /// If it does not fit the capacity.
    #[inline]
    pub(crate) fn write_at<'a>(&mut self, offset: usize, data: impl Into<Payload<'a>>) {
        let data = data.into();
        assert!(offset + data.len() <= self.capacity());
        if data.is_empty() {
            return;
        }
        let begin = (self.start as usize + offset) & (self.capacity() - 1);
        let first = data.len().min(self.capacity() - begin);
        data.copy_to(0, &mut self.buffer[begin..begin + first]);
        if first < data.len() {
            data.copy_to(first, &mut self.buffer[..data.len() - first]);
        }
    }

    /// Writes `data` behind the bytes in use, and takes it into use.
    ///
    /// # Panics
    /// If it does not fit the capacity.
    #[inline]
    pub(crate) fn append(&mut self, data: Payload<'_>) {
        let length = data.len();
        let begin = (self.start as usize + self.len()) & self.capacity().wrapping_sub(1);
        if self.len() + length <= self.capacity()
            && data.tail.is_empty()
            && let Some(place) = self.buffer.get_mut(begin..begin + length)
        {
            place.copy_from_slice(data.head);
        } else {
            self.write_at(self.len(), data);
        }
        self.len += length as u32;
    }

    /// Takes the next `bytes` into use.
    ///
    /// # Panics
    /// If they are beyond the capacity.
    #[inline]
    pub(crate) fn extend(&mut self, bytes: usize) {
        assert!(self.len() + bytes <= self.capacity());
        self.len += bytes as u32;
    }

    /// Drops the first `bytes`, or all if there are fewer.
    #[inline]
    pub(crate) fn consume(&mut self, bytes: usize) {
        let bytes = bytes.min(self.len());
        if bytes > 0 {
            // A ring that counts bytes elsewhere has no capacity and needs no start.
            self.start = ((self.start as usize + bytes) & self.capacity().wrapping_sub(1)) as u32;
            self.len -= bytes as u32;
        }
    }
}

#[cfg(test)]
mod tests;
