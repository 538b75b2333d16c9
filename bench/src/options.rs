//! The options of every comparison of the store.

use std::path::PathBuf;

/// Blocks, and what a request carries.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Blocks {
    /// Rounds of blocks a cell
    #[arg(long, default_value_t = 9)]
    pub pairs: usize,
    /// Seconds a block
    #[arg(long, default_value_t = 1.0)]
    pub seconds: f64,
    /// Bytes of a value
    #[arg(long, default_value_t = 64)]
    pub value: usize,
    /// Where logs, JSON and SVG go
    #[arg(long, default_value = "target/bench")]
    pub out: PathBuf,
}
