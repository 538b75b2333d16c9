//! The native API of Sietch: an application acquires devices from the daemon, and then drives their
//! queues itself.
//!
//! 1. [`Client::connect`] connects to the daemon at [`socket_path`]. The daemon identifies the
//!    application by its kernel credentials.
//! 2. [`Client::acquire_vnic`] and [`Client::acquire_vsa`] return queue pairs: from there on the
//!    application uses the device without the daemon. Each has a [`Grant`] with its generation, its
//!    protection class and whether it was revoked.
//! 3. [`Client::hold`] returns a [`Lease`]: a thread that keeps the connection, takes revocations,
//!    and reconnects when the daemon restarts. Its doorbell is pollable like any descriptor.
//! 4. The contents of an area can be served as files ([`view`]).
//! 5. The engines that drive the queues are re-exported: [`net`] and [`persist`].
//!
//! There are two ways to write the loop around a queue, both on one thread with nothing shared:
//!
//! - [`Stack`] is poll-style: a queue and its engine in the application's own loop.
//! - [`Runtime`] is `async`: tasks on a small executor of its own, with [`TcpListener`],
//!   [`TcpStream`], [`UdpSocket`], timers, and storage in the same loop: a disk queue ([`Disk`]),
//!   and logs, queues and maps ([`Durable`]).
//!
//! With both, bytes can be copied or not. Without a copy, received bytes stay in the buffer in
//! which they arrived until the application drops it ([`net::ReceivedBuffer`]), and sent bytes are
//! shared with the engine until they are acknowledged ([`net::SharedBytes`]).
//!
//! Both read the clock once an iteration, spin for as long as that has paid off lately ([`Spin`]),
//! and then sleep on the doorbells: an idle application uses no processor time.
//!
//! A program may also listen and connect through the socket service, as programs under `sietch run`
//! do, and serve them through memory: [`Streams`] in the runtime, [`stream`] in a loop of its own.
//! That needs no VNIC and no daemon ([`Runtime::without_device`], [`socket_service`]).
//!
//! An echo server:
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
//!
//! The layers, lowest first; a module imports only from those below:
//!
//! ```text
//! arguments                      the command line of a server program
//! runtime    stack               the loops: async, poll-style
//! idle                           when a loop spins and when it sleeps
//! control                        client, lease: the connection to the daemon
//! device     view     metrics    granted queues; files of an area; counters
//! error      clock
//! ```
#![forbid(unsafe_code)]

mod arguments;
pub mod clock;
mod control;
mod device;
mod error;
mod idle;
mod metrics;
mod runtime;
mod stack;
mod startup_report;
pub mod view;

pub use sietch_disk as disk;
pub use sietch_net as net;
pub use sietch_nic as nic;
pub use sietch_persist as persist;
pub use sietch_protocol as protocol;
pub use sietch_stream as stream;

pub use arguments::Arguments;
pub use control::{
    Client, Lease, PreparedReply, SOCKET_VARIABLE, SYSTEM_SOCKET, own_socket_path, socket_path,
    socket_service, socket_service_beside,
};
pub use device::{
    DiskDoorbell, Doorbell, Grant, GrantedVnic, GrantedVsa, NoDevice, Vnic, VnicQueue, Vsa, socket_layout,
};
pub use error::{ArgumentError, Error};
pub use idle::{HeldGrants, IdlePolicy};
pub use metrics::{INTERVAL as METRICS_INTERVAL, Kind, Metrics, MetricsError};
pub use runtime::{
    Aborted, Disk, Durable, DurableLog, DurableMap, DurableQueue, DurableStoredMap, Elapsed, Interval,
    JoinHandle, Net, QueueEntry, ReadHalf, Runtime, Sleep, Stream, StreamListener, Streams, Structure,
    TcpListener, TcpStream, UdpSocket, WriteHalf,
};
pub use sietch_ring::spin::{Idle, Spin, YIELD_EVERY};
pub use stack::Stack;
pub use startup_report::{MAX_LINE as STARTUP_REPORT_MAX_LINE, StartupReport};
