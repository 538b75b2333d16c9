//! Which addresses are ours, and the next hop of packets to others.
//!
//! 1. Index 0 is the IPv4 address, whether there is one or not. The IPv6 addresses follow, the
//!    link-local one first. An address keeps its index, which names it in flows and in their keys.
//! 2. A packet is for us if its destination is one of these addresses: one comparison for IPv4, a
//!    few for IPv6 (there are at most [`LOCAL_ADDRESSES`]).
//! 3. The next hop of a peer is the peer itself if it shares a prefix with one of our addresses.
//!    Else it is the gateway of its family, if there is one.
//! 4. The source address towards a peer is of its family and scope and has most leading bits in
//!    common (RFC 6724, rules 1, 2 and 8).

use std::net::Ipv6Addr;

use crate::limits::LOCAL_ADDRESSES;
use crate::packet::{Address, AddressIndex};

/// The configuration of IPv6.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ipv6Config {
    /// Our addresses, each with the bits that name the network on the link. A link-local address is
    /// made of the queue's Ethernet address unless there is one among them. Those beyond the first
    /// [`LOCAL_ADDRESSES`] less two are left out.
    pub addresses: Vec<(Ipv6Addr, u8)>,
    /// The router to everywhere else.
    pub gateway: Option<Ipv6Addr>,
}

/// One of our addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Local {
    pub address: Address,
    /// Bits that name the network on the link.
    pub prefix: u8,
    /// Whether there is an address at this index.
    pub usable: bool,
}

/// All of them.
#[derive(Debug)]
pub(crate) struct Addresses {
    locals: Vec<Local>,
    v4: [u8; 4],
    gateways: [Option<Address>; 2],
}

impl Addresses {
    pub(crate) fn new(
        v4: (Address, u8),
        gateway: Option<Address>,
        ipv6: Option<&Ipv6Config>,
        mac: [u8; 6],
    ) -> Self {
        let mut locals = vec![Local { address: v4.0, prefix: v4.1.min(32), usable: !v4.0.is_unspecified() }];
        let mut gateways = [gateway, None];
        if let Some(ipv6) = ipv6 {
            let given = || ipv6.addresses.iter().map(|entry| (Address::from(entry.0), entry.1));
            let own = given()
                .find(|entry| entry.0.is_link_local())
                .map_or_else(|| Address::link_local(mac), |e| e.0);
            let local = |address, prefix: u8| Local { address, prefix: prefix.min(128), usable: true };
            locals.push(local(own, 64));
            let others = given().filter(|(address, _)| {
                !address.is_link_local() && !address.is_v4() && address.may_be_source()
            });
            locals.extend(others.map(|(address, prefix)| local(address, prefix)).take(LOCAL_ADDRESSES - 2));
            gateways[1] = ipv6.gateway.map(Address::from);
        }
        Self { v4: v4.0.low().to_be_bytes(), locals, gateways }
    }

    /// Our IPv4 address.
    #[inline]
    pub(crate) fn v4(&self) -> Address {
        self.locals[0].address
    }

    /// The bytes of our IPv4 address; zero if there is none, which no packet is for.
    #[inline]
    pub(crate) fn v4_octets(&self) -> &[u8; 4] {
        &self.v4
    }

    /// Our addresses.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Local> {
        self.locals.iter().filter(|local| local.usable)
    }

    /// Whether IPv6 is spoken at all.
    #[inline]
    pub(crate) fn has_v6(&self) -> bool {
        self.locals.len() > 1
    }

    /// The address with this index; the unspecified address if there is none.
    #[inline]
    pub(crate) fn get(&self, index: AddressIndex) -> Address {
        self.locals.get(usize::from(index.0)).map_or(Address::UNSPECIFIED, |local| local.address)
    }

    /// The index of one of our addresses.
    #[inline]
    pub(crate) fn index_of(&self, address: &Address) -> Option<AddressIndex> {
        let index = self.locals.iter().position(|local| local.usable && local.address == *address)?;
        // There are at most LOCAL_ADDRESSES.
        Some(AddressIndex(index as u8))
    }

    /// Whether we listen to a group of IPv6 because we have addresses (RFC 4291 section 2.8).
    pub(crate) fn receives_group(&self, group: &Address) -> bool {
        let ours = |local: &Local| !local.address.is_v4() && local.address.solicited_node() == *group;
        self.has_v6() && (*group == Address::ALL_NODES || self.all().any(ours))
    }

    /// Whether a packet on the link may have this source: not one of our addresses, the unspecified
    /// or a broadcast address, a group or a loopback.
    #[inline]
    pub(crate) fn may_be_source(&self, source: &Address) -> bool {
        source.may_be_source() && self.index_of(source).is_none()
    }

    /// Whether `address` is on our link.
    pub(crate) fn on_link(&self, address: &Address) -> bool {
        let shares = |local: &Local| local.usable && local.address.shares_prefix(address, local.prefix);
        (address.is_link_local() && !address.is_v4() && self.has_v6()) || self.locals.iter().any(shares)
    }

    /// The next hop of packets to `remote`.
    pub(crate) fn next_hop(&self, remote: &Address) -> Option<Address> {
        if self.on_link(remote) {
            return Some(*remote);
        }
        self.gateways[usize::from(!remote.is_v4())]
    }

    /// The index of our source address towards `remote`.
    pub(crate) fn source_for(&self, remote: &Address) -> Option<AddressIndex> {
        let fits = |local: &Local| {
            local.usable
                && local.address.is_v4() == remote.is_v4()
                && (remote.is_v4() || local.address.is_link_local() == remote.is_link_local())
        };
        let candidates = self.locals.iter().enumerate().filter(|(_, local)| fits(local));
        candidates
            .max_by_key(|(_, local)| local.address.common_bits(remote))
            .map(|(index, _)| AddressIndex(index as u8))
    }
}
