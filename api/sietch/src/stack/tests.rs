//! Two stacks on a wire, in virtual time.

use std::net::{Ipv4Addr, SocketAddrV4};

use sietch_net::EventKind;
use sietch_nic::wire::pair;

use super::*;

#[test]
fn a_server_is_a_loop_around_its_events() {
    let (a, b) = pair([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2], 1500, 64);
    let config = |last| Config::new(Ipv4Addr::new(10, 0, 0, last), 24, [last; 16]);
    let (mut client, mut server) = (Stack::new(a, &config(1)), Stack::new(b, &config(2)));
    server.engine.listen(7, 4).expect("the port is free");
    let remote = SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 2), 7);
    let flow = client.engine.connect(remote, 1).expect("it is on the link");
    let mut answer = Vec::new();
    for iteration in 0..100_u64 {
        client.iterate(iteration * 1000).expect("a wire does not break");
        server.iterate(iteration * 1000).expect("a wire does not break");
        while let Some(event) = server.next_event() {
            if event.kind == EventKind::Readable {
                let bytes = server.engine.received(event.flow).0.to_vec();
                let taken = server.engine.send(event.flow, &bytes);
                server.engine.consume(event.flow, taken);
            }
        }
        while let Some(event) = client.next_event() {
            match event.kind {
                EventKind::Connected => assert_eq!(client.engine.send(flow, b"hello"), 5),
                EventKind::Readable => {
                    answer.extend_from_slice(client.engine.received(flow).0);
                    client.engine.consume(flow, 5);
                }
                other => panic!("unexpected: {other:?}"),
            }
        }
    }
    assert_eq!(answer, b"hello");
}
