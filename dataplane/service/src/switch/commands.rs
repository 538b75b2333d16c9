//! What other threads send to the switch's loop.

use std::sync::mpsc::Sender;

use sietch_nic::shm::{EndpointFds, LinkLayout};
use sietch_nic::xdp::VnicSpec;

use super::id::PortId;
use super::metrics::PortReport;

/// A command for the switch's loop.
#[derive(Debug)]
pub enum Command {
    /// Add a port.
    Add {
        /// The number of its grant.
        id: PortId,
        /// What its holder may send and receive.
        spec: VnicSpec,
        /// The switch's end of its link.
        fds: EndpointFds,
        /// The sizes of the link's rings.
        layout: LinkLayout,
        /// The link's MTU.
        mtu: usize,
        /// Receives the result, or why the port was not added.
        reply: Sender<Result<(), String>>,
    },
    /// Give a port other rules.
    Update {
        /// The number of its grant.
        id: PortId,
        /// What its holder may send and receive from now on.
        spec: VnicSpec,
        /// Receives the result, or why the rules were not changed.
        reply: Sender<Result<(), String>>,
    },
    /// Remove a port.
    Remove(PortId),
    /// Report the counters of all ports.
    Report(Sender<Vec<PortReport>>),
    /// End the loop.
    Stop,
}
