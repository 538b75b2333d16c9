//! How a log is driven.

use crate::limits::DEFAULT_IN_FLIGHT;

/// Position of a record in the order of the log. Grows; not every number is a record.
pub type Sequence = u64;

/// When a record counts as durable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// As soon as its write has completed: each write survives power loss by itself (`RWF_DSYNC`).
    #[default]
    Always,
    /// Once a [`crate::Log::flush`] that followed its write has completed. For stores that flush at
    /// intervals or never.
    Deferred,
}

/// How a log is driven.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// When records become durable.
    pub durability: Durability,
    /// Writes of the log in flight together, at least 1; bounded by the depth of the disk queue.
    pub in_flight: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self { durability: Durability::default(), in_flight: DEFAULT_IN_FLIGHT }
    }
}
