//! The messages between the cores of a store.
//!
//! | message | from, to |
//! | --- | --- |
//! | requests, replies, announcements | any core, any other |
//! | effects, dumps, requests for a section or a snapshot, a lent shard, stopped | member, coordinator |
//! | clients, progress and state of the log, lend, a returned shard, stop, end | coordinator, member |
//!
//! A member numbers the records of its effects. A number stands for a position of the log that the
//! coordinator knows: the member seals replies behind its own numbers, and hears which of them are
//! appended and which are durable.

use crate::server::transport::spread::NewClient;
use crate::shard::{Now, Shard};

/// A message between two cores.
pub(in crate::server) enum Message {
    /// A connection that the coordinator accepted, for the member to serve.
    Client(NewClient),
    /// The effects of an iteration of a member.
    Effects(Effects),
    /// Clients of the member wait for an exclusive section.
    WantExclusive,
    /// The member's shard, in answer to [`Message::Lend`]. All its effects up to `number` were sent
    /// before.
    Lent {
        /// The shard.
        shard: Box<Shard>,
        /// The number of its last record.
        number: u64,
    },
    /// Records of the running snapshot, from the member's part of the data set.
    Dumped(Dumped),
    /// A command requested a compaction of the log.
    WantSnapshot,
    /// Clients wait until the record of this number is durable, also if the log is flushed rarely.
    WantSync(u64),
    /// The member has stopped: everything of it is durable, and its replies were passed on.
    Stopped,

    /// Records of the member up to the first number are in the log, and those up to the second are
    /// durable.
    Progress {
        /// The last number in the log.
        appended: u64,
        /// The last number that is durable.
        durable: u64,
    },
    /// The state of the log has changed.
    LogState(LogState),
    /// The member ends its iteration and sends its shard.
    Lend,
    /// The shard comes back. Its replies of the section are sealed behind `number`, from which the
    /// member goes on.
    Returned {
        /// The shard.
        shard: Box<Shard>,
        /// The last number in use.
        number: u64,
    },
    /// So many bytes of the member's dumps are in the log.
    DumpTaken(usize),
    /// The member takes no more input; what it has done becomes durable, and its replies leave.
    Stop,
    /// The member closes its clients and ends.
    End,
}

/// The effects of an iteration of a member.
pub(in crate::server) struct Effects {
    /// The number of the record; they count up by one.
    pub(in crate::server) number: u64,
    /// A record of the journal.
    pub(in crate::server) record: Vec<u8>,
    /// Effects that the member has recorded since its start.
    pub(in crate::server) changes: u64,
}

/// A part of the member's part of a snapshot.
pub(in crate::server) struct Dumped {
    /// Which snapshot: one that was aborted meanwhile is dropped.
    pub(in crate::server) snapshot: u64,
    /// Encoded effects, each of them one record without its head.
    pub(in crate::server) pieces: Vec<Vec<u8>>,
    /// Whether the member's walk is complete.
    pub(in crate::server) complete: bool,
}

/// A change in the state of the log that every shard must know.
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
    /// No command runs, until a compaction has made room.
    Held(bool),
    /// A snapshot begins.
    SnapshotBegun {
        /// Its number.
        snapshot: u64,
        /// When.
        now: Now,
    },
    /// The running snapshot is dropped. `failed`: there is no room for one.
    SnapshotAborted {
        /// See [`Shard::snapshot_failed`].
        failed: bool,
    },
    /// The snapshot is durable.
    SnapshotFinished {
        /// When.
        now: Now,
    },
}
