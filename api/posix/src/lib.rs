//! Unmodified programs over Sietch: the implementation of the C library's socket calls.
//!
//! 1. `sietch run -- CMD` preloads `libsietch_posix.so`
//!    ([`api/posix/preload`](../preload/src/lib.rs)). It exports the C library's names and forwards
//!    each to a function of [`calls`]. Linking this crate alone interposes nothing.
//! 2. Every descriptor is a kernel descriptor. The descriptor of a connection or a listener under
//!    Sietch is a *placeholder*: a Unix socket whose other end the peer or the service holds. So
//!    descriptor limits, dup, fork, SCM_RIGHTS and close remain the kernel's.
//! 3. The descriptor table says in one load whether a descriptor is Sietch's ("ours" in this
//!    crate). If not, the call goes to the C library's own function.
//! 4. A call that blocks sleeps in the kernel, on placeholders. A thread that is awake moves bytes
//!    through memory that both ends share (`sietch_ring::stream`).
//! 5. No call allocates from the heap or holds a lock across a fork. Each call may run in a signal
//!    handler.
//! 6. The protocol between two ends, and with the socket service, is `sietch_stream`. This crate
//!    adds what a program sees of it: descriptors, fork and exec, signals, calls that block, and
//!    `epoll`.
//!
//! The folders are the layers, highest first. A module imports from its own folder and from the
//! folders below it, and no files import one another in a circle:
//!
//! ```text
//!  calls        what each intercepted call does: socket, data, files, descriptor, options,
//!               process, epoll/poll/select, signal, syscall
//!  wait         epoll_wait, poll, select: scan shared memory, sleep in the kernel
//!  listener     register a listener with the service; register again after a restart
//!  readiness    readiness checks; epoll sets: registrations, arming, changes, fork, exec
//!  service      requests to the socket service, and arrivals from it
//!  options      the socket options that are remembered and inherited
//!  connection   one end: doorbell, peer, state, spinning, blocked calls
//!  files        files on a mount of a shared file system: words, state, claims
//!  descriptor   the descriptor table; hidden and in-flight descriptors
//!  context      what `sietch run` passed in the environment       address   socket names
//!  signal       handlers, faults, checked copies, jumps out of handlers
//!  system       system calls, libc originals, seccomp, processor, fork
//! ```
//!
//! `docs/posix.md` lists the supported calls, and the errno of each unsupported one.

mod address;
pub mod calls;
mod connection;
mod context;
mod descriptor;
pub mod files;
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
