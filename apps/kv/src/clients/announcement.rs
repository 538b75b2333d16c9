//! What the clients of other shards must receive.

/// What other shards must know, and do not answer.
#[derive(Debug, Clone)]
pub(crate) enum Announcement {
    /// A message to a channel, for subscribers.
    Published { channel: Box<[u8]>, message: Box<[u8]> },
    /// A line for monitors.
    MonitorLine(Box<[u8]>),
    /// The sender has no monitors any more. Those that it has had by then were in this period.
    NoMonitors { period: u64 },
}

impl Announcement {
    /// Bytes that it takes.
    pub(crate) fn bytes(&self) -> usize {
        let text = match self {
            Self::Published { channel, message } => channel.len() + message.len(),
            Self::MonitorLine(line) => line.len(),
            Self::NoMonitors { .. } => 0,
        };
        size_of::<Self>() + text
    }

    /// Whether it shows neither a change nor a command.
    pub(crate) fn shows_nothing(&self) -> bool {
        matches!(self, Self::NoMonitors { .. })
    }
}
