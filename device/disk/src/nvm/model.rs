//! How slow DRAM makes itself to stand in for slower memory.

use std::fmt;
use std::time::Duration;

/// Latency added to each request, and a bandwidth that all of them share. What is measured with a
/// model says so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Model {
    /// Added to each read.
    pub read_latency: Duration,
    /// Added to each write and flush.
    pub write_latency: Duration,
    /// Bytes a second, reads and writes together; 0: no limit.
    pub bandwidth: u64,
}

impl Model {
    /// How long the memory is busy with `bytes`.
    pub(super) fn transfer(&self, bytes: u64) -> Duration {
        let nanoseconds =
            (u128::from(bytes) * 1_000_000_000).checked_div(u128::from(self.bandwidth)).unwrap_or(0);
        Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX))
    }
}

impl fmt::Display for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "model: +{} ns a read, +{} ns a write",
            self.read_latency.as_nanos(),
            self.write_latency.as_nanos()
        )?;
        if self.bandwidth > 0 {
            write!(f, ", {} MB/s", self.bandwidth / 1_000_000)?;
        }
        Ok(())
    }
}
