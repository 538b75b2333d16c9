//! The native Rust API: how an application asks the control plane for devices and then owns their queues.
//!
//! 1. [`Client::connect`] finds the daemon at [`socket_path`]. The daemon knows the application by its kernel
//!    credentials.
//! 2. [`Client::acquire_vnic`] and [`Client::acquire_vsa`] bring queue pairs: from there on the
//!    application touches the device without the daemon. Each carries a [`Grant`], which knows its generation,
//!    its protection class and whether it was revoked.
//! 3. [`Client::hold`] gives a [`Lease`]: a thread that holds the connection, notices revocations, and survives
//!    restarts of the daemon. Its doorbell is pollable like any descriptor.
//! 4. The engines to drive the queues with are re-exported: [`net`] and [`persist`].
#![forbid(unsafe_code)]

mod client;
mod error;
mod grant;
mod lease;
mod metrics;
mod path;
mod ready;
mod vnic;
mod vsa;

pub use sietch_disk as disk;
pub use sietch_net as net;
pub use sietch_nic as nic;
pub use sietch_persist as persist;
pub use sietch_protocol as protocol;

pub use client::{Client, VnicParts, VsaParts};
pub use error::Error;
pub use grant::Grant;
pub use lease::Lease;
pub use metrics::{INTERVAL as METRICS_INTERVAL, Kind, Metrics, MetricsError};
pub use path::{SOCKET_VARIABLE, SYSTEM_SOCKET, own_socket_path, socket_path};
pub use ready::{MAX_LINE as READY_MAX_LINE, Ready};
pub use vnic::Vnic;
pub use vsa::Vsa;
