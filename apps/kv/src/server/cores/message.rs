//! The messages between the cores of a store.
//!
//! | message | from, to |
//! | --- | --- |
//! | requests, replies, announcements, delivered | any core, any other |
//! | effects, dumps, wants, a shard, stopped | member, coordinator |
//! | clients, progress, log state, lend, a returned shard, stop, end | coordinator, member |
//!
//! A member numbers the records of its effects. A number stands for a position of the log that the
//! coordinator knows: the member seals replies behind its own numbers, and receives which of them
//! are in the log and which are durable.

use crate::server::log_writer::{LogState, Progress};
use crate::server::transport::spread::NewClient;
use crate::shard::{Announcements, Replies, Requests, Shard};

/// A message between two cores.
pub(in crate::server) enum Message {
    /// Commands of the sender's clients, for the owner of their keys.
    Requests(Requests),
    /// Replies to such commands.
    Replies(Replies),
    /// What the receiver's clients must receive.
    Announcements(Announcements),
    /// The sender's clients have received so many bytes of the receiver's announcements.
    Delivered(u64),

    /// The effects of an iteration of a member.
    Effects {
        /// The number of the record; they count up by one.
        number: u64,
        /// A record of the journal.
        record: Vec<u8>,
        /// Effects that the member has recorded since the last one.
        changes: u64,
    },
    /// A part of the member's part of a snapshot.
    Dumped {
        /// Which snapshot: one that was aborted meanwhile is dropped.
        snapshot: u64,
        /// Encoded effects, each of them one record without its head.
        pieces: Vec<Vec<u8>>,
        /// Whether the member's walk is complete.
        complete: bool,
    },
    /// Clients of the member wait for an exclusive section.
    WantSection,
    /// A command requested a compaction of the log.
    WantSnapshot,
    /// Clients wait until the record of this number is durable, even if the log is flushed rarely.
    WantSync(u64),
    /// The member's shard, in answer to [`Message::Lend`]. All its effects up to `number` were sent
    /// before.
    Shard {
        /// The shard.
        shard: Box<Shard>,
        /// The number of its last record.
        number: u64,
    },
    /// The member has stopped: everything of it is durable, and its replies were passed on.
    Stopped,

    /// A connection that the coordinator accepted, for the member to serve.
    Client(NewClient),
    /// How far the log is with the member's records and dumps.
    Progress(Progress),
    /// The state of the log has changed.
    LogState(LogState),
    /// The member ends its iteration and sends its shard.
    Lend,
    /// The shard comes back. The replies in it are to be sealed behind `number`, from which the
    /// member goes on.
    Returned {
        /// The shard.
        shard: Box<Shard>,
        /// The last number in use.
        number: u64,
    },
    /// The member takes no more input; what it has done becomes durable, and its replies leave.
    Stop,
    /// The member closes its clients and ends.
    End,
}
