//! The sizes of the load, and the core that it runs on.

/// Keys that are asked for: more than fit the second-level cache.
pub(super) const KEYS: u64 = 100_000;

/// The most connections of a shape.
pub(super) const CONNECTIONS: usize = 50;

/// The core that the generator has.
pub(super) const OWN_CORE: usize = 1;
