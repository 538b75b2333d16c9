//! Unmodified programs over Sietch: what stands behind the calls of the C library's socket
//! interface.
//!
//! 1. `sietch run -- CMD` preloads `libsietch_posix.so`
//!    ([`api/posix/preload`](../preload/src/lib.rs)), which exports the calls and forwards each to
//!    a function of this crate. To link this crate alone interposes nothing.
//! 2. Every descriptor is a kernel's descriptor. Those that are Sietch's are *placeholders*: a Unix
//!    socket whose other end the peer or the service holds. So descriptor limits, dup, fork,
//!    SCM_RIGHTS and close are the kernel's own.
//! 3. [`table`] says in one load whether a descriptor is ours. If not, the call goes to the C
//!    library.
//! 4. SlotKind sleeps sleeps in the kernel, on placeholders; what is awake moves bytes through the
//!    memory that two ends share (`sietch_ring::stream`).
//! 5. No call allocates from the heap or holds a lock across a fork, and each may be called from a
//!    signal handler.
//!
//! `docs/posix.md` lists what is supported, and what is not with the errno that it gives.

mod address;
pub mod calls;
mod connection;
mod context;
mod descriptor;
mod listener;
mod options;
mod readiness;
mod service;
mod signal;
mod system;
mod wait;

/// The descriptor table, for tests and measurements that connect two ends without a service.
pub mod table {
    pub use crate::descriptor::description::{Description, Held, Kind, SocketState, describe};
    pub use crate::descriptor::table::{find, is_ours, put};
}

/// Which build the library is: what a service is compared with before a program starts.
pub use sietch_protocol::socket_service::Build;
/// The first word of a stream's memory.
pub use sietch_ring::stream::MAGIC;
