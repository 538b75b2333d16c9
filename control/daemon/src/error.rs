//! Why the daemon could not start, or had to stop.

use std::path::PathBuf;

use crate::configuration::ConfigurationError;
use crate::state::StateError;

/// Why the daemon could not start or had to stop.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// `sietch.toml` is wrong.
    #[error(transparent)]
    Configuration(#[from] ConfigurationError),
    /// Another daemon works on the same data.
    #[error(
        "daemon: already running, pid {pid}, on {0}; it listens at {1}: use it with `sietch --socket {1}`, or stop it with `sietch --socket {1} down`",
        path.display(),
        socket.display()
    )]
    AlreadyRunning {
        /// The lock file.
        path: PathBuf,
        /// Its process, as the lock file has it.
        pid: String,
        /// Its socket.
        socket: PathBuf,
    },
    /// A file or directory of the daemon cannot be used.
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
    State(#[from] StateError),
    /// The runtime or a signal handler cannot be set up.
    #[error("daemon: cannot {action}: {source}; see whether this process is at a limit (ulimit -a)")]
    Start {
        /// What was being done.
        action: &'static str,
        /// Why it failed.
        source: std::io::Error,
    },
}
