//! The name of a port.

/// The control plane's name for a port: the number of its grant.
pub type PortId = u64;
