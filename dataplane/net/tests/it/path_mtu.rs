//! Paths with a smaller MTU than the link: with ICMP errors, without them, and with forged ones.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::harness::{Fate, From, Network, SECOND, SERVER_PORT, address6};
use sietch_net::packet::{ethernet, ipv4};
use sietch_net::{CloseReason, DatagramError, EventKind, FlowId};
use sietch_sim::segment::{ACK, Macs, Segment, icmp_error};

const ROUTER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 99];

fn server(six: bool) -> SocketAddr {
    let address = if six { IpAddr::from(address6(2)) } else { Ipv4Addr::new(10, 0, 0, 2).into() };
    SocketAddr::new(address, SERVER_PORT)
}

fn router(six: bool) -> IpAddr {
    if six {
        Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into()
    } else {
        Ipv4Addr::new(192, 0, 2, 1).into()
    }
}

/// Sends `length` bytes and returns how many arrived in `seconds`.
fn push(network: &mut Network, client: FlowId, server: FlowId, length: usize, seconds: u64) -> usize {
    let end = network.now + seconds * SECOND;
    let (bytes, mut sent, mut got) = (vec![7; length], 0, 0);
    while got < length && network.now < end {
        sent += network.client.engine.send(client, &bytes[sent..]);
        if !network.advance() {
            break;
        }
        got += network.server.read_all(server).len();
    }
    got
}

fn size(network: &Network, flow: FlowId) -> u16 {
    network.client.engine.flow_info(flow).expect("it is there").segment_size
}

#[test]
fn a_black_hole_is_found_and_remembered() {
    for (six, hole, narrow) in [(false, 1400, 1280), (false, 600, 552), (true, 1400, 1280)] {
        let mut network = Network::dual();
        network.fate = Box::new(
            move |_, _, frame| {
                if frame.len() > ethernet::HEADER + hole { Fate::Drop } else { Fate::Pass }
            },
        );
        let (client, at_server) = network.open_to(server(six));
        let headers = if six { 72 } else { 52 };
        assert_eq!(size(&network, client), 1500 - headers);
        assert_eq!(push(&mut network, client, at_server, 200_000, 200), 200_000);
        assert_eq!(size(&network, client), narrow - headers);
        assert!(network.client.engine.metrics().black_holes >= 2);
        // The next connection uses the stored MTU; ten minutes later the full size is tried again.
        let (second, _) = network.open_to(server(six));
        assert_eq!(size(&network, second), narrow - headers);
        network.run_until(network.now + 601 * SECOND);
        let (third, _) = network.open_to(server(six));
        assert_eq!(size(&network, third), 1500 - headers);
    }
}

#[test]
fn a_peer_that_stands_still_is_no_black_hole() {
    let mut network = Network::dual();
    let (client, at_server) = network.open_to(server(false));
    assert_eq!(push(&mut network, client, at_server, 100_000, 10), 100_000);
    let until = network.now + 5 * SECOND;
    let clock = std::rc::Rc::new(std::cell::Cell::new(true));
    let silent = clock.clone();
    network.fate = Box::new(move |_, _, _| if silent.get() { Fate::Drop } else { Fate::Pass });
    network.client.engine.send(client, &[1; 20_000]);
    network.run_until(until);
    assert!(network.client.engine.metrics().black_holes > 0);
    clock.set(false);
    network.run_until(until + 20 * SECOND);
    assert_eq!(network.server.read_all(at_server).len(), 20_000);
    assert_eq!(size(&network, client), 1448);
}

/// The first full segment that the client sends now, which does not arrive.
fn full_segment(network: &mut Network, client: FlowId) -> Vec<u8> {
    let seen = std::rc::Rc::new(std::cell::RefCell::new(Vec::new()));
    let frames = seen.clone();
    network.fate = Box::new(move |_, from, frame| {
        if from == From::Client && frames.borrow().is_empty() && frame.len() > 1200 {
            frames.borrow_mut().extend_from_slice(frame);
            return Fate::Drop;
        }
        Fate::Pass
    });
    network.client.engine.send(client, &[9; 3000]);
    network.run();
    network.fate = Box::new(|_, _, _| Fate::Pass);
    seen.borrow().clone()
}

#[test]
fn too_big_is_believed_as_far_as_it_can_be_true() {
    // (family, MTU in the error, MTU that is used from then on)
    for (six, stated, used) in [
        (false, 1400, 1400),
        (false, 68, 552),
        (false, 0, 1492),
        (false, 1500, 1500),
        (true, 1400, 1400),
        (true, 1279, 1500),
        (true, 68, 1500),
        (true, 9000, 1500),
    ] {
        let mut network = Network::dual();
        let (client, at_server) = network.open_to(server(six));
        let cause = full_segment(&mut network, client);
        let macs = Macs { from: ROUTER_MAC, to: network.client.mac };
        let (kind, code) = if six { (2, 0) } else { (3, 4) };
        let error = icmp_error(macs, router(six), kind, code, stated, &cause).expect("legal");
        // An error that quotes a number that is not in flight changes nothing.
        let mut stale = cause.clone();
        let at = if six { 58 } else { 38 };
        stale[at] ^= 0x40;
        let forged = icmp_error(macs, router(six), kind, code, stated, &stale).expect("legal");
        network.client.tap.deliver(&forged);
        network.client.poll(network.now);
        let headers = if six { 72 } else { 52 };
        assert_eq!(size(&network, client), 1500 - headers);
        network.client.tap.deliver(&error);
        network.client.poll(network.now);
        assert_eq!(size(&network, client), used - headers, "{six} {stated}");
        assert!(push(&mut network, client, at_server, 30_000, 20) >= 30_000);
        let (second, _) = network.open_to(server(six));
        assert_eq!(size(&network, second), used - headers);
    }
}

#[test]
fn datagrams_use_the_path_mtu() {
    let mut network = Network::dual();
    network.client.engine.udp_bind(53).expect("free");
    let to = SocketAddr::from((address6(2), 99));
    network.client.engine.udp_connect(53, Some(to)).expect("it is on the link");
    network.client.engine.udp_send(53, to, &[1; 1400]).expect("there is room");
    network.run();
    assert_eq!(network.client.engine.udp_take_error(53), Some(CloseReason::Refused));
    assert_eq!(network.client.engine.udp_take_error(53), None);
    assert!(network.client.events.iter().any(|event| event.kind == EventKind::Datagram { port: 53 }));
    // A router on the way has less room.
    let mut cause = Segment::bare(SocketAddr::from((address6(1), 53)), to, ACK, 0, 0);
    let body = [1; 1400];
    cause.payload = &body;
    let mut cause = cause.encode(Macs { from: network.client.mac, to: ROUTER_MAC });
    cause[20] = ipv4::UDP;
    let macs = Macs { from: ROUTER_MAC, to: network.client.mac };
    let error = icmp_error(macs, router(true), 2, 0, 1300, &cause).expect("legal");
    network.client.tap.deliver(&error);
    network.client.poll(network.now);
    let refused = network.client.engine.udp_send(53, to, &[1; 1400]);
    assert_eq!(refused, Err(DatagramError::TooLong { limit: 1300 - 48 }));
}

#[test]
fn a_connected_port_takes_its_peers_datagrams_only_and_peeking_copies_nothing() {
    let mut network = Network::dual();
    for port in [5, 6] {
        network.client.engine.udp_bind(port).expect("free");
    }
    network.server.engine.udp_bind(7).expect("free");
    let to = SocketAddr::from(([10, 0, 0, 2], 7));
    let from = |port| SocketAddr::from(([10, 0, 0, 1], port));
    network.server.engine.udp_connect(7, Some(from(5))).expect("it is on the link");
    for (port, bytes) in [(6, &b"other"[..]), (5, b"one"), (5, b""), (5, b"three")] {
        let client = &mut network.client;
        client.engine.udp_transmit(&mut client.queue, port, to, bytes).expect("there is room");
        network.run();
    }
    for bytes in [&b"one"[..], b"", b"three"] {
        assert_eq!(network.server.engine.udp_peek(7), Some((from(5), bytes)));
        network.server.engine.udp_pop(7);
    }
    assert_eq!(network.server.engine.udp_peek(7), None);
    assert_eq!(network.server.engine.metrics().icmp_errors_sent, 1);
    network.server.engine.udp_connect(7, None).expect("it is bound");
    network.client.engine.udp_send(6, to, b"other").expect("there is room");
    network.run();
    assert_eq!(network.server.engine.udp_receive(7).expect("any peer may send").payload, b"other");
}
