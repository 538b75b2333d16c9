//! `sietch daemon` and `sietch kv`: the processes that `sietch up` starts, and that a systemd unit
//! can start as well.

use std::os::fd::{AsFd as _, OwnedFd};
use std::path::PathBuf;

use crate::arguments::{DaemonArguments, Durability, KvArguments, Net};
use crate::error::Error;
use crate::privilege;
use crate::settings::Settings;

/// Runs the control plane until a signal stops it.
///
/// # Errors
/// [`Error::Daemon`] with the daemon's own account.
pub(crate) fn daemon(arguments: DaemonArguments, socket: Option<PathBuf>) -> Result<(), Error> {
    if let Some(parent) = arguments.parent {
        privilege::follow(parent)?;
    }
    arguments.control.place.config.as_deref().map_or(Ok(()), crate::paths::check_configuration)?;
    arguments.control.place.data.as_deref().map_or(Ok(()), crate::paths::check_data_directory)?;
    // A variable of the environment is as good as an option; the default is the daemon's own.
    let socket = socket.or_else(|| std::env::var_os(sietch::SOCKET_VARIABLE).map(PathBuf::from));
    let options = sietch_daemon::Options {
        configuration: arguments.control.place.config,
        socket: socket.clone(),
        data: arguments.control.place.data,
        uplink: arguments.control.uplink,
        without_network: arguments.without_network,
        starts_store: arguments.parent.is_some(),
        ready: arguments.parent.map(|_| readiness()).transpose()?,
    };
    // It registers its own first of all.
    crate::signals::handled();
    sietch_daemon::run(options).map_err(|cause| Error::Daemon(Box::new(cause)))?;
    if let (Some(parent), Some(socket)) = (arguments.parent, socket)
        && !privilege::is_parent(parent)
    {
        // `up` was killed, and its service core with it, which has no right to this folder.
        crate::paths::remove_sockets_beside(&socket);
    }
    Ok(())
}

/// Runs the store until a signal stops it.
///
/// # Errors
/// [`Error::Privilege`]; [`Error::Store`] with the store's own account.
pub(crate) fn store(arguments: KvArguments, socket: Option<PathBuf>) -> Result<(), Error> {
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
    let options = sietch_kv::Options {
        net: match settings.net {
            Net::Auto => sietch_kv::NetChoice::Auto,
            Net::AfXdp => sietch_kv::NetChoice::AfXdp,
            Net::Linux => sietch_kv::NetChoice::Linux,
        },
        listen: settings.listen.resolve(settings.port),
        vnic: settings.vnic,
        vsa: settings.vsa,
        port: settings.port,
        shards: settings.shards.into(),
        durability: match settings.durability {
            Durability::Always => sietch_kv::settings::Durability::Always,
            Durability::Interval => sietch_kv::settings::Durability::Interval,
            Durability::Never => sietch_kv::settings::Durability::Never,
            Durability::None => sietch_kv::settings::Durability::None,
        },
        maxmemory: settings.maxmemory.0,
        // The command line and the daemon let no other word through.
        policy: sietch_kv::settings::Policy::parse(&settings.maxmemory_policy).unwrap_or_default(),
        control_socket: Some(socket),
        ready: Some(ready),
        without_io_uring: settings.without_io_uring,
    };
    // It registers its own first of all.
    crate::signals::handled();
    sietch_kv::run(options).map_err(|cause| Error::Store(Box::new(cause)))
}

/// Standard output, which carries the word that a service is ready.
fn readiness() -> Result<OwnedFd, Error> {
    rustix::stdio::stdout().as_fd().try_clone_to_owned().map_err(Error::Output)
}
