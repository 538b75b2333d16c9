//! The samples of `bench kv`.

use serde::Serialize;

use super::client::{Block, Load};

/// What one block showed.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Sample {
    /// What the client saw.
    pub block: Block,
    /// Busy time of the whole machine for each request, in microseconds.
    pub cpu_us: f64,
    /// Share of the block that the host gave to others.
    pub stolen: f64,
    /// The slowest core against its best, around the block.
    pub slowness: f64,
}

/// One cell: the samples of both servers, pair by pair.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Cell {
    /// Where it was measured.
    pub setting: String,
    /// What the client did.
    pub load: Load,
    /// redis-server.
    pub redis: Vec<Sample>,
    /// Sietch kv.
    pub sietch: Vec<Sample>,
    /// Pairs that were dropped.
    pub dropped: usize,
}
