//! How a host announces its addresses, and what it does when another host claims one.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use crate::harness::{Host, MILLISECOND, Network, SECOND, SERVER_PORT, address6, speak_ipv6};
use sietch_net::packet::{Address, arp, checksum, ethernet, icmpv6, ipv6};
use sietch_net::{Config, EcnCodepoint};
use sietch_sim::segment::{Macs, packet};

const OTHER: [u8; 6] = [2, 0, 0, 0, 0, 66];

fn announcing(config: &mut Config) {
    speak_ipv6(config);
    config.announce = true;
}

/// Addresses that the host announced to all nodes, after an iteration at `now`.
fn announced(host: &mut Host, now: u64) -> Vec<IpAddr> {
    host.poll(now);
    let frames = std::iter::from_fn(|| host.tap.take_transmitted());
    let mut addresses: Vec<IpAddr> = frames.map(|frame| announcement(host.mac, &frame)).collect();
    addresses.sort();
    addresses
}

fn announcement(mac: [u8; 6], frame: &[u8]) -> IpAddr {
    let (link, packet) = ethernet::Header::parse(frame).expect("legal");
    assert_eq!(link.source, mac);
    if link.ethertype == ethernet::ARP {
        let said = arp::Packet::parse(packet).expect("legal");
        assert_eq!((link.destination, said.request, said.sender_mac), (ethernet::BROADCAST, true, mac));
        assert_eq!(said.sender, said.target, "an announcement asks for one's own address");
        return Ipv4Addr::from(said.sender).into();
    }
    let (header, body) = ipv6::Header::parse(packet).expect("legal");
    assert_eq!(link.destination, [0x33, 0x33, 0, 0, 0, 1]);
    assert_eq!((header.hop_limit, header.destination), (255, Address::ALL_NODES));
    let message = icmpv6::parse(body, &header.source, &header.destination).expect("legal");
    let said = icmpv6::Neighbour::parse(&message).expect("legal");
    assert_eq!((message.kind, message.rest, said.mac), (136, icmpv6::OVERRIDE, Some(mac)));
    assert_eq!(said.target, header.source);
    said.target.to_ip()
}

fn own(host: &Host) -> Vec<IpAddr> {
    let mut own = vec![host.address.into(), address6(2).into(), Address::link_local(host.mac).to_ip()];
    own.sort();
    own
}

#[test]
fn a_host_announces_its_addresses_twice_and_then_no_more() {
    let mut host = Host::new(2, announcing);
    assert_eq!(host.engine.next_deadline(), Some(0));
    assert_eq!(announced(&mut host, SECOND), own(&host));
    assert_eq!(announced(&mut host, 2 * SECOND), [] as [IpAddr; 0]);
    assert_eq!(host.engine.next_deadline(), Some(3 * SECOND));
    assert_eq!(announced(&mut host, 3 * SECOND), own(&host));
    assert_eq!((announced(&mut host, 100 * SECOND).len(), host.engine.next_deadline()), (0, None));
    assert_eq!(host.engine.metrics().announcements, 6);
    let mut quiet = Host::new(2, speak_ipv6);
    assert_eq!(announced(&mut quiet, SECOND), [] as [IpAddr; 0]);
}

#[test]
fn peers_follow_an_address_to_another_link_address_at_once() {
    for six in [false, true] {
        let mut network = Network::dual();
        let address: IpAddr = if six { address6(2).into() } else { network.server.address.into() };
        let to = SocketAddr::new(address, 53);
        network.client.engine.udp_bind(9).expect("free");
        network.server.engine.udp_bind(53).expect("free");
        network.client.engine.udp_send(9, to, b"first").expect("there is room");
        network.run();
        assert!(network.server.engine.udp_receive(53).is_some());
        // The same host returns with another link address.
        let mut again = Host::new(2, announcing);
        again.mac = [2, 0, 0, 0, 9, 9];
        let mut config = Config::new(again.address, 24, [5; 16]);
        announcing(&mut config);
        (again.queue, again.tap) = sietch_nic::wire::tapped(again.mac, 1500, 64);
        again.engine = sietch_net::Engine::new(&config, again.mac, 1500);
        again.poll(network.now);
        while let Some(frame) = again.tap.take_transmitted() {
            assert!(network.client.tap.deliver(&frame));
        }
        network.client.poll(network.now);
        network.client.engine.udp_send(9, to, b"second").expect("there is room");
        network.client.poll(network.now);
        let frame = network.client.tap.take_transmitted().expect("no ARP or ND request precedes it");
        assert_eq!(frame[..6], again.mac, "over IPv{}", if six { 6 } else { 4 });
    }
}

/// Another host claims the address of host 2.
fn claim(six: bool, host: &Host) -> Vec<u8> {
    if !six {
        let said = arp::Packet {
            request: true,
            sender_mac: OTHER,
            sender: host.address.into(),
            target_mac: [0; 6],
            target: host.address.into(),
        };
        let mut frame = vec![0; 14 + arp::LENGTH];
        ethernet::Header { destination: ethernet::BROADCAST, source: OTHER, ethertype: ethernet::ARP }
            .emit(frame.first_chunk_mut().expect("14 bytes"));
        said.emit(frame[14..].first_chunk_mut().expect("28 bytes"));
        return frame;
    }
    let (from, all) = (address6(2), Address::ALL_NODES.to_ip());
    let mut body = [&[136, 0, 0, 0, 0x20, 0, 0, 0][..], &from.octets(), &[2, 1], &OTHER].concat();
    let pseudo = checksum::pseudo_header(&from.into(), &all.into(), 58, body.len() as u32);
    let check = checksum::finish(pseudo + checksum::sum(&body));
    body[2..4].copy_from_slice(&check);
    let macs = Macs { from: OTHER, to: [0x33, 0x33, 0, 0, 0, 1] };
    let mut frame = packet(macs, IpAddr::V6(from), all, 58, 0, &body);
    frame[21] = 255;
    frame
}

#[test]
fn claims_to_our_address_are_counted_and_answered_at_intervals() {
    for six in [false, true] {
        let mut host = Host::new(2, announcing);
        assert_eq!(announced(&mut host, SECOND).len() + announced(&mut host, 3 * SECOND).len(), 6);
        let frame = claim(six, &host);
        let mut answers = 0;
        for round in 0..1000 {
            assert!(host.tap.deliver(&frame));
            answers += announced(&mut host, 4 * SECOND + round * 25 * MILLISECOND).len() / 3;
        }
        // Over 25 s: at once, after 10 s, after 20 s.
        assert_eq!((answers, host.engine.metrics().address_conflicts), (3, 1000));
        // The address stays ours.
        let mut quiet = Host::new(2, speak_ipv6);
        assert!(quiet.tap.deliver(&frame));
        assert_eq!((announced(&mut quiet, SECOND).len(), quiet.engine.metrics().address_conflicts), (0, 1));
    }
}

#[test]
fn marks_of_datagrams_are_set_and_seen() {
    for six in [false, true] {
        let mut network = Network::dual();
        let address: IpAddr = if six { address6(2).into() } else { network.server.address.into() };
        let to = SocketAddr::new(address, SERVER_PORT);
        network.client.engine.udp_bind(9).expect("free");
        network.server.engine.udp_bind(SERVER_PORT).expect("free");
        let all = [EcnCodepoint::NotEct, EcnCodepoint::Ect0, EcnCodepoint::Ect1, EcnCodepoint::Ce];
        for mark in all {
            network.client.engine.udp_set_ecn(9, mark).expect("bound");
            network.client.engine.udp_send(9, to, b"queued").expect("there is room");
            let client = &mut network.client;
            let sent = client.engine.udp_transmit(&mut client.queue, 9, to, b"at once");
            sent.expect("there is room");
        }
        network.run();
        for mark in all {
            for _ in 0..2 {
                assert_eq!(network.server.engine.udp_peek_ecn(SERVER_PORT), Some(mark));
                let datagram = network.server.engine.udp_receive(SERVER_PORT).expect("it arrived");
                assert_eq!(datagram.ecn, mark);
            }
        }
        assert_eq!(network.server.engine.udp_peek_ecn(SERVER_PORT), None);
        assert_eq!(network.server.engine.metrics().bad_checksum, 0);
    }
}
