//! `sietch revoke`, `sietch restore` and `sietch reload`.

use std::path::{Path, PathBuf};

use rustix::process::{Signal, pidfd_send_signal};
use sietch_protocol::{CallError, Connection, Target};

use crate::error::Error;
use crate::output;
use crate::paths;
use crate::up::instance;

/// How long the daemon may take to answer the command line.
pub(crate) const TIMEOUT: std::time::Duration = std::time::Duration::from_secs(10);

/// Between two tries to reach a daemon that `sietch up` starts.
const START_PAUSE: std::time::Duration = std::time::Duration::from_millis(50);

/// Tries: as many as take a few seconds.
const START_TRIES: u32 = 100;

/// A connection of the command line to the daemon at `socket`: the administrators' where this user
/// may have it. While a `sietch up` runs there whose daemon does not listen, or ends before it
/// welcomes this one, it is just starting one: this waits for it.
///
/// # Errors
/// [`Error::Control`]: no daemon listens there, or one of another version; [`Error::Elsewhere`].
pub(crate) fn connect(socket: &Path) -> Result<Connection, Error> {
    let mut tries = 0;
    loop {
        let absent = match connect_now(socket) {
            Err(absent @ Error::Control(CallError::Connect { .. } | CallError::Closed)) => absent,
            outcome => return outcome,
        };
        tries += 1;
        if tries < START_TRIES && matches!(instance::find(&paths::record(socket)), Ok(Some(_))) {
            std::thread::sleep(START_PAUSE);
            continue;
        }
        return Err(match other_daemon(socket) {
            Some(other) => Error::Elsewhere { path: socket.to_owned(), other: other.display().to_string() },
            None => absent,
        });
    }
}

/// The socket of a daemon of this user's default data directory, if one listens there and it is not
/// `socket`: the environment may differ from that of its start.
fn other_daemon(socket: &Path) -> Option<PathBuf> {
    let other = sietch_daemon::last_socket(&paths::data_directory(None).ok()?)?;
    (other != socket && Connection::connect(&other, "sietch", TIMEOUT).is_ok()).then_some(other)
}

/// As [`connect`], but does not wait.
///
/// # Errors
/// [`Error::Control`].
pub(crate) fn connect_now(socket: &Path) -> Result<Connection, Error> {
    Ok(Connection::connect_as_administrator(socket, "sietch", TIMEOUT)?)
}

/// Revokes every grant of `name`.
///
/// # Errors
/// [`Error::Control`]: no such name, or not an administrator.
pub(crate) fn revoke(socket: &Path, name: &str) -> Result<(), Error> {
    let lines = connect(socket)?.revoke(Target::Name(name.to_owned()))?;
    let mut text = String::new();
    for line in lines {
        text.push_str(&line);
        text.push('\n');
    }
    text.push_str(&format!("{name} is revoked until `sietch restore {name}`\n"));
    output::print(&text)
}

/// Allows a revoked name to be acquired again.
///
/// # Errors
/// [`Error::Control`]: no such name, or not an administrator.
pub(crate) fn restore(socket: &Path, name: &str) -> Result<(), Error> {
    connect(socket)?.restore(name)?;
    output::print(&format!("{name} can be acquired again\n"))
}

/// Makes the daemon reload its configuration. If it is invalid, the daemon keeps the former one.
/// Then `sietch up` mounts again what was unmounted. Prints what takes no effect, and why.
///
/// # Errors
/// [`Error::Control`]: the file is wrong, or not an administrator. [`Error::Signal`].
pub(crate) fn reload(socket: &Path) -> Result<(), Error> {
    let mut daemon = connect(socket)?;
    daemon.reload()?;
    let mut text = "the configuration is read again\n".to_owned();
    for warning in daemon.status()?.warnings {
        text += &format!("warning: {warning}\n");
    }
    for name in mount_again(&paths::record(socket))? {
        text += &format!("{name} is to be mounted again; `sietch status` says if it cannot be\n");
    }
    output::print(&text)
}

/// Has the `sietch up` of a record mount what was unmounted; the names.
fn mount_again(path: &Path) -> Result<Vec<String>, Error> {
    let Some(record) = instance::find(path)?.filter(|record| !record.unmounted.is_empty()) else {
        return Ok(Vec::new());
    };
    let process = instance::process(path, &record)?;
    let failed = |cause: rustix::io::Errno| Error::Signal { pid: record.pid, source: cause.into() };
    pidfd_send_signal(&process, Signal::USR1).map_err(failed)?;
    Ok(record.unmounted)
}
