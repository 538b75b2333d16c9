//! Changes in the state of the log that the shards of other cores must know.

use crate::shard::{Now, Shard};

/// A change in the state of the log.
#[derive(Debug, Clone)]
pub(in crate::server) enum LogState {
    /// The log has failed for this reason. `unlogged`: some shard holds writes that it lacks.
    Failed {
        /// The reason.
        reason: String,
        /// See [`Shard::fail_writes`].
        unlogged: bool,
    },
    /// Why commands that need room are refused, if they are.
    Full(Option<String>),
    /// Whether no command runs, until a compaction has made room.
    Held(bool),
    /// A snapshot begins.
    SnapshotBegun {
        /// Its number, which its dumps repeat.
        snapshot: u64,
    },
    /// The running snapshot is dropped.
    SnapshotAborted,
    /// Every part of the snapshot was dumped, and it is durable.
    SnapshotFinished {
        /// When.
        now: Now,
    },
}

impl LogState {
    /// Tells a shard.
    pub(in crate::server) fn apply(&self, shard: &mut Shard) {
        match self {
            Self::Failed { reason, unlogged } => shard.fail_writes(reason, *unlogged),
            Self::Full(reason) => shard.refuse_growth(reason.as_deref()),
            Self::Held(_) => {}
            Self::SnapshotBegun { .. } => shard.begin_snapshot(),
            Self::SnapshotAborted => shard.abort_snapshot(),
            Self::SnapshotFinished { now } => shard.snapshot_finished(*now),
        }
    }
}
