//! Half-open passive connections: SYN-RECEIVED.
//!
//! 1. A SYN for a listening port creates a [`HalfOpen`]: 96 bytes, no buffers. The SYN-ACK goes
//!    back to the link address that the SYN came from, and is repeated with backoff.
//! 2. When the table is full, a SYN is answered with a cookie and nothing is stored (`syn_cookie`).
//!    Under a flood of forged SYNs honest handshakes still succeed, and memory stays bounded.
//! 3. The ACK of the SYN-ACK promotes the half-open connection to a flow, if its listener has room.
//!    Otherwise it stays, and the repeated SYN-ACK makes the peer try again.

use super::four_tuple::FourTuple;
use crate::packet::sequence::Seq;
use crate::tables::index::table_index;

table_index! {
    /// An index into the table of half-open connections.
    HalfOpenIndex
}

/// A half-open passive connection: SYN-RECEIVED.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HalfOpen {
    pub tuple: FourTuple,
    pub irs: Seq,
    pub iss: Seq,
    pub mac: [u8; 6],
    pub peer_mss: Option<u16>,
    /// The peer's window scale, if it scales.
    pub shift: Option<u8>,
    pub timestamps: bool,
    /// Whether the peer takes selective acknowledgements.
    pub sack: bool,
    /// Whether ECN was negotiated.
    pub ecn: bool,
    pub ts_recent: u32,
    pub ts_offset: u32,
    pub retransmits: u8,
    /// The window that our SYN-ACK announces, not scaled.
    pub window: u16,
    pub sent_at: u64,
    pub challenged_at: u64,
}

const _: () = assert!(size_of::<Option<HalfOpen>>() <= 96);
