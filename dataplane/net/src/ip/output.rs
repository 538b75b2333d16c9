//! Packets that belong to no flow, as they are sent: datagrams, ICMP messages, reports of groups,
//! and requests for link addresses.
//!
//! 1. Other layers queue in [`Context`] what they want to send. The next emission sends it.
//! 2. A datagram whose next hop has no known link address stays queued.
//! 3. If the device has no buffer, sending stops ([`Stalled`]), and the remainder stays queued for
//!    the next emission.

use sietch_nic::NicQueue;

use super::neighbours::{NeighbourRequest, Resolution};
use super::outgoing::{Body, NextHop, Outgoing};
use crate::context::{Context, Stalled};
use crate::limits::RECEIVE_BATCH;
use crate::packet::{
    Address, EcnCodepoint, arp, ethernet, group_report, icmp, icmpv6, ipv4, ipv6, network_header, udp,
};

impl Context {
    /// Sends the requests for link addresses.
    pub(crate) fn emit_neighbour_requests<Q: NicQueue>(&mut self, queue: &mut Q) -> Result<(), Stalled> {
        while let Some(request) = self.neighbour_requests.last().copied() {
            if request.address.is_v4() {
                self.emit_arp_request(queue, &request.address)?;
            } else {
                self.emit_solicitation(queue, &request)?;
            }
            self.neighbour_requests.pop();
        }
        Ok(())
    }

    fn emit_arp_request<Q: NicQueue>(&mut self, queue: &mut Q, target: &Address) -> Result<(), Stalled> {
        let mut frame = self.allocate(queue, ethernet::HEADER + arp::LENGTH)?;
        let request = arp::Packet {
            request: true,
            sender_mac: self.mac,
            sender: self.addresses.v4().low(),
            target_mac: [0; 6],
            target: target.low(),
        };
        request.emit_frame(queue.bytes_mut(&mut frame), ethernet::BROADCAST);
        self.queue_frame(queue, frame)?;
        self.metrics.arp_requests += 1;
        Ok(())
    }

    /// Sends a solicitation to all nodes that may have the address, or, to confirm an entry, to the
    /// node that had it last (RFC 4861 section 7.2.2 and 7.3.3).
    fn emit_solicitation<Q: NicQueue>(
        &mut self,
        queue: &mut Q,
        request: &NeighbourRequest,
    ) -> Result<(), Stalled> {
        let target = request.address;
        let Some(index) = self.addresses.source_for(&target) else { return Ok(()) };
        let (remote, mac) = match request.mac {
            Some(mac) => (target, mac),
            None => (target.solicited_node(), target.solicited_node().group_mac()),
        };
        let kind = icmpv6::NEIGHBOUR_SOLICITATION;
        let payload = icmpv6::neighbour_payload(kind, &target, self.mac);
        let body = Body::Icmp { kind, code: 0, rest: 0, hop_limit: icmpv6::LINK_HOP_LIMIT, payload };
        let local = self.addresses.get(index);
        self.emit_datagram(queue, mac, &Outgoing { local, remote, next_hop: NextHop::Link(mac), body })?;
        self.metrics.neighbour_solicitations += 1;
        Ok(())
    }

    /// Sends the datagrams whose next hop is known. Those that wait for one stay.
    pub(crate) fn emit_datagrams<Q: NicQueue>(&mut self, queue: &mut Q) -> Result<(), Stalled> {
        for _ in 0..self.outgoing.len() {
            let Some(outgoing) = self.outgoing.pop_front() else { break };
            let mac = match outgoing.next_hop {
                NextHop::Link(mac) => mac,
                NextHop::Address(hop) => match self.resolve(hop) {
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
                let packet = group_report::packet(&out.local, &out.remote, message);
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
    pub(crate) fn emit_payload<Q: NicQueue>(
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
        // A packet to a group goes one hop (RFC 1112 section 6.1).
        let hops = if addresses.1.is_multicast() { 1 } else { ipv6::HOP_LIMIT };
        self.write_headers(headers, mac, addresses, (ipv4::UDP, hops), length);
        if ecn != EcnCodepoint::NotEct {
            set_ecn(&mut headers[ethernet::HEADER..], ecn);
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
fn set_ecn(network: &mut [u8], ecn: EcnCodepoint) {
    if let Some(network) = network.first_chunk_mut::<{ ipv6::HEADER }>() {
        network[1] |= (ecn as u8) << 4;
    } else if let Some(network) = network.first_chunk_mut() {
        ipv4::set_ecn(network, ecn as u8);
    }
}
