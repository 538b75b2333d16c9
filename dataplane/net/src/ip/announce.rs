//! Telling the link whose our addresses are, and noticing who else says that he has one.
//!
//! 1. With [`super::Config::announce`] an engine says at its start where its addresses are, twice,
//!    [`ANNOUNCE_INTERVAL`] apart: ARP that asks for its own address (RFC 5227 section 2.3) and
//!    unsolicited advertisements that replace what was known (RFC 4861 section 7.2.6). So peers
//!    that knew a former holder of the address under another link address learn of it at once and
//!    not when theirs has grown old.
//! 2. Addresses are not tried out before they are used: DupAddrDetectTransmits is 0, as RFC 4862
//!    section 5.1 lets whoever configures a node say. The control plane gives each address to one
//!    VNIC, refuses a second one, and makes the filters drop what others say in its name; a trial
//!    would make every start a second later, and keep the address from its owner when a stranger
//!    answers.
//! 3. Somebody else who says that he has one of our addresses is counted. We say once more whose it
//!    is, at most every [`DEFEND_INTERVAL`] (RFC 5227 section 2.4 b), and keep it: giving up what
//!    was granted would help the stranger. Trials of others are answered as any question.

use super::Ip;
use super::neighbours::NeighbourRequest;
use super::outgoing::{Body, NextHop, Outgoing};
use crate::context::Context;
use crate::limits::{ANNOUNCE_INTERVAL, DEFEND_INTERVAL, NEVER, UDP_SEND_QUEUE};
use crate::packet::{Address, icmpv6};

pub(super) mod schedule;

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

    /// Somebody with another link address says that one of ours is his.
    #[cold]
    pub(super) fn address_conflict(&mut self, cx: &mut Context) {
        cx.metrics.address_conflicts += 1;
        let announcer = &mut self.announcer;
        if announcer.defends && announcer.defend_at <= cx.now {
            announcer.defend_at = cx.now + DEFEND_INTERVAL;
            self.announce(cx);
        }
    }
}
