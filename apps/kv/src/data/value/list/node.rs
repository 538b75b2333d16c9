//! A node of a big list: packed entries with room to grow at both ends.
//!
//! ```text
//!  gap (start bytes) | entries, without gaps | spare capacity
//! ```
//!
//! 1. A pop at the front moves `start`, and a push at the front writes before it. When there is no
//!    gap, a new one of half the node's bytes is made, so that a push moves few bytes on average.
//! 2. A node at neither end of its list is [sealed](Node::seal): it has neither gap nor spare
//!    capacity, and an element of 8 bytes takes 10 there.

use crate::data::value::packed::{Content, Encoded, Entries, after, before};
use crate::data::value::size::argument;
use crate::foundation::allocation::allocation;

/// Smallest gap that is made at the front.
const LEAST_GAP: usize = 64;

/// Packed entries.
#[derive(Clone, Debug)]
pub(super) struct Node {
    bytes: Vec<u8>,
    /// Where the first entry starts. Only nodes of several entries have a gap, and these are small.
    start: u32,
    count: u32,
}

impl Node {
    /// Entries that are packed already.
    pub(super) fn of_packed(bytes: &[u8], count: usize) -> Self {
        Self { bytes: bytes.to_vec(), start: 0, count: count as u32 }
    }

    /// One entry.
    pub(super) fn of_entry(entry: &Encoded<'_>) -> Self {
        let mut bytes = vec![0; entry.size()];
        entry.write(&mut bytes, 0);
        Self { bytes, start: 0, count: 1 }
    }

    pub(super) fn start(&self) -> usize {
        self.start as usize
    }

    pub(super) fn end(&self) -> usize {
        self.bytes.len()
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Entries.
    pub(super) fn count(&self) -> usize {
        self.count as usize
    }

    /// Bytes of the entries.
    pub(super) fn used(&self) -> usize {
        self.bytes.len() - self.start()
    }

    /// Bytes on the heap.
    pub(super) fn memory(&self) -> usize {
        allocation(self.bytes.capacity())
    }

    /// The contents of the entries.
    pub(super) fn iter(&self) -> Entries<'_> {
        self.iter_from(self.start())
    }

    /// The contents of the entries from a position on.
    pub(super) fn iter_from(&self, at: usize) -> Entries<'_> {
        Entries::between(&self.bytes, at, self.bytes.len())
    }

    /// Where entry number `number` starts; the end if there are only so many.
    pub(super) fn position(&self, number: usize) -> usize {
        if number <= self.count() / 2 {
            (0..number).fold(self.start(), |at, _| after(&self.bytes, at))
        } else {
            (number..self.count()).fold(self.end(), |end, _| before(&self.bytes, end))
        }
    }

    pub(super) fn push_back(&mut self, entry: &Encoded<'_>) {
        let end = self.bytes.len();
        self.bytes.resize(end + entry.size(), 0);
        entry.write(&mut self.bytes, end);
        self.count += 1;
    }

    pub(super) fn push_front(&mut self, entry: &Encoded<'_>) {
        let (size, used) = (entry.size(), self.used());
        if self.start() < size {
            let gap = size.max(used / 2).max(LEAST_GAP);
            let mut bytes = Vec::with_capacity(gap + used);
            bytes.resize(gap, 0);
            bytes.extend_from_slice(&self.bytes[self.start()..]);
            self.bytes = bytes;
            self.start = gap as u32;
        }
        self.start -= size as u32;
        entry.write(&mut self.bytes, self.start as usize);
        self.count += 1;
    }

    /// Where the entry at one end is, and where it ends.
    pub(super) fn end_entry(&self, front: bool) -> (usize, usize) {
        if front {
            (self.start(), after(&self.bytes, self.start()))
        } else {
            (before(&self.bytes, self.end()), self.end())
        }
    }

    /// Removes the entry at one end, of which there is one.
    pub(super) fn pop(&mut self, front: bool) {
        let (at, end) = self.end_entry(front);
        if front {
            self.start = end as u32;
        } else {
            self.bytes.truncate(at);
        }
        self.count -= 1;
        self.shrink();
    }

    /// Replaces `old` bytes at `at` that are `entries` entries by `new`.
    pub(super) fn splice(&mut self, at: usize, old: usize, entries: usize, new: Option<&Encoded<'_>>) {
        let size = new.map_or(0, Encoded::size);
        let len = self.bytes.len();
        if size > old {
            self.bytes.resize(len + size - old, 0);
        }
        self.bytes.copy_within(at + old..len, at + size);
        self.bytes.truncate(len + size - old);
        if let Some(entry) = new {
            entry.write(&mut self.bytes, at);
        }
        self.count = self.count - entries as u32 + u32::from(new.is_some());
        self.shrink();
    }

    /// Removes entries of `size` bytes each, by their positions in order.
    pub(super) fn remove_all(&mut self, entries: &[(usize, usize)], size: usize) {
        let mut kept = Vec::with_capacity(self.used() - entries.len() * size);
        let mut from = self.start();
        for &(_, at) in entries {
            kept.extend_from_slice(&self.bytes[from..at]);
            from = at + size;
        }
        kept.extend_from_slice(&self.bytes[from..]);
        self.bytes = kept;
        self.start = 0;
        self.count -= entries.len() as u32;
    }

    /// Splits it before the entry number `number` at `at`; returns the second part.
    pub(super) fn split(&mut self, at: usize, number: usize) -> Self {
        let second = Self::of_packed(&self.bytes[at..], self.count() - number);
        self.bytes.truncate(at);
        self.count = number as u32;
        self.seal();
        second
    }

    /// Puts the entries of the next node behind those of this one.
    pub(super) fn append(&mut self, next: &Self) {
        self.bytes.extend_from_slice(&next.bytes[next.start()..]);
        self.count += next.count;
        self.seal();
    }

    /// Removes gap and spare capacity.
    pub(super) fn seal(&mut self) {
        if self.bytes.capacity() > self.used() {
            self.bytes.drain(..self.start as usize);
            self.start = 0;
            self.bytes.shrink_to_fit();
        }
    }

    /// Removes gap and spare capacity once they are three quarters of the node.
    fn shrink(&mut self) {
        if self.bytes.capacity() > 4 * self.used() + LEAST_GAP {
            self.seal();
        }
    }
}

/// Bytes of an element in an effect.
pub(super) fn content_of(content: Content<'_>) -> usize {
    argument(content.text().len())
}

/// The numbers and positions of the entries between two positions that equal `wanted`.
pub(super) fn matching(bytes: &[u8], from: usize, to: usize, wanted: &Encoded<'_>) -> Vec<(usize, usize)> {
    let (mut found, mut at, mut number) = (Vec::new(), from, 0);
    while at < to {
        if wanted.is_at(bytes, at) {
            found.push((number, at));
        }
        at = after(bytes, at);
        number += 1;
    }
    found
}
