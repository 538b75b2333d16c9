//! Deadlines of many things, the earliest first.
//!
//! 1. Every thing (a flow, a half-open connection, ...) has at most one entry in a four-ary heap, and the heap
//!    tells it where that is.
//! 2. Almost every change of a deadline moves it *later* (each ACK pushes the retransmission out).
//!    That costs nothing here: the thing stores its deadline, its entry stays, and when the entry
//!    comes up too early it is put back. [`Timers::no_later`] therefore is O(1) unless the deadline
//!    really moves forward.
//! 3. Times are exact: a simulation in virtual time sees no rounding.

use crate::limits::NEVER;

const ABSENT: u32 = u32::MAX;
const ARITY: usize = 4;

/// A heap of deadlines of things that are numbered from zero.
#[derive(Debug, Default)]
pub struct Timers {
    heap: Vec<(u64, u32)>,
    place: Vec<u32>,
}

impl Timers {
    /// The earliest entry's time, or [`NEVER`].
    #[inline]
    pub fn earliest(&self) -> u64 {
        self.heap.first().map_or(NEVER, |entry| entry.0)
    }

    /// Makes sure that `thing` comes up at `deadline` or before.
    #[inline]
    pub fn no_later(&mut self, thing: u32, deadline: u64) {
        match self.place.get(thing as usize) {
            Some(&place) if place != ABSENT && self.heap[place as usize].0 <= deadline => {}
            _ => self.set(thing, deadline),
        }
    }

    /// Gives `thing` exactly this deadline; [`NEVER`] cancels it.
    #[inline(never)]
    pub fn set(&mut self, thing: u32, deadline: u64) {
        let index = thing as usize;
        if self.place.len() <= index {
            self.place.resize(index + 1, ABSENT);
        }
        let place = match self.place[index] {
            ABSENT if deadline == NEVER => return,
            ABSENT => {
                self.heap.push((deadline, thing));
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
    pub fn pop(&mut self, now: u64) -> Option<u32> {
        let &(deadline, thing) = self.heap.first()?;
        if deadline > now {
            return None;
        }
        self.remove(0);
        Some(thing)
    }

    fn remove(&mut self, place: usize) {
        let (_, thing) = self.heap.swap_remove(place);
        self.place[thing as usize] = ABSENT;
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
        let thing = self.heap[place].1;
        self.place[thing as usize] = place as u32;
    }
}

#[cfg(test)]
mod tests;
