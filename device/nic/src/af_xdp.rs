//! Queues over AF_XDP sockets: the kernel enforces, the application drives.
//!
//! 1. The control plane (privileged) calls [`create`]: a socket, a UMEM on a sealed memfd, four rings, bound to one
//!    queue of one interface. It passes the two descriptors of the [`Granted`] to the application and keeps the
//!    [`Geometry`] beside them in the message.
//! 2. The application (no privilege at all) calls [`Queue::open`], which validates what it got, maps UMEM and rings and is
//!    a [`crate::NicQueue`] from then on.
//! 3. The socket was bound before it was passed on. Its holder can neither bind it again nor register other memory; all it can
//!    reach is this queue's traffic, and that only as the XDP programs on both ends of the veth pair let it.
//!
//! Layout and rules: `docs/spec/vnic.md`.

mod chain;
mod create;
mod error;
mod geometry;
mod queue;
mod rings;
mod runs;

pub use create::create;
pub use error::{CreateError, GeometryError, OpenError};
pub use geometry::{Geometry, MAX_SINGLE_MTU};
pub use queue::{DeviceDrops, Queue, QueueCounters};

use std::os::fd::OwnedFd;

/// A queue as the control plane hands it out: the capability to use it, and nothing else.
#[derive(Debug)]
pub struct Granted {
    /// The bound AF_XDP socket.
    pub socket: OwnedFd,
    /// The sealed memfd that holds the UMEM.
    pub umem: OwnedFd,
    /// What was registered and bound.
    pub geometry: Geometry,
}
