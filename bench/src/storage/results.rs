//! The results of `bench storage`.

use serde::Serialize;

/// The figures of one block.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Sample {
    /// Appends a second.
    pub rate: f64,
    /// Microseconds.
    pub p50: f64,
    /// Microseconds.
    pub p99: f64,
    /// Microseconds.
    pub p999: f64,
    /// Longest time without an acknowledgement, in milliseconds.
    pub silence: f64,
    /// Busy time of the whole machine for each append, in microseconds.
    pub cpu_us: f64,
}

/// One cell: the blocks of every subject, Sietch the last.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Cell {
    pub name: String,
    pub subjects: Vec<(&'static str, Vec<Sample>)>,
    pub dropped: usize,
}

/// A log's recovery.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Recovery {
    pub medium: &'static str,
    /// Payload bytes a second, one value for each opening.
    pub rates: Vec<f64>,
    /// Bytes a second of plain reads of the medium, between the openings.
    pub read_rates: Vec<f64>,
}
