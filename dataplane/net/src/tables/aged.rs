//! A bounded table of small values of which the oldest can be found, each with a deadline.
//!
//! 1. A removed value leaves a free slot, which the next insertion takes.
//! 2. `order` lists insertions by age. A record is stale if its generation is not its slot's any
//!    more. It is dropped when it comes to the front, or when stale records outnumber the others.
//! 3. Each value has at most one deadline; removing the value cancels it.

use std::collections::VecDeque;

use crate::limits::NEVER;
use crate::tables::index::TableIndex;
use crate::tables::timers::Timers;

/// See the module.
#[derive(Debug)]
pub(crate) struct AgedTable<I, T> {
    slots: Vec<(u32, Option<T>)>,
    free: Vec<u32>,
    order: VecDeque<(u32, u32)>,
    timers: Timers<I>,
    limit: usize,
}

impl<I: TableIndex, T> AgedTable<I, T> {
    pub(crate) fn new(limit: usize) -> Self {
        Self { slots: Vec::new(), free: Vec::new(), order: VecDeque::new(), timers: Timers::new(), limit }
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub(crate) fn is_full(&self) -> bool {
        self.len() >= self.limit
    }

    pub(crate) fn get(&self, index: I) -> Option<&T> {
        self.slots.get(index.slot() as usize)?.1.as_ref()
    }

    pub(crate) fn get_mut(&mut self, index: I) -> Option<&mut T> {
        self.slots.get_mut(index.slot() as usize)?.1.as_mut()
    }

    /// All values, in no order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.slots.iter().filter_map(|slot| slot.1.as_ref())
    }

    /// Puts `value` into a free slot. The caller has checked that the table is not full.
    pub(crate) fn insert(&mut self, value: T) -> I {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push((0, None));
            (self.slots.len() - 1) as u32
        });
        let slot = &mut self.slots[index as usize];
        slot.0 = slot.0.wrapping_add(1);
        slot.1 = Some(value);
        let generation = slot.0;
        self.drop_stale();
        self.order.push_back((index, generation));
        I::from_slot(index)
    }

    /// Takes a value out and cancels its deadline.
    pub(crate) fn remove(&mut self, index: I) -> Option<T> {
        let value = self.slots.get_mut(index.slot() as usize)?.1.take()?;
        self.timers.set(index, NEVER);
        self.free.push(index.slot());
        Some(value)
    }

    /// The index of the oldest value.
    pub(crate) fn oldest(&mut self) -> Option<I> {
        self.drop_stale();
        self.order.front().map(|entry| I::from_slot(entry.0))
    }

    /// Sets the deadline of a value in place of the one it had.
    pub(crate) fn set_deadline(&mut self, index: I, deadline: u64) {
        self.timers.set(index, deadline);
    }

    /// The earliest deadline, or [`NEVER`].
    #[inline]
    pub(crate) fn earliest(&self) -> u64 {
        self.timers.earliest()
    }

    /// The next value whose deadline has passed; it has none afterwards.
    pub(crate) fn pop_due(&mut self, now: u64) -> Option<I> {
        self.timers.pop(now)
    }

    /// Drops the records of removed values: those in front always, all of them when they outnumber
    /// the others.
    fn drop_stale(&mut self) {
        let slots = &self.slots;
        let live = |&(index, generation): &(u32, u32)| {
            let slot = &slots[index as usize];
            slot.0 == generation && slot.1.is_some()
        };
        while self.order.front().is_some_and(|entry| !live(entry)) {
            self.order.pop_front();
        }
        if self.order.len() > 64 + 2 * (self.slots.len() - self.free.len()) {
            self.order.retain(live);
        }
    }
}
