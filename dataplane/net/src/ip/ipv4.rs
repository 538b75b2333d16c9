//! IPv4 as it arrives, and ICMP for it.
//!
//! 1. A packet to our address, or to a group that was joined, is parsed and checked. Others are
//!    dropped and counted.
//! 2. Fragments go to reassembly, which may return a whole packet.
//! 3. TCP and UDP go up to their layers. ICMP is handled here: echo requests are answered, and
//!    errors about our own packets are passed to the layer that they are about.
//! 4. An unknown protocol is answered with an ICMP error, within the limit on replies.
//!
//! Packets to a group never cause an ICMP error (RFC 1122 section 3.2.2).

use super::Ip;
use super::icmp::{ErrorMessage, receive_error};
use super::icmp_error::IcmpError;
use super::input::{Input, Upper};
use super::origin::Origin;
use crate::context::Context;
use crate::packet::{Address, AddressIndex, Payload, echo, ethernet, group_report, icmp, ipv4, ipv6};

/// All hosts that understand groups, `224.0.0.1`.
const ALL_HOSTS: u32 = 0xe000_0001;

impl Ip {
    #[inline]
    pub(crate) fn receive_v4<'a>(
        &mut self,
        cx: &mut Context,
        link: &ethernet::Header,
        packet: Payload<'a>,
    ) -> Input<'a> {
        let (header, payload) = match ipv4::Header::parse(packet) {
            Ok(parsed) => parsed,
            Err(reason) => return Input::malformed(cx, reason),
        };
        let (remote, destination) = (Address::v4(header.source), Address::v4(header.destination));
        if destination != cx.addresses.v4() || !cx.addresses.may_be_source(&remote) {
            cx.metrics.wrong_address += 1;
            return Input::Done;
        }
        let origin = Origin { mac: link.source, remote, local: AddressIndex::V4, ecn: header.ecn };
        if header.fragment {
            return self.receive_fragment_v4(cx, &origin, &header, payload, packet);
        }
        match header.protocol {
            protocol @ (ipv4::TCP | ipv4::UDP) => {
                Input::Upper(Upper { origin, destination, protocol, to_group: false, payload, packet })
            }
            ipv4::ICMP => match icmp::Message::parse(payload) {
                Ok(message) => {
                    let length = ethernet::HEADER + ipv4::HEADER + payload.len();
                    self.receive_icmp(cx, &header, &message, length)
                }
                Err(reason) => Input::malformed(cx, reason),
            },
            _ => {
                cx.metrics.frames_ignored += 1;
                let error =
                    ErrorMessage { kind: icmp::UNREACHABLE, code: icmp::PROTOCOL_UNREACHABLE, rest: 0 };
                self.send_error(cx, &origin, error, packet);
                Input::Done
            }
        }
    }

    /// Takes an IPv4 packet to a group.
    #[cold]
    pub(crate) fn receive_group_v4<'a>(
        &mut self,
        cx: &mut Context,
        link: &ethernet::Header,
        packet: Payload<'a>,
    ) -> Input<'a> {
        let (header, payload) = match ipv4::Header::parse(packet) {
            Ok(parsed) => parsed,
            Err(reason) => return Input::malformed(cx, reason),
        };
        let (remote, group) = (Address::v4(header.source), Address::v4(header.destination));
        let wanted = self.groups.contains(&group) || header.destination == ALL_HOSTS;
        let matches = group.is_multicast() && group.group_mac() == link.destination;
        if !wanted || !matches || !cx.addresses.may_be_source(&remote) {
            cx.metrics.wrong_address += 1;
            return Input::Done;
        }
        let origin = Origin { mac: link.source, remote, local: AddressIndex::V4, ecn: header.ecn };
        match header.protocol {
            _ if header.fragment => cx.metrics.fragments += 1,
            group_report::IGMP => self.receive_igmp(cx, payload),
            protocol @ ipv4::UDP => {
                let destination = group;
                return Input::Upper(Upper {
                    origin,
                    destination,
                    protocol,
                    to_group: true,
                    payload,
                    packet,
                });
            }
            _ => cx.metrics.frames_ignored += 1,
        }
        Input::Done
    }

    fn receive_icmp<'a>(
        &mut self,
        cx: &mut Context,
        header: &ipv4::Header,
        message: &icmp::Message<'_>,
        length: usize,
    ) -> Input<'a> {
        let error = match message.kind {
            icmp::ECHO_REQUEST if header.header_length == ipv4::HEADER => {
                if self.echo_limit.take(cx.now) {
                    return Input::Echo { length };
                }
                cx.metrics.rate_limited += 1;
                return Input::Done;
            }
            icmp::UNREACHABLE => match message.code {
                icmp::FRAGMENTATION_NEEDED => IcmpError::TooBig((message.rest & 0xffff) as usize),
                icmp::PORT_UNREACHABLE | icmp::PROTOCOL_UNREACHABLE => IcmpError::Refused,
                _ => IcmpError::Unreachable,
            },
            icmp::TIME_EXCEEDED | icmp::PARAMETER_PROBLEM => IcmpError::Transient,
            _ => {
                cx.metrics.frames_ignored += 1;
                return Input::Done;
            }
        };
        receive_error(cx, error, message.payload.head, true)
    }

    /// Makes a reply of an echo request in its frame of `length` bytes, of which `bytes` are the
    /// head.
    pub(crate) fn answer_echo(cx: &mut Context, bytes: &mut [u8], length: usize) {
        let Some((link, rest)) = bytes.split_first_chunk_mut::<{ ethernet::HEADER }>() else { return };
        link.copy_within(6..12, 0);
        link[6..12].copy_from_slice(&cx.mac);
        if rest.first().is_some_and(|first| first >> 4 == 6) {
            reply_ipv6(rest);
            cx.metrics.echo_replies += 1;
            return;
        }
        let Some((network, body)) = rest.split_first_chunk_mut::<{ ipv4::HEADER }>() else { return };
        let remote = u32::from_be_bytes([network[12], network[13], network[14], network[15]]);
        let body_length = length - ethernet::HEADER - ipv4::HEADER;
        ipv4::emit(network, cx.addresses.v4().low(), remote, ipv4::ICMP, body_length);
        echo::reply_in_place(body);
        cx.metrics.echo_replies += 1;
    }
}

/// Exchanges the addresses of an IPv6 packet without extension headers, and makes a reply of the
/// echo request in it.
fn reply_ipv6(packet: &mut [u8]) {
    let Some((network, body)) = packet.split_first_chunk_mut::<{ ipv6::HEADER }>() else { return };
    network[..4].copy_from_slice(&[0x60, 0, 0, 0]);
    network[7] = ipv6::HOP_LIMIT;
    let (source, destination) = network[8..].split_at_mut(16);
    source.swap_with_slice(destination);
    if body.len() >= icmp::HEADER {
        echo::reply_in_place(body);
    }
}
