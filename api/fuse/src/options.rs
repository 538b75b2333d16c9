//! How a file system is mounted.

use std::path::PathBuf;
use std::time::Duration;

/// Threads that serve requests, unless the options say otherwise. The file system is behind one
/// lock; further threads copy data and parse requests meanwhile.
const THREADS: usize = 4;

/// How a file system is mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The source in the mount table. It also says which dead mounts are ours to clear.
    pub source: String,
    /// Users other than the mounting one may use it, as the modes of its files permit.
    pub allow_other: bool,
    /// Nothing can be changed.
    pub read_only: bool,
    /// Programs on it may be executed.
    pub executable: bool,
    /// Set-user-ID bits and file capabilities take effect, and device files open devices.
    pub trusted: bool,
    /// How long the kernel may cache names and attributes of a [`Mount`](crate::Mount): zero where
    /// other clients change the file system beside it.
    pub keep: Duration,
    /// Each change is durable when it returns, as after `fsync`.
    pub sync: bool,
    /// How often what was done is made durable, without being asked for: after twice this time it
    /// is, if the medium keeps up.
    pub flush: Option<Duration>,
    /// Where other clients of the file system find its service: programs on the mount may become
    /// clients themselves ([`sietch_fs::direct`]).
    pub service: Option<PathBuf>,
    /// Threads that serve requests, at least 1.
    pub threads: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            source: "sietch-fs".to_owned(),
            allow_other: false,
            read_only: false,
            executable: true,
            trusted: false,
            keep: Duration::ZERO,
            sync: false,
            flush: None,
            service: None,
            threads: THREADS,
        }
    }
}
