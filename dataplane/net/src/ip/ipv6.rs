//! IPv6 as it arrives: extension headers, ICMPv6, neighbour discovery.
//!
//! 1. A packet is for us if its destination and that of its frame are ours, or if it goes to a
//!    group that we joined.
//! 2. The extension headers are followed ([`ipv6::walk`]); TCP and UDP are then handled as over
//!    IPv4.
//! 3. A solicitation for one of our addresses is answered. One from the unspecified address is a
//!    probe by a host that is about to use our address. The answer goes to all nodes (RFC 4862
//!    section 5.4.3, RFC 4861 section 7.2.4).
//! 4. Messages of neighbour discovery count only with the hop limit with which they were sent, so
//!    no host behind a router can forge them.
//!
//! Router advertisements and redirects are ignored: addresses and gateways come from the control
//! plane.

use super::Ip;
use super::icmp::{ErrorMessage, receive_error};
use super::icmp_error::IcmpError;
use super::input::{Input, Upper};
use super::neighbours::Advertisement;
use super::origin::Origin;
use super::outgoing::{Body, NextHop, Outgoing};
use crate::context::Context;
use crate::limits::UDP_SEND_QUEUE;
use crate::packet::icmp::Message;
use crate::packet::icmpv6::{self, Neighbour};
use crate::packet::ipv6::{Header, Refusal};
use crate::packet::{Address, AddressIndex, Payload, ethernet, ipv4, ipv6};

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

impl Ip {
    /// Not in line with the way of IPv4 packets, which it would make longer.
    #[inline(never)]
    pub(crate) fn receive_v6<'a>(
        &mut self,
        cx: &mut Context,
        link: &ethernet::Header,
        packet: Payload<'a>,
    ) -> Input<'a> {
        let (header, payload) = match Header::parse(packet) {
            Ok(parsed) => parsed,
            Err(reason) => return Input::malformed(cx, reason),
        };
        let index = cx.addresses.index_of(&header.destination).filter(|_| link.destination == cx.mac);
        let joined = self.groups.contains(&header.destination);
        let to_group =
            header.destination.is_multicast() && (joined || cx.addresses.receives_group(&header.destination));
        let probe = header.source.is_unspecified() && to_group && header.next_header == ipv6::ICMP;
        let valid = probe || cx.addresses.may_be_source(&header.source);
        if !valid || (index.is_none() && !to_group) {
            cx.metrics.wrong_address += 1;
            if link.source != cx.mac && cx.addresses.index_of(&header.source).is_some() {
                self.address_conflict(cx);
            }
            return Input::Done;
        }
        let origin = Origin {
            mac: link.source,
            remote: header.source,
            local: index.unwrap_or(AddressIndex::LINK_LOCAL),
            ecn: header.ecn,
        };
        let packet = packet.take(ipv6::HEADER + payload.len());
        let arrival = Arrival { header, origin, to_group, packet };
        let upper = match ipv6::walk(header.next_header, payload) {
            Ok(upper) => upper,
            Err(refusal) => return self.refuse_headers(cx, &arrival, refusal),
        };
        if upper.fragment.is_some() {
            if to_group || probe {
                cx.metrics.frames_ignored += 1;
                return Input::Done;
            }
            return self.receive_fragment_v6(cx, &origin, header.destination, &upper, packet);
        }
        let (remote, local) = (&header.source, &header.destination);
        match upper.protocol {
            ipv4::TCP | ipv4::UDP if !to_group => {}
            ipv4::UDP if joined => {}
            ipv6::ICMP => match icmpv6::parse(upper.payload, remote, local) {
                Ok(message) => return self.receive_icmpv6(cx, &arrival, &message, upper.skipped == 0),
                Err(reason) => return Input::malformed(cx, reason),
            },
            _ => {
                cx.metrics.frames_ignored += 1;
                return Input::Done;
            }
        }
        Input::Upper(Upper {
            origin,
            destination: header.destination,
            protocol: upper.protocol,
            to_group,
            payload: upper.payload,
            packet,
        })
    }

    #[cold]
    fn refuse_headers<'a>(&mut self, cx: &mut Context, arrival: &Arrival<'a>, refusal: Refusal) -> Input<'a> {
        match refusal {
            Refusal::Malformed => cx.metrics.malformed += 1,
            Refusal::Silent => cx.metrics.extension_headers_refused += 1,
            Refusal::Problem { code, pointer, to_group } => {
                cx.metrics.extension_headers_refused += 1;
                if (to_group || !arrival.to_group) && !arrival.header.source.is_unspecified() {
                    let error = ErrorMessage { kind: icmpv6::PARAMETER_PROBLEM, code, rest: pointer };
                    self.send_error(cx, &arrival.origin, error, arrival.packet);
                }
            }
        }
        Input::Done
    }

    fn receive_icmpv6<'a>(
        &mut self,
        cx: &mut Context,
        arrival: &Arrival<'a>,
        message: &Message<'_>,
        plain: bool,
    ) -> Input<'a> {
        let error = match message.kind {
            icmpv6::ECHO_REQUEST if plain && !arrival.to_group => {
                if self.echo_limit.take(cx.now) {
                    return Input::Echo { length: ethernet::HEADER + arrival.packet.len() };
                }
                cx.metrics.rate_limited += 1;
                return Input::Done;
            }
            icmpv6::NEIGHBOUR_SOLICITATION | icmpv6::NEIGHBOUR_ADVERTISEMENT => {
                return Input::Neighbour {
                    resolved: self.receive_neighbour(cx, arrival, message),
                    answer: None,
                };
            }
            icmpv6::GROUP_QUERY if arrival.header.hop_limit == 1 && arrival.header.source.is_link_local() => {
                self.receive_mld(cx, message);
                return Input::Done;
            }
            icmpv6::TOO_BIG => IcmpError::TooBig(message.rest as usize),
            icmpv6::UNREACHABLE if message.code == icmpv6::PORT_UNREACHABLE => IcmpError::Refused,
            icmpv6::UNREACHABLE => IcmpError::Unreachable,
            icmpv6::TIME_EXCEEDED | icmpv6::PARAMETER_PROBLEM => IcmpError::Transient,
            _ => {
                cx.metrics.frames_ignored += 1;
                return Input::Done;
            }
        };
        receive_error(cx, error, message.payload.head, false)
    }

    /// Takes a message of neighbour discovery. Returns the link address that became known.
    fn receive_neighbour(
        &mut self,
        cx: &mut Context,
        arrival: &Arrival<'_>,
        message: &Message<'_>,
    ) -> Option<(Address, [u8; 6])> {
        let parsed = Neighbour::parse(message).filter(|_| arrival.header.hop_limit == icmpv6::LINK_HOP_LIMIT);
        let Some(neighbour) = parsed else {
            cx.metrics.malformed += 1;
            return None;
        };
        // A group address is no host's link address.
        if neighbour.mac.is_some_and(|mac| mac[0] & 1 != 0 || mac == cx.mac) {
            cx.metrics.wrong_address += 1;
            return None;
        }
        if message.kind == icmpv6::NEIGHBOUR_SOLICITATION {
            Self::solicited(cx, arrival, &neighbour)
        } else {
            self.advertised(cx, arrival, &neighbour, message.rest)
        }
    }

    fn solicited(cx: &mut Context, arrival: &Arrival<'_>, request: &Neighbour) -> Option<(Address, [u8; 6])> {
        let index = cx.addresses.index_of(&request.target)?;
        let source = arrival.header.source;
        let probe = source.is_unspecified();
        if probe && (request.mac.is_some() || arrival.header.destination != request.target.solicited_node()) {
            cx.metrics.malformed += 1;
            return None;
        }
        let on_link = request.mac.filter(|_| cx.addresses.on_link(&source));
        let resolved =
            on_link.filter(|mac| cx.neighbours.solicited_by(source, *mac)).map(|mac| (source, mac));
        if cx.outgoing.len() >= UDP_SEND_QUEUE {
            cx.metrics.rate_limited += 1;
            return resolved;
        }
        let (remote, next_hop, flags) = if probe {
            (Address::ALL_NODES, Address::ALL_NODES.group_mac(), icmpv6::OVERRIDE)
        } else {
            (source, request.mac.unwrap_or(arrival.origin.mac), icmpv6::OVERRIDE | icmpv6::SOLICITED)
        };
        let body = Body::advertisement(&request.target, cx.mac, flags);
        let local = cx.addresses.get(index);
        cx.outgoing.push_back(Outgoing { local, remote, next_hop: NextHop::Link(next_hop), body });
        cx.pending = true;
        cx.metrics.neighbour_advertisements += 1;
        resolved
    }

    fn advertised(
        &mut self,
        cx: &mut Context,
        arrival: &Arrival<'_>,
        answer: &Neighbour,
        flags: u32,
    ) -> Option<(Address, [u8; 6])> {
        let solicited = flags & icmpv6::SOLICITED != 0;
        if solicited && arrival.to_group {
            cx.metrics.malformed += 1;
            return None;
        }
        // A claim to our own address, or to one that is not on the link, is ignored.
        if cx.addresses.index_of(&answer.target).is_some() || !cx.addresses.on_link(&answer.target) {
            cx.metrics.wrong_address += 1;
            if answer.mac.is_some() && cx.addresses.index_of(&answer.target).is_some() {
                self.address_conflict(cx);
            }
            return None;
        }
        let advertisement =
            Advertisement { mac: answer.mac, solicited, replaces: flags & icmpv6::OVERRIDE != 0 };
        let learned = cx.neighbours.advertised(answer.target, &advertisement, cx.now);
        answer.mac.filter(|_| learned).map(|mac| (answer.target, mac))
    }
}
