//! Why the store could not start, or had to end.

use crate::data::journal::ReplayError;
use crate::foundation::settings::MAX_SHARDS;

/// Why the store could not start, or had to end.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The control plane did not grant what the store needs.
    #[error("kv: {0}")]
    Control(#[from] sietch::Error),
    /// The storage area's queue cannot be opened.
    #[error("kv: storage area `{name}`: {cause}")]
    Area {
        /// The area.
        name: String,
        /// The cause.
        #[source]
        cause: sietch::disk::OpenError,
    },
    /// The storage area cannot be given its first format.
    #[error("kv: storage area `{name}`: {cause}")]
    Format {
        /// The area.
        name: String,
        /// What is wrong.
        #[source]
        cause: sietch::persist::FormatError,
    },
    /// The log cannot be read.
    #[error("kv: storage area `{name}`: {cause}")]
    Log {
        /// The area.
        name: String,
        /// What is wrong.
        #[source]
        cause: sietch::persist::OpenError,
    },
    /// A record of the log was not written by this program.
    #[error("kv: storage area `{name}`: {cause}")]
    Replay {
        /// The area.
        name: String,
        /// What is wrong.
        #[source]
        cause: ReplayError,
    },
    /// The log failed while the store ended.
    #[error("kv: storage area `{name}`: {cause}")]
    LogFailed {
        /// The area.
        name: String,
        /// What failed.
        #[source]
        cause: sietch::persist::Failure,
    },
    /// The disk has not taken the last effects within the time limit for the end of the store.
    #[error(
        "kv: storage area `{name}`: the disk has not taken the last writes, and is not waited for any longer; what was not acknowledged may be lost"
    )]
    Unfinished {
        /// The area.
        name: String,
    },
    /// The service core through which the area was reached has ended, and there is one again.
    #[error(
        "kv: storage area `{name}` went with its service core, and can be had again: start the store again (under `sietch up` that happens by itself); all that was acknowledged is in it"
    )]
    AreaReturned {
        /// The area.
        name: String,
    },
    /// The engine cannot listen.
    #[error("kv: VNIC `{name}`: {cause}")]
    Listen {
        /// The VNIC.
        name: String,
        /// What is wrong.
        #[source]
        cause: sietch::net::ListenError,
    },
    /// Kernel sockets.
    #[error("kv: {0}")]
    Sockets(#[from] sietch_socket::Error),
    /// The file with the clients' password cannot be read.
    #[error("kv: the password file {} (SIETCH_KV_PASSWORD_FILE): {cause}; name a file that the store's user may read", path.display())]
    Password {
        /// The file.
        path: std::path::PathBuf,
        /// What is wrong.
        #[source]
        cause: std::io::Error,
    },
    /// The store could not be reached: it has neither a VNIC nor a kernel socket.
    #[error("kv: neither a VNIC nor an address to listen on; give --listen an address, or drop --net linux")]
    NoWayIn,
    /// The thread of a shard has ended by itself.
    #[error(
        "kv: the thread of a shard has ended, and a part of the keys with it; start the store again (under `sietch up` that happens by itself); all that was acknowledged is in the log"
    )]
    MemberEnded,
    /// More or fewer shards than a store may have.
    #[error("kv: {shards} is no number of shards; give --shards 1 to {MAX_SHARDS}")]
    Shards {
        /// The number.
        shards: usize,
    },
    /// A system call failed that every Linux supports.
    #[error("kv: {action}: {cause}")]
    System {
        /// The failed action.
        action: &'static str,
        /// The error of the kernel.
        #[source]
        cause: std::io::Error,
    },
}
