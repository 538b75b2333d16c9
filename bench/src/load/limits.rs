//! The sizes of the load, and the core that it runs on.

/// Keys of the requests: more than fit the second-level cache.
pub(super) const KEYS: u64 = 100_000;

/// The most connections of a shape.
pub(super) const CONNECTIONS: usize = 50;

/// The core of the generator.
pub(super) const OWN_CORE: usize = 1;
