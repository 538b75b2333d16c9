//! The results of `bench fs`.

use serde::Serialize;

/// The figures of one block.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Sample {
    /// Operations a second, all threads together.
    pub rate: f64,
    /// Microseconds.
    pub p50: f64,
    /// Microseconds.
    pub p99: f64,
    /// Microseconds.
    pub p999: f64,
    /// The longest operation, in milliseconds.
    pub longest: f64,
    /// Microseconds of all cores for each operation, while the clock ran; 0: not measured.
    pub cpu: f64,
}

/// What the digest was spared in a cell.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(super) struct Coalesced {
    pub records: u64,
    pub records_saved: u64,
    /// Bytes of data in those records.
    pub data: u64,
    pub data_saved: u64,
}

/// The blocks of one subject.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Subject {
    pub name: &'static str,
    /// When a change survives a loss of power, as far as its medium does: never, at fsync, or when
    /// each operation returns.
    pub durable: &'static str,
    pub samples: Vec<Sample>,
}

/// One cell: the blocks of every subject, Sietch's client the last.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Cell {
    pub name: String,
    pub subjects: Vec<Subject>,
    pub dropped: usize,
    /// Of all blocks of Sietch's client, dropped ones included.
    pub coalesced: Coalesced,
}

/// Openings of a file system whose process was killed.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Recovery {
    /// Records that each opening found in the log.
    pub records: Vec<u64>,
    /// Bytes of data a second, one value for each opening.
    pub rates: Vec<f64>,
}
