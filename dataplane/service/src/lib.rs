//! The service core: one process that serves applications which are not trusted with a device.
//!
//! It has four roles. Each is a module with the same files: `limits.rs`, `metrics.rs`, `run.rs`
//! (its threads), and `commands.rs` where another thread sends it commands.
//!
//! - [`switch`]: the software switch between shared-memory VNICs, sans-I/O over any
//!   [`sietch_nic::NicQueue`].
//! - [`broker`]: the storage broker for areas that are extents on one file or device, sans-I/O
//!   over any [`sietch_disk::DiskQueue`].
//! - [`sockets`]: the socket service of unmodified programs: set-up, transfer, limits.
//! - [`tcp`]: the TCP host: TCP/IP engines for applications that use a VNIC and link none.
//!
//! Layers, lowest first; each file imports only from those below it:
//!
//! ```text
//! tcp                            uses the socket service's commands
//! sockets
//! requests    switch    broker   what sockets and tcp share; two roles of their own
//! snapshot    limits             status for other threads; bounds that several roles share
//! ```
#![forbid(unsafe_code)]

pub mod broker;
pub mod fs;
mod limits;
mod requests;
mod snapshot;
pub mod sockets;
pub mod switch;
pub mod tcp;

pub use snapshot::Snapshot;
