//! An address of either family in sixteen bytes: IPv6 as it is, IPv4 mapped into it (RFC 4291
//! section 2.5.5.2).
//!
//! 1. One type names both ends of every packet, so that flows, neighbours and paths need no second
//!    copy of themselves.
//! 2. The bytes are in network order: headers copy them.
//! 3. The mapping adds `0xffff` to a checksum's pseudo-header, which is zero in ones' complement:
//!    one formula serves both families (`checksum::pseudo_header`).
//! 4. A mapped address never arrives in an IPv6 header (RFC 4291 forbids none, but it would alias
//!    an IPv4 peer): the parser refuses it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The bytes before an IPv4 address.
const MAPPED: [u8; 12] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];

/// An IPv6 address, or an IPv4 address mapped into one.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Address([u8; 16]);

impl std::fmt::Debug for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.to_ip().fmt(f)
    }
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.to_ip().fmt(f)
    }
}

impl From<Ipv4Addr> for Address {
    fn from(address: Ipv4Addr) -> Self {
        Self::v4(address.to_bits())
    }
}

impl From<Ipv6Addr> for Address {
    fn from(address: Ipv6Addr) -> Self {
        Self(address.octets())
    }
}

impl From<IpAddr> for Address {
    fn from(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(address) => address.into(),
            IpAddr::V6(address) => address.into(),
        }
    }
}

impl From<Address> for IpAddr {
    fn from(address: Address) -> Self {
        address.to_ip()
    }
}

impl Address {
    /// The unspecified address, `::`.
    pub const UNSPECIFIED: Self = Self([0; 16]);
    /// All nodes on the link, `ff02::1`.
    pub const ALL_NODES: Self = Self([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
    /// All routers on the link, `ff02::2`.
    pub const ALL_ROUTERS: Self = Self([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]);
    /// All routers that receive MLDv2 reports, `ff02::16` (RFC 3810 section 5.2.14).
    pub const MLD_ROUTERS: Self = Self([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x16]);

    /// The IPv4 address with these bits.
    #[inline]
    pub const fn v4(bits: u32) -> Self {
        let [a, b, c, d] = bits.to_be_bytes();
        Self([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d])
    }

    /// The address with these bytes, in network order.
    #[inline]
    pub const fn from_octets(octets: [u8; 16]) -> Self {
        Self(octets)
    }

    /// The bytes, in network order.
    #[inline]
    pub const fn octets(&self) -> &[u8; 16] {
        &self.0
    }

    /// The bits of the address.
    #[inline]
    pub const fn bits(&self) -> u128 {
        u128::from_be_bytes(self.0)
    }

    /// Whether it is an IPv4 address.
    #[inline]
    pub(crate) const fn is_v4(&self) -> bool {
        self.bits() >> 32 == 0xffff
    }

    /// The last 32 bits: all of an IPv4 address.
    #[inline]
    pub const fn low(&self) -> u32 {
        u32::from_be_bytes([self.0[12], self.0[13], self.0[14], self.0[15]])
    }

    /// The address as the standard library has it.
    pub const fn to_ip(self) -> IpAddr {
        if self.is_v4() {
            IpAddr::V4(Ipv4Addr::from_bits(self.low()))
        } else {
            IpAddr::V6(Ipv6Addr::from_bits(self.bits()))
        }
    }

    /// Whether it is unspecified: `0.0.0.0` or `::`.
    pub const fn is_unspecified(&self) -> bool {
        self.bits() == 0 || (self.is_v4() && self.low() == 0)
    }

    /// Whether it names a group.
    pub const fn is_multicast(&self) -> bool {
        if self.is_v4() { self.low() >> 28 == 0xe } else { self.0[0] == 0xff }
    }

    /// Whether it means something on one link only: `169.254/16`, `fe80::/10`, and groups of link
    /// scope.
    pub const fn is_link_local(&self) -> bool {
        if self.is_v4() {
            self.low() >> 16 == 0xa9fe || self.low() >> 8 == 0xe0_0000
        } else {
            (self.0[0] == 0xfe && self.0[1] & 0xc0 == 0x80) || (self.0[0] == 0xff && self.0[1] & 0xf <= 2)
        }
    }

    /// Whether it may be in the source field of a packet from elsewhere (RFC 1122 section
    /// 3.2.1.3, RFC 4291 section 2.7). The unspecified address, a group and a loopback may not.
    #[inline]
    pub(crate) const fn may_be_source(&self) -> bool {
        if self.is_v4() {
            let first = self.low() >> 24;
            first != 0 && first != 127 && first < 224
        } else {
            self.0[0] != 0xff && self.bits() > 1
        }
    }

    /// Whether the first `prefix` bits of the family's address are those of `other`, which is of
    /// the same family.
    #[inline]
    pub(crate) const fn shares_prefix(&self, other: &Self, prefix: u8) -> bool {
        if self.is_v4() != other.is_v4() {
            return false;
        }
        let prefix = prefix as u32 + if self.is_v4() { 96 } else { 0 };
        self.common_bits(other) >= if prefix > 128 { 128 } else { prefix }
    }

    /// How many leading bits two addresses have in common.
    pub(crate) const fn common_bits(&self, other: &Self) -> u32 {
        (self.bits() ^ other.bits()).leading_zeros()
    }

    /// The group in which the owner of an IPv6 address receives solicitations for it (RFC 4291
    /// section 2.7.1).
    pub const fn solicited_node(&self) -> Self {
        let [.., a, b, c] = self.0;
        Self([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, a, b, c])
    }

    /// The link address to which a group's packets go (RFC 1112 section 6.4, RFC 2464 section 7).
    pub const fn group_mac(&self) -> [u8; 6] {
        let [.., w, x, y, z] = self.0;
        if self.is_v4() { [1, 0, 0x5e, x & 0x7f, y, z] } else { [0x33, 0x33, w, x, y, z] }
    }

    /// The link-local address whose identifier is the Ethernet address (RFC 4291 appendix A). It
    /// stays the same as long as the queue keeps its address, which the control plane chooses, so
    /// it identifies no person.
    pub const fn link_local(mac: [u8; 6]) -> Self {
        let [a, b, c, d, e, f] = mac;
        Self([0xfe, 0x80, 0, 0, 0, 0, 0, 0, a ^ 2, b, c, 0xff, 0xfe, d, e, f])
    }

    /// The mapping's first twelve bytes are those of an IPv4 address.
    #[inline]
    pub(crate) fn v4_bytes(&self) -> Option<[u8; 4]> {
        match self.0.split_first_chunk() {
            Some((&MAPPED, rest)) => rest.first_chunk().copied(),
            _ => None,
        }
    }
}

/// Which of our own addresses: an index into their list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct AddressIndex(pub(crate) u8);

impl AddressIndex {
    /// The IPv4 address.
    pub(crate) const V4: Self = Self(0);
    /// The link-local IPv6 address.
    pub(crate) const LINK_LOCAL: Self = Self(1);
}

const _: () = assert!(size_of::<Address>() == 16 && align_of::<Address>() == 1);
