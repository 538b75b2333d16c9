//! The clock that measures a command.
//!
//! The shard itself reads no clock: it has the time of the batch. To measure one command it needs
//! the time before and after it. The server supplies the functions; without them no time passes, so
//! that the simulator stays deterministic.

use std::time::Duration;

/// How the host measures and passes time.
#[derive(Clone, Copy)]
pub struct TimeSource {
    /// Monotonic nanoseconds.
    pub monotonic_ns: fn() -> u64,
    /// Stops the thread for so long (DEBUG SLEEP).
    pub sleep: fn(Duration),
}

impl Default for TimeSource {
    fn default() -> Self {
        Self { monotonic_ns: || 0, sleep: |_| {} }
    }
}

impl std::fmt::Debug for TimeSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TimeSource").finish_non_exhaustive()
    }
}
