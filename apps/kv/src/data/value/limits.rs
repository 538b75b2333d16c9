//! Where a value changes its representation, or the name of it.
//!
//! The thresholds that Redis has as settings are in
//! [`EncodingLimits`](crate::foundation::settings::EncodingLimits). The limits here bound the work
//! of one command whatever these settings are: beyond them a collection is a table, although OBJECT
//! ENCODING may go on to say listpack.

/// Longest string that is called embstr rather than raw.
pub(super) const EMBEDDED_LIMIT: usize = 44;
/// Most fields or members of a packed collection: Redis' largest default. A search walks all of
/// them, in one to two microseconds.
pub(super) const MOST_PACKED_ENTRIES: usize = 512;
/// Most bytes of a packed collection. A change moves half of them on average, in a few
/// microseconds. Redis' default thresholds (512 fields, 64 bytes each for name and value) make at
/// most 68 KiB.
pub(super) const MOST_PACKED_BYTES: usize = 96 << 10;
/// Most members of a set kept as sorted integers: an insertion moves up to 128 KiB.
pub(super) const MOST_INTEGERS: usize = 1 << 14;
/// Most members of a packed set of strings, which Redis 7.0 does not have: OBJECT ENCODING says
/// hashtable.
pub(super) const PACKED_SET_ENTRIES: usize = 128;
/// Longest member of a packed set of strings, in bytes.
pub(super) const PACKED_SET_BYTES: usize = 64;
