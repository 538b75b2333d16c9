//! The TCP host: TCP/IP engines that run in the service core, for applications that use a VNIC
//! and link none.
//!
//! ```text
//!  application          | service core                                | network
//!  socket <-- rings --> | channel <-- host: relay --> engine flow <--|--> peer
//!         <- placeholder->  (doorbell, hang-up)                       |
//! ```
//!
//! The memory that an application can write is untrusted; the header of `channel.rs` says what
//! follows from that. What an application does wrong costs it its own connections.
//!
//! Layers, lowest first; each file imports only from those below it:
//!
//! ```text
//! run                     the threads that drive VNICs
//! report     balancing    what they report; which thread drives which VNIC
//! fan_out                 requests that all VNICs answer
//! vnic                    a host on a queue, with its applications' requests and doorbells
//! host                    an engine with its applications, sans-I/O
//! stream_channel          a channel over the memory of a connection and a pair of placeholders
//! channel                 one connection with an application, as a host needs it
//! ports                   the ports of a VNIC: bindings and listeners
//! socket_options tcp_info what the engine supports and reports of a connection
//! limits  metrics
//! ```

mod balancing;
mod channel;
mod fan_out;
mod host;
mod limits;
mod metrics;
mod ports;
mod report;
mod run;
mod socket_options;
mod stream_channel;
mod tcp_info;
mod vnic;

pub use crate::requests::vnic::VnicRequest;
pub use fan_out::{RequestQueue, RevocationFilter, fan_out};
pub use host::ApplicationUsage;
pub use metrics::Counters;
pub use ports::source_ports;
pub use report::{PoolReport, ThreadReport, VnicReport};
pub use run::{Options, Pool};
pub use vnic::{Access, Device, Vnic};
