//! IP: what is done with packets of both families before and beside TCP and UDP.
//!
//! 1. A received packet is checked against our addresses and groups (`ipv4`, `ipv6`). Fragments are
//!    collected (`fragments`). The result is an [`Input`](input::Input): a payload for TCP or UDP,
//!    an ICMP error for one of them, or something that is done.
//! 2. ARP and neighbour discovery fill the cache of link addresses (`neighbours`, `ipv6`).
//!    Our own addresses are announced and defended (`neighbours/announce`).
//! 3. Groups are joined, left and reported (`groups`).
//! 4. ICMP errors and echo replies that we send are limited by rate (`icmp`).
//! 5. Packets that belong to no flow wait in the context until they are emitted (`output`).
//!
//! Addresses, neighbours and path MTUs are part of the context: TCP and UDP need them as well.

use crate::config::Config;
use crate::context::Context;
use crate::limits;
use crate::packet::Address;
use crate::reply_limit::ReplyLimit;

pub(crate) mod addresses;
mod fragments;
pub(crate) mod groups;
pub(crate) mod icmp;
pub(crate) mod icmp_error;
pub(crate) mod input;
mod ipv4;
mod ipv6;
pub(crate) mod neighbours;
pub(crate) mod origin;
pub(crate) mod outgoing;
mod output;
pub(crate) mod path_mtu;

use fragments::Fragments;
use groups::Groups;
use neighbours::announce::schedule::Announcer;

/// See the module.
#[derive(Debug)]
pub(crate) struct Ip {
    fragments: Fragments,
    groups: Groups,
    announcer: Announcer,
    echo_limit: ReplyLimit,
    error_limit: ReplyLimit,
}

impl Ip {
    pub(crate) fn new(config: &Config, cx: &Context) -> Self {
        Self {
            fragments: Fragments::new(),
            groups: Groups::default(),
            announcer: Announcer::new(config.announce),
            echo_limit: ReplyLimit::new(limits::ECHO_RATE, cx.secret),
            error_limit: ReplyLimit::new(limits::UNREACHABLE_RATE, cx.secret),
        }
    }

    /// When the first of its timers is due, or [`limits::NEVER`].
    #[inline]
    pub(crate) fn earliest(&self) -> u64 {
        self.fragments.deadline().min(self.groups.deadline())
    }

    /// Whether any group was joined.
    pub(crate) fn has_groups(&self) -> bool {
        !self.groups.is_empty()
    }

    /// Runs what is due.
    pub(crate) fn run_timers(&mut self, cx: &mut Context) {
        self.run_fragments(cx);
        self.run_groups(cx);
        self.run_announcements(cx);
    }

    /// Queues requests for link addresses that are due. Returns the next hops that did not answer.
    pub(crate) fn run_neighbours(&mut self, cx: &mut Context) -> Vec<Address> {
        let mut failed = Vec::new();
        if cx.neighbours.deadline() <= cx.now {
            cx.neighbours.due(cx.now, &mut cx.neighbour_requests, &mut failed);
            cx.neighbours.no_later(self.announcer.deadline());
            cx.pending |= !cx.neighbour_requests.is_empty();
        }
        failed
    }
}
