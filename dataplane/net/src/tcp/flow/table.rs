//! The table of flows: hot and cold state and the headers to send are three arrays with the same
//! index. A freed index is used again with another generation.

use std::ops::{Index, IndexMut};

use super::id::{FlowId, FlowIndex};
use super::{Cold, Flow, flag};
use crate::packet::Template;
use crate::tcp::buffers::Pool;

/// An array that only a [`FlowIndex`] indexes.
#[derive(Debug)]
pub(crate) struct Table<T>(Vec<T>);

impl<T> Table<T> {
    fn with_capacity(limit: usize) -> Self {
        Self(Vec::with_capacity(limit))
    }

    fn push(&mut self, value: T) {
        self.0.push(value);
    }

    /// Slots that were ever used.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    #[inline]
    pub(crate) fn get(&self, index: FlowIndex) -> Option<&T> {
        self.0.get(index.0 as usize)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, index: FlowIndex) -> Option<&mut T> {
        self.0.get_mut(index.0 as usize)
    }
}

impl<T> Index<FlowIndex> for Table<T> {
    type Output = T;

    #[inline]
    fn index(&self, index: FlowIndex) -> &T {
        &self.0[index.0 as usize]
    }
}

impl<T> IndexMut<FlowIndex> for Table<T> {
    #[inline]
    fn index_mut(&mut self, index: FlowIndex) -> &mut T {
        &mut self.0[index.0 as usize]
    }
}

/// The flows.
#[derive(Debug)]
pub(crate) struct Flows {
    pub hot: Table<Flow>,
    pub cold: Table<Cold>,
    /// Addresses, ports and next hop, as headers to be copied.
    pub path: Table<Template>,
    free: Vec<FlowIndex>,
    limit: usize,
}

impl Flows {
    /// No flows yet, `limit` of them at most. Addresses for all of them are reserved now, so that
    /// no new flow waits while others are copied to a larger array; memory is taken as they come.
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            hot: Table::with_capacity(limit),
            cold: Table::with_capacity(limit),
            path: Table::with_capacity(limit),
            free: Vec::new(),
            limit,
        }
    }

    /// A flow, hot and cold.
    #[inline]
    pub(crate) fn both(&mut self, index: FlowIndex) -> (&mut Flow, &mut Cold) {
        (&mut self.hot[index], &mut self.cold[index])
    }

    /// Flows that exist.
    pub(crate) fn len(&self) -> usize {
        self.hot.len() - self.free.len()
    }

    pub(crate) fn is_full(&self) -> bool {
        self.len() >= self.limit
    }

    /// A slot for a new flow, in its default state but for its generation.
    pub(crate) fn allocate(&mut self) -> Option<FlowIndex> {
        if self.is_full() {
            return None;
        }
        let index = match self.free.pop() {
            Some(index) => index,
            None => {
                self.hot.push(Flow::default());
                self.cold.push(Cold::default());
                self.path.push(Template::default());
                FlowIndex(u32::try_from(self.hot.len() - 1).ok()?)
            }
        };
        self.hot[index].flags = flag::TAKEN;
        Some(index)
    }

    /// Frees a slot. Ids with its generation are stale from now on.
    pub(crate) fn release(&mut self, index: FlowIndex, pool: &mut Pool) {
        let flow = &mut self.hot[index];
        flow.rx.release(pool);
        flow.tx.release(pool);
        if let Some(mut send_queue) = self.cold[index].send_queue.take() {
            send_queue.clear(pool);
        }
        *flow = Flow { generation: flow.generation.wrapping_add(1), ..Flow::default() };
        self.cold[index] = Cold::default();
        self.free.push(index);
    }

    /// The index of a flow that the application still holds.
    #[inline]
    pub(crate) fn index(&self, id: FlowId) -> Option<FlowIndex> {
        let flow = self.hot.get(id.index)?;
        let live =
            flow.generation == id.generation && flow.flags & (flag::TAKEN | flag::DETACHED) == flag::TAKEN;
        live.then_some(id.index)
    }

    #[inline]
    pub(crate) fn id(&self, index: FlowIndex) -> FlowId {
        FlowId { index, generation: self.hot[index].generation }
    }
}
