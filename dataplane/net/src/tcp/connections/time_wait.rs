//! TIME-WAIT in 64 bytes (RFC 9293 section 3.10.7.4, RFC 6191).
//!
//! 1. A connection that closed first keeps its four-tuple, its last sequence numbers and its
//!    timestamps for twice the maximum segment lifetime. Its flow is free already.
//! 2. A repeated FIN is acknowledged again and restarts the wait.
//! 3. A new SYN that cannot be an old duplicate (a later timestamp, or a later sequence number)
//!    opens a new connection.
//! 4. The table is bounded; the oldest entry is evicted.

use super::four_tuple::FourTuple;
use crate::packet::sequence::Seq;
use crate::tables::index::table_index;

table_index! {
    /// An index into the table of connections in TIME-WAIT.
    TimeWaitIndex
}

/// A connection in TIME-WAIT.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TimeWait {
    pub tuple: FourTuple,
    pub snd_nxt: Seq,
    pub rcv_nxt: Seq,
    pub window: u16,
    /// The peer's latest timestamp and what we add to the clock, if timestamps are in use.
    pub timestamps: Option<(u32, u32)>,
    pub mac: [u8; 6],
    pub acknowledged_at: u64,
}

const _: () = assert!(size_of::<Option<TimeWait>>() <= 64);

impl TimeWait {
    /// Whether a SYN with this sequence number and timestamp is surely a new connection's (RFC 6191
    /// section 2).
    pub(crate) fn may_be_reused(&self, seq: Seq, timestamp: Option<u32>) -> bool {
        match (self.timestamps, timestamp) {
            (Some((recent, _)), Some(value)) if value != recent => Seq(value).after(Seq(recent)),
            _ => seq.after(self.rcv_nxt),
        }
    }
}
