//! ARP and ICMP as they arrive, and what is done about neighbours of either family.

use super::errors::Trouble;
use super::output::write_arp;
use super::{Disposition, Engine};
use crate::events::CloseReason;
use crate::flow::flag;
use crate::packet::{Address, arp, ethernet, icmp, ipv4, ipv6};
use crate::udp::NextHop;

impl Engine {
    pub(super) fn dispatch_arp(&mut self, payload: &[u8]) -> Disposition {
        let Some(packet) = arp::Packet::parse(payload) else {
            self.metrics.malformed += 1;
            return Disposition::Release;
        };
        let (own, sender) = (self.addresses.v4(), Address::v4(packet.sender));
        // A group address or our own as the sender is a forgery or a conflict.
        let sane = packet.sender_mac[0] & 1 == 0 && packet.sender_mac != self.mac && sender != own;
        if !sane {
            self.metrics.wrong_address += 1;
            let claims = sender == own && !own.is_unspecified() && packet.sender_mac != self.mac;
            if claims && packet.sender_mac[0] & 1 == 0 {
                self.address_conflict();
            }
            return Disposition::Release;
        }
        let asks_us = packet.request && Address::v4(packet.target) == own && !own.is_unspecified();
        let usable = self.addresses.on_link(&sender) && self.addresses.may_be_source(&sender);
        if usable && self.neighbours.learn(sender, packet.sender_mac, asks_us, self.now) {
            self.resolved(sender, packet.sender_mac);
        }
        if asks_us { Disposition::AnswerArp(packet) } else { Disposition::Release }
    }

    pub(super) fn answer_arp(&mut self, bytes: &mut [u8], question: &arp::Packet) {
        let answer = arp::Packet {
            request: false,
            sender_mac: self.mac,
            sender: self.addresses.v4().low(),
            target_mac: question.sender_mac,
            target: question.sender,
        };
        write_arp(bytes, question.sender_mac, &answer);
        self.metrics.arp_replies += 1;
    }

    /// A next hop became known: flows that waited for it may send.
    pub(super) fn resolved(&mut self, hop: Address, mac: [u8; 6]) {
        self.pending |= !self.outgoing.is_empty();
        let waiting = std::mem::take(&mut self.unresolved);
        for index in waiting {
            let flow = &self.flows.hot[index as usize];
            if !flow.has(flag::UNRESOLVED) {
                continue;
            }
            let path = &mut self.flows.path[index as usize];
            if self.addresses.next_hop(&path.remote()) == Some(hop) {
                path.set_next_hop(mac);
                let flow = &mut self.flows.hot[index as usize];
                flow.flags &= !flag::UNRESOLVED;
                self.touch(index as usize);
            } else {
                self.unresolved.push(index);
            }
        }
    }

    /// Asks for link addresses whose time has come, and gives up those that did not answer.
    pub(crate) fn run_neighbours(&mut self) {
        if self.neighbours.deadline() > self.now {
            return;
        }
        let mut failed = Vec::new();
        self.neighbours.due(self.now, &mut self.questions, &mut failed);
        self.neighbours.no_later(self.announcer.deadline());
        self.pending |= !self.questions.is_empty();
        for hop in failed {
            let waiting = std::mem::take(&mut self.unresolved);
            for index in waiting {
                let flow = &self.flows.hot[index as usize];
                let remote = self.flows.path[index as usize].remote();
                if flow.has(flag::UNRESOLVED) && self.addresses.next_hop(&remote) == Some(hop) {
                    self.metrics.connections_failed += 1;
                    self.finish(index as usize, CloseReason::Unreachable);
                } else if flow.has(flag::UNRESOLVED) {
                    self.unresolved.push(index);
                }
            }
            let before = self.outgoing.len();
            self.outgoing
                .retain(|outgoing| !matches!(outgoing.next_hop, NextHop::Address(address) if address == hop));
            self.metrics.unresolved += (before - self.outgoing.len()) as u64;
        }
    }

    pub(super) fn receive_icmp(
        &mut self,
        header: &ipv4::Header,
        message: &icmp::Message<'_>,
        length: usize,
    ) -> Disposition {
        match message.kind {
            icmp::ECHO_REQUEST if header.header_length == ipv4::HEADER => {
                if self.echo_bucket.take(self.now) {
                    return Disposition::Echo { length };
                }
                self.metrics.rate_limited += 1;
            }
            icmp::UNREACHABLE => {
                let trouble = match message.code {
                    icmp::FRAGMENTATION_NEEDED => Trouble::TooBig((message.rest & 0xffff) as usize),
                    icmp::PORT_UNREACHABLE | icmp::PROTOCOL_UNREACHABLE => Trouble::Refused,
                    _ => Trouble::Unreachable,
                };
                self.receive_error(trouble, message.payload.head, true);
            }
            icmp::TIME_EXCEEDED | icmp::PARAMETER_PROBLEM => {
                self.receive_error(Trouble::Passing, message.payload.head, true);
            }
            _ => self.metrics.frames_ignored += 1,
        }
        Disposition::Release
    }

    /// Turns an echo request around in its frame of `length` bytes, of which `bytes` are the head.
    pub(super) fn answer_echo(&mut self, bytes: &mut [u8], length: usize) {
        let Some((link, rest)) = bytes.split_first_chunk_mut::<{ ethernet::HEADER }>() else { return };
        link.copy_within(6..12, 0);
        link[6..12].copy_from_slice(&self.mac);
        if rest.first().is_some_and(|first| first >> 4 == 6) {
            turn_ipv6(rest);
            self.metrics.echo_replies += 1;
            return;
        }
        let Some((network, body)) = rest.split_first_chunk_mut::<{ ipv4::HEADER }>() else { return };
        let remote = u32::from_be_bytes([network[12], network[13], network[14], network[15]]);
        let body_length = length - ethernet::HEADER - ipv4::HEADER;
        ipv4::emit(network, self.addresses.v4().low(), remote, ipv4::ICMP, body_length);
        icmp::turn_echo(body);
        self.metrics.echo_replies += 1;
    }
}

/// Exchanges the addresses of an IPv6 packet without extension headers, and turns the echo request
/// in it into a reply.
fn turn_ipv6(packet: &mut [u8]) {
    let Some((network, body)) = packet.split_first_chunk_mut::<{ ipv6::HEADER }>() else { return };
    network[..4].copy_from_slice(&[0x60, 0, 0, 0]);
    network[7] = ipv6::HOP_LIMIT;
    let (source, destination) = network[8..].split_at_mut(16);
    source.swap_with_slice(destination);
    if body.len() >= icmp::HEADER {
        icmp::turn_echo(body);
    }
}
