//! ARP, ICMP and UDP as they arrive.

use std::net::SocketAddr;

use super::output::write_arp;
use super::{Disposition, Engine, Origin};
use crate::events::CloseReason;
use crate::flow::{State, flag};
use crate::flow_table::{Entry, Name};
use crate::limits::{UDP_RECEIVE_QUEUE, UDP_SEND_QUEUE};
use crate::packet::{Address, arp, ethernet, icmp, ipv4, udp};
use crate::udp::{Body, Datagram, NextHop, Outgoing};

/// Smallest MTU that an ICMP message may name (RFC 879's 576 less slack for what Linux accepts): a forged one must not shrink us to nothing.
const SMALLEST_PATH_MTU: u32 = 552;

impl Engine {
    pub(super) fn dispatch_arp(&mut self, payload: &[u8]) -> Disposition {
        let Some(packet) = arp::Packet::parse(payload) else {
            self.metrics.malformed += 1;
            return Disposition::Release;
        };
        let (own, sender) = (self.addresses.v4(), Address::v4(packet.sender));
        // A group address or our own as the sender is a forgery, or a conflict that we cannot solve.
        let sane = packet.sender_mac[0] & 1 == 0 && packet.sender_mac != self.mac && sender != own;
        if !sane {
            self.metrics.foreign_address += 1;
            return Disposition::Release;
        }
        let asks_us = packet.request && Address::v4(packet.target) == own && !own.is_unspecified();
        let usable = self.addresses.on_link(&sender) && self.addresses.may_be_source(&sender);
        if usable && self.neighbours.learn(sender, packet.sender_mac, asks_us, self.now) {
            self.resolved(sender, packet.sender_mac);
            self.pending |= !self.outgoing.is_empty();
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
    fn resolved(&mut self, hop: Address, mac: [u8; 6]) {
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
        self.neighbours.due(self.now, &mut self.arp_due, &mut failed);
        self.pending |= !self.arp_due.is_empty();
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
            icmp::UNREACHABLE => self.receive_unreachable(message),
            _ => self.metrics.frames_ignored += 1,
        }
        Disposition::Release
    }

    /// Turns an echo request around in its frame of `length` bytes, of which `bytes` are the head.
    pub(super) fn answer_echo(&mut self, bytes: &mut [u8], length: usize) {
        let Some((link, rest)) = bytes.split_first_chunk_mut::<{ ethernet::HEADER }>() else { return };
        let Some((network, body)) = rest.split_first_chunk_mut::<{ ipv4::HEADER }>() else { return };
        let remote = u32::from_be_bytes([network[12], network[13], network[14], network[15]]);
        link.copy_within(6..12, 0);
        link[6..12].copy_from_slice(&self.mac);
        let body_length = length - ethernet::HEADER - ipv4::HEADER;
        ipv4::emit(network, self.addresses.v4().low(), remote, ipv4::ICMP, body_length);
        icmp::turn_echo(body);
        self.metrics.echo_replies += 1;
    }

    /// An ICMP error counts only if it quotes a segment that is in flight (RFC 5927).
    fn receive_unreachable(&mut self, message: &icmp::Message<'_>) {
        let Some(quote) = icmp::Quote::parse(message.payload.head) else {
            self.metrics.malformed += 1;
            return;
        };
        if quote.protocol != ipv4::TCP || Address::v4(quote.source) != self.addresses.v4() {
            return;
        }
        let name = Name {
            remote: Address::v4(quote.destination),
            remote_port: quote.ports.1,
            local_port: quote.ports.0,
            local: 0,
        };
        let Some(Entry::Flow(index)) = self.directory.find(&name) else {
            return;
        };
        let index = index as usize;
        let flow = &mut self.flows.hot[index];
        if quote.sequence.wrapping_sub(flow.una.0) >= flow.outstanding() {
            return;
        }
        if message.code == icmp::FRAGMENTATION_NEEDED {
            let mtu = (message.rest & 0xffff).max(SMALLEST_PATH_MTU);
            let options = if flow.has(flag::TIMESTAMPS) { 12 } else { 0 };
            let mss = (mtu - 40 - options).min(u32::from(u16::MAX)) as u16;
            if mss < flow.mss {
                flow.mss = mss;
                self.lose_all(index);
                self.metrics.icmp_errors += 1;
                self.flows.cold[index].timed_at = 0;
                self.touch(index);
            }
        } else if flow.state == State::SynSent {
            self.metrics.icmp_errors += 1;
            self.metrics.connections_failed += 1;
            let reason = if message.code == icmp::PORT_UNREACHABLE {
                CloseReason::Refused
            } else {
                CloseReason::Unreachable
            };
            self.finish(index, reason);
        }
        // On an established flow these are soft errors (RFC 1122 section 4.2.3.9): the retransmission decides.
    }

    pub(super) fn receive_datagram(&mut self, origin: &Origin, datagram: &udp::Datagram<'_>, packet: &[u8]) {
        let Some(port) = self.ports.iter_mut().find(|port| port.port == datagram.destination) else {
            self.refuse_datagram(origin, packet);
            return;
        };
        if port.received.len() >= UDP_RECEIVE_QUEUE {
            self.metrics.datagrams_dropped += 1;
            return;
        }
        self.metrics.datagrams_received += 1;
        port.ready = true;
        port.received.push_back(Datagram {
            remote: SocketAddr::new(origin.remote.into(), datagram.source),
            payload: datagram.payload.to_vec(),
        });
    }

    fn refuse_datagram(&mut self, origin: &Origin, packet: &[u8]) {
        if self.outgoing.len() >= UDP_SEND_QUEUE || !self.unreachable_bucket.take(self.now) {
            self.metrics.rate_limited += 1;
            return;
        }
        // The header and eight bytes are what RFC 792 asks for; 28 bytes are that for a packet without options.
        let quote = packet[..packet.len().min(ipv4::HEADER + 8)].to_vec();
        self.outgoing.push_back(Outgoing {
            remote: origin.remote,
            next_hop: NextHop::Link(origin.mac),
            body: Body::PortUnreachable { quote },
        });
    }
}
