//! Bytes that another process may be writing.
//!
//! 1. A peer that owns a region of shared memory can change any byte of it at any time. A `&[u8]`
//!    over such bytes would promise the compiler that they do not change, and nothing can keep that
//!    promise. [`Untrusted`] therefore names bytes by address and length, never as a slice, and
//!    bytes can only be copied out of it.
//! 2. The copy belongs to the reader. The reader validates the copy, and does not read the original
//!    a second time.
//! 3. The copy is an ordinary one, and races with the peer's writes. Rust's memory model knows only
//!    the threads of this program, and none of them writes the original, so for the compiler there
//!    is no race. What it could do is to assume that two reads of the original agree. Each copy
//!    ends with an assembly block, which may write any memory for all the compiler knows. So the
//!    original is not read again for what the copy has, and the next copy reads it again. Within
//!    one copy a byte may be read several times; what is stored is some byte that was there.
//!    Volatile or atomic words would promise no more, and cannot use the wide moves of `memcpy`.
//! 4. The bytes may be in several [`Pieces`] of one mapping, as a device leaves a frame that is
//!    larger than its buffers. Copying them out works the same.
//!
//! A copy that races with the peer's writes may hold a mixture of old and new bytes. The peer could
//! have sent that mixture as well.

use std::fmt;
use std::marker::PhantomData;

#[cfg(test)]
mod tests;

/// The maximum of pieces: what a socket buffer of Linux holds, its linear part and
/// `MAX_SKB_FRAGS`.
pub const MAX_PIECES: usize = 18;

/// Bytes of a mapping.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Piece {
    /// How far from the start of the mapping.
    pub offset: u32,
    /// How many.
    pub length: u32,
}

/// The places of bytes that are not contiguous, in order.
#[derive(Clone, Debug, Default)]
pub struct Pieces {
    count: u32,
    total: u32,
    pieces: [Piece; MAX_PIECES],
}

impl Pieces {
    /// Appends a piece. `false`, and nothing changed, if there are [`MAX_PIECES`] already or the
    /// whole would have 4 GiB.
    #[must_use = "false means that the piece is not in it"]
    pub fn push(&mut self, piece: Piece) -> bool {
        let Some(total) = self.total.checked_add(piece.length) else { return false };
        let Some(next) = self.pieces.get_mut(self.count as usize) else { return false };
        *next = piece;
        self.count += 1;
        self.total = total;
        true
    }

    /// All of them.
    #[inline]
    pub fn as_slice(&self) -> &[Piece] {
        self.pieces.get(..self.count as usize).unwrap_or_default()
    }

    /// Bytes in all pieces.
    #[inline]
    pub const fn total(&self) -> usize {
        self.total as usize
    }

    /// Removes all pieces.
    pub const fn clear(&mut self) {
        self.count = 0;
        self.total = 0;
    }
}

/// Bytes in memory that another process may write meanwhile. They can only be copied out.
#[derive(Clone, Copy)]
pub struct Untrusted<'memory> {
    /// The first byte; of bytes in pieces, the first of the mapping that they are in.
    start: *const u8,
    length: u32,
    /// Of bytes in pieces: how many of those in the pieces come before.
    skipped: u32,
    pieces: Option<&'memory Pieces>,
    memory: PhantomData<&'memory [u8]>,
}

impl<'memory> Untrusted<'memory> {
    /// No bytes.
    pub const EMPTY: Self = Self::at(std::ptr::null(), 0);

    #[inline]
    const fn at(start: *const u8, length: usize) -> Self {
        assert!(length <= u32::MAX as usize, "a frame has less than 4 GiB");
        Self { start, length: length as u32, skipped: 0, pieces: None, memory: PhantomData }
    }

    /// The `length` bytes from `start` on.
    ///
    /// # Safety
    /// They are in one mapping that stays readable as long as `'memory`. Other processes may write
    /// them; this process holds no reference through which they could be written.
    #[inline]
    pub const unsafe fn from_raw(start: *const u8, length: usize) -> Self {
        Self::at(start, length)
    }

    /// The bytes in `pieces` of the mapping that begins at `base`, all but the first `skip`.
    ///
    /// # Safety
    /// Every piece is in that mapping; for the rest as [`Untrusted::from_raw`].
    #[inline]
    pub const unsafe fn from_pieces(base: *const u8, pieces: &'memory Pieces, skip: usize) -> Self {
        let all =
            Self { start: base, length: pieces.total, skipped: 0, pieces: Some(pieces), memory: PhantomData };
        all.skip(skip)
    }

    /// Bytes of this process, for code that takes both kinds.
    #[inline]
    pub const fn from_slice(bytes: &'memory [u8]) -> Self {
        Self::at(bytes.as_ptr(), bytes.len())
    }

    /// How many bytes.
    #[inline]
    pub const fn len(&self) -> usize {
        self.length as usize
    }

    /// Whether there are none.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// All but the first `bytes`.
    #[inline]
    pub const fn skip(self, bytes: usize) -> Self {
        // Below a u32, or the length, which is one.
        let bytes = if bytes < self.length as usize { bytes as u32 } else { self.length };
        let length = self.length - bytes;
        if self.pieces.is_some() {
            return Self { length, skipped: self.skipped + bytes, ..self };
        }
        // `wrapping_add` needs no promise; the result is inside or one past the end.
        Self { start: self.start.wrapping_add(bytes as usize), length, ..self }
    }

    /// The first `bytes`, or all if there are fewer.
    #[inline]
    pub const fn take(self, bytes: usize) -> Self {
        // As in `skip`.
        Self { length: if bytes < self.length as usize { bytes as u32 } else { self.length }, ..self }
    }

    /// Copies the bytes from `offset` on into `out`, all of it.
    ///
    /// # Panics
    /// If there are not so many.
    #[inline]
    pub fn copy_to(&self, offset: usize, out: &mut [u8]) {
        assert!(
            offset <= self.len() && out.len() <= self.len() - offset,
            "{} bytes at {offset} are not within {} untrusted bytes",
            out.len(),
            self.length
        );
        if let Some(pieces) = self.pieces {
            return self.copy_from_pieces(pieces, offset, out);
        }
        // SAFETY: inside the range that `from_raw` vouched for (asserted above), readable as long
        // as `'memory`. `out` is an exclusive reference, so the two do not overlap. This process
        // does not write the source (`from_raw`); step 3 of the module is about others.
        unsafe { copy_once(self.start.add(offset), out.as_mut_ptr(), out.len()) };
    }

    #[inline(never)]
    fn copy_from_pieces(&self, pieces: &Pieces, offset: usize, mut out: &mut [u8]) {
        let mut before = self.skipped as usize + offset;
        for piece in pieces.as_slice() {
            let length = piece.length as usize;
            if before >= length {
                before -= length;
                continue;
            }
            let (now, later) = out.split_at_mut((length - before).min(out.len()));
            // SAFETY: inside a piece, and thus inside the mapping that `from_pieces` vouched for;
            // the rest as in `copy_to`.
            unsafe { copy_once(self.start.add(piece.offset as usize + before), now.as_mut_ptr(), now.len()) };
            out = later;
            before = 0;
            if out.is_empty() {
                break;
            }
        }
    }

    /// The first byte, if all of them are together.
    #[inline]
    pub(crate) const fn contiguous(&self) -> Option<*const u8> {
        if self.pieces.is_some() { None } else { Some(self.start) }
    }

    /// A copy of all bytes. Allocates.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut copy = vec![0; self.len()];
        self.copy_to(0, &mut copy);
        copy
    }
}

/// Copies `length` bytes, with a barrier for the compiler behind them: step 3 of the module.
///
/// # Safety
/// Source and destination are valid for so many bytes, and do not overlap. No thread of this
/// process writes the source meanwhile; another process may.
#[inline]
unsafe fn copy_once(from: *const u8, to: *mut u8, length: usize) {
    // SAFETY: the caller's. What another process writes is no access of this program, and any byte
    // is a `u8`.
    unsafe { std::ptr::copy_nonoverlapping(from, to, length) };
    // An empty block that may, for all the compiler knows, have written both sides: nothing is
    // forwarded across it.
    #[cfg(not(miri))]
    // SAFETY: it does nothing.
    unsafe {
        std::arch::asm!("/* {0} {1} */", in(reg) from, in(reg) to, options(nostack, preserves_flags));
    }
}

impl fmt::Debug for Untrusted<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Untrusted({} bytes)", self.length)
    }
}
