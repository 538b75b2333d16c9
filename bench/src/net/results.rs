//! The results of a cell.

use serde::Serialize;

use super::cells::Side;
use super::measure::Outcome;

/// The outcomes of a cell, by side and round.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Measured {
    pub name: String,
    pub unit: &'static str,
    pub sides: Vec<(Side, Vec<Outcome>)>,
    pub dropped: usize,
}
