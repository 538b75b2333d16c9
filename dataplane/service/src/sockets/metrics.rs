//! Counters and gauges of the socket service.

/// What the service has and has counted, as other threads see it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SocketReport {
    /// Applications with a listener or a connection.
    pub applications: usize,
    /// Listeners.
    pub listeners: usize,
    /// Connections between programs, including closed ones that were not yet found.
    pub connections: usize,
    /// Requests that are open.
    pub requests: usize,
    /// The counters.
    pub counters: Counters,
}

/// Counters since the service began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Requests to listen.
    pub listen_requests: u64,
    /// Requests to connect.
    pub connect_requests: u64,
    /// Requests about a socket that was inherited or received.
    pub adopt_requests: u64,
    /// Requests of other kinds.
    pub other_requests: u64,
    /// Messages that are no valid request.
    pub malformed: u64,
    /// Requests that were not read: too many at once, or nothing arrived in time.
    pub rejected: u64,
    /// Connections made.
    pub connected: u64,
    /// Connections of the kernel delivered to a listener.
    pub kernel_accepted: u64,
    /// Connections that are relayed, because their program could not map them.
    pub relayed: u64,
    /// Ports of the host that were published for a listener.
    pub published: u64,
    /// Requests to connect that no listener of the service matches.
    pub unmatched: u64,
    /// Requests left to the kernel because of a limit.
    pub limited: u64,
    /// Times that descriptors or memory were exhausted, so that nothing could be accepted.
    pub exhausted: u64,
    /// Requests that the rules forbid.
    pub denied: u64,
    /// Closed connections that were found and removed.
    pub swept: u64,
    /// Times that the kernel listed all Unix sockets, to find closed connections.
    pub sweeps: u64,
    /// Listeners that closed.
    pub closed: u64,
    /// Applications that were revoked.
    pub revoked: u64,
}

impl Counters {
    /// Returns names and values, for a page of metrics.
    pub fn entries(&self) -> [(&'static str, u64); 18] {
        [
            ("requests.listen", self.listen_requests),
            ("requests.connect", self.connect_requests),
            ("requests.adopt", self.adopt_requests),
            ("requests.other", self.other_requests),
            ("malformed", self.malformed),
            ("rejected", self.rejected),
            ("connected", self.connected),
            ("kernel_accepted", self.kernel_accepted),
            ("relayed", self.relayed),
            ("published", self.published),
            ("unmatched", self.unmatched),
            ("limited", self.limited),
            ("exhausted", self.exhausted),
            ("denied", self.denied),
            ("swept", self.swept),
            ("sweeps", self.sweeps),
            ("closed", self.closed),
            ("revoked", self.revoked),
        ]
    }
}
