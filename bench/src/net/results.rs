//! The results of a cell.

use serde::Serialize;

use super::cells::Side;
use super::measure::Outcome;

/// A cell's outcomes, side by side, round by round.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Measured {
    pub name: String,
    pub unit: &'static str,
    pub sides: Vec<(Side, Vec<Outcome>)>,
    pub dropped: usize,
}
