//! What a host counts.

/// Counters of one host since it was made, but for the gauges, which say how it is now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Connections that applications were handed.
    pub accepted: u64,
    /// Connections that applications began and that came about.
    pub connected: u64,
    /// Connections that applications began and that failed.
    pub failed: u64,
    /// Connections that were reset because their application wrote nonsense, or ended with
    /// something unread.
    pub aborted: u64,
    /// Connections that ended by a peer's reset or silence.
    pub reset: u64,
    /// Connections to ports where only another family or address is listened on.
    pub unwanted: u64,
    /// Bytes from applications to the network.
    pub sent_bytes: u64,
    /// Bytes from the network to applications.
    pub received_bytes: u64,
    /// Times that an application rang.
    pub rings: u64,
    /// Times that a connection was left for the next turn because its application had had its
    /// share.
    pub deferred: u64,
    /// Gauge: connections.
    pub connections: u64,
    /// Gauge: those looked at in every turn.
    pub active: u64,
    /// Gauge: listeners and reservations.
    pub claims: u64,
}
