//! `sietchd`, the daemon: it decides who may open which device slice, with which filters, limits
//! and names.
//!
//! 1. [`run`] locks its data directory, reads `sietch.toml` ([`configuration`]) and opens the state
//!    (`state`). It adopts what an earlier daemon left (grants of processes that still live, their
//!    veths and programs). It removes what is orphaned, and only then opens its socket.
//! 2. One task accepts connections (`server`). One task for each connection reads and writes frames
//!    and enforces limits on hostile clients. One task (`control`) owns all state and handles one
//!    event after another, so that no two decisions race.
//! 3. A grant is written to the state *before* its device is made, and removed *after* its device
//!    is. A crash at any point leaves something that the next start finds.
//! 4. The daemon is never on the path of a packet or a block: `kill -9` of it disturbs no
//!    application.
//!
//! It links no engine. `docs/spec/control-protocol.md` and `docs/spec/sietch-toml.md` are the
//! reference.
//!
//! ```no_run
//! let options = sietch_daemon::Options {
//!     configuration: Some("/etc/sietch/sietch.toml".into()),
//!     ..sietch_daemon::Options::default()
//! };
//! sietch_daemon::run(options)?; // returns on SIGTERM, SIGINT or Shutdown
//! # Ok::<(), sietch_daemon::Error>(())
//! ```
//!
//! The layers, lowest first; a module imports only from those below:
//!
//! ```text
//! lib                                        run
//! server                                     sockets, connections, limits on clients
//! control                                    the task that decides
//! volume                                     where areas are stored
//! error     directories     lock
//! state                                      what survives a restart
//! device                                     VNICs, links, ports of the switch
//! configuration                              sietch.toml
//! granted  log_budget                        descriptors for clients; lines that they cause
//! allowance  identity  locations  metrics  options      rates; processes; paths; counters
//! ```
#![forbid(unsafe_code)]

mod allowance;
pub mod configuration;
mod control;
pub mod device;
mod directories;
mod error;
mod granted;
mod identity;
mod locations;
mod lock;
mod log_budget;
mod metrics;
mod options;
mod server;
mod state;
mod volume;

pub use configuration::{Configuration, ConfigurationError};
pub use error::Error;
pub use locations::Locations;
pub use lock::last_socket;
pub use options::Options;

use device::{KernelDevices, VnicDevices};

/// Runs the daemon until Shutdown, SIGINT or SIGTERM, on a runtime of its own.
///
/// # Errors
/// See [`Error`]. Everything that was set up by then is taken down.
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
    run_with(options, move |instance| KernelDevices::new(instance, without_network, uplink)).await
}

/// As [`run`], with other devices: tests use devices in memory. `make` is called in the thread of
/// the devices, with the name of this daemon instance, which tells its devices from those of
/// another daemon.
///
/// # Errors
/// See [`Error`].
pub async fn run_with<D, F>(options: Options, make: F) -> Result<(), Error>
where
    D: VnicDevices,
    F: FnOnce(&str) -> D + Send + 'static,
{
    tokio::task::LocalSet::new().run_until(server::serve(options, make)).await
}
