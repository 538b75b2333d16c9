//! From a frame to the protocol that takes it.

use sietch_nic::Untrusted;

use super::{Disposition, Engine};
use crate::ip::icmp::ErrorMessage;
use crate::ip::input::{Input, Upper};
use crate::packet::{Address, Checks, Payload, ethernet, ipv4, tcp, udp};

impl Engine {
    pub(super) fn dispatch(&mut self, head: &[u8], tail: Untrusted<'_>) -> Disposition {
        let cx = &mut self.cx;
        let Some((link, payload)) = ethernet::Header::parse(head) else {
            cx.metrics.malformed += 1;
            return Disposition::Release;
        };
        // A group address cannot be a source: answering it would flood the link.
        if link.source[0] & 1 != 0 {
            cx.metrics.wrong_address += 1;
            return Disposition::Release;
        }
        let for_us = link.destination == cx.mac;
        let packet = Payload { head: payload, tail };
        let input = match link.ethertype {
            ethernet::IPV4 if for_us => self.ip.receive_v4(cx, &link, packet),
            ethernet::IPV4 if link.destination[..3] == [1, 0, 0x5e] && self.ip.has_groups() => {
                self.ip.receive_group_v4(cx, &link, packet)
            }
            ethernet::IPV6 if for_us || link.destination[..2] == [0x33, 0x33] => {
                self.ip.receive_v6(cx, &link, packet)
            }
            ethernet::ARP if for_us || link.destination == ethernet::BROADCAST => {
                self.ip.receive_arp(cx, payload)
            }
            _ => {
                cx.metrics.frames_ignored += 1;
                Input::Done
            }
        };
        self.act(input)
    }

    /// Completes what IP has left to do for a packet.
    fn act(&mut self, input: Input<'_>) -> Disposition {
        match input {
            Input::Done => {}
            Input::Upper(upper) => self.deliver(&upper, self.cx.checks),
            Input::Reassembled { origin, destination, protocol, bytes, packet } => {
                let payload = Payload::from(&bytes);
                let upper = Upper { origin, destination, protocol, to_group: false, payload, packet };
                self.deliver(&upper, Checks::from(self.cx.unchecked));
            }
            Input::Error { error, quote, local } => match quote.protocol {
                ipv4::TCP => self.tcp.icmp_error(&mut self.cx, error, &quote, local),
                ipv4::UDP => self.udp.icmp_error(&mut self.cx, error, &quote),
                _ => {}
            },
            Input::Neighbour { resolved, answer } => {
                if let Some((hop, mac)) = resolved {
                    self.resolved(hop, mac);
                }
                return answer.map_or(Disposition::Release, Disposition::AnswerArp);
            }
            Input::Echo { length } => return Disposition::Echo { length },
        }
        Disposition::Release
    }

    /// Gives a payload to TCP or UDP.
    fn deliver(&mut self, upper: &Upper<'_>, checks: Checks) {
        let Upper { origin, destination, protocol, to_group, payload, packet } = upper;
        match *protocol {
            ipv4::TCP => match tcp::Segment::parse(*payload, &origin.remote, destination, checks) {
                Ok(segment) => self.tcp.receive(&mut self.cx, origin, &segment),
                Err(reason) => self.cx.count_malformed(reason),
            },
            ipv4::UDP => match udp::Datagram::parse(*payload, &origin.remote, destination, checks) {
                Ok(datagram) => {
                    let taken = self.udp.receive(&mut self.cx, origin, &datagram);
                    if !taken && !to_group {
                        let error = ErrorMessage::port_unreachable(&origin.remote);
                        self.ip.send_error(&mut self.cx, origin, error, *packet);
                    }
                }
                Err(reason) => self.cx.count_malformed(reason),
            },
            _ => self.cx.metrics.frames_ignored += 1,
        }
    }

    /// A next hop became known: flows and packets that waited for it may leave.
    fn resolved(&mut self, hop: Address, mac: [u8; 6]) {
        self.cx.pending |= !self.cx.outgoing.is_empty();
        self.tcp.resolved(&self.cx, hop, mac);
    }
}
