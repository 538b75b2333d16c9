//! `sietch revoke`, `sietch restore` and `sietch reload`.

use std::path::Path;

use sietch_protocol::{Connection, Target};

use crate::error::Error;
use crate::output;

/// How long the daemon may take to answer the command line.
pub(crate) const TIMEOUT: std::time::Duration = std::time::Duration::from_secs(10);

/// A connection of the command line to the daemon at `socket`: the administrators' where this user
/// may have it.
///
/// # Errors
/// [`Error::Control`]: no daemon listens there, or one of another version.
pub(crate) fn connect(socket: &Path) -> Result<Connection, Error> {
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
///
/// # Errors
/// [`Error::Control`]: the file is wrong, or not an administrator.
pub(crate) fn reload(socket: &Path) -> Result<(), Error> {
    connect(socket)?.reload()?;
    output::print("the configuration is read again\n")
}
