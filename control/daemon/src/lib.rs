//! `sietchd`: who may open which device slice, with which filters, limits and names.
//!
//! 1. [`run`] takes the lock of its data directory, reads `sietch.toml` ([`configuration`]), opens
//!    the state ([`state`]), adopts what an earlier daemon left (grants of processes that still
//!    live, their veths and programs), removes what is orphaned, and only then opens its socket.
//! 2. One task accepts ([`server`]); one task a connection moves frames and enforces limits on
//!    hostile clients; one task ([`control`]) owns all state and handles one event after another,
//!    so that no two decisions race.
//! 3. A grant is written to the state *before* its device is made and forgotten *after* it is
//!    unmade: a crash at any point leaves something that the next start finds.
//! 4. It is never on the path of a packet or a block: `kill -9` of it disturbs nobody.
//!
//! It links no engine. `docs/spec/control-protocol.md` and `docs/spec/sietch-toml.md` are the
//! reference.
#![forbid(unsafe_code)]

pub mod configuration;
mod control;
pub mod device;
mod identity;
pub mod locations;
mod lock;
mod metrics;
mod server;
mod state;
mod volume;

use std::os::fd::OwnedFd;
use std::path::PathBuf;

pub use configuration::{Configuration, ConfigurationError};
pub use locations::Locations;

use device::{KernelDevices, VnicDevices};

/// Shown in the handshake and in Status.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// How to run.
#[derive(Debug, Default)]
pub struct Options {
    /// `sietch.toml`; without one, where this user's lies ([`Locations`]). Written with defaults if
    /// missing.
    pub configuration: Option<PathBuf>,
    /// The socket; overrides `[daemon] socket`.
    pub socket: Option<PathBuf>,
    /// State and areas; overrides `[daemon] data`.
    pub data: Option<PathBuf>,
    /// A physical interface that all VNICs are joined to.
    pub uplink: Option<String>,
    /// Hand out no VNICs (`--net linux`).
    pub without_network: bool,
    /// One byte is written here once the socket accepts; it is closed without one if the start
    /// fails.
    pub ready: Option<OwnedFd>,
}

/// Why the daemon could not start or had to stop.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// `sietch.toml` is wrong.
    #[error(transparent)]
    Configuration(#[from] ConfigurationError),
    /// Another daemon works on the same data.
    #[error("daemon: already running, pid {pid}, on {}; use it, or stop it with `sietch down`", path.display())]
    AlreadyRunning {
        /// The lock file.
        path: PathBuf,
        /// What the lock file says.
        pid: String,
    },
    /// A file or directory of the daemon's own.
    #[error("{}: cannot {action}: {source}; {fix}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// What was being done.
        action: &'static str,
        /// Why it failed.
        source: std::io::Error,
        /// What to do.
        fix: &'static str,
    },
    /// A volume cannot be used: what is wrong with it, and what to do.
    #[error("{0}")]
    Volume(String),
    /// The state cannot be read.
    #[error(transparent)]
    State(#[from] state::StateError),
    /// The runtime or a signal handler.
    #[error("daemon: cannot {action}: {source}; see whether this process is at a limit (ulimit -a)")]
    Start {
        /// What was being done.
        action: &'static str,
        /// Why it failed.
        source: std::io::Error,
    },
}

/// Runs until Shutdown, SIGINT or SIGTERM, on a runtime of its own.
///
/// # Errors
/// See [`Error`]. What had been set up by then is taken down.
pub fn run(options: Options) -> Result<(), Error> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|source| Error::Start { action: "start its event loop", source })?;
    runtime.block_on(run_async(options))
}

/// As [`run`], on the caller's current-thread runtime.
///
/// # Errors
/// See [`Error`].
pub async fn run_async(options: Options) -> Result<(), Error> {
    let without_network = options.without_network;
    let uplink = options.uplink.clone();
    run_with(options, |instance| KernelDevices::new(instance, without_network, uplink)).await
}

/// As [`run`], with devices of the caller's making: tests use devices in memory. `make` is given
/// the name of this daemon instance, by which it tells its own devices from those of another.
///
/// # Errors
/// See [`Error`].
pub async fn run_with<D, F>(options: Options, make: F) -> Result<(), Error>
where
    D: VnicDevices + 'static,
    F: FnOnce(&str) -> D,
{
    tokio::task::LocalSet::new().run_until(server::serve(options, make)).await
}
