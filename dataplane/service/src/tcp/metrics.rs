//! Counters and gauges of a host.

/// Counters of one host since it was made, and gauges of its present state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Connections that were delivered to applications.
    pub accepted: u64,
    /// Connections of applications that were established.
    pub connected: u64,
    /// Connections of applications that failed.
    pub failed: u64,
    /// Connections that were reset because their application wrote invalid values, or ended with
    /// something unread.
    pub aborted: u64,
    /// Connections that a peer's reset or silence ended.
    pub reset: u64,
    /// Connections to a port whose listeners have another family or address.
    pub unmatched: u64,
    /// Bytes from applications to the network.
    pub sent_bytes: u64,
    /// Bytes from the network to applications.
    pub received_bytes: u64,
    /// Notifications by applications.
    pub notifications: u64,
    /// Times that a connection was left for the next iteration because its application had used its
    /// budget.
    pub deferred: u64,
    /// Gauge: connections.
    pub connections: u64,
    /// Gauge: connections that are relayed in every iteration.
    pub active: u64,
    /// Gauge: bound ports.
    pub bindings: u64,
}
