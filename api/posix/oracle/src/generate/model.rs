//! The generator's model of the slots.

use super::random::Random;
use crate::operation::words::Slot;

/// The kind of descriptor in a slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Kind {
    /// Nothing yet.
    #[default]
    Empty,
    /// A number that was closed.
    Closed,
    /// A socket that is neither bound nor connected.
    Fresh,
    /// A bound socket.
    Bound,
    /// A listener.
    Listening,
    /// A connection.
    Connected,
    /// An `epoll`.
    Epoll,
    /// The end of a pipe that is read.
    PipeReader,
    /// The end of a pipe that is written.
    PipeWriter,
    /// An `eventfd`.
    Event,
    /// A file in memory.
    File,
    /// A Unix stream socket.
    Unix,
}

/// The state of a slot, as far as the generator knows it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SlotState {
    /// The kind of descriptor.
    pub kind: Kind,
    /// Whether it is a socket of IPv6.
    pub six: bool,
    /// The other end.
    pub peer: Option<Slot>,
    /// Bytes that wait to be received, about.
    pub waiting: i64,
    /// Bytes that were sent to it in all, about.
    pub total: i64,
    /// Connections that wait to be accepted.
    pub connections: usize,
    /// Whether calls on it do not block.
    pub nonblocking: bool,
    /// Whether its port may be shared with another socket.
    pub shared: bool,
}

/// All slots and actors.
#[derive(Clone, Debug, Default)]
pub(super) struct Model {
    slots: [SlotState; Slot::COUNT as usize],
    /// Which children run.
    pub children: [bool; 2],
    /// Whether a call was started that has not been joined.
    pub thread_sleeps: bool,
}

impl Model {
    /// The kind of descriptor in a slot.
    pub(super) fn at(&mut self, slot: Slot) -> &mut SlotState {
        &mut self.slots[slot.index()]
    }

    /// A slot of one of those kinds.
    pub(super) fn some(&self, random: &mut Random, kinds: &[Kind]) -> Option<Slot> {
        let fitting: Vec<_> = (0..Slot::COUNT)
            .map(Slot)
            .filter(|slot| kinds.contains(&self.slots[slot.index()].kind))
            .collect();
        (!fitting.is_empty()).then(|| random.one(&fitting))
    }

    /// A slot of one of those kinds, or once in a while, or if there is none, any.
    pub(super) fn likely(&self, random: &mut Random, kinds: &[Kind]) -> Slot {
        if random.percent(93)
            && let Some(slot) = self.some(random, kinds)
        {
            return slot;
        }
        self.any(random)
    }

    /// A slot that is or was in use; the first if there is none.
    pub(super) fn any(&self, random: &mut Random) -> Slot {
        let used: Vec<_> =
            (0..Slot::COUNT).map(Slot).filter(|slot| self.slots[slot.index()].kind != Kind::Empty).collect();
        if used.is_empty() { Slot(0) } else { random.one(&used) }
    }

    /// A slot for a new descriptor: an empty one, else any.
    pub(super) fn free(&mut self, random: &mut Random) -> Slot {
        let slot = self
            .some(random, &[Kind::Empty, Kind::Closed])
            .unwrap_or_else(|| Slot(u8::try_from(random.below(usize::from(Slot::COUNT))).unwrap_or(0)));
        // Nothing is sent to a descriptor without a slot.
        for state in &mut self.slots {
            if state.peer == Some(slot) {
                state.peer = None;
            }
        }
        *self.at(slot) = SlotState { kind: Kind::Closed, ..SlotState::default() };
        slot
    }

    /// Bytes were sent from a slot.
    pub(super) fn sent(&mut self, slot: Slot, length: i64) {
        if let Some(peer) = self.at(slot).peer {
            self.at(peer).waiting += length;
            self.at(peer).total += length;
        }
    }

    /// Whether so little was sent that no window can be full.
    pub(super) fn has_room(&mut self, slot: Slot) -> bool {
        match self.at(slot).peer {
            Some(peer) => self.at(peer).waiting < 15_000,
            None => self.at(slot).total < 15_000,
        }
    }
}
