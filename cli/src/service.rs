//! `sietch daemon` and `sietch kv`: what `sietch up` starts, and what a unit of systemd can start as well.

use std::os::fd::{AsFd as _, OwnedFd};
use std::path::PathBuf;

use crate::arguments::{DaemonArguments, KvArguments};
use crate::error::Error;
use crate::privilege;
use crate::settings::Settings;

/// Runs the control plane until it is told to stop.
///
/// # Errors
/// [`Error::Daemon`] with the daemon's own account.
pub fn daemon(arguments: DaemonArguments, socket: Option<PathBuf>) -> Result<(), Error> {
    if let Some(parent) = arguments.parent {
        privilege::follow(parent)?;
    }
    // A variable of the environment is as good as an option; the default is the daemon's own.
    let socket = socket.or_else(|| std::env::var_os(sietch::SOCKET_VARIABLE).map(PathBuf::from));
    let options = sietch_daemon::Options {
        configuration: arguments.control.config,
        socket,
        data: arguments.control.data,
        uplink: arguments.control.uplink,
        without_network: arguments.without_network,
        ready: arguments.parent.map(|_| readiness()).transpose()?,
    };
    sietch_daemon::run(options).map_err(|cause| Error::Daemon(Box::new(cause)))
}

/// Runs the store until it is told to stop.
///
/// # Errors
/// [`Error::Privilege`]; [`Error::Store`] with the store's own account.
pub fn store(arguments: KvArguments, socket: Option<PathBuf>) -> Result<(), Error> {
    if let Some(limit) = arguments.file_size_limit {
        privilege::limit_files(limit)?;
    }
    if let Some(account) = arguments.run_as {
        privilege::give_up(account)?;
    }
    if let Some(parent) = arguments.parent {
        // After the change of user, which would undo it.
        privilege::follow(parent)?;
    }
    let settings = Settings::default().with(&arguments.store);
    let ready = readiness()?;
    run_store(settings, socket.unwrap_or_else(sietch::socket_path), ready)
}

fn run_store(settings: Settings, socket: PathBuf, ready: OwnedFd) -> Result<(), Error> {
    let listen = settings.listen.resolve(settings.port);
    drop((settings, socket, ready, listen));
    Err(Error::Store("store: its event loop is not part of this build; wait for it".into()))
}

/// Standard output, which carries the word that a service is ready.
fn readiness() -> Result<OwnedFd, Error> {
    rustix::stdio::stdout().as_fd().try_clone_to_owned().map_err(Error::Output)
}
