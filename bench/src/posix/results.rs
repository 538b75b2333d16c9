//! The results of a row.

use serde::{Deserialize, Serialize};

use super::rows::Row;

/// The measurements of a client.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub(super) struct ClientReport {
    /// Operations, including those outside the measured window.
    pub operations: f64,
    /// Operations a second.
    pub rate: f64,
    /// Latency in microseconds, where the client reports it.
    pub least: Option<f64>,
    pub p50: Option<f64>,
    pub p99: Option<f64>,
    pub p999: Option<f64>,
    /// Busy microseconds of the whole machine for each operation in the measured window, without
    /// the start and end of the client. Only some clients measure it.
    pub counted_cpu_us: Option<f64>,
}

/// The result of one block.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Sample {
    /// The measurements of the client.
    #[serde(flatten)]
    pub client: ClientReport,
    /// Busy microseconds of the whole machine for each operation.
    pub cpu_us: f64,
    /// Cores that other processes used during the block.
    pub foreign: f64,
    /// Share of the block that the host took (steal time).
    #[serde(skip)]
    pub stolen: f64,
    /// The slowest core relative to its best speed, around the block.
    #[serde(skip)]
    pub slowness: f64,
}

/// A column of a row, round by round; `None` where it had failed.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Column {
    pub variant: &'static str,
    pub samples: Vec<Option<Sample>>,
    pub failed: Option<String>,
}

/// A row's columns, Linux the first.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Measured {
    #[serde(flatten)]
    pub row: Row,
    pub columns: Vec<Column>,
    pub dropped: usize,
    /// Why the row was not measured.
    pub skipped: Option<String>,
}
