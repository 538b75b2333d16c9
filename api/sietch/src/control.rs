//! The connection to the daemon: acquiring devices, and holding them while a data loop runs.

mod client;
mod diagnostics;
mod lease;
mod socket_path;
mod socket_service;

pub use client::Client;
pub use lease::{Lease, PreparedReply};
pub use socket_path::{SOCKET_VARIABLE, SYSTEM_SOCKET, own_socket_path, socket_path};
pub use socket_service::{socket_service, socket_service_beside};
