//! `sietch fs`.

use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, Subcommand};
use sietch_service::fs::Durability;
use sietch_service::fs::description::ModelName;

use super::Bytes;
use super::fs_quota::FsQuotaArguments;

/// What to do with a file system.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum FsCommand {
    /// Make a file system: files for its media and its log, and its description `fs.toml`
    Create(FsCreateArguments),
    /// Show a file system in a directory, for every program, until Ctrl-C. If `sietch fs serve`
    /// serves it, the mount shares it with other mounts and programs; otherwise it has it alone
    Mount(FsMountArguments),
    /// Serve a file system to several mounts and programs of this user, until Ctrl-C
    Serve(FsServeArguments),
    /// Check a file system that is served or not open, and say what is damaged and what is lost by
    /// it; nothing is repaired or recovered. The exit status is 0 if it is whole, 1 if something is
    /// damaged, 2 if that is unknown: a mount has it alone, or it cannot be opened
    Check(FsCheckArguments),
    /// Make a medium larger: its file gets more bytes. The file system must not be mounted or
    /// served
    Grow(FsGrowArguments),
    /// Add a medium: its file is made. The file system must not be mounted or served
    Add(FsAddArguments),
    /// Take a medium out: its data move to the others. The file system must not be mounted or
    /// served. The first medium stays, because it has the tree
    Drain(FsDrainArguments),
    /// Say on which class of media the data of a mounted file belong, or of all files below a
    /// directory; they move there within seconds
    Pin(FsPinArguments),
    /// Show how many bytes and inodes of a file system each user has, and set limits
    Quota(FsQuotaArguments),
}

/// The medium that gets larger.
#[derive(Clone, Debug, Args)]
pub(crate) struct FsGrowArguments {
    /// The folder of the file system
    #[arg(value_name = "FOLDER")]
    pub folder: PathBuf,

    /// The file of the medium, as `fs.toml` in the folder names it
    #[arg(long, value_name = "PATH")]
    pub medium: PathBuf,

    /// Bytes that it has then, in all
    #[arg(long, value_name = "SIZE")]
    pub size: Bytes,
}

/// The medium that is added.
#[derive(Clone, Debug, Args)]
#[command(group(clap::ArgGroup::new("added").required(true).args(["nvm", "ssd", "hdd"])))]
pub(crate) struct FsAddArguments {
    /// The folder of the file system
    #[arg(value_name = "FOLDER")]
    pub folder: PathBuf,

    /// A file in persistent memory (a file system mounted with -o dax), or on a tmpfs that stands
    /// in for it and survives no loss of power
    #[arg(long, value_name = "PATH=SIZE")]
    pub nvm: Option<MediumArgument>,

    /// A file on a solid-state disk
    #[arg(long, value_name = "PATH=SIZE")]
    pub ssd: Option<MediumArgument>,

    /// A file on a rotating disk
    #[arg(long, value_name = "PATH=SIZE")]
    pub hdd: Option<MediumArgument>,
}

/// The medium that leaves.
#[derive(Clone, Debug, Args)]
pub(crate) struct FsDrainArguments {
    /// The folder of the file system
    #[arg(value_name = "FOLDER")]
    pub folder: PathBuf,

    /// The file of the medium, as `fs.toml` in the folder names it
    #[arg(long, value_name = "PATH")]
    pub medium: PathBuf,
}

/// Where data belong.
#[derive(Clone, Debug, Args)]
pub(crate) struct FsPinArguments {
    /// A file or directory below a mount
    #[arg(value_name = "FILE")]
    pub file: PathBuf,

    /// The class of media; none: data move by how often they are read
    #[arg(value_name = "CLASS")]
    pub class: PinClass,
}

/// A class of media, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum PinClass {
    /// Persistent memory
    Nvm,
    /// Solid-state disks
    Ssd,
    /// Rotating disks
    Hdd,
    /// Not pinned
    None,
}

/// What is served.
#[derive(Clone, Debug, Args)]
pub(crate) struct FsServeArguments {
    /// The folder of the file system
    #[arg(value_name = "FOLDER")]
    pub folder: PathBuf,

    /// End when this process, which must be the parent, ends
    #[arg(long, value_name = "PID", hide = true)]
    pub parent: Option<i32>,
}

/// What is checked.
#[derive(Clone, Debug, Args)]
pub(crate) struct FsCheckArguments {
    /// The folder of the file system
    #[arg(value_name = "FOLDER")]
    pub folder: PathBuf,

    /// Read all data too, and compare their checksums
    #[arg(long)]
    pub data: bool,

    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// The media of a new file system.
#[derive(Clone, Debug, Args)]
pub(crate) struct FsCreateArguments {
    /// The folder of the file system; its description goes there
    #[arg(value_name = "FOLDER")]
    pub folder: PathBuf,

    /// A file in persistent memory (a file system mounted with -o dax), or on a tmpfs that stands
    /// in for it and survives no loss of power; may be repeated
    #[arg(long, value_name = "PATH=SIZE")]
    pub nvm: Vec<MediumArgument>,

    /// A file on a solid-state disk; may be repeated
    #[arg(long, value_name = "PATH=SIZE")]
    pub ssd: Vec<MediumArgument>,

    /// A file on a rotating disk; may be repeated
    #[arg(long, value_name = "PATH=SIZE")]
    pub hdd: Vec<MediumArgument>,

    /// For measurements: make each --hdd, which must be on a tmpfs, as slow as a disk
    #[arg(long, value_name = "MODEL", requires = "hdd")]
    pub hdd_model: Option<ModelArgument>,

    /// Bytes of the log [default: an eighth of the fastest medium, from 64mib to 128mib, and less
    /// where its memory is small]
    #[arg(long, value_name = "SIZE")]
    pub log: Option<Bytes>,

    /// The folder for the memory of the log [default: that of the first --nvm, else /dev/shm]
    #[arg(long, value_name = "DIR")]
    pub log_memory: Option<PathBuf>,

    /// Without --nvm: when an operation survives a loss of power [default: fsync]
    #[arg(long, value_name = "WHEN", conflicts_with = "nvm")]
    pub durability: Option<DurabilityArgument>,
}

/// When an operation survives a loss of power.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum DurabilityArgument {
    /// When it returns: each change waits for the disk
    Operation,
    /// When fsync returns
    Fsync,
}

impl From<DurabilityArgument> for Durability {
    fn from(argument: DurabilityArgument) -> Self {
        match argument {
            DurabilityArgument::Operation => Self::Operation,
            DurabilityArgument::Fsync => Self::Fsync,
        }
    }
}

/// A model of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum ModelArgument {
    /// 7200 rotations a minute: a random access takes 10 ms in the mean, 250 MB/s
    Rotating,
}

impl From<ModelArgument> for ModelName {
    fn from(argument: ModelArgument) -> Self {
        match argument {
            ModelArgument::Rotating => Self::Rotating,
        }
    }
}

/// Where a file system is shown.
#[derive(Clone, Debug, Args)]
pub(crate) struct FsMountArguments {
    /// The folder of the file system
    #[arg(value_name = "FOLDER")]
    pub folder: PathBuf,

    /// An existing directory; what is in it is hidden meanwhile
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,

    /// Let other users in, as the modes of its files permit (ordinary users need
    /// `user_allow_other` in /etc/fuse.conf)
    #[arg(long)]
    pub allow_other: bool,

    /// Let set-user-ID bits, file capabilities and device files take effect
    #[arg(long)]
    pub trusted: bool,

    /// End when this process, which must be the parent, ends
    #[arg(long, value_name = "PID", hide = true)]
    pub parent: Option<i32>,
}

/// A file and its size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MediumArgument {
    /// The file.
    pub path: PathBuf,
    /// Its size.
    pub bytes: Bytes,
}

impl FromStr for MediumArgument {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (path, size) = text
            .rsplit_once('=')
            .ok_or_else(|| format!("{text:?} has no size; write PATH=SIZE, as in /srv/ssd=20gib"))?;
        if path.is_empty() {
            return Err(format!("{text:?} names no file; write PATH=SIZE, as in /srv/ssd=20gib"));
        }
        Ok(Self { path: path.into(), bytes: size.parse()? })
    }
}
