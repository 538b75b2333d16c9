//! Default paths.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use sietch_protocol::socket_service::{
    Descriptors, Request, RequestKind, SOCKET_NAME, SOCKET_VARIABLE, call,
};

use crate::error::Error;

/// The data directory of root.
const SYSTEM_DATA: &str = "/var/lib/sietch";

/// The data directory, absolute: the requested one, else the user's default.
///
/// # Errors
/// [`Error::NoDataDirectory`] for a user without a home; [`Error::File`] if the current folder was
/// removed.
pub(crate) fn data_directory(requested: Option<&Path>) -> Result<PathBuf, Error> {
    let root = rustix::process::geteuid().is_root();
    let path = match requested {
        Some(path) => path.to_owned(),
        None => default_data(root, |name| std::env::var_os(name)).ok_or(Error::NoDataDirectory)?,
    };
    std::path::absolute(&path).map_err(Error::file(&path, "name the data directory with an absolute path"))
}

/// Refuses a file of `--config` that is not there. Only the default one is made on first start: an
/// option that names a missing file is a typing error.
///
/// # Errors
/// [`Error::File`].
pub(crate) fn check_configuration(named: &Path) -> Result<(), Error> {
    let fix = "name an existing file with `--config`, or leave the option out: the default file is made on first start";
    refuse_missing(named, named, fix)
}

/// Refuses a data directory that was named and could only be made with the folder above it.
///
/// # Errors
/// [`Error::File`].
pub(crate) fn check_data_directory(named: &Path) -> Result<(), Error> {
    let fix = "correct the path, or make the folder above it first: a data directory that is named is made, the folders above it are not";
    let above = named.parent().filter(|above| !above.as_os_str().is_empty());
    above.map_or(Ok(()), |above| refuse_missing(above, named, fix))
}

/// Fails for `named` if `path` is not there. Other causes are those of its later use.
fn refuse_missing(path: &Path, named: &Path, fix: &'static str) -> Result<(), Error> {
    match path.metadata() {
        Err(cause) if cause.kind() == ErrorKind::NotFound => Err(Error::file(named, fix)(cause)),
        _ => Ok(()),
    }
}

fn default_data(root: bool, variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    if root {
        return Some(SYSTEM_DATA.into());
    }
    let set = |name: &str| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    set("XDG_DATA_HOME")
        .or_else(|| set("HOME").map(|home| home.join(".local/share")))
        .map(|folder| folder.join("sietch"))
}

/// The socket of the socket service: beside the `daemon`'s socket if that was named, else what the
/// environment says, else beside this user's daemon's if it is there, else beside root's.
pub(crate) fn sockets(daemon: Option<&Path>) -> PathBuf {
    let beside = sockets_beside;
    if let Some(daemon) = daemon {
        return beside(daemon);
    }
    if let Some(named) = std::env::var_os(SOCKET_VARIABLE).filter(|value| !value.is_empty()) {
        return named.into();
    }
    let own = beside(&sietch::own_socket_path());
    if std::env::var_os(sietch::SOCKET_VARIABLE).is_some() || own.exists() {
        return own;
    }
    let system = beside(Path::new(sietch::SYSTEM_SOCKET));
    if system.exists() { system } else { own }
}

/// The path of the socket service of the daemon that listens at `daemon`.
pub(crate) fn sockets_beside(daemon: &Path) -> PathBuf {
    daemon.with_file_name(SOCKET_NAME)
}

/// Whether a socket service answers at `path`.
pub(crate) fn is_served(path: &Path) -> bool {
    let hello = Request::new(RequestKind::Hello, [0; 16]);
    call(path.as_os_str().as_bytes(), &hello, &[], &mut Descriptors::default()).is_ok()
}

/// Removes what a service that has ended left there: its socket and the administrators'. Leaves
/// those of another service, which was there before or has succeeded it.
pub(crate) fn remove_sockets_beside(daemon: &Path) {
    let path = sockets_beside(daemon);
    if is_served(&path) {
        return;
    }
    let _ = std::fs::remove_file(&path);
    sietch_protocol::administration::remove(&path);
}

/// The record of the `sietch up` whose daemon listens at `socket`.
pub(crate) fn record(socket: &Path) -> PathBuf {
    socket.with_extension("up")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_lies_with_the_system_for_root_and_with_the_user_for_others() {
        let home = |name: &str| (name == "HOME").then(|| OsString::from("/home/seven"));
        let none = |_: &str| None;
        assert_eq!(default_data(true, none), Some(SYSTEM_DATA.into()));
        assert_eq!(default_data(false, home), Some("/home/seven/.local/share/sietch".into()));
        assert_eq!(default_data(false, none), None);
    }
}
