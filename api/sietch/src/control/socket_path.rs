//! The path of the daemon's socket.
//!
//! 1. `SIETCH_SOCKET`, where it is set, wins.
//! 2. Root's daemon listens on [`SYSTEM_SOCKET`]; a user's own in `$XDG_RUNTIME_DIR/sietch`, else
//!    beside the data: `$XDG_DATA_HOME/sietch/run` or `~/.local/share/sietch/run`. The daemon has
//!    the same rule.
//! 3. A client takes its user's own daemon if that has a socket, else root's if that has one.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The socket of root's daemon.
pub const SYSTEM_SOCKET: &str = "/run/sietch/sietch.sock";

/// The environment variable that names another one.
pub const SOCKET_VARIABLE: &str = "SIETCH_SOCKET";

/// The socket that a client of this user should connect to.
pub fn socket_path() -> PathBuf {
    let own = own_socket_path();
    if std::env::var_os(SOCKET_VARIABLE).is_none() {
        return choose(own, Path::new(SYSTEM_SOCKET), Path::exists);
    }
    own
}

/// The socket on which a daemon started by this user listens.
pub fn own_socket_path() -> PathBuf {
    let uid = rustix::process::geteuid();
    resolve(uid.as_raw(), &|name| std::env::var_os(name))
}

fn choose(own: PathBuf, system: &Path, exists: impl Fn(&Path) -> bool) -> PathBuf {
    if !exists(&own) && exists(system) { system.to_owned() } else { own }
}

fn resolve(uid: u32, variable: &dyn Fn(&str) -> Option<OsString>) -> PathBuf {
    let set = |name: &str| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(path) = set(SOCKET_VARIABLE) {
        return path;
    }
    if uid == 0 {
        return SYSTEM_SOCKET.into();
    }
    // The XDG specification: a relative path counts as not set.
    let folder = |name: &str| set(name).filter(|path| path.is_absolute());
    if let Some(runtime) = folder("XDG_RUNTIME_DIR") {
        return runtime.join("sietch/sietch.sock");
    }
    // Without a home: where root alone makes folders. In /tmp, another user could make it first.
    let home = folder("HOME").unwrap_or_else(|| format!("/run/user/{uid}").into());
    folder("XDG_DATA_HOME").unwrap_or_else(|| home.join(".local/share")).join("sietch/run/sietch.sock")
}

#[cfg(test)]
mod tests;
