//! The samples of `bench kv`.

use serde::Serialize;

use super::client::{Block, Load};

/// The results of one block.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Sample {
    /// The client's measurements.
    pub block: Block,
    /// Busy time of the whole machine for each request, in microseconds.
    pub cpu_us: f64,
    /// Share of the block that the host took (steal time).
    pub stolen: f64,
    /// The slowest core relative to its best speed, around the block.
    pub slowness: f64,
}

/// One cell: the samples of both servers, pair by pair.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Cell {
    /// The setting.
    pub setting: String,
    /// The load of the client.
    pub load: Load,
    /// redis-server.
    pub redis: Vec<Sample>,
    /// Sietch kv.
    pub sietch: Vec<Sample>,
    /// Pairs that were dropped.
    pub dropped: usize,
}
