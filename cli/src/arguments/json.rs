//! `--json`, for commands that print a table or JSON.

use clap::Args;

/// The option of commands that can print JSON.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct JsonArguments {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}
