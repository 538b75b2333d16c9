//! The time as a batch of commands sees it.

/// The expiry of a key that has none.
pub(crate) const NEVER: u64 = u64::MAX;

/// Readings of the clock, taken once a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Now {
    /// Nanoseconds of a clock that never goes back.
    pub monotonic_ns: u64,
    /// Milliseconds since 1970.
    pub unix_ms: u64,
}
