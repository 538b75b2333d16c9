//! Where a received packet comes from.

use crate::packet::{Address, AddressIndex, ipv4};

/// Where a packet comes from, and to which of our addresses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Origin {
    /// The link address from which it came.
    pub mac: [u8; 6],
    pub remote: Address,
    /// The index of its destination among our addresses.
    pub local: AddressIndex,
    /// The ECN field of its header.
    pub ecn: u8,
}

impl Origin {
    /// Whether the packet is CE-marked: it met congestion on its way.
    #[inline]
    pub(crate) const fn is_ce_marked(&self) -> bool {
        self.ecn == ipv4::CONGESTION_EXPERIENCED
    }
}
