//! Segments that are about to be sent.

use crate::packet::Path;
use crate::packet::sequence::Seq;
use crate::packet::tcp::Fields;

/// A segment that belongs to no flow: a reset, a SYN-ACK of a half-open connection, an ACK from
/// TIME-WAIT.
#[derive(Debug)]
pub(crate) struct Reply {
    pub path: Path,
    pub fields: Fields,
}

/// A segment of a flow.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outbound {
    pub seq: Seq,
    pub flags: u8,
    pub offset: usize,
    pub length: usize,
}
