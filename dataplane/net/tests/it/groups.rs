//! Groups: members receive their datagrams, routers get reports, and other hosts get nothing.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::harness::{Network, SECOND};
use sietch_net::GroupError;
use sietch_net::packet::{Address, checksum, ethernet, icmpv6, ipv4, ipv6};

fn groups() -> [IpAddr; 2] {
    [Ipv4Addr::new(239, 1, 2, 3).into(), Ipv6Addr::new(0xff05, 0, 0, 0, 0, 0, 0x12, 0x3456).into()]
}

/// The records of a report: the change and its group.
fn report(frame: &[u8]) -> Vec<(u8, IpAddr)> {
    let (link, packet) = ethernet::Header::parse(frame).expect("legal");
    let (bytes, step) = if link.ethertype == ethernet::IPV4 {
        let (header, body) = ipv4::Header::parse(packet).expect("legal");
        assert_eq!((header.protocol, header.header_length, packet[8]), (2, 24, 1));
        assert_eq!((packet[20], header.destination), (148, 0xe000_0016));
        assert!(checksum::is_valid(body.sum()));
        (body.to_vec(), 8)
    } else {
        let (header, body) = ipv6::Header::parse(packet).expect("legal");
        assert_eq!((header.next_header, header.hop_limit, header.destination), (0, 1, Address::MLD_ROUTERS));
        assert!(header.source.is_link_local());
        let upper = ipv6::walk(0, body).expect("legal");
        icmpv6::parse(upper.payload, &header.source, &header.destination).expect("legal");
        (upper.payload.to_vec(), 20)
    };
    assert!(matches!(bytes[0], 0x22 | 143));
    let record = |record: &[u8]| {
        let address = match <[u8; 4]>::try_from(&record[4..]) {
            Ok(four) => IpAddr::from(four),
            Err(_) => IpAddr::from(<[u8; 16]>::try_from(&record[4..]).expect("of the other family")),
        };
        (record[0], address)
    };
    bytes[8..].chunks(step).map(record).collect()
}

fn sent(network: &Network) -> Vec<(u8, IpAddr)> {
    std::iter::from_fn(|| network.server.tap.take_transmitted()).flat_map(|frame| report(&frame)).collect()
}

#[test]
fn a_joined_group_is_received_and_reported_and_a_left_one_is_not() {
    for group in groups() {
        let mut network = Network::dual();
        network.client.engine.udp_bind(9).expect("free");
        network.server.engine.udp_bind(9).expect("free");
        let to = SocketAddr::new(group, 9);
        network.client.engine.udp_send(9, to, b"early").expect("groups need no neighbour");
        network.run();
        assert!(network.server.engine.udp_receive(9).is_none());
        network.server.engine.join(group).expect("there is room");
        network.server.poll(network.now);
        assert_eq!(sent(&network), [(4, group)]);
        network.now += SECOND;
        network.server.poll(network.now);
        assert_eq!(sent(&network), [(4, group)], "once more");
        network.client.engine.udp_send(9, to, b"now").expect("groups need no neighbour");
        network.run();
        assert_eq!(network.server.engine.udp_receive(9).expect("it arrived").payload, b"now");
        assert!(network.server.engine.leave(group) && !network.server.engine.leave(group));
        network.server.poll(network.now);
        assert_eq!(sent(&network), [(3, group)]);
        network.client.engine.udp_send(9, to, b"late").expect("groups need no neighbour");
        network.run();
        assert!(network.server.engine.udp_receive(9).is_none());
        assert_eq!(network.server.engine.metrics().icmp_errors_sent, 0);
    }
    let mut network = Network::new();
    let [four, six] = groups();
    assert_eq!(network.client.engine.join(six), Err(GroupError::NoGroup(six)));
    assert!(network.client.engine.join(IpAddr::from([10, 0, 0, 1])).is_err());
    assert_eq!(network.client.engine.join(four), Ok(()));
}

#[test]
fn a_query_is_answered_in_its_time() {
    let [group, _] = groups();
    let mut network = Network::new();
    network.server.engine.join(group).expect("there is room");
    for _ in 0..2 {
        network.server.poll(network.now);
        sent(&network);
        network.now += SECOND;
    }
    let mut query = vec![0; 42];
    let header =
        ethernet::Header { destination: [1, 0, 0x5e, 0, 0, 1], source: [2; 6], ethertype: ethernet::IPV4 };
    header.emit(query.first_chunk_mut().expect("it is long enough"));
    ipv4::emit(query[14..].first_chunk_mut().expect("it is long enough"), 0x0a00_0009, 0xe000_0001, 2, 8);
    query[34..36].copy_from_slice(&[0x11, 100]);
    let check = checksum::finish(checksum::sum(&query[34..]));
    query[36..38].copy_from_slice(&check);
    for _ in 0..5 {
        network.server.tap.deliver(&query);
        network.server.poll(network.now);
    }
    let at = network.server.engine.next_deadline().expect("an answer is due");
    assert!(at <= network.now + 10 * SECOND);
    network.server.poll(at);
    assert_eq!(sent(&network), [(2, group)], "one answer to all");
    assert_eq!(network.server.engine.next_deadline(), None);
}
