//! A pool of equal buffers, known by their index, and the owner of each.
//!
//! 1. Every buffer has exactly one [`Owner`]. It changes owner only through [`BufferPool::take`]
//!    (free to owned), [`BufferPool::pass`] (from one owner to another) and [`BufferPool::put`]
//!    (owned to free).
//! 2. `pass` and `put` name the owner they expect. If the index is out of range, or the buffer has
//!    another owner, they change nothing and say so. So the very step that uses an index from
//!    shared memory also checks it: a forged or repeated index cannot give one buffer two owners.
//! 3. Free buffers are on a stack: the one used last, still in the cache, is used next.
//! 4. Nothing is allocated after [`BufferPool::new`].

#[cfg(test)]
mod tests;

/// The one that may use a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Owner {
    /// None: the buffer is in the pool.
    Free,
    /// The engine, as a frame.
    Engine,
    /// The device, to be filled by something received.
    Receive,
    /// The device, until it has been sent.
    Transmit,
}

/// The buffers of one queue. One thread owns it.
#[derive(Debug)]
pub struct BufferPool {
    owners: Box<[Owner]>,
    free: Vec<u32>,
}

impl BufferPool {
    /// A pool of `count` free buffers, numbered from zero.
    pub fn new(count: u32) -> Self {
        Self {
            owners: vec![Owner::Free; count as usize].into_boxed_slice(),
            // Reversed, so that the stack returns buffer 0 first.
            free: (0..count).rev().collect(),
        }
    }

    /// Buffers in all.
    pub fn capacity(&self) -> usize {
        self.owners.len()
    }

    /// Buffers without an owner.
    pub fn free(&self) -> usize {
        self.free.len()
    }

    /// Gives a free buffer to `owner`, or `None` if there is none. `owner` is not [`Owner::Free`].
    #[inline]
    pub fn take(&mut self, owner: Owner) -> Option<u32> {
        debug_assert!(owner != Owner::Free, "a taken buffer has an owner");
        let buffer = self.free.pop()?;
        self.owners[buffer as usize] = owner;
        Some(buffer)
    }

    /// Moves `buffer` from owner `from` to owner `to`, neither being [`Owner::Free`]. Returns
    /// whether it was `from`'s.
    #[inline]
    #[must_use = "false means that the buffer did not change hands"]
    pub fn pass(&mut self, buffer: u32, from: Owner, to: Owner) -> bool {
        debug_assert!(from != Owner::Free && to != Owner::Free, "free buffers go through take and put");
        match self.owners.get_mut(buffer as usize) {
            Some(owner) if *owner == from => {
                *owner = to;
                true
            }
            _ => false,
        }
    }

    /// Frees `buffer`, which `from` owned. Returns whether it did.
    #[inline]
    #[must_use = "false means that the buffer was not freed"]
    pub fn put(&mut self, buffer: u32, from: Owner) -> bool {
        debug_assert!(from != Owner::Free, "a free buffer cannot be freed");
        match self.owners.get_mut(buffer as usize) {
            Some(owner) if *owner == from && from != Owner::Free => {
                *owner = Owner::Free;
                // Within the capacity that `new` gave: no buffer is on the stack twice.
                self.free.push(buffer);
                true
            }
            _ => false,
        }
    }

    /// The owner of `buffer`, or `None` if it is out of range.
    pub fn owner(&self, buffer: u32) -> Option<Owner> {
        self.owners.get(buffer as usize).copied()
    }
}
