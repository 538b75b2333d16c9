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

use super::Engine;
use crate::limits::{ANNOUNCE_INTERVAL, ANNOUNCEMENTS, DEFEND_INTERVAL, NEVER, UDP_SEND_QUEUE};
use crate::neighbour::Question;
use crate::packet::{Address, icmpv6};
use crate::udp::{NextHop, Outgoing};

/// What is still to be said.
#[derive(Debug)]
pub(crate) struct Announcer {
    left: u8,
    /// When the next announcement is due.
    at: u64,
    /// Whether conflicts are answered at all, and from when on the next one is.
    defends: bool,
    defend_at: u64,
}

impl Announcer {
    pub const fn new(announce: bool) -> Self {
        let (left, at) = if announce { (ANNOUNCEMENTS, 0) } else { (0, NEVER) };
        Self { left, at, defends: announce, defend_at: 0 }
    }

    /// When something is to be said; part of what [`crate::neighbour::Neighbours`] has for a
    /// deadline.
    pub const fn deadline(&self) -> u64 {
        self.at
    }
}

impl Engine {
    /// Queues the announcements that are due.
    #[inline]
    pub(crate) fn run_announcements(&mut self) {
        if self.announcer.at <= self.now {
            self.announce();
        }
    }

    #[cold]
    fn announce(&mut self) {
        let announcer = &mut self.announcer;
        announcer.left = announcer.left.saturating_sub(1);
        announcer.at = if announcer.left > 0 { self.now + ANNOUNCE_INTERVAL } else { NEVER };
        let own: Vec<Address> = self.addresses.all().map(|local| local.address).collect();
        for address in own {
            if address.is_v4() {
                self.questions.push(Question { address, mac: None });
            } else if self.outgoing.len() < UDP_SEND_QUEUE {
                let next_hop = NextHop::Link(Address::ALL_NODES.group_mac());
                let body = self.advertisement(&address, icmpv6::OVERRIDE);
                let remote = Address::ALL_NODES;
                self.outgoing.push_back(Outgoing { local: address, remote, next_hop, body });
            }
            self.metrics.announcements += 1;
        }
        self.neighbours.no_later(self.announcer.at);
        self.pending = true;
    }

    /// Somebody with another link address says that one of ours is his.
    #[cold]
    pub(super) fn address_conflict(&mut self) {
        self.metrics.address_conflicts += 1;
        let announcer = &mut self.announcer;
        if announcer.defends && announcer.defend_at <= self.now {
            announcer.defend_at = self.now + DEFEND_INTERVAL;
            self.announce();
        }
    }
}
