//! `sietch mount`.

use std::path::PathBuf;

use clap::Args;

/// The mount point, and its users.
#[derive(Clone, Debug, Args)]
pub(crate) struct MountArguments {
    /// An existing directory; what is in it is hidden meanwhile
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,

    /// Let other users in; each sees and reads its own areas alone (ordinary users need
    /// `user_allow_other` in
    /// /etc/fuse.conf)
    #[arg(long)]
    pub allow_other: bool,
}
