//! A list: a deque of chunks of elements.
//!
//! Both ends are O(1); an index is found by walking the chunks from the nearer end; an insertion or
//! a removal inside moves at most one chunk's elements (and, when a chunk is split, the chunks' own
//! positions).

use std::collections::VecDeque;

use super::size::{allocation, argument};

/// Elements in a chunk: a few kilobytes of pointers, so that a million elements are eight thousand
/// steps.
const CHUNK: usize = 128;

type Element = Box<[u8]>;

/// A list value.
#[derive(Clone, Debug, Default)]
pub(crate) struct List {
    /// No chunk is empty.
    chunks: VecDeque<VecDeque<Element>>,
    len: usize,
    /// Bytes of the elements' allocations.
    bytes: usize,
    /// Bytes of the elements in effects.
    content: usize,
}

impl List {
    /// An empty list.
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Elements.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Estimated bytes on the heap.
    pub(crate) fn memory(&self) -> usize {
        self.bytes + self.len * size_of::<Element>() + self.chunks.capacity() * size_of::<VecDeque<Element>>()
    }

    /// Bytes of the elements in effects.
    pub(crate) fn content(&self) -> usize {
        self.content
    }

    fn count_in(&mut self, element: &[u8]) {
        self.len += 1;
        self.bytes += allocation(element.len());
        self.content += argument(element.len());
    }

    fn count_out(&mut self, element: &[u8]) {
        self.len -= 1;
        self.bytes -= allocation(element.len());
        self.content -= argument(element.len());
    }

    /// Puts an element before the first.
    pub(crate) fn push_front(&mut self, element: &[u8]) {
        self.count_in(element);
        match self.chunks.front_mut() {
            Some(chunk) if chunk.len() < CHUNK => chunk.push_front(element.into()),
            _ => self.chunks.push_front(VecDeque::from([element.into()])),
        }
    }

    /// Puts an element after the last.
    pub(crate) fn push_back(&mut self, element: &[u8]) {
        self.count_in(element);
        match self.chunks.back_mut() {
            Some(chunk) if chunk.len() < CHUNK => chunk.push_back(element.into()),
            _ => self.chunks.push_back(VecDeque::from([element.into()])),
        }
    }

    /// Puts an element at one end.
    pub(crate) fn push(&mut self, front: bool, element: &[u8]) {
        if front { self.push_front(element) } else { self.push_back(element) }
    }

    /// Takes the first element.
    pub(crate) fn pop_front(&mut self) -> Option<Box<[u8]>> {
        let chunk = self.chunks.front_mut()?;
        let element = chunk.pop_front()?;
        if chunk.is_empty() {
            self.chunks.pop_front();
        }
        self.count_out(&element);
        Some(element)
    }

    /// Takes the last element.
    pub(crate) fn pop_back(&mut self) -> Option<Box<[u8]>> {
        let chunk = self.chunks.back_mut()?;
        let element = chunk.pop_back()?;
        if chunk.is_empty() {
            self.chunks.pop_back();
        }
        self.count_out(&element);
        Some(element)
    }

    /// Takes the element at one end.
    pub(crate) fn pop(&mut self, front: bool) -> Option<Box<[u8]>> {
        if front { self.pop_front() } else { self.pop_back() }
    }

    /// The chunk that holds `index` and the position within it.
    fn find(&self, index: usize) -> Option<(usize, usize)> {
        if index >= self.len {
            return None;
        }
        if index < self.len / 2 {
            let mut left = index;
            for (number, chunk) in self.chunks.iter().enumerate() {
                if left < chunk.len() {
                    return Some((number, left));
                }
                left -= chunk.len();
            }
        } else {
            let mut left = self.len - index;
            for (number, chunk) in self.chunks.iter().enumerate().rev() {
                if left <= chunk.len() {
                    return Some((number, chunk.len() - left));
                }
                left -= chunk.len();
            }
        }
        None
    }

    /// The element at `index`, counted from the front.
    pub(crate) fn get(&self, index: usize) -> Option<&[u8]> {
        let (number, position) = self.find(index)?;
        Some(&self.chunks[number][position])
    }

    /// Replaces the element at `index`; false if there is none.
    pub(crate) fn set(&mut self, index: usize, element: &[u8]) -> bool {
        let Some((number, position)) = self.find(index) else {
            return false;
        };
        let old = std::mem::replace(&mut self.chunks[number][position], element.into());
        self.count_out(&old);
        self.count_in(element);
        true
    }

    /// Puts an element before the one at `index`, which may be the length.
    pub(crate) fn insert(&mut self, index: usize, element: &[u8]) {
        let Some((mut number, mut position)) = self.find(index) else {
            self.push_back(element);
            return;
        };
        self.count_in(element);
        if self.chunks[number].len() >= CHUNK {
            let tail = self.chunks[number].split_off(CHUNK / 2);
            self.chunks.insert(number + 1, tail);
            if position > CHUNK / 2 {
                number += 1;
                position -= CHUNK / 2;
            }
        }
        self.chunks[number].insert(position, element.into());
    }

    /// Removes up to `limit` elements equal to `element`, from the front or from the back, and
    /// returns how many, and how many of them were among the first `head` elements.
    pub(crate) fn remove_equal(
        &mut self,
        element: &[u8],
        limit: usize,
        from_back: bool,
        head: usize,
    ) -> (usize, usize) {
        let (mut removed, mut removed_of_head) = (0, 0);
        // Elements that were passed, from the end where the search began.
        let (len, mut passed) = (self.len, 0);
        let chunks: &mut dyn Iterator<Item = &mut VecDeque<Element>> =
            if from_back { &mut self.chunks.iter_mut().rev() } else { &mut self.chunks.iter_mut() };
        for chunk in chunks {
            let first = if from_back { len - passed - chunk.len() } else { passed };
            passed += chunk.len();
            let matching = chunk.iter().filter(|old| ***old == *element).count();
            if matching == 0 {
                continue;
            }
            // From the back, the first ones of a chunk stay when the limit is reached inside it.
            let take = matching.min(limit - removed);
            let mut skip = if from_back { matching - take } else { 0 };
            let mut left = take;
            let mut position = first;
            chunk.retain(|old| {
                position += 1;
                if **old != *element || left == 0 {
                    return true;
                }
                if skip > 0 {
                    skip -= 1;
                    return true;
                }
                left -= 1;
                removed_of_head += usize::from(position <= head);
                false
            });
            removed += take;
            if removed == limit {
                break;
            }
        }
        self.chunks.retain(|chunk| !chunk.is_empty());
        self.len -= removed;
        self.bytes -= removed * allocation(element.len());
        self.content -= removed * argument(element.len());
        (removed, removed_of_head)
    }

    /// Keeps `count` elements from `start` on.
    pub(crate) fn trim(&mut self, start: usize, count: usize) {
        let start = start.min(self.len);
        let end = start.saturating_add(count).min(self.len);
        self.drop_front(start);
        self.drop_back(self.len - (end - start));
        if self.chunks.capacity() > 4 * self.chunks.len() + 4 {
            self.chunks.shrink_to(2 * self.chunks.len());
        }
    }

    fn drop_front(&mut self, mut count: usize) {
        while count > 0 && self.pop_front().is_some() {
            count -= 1;
        }
    }

    fn drop_back(&mut self, mut count: usize) {
        while count > 0 && self.pop_back().is_some() {
            count -= 1;
        }
    }

    /// All elements from the front, or from the back if reversed (`rev`).
    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = &[u8]> {
        self.chunks.iter().flat_map(|chunk| chunk.iter().map(|element| &**element))
    }

    /// The elements from `start` on, found without walking those before it one by one.
    pub(crate) fn iter_from(&self, start: usize) -> impl Iterator<Item = &[u8]> {
        let (number, position) = self.find(start).unwrap_or((self.chunks.len(), 0));
        self.chunks.range(number..).flat_map(|chunk| chunk.iter().map(|element| &**element)).skip(position)
    }

    /// Drops about `budget` elements; whether nothing is left.
    pub(crate) fn release(&mut self, budget: usize) -> bool {
        self.drop_back(budget);
        self.len == 0
    }
}
