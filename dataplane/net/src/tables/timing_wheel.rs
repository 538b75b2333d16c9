//! Deadlines that are reached: a hashed hierarchical timing wheel (Varghese and Lauck, SOSP 1987).
//!
//! 1. Time is cut into ticks of 1024 ns. A deadline is rounded up to a tick: nothing comes up
//!    early, and nothing more than a tick late.
//! 2. There are three wheels. The lowest has a slot for each of the next 256 ticks. The next one
//!    has a slot for each of the next 256 rotations of the lowest, and so on. A thing is in the
//!    slot of the lowest wheel that reaches its deadline, so inserting and cancelling are O(1).
//! 3. When time enters a slot of a higher wheel, its things move to lower wheels; each thing moves
//!    twice at most. A deadline beyond the highest wheel (17 s) is in its last slot, and is put
//!    back when that slot comes up.
//! 4. A bit for each slot says whether it is occupied, so time jumps from one occupied slot to the
//!    next.
//!
//! `timers` is a heap for deadlines that nearly always move before they are reached. This wheel is
//! for deadlines that are reached thousands of times a second: the send times of paced flows. The
//! test `cost_beside_the_heap` measures both.

use std::marker::PhantomData;

use crate::limits::NEVER;
use crate::tables::index::TableIndex;

/// Nanoseconds in a tick, as a power of two.
const TICK_BITS: u32 = 10;
/// Slots of one wheel, as a power of two.
const SLOT_BITS: u32 = 8;
const SLOTS: usize = 1 << SLOT_BITS;
const WHEELS: usize = 3;
/// Ticks that the wheels reach ahead: all slots of the highest but the one that time is in, because
/// that slot has passed.
const REACH: u64 = (1 << (SLOT_BITS * WHEELS as u32)) - (1 << (SLOT_BITS * (WHEELS as u32 - 1)));
/// No thing, or no slot.
const NONE: u32 = u32::MAX;

/// A thing in the list of its slot.
#[derive(Clone, Copy, Debug)]
struct Entry {
    due: u64,
    next: u32,
    previous: u32,
    /// Wheel and slot in one number, or [`NONE`].
    slot: u32,
}

const ABSENT: Entry = Entry { due: 0, next: NONE, previous: NONE, slot: NONE };

/// Deadlines of things that are numbered from zero.
#[derive(Debug)]
pub(crate) struct TimingWheel<I> {
    /// The first thing of each slot, wheel by wheel.
    first: Box<[u32; WHEELS * SLOTS]>,
    occupied: [[u64; SLOTS / 64]; WHEELS],
    entries: Vec<Entry>,
    /// All slots before this tick are empty.
    tick: u64,
    count: usize,
    index: PhantomData<I>,
}

impl<I: TableIndex> TimingWheel<I> {
    /// A wheel without deadlines, at time zero.
    pub(crate) fn new() -> Self {
        Self {
            first: Box::new([NONE; WHEELS * SLOTS]),
            occupied: [[0; SLOTS / 64]; WHEELS],
            entries: Vec::new(),
            tick: 0,
            count: 0,
            index: PhantomData,
        }
    }

    /// When [`TimingWheel::pop`] must be called next, or [`NEVER`]. Far deadlines are rounded down
    /// to the slot of a higher wheel.
    #[inline]
    pub(crate) fn earliest(&self) -> u64 {
        if self.count == 0 {
            NEVER
        } else {
            self.next_occupied().map_or(NEVER, |(tick, _)| tick << TICK_BITS)
        }
    }

    /// Whether nothing has a deadline.
    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Gives `thing` this deadline in place of the one it had.
    pub(crate) fn insert(&mut self, index: I, deadline: u64) {
        let (thing, slot) = (index.slot(), index.slot() as usize);
        if self.entries.len() <= slot {
            self.entries.resize(slot + 1, ABSENT);
        }
        self.cancel(index);
        self.entries[slot].due = deadline.div_ceil(1 << TICK_BITS);
        self.link(thing);
        self.count += 1;
    }

    /// Takes `thing`'s deadline away, if it has one.
    pub(crate) fn cancel(&mut self, index: I) {
        let thing = index.slot();
        if self.entries.get(thing as usize).is_some_and(|entry| entry.slot != NONE) {
            self.unlink(thing);
            self.count -= 1;
        }
    }

    /// Takes a thing whose time has come.
    #[inline]
    pub(crate) fn pop(&mut self, now: u64) -> Option<I> {
        if self.count == 0 {
            self.tick = self.tick.max(now >> TICK_BITS);
            return None;
        }
        self.advance(now >> TICK_BITS)
    }

    fn advance(&mut self, now: u64) -> Option<I> {
        while let Some((tick, wheel)) = self.next_occupied() {
            if tick > now {
                break;
            }
            self.tick = self.tick.max(tick);
            let slot = wheel * SLOTS + slot_of(wheel, tick);
            let thing = self.first[slot];
            if wheel == 0 {
                self.unlink(thing);
                self.count -= 1;
                return Some(I::from_slot(thing));
            }
            // Time enters the slot of a higher wheel: all its things move to lower wheels.
            let mut next = thing;
            while next != NONE {
                let thing = next;
                next = self.entries[thing as usize].next;
                self.unlink(thing);
                self.link(thing);
            }
        }
        self.tick = self.tick.max(now);
        None
    }

    /// The start of the first occupied slot, and its wheel. Of two slots that start at once, that
    /// of the higher wheel comes first: its things may be due at that tick, and must move to a
    /// lower wheel before time advances.
    fn next_occupied(&self) -> Option<(u64, usize)> {
        let mut best: Option<(u64, usize)> = None;
        for wheel in 0..WHEELS {
            let passed = self.tick >> (SLOT_BITS * wheel as u32);
            let from = slot_of(wheel, self.tick);
            if let Some(distance) = self.distance(wheel, from) {
                let start = (passed + distance) << (SLOT_BITS * wheel as u32);
                if best.is_none_or(|(tick, _)| start <= tick) {
                    best = Some((start, wheel));
                }
            }
        }
        best
    }

    /// Slots from `from` to the next occupied one, around the wheel.
    fn distance(&self, wheel: usize, from: usize) -> Option<u64> {
        let words = &self.occupied[wheel];
        let (word, bit) = (from / 64, from % 64);
        let ahead = words[word] >> bit;
        if ahead != 0 {
            return Some(u64::from(ahead.trailing_zeros()));
        }
        for step in 1..=words.len() {
            let found = words[(word + step) % words.len()];
            if found != 0 {
                let distance = 64 * step - bit + found.trailing_zeros() as usize;
                return Some(distance as u64);
            }
        }
        None
    }

    /// Puts a thing into the slot of its deadline.
    fn link(&mut self, thing: u32) {
        let due = self.entries[thing as usize].due.clamp(self.tick, self.tick + REACH - 1);
        // The highest bit in which deadline and present differ says which wheel is the first that
        // has them in different slots. (Past the end of the highest wheel's rotation, its first
        // slots stand for the next rotation.)
        let differing = (u64::BITS - (due ^ self.tick).leading_zeros()).div_ceil(SLOT_BITS) as usize;
        let wheel = differing.clamp(1, WHEELS) - 1;
        let at = slot_of(wheel, due);
        let slot = wheel * SLOTS + at;
        let head = std::mem::replace(&mut self.first[slot], thing);
        if head != NONE {
            self.entries[head as usize].previous = thing;
        }
        let entry = &mut self.entries[thing as usize];
        (entry.next, entry.previous, entry.slot) = (head, NONE, slot as u32);
        self.occupied[wheel][at / 64] |= 1 << (at % 64);
    }

    fn unlink(&mut self, thing: u32) {
        let Entry { next, previous, slot, .. } = self.entries[thing as usize];
        if previous == NONE {
            self.first[slot as usize] = next;
            if next == NONE {
                let (wheel, at) = (slot as usize / SLOTS, slot as usize % SLOTS);
                self.occupied[wheel][at / 64] &= !(1 << (at % 64));
            }
        } else {
            self.entries[previous as usize].next = next;
        }
        if next != NONE {
            self.entries[next as usize].previous = previous;
        }
        let entry = &mut self.entries[thing as usize];
        (entry.next, entry.previous, entry.slot) = (NONE, NONE, NONE);
    }
}

#[inline]
fn slot_of(wheel: usize, tick: u64) -> usize {
    (tick >> (SLOT_BITS * wheel as u32)) as usize & (SLOTS - 1)
}

#[cfg(test)]
mod tests;
