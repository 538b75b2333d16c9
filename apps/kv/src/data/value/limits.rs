//! Where a value changes its representation, or the name of it.

/// Longest string that is called embstr rather than raw.
pub(super) const EMBEDDED_LIMIT: usize = 44;
/// Most fields of a small hash: a lookup compares with all of them.
pub(super) const SMALL_HASH_ENTRIES: usize = 128;
/// Most fields of a hash that is called listpack, as it is by default in Redis 7.0.
pub(super) const LISTPACK_HASH_ENTRIES: usize = 512;
/// Longest field name or value in a small hash, in bytes.
pub(super) const SMALL_HASH_BYTES: usize = 64;
/// Most members of a set kept as sorted integers.
pub(super) const INTEGER_SET_ENTRIES: usize = 512;
/// Most members of a small sorted set.
pub(super) const SMALL_SORTED_SET_ENTRIES: usize = 128;
/// Longest member of a small sorted set, in bytes.
pub(super) const SMALL_SORTED_SET_BYTES: usize = 64;
