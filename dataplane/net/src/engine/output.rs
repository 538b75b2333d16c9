//! Emission: everything that is due leaves, and the doorbell rings once.
//!
//! 1. Replies that belong to no flow, datagrams, questions for link addresses.
//! 2. Every marked flow in turn, at most [`crate::limits::QUANTUM`] bytes a turn; who is not done
//!    goes to the end.
//! 3. A flow whose next frame finds no buffer is *passed over*: frames of others may be smaller. It
//!    is tried once an emission, behind those that were not. When none of them has found a buffer
//!    for a while, the first comes before everything else.
//! 4. When the queue is full, whatever is left stays queued, and the result says so.

use std::io;

use sietch_nic::NicQueue;

use super::{Engine, PollResult, network_header};
use crate::flow::flag;
use crate::limits::{LOOK_FOR_ROOM, NEVER, PASSED_OVER, PASSED_OVER_TIME, RECEIVE_BATCH};
use crate::neighbour::{Question, Resolution};
use crate::packet::{Address, arp, ethernet, icmp, icmpv6, ipv4, ipv6, udp};
use crate::transmit::Stalled;
use crate::udp::{Body, EcnCodepoint, NextHop, Outgoing};

/// Turns through the marked flows in one emission: bounds the time between two receives.
const ROUNDS: usize = 4;

impl Engine {
    /// Sends what is due, and what the application queued since [`Engine::receive`], then rings the
    /// doorbell once.
    ///
    /// # Errors
    /// The device is gone.
    #[inline]
    pub fn emit<Q: NicQueue>(&mut self, queue: &mut Q, now: u64) -> io::Result<PollResult> {
        self.set_time(now);
        self.unchecked = queue.offloads().checksums;
        if self.handed_over.out > 0 {
            self.take_back();
        }
        let before = self.metrics.frames_sent;
        let full = self.emit_all(queue).is_err();
        queue.flush()?;
        let flush_again = queue.must_flush_again();
        let sent = (self.metrics.frames_sent - before) as usize;
        // Nothing says when a full queue has room. A peer that reads makes some at once. If nobody
        // does, what empties it may be a rate limit, and it is looked at again in a moment only.
        let nothing = full && sent == 0 && !flush_again;
        self.full_since = if nothing { self.full_since.min(self.now) } else { NEVER };
        self.stuck = nothing && self.now - self.full_since >= LOOK_FOR_ROOM;
        self.pending = full || flush_again;
        let more = self.pending || !self.dirty.is_empty() || !self.replies.is_empty();
        Ok(PollResult { received: 0, sent, more: more && !self.stuck })
    }

    #[inline]
    fn emit_all<Q: NicQueue>(&mut self, queue: &mut Q) -> Result<(), Stalled> {
        let mut unowned = Ok(());
        if self.pending || !self.replies.is_empty() || !self.outgoing.is_empty() {
            unowned = self.emit_unowned(queue);
            if unowned == Err(Stalled::NoRoom) {
                return unowned;
            }
        }
        let mut result = self.emit_the_patient(queue);
        for _ in 0..ROUNDS {
            if self.dirty.is_empty() || result.is_err() {
                break;
            }
            result = self.emit_flows(queue);
        }
        if self.passed_over.is_empty() {
            return result.and(unowned);
        }
        self.dirty.append(&mut self.passed_over);
        Err(Stalled::NoBuffer)
    }

    /// Sends for the flow that has been passed over for long enough, if there is one. Until it
    /// finds a buffer nothing else leaves.
    #[inline]
    fn emit_the_patient<Q: NicQueue>(&mut self, queue: &mut Q) -> Result<(), Stalled> {
        let Some((index, since)) = self.patient else { return Ok(()) };
        let at = self.dirty.iter().position(|&marked| marked == index);
        let Some(at) = at.filter(|_| self.now.saturating_sub(since) >= PASSED_OVER_TIME) else {
            self.patient = self.patient.filter(|_| at.is_some());
            return Ok(());
        };
        // It is in the list as long as it is marked.
        let more = self.transmit_flow(queue, index as usize)?;
        self.note_found_buffer(index as usize);
        if !more {
            self.dirty.remove(at);
            self.flows.hot[index as usize].flags &= !flag::DIRTY;
        }
        Ok(())
    }

    /// Sends what belongs to no flow.
    #[inline(never)]
    fn emit_unowned<Q: NicQueue>(&mut self, queue: &mut Q) -> Result<(), Stalled> {
        self.run_groups();
        self.emit_replies(queue)?;
        self.emit_datagrams(queue)?;
        // What datagrams wait for is asked at once.
        self.run_neighbours();
        self.emit_questions(queue)
    }

    fn emit_flows<Q: NicQueue>(&mut self, queue: &mut Q) -> Result<(), Stalled> {
        // What is marked while these are worked off goes behind them, and so does who has not done
        // but could send.
        let marked = self.dirty.len();
        let (mut done, mut result) = (0, Ok(()));
        while done < marked && result.is_ok() {
            let index = self.dirty[done] as usize;
            self.flows.hot[index].flags &= !flag::DIRTY;
            match self.transmit_flow(queue, index) {
                Ok(more) => {
                    if self.patient.is_some() {
                        self.note_found_buffer(index);
                    }
                    if more {
                        self.touch(index);
                    }
                }
                Err(Stalled::NoBuffer) if self.pass_over(queue, index) => {}
                Err(stalled) => {
                    result = Err(stalled);
                    // It is the first again when there is room: to wait for another round would be
                    // more than its share.
                    let flow = &mut self.flows.hot[index];
                    if !flow.has(flag::DIRTY) {
                        flow.flags |= flag::DIRTY;
                        break;
                    }
                }
            }
            done += 1;
        }
        if done == self.dirty.len() {
            self.dirty.clear();
        } else {
            self.dirty.drain(..done);
        }
        result
    }

    /// A flow has sent. If it was one of those passed over, there are buffers for them as well.
    #[cold]
    fn note_found_buffer(&mut self, index: usize) {
        let flow = &mut self.flows.hot[index];
        if flow.has(flag::PASSED_OVER) {
            flow.flags &= !flag::PASSED_OVER;
            self.patient = None;
        }
    }

    /// There was no buffer for the next frame of a flow. Notes that it goes on when there is one,
    /// and sends the acknowledgement that it owes. Says whether others may find buffers.
    #[cold]
    fn pass_over<Q: NicQueue>(&mut self, queue: &mut Q, index: usize) -> bool {
        let flow = &self.flows.hot[index];
        if self.passed_over.len() >= PASSED_OVER || flow.has(flag::DIRTY) {
            return false;
        }
        if flow.has(flag::ACK_NOW) && flow.owed == 0 && self.transmit_ack(queue, index).is_err() {
            return false;
        }
        if self.flows.cold[index].sent_at == self.now {
            // There was one for the frame before.
            self.note_found_buffer(index);
        }
        self.flows.hot[index].flags |= flag::DIRTY | flag::PASSED_OVER;
        self.passed_over.push(index as u32);
        self.patient.get_or_insert((index as u32, self.now));
        self.metrics.flows_deferred += 1;
        true
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
        if stalled { Err(Stalled::NoRoom) } else { Ok(()) }
    }

    /// Asks for link addresses.
    fn emit_questions<Q: NicQueue>(&mut self, queue: &mut Q) -> Result<(), Stalled> {
        while let Some(question) = self.questions.last().copied() {
            if question.address.is_v4() {
                self.emit_arp_request(queue, &question.address)?;
            } else {
                self.emit_solicitation(queue, &question)?;
            }
            self.questions.pop();
        }
        Ok(())
    }

    fn emit_arp_request<Q: NicQueue>(&mut self, queue: &mut Q, target: &Address) -> Result<(), Stalled> {
        let mut frame = self.allocate(queue, ethernet::HEADER + arp::LENGTH)?;
        let question = arp::Packet {
            request: true,
            sender_mac: self.mac,
            sender: self.addresses.v4().low(),
            target_mac: [0; 6],
            target: target.low(),
        };
        write_arp(queue.bytes_mut(&mut frame), ethernet::BROADCAST, &question);
        self.queue_frame(queue, frame)?;
        self.metrics.arp_requests += 1;
        Ok(())
    }

    /// Everybody who may have the address is asked, or, to see whether it still holds, who had it
    /// last (RFC 4861 section 7.2.2 and 7.3.3).
    fn emit_solicitation<Q: NicQueue>(&mut self, queue: &mut Q, question: &Question) -> Result<(), Stalled> {
        let target = question.address;
        let Some(place) = self.addresses.source_for(&target) else { return Ok(()) };
        let (remote, mac) = match question.mac {
            Some(mac) => (target, mac),
            None => (target.solicited_node(), target.solicited_node().group_mac()),
        };
        let kind = icmpv6::NEIGHBOUR_SOLICITATION;
        let payload = icmpv6::neighbour_payload(kind, &target, self.mac);
        let body = Body::Icmp { kind, code: 0, rest: 0, hop_limit: icmpv6::LINK_HOP_LIMIT, payload };
        let local = self.addresses.get(place);
        self.emit_datagram(queue, mac, &Outgoing { local, remote, next_hop: NextHop::Link(mac), body })?;
        self.metrics.neighbour_solicitations += 1;
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
            if let Body::Datagram { payload, .. } = outgoing.body
                && self.spare.len() < RECEIVE_BATCH
            {
                self.spare.push(payload);
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
        let addresses = (&out.local, &out.remote);
        match &out.body {
            Body::Datagram { source, destination, ecn, payload } => {
                self.emit_payload(queue, mac, addresses, (*source, *destination, *ecn), payload)
            }
            Body::Report { message } => {
                let packet = Self::report_packet(&out.local, &out.remote, message);
                let mut frame = self.allocate(queue, ethernet::HEADER + packet.len())?;
                let (headers, body) = queue.bytes_mut(&mut frame).split_at_mut(ethernet::HEADER);
                let ethertype = if out.remote.is_v4() { ethernet::IPV4 } else { ethernet::IPV6 };
                if let Some(link) = headers.first_chunk_mut() {
                    ethernet::Header { destination: mac, source: self.mac, ethertype }.emit(link);
                }
                body.copy_from_slice(&packet);
                self.queue_frame(queue, frame)
            }
            Body::Icmp { kind, code, rest, hop_limit, payload } => {
                let v4 = out.remote.is_v4();
                let protocol = if v4 { ipv4::ICMP } else { ipv6::ICMP };
                let end = ethernet::HEADER + network_header(&out.remote);
                let length = icmp::HEADER + payload.len();
                let mut frame = self.allocate(queue, end + length)?;
                let (headers, body) = queue.bytes_mut(&mut frame).split_at_mut(end);
                self.write_headers(headers, mac, addresses, (protocol, *hop_limit), length);
                body[icmp::HEADER..].copy_from_slice(payload);
                if v4 {
                    icmp::emit(body, *kind, *code, *rest);
                } else {
                    icmpv6::emit(body, addresses, *kind, *code, *rest);
                }
                self.queue_frame(queue, frame)
            }
        }
    }

    /// Sends a datagram to a link address.
    #[inline]
    pub(super) fn emit_payload<Q: NicQueue>(
        &mut self,
        queue: &mut Q,
        mac: [u8; 6],
        addresses: (&Address, &Address),
        (source, destination, ecn): (u16, u16, EcnCodepoint),
        payload: &[u8],
    ) -> Result<(), Stalled> {
        let end = ethernet::HEADER + network_header(addresses.1);
        let length = udp::HEADER + payload.len();
        let mut frame = self.allocate(queue, end + length)?;
        let (headers, body) = queue.bytes_mut(&mut frame).split_at_mut(end);
        // To a group one hop, unless somebody asks for more (RFC 1112 section 6.1).
        let hops = if addresses.1.is_multicast() { 1 } else { ipv6::HOP_LIMIT };
        self.write_headers(headers, mac, addresses, (ipv4::UDP, hops), length);
        if ecn != EcnCodepoint::NotEct {
            mark(&mut headers[ethernet::HEADER..], ecn);
        }
        udp::emit(body, addresses, (source, destination), payload, !self.unchecked);
        self.queue_frame(queue, frame)?;
        self.metrics.datagrams_sent += 1;
        Ok(())
    }

    /// Writes the headers before `length` bytes of a protocol with a hop limit, which IPv4 leaves
    /// at its default.
    #[inline]
    fn write_headers(
        &self,
        out: &mut [u8],
        mac: [u8; 6],
        (local, remote): (&Address, &Address),
        (protocol, hop_limit): (u8, u8),
        length: usize,
    ) {
        let Some((first, network)) = out.split_first_chunk_mut() else { return };
        let ethertype = if remote.is_v4() { ethernet::IPV4 } else { ethernet::IPV6 };
        ethernet::Header { destination: mac, source: self.mac, ethertype }.emit(first);
        if let Some(network) = network.first_chunk_mut::<{ ipv6::HEADER }>() {
            ipv6::emit(network, local, remote, protocol, hop_limit, length);
        } else if let Some(network) = network.first_chunk_mut() {
            ipv4::emit(network, local.low(), remote.low(), protocol, length);
            if hop_limit != ipv4::TTL {
                ipv4::set_ttl(network, hop_limit);
            }
        }
    }
}

/// Sets the ECN field of a network header that was just written.
fn mark(network: &mut [u8], ecn: EcnCodepoint) {
    if let Some(network) = network.first_chunk_mut::<{ ipv6::HEADER }>() {
        network[1] |= (ecn as u8) << 4;
    } else if let Some(network) = network.first_chunk_mut() {
        ipv4::set_ecn(network, ecn as u8);
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
