//! How flows are named: by an index inside the engine, by an index and a generation outside.

use crate::tables::index::table_index;

table_index! {
    /// An index into the table of flows.
    FlowIndex
}

/// Names a flow. A stale id (its flow has ended) is harmless: every call with it does nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FlowId {
    pub(crate) index: FlowIndex,
    pub(crate) generation: u32,
}

impl FlowId {
    /// The id of no flow: of an event that concerns a UDP port.
    pub const NONE: Self = Self { index: FlowIndex(u32::MAX), generation: u32::MAX };

    /// The id as a number, for a table or a message.
    pub const fn to_bits(self) -> u64 {
        (self.generation as u64) << 32 | self.index.0 as u64
    }

    /// The id with this number. Any number is harmless.
    pub const fn from_bits(bits: u64) -> Self {
        Self { index: FlowIndex(bits as u32), generation: (bits >> 32) as u32 }
    }
}
