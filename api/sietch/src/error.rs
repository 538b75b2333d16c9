//! The failures of the native API.

use std::io;
use std::path::PathBuf;

use sietch_protocol::CallError;
use sietch_protocol::metrics::MetricsError;

/// A failure of the native API.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The daemon is not there, or refused.
    #[error(transparent)]
    Control(#[from] CallError),
    /// The VNIC was granted, but its rings cannot be used.
    #[error("VNIC {name}: {source}")]
    Queue {
        /// The VNIC.
        name: String,
        /// The cause.
        source: sietch_nic::af_xdp::OpenError,
    },
    /// The VNIC was granted, but its shared memory cannot be used.
    #[error("VNIC {name}: {source}")]
    Link {
        /// The VNIC.
        name: String,
        /// The cause.
        source: sietch_nic::shm::OpenError,
    },
    /// The daemon's answer describes another device than it passed.
    #[error(
        "VNIC {name}: the daemon passed descriptors of another kind than {kind}; use a daemon and an application of one version"
    )]
    Kind {
        /// The VNIC.
        name: String,
        /// What it is.
        kind: sietch_protocol::VnicKind,
    },
    /// The storage area was granted, but cannot be used.
    #[error("VSA {name}: {source}; see `sietch doctor` for io_uring and O_DIRECT")]
    Area {
        /// The storage area.
        name: String,
        /// The cause.
        source: sietch_disk::OpenError,
    },
    /// A counter page.
    #[error(transparent)]
    Metrics(#[from] MetricsError),
    /// The thread that holds the grants cannot start.
    #[error("lease with the daemon at {path}: {source}; raise the limits of threads and open files")]
    Lease {
        /// The daemon's socket.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The command line.
    #[error(transparent)]
    Arguments(#[from] ArgumentError),
    /// The loop, its device, or randomness.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// What is wrong with a command line.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ArgumentError {
    /// An option has no value.
    #[error("{0} needs a value: write {0} VALUE")]
    NoValue(String),
    /// A value is not what it should be.
    #[error("{name} {value}: not understood; see the start of the program's source for its options")]
    BadValue {
        /// The option.
        name: String,
        /// What was given.
        value: String,
    },
    /// No device is named.
    #[error("no device is named: give --vnic NAME (see `sietch status`)")]
    NoDevice,
}
