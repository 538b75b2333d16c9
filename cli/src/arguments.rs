//! The command line.
//!
//! 1. [`Arguments`] is the root, with one type for each command. Doc comments here are the help
//!    texts, so every option states its default and unit.
//! 2. Man pages and completions are generated from the same definition ([`crate::generate`]).
//! 3. Values are checked while they are parsed: an address, a size, a rule or a port that cannot be
//!    valid is refused before any command runs.

mod bytes;
pub(crate) mod fs;
pub(crate) mod fs_quota;
mod json;
pub(crate) mod mount;
pub(crate) mod run;
pub(crate) mod vsa;

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use sietch_protocol::socket_service::Rule;

pub(crate) use bytes::Bytes;
pub(crate) use json::JsonArguments;

/// The port of the store, as every Redis client expects it.
pub(crate) const DEFAULT_PORT: u16 = 6379;

/// The most shards of the store.
pub(crate) const MAX_SHARDS: u16 = 64;
const _: () = assert!(MAX_SHARDS as usize == sietch_kv::settings::MAX_SHARDS);
const _: () = assert!(MAX_SHARDS == sietch_daemon::configuration::MAX_KV_SHARDS);

/// Kernel-bypass network and storage for servers on stock Linux.
#[derive(Debug, Parser)]
#[command(name = "sietch", version, disable_help_subcommand = true, propagate_version = true)]
pub(crate) struct Arguments {
    /// The daemon's socket [default: $SIETCH_SOCKET, else that of this user's daemon if it runs,
    /// else root's at /run/sietch/sietch.sock]
    #[arg(long, global = true, value_name = "PATH")]
    pub socket: Option<PathBuf>,

    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Start the daemon, the service core and the store, and stay until Ctrl-C
    Up(UpArguments),
    /// Stop what `sietch up` started, cleanly
    Down,
    /// Show the daemon, its grants and their holders
    Status(JsonArguments),
    /// Show the counters of daemon, VNIC, TCP, log and store
    Stat(StatArguments),
    /// Show the programs under `sietch run` and their VNICs: threads, connections, bytes a second
    Top(TopArguments),
    /// Show the sockets of all applications, as `ss -ti` shows the kernel's
    Ss(SsArguments),
    /// Show the programs under `sietch run`: their listeners, and the connections between them
    Sockets(SocketsArguments),
    /// Write the frames of a VNIC into a pcapng file, for Wireshark or tcpdump, while its holder
    /// runs
    Capture(CaptureArguments),
    /// Create, show, resize, trim and delete storage areas
    #[command(subcommand)]
    Vsa(vsa::VsaCommand),
    /// Show the storage areas as files, read-only, until Ctrl-C
    Mount(mount::MountArguments),
    /// Make a file system of files on several media, and show it in a directory
    #[command(subcommand)]
    Fs(fs::FsCommand),
    /// Run a program, unmodified, with Sietch's TCP sockets in place of the kernel's. The exit
    /// status is the program's; 125 if Sietch is not ready, 126 if the program cannot be started or
    /// served, 127 if it is not there
    Run(run::RunArguments),
    /// Revoke a grant while its holder runs; `sietch restore` allows it again. Or close the
    /// listeners and connections of an application under `sietch run`, named by its id in `sietch
    /// sockets`
    Revoke(NameArguments),
    /// Allow a revoked grant to be acquired again
    Restore(NameArguments),
    /// Make the daemon reload sietch.toml; grants that are held stay as they are
    Reload,
    /// Show what this machine can do, and how to fix what is missing
    Doctor(DoctorArguments),
    /// Run the control plane alone, for example under systemd
    Daemon(DaemonArguments),
    /// Run the Redis-compatible store alone, with a VNIC and a storage area of the daemon; or check
    /// such an area
    Kv(KvArguments),
    /// Run a service core: the switch between VNICs of kind "switch", the storage broker, the
    /// sockets of programs under `sietch run`, the TCP of VNICs that such programs have
    Service(ServiceArguments),
    /// Print the completions of a shell
    Completions(CompletionsArguments),
    /// Write the man pages into a folder
    Man(ManArguments),
}

/// Which data path carries the store's traffic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Net {
    /// A VNIC if the daemon can make one, else kernel sockets
    #[default]
    Auto,
    /// A VNIC or nothing
    #[value(name = "af_xdp")]
    AfXdp,
    /// Kernel sockets
    Linux,
}

impl Net {
    /// The word that the command line takes.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::AfXdp => "af_xdp",
            Self::Linux => "linux",
        }
    }
}

/// When a reply to a write may leave.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Durability {
    /// After the write would survive power loss
    #[default]
    Always,
    /// At once; written within 20 ms, flushed every second
    Interval,
    /// At once; written within 20 ms, flushed only at the end
    Never,
    /// At once; there is no log: every key is lost when the store ends
    None,
}

impl Durability {
    /// The word that the command line takes.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Always => "always",
            Self::Interval => "interval",
            Self::Never => "never",
            Self::None => "none",
        }
    }
}

/// Where the store listens on kernel sockets, beside its VNIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Listen {
    /// Nowhere.
    None,
    /// On this address and the store's port.
    Address(IpAddr),
    /// On this address and port.
    Socket(SocketAddr),
}

impl Listen {
    /// The socket address, with `port` where none was given.
    pub(crate) fn resolve(self, port: u16) -> Option<SocketAddr> {
        match self {
            Self::None => None,
            Self::Address(address) => Some(SocketAddr::new(address, port)),
            Self::Socket(address) => Some(address),
        }
    }
}

impl std::fmt::Display for Listen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::Address(address) => address.fmt(f),
            Self::Socket(address) => address.fmt(f),
        }
    }
}

impl std::str::FromStr for Listen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "none" {
            return Ok(Self::None);
        }
        if let Ok(address) = text.parse::<SocketAddr>() {
            return Ok(Self::Socket(address));
        }
        text.parse::<IpAddr>()
            .map(Self::Address)
            .map_err(|_| format!("{text:?} is no address; write `none`, 127.0.0.1 or 127.0.0.1:6379"))
    }
}

/// The store's policies when `maxmemory` is reached.
const POLICIES: [&str; 8] = [
    "noeviction",
    "allkeys-lru",
    "allkeys-lfu",
    "allkeys-random",
    "volatile-lru",
    "volatile-lfu",
    "volatile-random",
    "volatile-ttl",
];

/// The options of the store that `up` and `kv` share. An option that is not given has the value of
/// `[kv]` in sietch.toml, for `up`, or the default.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct StoreArguments {
    /// Data path of the store
    #[arg(long, value_enum, default_value_t)]
    pub net: Net,

    /// When a reply to a write may leave [default: always]
    #[arg(long, value_enum)]
    pub durability: Option<Durability>,

    /// TCP port of the store [default: 6379]
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    pub port: Option<u16>,

    /// Cores that the store's keys are divided among, a thread each; may change between two starts
    /// [default: one less than there are processors, at least 1]
    #[arg(long, value_name = "CORES", value_parser = clap::value_parser!(u16).range(1..=i64::from(MAX_SHARDS)))]
    pub shards: Option<u16>,

    /// Where the store also answers on kernel sockets: an address, an address with a port, or
    /// `none` [default: 127.0.0.1]
    #[arg(long, value_name = "ADDRESS")]
    pub listen: Option<Listen>,

    /// Memory for keys and values, in bytes or with a unit (512mb, 2gb); 0 is no limit [default: 0]
    #[arg(long, value_name = "BYTES")]
    pub maxmemory: Option<Bytes>,

    /// What to do when that memory is full [default: noeviction]
    #[arg(long, value_name = "POLICY", value_parser = POLICIES)]
    pub maxmemory_policy: Option<String>,

    /// Name of the store's VNIC [default: kv]
    #[arg(long, value_name = "NAME")]
    pub vnic: Option<String>,

    /// Name of the store's storage area [default: kv]
    #[arg(long, value_name = "NAME")]
    pub vsa: Option<String>,

    /// Use epoll and pwritev2 even where io_uring works
    #[arg(long)]
    pub without_io_uring: bool,
}

/// The options of the daemon that `up` and `daemon` share.
#[derive(Clone, Debug, Args)]
pub(crate) struct ControlArguments {
    /// Physical interface that joins the VNICs to a network, by XDP redirect
    #[arg(long, value_name = "IFACE")]
    pub uplink: Option<String>,

    /// Where its files are.
    #[command(flatten)]
    pub place: PlaceArguments,
}

/// Where the daemon's files are.
#[derive(Clone, Debug, Args)]
pub(crate) struct PlaceArguments {
    /// The configuration: names, users, limits [default: /etc/sietch/sietch.toml for root,
    /// ~/.config/sietch/sietch.toml for others; made on first start]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// The folder for data, state and logs [default: /var/lib/sietch for root,
    /// ~/.local/share/sietch for others]
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
}

/// `sietch up`.
#[derive(Clone, Debug, Args)]
pub(crate) struct UpArguments {
    /// The store's options.
    #[command(flatten)]
    pub store: StoreArguments,

    /// The daemon's options.
    #[command(flatten)]
    pub control: ControlArguments,

    /// Stay in the foreground until Ctrl-C (the default)
    #[arg(long, conflicts_with = "detach")]
    pub foreground: bool,

    /// Return once the store is ready; `sietch down` stops it
    #[arg(long)]
    pub detach: bool,

    /// Set by `up --detach` for the process that stays.
    #[arg(long, hide = true)]
    pub detached: bool,
}

/// `sietch daemon`.
#[derive(Clone, Debug, Args)]
pub(crate) struct DaemonArguments {
    /// The daemon's options.
    #[command(flatten)]
    pub control: ControlArguments,

    /// Grant no VNICs
    #[arg(long)]
    pub without_network: bool,

    /// The supervisor's process: end when it ends.
    #[arg(long, hide = true, value_name = "PID")]
    pub parent: Option<i32>,
}

/// What `sietch kv` can do instead of serving.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum KvCommand {
    /// Read a store's area and report whether the store would recover all of it; nothing is
    /// written. The exit status is 0 if it is good, 1 if it is damaged, 2 if that is unknown: the
    /// area is held, does not exist, cannot be read, or holds something else
    Check(CheckArguments),
    /// Write a backup of a store to a file or a pipe while the store runs: its data as they are at
    /// one moment. Root or the area's user may do this. It needs as much memory as the data
    Backup(BackupArguments),
    /// Read a backup into the area of a store that does not run. An area with data is refused, and
    /// a backup that is damaged changes nothing
    Restore(RestoreArguments),
}

/// `sietch kv backup`.
#[derive(Clone, Debug, Args)]
pub(crate) struct BackupArguments {
    /// The file to write, which is replaced once the backup is whole; `-` for standard output
    #[arg(value_name = "FILE|-")]
    pub file: PathBuf,

    /// The store's area (/VOLUME/NAME, or NAME)
    #[arg(long, value_name = "NAME", default_value = "kv")]
    pub vsa: String,
}

/// `sietch kv restore`.
#[derive(Clone, Debug, Args)]
pub(crate) struct RestoreArguments {
    /// What `sietch kv backup` wrote; `-` for standard input
    #[arg(value_name = "FILE|-")]
    pub file: PathBuf,

    /// The store's area (/VOLUME/NAME, or NAME), which is made if it is missing
    #[arg(long, value_name = "NAME", default_value = "kv")]
    pub vsa: String,

    /// Restore although the area has data, which are lost
    #[arg(long)]
    pub replace: bool,

    /// The daemon that makes the area, if none runs.
    #[command(flatten)]
    pub control: PlaceArguments,
}

/// `sietch kv check`.
#[derive(Clone, Debug, Args)]
pub(crate) struct CheckArguments {
    /// A file that holds an area, or the name of an area (/VOLUME/NAME, or NAME), which the daemon
    /// grants: no store may hold it
    #[arg(value_name = "AREA|FILE")]
    pub area: String,

    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `sietch kv`.
#[derive(Clone, Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct KvArguments {
    /// A command instead of serving.
    #[command(subcommand)]
    pub command: Option<KvCommand>,

    /// The store's options.
    #[command(flatten)]
    pub store: StoreArguments,

    /// Give up every privilege for this user and group before anything else (root only)
    #[arg(long, value_name = "UID:GID")]
    pub run_as: Option<Account>,

    /// Largest file offset the process may ever write, in bytes (RLIMIT_FSIZE)
    #[arg(long, value_name = "BYTES")]
    pub file_size_limit: Option<u64>,

    /// The supervisor's process: end when it ends.
    #[arg(long, hide = true, value_name = "PID")]
    pub parent: Option<i32>,
}

/// `sietch service`.
#[derive(Clone, Debug, Args)]
pub(crate) struct ServiceArguments {
    /// Give up every privilege for this user and group before anything else (root only)
    #[arg(long, value_name = "UID:GID")]
    pub run_as: Option<Account>,

    /// The socket for programs under `sietch run` [default: sockets.sock beside the
    /// daemon's socket]
    #[arg(long, value_name = "PATH")]
    pub sockets: Option<PathBuf>,

    /// Serve programs under `sietch run` and nothing else; needs no daemon and no privileges.
    /// Prints the socket's path once it serves
    #[arg(long)]
    pub sockets_only: bool,

    /// A rule for listening and connecting under `sietch run`: `allow|deny listen|connect|all [user
    /// UID] [address NETWORK] [port PORT|FIRST-LAST]`; may be given several times; the first that
    /// matches applies [default: allow all]
    #[arg(long, value_name = "RULE")]
    pub rule: Vec<Rule>,

    /// Take over listeners and connections from the service that runs there now, which then ends;
    /// no program notices
    #[arg(long)]
    pub succeed: bool,

    /// The supervisor's process: end when it ends.
    #[arg(long, hide = true, value_name = "PID")]
    pub parent: Option<i32>,
}

/// A numeric user and group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Account {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

impl std::str::FromStr for Account {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is no account; write UID:GID in numbers, as in 65534:65534");
        let (uid, gid) = text.split_once(':').ok_or_else(wrong)?;
        let account = Self { uid: uid.parse().map_err(|_| wrong())?, gid: gid.parse().map_err(|_| wrong())? };
        if account.uid == 0 || account.gid == 0 {
            return Err("0 is root: giving up privileges needs an ordinary user and group".to_owned());
        }
        // u32::MAX means "leave as it is" to the system calls.
        if account.uid == u32::MAX || account.gid == u32::MAX {
            return Err(wrong());
        }
        Ok(account)
    }
}

/// `sietch stat`.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct StatArguments {
    /// Print JSON (one object a line with --watch)
    #[arg(long)]
    pub json: bool,

    /// Print every N seconds, with rates
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "1",
          value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub watch: Option<u32>,
}

/// `sietch top`.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct TopArguments {
    /// Print one table and exit
    #[arg(long)]
    pub once: bool,

    /// Print JSON, one object a line
    #[arg(long)]
    pub json: bool,
}

/// `sietch ss`.
#[derive(Clone, Debug, Args)]
pub(crate) struct SsArguments {
    /// The VNIC whose sockets are shown [default: every held VNIC; root or the daemon's user only]
    pub vnic: Option<String>,

    /// Print JSON; times are in nanoseconds, quantities in bytes
    #[arg(long)]
    pub json: bool,
}

/// `sietch sockets`.
#[derive(Clone, Debug, Args)]
pub(crate) struct SocketsArguments {
    /// The service's socket [default: as for `sietch run`]
    #[arg(long, value_name = "PATH")]
    pub sockets: Option<PathBuf>,

    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `sietch capture`.
#[derive(Clone, Debug, Args)]
pub(crate) struct CaptureArguments {
    /// The VNIC whose frames are captured
    pub vnic: String,

    /// The file to write; `-` is standard output
    #[arg(short, long, value_name = "FILE")]
    pub write: PathBuf,

    /// End after this number of frames [default: at Ctrl-C]
    #[arg(short, long, value_name = "FRAMES", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,

    /// End after this number of seconds [default: at Ctrl-C]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..))]
    pub seconds: Option<u32>,

    /// Capture at most this number of bytes of each frame [default: all]
    #[arg(short, long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(14..=65549))]
    pub snap: Option<u32>,
}

/// A command about one grant.
#[derive(Clone, Debug, Args)]
pub(crate) struct NameArguments {
    /// The VNIC or storage area, as `sietch status` shows it; for `revoke` also an application, as
    /// `sietch sockets` shows it
    pub name: String,
}

/// `sietch doctor`.
#[derive(Clone, Debug, Args)]
pub(crate) struct DoctorArguments {
    /// Print JSON
    #[arg(long)]
    pub json: bool,

    /// The data directory to examine [default: as for `sietch up`]
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
}

/// `sietch completions`.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct CompletionsArguments {
    /// The shell
    pub shell: clap_complete::Shell,
}

/// `sietch man`.
#[derive(Clone, Debug, Args)]
pub(crate) struct ManArguments {
    /// The folder; one page for each command
    pub directory: PathBuf,
}

#[cfg(test)]
mod tests;
