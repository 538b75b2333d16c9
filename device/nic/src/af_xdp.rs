//! Queues over AF_XDP sockets: the kernel enforces, the application drives.
//!
//! 1. The control plane (privileged) calls [`create()`]: a socket, a UMEM on a sealed memfd, four
//!    rings, in a network namespace whose one interface is the VNIC's. It passes the two
//!    descriptors of the [`Granted`] to the application and keeps the [`XskLayout`] beside them in
//!    the message.
//! 2. The application (no privilege at all) calls [`Queue::open`], which validates what it got,
//!    maps UMEM and rings and is a [`crate::NicQueue`] from then on. It says so, and the control
//!    plane calls [`bind_queue`]: kernels before 6.4 map no rings of a bound socket.
//! 3. Its holder can bind the socket to nothing but that interface, nor register other memory. The
//!    holder reaches only this queue's traffic, and only as the XDP programs on both ends of the
//!    veth pair let it.
//! 4. The control plane keeps a [`RingWatch`] over the rings that the kernel reads.
//!
//! Layout and rules: `docs/spec/vnic.md`.

mod chain;
mod counters;
mod create;
mod error;
mod layout;
mod queue;
mod rings;
mod runs;
mod watch;

pub use counters::QueueCounters;
pub use create::{bind_queue, create};
pub use error::{CreateError, OpenError, XskLayoutError};
pub use layout::{MAX_SINGLE_MTU, XskLayout};
pub use queue::{DeviceDrops, Queue};
pub use watch::RingWatch;

use std::os::fd::OwnedFd;

/// A queue as the control plane grants it: the capability to use it, and nothing else.
#[derive(Debug)]
pub struct Granted {
    /// The AF_XDP socket.
    pub socket: OwnedFd,
    /// The sealed memfd that holds the UMEM.
    pub umem: OwnedFd,
    /// What was registered, and where the socket is bound.
    pub layout: XskLayout,
}
