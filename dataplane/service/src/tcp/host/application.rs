//! An application of a VNIC: what it has, and its share of an iteration.

use sietch_ring::stream::waiters::NotifiedSleeps;

/// What an application has of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ApplicationUsage {
    /// The id that groups its processes.
    pub id: [u8; 16],
    /// Its user.
    pub uid: u32,
    /// The number of its connections.
    pub connections: u32,
    /// The number of those that came to its listeners.
    pub accepted: u32,
    /// The number of ports that it has bound.
    pub bindings: u32,
    /// Bytes that it has sent to the network.
    pub sent: u64,
    /// Bytes that were delivered to it.
    pub received: u64,
}

/// An application, with the state that the host keeps of it.
#[derive(Debug)]
pub(super) struct Application {
    pub usage: ApplicationUsage,
    /// The iteration that the two budgets are for.
    pub iteration: u64,
    /// Bytes that it may still send and receive in that iteration.
    pub send_budget: usize,
    pub receive_budget: usize,
    /// The sleeps for which it was notified.
    pub notified: NotifiedSleeps,
    /// Bytes of closed connections that are kept for it.
    pub undelivered: usize,
}
