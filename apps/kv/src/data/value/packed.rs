//! A small collection in one allocation.
//!
//! ```text
//!  kind  count   content  entries
//!  1     3       4        ...       bytes
//! ```
//!
//! 1. The kind tells two owners of such bytes apart ([`Set`](super::Set) has two of them), the
//!    count is the collection's length, and the content is what its elements take in effects.
//! 2. The entries follow each other without gaps; see [`entry`]. An element has one entry or two.
//! 3. The allocation is exactly as long as its bytes. A change moves all bytes behind it and
//!    reallocates, and a search walks all entries: the owner converts the collection before it has
//!    more than [`MOST_PACKED_ENTRIES`](super::limits::MOST_PACKED_ENTRIES) elements or
//!    [`MOST_PACKED_BYTES`](super::limits::MOST_PACKED_BYTES), so both are bounded.
//! 4. An empty collection has no header.
//! 5. Such bytes may follow others of an owner in one allocation, as those of an entry of the
//!    keyspace follow its key. [`Packed`] keeps these bytes as they are.
//!
//! The bytes come from this module alone: they are never read from a client, a disk or a peer.

mod entry;

pub(crate) use entry::Text;
pub(super) use entry::{Content, Encoded, after, before, read};

use crate::foundation::allocation::allocation;

/// Bytes before the entries.
pub(super) const HEADER: usize = 8;

/// The elements of a small collection, behind bytes that its owner keeps in the same allocation.
#[derive(Clone, Debug, Default)]
pub(super) struct Packed {
    /// The owner's bytes, the header and the entries.
    allocated: Box<[u8]>,
    /// Bytes of the owner. Positions are counted from their end.
    front: usize,
}

/// The elements of a small collection, to be read.
#[derive(Clone, Copy, Debug)]
pub(super) struct PackedRef<'a>(&'a [u8]);

impl<'a> PackedRef<'a> {
    /// Header and entries as [`PackedRef::bytes`] returned them, or no bytes.
    pub(super) fn of(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// See [`Packed::of_kind`]; 0 unless it was given.
    pub(super) fn kind(self) -> u8 {
        self.0.first().copied().unwrap_or(0)
    }

    /// Elements.
    #[inline]
    pub(super) fn len(self) -> usize {
        self.0.first_chunk().map_or(0, |&[_, a, b, c]| u32::from_le_bytes([a, b, c, 0]) as usize)
    }

    /// Bytes of the elements in effects.
    #[inline]
    pub(super) fn content(self) -> usize {
        self.0
            .first_chunk::<HEADER>()
            .map_or(0, |&[_, _, _, _, a, b, c, d]| u32::from_le_bytes([a, b, c, d]) as usize)
    }

    /// Bytes of an allocation of its own.
    pub(super) fn memory(self) -> usize {
        allocation(self.0.len())
    }

    /// A copy, without bytes of an owner.
    pub(super) fn to_packed(self) -> Packed {
        Packed { allocated: self.0.into(), front: 0 }
    }

    /// Header and entries.
    #[inline]
    pub(super) fn bytes(self) -> &'a [u8] {
        self.0
    }

    /// Where the first entry starts; the end if there is none.
    #[inline]
    pub(super) fn start(self) -> usize {
        HEADER.min(self.0.len())
    }

    /// The end of the last entry.
    #[inline]
    pub(super) fn end(self) -> usize {
        self.0.len()
    }

    /// Where `wanted` starts, among every `step`th entry.
    #[inline]
    pub(super) fn find(self, wanted: &Encoded<'_>, step: usize) -> Option<usize> {
        let bytes = self.0;
        let mut at = self.start();
        while at < bytes.len() {
            if wanted.is_at(bytes, at) {
                return Some(at);
            }
            for _ in 0..step {
                at = after(bytes, at);
            }
        }
        None
    }

    /// Where the entry number `number` starts.
    pub(super) fn nth(self, number: usize) -> usize {
        (0..number).fold(self.start(), |at, _| after(self.0, at))
    }

    /// The contents of all entries.
    pub(super) fn iter(self) -> Entries<'a> {
        Entries { bytes: self.0, from: self.start(), to: self.0.len() }
    }
}

impl Packed {
    /// Nothing yet, of this kind.
    pub(super) fn of_kind(kind: u8) -> Self {
        let mut bytes = [0; HEADER];
        bytes[0] = kind;
        Self { allocated: Box::new(bytes), front: 0 }
    }

    /// `front` bytes of an owner, and then what [`PackedRef::bytes`] returned.
    pub(super) fn behind(front: usize, allocated: Box<[u8]>) -> Self {
        Self { allocated, front }
    }

    /// The whole allocation, and how many bytes of it are the owner's.
    pub(super) fn into_allocated(self) -> (Box<[u8]>, usize) {
        (self.allocated, self.front)
    }

    /// The same, to be read.
    #[inline]
    pub(super) fn view(&self) -> PackedRef<'_> {
        PackedRef(&self.allocated[self.front..])
    }

    /// Header and entries, to be changed in place.
    #[inline]
    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.allocated[self.front..]
    }

    /// Adds to the number of elements and to the bytes that they take in effects.
    pub(super) fn count(&mut self, elements: isize, content: isize) {
        let Some([kind, a, b, c, rest @ ..]) = self.bytes_mut().first_chunk_mut::<HEADER>() else { return };
        let len = (u32::from_le_bytes([*a, *b, *c, 0]) as usize).wrapping_add_signed(elements);
        [*a, *b, *c, _] = (len as u32).to_le_bytes();
        let old = u32::from_le_bytes(*rest) as usize;
        *rest = (old.wrapping_add_signed(content) as u32).to_le_bytes();
        if len == 0 && *kind == 0 {
            self.clear();
        }
    }

    /// Removes the header and all elements; the kind is 0 then.
    pub(super) fn clear(&mut self) {
        self.resize(0, self.view().end(), 0);
    }

    /// Replaces `old` bytes at `at` by `new` bytes that the caller writes.
    pub(super) fn resize(&mut self, at: usize, old: usize, new: usize) {
        if old == new {
            return;
        }
        let at = self.front + at;
        let mut bytes = std::mem::take(&mut self.allocated).into_vec();
        let len = bytes.len();
        if new > old {
            bytes.reserve_exact(new - old);
            bytes.resize(len + (new - old), 0);
            bytes.copy_within(at + old..len, at + new);
        } else {
            bytes.copy_within(at + old.., at + new);
            bytes.truncate(len - (old - new));
        }
        self.allocated = bytes.into_boxed_slice();
    }

    /// Replaces `old` bytes at `at` by entries. Makes the header first if there is none.
    pub(super) fn splice(&mut self, at: usize, old: usize, entries: &[Encoded<'_>]) {
        let mut at = at;
        let size: usize = entries.iter().map(Encoded::size).sum();
        if self.view().end() == 0 {
            self.resize(0, 0, HEADER + size);
            at = HEADER;
        } else {
            self.resize(at, old, size);
        }
        let bytes = self.bytes_mut();
        for entry in entries {
            at = entry.write(bytes, at);
        }
    }
}

/// The contents of entries that follow each other.
#[derive(Clone, Debug)]
pub(super) struct Entries<'a> {
    bytes: &'a [u8],
    from: usize,
    to: usize,
}

impl<'a> Entries<'a> {
    /// The entries between two positions.
    pub(super) fn between(bytes: &'a [u8], from: usize, to: usize) -> Self {
        Self { bytes, from, to }
    }
}

impl<'a> Iterator for Entries<'a> {
    type Item = Content<'a>;

    #[inline]
    fn next(&mut self) -> Option<Content<'a>> {
        if self.from >= self.to {
            return None;
        }
        let (content, next) = read(self.bytes, self.from);
        self.from = next;
        Some(content)
    }
}

impl DoubleEndedIterator for Entries<'_> {
    fn next_back(&mut self) -> Option<Self::Item> {
        if self.from >= self.to {
            return None;
        }
        self.to = before(self.bytes, self.to);
        Some(read(self.bytes, self.to).0)
    }
}
