//! How a segment finds its connection.
//!
//! 1. A connection is identified by its four-tuple: the peer's address and port, our port, and the
//!    index of our address. A keyed hash places it in one table; the hash covers one word for IPv4
//!    and three for IPv6. A peer without the key cannot aim at one bucket.
//! 2. The entry says what the four-tuple stands for: a flow, a half-open connection (`half_open`)
//!    or a connection in TIME-WAIT (`time_wait`). One lookup serves all three.
//! 3. The entry found last is compared first, so a burst of one flow is hashed once. For a flow of
//!    IPv4 the four-tuple is also kept as it is in a header, from the sender's address to the
//!    receiver's port. The fast path compares those bytes.
//! 4. A full table is continued in one of twice the size. Each insertion moves a few entries from
//!    the old table, so that no insertion waits for all of them. Meanwhile a lookup searches both;
//!    an entry is in exactly one.

use hashbrown::HashTable;

use crate::packet::{Address, AddressIndex};
use crate::siphash::Key;
use crate::tcp::flow::id::FlowIndex;

pub(crate) mod four_tuple;
pub(crate) mod half_open;
pub(crate) mod listener;
pub(crate) mod ports;
pub(crate) mod source_ports;
pub(crate) mod syn_cookie;
pub(crate) mod time_wait;

use four_tuple::FourTuple;
use half_open::HalfOpenIndex;
use ports::PortUse;
use time_wait::TimeWaitIndex;

/// What a four-tuple stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    Flow(FlowIndex),
    HalfOpen(HalfOpenIndex),
    TimeWait(TimeWaitIndex),
}

/// What names a connection in the headers of an IPv4 packet without options: both addresses and
/// both ports, as they are there.
pub(crate) type HeaderTuple = [u8; 12];

/// Buckets of an outgrown table that an insertion empties. Its successor has twice the room, so two
/// would do.
const MOVED: usize = 16;

/// A table that has been outgrown, and how many of its buckets are empty from the first one on.
#[derive(Debug)]
struct Outgrown {
    table: HashTable<(FourTuple, Entry)>,
    emptied: usize,
}

/// From names to entries.
#[derive(Debug)]
pub(crate) struct ConnectionTable {
    table: HashTable<(FourTuple, Entry)>,
    outgrown: Option<Outgrown>,
    secret: Key,
    /// Our ends of all names.
    pub ports: PortUse,
    /// What was found last: the next segment is often of the same flow.
    last: Option<(FourTuple, Entry)>,
    /// The full flow of IPv4 that was found last. The four-tuple of no flow matches no packet for
    /// us, and its flow does not exist.
    expected: (HeaderTuple, FlowIndex),
    /// Lookups by [`ConnectionTable::find`].
    #[cfg(test)]
    lookups: std::cell::Cell<usize>,
}

const NO_FLOW: (HeaderTuple, FlowIndex) = ([0; 12], FlowIndex(u32::MAX));

/// Half a cache line, so that one probe costs one miss.
const _: () = assert!(size_of::<(FourTuple, Entry)>() == 32);

impl ConnectionTable {
    pub(crate) fn new(secret: Key) -> Self {
        let ports = PortUse::default();
        Self {
            table: HashTable::new(),
            outgrown: None,
            secret,
            ports,
            last: None,
            expected: NO_FLOW,
            #[cfg(test)]
            lookups: std::cell::Cell::new(0),
        }
    }

    #[inline]
    pub(crate) fn find(&self, tuple: &FourTuple) -> Option<Entry> {
        #[cfg(test)]
        self.lookups.set(self.lookups.get() + 1);
        let (hash, is) = (tuple.hash(&self.secret), |entry: &(FourTuple, Entry)| entry.0 == *tuple);
        match self.table.find(hash, is) {
            Some(entry) => Some(entry.1),
            None => self.outgrown.as_ref()?.table.find(hash, is).map(|entry| entry.1),
        }
    }

    /// As [`ConnectionTable::find`], and remembers the answer.
    #[inline]
    pub(crate) fn find_cached(&mut self, tuple: &FourTuple) -> Option<Entry> {
        if let Some((last, entry)) = &self.last
            && last == tuple
        {
            return Some(*entry);
        }
        let entry = self.find(tuple)?;
        self.last = Some((*tuple, entry));
        Some(entry)
    }

    /// The full flow to which a packet of IPv4 to our address belongs.
    #[inline]
    pub(crate) fn find_flow(&mut self, wire: &HeaderTuple) -> Option<FlowIndex> {
        if self.expected.0 == *wire { Some(self.expected.1) } else { self.find_uncached_flow(wire) }
    }

    #[inline]
    fn find_uncached_flow(&mut self, wire: &HeaderTuple) -> Option<FlowIndex> {
        let [a, b, c, d, _, _, _, _, e, f, g, h] = *wire;
        let remote = Address::v4(u32::from_be_bytes([a, b, c, d]));
        let (remote_port, local_port) = (u16::from_be_bytes([e, f]), u16::from_be_bytes([g, h]));
        let Entry::Flow(index) =
            self.find(&FourTuple { remote, remote_port, local_port, local: AddressIndex::V4 })?
        else {
            return None;
        };
        self.expected = (*wire, index);
        Some(index)
    }

    /// Sets what `tuple` stands for, in place of what it stood for before.
    pub(crate) fn insert(&mut self, tuple: FourTuple, entry: Entry) {
        (self.last, self.expected) = (None, NO_FLOW);
        let hash = tuple.hash(&self.secret);
        let is = |entry: &(FourTuple, Entry)| entry.0 == tuple;
        let old = self.outgrown.as_mut().map(|outgrown| &mut outgrown.table);
        if let Some(found) = self.table.find_mut(hash, is).or_else(|| old?.find_mut(hash, is)) {
            found.1 = entry;
            return;
        }
        self.make_room();
        self.ports.enter(tuple.local_port);
        let secret = self.secret;
        self.table.insert_unique(hash, (tuple, entry), |entry| entry.0.hash(&secret));
    }

    /// Sees to it that one entry fits, and empties some of an outgrown table.
    fn make_room(&mut self) {
        if self.table.len() == self.table.capacity() {
            // The one before that is empty by now: this one has taken twice as many entries as that
            // could hold.
            self.move_from_outgrown(usize::MAX);
            let larger = HashTable::with_capacity((self.table.capacity() * 2).max(16));
            let table = std::mem::replace(&mut self.table, larger);
            self.outgrown = Some(Outgrown { table, emptied: 0 });
        }
        self.move_from_outgrown(MOVED);
    }

    /// Moves what is in the next `buckets` of the outgrown table, and forgets the table when it is
    /// empty.
    fn move_from_outgrown(&mut self, buckets: usize) {
        let Some(outgrown) = &mut self.outgrown else { return };
        let secret = self.secret;
        let end = outgrown.emptied.saturating_add(buckets).min(outgrown.table.num_buckets());
        for bucket in outgrown.emptied..end {
            if let Ok(found) = outgrown.table.get_bucket_entry(bucket) {
                let (moved, _) = found.remove();
                self.table.insert_unique(moved.0.hash(&secret), moved, |entry| entry.0.hash(&secret));
            }
        }
        outgrown.emptied = end;
        if outgrown.table.is_empty() {
            self.outgrown = None;
        }
    }

    /// Forgets `tuple` if it stands for `entry`.
    pub(crate) fn remove(&mut self, tuple: &FourTuple, entry: Entry) {
        (self.last, self.expected) = (None, NO_FLOW);
        let (hash, is) = (tuple.hash(&self.secret), |found: &(FourTuple, Entry)| *found == (*tuple, entry));
        if let Ok(found) = self.table.find_entry(hash, is) {
            found.remove();
            self.ports.leave(tuple.local_port);
        } else if let Some(Ok(found)) = self.outgrown.as_mut().map(|old| old.table.find_entry(hash, is)) {
            found.remove();
            self.ports.leave(tuple.local_port);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::Template;
    use crate::tcp::flow::{Cold, Flow};

    /// Random insertions, changes, removals and lookups against an ordinary map, through every
    /// growth on the way.
    #[test]
    fn a_table_that_grows_loses_and_invents_nothing() {
        let name = |number: u32| FourTuple {
            remote: if number.is_multiple_of(3) {
                Address::v4(number)
            } else {
                Address::from_octets([number as u8; 16])
            },
            remote_port: (number >> 8) as u16,
            local_port: 1,
            local: AddressIndex::V4,
        };
        let mut connections = ConnectionTable::new(Key::new([9; 16]));
        let mut oracle = std::collections::HashMap::new();
        let mut seed = 1_u64;
        let mut next = |bound: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            ((seed >> 33) % bound) as u32
        };
        for step in 0..200_000_u32 {
            // It grows in the first half and is emptied in the second.
            let (number, growing) = (next(40_000), step < 100_000);
            let (key, entry) = (name(number), Entry::Flow(FlowIndex(step)));
            let text = format!("{key:?}");
            match (next(10), growing) {
                (0..6, true) | (0, false) => {
                    connections.insert(key, entry);
                    oracle.insert(text.clone(), entry);
                }
                (6, _) | (1..6, false) => {
                    let there = oracle.remove(&text);
                    connections.remove(&key, Entry::HalfOpen(HalfOpenIndex(number)));
                    connections.remove(&key, there.unwrap_or(entry));
                }
                _ => {}
            }
            assert_eq!(connections.find(&key), oracle.get(&text).copied(), "step {step}");
            assert_eq!(connections.find_cached(&key), oracle.get(&text).copied(), "step {step}");
            let held =
                connections.table.len() + connections.outgrown.as_ref().map_or(0, |old| old.table.len());
            assert_eq!(held, oracle.len(), "step {step}");
        }
    }

    /// `cargo test --release -p sietch-net flow_table -- --ignored --nocapture`: the time to find
    /// the flow of a segment among many, each time another one; the longest insertion, in which the
    /// table grows; and what an idle flow takes beside its buffers.
    #[test]
    #[ignore = "measures; run in release"]
    fn cost_among_a_million() {
        const LOOK_UPS: u32 = 4_000_000;
        // Flows that are searched one after the other are not neighbours in any table.
        let name = |number: u32| FourTuple {
            remote: Address::v4(0x0a00_0000 | number.wrapping_mul(2_654_435_761) >> 12),
            remote_port: number as u16,
            local_port: 6379,
            local: AddressIndex::V4,
        };
        let idle = size_of::<Flow>() + size_of::<Cold>() + size_of::<Template>();
        for flows in [1_000_u32, 10_000, 100_000, 1_000_000] {
            let mut connections = ConnectionTable::new(Key::new([7; 16]));
            let mut longest = 0;
            for number in 0..flows {
                let begin = std::time::Instant::now();
                connections.insert(name(number), Entry::Flow(FlowIndex(number)));
                longest = longest.max(begin.elapsed().as_micros());
            }
            let (mut at, mut found) = (1, 0);
            let begin = std::time::Instant::now();
            for _ in 0..LOOK_UPS {
                at = (at * 48_271) % 2_147_483_647_u64;
                let wanted = (at % u64::from(flows)) as u32;
                let FourTuple { remote, remote_port, local_port, .. } = name(wanted);
                let mut wire = [0; 12];
                wire[..4].copy_from_slice(&remote.low().to_be_bytes());
                wire[8..10].copy_from_slice(&remote_port.to_be_bytes());
                wire[10..].copy_from_slice(&local_port.to_be_bytes());
                found += u32::from(connections.find_flow(&wire) == Some(FlowIndex(wanted)));
            }
            let cost = begin.elapsed().as_nanos() as u64 / u64::from(LOOK_UPS);
            assert_eq!(found, LOOK_UPS);
            let table = connections.table.allocation_size() / flows as usize;
            eprintln!(
                "{flows:8} flows: {cost:4} ns a lookup, longest insertion {longest:6} us, {idle} + {table} bytes a flow"
            );
        }
    }
}
