//! Untrusted bytes: no frame, however mangled, causes a panic, a leaked buffer, or a wrong answer.

use std::cell::RefCell;
use std::rc::Rc;

use crate::harness::peer::Peer;
use crate::harness::{Fate, From, Network, SECOND};
use proptest::prelude::*;
use sietch_net::packet::{Address, checksum, ethernet, icmp, ipv4};
use sietch_nic::NicQueue;

/// The frames that a client sends in a conversation with data both ways.
fn conversation() -> Vec<Vec<u8>> {
    let mut network = Network::new();
    let seen = Rc::new(RefCell::new(Vec::new()));
    let frames = Rc::clone(&seen);
    network.fate = Box::new(move |_, from, frame| {
        if from == From::Client {
            frames.borrow_mut().push(frame.to_vec());
        }
        Fate::Pass
    });
    let (client, server) = network.open();
    network.client.engine.send(client, &[1; 5000]);
    network.run();
    network.server.engine.send(server, &[2; 5000]);
    network.run();
    network.client.engine.shutdown_send(client);
    network.run_until(network.now + SECOND);
    seen.borrow().clone()
}

/// Fixes the checksums, so that the parsers read the mangled fields.
fn fix_checksums(frame: &mut [u8]) {
    if frame.len() < 54 || frame[12..14] != [8, 0] || frame[14] != 0x45 {
        return;
    }
    let total = usize::from(u16::from_be_bytes([frame[16], frame[17]])).clamp(40, frame.len() - 14);
    frame[24..26].fill(0);
    let check = checksum::finish(checksum::sum(&frame[14..34]));
    frame[24..26].copy_from_slice(&check);
    if frame[23] == ipv4::TCP {
        let address = |at: usize| {
            Address::v4(u32::from_be_bytes([frame[at], frame[at + 1], frame[at + 2], frame[at + 3]]))
        };
        let length = (total - 20) as u32;
        let pseudo = checksum::pseudo_header(&address(26), &address(30), ipv4::TCP, length);
        frame[50..52].fill(0);
        let check = checksum::finish(pseudo + checksum::sum(&frame[34..14 + total]));
        frame[50..52].copy_from_slice(&check);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn mangled_frames_do_no_harm(
        edits in proptest::collection::vec((0usize..8, 0usize..120, any::<u8>(), any::<bool>(), 0usize..5), 1..40),
    ) {
        thread_local!(static FRAMES: Vec<Vec<u8>> = conversation());
        let mut peer = Peer::connected(|config| config.half_open = 4);
        peer.host.engine.send(peer.flow, &[3; 20_000]);
        let before = 512;
        FRAMES.with(|frames| {
            for (which, at, value, fixed, cut) in edits {
                let mut frame = frames[which % frames.len()].clone();
                let at = at % frame.len();
                frame[at] = value;
                if cut == 0 {
                    frame.truncate(at);
                }
                if fixed {
                    fix_checksums(&mut frame);
                }
                peer.host.tap.deliver(&frame);
                peer.poll();
                peer.now += SECOND / 7;
                peer.poll();
                let flow = peer.flow;
                let _ = peer.host.read_all(flow);
                while peer.host.tap.take_transmitted().is_some() {}
            }
        });
        peer.until(peer.now + 1000 * SECOND);
        prop_assert_eq!(peer.host.queue.free_buffers(), before);
        let (_, half_open, _, _) = peer.host.engine.population();
        prop_assert_eq!(half_open, 0);
    }

    #[test]
    fn random_frames_do_no_harm(frames in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..1514), 1..20)) {
        let mut peer = Peer::new(|_| {});
        for mut frame in frames {
            let start = frame.len().min(6);
            frame[..start].copy_from_slice(&peer.host.mac[..start]);
            peer.host.tap.deliver(&frame);
            peer.poll();
            prop_assert!(peer.host.tap.take_transmitted().is_none());
        }
        prop_assert_eq!(peer.host.queue.free_buffers(), 512);
    }
}

fn ping(destination_mac: [u8; 6], destination: u32, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![0; 42 + payload.len()];
    let header = ethernet::Header {
        destination: destination_mac,
        source: [2, 0, 0, 0, 0, 1],
        ethertype: ethernet::IPV4,
    };
    header.emit(frame.first_chunk_mut().expect("it is long enough"));
    ipv4::emit(
        frame[14..].first_chunk_mut().expect("it is long enough"),
        0x0a00_0001,
        destination,
        ipv4::ICMP,
        8 + payload.len(),
    );
    frame[42..].copy_from_slice(payload);
    icmp::emit(&mut frame[34..], icmp::ECHO_REQUEST, 0, 0x1234_0001);
    frame
}

#[test]
fn echo_is_answered_for_our_own_address_only() {
    let mut peer = Peer::new(|_| {});
    let payload: Vec<u8> = (0..101).collect();
    peer.host.tap.deliver(&ping(peer.host.mac, 0x0a00_0002, &payload));
    peer.poll();
    let answer = peer.host.tap.take_transmitted().expect("it is answered");
    let (link, packet) = ethernet::Header::parse(&answer).expect("legal");
    assert_eq!(link.destination, [2, 0, 0, 0, 0, 1]);
    let (header, body) = ipv4::Header::parse(packet).expect("legal");
    assert_eq!((header.source, header.destination), (0x0a00_0002, 0x0a00_0001));
    let message = icmp::Message::parse(body).expect("legal");
    assert_eq!(
        (message.kind, message.rest, message.payload.to_vec()),
        (icmp::ECHO_REPLY, 0x1234_0001, payload)
    );
    for (mac, address) in [
        ([0xff; 6], 0x0a00_0002),
        (peer.host.mac, 0x0a00_0003),
        (peer.host.mac, 0x0a00_00ff),
        ([2; 6], 0x0a00_0002),
    ] {
        peer.host.tap.deliver(&ping(mac, address, b"x"));
        peer.poll();
        assert!(peer.host.tap.take_transmitted().is_none());
    }
}
