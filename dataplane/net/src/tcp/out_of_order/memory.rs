//! The account of the memory that bytes out of order take.

use std::collections::VecDeque;

use crate::tcp::flow::id::FlowIndex;

/// Stale entries of the list that are kept besides as many as there are gaps.
pub(super) const STALE: usize = 64;

/// The gaps of all flows.
#[derive(Debug, Default)]
pub(crate) struct OutOfOrderMemory {
    /// Bytes that flows with gaps are charged with.
    pub(super) charged: usize,
    /// How many flows that are.
    pub(super) gaps: usize,
    /// Flows and the numbers of their charges, by age. An entry whose number is not its flow's any
    /// more is stale.
    pub(super) order: VecDeque<(FlowIndex, u64)>,
    pub(super) last: u64,
}
