//! What a flow with bytes out of order is charged with: see `out_of_order`.

use crate::packet::sequence::Seq;

/// What a flow is charged with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Charge {
    pub bytes: u32,
    /// Where the gap began when it was renewed.
    pub since: Seq,
    /// Zero if there is none.
    pub number: u64,
}
