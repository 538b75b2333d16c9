//! Emission: everything that is due leaves, and the doorbell rings once.
//!
//! 1. ARP requests, replies that belong to no flow, datagrams.
//! 2. Every marked flow in turn, at most [`crate::limits::BURST`] segments a turn; who is not done goes to the end.
//! 3. When the queue is full, whatever is left stays queued, and the result says so.

use std::io;

use sietch_nic::NicQueue;

use super::{Engine, PollResult};
use crate::flow::flag;
use crate::neighbour::Resolution;
use crate::packet::{arp, ethernet, icmp, ipv4, udp};
use crate::transmit::Stalled;
use crate::udp::{Body, NextHop, Outgoing};

/// Turns through the marked flows in one emission: bounds the time between two receives.
const ROUNDS: usize = 4;

impl Engine {
    /// Sends what is due, and what the application queued since [`Engine::receive`], then rings the doorbell once.
    ///
    /// # Errors
    /// The device is gone.
    pub fn emit<Q: NicQueue>(&mut self, queue: &mut Q, now: u64) -> io::Result<PollResult> {
        self.set_time(now);
        self.unchecked = queue.offloads().checksums;
        if self.handed_over.out > 0 {
            self.take_back();
        }
        let before = self.metrics.frames_sent;
        let stalled = self.emit_all(queue).is_err();
        queue.flush()?;
        let stalled = stalled || queue.must_flush_again();
        self.pending = stalled;
        let sent = (self.metrics.frames_sent - before) as usize;
        Ok(PollResult {
            received: 0,
            sent,
            more: stalled || !self.dirty.is_empty() || !self.replies.is_empty(),
        })
    }

    fn emit_all<Q: NicQueue>(&mut self, queue: &mut Q) -> Result<(), Stalled> {
        if self.pending || !self.replies.is_empty() || !self.outgoing.is_empty() {
            self.emit_arp(queue)?;
            self.emit_replies(queue)?;
            self.emit_datagrams(queue)?;
        }
        for _ in 0..ROUNDS {
            if self.dirty.is_empty() {
                break;
            }
            self.emit_flows(queue)?;
        }
        Ok(())
    }

    fn emit_flows<Q: NicQueue>(&mut self, queue: &mut Q) -> Result<(), Stalled> {
        // What is marked while this list is worked off goes to the other one.
        let mut turn = std::mem::replace(&mut self.dirty, std::mem::take(&mut self.turn));
        let mut result = Ok(());
        let mut done = 0;
        for &index in &turn {
            let index = index as usize;
            self.flows.hot[index].flags &= !flag::DIRTY;
            match self.transmit_flow(queue, index) {
                Ok(false) => {}
                Ok(true) => self.touch(index),
                Err(stalled) => {
                    self.touch(index);
                    result = Err(stalled);
                }
            }
            done += 1;
            if result.is_err() {
                break;
            }
        }
        // The rest are marked still: only the list must have them.
        self.dirty.extend_from_slice(&turn[done..]);
        turn.clear();
        self.turn = turn;
        result
    }

    fn emit_replies<Q: NicQueue>(&mut self, queue: &mut Q) -> Result<(), Stalled> {
        if self.replies.is_empty() {
            return Ok(());
        }
        let mut replies = std::mem::take(&mut self.replies);
        let sent = replies.iter().take_while(|reply| self.transmit_reply(queue, reply).is_ok()).count();
        let stalled = sent < replies.len();
        replies.drain(..sent);
        self.replies = replies;
        if stalled { Err(Stalled) } else { Ok(()) }
    }

    fn emit_arp<Q: NicQueue>(&mut self, queue: &mut Q) -> Result<(), Stalled> {
        while let Some(&target) = self.arp_due.last() {
            let mut frame = self.allocate(queue, ethernet::HEADER + arp::LENGTH)?;
            let bytes = queue.bytes_mut(&mut frame);
            let question = arp::Packet {
                request: true,
                sender_mac: self.mac,
                sender: self.addresses.v4().low(),
                target_mac: [0; 6],
                target: target.low(),
            };
            write_arp(bytes, ethernet::BROADCAST, &question);
            self.queue_frame(queue, frame)?;
            self.metrics.arp_requests += 1;
            self.arp_due.pop();
        }
        Ok(())
    }

    /// Sends the datagrams whose next hop is known. Those that wait for one stay.
    fn emit_datagrams<Q: NicQueue>(&mut self, queue: &mut Q) -> Result<(), Stalled> {
        for _ in 0..self.outgoing.len() {
            let Some(outgoing) = self.outgoing.pop_front() else { break };
            let mac = match outgoing.next_hop {
                NextHop::Link(mac) => mac,
                NextHop::Address(hop) => match self.neighbours.resolve(hop, self.now) {
                    Resolution::Known(mac) => mac,
                    Resolution::Pending => {
                        self.outgoing.push_back(outgoing);
                        continue;
                    }
                },
            };
            if let Err(stalled) = self.emit_datagram(queue, mac, &outgoing) {
                self.outgoing.push_front(outgoing);
                return Err(stalled);
            }
        }
        Ok(())
    }

    fn emit_datagram<Q: NicQueue>(
        &mut self,
        queue: &mut Q,
        mac: [u8; 6],
        out: &Outgoing,
    ) -> Result<(), Stalled> {
        let (protocol, length) = match &out.body {
            Body::Datagram { payload, .. } => (ipv4::UDP, udp::HEADER + payload.len()),
            Body::PortUnreachable { quote } => (ipv4::ICMP, icmp::HEADER + quote.len()),
        };
        let mut frame = self.allocate(queue, ethernet::HEADER + ipv4::HEADER + length)?;
        let bytes = queue.bytes_mut(&mut frame);
        let header = ethernet::Header { destination: mac, source: self.mac, ethertype: ethernet::IPV4 };
        if let Some((link, rest)) = bytes.split_first_chunk_mut()
            && let Some((network, body)) = rest.split_first_chunk_mut()
        {
            header.emit(link);
            let local = self.addresses.v4();
            ipv4::emit(network, local.low(), out.remote.low(), protocol, length);
            match &out.body {
                Body::Datagram { source, destination, payload } => {
                    let (addresses, ports) = ((&local, &out.remote), (*source, *destination));
                    udp::emit(body, addresses, ports, payload, !self.unchecked);
                }
                Body::PortUnreachable { quote } => {
                    body[icmp::HEADER..].copy_from_slice(quote);
                    icmp::emit(body, icmp::UNREACHABLE, icmp::PORT_UNREACHABLE, 0);
                }
            }
        }
        self.queue_frame(queue, frame)?;
        self.metrics.datagrams_sent += u64::from(protocol == ipv4::UDP);
        Ok(())
    }
}

/// Writes an ARP packet with its Ethernet header.
pub(super) fn write_arp(bytes: &mut [u8], destination: [u8; 6], packet: &arp::Packet) {
    let header = ethernet::Header { destination, source: packet.sender_mac, ethertype: ethernet::ARP };
    if let Some((link, rest)) = bytes.split_first_chunk_mut()
        && let Some(body) = rest.first_chunk_mut()
    {
        header.emit(link);
        packet.emit(body);
    }
}
