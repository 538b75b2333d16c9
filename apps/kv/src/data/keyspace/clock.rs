//! The time as a batch of commands sees it.

/// Readings of the clock, taken once a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Now {
    /// Nanoseconds of a clock that never goes back.
    pub monotonic_ns: u64,
    /// Milliseconds since 1970.
    pub unix_ms: u64,
}
