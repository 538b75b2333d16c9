//! Why a port is not added to the switch.

use sietch_nic::xdp::XdpError;

use super::id::PortId;
use super::limits::PORTS;

/// Why a port was not added.
#[derive(Debug, thiserror::Error)]
pub(super) enum AddError {
    /// The rules cannot be enforced.
    #[error("port {0}: its rules cannot be enforced")]
    Rules(PortId, #[source] XdpError),
    /// Another port has the same number, MAC or address.
    #[error("port {0}: port {1} has the same number, MAC or address; give each VNIC its own")]
    Taken(PortId, PortId),
    /// There are too many ports.
    #[error("port {0}: the switch has {PORTS} ports already; start another service core")]
    Full(PortId),
    /// The medium needs checksums that frames on the switch do not have.
    #[error("port {0}: its queue is not over memory; the switch joins shared-memory links only")]
    Medium(PortId),
}
