//! Announcing our addresses to the link, and defending them.
//!
//! 1. With [`crate::Config::announce`] the engine announces its addresses at its start, twice,
//!    [`ANNOUNCE_INTERVAL`] apart. It sends ARP requests for its own address (RFC 5227 section 2.3)
//!    and unsolicited advertisements that override (RFC 4861 section 7.2.6). Peers that knew a
//!    previous holder of the address thus learn the new link address at once, not when their entry
//!    expires.
//! 2. Addresses are not probed before use: DupAddrDetectTransmits is 0, which RFC 4862 section 5.1
//!    leaves to the administrator. The control plane gives each address to one VNIC, refuses a
//!    second one, and its filters drop forged packets. A probe would delay every start by a second,
//!    and an attacker that answered it would keep the address from its owner.
//! 3. Another host that claims one of our addresses is counted. The engine announces the address
//!    again, at most every [`DEFEND_INTERVAL`] (RFC 5227 section 2.4 b), and keeps it. Probes of
//!    other hosts are answered like any request.

use crate::context::Context;
use crate::ip::Ip;
use crate::ip::neighbours::NeighbourRequest;
use crate::ip::outgoing::{Body, NextHop, Outgoing};
use crate::limits::{ANNOUNCE_INTERVAL, DEFEND_INTERVAL, NEVER, UDP_SEND_QUEUE};
use crate::packet::{Address, icmpv6};

pub(crate) mod schedule;

impl Ip {
    /// Queues the announcements that are due.
    #[inline]
    pub(crate) fn run_announcements(&mut self, cx: &mut Context) {
        if self.announcer.at <= cx.now {
            self.announce(cx);
        }
    }

    #[cold]
    fn announce(&mut self, cx: &mut Context) {
        let announcer = &mut self.announcer;
        announcer.left = announcer.left.saturating_sub(1);
        announcer.at = if announcer.left > 0 { cx.now + ANNOUNCE_INTERVAL } else { NEVER };
        let own: Vec<Address> = cx.addresses.all().map(|local| local.address).collect();
        for address in own {
            if address.is_v4() {
                cx.neighbour_requests.push(NeighbourRequest { address, mac: None });
            } else if cx.outgoing.len() < UDP_SEND_QUEUE {
                let next_hop = NextHop::Link(Address::ALL_NODES.group_mac());
                let body = Body::advertisement(&address, cx.mac, icmpv6::OVERRIDE);
                let remote = Address::ALL_NODES;
                cx.outgoing.push_back(Outgoing { local: address, remote, next_hop, body });
            }
            cx.metrics.announcements += 1;
        }
        cx.neighbours.no_later(self.announcer.at);
        cx.pending = true;
    }

    /// A host with another link address claims one of our addresses.
    #[cold]
    pub(in crate::ip) fn address_conflict(&mut self, cx: &mut Context) {
        cx.metrics.address_conflicts += 1;
        let announcer = &mut self.announcer;
        if announcer.defends && announcer.defend_at <= cx.now {
            announcer.defend_at = cx.now + DEFEND_INTERVAL;
            self.announce(cx);
        }
    }
}
