//! Where flows live, and how a segment finds its own.
//!
//! 1. A segment is named by the peer's address and port and our port (our address is one). These 64 bits are the key;
//!    a keyed hash of them places it in one table.
//! 2. The table says what stands behind the key: a full flow, a half-open passive one (`listener`), or one in TIME-WAIT
//!    (`time_wait`). One look-up tells all three apart.
//! 3. Hot and cold state are two arrays with the same index. A freed index is used again with another generation.

use hashbrown::HashTable;

use crate::buffers::Pool;
use crate::flow::{Cold, Flow, FlowId, State};
use crate::siphash::Key;

/// What names a connection.
#[inline]
pub(crate) const fn key(remote: u32, remote_port: u16, local_port: u16) -> u64 {
    (remote as u64) << 32 | (remote_port as u64) << 16 | local_port as u64
}

/// What a key stands for: an index into the flows, the embryos, or the connections in TIME-WAIT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    Flow(u32),
    Embryo(u32),
    TimeWait(u32),
}

/// From keys to entries.
#[derive(Debug)]
pub(crate) struct Directory {
    table: HashTable<(u64, Entry)>,
    secret: Key,
}

impl Directory {
    pub fn new(secret: Key) -> Self {
        Self { table: HashTable::new(), secret }
    }

    #[inline]
    pub fn find(&self, key: u64) -> Option<Entry> {
        self.table.find(self.secret.hash_word(key), |entry| entry.0 == key).map(|entry| entry.1)
    }

    /// Sets what `key` stands for, in place of what it stood for before.
    pub fn insert(&mut self, key: u64, entry: Entry) {
        let hash = self.secret.hash_word(key);
        match self.table.find_mut(hash, |entry| entry.0 == key) {
            Some(found) => found.1 = entry,
            None => {
                let secret = self.secret;
                self.table.insert_unique(hash, (key, entry), |entry| secret.hash_word(entry.0));
            }
        }
    }

    /// Forgets `key` if it stands for `entry`.
    pub fn remove(&mut self, key: u64, entry: Entry) {
        if let Ok(found) = self.table.find_entry(self.secret.hash_word(key), |found| *found == (key, entry)) {
            found.remove();
        }
    }
}

/// The flows.
#[derive(Debug)]
pub(crate) struct Flows {
    pub hot: Vec<Flow>,
    pub cold: Vec<Cold>,
    free: Vec<u32>,
    limit: usize,
}

impl Flows {
    pub fn new(limit: usize) -> Self {
        Self { hot: Vec::new(), cold: Vec::new(), free: Vec::new(), limit }
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
        if let Some(index) = self.free.pop() {
            return Some(index);
        }
        self.hot.push(Flow::default());
        self.cold.push(Cold::default());
        u32::try_from(self.hot.len() - 1).ok()
    }

    /// Frees a place. Ids with its generation are stale from now on.
    pub fn release(&mut self, index: u32, pool: &mut Pool) {
        let flow = &mut self.hot[index as usize];
        flow.rx.release(pool);
        flow.tx.release(pool);
        *flow = Flow { generation: flow.generation.wrapping_add(1), ..Flow::default() };
        self.cold[index as usize] = Cold::default();
        self.free.push(index);
    }

    /// The index of a flow that the application still holds.
    #[inline]
    pub fn index(&self, id: FlowId) -> Option<usize> {
        let flow = self.hot.get(id.index as usize)?;
        let live = flow.generation == id.generation
            && !flow.has(crate::flow::flag::DETACHED)
            && (flow.state != State::Closed || flow.remote != 0);
        live.then_some(id.index as usize)
    }

    #[inline]
    pub fn id(&self, index: u32) -> FlowId {
        FlowId { index, generation: self.hot[index as usize].generation }
    }
}
