//! Service cores: what stands after the rings of applications that are not trusted with a device.
//!
//! - [`switch`]: a software switch, sans-I/O, over any [`sietch_nic::NicQueue`].
//! - [`run`]: the loop that drives one over shared-memory links: spins while traffic flows, sleeps
//!   when it does not.
//! - [`sockets`]: the socket service of unmodified programs: set-up, hand-over, limits.
//! - [`block`]: a storage broker, sans-I/O, for areas that lie as extents on one file or device,
//!   and its loop.
//! - [`tcp`]: TCP/IP engines for applications that live on a VNIC and link none.
#![forbid(unsafe_code)]

pub mod block;
mod counters;
mod rate;
pub mod run;
pub mod sockets;
pub mod switch;
pub mod tcp;

pub use counters::PortCounters;
pub use run::{Board, Command, PortReport, run};
pub use switch::{AddError, PortId, Switch};
