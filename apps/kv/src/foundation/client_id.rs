//! The identity of a client within its shard.

/// Identifies a client of a shard: a slot, and a generation that tells successive clients of the
/// slot apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId {
    pub(crate) slot: u32,
    pub(crate) generation: u32,
}
