//! A segment of an index: elements in a dense vector, and a table of their positions.
//!
//! 1. The table is open-addressing. A bucket is the position of an element (two bytes) and a byte
//!    of its hash, so buckets that are free cost three bytes and not an element.
//! 2. The vector has room for a multiple of [`STEP`] elements ([`room`]). Segments are of nearly
//!    the same size and grow at nearly the same time, so memory that one of them frees fits another
//!    one exactly.
//! 3. A removal moves the last element into the free position.

use hashbrown::HashTable;

use crate::foundation::allocation::allocation;

/// The vector grows by so many elements once it has more than half as many.
const STEP: usize = 32;

/// Elements from which on a segment grows at once to the size that is expected. Before, its vector
/// grows only once.
const FEW: usize = 4;

/// Elements that a vector of `count` has room for.
fn room(count: usize) -> usize {
    if count <= STEP / 2 { count.next_power_of_two().max(4) } else { count.next_multiple_of(STEP) }
}

/// Elements of an index whose hashes have the same top bits.
#[derive(Clone)]
pub(super) struct Segment<T> {
    elements: Vec<T>,
    table: HashTable<u16>,
    /// The top `depth` bits of the hashes of its elements, in the low bits.
    pub(super) prefix: u64,
    pub(super) depth: u32,
    /// Elements at which it splits: `SEGMENT_LIMIT` unless that was of no use.
    pub(super) limit: u32,
}

impl<T> Segment<T> {
    /// A segment without elements.
    pub(super) fn new(prefix: u64, depth: u32, limit: usize) -> Self {
        Self { elements: Vec::new(), table: HashTable::new(), prefix, depth, limit: limit as u32 }
    }

    /// The first slot that names this segment and how many do.
    pub(super) fn slots(&self, directory_depth: u32) -> (usize, usize) {
        let shift = directory_depth - self.depth;
        ((self.prefix as usize) << shift, 1 << shift)
    }

    /// Elements.
    pub(super) fn len(&self) -> usize {
        self.elements.len()
    }

    /// Its elements.
    pub(super) fn elements(&self) -> &[T] {
        &self.elements
    }

    /// Bytes on the heap.
    pub(super) fn memory(&self) -> usize {
        allocation(self.elements.capacity() * size_of::<T>()) + allocation(self.table.allocation_size())
    }

    /// The position of the element of this hash for which `is` holds.
    #[inline]
    pub(super) fn position(&self, hash: u64, is: impl Fn(&T) -> bool) -> Option<u16> {
        self.table.find(hash, |&position| is(&self.elements[usize::from(position)])).copied()
    }

    /// The element of this hash for which `is` holds.
    #[inline]
    pub(super) fn find(&self, hash: u64, is: impl Fn(&T) -> bool) -> Option<&T> {
        self.position(hash, is).map(|position| &self.elements[usize::from(position)])
    }

    /// The element at a position, to be changed.
    #[inline]
    pub(super) fn at_mut(&mut self, position: u16) -> &mut T {
        &mut self.elements[usize::from(position)]
    }

    /// The element of this hash for which `is` holds, to be changed.
    #[inline]
    pub(super) fn find_mut(&mut self, hash: u64, is: impl Fn(&T) -> bool) -> Option<&mut T> {
        self.position(hash, is).map(|position| self.at_mut(position))
    }

    /// Adds an element that is not there. `hasher` must give the hash that each was added with.
    ///
    /// # Panics
    /// It has 65,535 elements: so many keys with the same 26 bits of a secret hash.
    pub(super) fn add(&mut self, hash: u64, element: T, hasher: impl Fn(&T) -> u64) {
        let position = u16::try_from(self.elements.len()).expect("segments split long before");
        if self.elements.len() == self.elements.capacity() {
            self.elements.reserve_exact(room(self.elements.len() + 1) - self.elements.len());
        }
        self.elements.push(element);
        let elements = &self.elements;
        self.table.insert_unique(hash, position, |&position| hasher(&elements[usize::from(position)]));
    }

    /// Takes the element of this hash out for which `is` holds.
    pub(super) fn remove(
        &mut self,
        hash: u64,
        is: impl Fn(&T) -> bool,
        hasher: impl Fn(&T) -> u64,
    ) -> Option<T> {
        let elements = &self.elements;
        let entry = self.table.find_entry(hash, |&position| is(&elements[usize::from(position)])).ok()?;
        let (position, _) = entry.remove();
        let last = (self.elements.len() - 1) as u16;
        if position != last {
            let moved = hasher(&self.elements[usize::from(last)]);
            if let Some(place) = self.table.find_mut(moved, |&other| other == last) {
                *place = position;
            }
        }
        Some(self.elements.swap_remove(usize::from(position)))
    }

    /// Takes all elements out.
    pub(super) fn drain(&mut self) -> Vec<T> {
        self.table = HashTable::new();
        std::mem::take(&mut self.elements)
    }

    /// Makes room for so many elements in all.
    pub(super) fn reserve(&mut self, count: usize) {
        self.elements.reserve_exact(room(count) - self.elements.len().min(count));
        self.table = HashTable::with_capacity(count);
    }

    /// If the next element needs more memory, makes room for so many in all at once. A segment with
    /// few elements may stay so.
    pub(super) fn grow_to(&mut self, count: usize, hasher: impl Fn(&T) -> u64) {
        let len = self.elements.len();
        if len == self.elements.capacity() && (FEW..count).contains(&len) {
            self.elements.reserve_exact(room(count) - len);
            let elements = &self.elements;
            self.table.reserve(count - len, |&position| hasher(&elements[usize::from(position)]));
        }
    }

    /// Gives a nearly empty segment less memory.
    pub(super) fn shrink(&mut self, hasher: impl Fn(&T) -> u64) {
        let len = self.elements.len();
        if len == 0 {
            self.drain();
            return;
        }
        if self.elements.capacity() > 2 * room(len) {
            self.elements.shrink_to(room(len));
        }
        // The table's capacity does not count what removed elements leave behind.
        if self.table.num_buckets() > 8 && self.table.num_buckets() > 8 * len {
            let elements = &self.elements;
            self.table.shrink_to(2 * len, |&position| hasher(&elements[usize::from(position)]));
        }
    }
}
