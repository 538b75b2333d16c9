//! Deadlines of many things, the earliest first.
//!
//! 1. Each thing (a flow, a half-open connection) has at most one entry in a four-ary heap, and the
//!    heap stores where that entry is.
//! 2. Almost every change of a deadline moves it *later*: each ACK pushes the retransmission out.
//!    That costs nothing here. The thing stores its deadline, its entry stays, and an entry that
//!    comes up too early is put back. [`Timers::no_later`] is O(1) unless the deadline moves
//!    forward.
//! 3. Times are exact: a simulation in virtual time sees no rounding.

use std::marker::PhantomData;

use crate::limits::NEVER;
use crate::tables::index::TableIndex;

const ABSENT: u32 = u32::MAX;
const ARITY: usize = 4;

/// A heap of deadlines of things that are numbered from zero.
#[derive(Debug)]
pub(crate) struct Timers<I> {
    heap: Vec<(u64, u32)>,
    /// Where in the heap the entry of each slot is, or [`ABSENT`].
    position: Vec<u32>,
    index: PhantomData<I>,
}

impl<I: TableIndex> Timers<I> {
    /// No deadlines.
    pub(crate) const fn new() -> Self {
        Self { heap: Vec::new(), position: Vec::new(), index: PhantomData }
    }

    /// The earliest entry's time, or [`NEVER`].
    #[inline]
    pub(crate) fn earliest(&self) -> u64 {
        self.heap.first().map_or(NEVER, |entry| entry.0)
    }

    /// Makes sure that `thing` comes up at `deadline` or before.
    #[inline]
    pub(crate) fn no_later(&mut self, index: I, deadline: u64) {
        match self.position.get(index.slot() as usize) {
            Some(&place) if place != ABSENT && self.heap[place as usize].0 <= deadline => {}
            _ => self.set(index, deadline),
        }
    }

    /// Gives `thing` exactly this deadline; [`NEVER`] cancels it.
    #[inline(never)]
    pub(crate) fn set(&mut self, index: I, deadline: u64) {
        let slot = index.slot() as usize;
        if self.position.len() <= slot {
            self.position.resize(slot + 1, ABSENT);
        }
        let place = match self.position[slot] {
            ABSENT if deadline == NEVER => return,
            ABSENT => {
                self.heap.push((deadline, index.slot()));
                self.heap.len() - 1
            }
            place if deadline == NEVER => return self.remove(place as usize),
            place => {
                self.heap[place as usize].0 = deadline;
                place as usize
            }
        };
        let place = self.sift_up(place);
        self.sift_down(place);
    }

    /// Takes the earliest thing whose time has come.
    pub(crate) fn pop(&mut self, now: u64) -> Option<I> {
        let &(deadline, slot) = self.heap.first()?;
        if deadline > now {
            return None;
        }
        self.remove(0);
        Some(I::from_slot(slot))
    }

    fn remove(&mut self, place: usize) {
        let (_, slot) = self.heap.swap_remove(place);
        self.position[slot as usize] = ABSENT;
        if place < self.heap.len() {
            let place = self.sift_up(place);
            self.sift_down(place);
        }
    }

    fn sift_up(&mut self, mut place: usize) -> usize {
        while place > 0 && self.heap[place].0 < self.heap[(place - 1) / ARITY].0 {
            let parent = (place - 1) / ARITY;
            self.heap.swap(place, parent);
            self.note(place);
            place = parent;
        }
        self.note(place);
        place
    }

    fn sift_down(&mut self, mut place: usize) {
        loop {
            let first = place * ARITY + 1;
            let children = first..(first + ARITY).min(self.heap.len());
            let Some(child) = children.min_by_key(|&child| self.heap[child].0) else { break };
            if self.heap[place].0 <= self.heap[child].0 {
                break;
            }
            self.heap.swap(place, child);
            self.note(place);
            place = child;
        }
        self.note(place);
    }

    fn note(&mut self, place: usize) {
        let slot = self.heap[place].1;
        self.position[slot as usize] = place as u32;
    }
}

#[cfg(test)]
mod tests;
