//! The native Rust API: how an application asks the control plane for devices and then owns their
//! queues.
//!
//! 1. [`Client::connect`] finds the daemon at [`socket_path`]. The daemon knows the application by
//!    its kernel credentials.
//! 2. [`Client::acquire_vnic`] and [`Client::acquire_vsa`] bring queue pairs: from there on the
//!    application touches the device without the daemon. Each carries a [`Grant`], which knows its
//!    generation, its protection class and whether it was revoked.
//! 3. [`Client::hold`] gives a [`Lease`]: a thread that holds the connection, notices revocations,
//!    and survives restarts of the daemon. Its doorbell is pollable like any descriptor.
//! 4. What an area holds can be shown as files ([`view`]).
//! 5. The engines to drive the queues with are re-exported: [`net`] and [`persist`].
//!
//! Two ways to write the loop around a queue, both one thread with nothing shared:
//!
//! - [`Stack`] is poll-style: a queue and its engine in the application's own loop.
//! - [`Runtime`] is `async`: tasks on a small executor of its own, with [`TcpListener`],
//!   [`TcpStream`], [`UdpSocket`], timers, and storage in the same loop: a disk queue ([`Disk`]),
//!   and logs, queues and maps ([`Durable`]).
//!
//! With both, bytes can be copied, or change hands: received ones stay in the buffer into which
//! they came until it is dropped, sent ones are shared with the engine until they are acknowledged
//! ([`net::ReceivedBuffer`], [`net::SharedBytes`]).
//!
//! Both read the clock once a turn, spin for as long as that has paid lately ([`Spin`]), and then
//! sleep on the doorbells: an idle application costs nothing.
//!
//! ```no_run
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let runtime = sietch::Runtime::from_args()?; // --vnic NAME
//!     runtime.run(async |net| {
//!         let mut listener = net.listen(7, 128)?;
//!         loop {
//!             let (mut stream, _) = listener.accept().await?;
//!             net.spawn(async move {
//!                 let mut buffer = [0; 4096];
//!                 while let Ok(count @ 1..) = stream.read(&mut buffer).await {
//!                     if stream.write_all(&buffer[..count]).await.is_err() {
//!                         break;
//!                     }
//!                 }
//!             });
//!         }
//!     })?
//! }
//! ```
#![forbid(unsafe_code)]

mod arguments;
mod client;
pub mod clock;
mod doorbell;
mod error;
mod grant;
mod inquiry;
mod lease;
mod metrics;
mod path;
mod rest;
mod runtime;
mod stack;
mod startup_report;
pub mod view;
mod vnic;
mod vsa;

pub use sietch_disk as disk;
pub use sietch_net as net;
pub use sietch_nic as nic;
pub use sietch_persist as persist;
pub use sietch_protocol as protocol;

pub use arguments::{ArgumentError, Arguments};
pub use client::{Client, GrantedVnic};
pub use doorbell::{DiskDoorbell, Doorbell};
pub use error::Error;
pub use grant::Grant;
pub use lease::{Lease, PreparedReply};
pub use metrics::{INTERVAL as METRICS_INTERVAL, Kind, Metrics, MetricsError};
pub use path::{SOCKET_VARIABLE, SYSTEM_SOCKET, own_socket_path, socket_path};
pub use rest::{HeldGrants, IdlePolicy};
pub use runtime::{
    Aborted, Disk, Durable, DurableLog, DurableMap, DurableQueue, DurableStoredMap, Elapsed, Interval,
    JoinHandle, Net, QueueEntry, ReadHalf, Runtime, Sleep, Structure, TcpListener, TcpStream, UdpSocket,
    WriteHalf,
};
pub use sietch_ring::spin::{Idle, Spin, YIELD_EVERY};
pub use stack::Stack;
pub use startup_report::{MAX_LINE as STARTUP_REPORT_MAX_LINE, StartupReport};
pub use vnic::{Vnic, VnicQueue, socket_geometry};
pub use vsa::{GrantedVsa, Vsa};
