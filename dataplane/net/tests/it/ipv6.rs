//! IPv6 between two engines, and against attackers on the link.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use crate::harness::{Fate, Host, MILLISECOND, Network, SECOND, SERVER_PORT, address6, speak_ipv6};
use proptest::prelude::*;
use sietch_net::packet::{Address, Payload, checksum, ethernet, icmpv6, ipv6};
use sietch_net::{CloseReason, ConnectError, EventKind};
use sietch_sim::segment::{ACK, Macs, SYN, Segment, neighbour_answer, packet};

const PEER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
const THIEF_MAC: [u8; 6] = [2, 0, 0, 0, 0, 66];
const ICMP: u8 = 58;
const DESTINATION_OPTIONS: u8 = 60;

fn server() -> SocketAddr {
    SocketAddr::from((address6(2), SERVER_PORT))
}

fn macs(host: &Host) -> Macs {
    Macs { from: PEER_MAC, to: host.mac }
}

fn host() -> Host {
    let mut host = Host::new(2, speak_ipv6);
    host.engine.listen(SERVER_PORT, 16).expect("the port is free");
    host
}

/// A packet of ICMPv6 with a right checksum.
fn icmp(macs: Macs, from: Ipv6Addr, to: Ipv6Addr, body: &[u8]) -> Vec<u8> {
    let mut body = body.to_vec();
    let pseudo = checksum::pseudo_header(&from.into(), &to.into(), ICMP, body.len() as u32);
    let check = checksum::finish(pseudo + checksum::sum(&body));
    body[2..4].copy_from_slice(&check);
    packet(macs, from.into(), to.into(), ICMP, 0, &body)
}

/// A message of neighbour discovery.
fn neighbour(
    macs: Macs,
    from: Ipv6Addr,
    to: Ipv6Addr,
    kind: u8,
    flags: u8,
    target: Ipv6Addr,
    options: &[u8],
) -> Vec<u8> {
    let body = [&[kind, 0, 0, 0, flags, 0, 0, 0][..], &target.octets(), options].concat();
    let mut frame = icmp(macs, from, to, &body);
    frame[21] = 255;
    frame
}

type Answer = (u8, u32, Address, Address, [u8; 6], Vec<u8>);
/// Extension headers: the number of each, and its bytes behind "next header".
type Chain = Vec<(u8, Vec<u8>)>;

/// What the host sends next, if it is ICMPv6: type, flags, source, destination, link destination,
/// and what follows the header.
fn answer(host: &Host) -> Option<Answer> {
    let frame = host.tap.take_transmitted()?;
    let (link, bytes) = ethernet::Header::parse(&frame)?;
    let (header, body) = ipv6::Header::parse(bytes).expect("what we send is legal");
    let upper = ipv6::walk(header.next_header, body).expect("what we send is legal");
    let message = icmpv6::parse(upper.payload, &header.source, &header.destination).ok()?;
    Some((
        message.kind,
        message.rest,
        header.source,
        header.destination,
        link.destination,
        message.payload.to_vec(),
    ))
}

fn silent(host: &Host) {
    let sent = host.tap.take_transmitted();
    assert!(sent.is_none(), "{sent:?}");
}

#[test]
fn a_stream_crosses_a_link_that_loses_a_tenth() {
    let mut network = Network::dual();
    let (client, from) = network.open_to(server());
    network.fate = Box::new(|number, _, _| if number % 10 == 3 { Fate::Drop } else { Fate::Pass });
    let bytes: Vec<u8> = (0..300_000_u32).map(|at| (at * 7 + at / 255) as u8).collect();
    let (mut sent, mut got) = (0, Vec::new());
    while got.len() < bytes.len() {
        sent += network.client.engine.send(client, &bytes[sent..]);
        assert!(network.advance(), "nothing is going on after {} bytes", got.len());
        got.extend(network.server.read_all(from));
    }
    assert_eq!(got, bytes);
    let info = network.client.engine.flow_info(client).expect("it is there");
    assert_eq!(info.local.ip(), IpAddr::from(address6(1)));
    assert_eq!(info.segment_size, 1500 - 40 - 20 - 12);
    network.fate = Box::new(|_, _, _| Fate::Pass);
    network.client.engine.shutdown_send(client);
    network.server.engine.shutdown_send(from);
    network.settle();
    assert!(network.client.saw(client, EventKind::Closed(CloseReason::Normal)));
}

#[test]
fn link_local_addresses_carry_data_as_well() {
    let mut network = Network::dual();
    let to = Address::link_local(network.server.mac).to_ip();
    let (client, at_server) = network.open_to(SocketAddr::new(to, SERVER_PORT));
    network.client.engine.send(client, b"hello");
    network.run();
    assert_eq!(network.server.read_all(at_server), b"hello");
    let info = network.server.engine.flow_info(at_server).expect("it is there");
    assert_eq!(info.remote.ip(), Address::link_local(network.client.mac).to_ip());
}

#[test]
fn an_engine_does_not_connect_to_itself() {
    let mut network = Network::dual();
    let own = [
        SocketAddr::from((address6(1), SERVER_PORT)),
        SocketAddr::new(Address::link_local(network.client.mac).to_ip(), SERVER_PORT),
        SocketAddr::from(([10, 0, 0, 1], SERVER_PORT)),
    ];
    for address in own {
        let refused = network.client.engine.connect(address, network.now);
        assert_eq!(refused, Err(ConnectError::Ourselves(address)));
    }
    assert_eq!(network.client.engine.population().0, 0);
}

#[test]
fn without_an_address_there_is_no_route() {
    let mut network = Network::new();
    let refused = network.client.engine.connect(server(), network.now);
    assert_eq!(refused, Err(ConnectError::NoRoute(server().ip())));
    // Off the link and without a router.
    let mut network = Network::dual();
    let far = SocketAddr::from((Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1), 80));
    assert_eq!(network.client.engine.connect(far, network.now), Err(ConnectError::NoRoute(far.ip())));
    // No such host.
    let near = SocketAddr::from((address6(77), 80));
    let flow = network.client.engine.connect(near, network.now).expect("it is on the link");
    network.run_until(network.now + 10 * SECOND);
    assert!(network.client.saw(flow, EventKind::Closed(CloseReason::Unreachable)));
    assert_eq!(network.client.engine.metrics().neighbour_solicitations, 3);
}

#[test]
fn datagrams_travel_with_their_checksum() {
    let mut network = Network::dual();
    network.client.engine.udp_bind(53).expect("free");
    network.server.engine.udp_bind(53).expect("free");
    let to = SocketAddr::from((address6(2), 53));
    network.client.engine.udp_send(53, to, b"query").expect("there is room");
    network.run();
    let datagram = network.server.engine.udp_receive(53).expect("it arrived");
    assert_eq!(
        (datagram.payload.as_slice(), datagram.remote),
        (&b"query"[..], SocketAddr::from((address6(1), 53)))
    );
    network.server.engine.udp_send(53, datagram.remote, b"reply").expect("there is room");
    network.run();
    assert_eq!(network.client.engine.udp_receive(53).expect("it arrived").payload, b"reply");
    // A port that is not bound.
    network.client.engine.udp_send(53, SocketAddr::from((address6(2), 54)), b"?").expect("there is room");
    network.run();
    assert_eq!(network.server.engine.metrics().icmp_errors_sent, 1);
    // One that says it has no checksum, as IPv4 allows.
    let mut frame = packet(
        macs(&network.server),
        address6(1).into(),
        address6(2).into(),
        17,
        0,
        &[0, 53, 0, 53, 0, 9, 0, 0, 1],
    );
    frame[60..62].fill(0);
    network.server.tap.deliver(&frame);
    network.run();
    assert!(network.server.engine.udp_receive(53).is_none());
}

#[test]
fn an_echo_request_is_answered() {
    let mut host = host();
    let body = [&[128, 0, 0, 0, 0x12, 0x34, 0, 1][..], b"some bytes"].concat();
    host.tap.deliver(&icmp(macs(&host), address6(1), address6(2), &body));
    host.poll(SECOND);
    let (kind, rest, source, destination, mac, payload) = answer(&host).expect("it is answered");
    assert_eq!((kind, rest, mac), (icmpv6::ECHO_REPLY, 0x1234_0001, PEER_MAC));
    assert_eq!((source, destination), (address6(2).into(), address6(1).into()));
    assert_eq!(payload, b"some bytes");
    host.tap.deliver(&icmp(macs(&host), address6(1), address6(3), &body));
    host.poll(SECOND);
    silent(&host);
}

#[test]
fn solicitations_and_probes_for_our_address_are_answered() {
    let mut host = host();
    let group = Address::from(address6(2)).solicited_node();
    let IpAddr::V6(group_address) = group.to_ip() else { unreachable!() };
    let to_group = Macs { from: PEER_MAC, to: group.group_mac() };
    let own = address6(2);
    let option = [&[1, 1][..], &PEER_MAC].concat();
    host.tap.deliver(&neighbour(to_group, address6(1), group_address, 135, 0, own, &option));
    host.poll(SECOND);
    let (kind, flags, source, destination, mac, payload) = answer(&host).expect("it is answered");
    assert_eq!((kind, flags >> 29, mac), (136, 3, PEER_MAC));
    assert_eq!((source, destination), (own.into(), address6(1).into()));
    assert_eq!(payload, [&own.octets()[..], &[2, 1], &host.mac].concat());
    // Duplicate address detection: the answer goes to all, and does not count as solicited.
    host.tap.deliver(&neighbour(to_group, Ipv6Addr::UNSPECIFIED, group_address, 135, 0, own, &[]));
    host.poll(SECOND);
    let (kind, flags, _, destination, mac, _) = answer(&host).expect("it is answered");
    assert_eq!((kind, flags >> 29, destination), (136, 1, Address::ALL_NODES));
    assert_eq!(mac, Address::ALL_NODES.group_mac());
    // What RFC 4861 section 7.1.1 says to discard.
    let unspecified = Ipv6Addr::UNSPECIFIED;
    let mut far = neighbour(to_group, address6(1), group_address, 135, 0, own, &option);
    far[21] = 254;
    for wrong in [
        far,
        neighbour(to_group, unspecified, group_address, 135, 0, own, &option),
        neighbour(macs(&host), unspecified, own, 135, 0, own, &[]),
        neighbour(to_group, address6(1), group_address, 135, 0, own, &[1, 0, 0, 0, 0, 0, 0, 0]),
        neighbour(to_group, address6(1), group_address, 135, 0, own, &[1, 2, 0, 0, 0, 0, 0, 0]),
        neighbour(to_group, address6(1), group_address, 135, 0, group_address, &option),
        neighbour(
            to_group,
            address6(1),
            group_address,
            135,
            0,
            own,
            &[&[1, 1][..], &group.group_mac()].concat(),
        ),
        neighbour(to_group, address6(1), group_address, 135, 0, address6(3), &option),
    ] {
        host.tap.deliver(&wrong);
        host.poll(SECOND);
        silent(&host);
    }
}

#[test]
fn a_neighbours_address_is_not_stolen_for_long() {
    let mut host = host();
    let peer = address6(1);
    let flow = host.engine.connect(SocketAddr::from((peer, 80)), SECOND).expect("it is on the link");
    // Before a request, no claim makes an entry; after one, the owner's answer counts.
    host.poll(SECOND);
    let solicitation = host.tap.take_transmitted().expect("a neighbour solicitation");
    assert!(host.tap.take_transmitted().is_none());
    let reply = neighbour_answer(&solicitation, peer.into(), PEER_MAC).expect("it answers the solicitation");
    host.tap.deliver(&reply);
    host.poll(SECOND);
    let syn = host.tap.take_transmitted().expect("the way is known");
    assert_eq!(syn[..6], PEER_MAC);
    // A thief without the override flag changes nothing, however often it repeats its
    // advertisement.
    let thief = Macs { from: THIEF_MAC, to: host.mac };
    let option = [&[2, 1][..], &THIEF_MAC].concat();
    for flags in [0, 0x40] {
        host.tap.deliver(&neighbour(thief, peer, address6(2), 136, flags, peer, &option));
        host.poll(SECOND);
    }
    // For a neighbour that we never talked to, nothing is remembered.
    host.tap.deliver(&neighbour(thief, address6(9), address6(2), 136, 0x60, address6(9), &option));
    host.poll(SECOND);
    let second = host.engine.connect(SocketAddr::from((address6(9), 80)), SECOND).expect("it is on the link");
    host.poll(SECOND);
    let solicitation = host.tap.take_transmitted().expect("a neighbour solicitation");
    assert_eq!(solicitation[..2], [0x33, 0x33]);
    host.engine.abort(second);
    // The SYN goes again where it went before.
    let mut again = Vec::new();
    for step in 0..30 {
        let now = SECOND + step * 100 * MILLISECOND;
        host.poll(now);
        while let Some(frame) = host.tap.take_transmitted() {
            if Segment::decode(&frame).is_some_and(|segment| segment.has(SYN)) {
                again.push(frame[..6].to_vec());
            }
        }
    }
    assert!(!again.is_empty() && again.iter().all(|mac| *mac == PEER_MAC), "{again:?}");
    host.engine.abort(flow);
}

/// A SYN behind extension headers, each given by its number and its bytes behind "next header".
fn syn_behind(host: &Host, chain: &[(u8, Vec<u8>)]) -> Vec<u8> {
    let (from, to) = (SocketAddr::from((address6(1), 5555)), server());
    let plain = Segment { window: 4000, ..Segment::bare(from, to, SYN, 9, 0) }.encode(macs(host));
    let mut body = Vec::new();
    for (at, (_, bytes)) in chain.iter().enumerate() {
        body.push(chain.get(at + 1).map_or(6, |next| next.0));
        body.extend_from_slice(bytes);
    }
    body.extend_from_slice(&plain[54..]);
    let mut frame = plain[..54].to_vec();
    frame[18..20].copy_from_slice(&(body.len() as u16).to_be_bytes());
    frame[20] = chain.first().map_or(6, |first| first.0);
    frame.extend_from_slice(&body);
    frame
}

#[test]
fn extension_headers_are_followed_or_refused_as_they_ask() {
    let padding = vec![0, 1, 4, 0, 0, 0, 0];
    let unknown = |kind: u8| vec![0, kind, 4, 0, 0, 0, 0];
    let routing = |kind: u8, left: u8| vec![0, kind, left, 0, 0, 0, 0];
    let answered: [Chain; 5] = [
        vec![],
        vec![(0, padding.clone()), (DESTINATION_OPTIONS, padding.clone())],
        vec![(0, vec![0, 5, 2, 0, 0, 1, 0])],
        vec![(43, routing(0, 0)), (DESTINATION_OPTIONS, unknown(0x1e))],
        vec![(DESTINATION_OPTIONS, padding.clone()); 8],
    ];
    for chain in answered {
        let mut host = host();
        // The peer is known, so that the answer is the first thing sent.
        host.tap.deliver(&syn_behind(&host, &chain));
        host.poll(SECOND);
        let reply = host.tap.take_transmitted().expect("the SYN is answered");
        let segment = Segment::decode(&reply).expect("it is a segment");
        assert!(segment.has(SYN | ACK), "{chain:?}");
    }
    let problems: [(Chain, Option<u32>); 8] = [
        // Type 0 routing, and any other with segments left (RFC 5095).
        (vec![(43, routing(0, 1))], Some(42)),
        (vec![(43, routing(7, 1))], Some(42)),
        // Hop-by-hop options anywhere but first.
        (vec![(DESTINATION_OPTIONS, padding.clone()), (0, padding.clone())], Some(40)),
        // Options that must not be passed over.
        (vec![(DESTINATION_OPTIONS, unknown(0x80))], Some(42)),
        (vec![(0, unknown(0xc2))], Some(42)),
        (vec![(0, unknown(0x40))], None),
        // A header that runs out of the packet, and too many of them.
        (vec![(DESTINATION_OPTIONS, vec![200, 1, 4, 0, 0, 0, 0])], None),
        (vec![(DESTINATION_OPTIONS, padding); 9], None),
    ];
    for (chain, pointer) in problems {
        let mut host = host();
        host.tap.deliver(&syn_behind(&host, &chain));
        host.poll(SECOND);
        let reported = answer(&host).map(|answer| {
            assert_eq!(answer.0, icmpv6::PARAMETER_PROBLEM);
            answer.1
        });
        assert_eq!(reported, pointer, "{chain:?}");
        silent(&host);
    }
}

#[test]
fn errors_count_only_about_data_in_flight() {
    let mut network = Network::dual();
    // Refused by a port-unreachable: what a filter on the way does.
    let flow =
        network.client.engine.connect(SocketAddr::from((address6(9), 80)), network.now).expect("on the link");
    network.client.poll(network.now);
    let solicitation = network.client.tap.take_transmitted().expect("the neighbour is asked for");
    let reply =
        neighbour_answer(&solicitation, address6(9).into(), THIEF_MAC).expect("it answers the solicitation");
    network.client.tap.deliver(&reply);
    network.client.poll(network.now);
    let syn = network.client.tap.take_transmitted().expect("the SYN leaves");
    let macs = Macs { from: THIEF_MAC, to: network.client.mac };
    let router = IpAddr::from(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1));
    let error = |kind, code, cause: &[u8]| {
        sietch_sim::segment::icmp_error(macs, router, kind, code, 0, cause).expect("legal")
    };
    let mut forged = syn.clone();
    forged[14 + 40 + 7] ^= 1;
    network.client.tap.deliver(&error(1, 4, &forged));
    network.client.tap.deliver(&error(3, 0, &syn));
    network.client.poll(network.now);
    assert!(!network.client.saw_any_close());
    network.client.tap.deliver(&error(1, 4, &syn));
    network.client.poll(network.now);
    assert!(network.client.saw(flow, EventKind::Closed(CloseReason::Refused)));
}

proptest! {
    #[test]
    fn a_walk_ends_on_any_bytes(first in any::<u8>(), bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        if let Ok(upper) = ipv6::walk(first, Payload::from(&bytes)) {
            prop_assert!(upper.skipped + upper.payload.len() == bytes.len());
        }
    }
}
