//! IPv6 as it arrives: extension headers, ICMPv6, neighbour discovery.
//!
//! 1. A packet is for us if its destination is one of our addresses and its frame's is ours, or if
//!    it goes to a group that we are in.
//! 2. The extension headers are followed ([`ipv6::walk`]); TCP and UDP go the way of those over
//!    IPv4.
//! 3. A solicitation for one of our addresses is answered. If it comes from nobody's address,
//!    somebody tries out whether he may have ours: the answer goes to everybody (RFC 4862 section
//!    5.4.3, RFC 4861 section 7.2.4).
//! 4. Messages of neighbour discovery count only with the hop limit with which they were sent:
//!    nobody behind a router can write them.
//!
//! Router advertisements and redirects are not heard: addresses and routers are the control plane's
//! to give.

use super::errors::{Report, Trouble};
use super::{Disposition, Engine, Origin};
use crate::limits::UDP_SEND_QUEUE;
use crate::neighbour::Advertisement;
use crate::packet::icmp::Message;
use crate::packet::icmpv6::{self, Neighbour};
use crate::packet::ipv6::{Header, Refusal};
use crate::packet::{Address, Payload, ethernet, ipv4, ipv6, tcp, udp};
use crate::udp::{Body, NextHop, Outgoing};

/// A packet with what was found out about it.
struct Arrival<'a> {
    header: Header,
    /// Whence, and to which of our addresses; to the first one if it was sent to a group.
    origin: Origin,
    /// It was sent to a group.
    to_group: bool,
    /// The packet without the link's padding.
    packet: Payload<'a>,
}

impl Engine {
    /// Not in line with the way of IPv4 packets, which it would make longer.
    #[inline(never)]
    pub(super) fn dispatch_ipv6(&mut self, link: &ethernet::Header, packet: Payload<'_>) -> Disposition {
        let (header, payload) = match Header::parse(packet) {
            Ok(parsed) => parsed,
            Err(reason) => return self.malformed(reason),
        };
        let place = self.addresses.index_of(&header.destination).filter(|_| link.destination == self.mac);
        let joined = self.groups.contains(&header.destination);
        let to_group =
            header.destination.is_multicast() && (joined || self.addresses.hears_group(&header.destination));
        let nobody = header.source.is_unspecified() && to_group && header.next_header == ipv6::ICMP;
        let honest = nobody || self.addresses.may_be_source(&header.source);
        if !honest || (place.is_none() && !to_group) {
            self.metrics.wrong_address += 1;
            if link.source != self.mac && self.addresses.index_of(&header.source).is_some() {
                self.address_conflict();
            }
            return Disposition::Release;
        }
        // Place 1 is the link-local address.
        let origin =
            Origin { mac: link.source, remote: header.source, local: place.unwrap_or(1), ecn: header.ecn };
        let packet = packet.take(ipv6::HEADER + payload.len());
        let arrival = Arrival { header, origin, to_group, packet };
        let upper = match ipv6::walk(header.next_header, payload) {
            Ok(upper) => upper,
            Err(refusal) => return self.refuse_headers(&arrival, refusal),
        };
        if upper.fragment.is_some() {
            if to_group || nobody {
                self.metrics.frames_ignored += 1;
                return Disposition::Release;
            }
            return self.receive_part_v6(&origin, header.destination, &upper, packet);
        }
        let (remote, local) = (&header.source, &header.destination);
        match upper.protocol {
            ipv4::TCP if !to_group => match tcp::Segment::parse(upper.payload, remote, local, self.checks) {
                Ok(segment) => self.dispatch_segment(&origin, &segment),
                Err(reason) => return self.malformed(reason),
            },
            ipv4::UDP if !to_group => match udp::Datagram::parse(upper.payload, remote, local, self.checks) {
                Ok(datagram) => self.receive_datagram(&origin, &datagram, packet),
                Err(reason) => return self.malformed(reason),
            },
            ipv4::UDP if joined => match udp::Datagram::parse(upper.payload, remote, local, self.checks) {
                Ok(datagram) => self.receive_group_datagram(&origin, &datagram),
                Err(reason) => return self.malformed(reason),
            },
            ipv6::ICMP => match icmpv6::parse(upper.payload, remote, local) {
                Ok(message) => return self.receive_icmpv6(&arrival, &message, upper.skipped == 0),
                Err(reason) => return self.malformed(reason),
            },
            _ => self.metrics.frames_ignored += 1,
        }
        Disposition::Release
    }

    #[cold]
    fn refuse_headers(&mut self, arrival: &Arrival<'_>, refusal: Refusal) -> Disposition {
        match refusal {
            Refusal::Malformed => self.metrics.malformed += 1,
            Refusal::Silent => self.metrics.extension_headers_refused += 1,
            Refusal::Problem { code, pointer, to_group } => {
                self.metrics.extension_headers_refused += 1;
                if (to_group || !arrival.to_group) && !arrival.header.source.is_unspecified() {
                    let report = Report { kind: icmpv6::PARAMETER_PROBLEM, code, rest: pointer };
                    self.report(&arrival.origin, report, arrival.packet);
                }
            }
        }
        Disposition::Release
    }

    fn receive_icmpv6(&mut self, arrival: &Arrival<'_>, message: &Message<'_>, plain: bool) -> Disposition {
        let trouble = match message.kind {
            icmpv6::ECHO_REQUEST if plain && !arrival.to_group => {
                if self.echo_bucket.take(self.now) {
                    return Disposition::Echo { length: ethernet::HEADER + arrival.packet.len() };
                }
                self.metrics.rate_limited += 1;
                return Disposition::Release;
            }
            icmpv6::NEIGHBOUR_SOLICITATION | icmpv6::NEIGHBOUR_ADVERTISEMENT => {
                self.receive_neighbour(arrival, message);
                return Disposition::Release;
            }
            icmpv6::GROUP_QUERY if arrival.header.hop_limit == 1 && arrival.header.source.is_link_local() => {
                self.receive_mld(message);
                return Disposition::Release;
            }
            icmpv6::TOO_BIG => Trouble::TooBig(message.rest as usize),
            icmpv6::UNREACHABLE if message.code == icmpv6::PORT_UNREACHABLE => Trouble::Refused,
            icmpv6::UNREACHABLE => Trouble::Unreachable,
            icmpv6::TIME_EXCEEDED | icmpv6::PARAMETER_PROBLEM => Trouble::Passing,
            _ => {
                self.metrics.frames_ignored += 1;
                return Disposition::Release;
            }
        };
        self.receive_error(trouble, message.payload.head, false);
        Disposition::Release
    }

    fn receive_neighbour(&mut self, arrival: &Arrival<'_>, message: &Message<'_>) {
        let parsed = Neighbour::parse(message).filter(|_| arrival.header.hop_limit == icmpv6::LINK_HOP_LIMIT);
        let Some(neighbour) = parsed else {
            self.metrics.malformed += 1;
            return;
        };
        // A group's link address is nobody's.
        if neighbour.mac.is_some_and(|mac| mac[0] & 1 != 0 || mac == self.mac) {
            self.metrics.wrong_address += 1;
            return;
        }
        if message.kind == icmpv6::NEIGHBOUR_SOLICITATION {
            self.solicited(arrival, &neighbour);
        } else {
            self.advertised(arrival, &neighbour, message.rest);
        }
    }

    fn solicited(&mut self, arrival: &Arrival<'_>, question: &Neighbour) {
        let Some(place) = self.addresses.index_of(&question.target) else { return };
        let source = arrival.header.source;
        let probe = source.is_unspecified();
        if probe && (question.mac.is_some() || arrival.header.destination != question.target.solicited_node())
        {
            self.metrics.malformed += 1;
            return;
        }
        if let Some(mac) = question.mac.filter(|_| self.addresses.on_link(&source))
            && self.neighbours.heard(source, mac)
        {
            self.resolved(source, mac);
        }
        if self.outgoing.len() >= UDP_SEND_QUEUE {
            self.metrics.rate_limited += 1;
            return;
        }
        let (remote, next_hop, flags) = if probe {
            (Address::ALL_NODES, Address::ALL_NODES.group_mac(), icmpv6::OVERRIDE)
        } else {
            (source, question.mac.unwrap_or(arrival.origin.mac), icmpv6::OVERRIDE | icmpv6::SOLICITED)
        };
        let body = self.advertisement(&question.target, flags);
        let local = self.addresses.get(place);
        self.outgoing.push_back(Outgoing { local, remote, next_hop: NextHop::Link(next_hop), body });
        self.pending = true;
        self.metrics.neighbour_advertisements += 1;
    }

    /// Says that `target` is ours.
    pub(super) fn advertisement(&self, target: &Address, flags: u32) -> Body {
        let (kind, hop_limit) = (icmpv6::NEIGHBOUR_ADVERTISEMENT, icmpv6::LINK_HOP_LIMIT);
        let payload = icmpv6::neighbour_payload(kind, target, self.mac);
        Body::Icmp { kind, code: 0, rest: flags, hop_limit, payload }
    }

    fn advertised(&mut self, arrival: &Arrival<'_>, answer: &Neighbour, flags: u32) {
        let solicited = flags & icmpv6::SOLICITED != 0;
        if solicited && arrival.to_group {
            self.metrics.malformed += 1;
            return;
        }
        // Whoever claims our own address is wrong; so is who claims one that is not on the link.
        if self.addresses.index_of(&answer.target).is_some() || !self.addresses.on_link(&answer.target) {
            self.metrics.wrong_address += 1;
            if answer.mac.is_some() && self.addresses.index_of(&answer.target).is_some() {
                self.address_conflict();
            }
            return;
        }
        let told = Advertisement { mac: answer.mac, solicited, replaces: flags & icmpv6::OVERRIDE != 0 };
        if self.neighbours.advertised(answer.target, &told, self.now)
            && let Some(mac) = answer.mac
        {
            self.resolved(answer.target, mac);
        }
    }
}
