//! Where flows live, and how a segment finds its own.
//!
//! 1. A segment is named by the peer's address and port, our port, and the place of our address among ours. A keyed hash of
//!    that places it in one table: of one word for IPv4, of three for IPv6. A peer without the key cannot aim at one place.
//! 2. The table says what stands behind the key: a full flow, a half-open passive one (`listener`), or one in TIME-WAIT
//!    (`time_wait`). One look-up tells all three apart.
//! 3. The name that was found last is compared first: a burst of one flow is hashed once. For a full flow of IPv4 that name is kept as it stands
//!    in a header, from the sender's address to the receiver's port, and compared there (`fast`).
//! 4. Hot and cold state and the headers to send are arrays with the same index. A freed index is used again with another generation.

use hashbrown::HashTable;

use crate::buffers::Pool;
use crate::flow::{Cold, Flow, FlowId, flag};
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

/// What a name stands for: an index into the flows, the embryos, or the connections in TIME-WAIT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    Flow(u32),
    Embryo(u32),
    TimeWait(u32),
}

/// What names a connection in the headers of an IPv4 packet without options: both addresses and both ports, as they stand there.
pub(crate) type Wire = [u8; 12];

/// From names to entries.
#[derive(Debug)]
pub(crate) struct Directory {
    table: HashTable<(Name, Entry)>,
    secret: Key,
    /// What was found last: the next segment is often of the same flow.
    last: Option<(Name, Entry)>,
    /// The full flow of IPv4 that was found last. The name of none is that of no packet for us, and its flow does not exist.
    expected: (Wire, u32),
}

const NOBODY: (Wire, u32) = ([0; 12], u32::MAX);

/// Half a cache line, so that one probe costs one miss.
const _: () = assert!(size_of::<(Name, Entry)>() == 32);

impl Directory {
    pub fn new(secret: Key) -> Self {
        Self { table: HashTable::new(), secret, last: None, expected: NOBODY }
    }

    #[inline]
    pub fn find(&self, name: &Name) -> Option<Entry> {
        self.table.find(name.hash(&self.secret), |entry| entry.0 == *name).map(|entry| entry.1)
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
        let secret = self.secret;
        let hash = name.hash(&secret);
        match self.table.find_mut(hash, |entry| entry.0 == name) {
            Some(found) => found.1 = entry,
            None => {
                self.table.insert_unique(hash, (name, entry), |entry| entry.0.hash(&secret));
            }
        }
    }

    /// Forgets `name` if it stands for `entry`.
    pub fn remove(&mut self, name: &Name, entry: Entry) {
        (self.last, self.expected) = (None, NOBODY);
        let found = self.table.find_entry(name.hash(&self.secret), |found| *found == (*name, entry));
        if let Ok(found) = found {
            found.remove();
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
    pub fn new(limit: usize) -> Self {
        Self { hot: Vec::new(), cold: Vec::new(), path: Vec::new(), free: Vec::new(), limit }
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
