//! The work that the bench measures.

use std::str::FromStr;

use serde::Serialize;

/// Bytes of the largest datagram.
pub(super) const LARGEST_DATAGRAM: usize = 2048;

/// Bytes of a request, by default.
pub(super) const REQUEST: usize = 64;

/// Bytes that a bulk sender writes at once, and a receiver reads.
pub(super) const BULK_WRITE: usize = 128 * 1024;

/// First requests after a silence, and how long each silence is.
pub(super) const FIRSTS: u32 = 40;
pub(super) const SILENCE: std::time::Duration = std::time::Duration::from_millis(20);

/// The number of short-lived connections in progress at once.
pub(super) const CHURN_AT_ONCE: usize = 32;

/// Bytes a second of the bottleneck that flows share: 1 Gbit/s.
pub(super) const NARROW: u64 = 125_000_000;

/// The burst of the bottleneck in bytes: a millisecond's worth, like a grant's token bucket.
pub(super) const NARROW_BURST: u64 = NARROW / 1000;

/// Bytes that may queue before the bottleneck: more than all flows have outstanding, so that no
/// side loses packets.
pub(super) const NARROW_QUEUE: u64 = 4 << 20;

/// The least number of seconds for which flows are compared: each flow must be served so often that
/// one operation more or less makes no difference.
pub(super) const FAIR_SECONDS: f64 = 2.0;

/// One piece of work; its text form passes it to the workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) enum Work {
    /// Datagrams there and back, `window` of them in flight.
    UdpEcho { bytes: usize, window: usize },
    /// Requests and replies.
    Rpc { bytes: usize, connections: usize, pipeline: usize },
    /// Bytes in one direction.
    Bulk { flows: usize },
    /// Short-lived connections.
    Churn,
    /// Idle connections.
    Hold { connections: usize },
    /// Connections that are silent, with an occasional request.
    Idle { connections: usize },
    /// Requests of many flows through one bottleneck, [`NARROW`].
    Fair { bytes: usize, connections: usize },
}

impl Work {
    /// The unit of an operation.
    pub(super) fn unit(self) -> &'static str {
        match self {
            Self::UdpEcho { .. } => "echoes/s",
            Self::Rpc { .. } | Self::Fair { .. } => "RPC/s",
            Self::Bulk { .. } => "bytes/s",
            Self::Churn => "conn/s",
            Self::Hold { .. } => "bytes each",
            Self::Idle { .. } => "cores while idle",
        }
    }
}

impl std::fmt::Display for Work {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match *self {
            Self::UdpEcho { bytes, window } => write!(f, "udp:{bytes}:{window}:0"),
            Self::Rpc { bytes, connections, pipeline } => write!(f, "rpc:{bytes}:{connections}:{pipeline}"),
            Self::Bulk { flows } => write!(f, "bulk:0:{flows}:0"),
            Self::Churn => write!(f, "churn:0:0:0"),
            Self::Hold { connections } => write!(f, "hold:0:{connections}:0"),
            Self::Idle { connections } => write!(f, "idle:0:{connections}:0"),
            Self::Fair { bytes, connections } => write!(f, "fair:{bytes}:{connections}:0"),
        }
    }
}

impl FromStr for Work {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut words = text.split(':');
        let kind = words.next().unwrap_or_default();
        let mut number = || -> Result<usize, String> {
            words.next().and_then(|word| word.parse().ok()).ok_or_else(|| format!("no work is called {text}"))
        };
        let (one, two, three) = (number()?, number()?, number()?);
        match kind {
            "udp" => Ok(Self::UdpEcho { bytes: one.clamp(8, LARGEST_DATAGRAM), window: two.max(1) }),
            "rpc" => Ok(Self::Rpc { bytes: one.max(1), connections: two.max(1), pipeline: three.max(1) }),
            "bulk" => Ok(Self::Bulk { flows: two.max(1) }),
            "churn" => Ok(Self::Churn),
            "hold" => Ok(Self::Hold { connections: two.max(1) }),
            "idle" => Ok(Self::Idle { connections: two.max(1) }),
            "fair" => Ok(Self::Fair { bytes: one.max(1), connections: two.max(1) }),
            _ => Err(format!("no work is called {text}")),
        }
    }
}

/// Writes the time of sending into a datagram.
pub(super) fn stamp(datagram: &mut [u8], nanoseconds: u64) {
    if let Some(field) = datagram.first_chunk_mut::<8>() {
        *field = nanoseconds.to_ne_bytes();
    }
}

/// Reads the time of sending from a datagram.
pub(super) fn stamped(datagram: &[u8]) -> Option<u64> {
    datagram.first_chunk::<8>().map(|field| u64::from_ne_bytes(*field))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_survives_its_text() {
        for work in [
            Work::UdpEcho { bytes: 64, window: 32 },
            Work::Rpc { bytes: 64, connections: 1000, pipeline: 16 },
            Work::Bulk { flows: 64 },
            Work::Churn,
            Work::Hold { connections: 10_000 },
            Work::Idle { connections: 10 },
            Work::Fair { bytes: 8192, connections: 400 },
        ] {
            assert_eq!(work.to_string().parse(), Ok(work));
        }
        assert!("udp:1".parse::<Work>().is_err());
        assert!("nothing:1:2:3".parse::<Work>().is_err());
    }
}
