//! Where flows live, and how a segment finds its own.
//!
//! 1. A segment is named by the peer's address and port, our port, and the place of our address
//!    among ours. A keyed hash of that places it in one table: of one word for IPv4, of three for
//!    IPv6. A peer without the key cannot aim at one place.
//! 2. The table says what stands behind the key: a full flow, a half-open passive one (`listener`),
//!    or one in TIME-WAIT (`time_wait`). One look-up tells all three apart.
//! 3. The name that was found last is compared first: a burst of one flow is hashed once. For a
//!    full flow of IPv4 that name is kept as it stands in a header, from the sender's address to
//!    the receiver's port, and compared there (`fast`).
//! 4. A table that is full goes on in one of twice the size. What the old one holds moves over a
//!    few entries with each insertion, so that no insertion waits for all of them; meanwhile a name
//!    is looked for in both, and stands in one.
//! 5. Hot and cold state and the headers to send are arrays with the same index. A freed index is
//!    used again with another generation.

use hashbrown::HashTable;

use crate::buffers::Pool;
use crate::flow::{Cold, Flow, FlowId, flag};
use crate::local_ports::LocalPorts;
use crate::packet::{Address, Template};
use crate::siphash::Key;

/// What names a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Name {
    pub remote: Address,
    pub remote_port: u16,
    pub local_port: u16,
    /// The place of our address (`addresses`). There is one IPv4 address, in place 0.
    pub local: u8,
}

impl Name {
    #[inline]
    fn hash(&self, secret: &Key) -> u64 {
        let ports = u64::from(self.remote_port) << 16 | u64::from(self.local_port);
        if self.remote.is_v4() {
            return secret.hash_word(u64::from(self.remote.low()) << 32 | ports);
        }
        let bits = self.remote.bits();
        secret.hash_triple([(bits >> 64) as u64, bits as u64, u64::from(self.local) << 32 | ports])
    }
}

impl Template {
    /// The name of the connection whose frames these are.
    pub(crate) fn name(&self) -> Name {
        let (remote_port, local_port) = (self.remote_port(), self.local_port());
        Name { remote: self.remote(), remote_port, local_port, local: self.local_index }
    }
}

/// What a name stands for: an index into the flows, the half-open connections, or the connections in TIME-WAIT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    Flow(u32),
    HalfOpen(u32),
    TimeWait(u32),
}

/// What names a connection in the headers of an IPv4 packet without options: both addresses and
/// both ports, as they stand there.
pub(crate) type Wire = [u8; 12];

/// Buckets of an outgrown table that an insertion empties. Its successor has twice the room, so two
/// would do.
const MOVED: usize = 16;

/// A table that has been outgrown, and how many of its buckets are empty from the first one on.
#[derive(Debug)]
struct Outgrown {
    table: HashTable<(Name, Entry)>,
    emptied: usize,
}

/// From names to entries.
#[derive(Debug)]
pub(crate) struct Directory {
    table: HashTable<(Name, Entry)>,
    outgrown: Option<Outgrown>,
    secret: Key,
    /// Our ends of all names.
    pub ports: LocalPorts,
    /// What was found last: the next segment is often of the same flow.
    last: Option<(Name, Entry)>,
    /// The full flow of IPv4 that was found last. The name of none is that of no packet for us, and
    /// its flow does not exist.
    expected: (Wire, u32),
}

const NOBODY: (Wire, u32) = ([0; 12], u32::MAX);

/// Half a cache line, so that one probe costs one miss.
const _: () = assert!(size_of::<(Name, Entry)>() == 32);

impl Directory {
    pub fn new(secret: Key) -> Self {
        let ports = LocalPorts::default();
        Self { table: HashTable::new(), outgrown: None, secret, ports, last: None, expected: NOBODY }
    }

    #[inline]
    pub fn find(&self, name: &Name) -> Option<Entry> {
        let (hash, is) = (name.hash(&self.secret), |entry: &(Name, Entry)| entry.0 == *name);
        match self.table.find(hash, is) {
            Some(entry) => Some(entry.1),
            None => self.outgrown.as_ref()?.table.find(hash, is).map(|entry| entry.1),
        }
    }

    /// As [`Directory::find`], and remembers the answer.
    #[inline]
    pub fn find_next(&mut self, name: &Name) -> Option<Entry> {
        if let Some((last, entry)) = &self.last
            && last == name
        {
            return Some(*entry);
        }
        let entry = self.find(name)?;
        self.last = Some((*name, entry));
        Some(entry)
    }

    /// The full flow to which a packet of IPv4 to our address belongs.
    #[inline]
    pub fn find_flow(&mut self, wire: &Wire) -> Option<u32> {
        if self.expected.0 == *wire { Some(self.expected.1) } else { self.find_other_flow(wire) }
    }

    #[inline]
    fn find_other_flow(&mut self, wire: &Wire) -> Option<u32> {
        let [a, b, c, d, _, _, _, _, e, f, g, h] = *wire;
        let remote = Address::v4(u32::from_be_bytes([a, b, c, d]));
        let (remote_port, local_port) = (u16::from_be_bytes([e, f]), u16::from_be_bytes([g, h]));
        let Entry::Flow(index) = self.find(&Name { remote, remote_port, local_port, local: 0 })? else {
            return None;
        };
        self.expected = (*wire, index);
        Some(index)
    }

    /// Sets what `name` stands for, in place of what it stood for before.
    pub fn insert(&mut self, name: Name, entry: Entry) {
        (self.last, self.expected) = (None, NOBODY);
        let hash = name.hash(&self.secret);
        let is = |entry: &(Name, Entry)| entry.0 == name;
        let old = self.outgrown.as_mut().map(|outgrown| &mut outgrown.table);
        if let Some(found) = self.table.find_mut(hash, is).or_else(|| old?.find_mut(hash, is)) {
            found.1 = entry;
            return;
        }
        self.make_room();
        self.ports.enter(name.local_port);
        let secret = self.secret;
        self.table.insert_unique(hash, (name, entry), |entry| entry.0.hash(&secret));
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

    /// Forgets `name` if it stands for `entry`.
    pub fn remove(&mut self, name: &Name, entry: Entry) {
        (self.last, self.expected) = (None, NOBODY);
        let (hash, is) = (name.hash(&self.secret), |found: &(Name, Entry)| *found == (*name, entry));
        if let Ok(found) = self.table.find_entry(hash, is) {
            found.remove();
            self.ports.leave(name.local_port);
        } else if let Some(Ok(found)) = self.outgrown.as_mut().map(|old| old.table.find_entry(hash, is)) {
            found.remove();
            self.ports.leave(name.local_port);
        }
    }
}

/// The flows.
#[derive(Debug)]
pub(crate) struct Flows {
    pub hot: Vec<Flow>,
    pub cold: Vec<Cold>,
    /// Addresses, ports and next hop, as headers to be copied.
    pub path: Vec<Template>,
    free: Vec<u32>,
    limit: usize,
}

impl Flows {
    /// No flows yet, `limit` of them at most. Addresses for all of them are reserved now, so that
    /// no new flow waits while others are copied to a larger place; memory is taken as they come.
    pub fn new(limit: usize) -> Self {
        Self {
            hot: Vec::with_capacity(limit),
            cold: Vec::with_capacity(limit),
            path: Vec::with_capacity(limit),
            free: Vec::new(),
            limit,
        }
    }

    /// A flow, hot and cold.
    #[inline]
    pub fn both(&mut self, index: usize) -> (&mut Flow, &mut Cold) {
        (&mut self.hot[index], &mut self.cold[index])
    }

    /// Flows that exist.
    pub fn len(&self) -> usize {
        self.hot.len() - self.free.len()
    }

    pub fn is_full(&self) -> bool {
        self.len() >= self.limit
    }

    /// A place for a new flow, in its default state but for its generation.
    pub fn allocate(&mut self) -> Option<u32> {
        if self.is_full() {
            return None;
        }
        let index = match self.free.pop() {
            Some(index) => index,
            None => {
                self.hot.push(Flow::default());
                self.cold.push(Cold::default());
                self.path.push(Template::default());
                u32::try_from(self.hot.len() - 1).ok()?
            }
        };
        self.hot[index as usize].flags = flag::TAKEN;
        Some(index)
    }

    /// Frees a place. Ids with its generation are stale from now on.
    pub fn release(&mut self, index: u32, pool: &mut Pool) {
        let flow = &mut self.hot[index as usize];
        flow.rx.release(pool);
        flow.tx.release(pool);
        if let Some(mut outbox) = self.cold[index as usize].outbox.take() {
            outbox.clear(pool);
        }
        *flow = Flow { generation: flow.generation.wrapping_add(1), ..Flow::default() };
        self.cold[index as usize] = Cold::default();
        self.free.push(index);
    }

    /// The index of a flow that the application still holds.
    #[inline]
    pub fn index(&self, id: FlowId) -> Option<usize> {
        let flow = self.hot.get(id.index as usize)?;
        let live =
            flow.generation == id.generation && flow.flags & (flag::TAKEN | flag::DETACHED) == flag::TAKEN;
        live.then_some(id.index as usize)
    }

    #[inline]
    pub fn id(&self, index: u32) -> FlowId {
        FlowId { index, generation: self.hot[index as usize].generation }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Random insertions, changes, removals and look-ups against an ordinary map, through every
    /// growth on the way.
    #[test]
    fn a_table_that_grows_loses_and_invents_nothing() {
        let name = |number: u32| Name {
            remote: if number.is_multiple_of(3) {
                Address::v4(number)
            } else {
                Address::from_octets([number as u8; 16])
            },
            remote_port: (number >> 8) as u16,
            local_port: 1,
            local: 0,
        };
        let mut directory = Directory::new(Key::new([9; 16]));
        let mut oracle = std::collections::HashMap::new();
        let mut seed = 1_u64;
        let mut next = |bound: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            ((seed >> 33) % bound) as u32
        };
        for step in 0..200_000_u32 {
            // It grows in the first half and is emptied in the second.
            let (number, growing) = (next(40_000), step < 100_000);
            let (key, entry) = (name(number), Entry::Flow(step));
            let text = format!("{key:?}");
            match (next(10), growing) {
                (0..6, true) | (0, false) => {
                    directory.insert(key, entry);
                    oracle.insert(text.clone(), entry);
                }
                (6, _) | (1..6, false) => {
                    let there = oracle.remove(&text);
                    directory.remove(&key, Entry::HalfOpen(number));
                    directory.remove(&key, there.unwrap_or(entry));
                }
                _ => {}
            }
            assert_eq!(directory.find(&key), oracle.get(&text).copied(), "step {step}");
            assert_eq!(directory.find_next(&key), oracle.get(&text).copied(), "step {step}");
            let held = directory.table.len() + directory.outgrown.as_ref().map_or(0, |old| old.table.len());
            assert_eq!(held, oracle.len(), "step {step}");
        }
    }

    /// `cargo test --release -p sietch-net flow_table -- --ignored --nocapture`: what finding the
    /// flow of a segment costs among so many, each time another one; the longest insertion, in
    /// which the table grows; and what an idle flow takes beside its buffers.
    #[test]
    #[ignore = "measures; run in release"]
    fn cost_among_a_million() {
        const LOOKS: u32 = 4_000_000;
        // Neighbours in the order of looking are neighbours nowhere else.
        let name = |number: u32| Name {
            remote: Address::v4(0x0a00_0000 | number.wrapping_mul(2_654_435_761) >> 12),
            remote_port: number as u16,
            local_port: 6379,
            local: 0,
        };
        let idle = size_of::<Flow>() + size_of::<Cold>() + size_of::<Template>();
        for flows in [1_000_u32, 10_000, 100_000, 1_000_000] {
            let mut directory = Directory::new(Key::new([7; 16]));
            let mut longest = 0;
            for number in 0..flows {
                let begin = std::time::Instant::now();
                directory.insert(name(number), Entry::Flow(number));
                longest = longest.max(begin.elapsed().as_micros());
            }
            let (mut at, mut found) = (1, 0);
            let begin = std::time::Instant::now();
            for _ in 0..LOOKS {
                at = (at * 48_271) % 2_147_483_647_u64;
                let wanted = (at % u64::from(flows)) as u32;
                let Name { remote, remote_port, local_port, .. } = name(wanted);
                let mut wire = [0; 12];
                wire[..4].copy_from_slice(&remote.low().to_be_bytes());
                wire[8..10].copy_from_slice(&remote_port.to_be_bytes());
                wire[10..].copy_from_slice(&local_port.to_be_bytes());
                found += u32::from(directory.find_flow(&wire) == Some(wanted));
            }
            let cost = begin.elapsed().as_nanos() as u64 / u64::from(LOOKS);
            assert_eq!(found, LOOKS);
            let table = directory.table.allocation_size() / flows as usize;
            eprintln!(
                "{flows:8} flows: {cost:4} ns a look, longest insertion {longest:6} us, {idle} + {table} bytes a flow"
            );
        }
    }
}
