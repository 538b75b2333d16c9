//! ARP requests and replies as they arrive.

use crate::context::Context;
use crate::ip::Ip;
use crate::ip::input::Input;
use crate::packet::{Address, arp};

impl Ip {
    pub(crate) fn receive_arp<'a>(&mut self, cx: &mut Context, payload: &[u8]) -> Input<'a> {
        let Some(packet) = arp::Packet::parse(payload) else {
            cx.metrics.malformed += 1;
            return Input::Done;
        };
        let (own, sender) = (cx.addresses.v4(), Address::v4(packet.sender));
        // A group address or our own as the sender is a forgery or a conflict.
        let plausible = packet.sender_mac[0] & 1 == 0 && packet.sender_mac != cx.mac && sender != own;
        if !plausible {
            cx.metrics.wrong_address += 1;
            let claims = sender == own && !own.is_unspecified() && packet.sender_mac != cx.mac;
            if claims && packet.sender_mac[0] & 1 == 0 {
                self.address_conflict(cx);
            }
            return Input::Done;
        }
        let for_us = packet.request && Address::v4(packet.target) == own && !own.is_unspecified();
        let usable = cx.addresses.on_link(&sender) && cx.addresses.may_be_source(&sender);
        let learned = usable && cx.neighbours.learn(sender, packet.sender_mac, for_us, cx.now);
        Input::Neighbour {
            resolved: learned.then_some((sender, packet.sender_mac)),
            answer: for_us.then_some(packet),
        }
    }

    /// Writes the reply to an ARP request into the frame that carried it.
    pub(crate) fn answer_arp(cx: &mut Context, bytes: &mut [u8], request: &arp::Packet) {
        let reply = arp::Packet {
            request: false,
            sender_mac: cx.mac,
            sender: cx.addresses.v4().low(),
            target_mac: request.sender_mac,
            target: request.sender,
        };
        reply.emit_frame(bytes, request.sender_mac);
        cx.metrics.arp_replies += 1;
    }
}
