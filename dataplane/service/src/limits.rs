//! Bounds that the loops of the switch and of the storage broker share.

/// Nanoseconds without work after which a loop sleeps: several times the cost of a wake-up (10 to
/// 15 us).
pub(crate) const SPIN: u64 = 50_000;
