//! How far a compaction has come: what is dumped, and which dumps wait for room.

/// Bytes of a snapshot that one iteration writes: 2600 keys with values of 64 bytes, about half a
/// millisecond of work. With less, the log would grow faster than the snapshot that is to replace
/// it.
pub(in crate::server) const SLICE_BYTES: usize = 256 << 10;

/// The state of a compaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Compaction {
    Idle,
    /// Slices of the snapshot are being dumped.
    Dumping,
    /// Everything is dumped; some records wait for room in the log's queue.
    Draining,
    /// The log switches to the snapshot.
    Finishing,
}

/// Which shards are dumped already.
#[derive(Debug, Default)]
pub(super) struct Walks {
    /// This core's.
    pub(super) own: bool,
    /// Members whose walks go on.
    pub(super) members: usize,
}

/// A snapshot record that waits for room.
#[derive(Debug)]
pub(super) struct Dump {
    pub(super) record: Vec<u8>,
    /// The member that dumped it, and the bytes of its dump that end with this record.
    pub(super) source: Option<(usize, usize)>,
}
