//! The reads of cursors that are in flight (`super::super::read`).

use std::io;
use std::sync::{Arc, Weak};

use sietch_disk::Buffer;

use crate::limits::MAX_READS;

pub(in crate::log) enum Slot {
    Free,
    Flying(Weak<()>),
    Done(Weak<()>, io::Result<()>, Buffer),
}

/// The reads in flight.
#[derive(Default)]
pub(in crate::log) struct Reads {
    pub(in crate::log) slots: Vec<Slot>,
}

impl Reads {
    /// An unused slot.
    pub(in crate::log) fn take(&mut self, life: &Arc<()>) -> Option<usize> {
        let unused = |slot: &Slot| match slot {
            Slot::Free => true,
            Slot::Flying(_) => false,
            Slot::Done(owner, ..) => owner.strong_count() == 0,
        };
        let slot = match self.slots.iter().position(unused) {
            Some(slot) => slot,
            None if self.slots.len() < MAX_READS => {
                self.slots.push(Slot::Free);
                self.slots.len() - 1
            }
            None => return None,
        };
        self.slots[slot] = Slot::Flying(Arc::downgrade(life));
        Some(slot)
    }

    pub(in crate::log) fn free(&mut self, slot: usize) {
        if let Some(slot) = self.slots.get_mut(slot) {
            *slot = Slot::Free;
        }
    }

    /// The result of the read in `slot`; `None`: it is in flight.
    pub(in crate::log) fn collect(&mut self, slot: usize) -> Option<(io::Result<()>, Buffer)> {
        let place = self.slots.get_mut(slot)?;
        match std::mem::replace(place, Slot::Free) {
            Slot::Done(_, result, buffer) => Some((result, buffer)),
            other => {
                *place = other;
                None
            }
        }
    }

    /// Takes a completion.
    pub(in crate::log) fn finish(&mut self, ticket: u64, result: io::Result<()>, buffer: Option<Buffer>) {
        let Some(slot) = usize::try_from(ticket).ok().and_then(|ticket| self.slots.get_mut(ticket)) else {
            return;
        };
        if let (Slot::Flying(owner), Some(buffer)) = (std::mem::replace(slot, Slot::Free), buffer)
            && owner.strong_count() > 0
        {
            *slot = Slot::Done(owner, result, buffer);
        }
    }
}
