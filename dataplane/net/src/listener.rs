//! Listening ports and their half-open connections.
//!
//! 1. A SYN for a listening port makes an [`HalfOpen`]: 96 bytes, no buffers. The SYN-ACK goes back
//!    to the link address that the SYN came from, and is repeated with backoff.
//! 2. When all half-open connections are used up, a SYN is answered with a cookie and no half-open connection is made
//!    (`syn_cookie`): under a flood of forged SYNs honest handshakes still get through, and memory
//!    stays bounded.
//! 3. The ACK of our SYN turns the half-open connection into a flow, provided that the listener has fewer than
//!    `backlog` connections that the application has not taken. Otherwise the half-open connection stays, and its
//!    repeated SYN-ACK asks the peer again.

use std::collections::VecDeque;

use crate::flow_table::Name;
use crate::sequence::Seq;

/// A listening port.
#[derive(Debug)]
pub(crate) struct Listener {
    pub backlog: u32,
    /// Connections whose Accepted event was not taken.
    pub waiting: u32,
}

/// A half-open passive connection: SYN-RECEIVED.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HalfOpen {
    pub name: Name,
    pub irs: Seq,
    pub iss: Seq,
    pub mac: [u8; 6],
    pub peer_mss: Option<u16>,
    /// The peer's window scale, if it scales.
    pub shift: Option<u8>,
    pub timestamps: bool,
    /// Whether the peer takes selective acknowledgements.
    pub sack: bool,
    /// Whether marks of congestion are agreed on.
    pub ecn: bool,
    pub ts_recent: u32,
    pub ts_offset: u32,
    pub retransmits: u8,
    /// The window that our SYN-ACK announces, not scaled.
    pub window: u16,
    pub sent_at: u64,
    pub challenged_at: u64,
}

const _: () = assert!(size_of::<Option<HalfOpen>>() <= 96);

/// A slab of small things of which the oldest can be found.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    slots: Vec<(u32, Option<T>)>,
    free: Vec<u32>,
    order: VecDeque<(u32, u32)>,
    limit: usize,
}

impl<T> Slab<T> {
    pub fn new(limit: usize) -> Self {
        Self { slots: Vec::new(), free: Vec::new(), order: VecDeque::new(), limit }
    }

    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub fn is_full(&self) -> bool {
        self.len() >= self.limit
    }

    pub fn get(&self, index: u32) -> Option<&T> {
        self.slots.get(index as usize)?.1.as_ref()
    }

    pub fn get_mut(&mut self, index: u32) -> Option<&mut T> {
        self.slots.get_mut(index as usize)?.1.as_mut()
    }

    /// All values, in no order.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.slots.iter().filter_map(|slot| slot.1.as_ref())
    }

    /// Puts `value` in a place. The caller has made room.
    pub fn insert(&mut self, value: T) -> u32 {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push((0, None));
            (self.slots.len() - 1) as u32
        });
        let slot = &mut self.slots[index as usize];
        slot.0 = slot.0.wrapping_add(1);
        slot.1 = Some(value);
        let generation = slot.0;
        self.forget_stale();
        self.order.push_back((index, generation));
        index
    }

    pub fn remove(&mut self, index: u32) -> Option<T> {
        let value = self.slots.get_mut(index as usize)?.1.take()?;
        self.free.push(index);
        Some(value)
    }

    /// The index of the oldest value.
    pub fn oldest(&mut self) -> Option<u32> {
        self.forget_stale();
        self.order.front().map(|entry| entry.0)
    }

    /// Drops records of removed values: those in front always, all of them when they outnumber the
    /// rest.
    fn forget_stale(&mut self) {
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
