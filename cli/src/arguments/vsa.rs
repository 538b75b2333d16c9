//! `sietch vsa`.

use clap::{Args, Subcommand};

use super::bytes::Bytes;
use super::json::JsonArguments;

/// What to do with storage areas.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum VsaCommand {
    /// Make an area, its blocks zeroed
    Create(CreateArguments),
    /// Show the areas: all of them to root, their own to other users
    List(JsonArguments),
    /// Show the volumes: what they are, what is free, and the quotas
    Usage(JsonArguments),
    /// Make an area longer or shorter; what is held grows under its holder
    Resize(ResizeArguments),
    /// Make a range of an area read as zeros; its blocks stay its own, `resize` gives them back
    Trim(TrimArguments),
    /// Write the bytes of an area to standard output, even while it is held, or a file of the view
    /// that its holder shows
    Cat(CatArguments),
    /// List what the holder of an area shows of it
    Ls(LsArguments),
    /// Delete an area that is not held, and its data
    Delete(AreaArguments),
}

/// `sietch vsa create`.
#[derive(Clone, Debug, Args)]
pub(crate) struct CreateArguments {
    /// Its path: /VOLUME/NAME, or NAME for the volume main
    #[arg(value_name = "PATH")]
    pub name: String,

    /// Its size in bytes, or with a unit (512mb, 2gb): a multiple of 4096
    #[arg(value_name = "BYTES")]
    pub size: Bytes,

    /// The user that it is for [default: the user who runs this command]
    #[arg(long, value_name = "UID")]
    pub uid: Option<u32>,
}

/// `sietch vsa resize`.
#[derive(Clone, Debug, Args)]
pub(crate) struct ResizeArguments {
    /// Its path: /VOLUME/NAME, or NAME
    #[arg(value_name = "PATH")]
    pub name: String,

    /// Its new size in bytes, or with a unit (512mb, 2gb): a multiple of 4096
    #[arg(value_name = "BYTES")]
    pub size: Bytes,
}

/// `sietch vsa trim`.
#[derive(Clone, Debug, Args)]
pub(crate) struct TrimArguments {
    /// Its path: /VOLUME/NAME, or NAME
    #[arg(value_name = "PATH")]
    pub name: String,

    /// Where the range begins, in bytes: a multiple of 4096
    #[arg(long, value_name = "BYTES", default_value_t)]
    pub offset: Bytes,

    /// How long it is: a multiple of 4096 [default: to the end of the area]
    #[arg(long, value_name = "BYTES")]
    pub length: Option<Bytes>,
}

/// `sietch vsa cat`.
#[derive(Clone, Debug, Args)]
pub(crate) struct CatArguments {
    /// Its path: /VOLUME/NAME, or NAME
    #[arg(value_name = "PATH")]
    pub name: String,

    /// A file of the view that the holder of the area shows, as `keys/0/NAME` of a store, in the
    /// place of the area's own bytes
    #[arg(long, value_name = "FILE")]
    pub view: Option<String>,

    /// Which byte to begin with
    #[arg(long, value_name = "BYTES", default_value_t)]
    pub offset: Bytes,

    /// How many bytes to write at most [default: to the end]
    #[arg(long, value_name = "BYTES")]
    pub length: Option<Bytes>,
}

/// `sietch vsa ls`.
#[derive(Clone, Debug, Args)]
pub(crate) struct LsArguments {
    /// The area's path: /VOLUME/NAME, or NAME
    #[arg(value_name = "PATH")]
    pub name: String,

    /// A directory of the view [default: its root]
    #[arg(value_name = "DIRECTORY", default_value = "")]
    pub directory: String,
}

/// A command about one area.
#[derive(Clone, Debug, Args)]
pub(crate) struct AreaArguments {
    /// Its path: /VOLUME/NAME, or NAME
    #[arg(value_name = "PATH")]
    pub name: String,
}
