//! `sietch up`: daemon, service core, file systems and store, from start to clean end.
//!
//! 1. Only one at a time: the record beside the socket is claimed first ([`instance`]).
//! 2. The daemon is started and waited for. Then comes the service core, for programs under `sietch
//!    run`, VNICs of the switch and areas on volumes of extents; then the mounts of file systems
//!    ([`file_systems`]), and the store. Service core and store run as unprivileged users when this
//!    is root. A daemon that runs already (under systemd, for
//!    example) is used as it is. Its service core is not started here, and both keep running at the
//!    end.
//! 3. The outcome is printed: the mode and why, addresses, protection, data directory, durability.
//! 4. A child that ends is restarted, and one that does not start is tried again ([`supervisor`]);
//!    the others continue. The store does not notice a restart of its daemon.
//! 5. At SIGINT and SIGTERM, and at SIGHUP of its terminal, the store is stopped first, which
//!    flushes its log. Then file systems are unmounted, and the service core and the daemon are
//!    stopped; the daemon removes its devices. The record is removed last. If this process is
//!    killed, the kernel sends SIGTERM to its children, which end in the same way.

mod banner;
pub(crate) mod child;
mod detach;
mod file_systems;
pub(crate) mod instance;
mod part;
mod plan;
mod supervisor;

use std::path::PathBuf;

use crate::arguments::UpArguments;
use crate::error::Error;
use crate::paths;
pub(crate) use plan::Places;
use plan::Plan;

/// Runs until a signal stops it.
///
/// # Errors
/// [`Error::AlreadyRunning`]; or the reason why daemon or store cannot serve.
pub(crate) fn run(arguments: &UpArguments, socket: Option<PathBuf>) -> Result<(), Error> {
    if arguments.detach {
        return detach::start();
    }
    if arguments.detached {
        detach::leave_terminal()?;
    }
    let plan = Plan::new(arguments, socket)?;
    let claim = instance::claim(&paths::record(&plan.socket))?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|source| Error::Start { what: "event loop", source })?;
    runtime.block_on(supervisor::run(plan, claim, arguments.detached))
}
