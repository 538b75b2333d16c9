//! What the socket service counted, and what there is.

use std::sync::{Mutex, PoisonError};

/// Since the service began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Requests to listen.
    pub asked_listen: u64,
    /// Requests to connect.
    pub asked_connect: u64,
    /// Requests about a socket that was inherited or received.
    pub asked_adopt: u64,
    /// Requests of other kinds.
    pub asked_other: u64,
    /// Messages that were none.
    pub malformed: u64,
    /// Requests that were not let in: too many at once, or nothing came in time.
    pub turned_away: u64,
    /// Connections made.
    pub connected: u64,
    /// Connections of the kernel handed to a listener.
    pub handed_over: u64,
    /// Ports of the host that were published for a listener.
    pub published: u64,
    /// Requests to connect that no listener of ours fits.
    pub not_ours: u64,
    /// Requests sent to the kernel by a limit.
    pub limited: u64,
    /// Times that nothing could be accepted for want of descriptors or memory.
    pub short: u64,
    /// Requests that the rules forbid.
    pub denied: u64,
    /// Connections found to be gone.
    pub swept: u64,
    /// Times that the kernel was asked for all Unix sockets, to see which are.
    pub sweeps: u64,
    /// Listeners that closed.
    pub closed: u64,
    /// Applications that were revoked.
    pub revoked: u64,
}

impl Counters {
    /// Names and values, for a page of metrics.
    pub fn entries(&self) -> [(&'static str, u64); 17] {
        [
            ("asked.listen", self.asked_listen),
            ("asked.connect", self.asked_connect),
            ("asked.adopt", self.asked_adopt),
            ("asked.other", self.asked_other),
            ("malformed", self.malformed),
            ("turned_away", self.turned_away),
            ("connected", self.connected),
            ("handed_over", self.handed_over),
            ("published", self.published),
            ("not_ours", self.not_ours),
            ("limited", self.limited),
            ("short", self.short),
            ("denied", self.denied),
            ("swept", self.swept),
            ("sweeps", self.sweeps),
            ("closed", self.closed),
            ("revoked", self.revoked),
        ]
    }
}

/// What there is, for other threads to read.
#[derive(Debug, Default)]
pub struct Board(Mutex<Shown>);

/// See [`Board`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shown {
    /// Applications with a listener or a connection.
    pub applications: usize,
    /// Listeners.
    pub listeners: usize,
    /// Connections between programs, the gone ones until they are swept.
    pub connections: usize,
    /// Requests that are open.
    pub requests: usize,
    /// What was counted.
    pub counters: Counters,
}

impl Board {
    /// What was noted last.
    pub fn read(&self) -> Shown {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn note(&self, shown: Shown) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = shown;
    }
}
