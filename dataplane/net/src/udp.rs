//! UDP: bound ports and their datagrams.
//!
//! 1. A bound port keeps arrived datagrams in a ring of its own (`receive_queue`). The application
//!    reads the oldest in place and drops it, or takes a copy.
//! 2. A datagram is written into a frame at once if its next hop is known and no other packet
//!    waits. Otherwise it is queued in the context, in a buffer that is used again.
//! 3. A port may be connected. It then takes datagrams of its peer only, and gets the ICMP errors
//!    about what it sent there.

mod binding;
mod calls;
pub(crate) mod datagram;
mod receive_queue;

use binding::Binding;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Udp {
    /// By port.
    bindings: Vec<Binding>,
}
