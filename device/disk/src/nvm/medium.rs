//! The seam under [`super::NvmQueue`]: memory as loads, stores and fences.

/// Unit of requests, in bytes: a cache line. Stores of whole lines never read the line first.
pub(crate) const LINE: usize = 64;

/// What the memory stores in one piece, in bytes: an aligned word (Intel, "Persistent Memory
/// Programming", 2-3).
pub const TEAR: usize = 8;

/// Persistent memory of a fixed size. Offsets and lengths of stores are multiples of
/// [`LINE`].
pub trait Medium {
    /// Bytes.
    fn len(&self) -> usize;

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies what is at `offset`, stores that no fence followed included.
    ///
    /// # Panics
    /// If the range is not inside.
    fn load(&self, offset: usize, out: &mut [u8]);

    /// Stores `bytes` at `offset`. Until the next fence, a power loss keeps any part of them, in
    /// pieces of [`TEAR`] bytes.
    ///
    /// # Panics
    /// If the range is not inside, or not whole lines.
    fn store(&mut self, offset: usize, bytes: &[u8]);

    /// Returns when everything stored before survives power loss.
    fn fence(&mut self);

    /// What it is, for people.
    fn description(&self) -> &'static str;
}
