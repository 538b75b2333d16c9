//! How to run the daemon.

use std::os::fd::OwnedFd;
use std::path::PathBuf;

/// The version of the daemon, in the handshake and in Status.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// How to run the daemon.
#[derive(Debug, Default)]
pub struct Options {
    /// The path of `sietch.toml`; without one, this user's ([`crate::Locations`]). A missing file
    /// is created with defaults.
    pub configuration: Option<PathBuf>,
    /// The socket; overrides `[daemon] socket`.
    pub socket: Option<PathBuf>,
    /// State and areas; overrides `[daemon] data`.
    pub data: Option<PathBuf>,
    /// A physical interface that all VNICs are joined to.
    pub uplink: Option<String>,
    /// Grant no VNICs (`--net linux`).
    pub without_network: bool,
    /// `sietch up` runs it, and starts the store of `[kv]`: a reload is refused with which that
    /// store could not start again.
    pub starts_store: bool,
    /// One byte is written here once the socket accepts; it is closed without one if the start
    /// fails.
    pub ready: Option<OwnedFd>,
}
