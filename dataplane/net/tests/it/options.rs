//! Options that an application sets on a flow, observed from the other side of the wire.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;

use crate::harness::peer::Peer;
use crate::harness::{Fate, From, Network, SECOND, SERVER_PORT, address6};
use sietch_net::{CloseReason, EventKind};

#[test]
fn a_cork_holds_a_partial_segment_until_it_is_removed() {
    let mut network = Network::new();
    let (client, server) = network.open();
    network.client.engine.set_corked(client, true);
    assert_eq!(network.client.engine.send(client, &[1; 2000]), 2000);
    network.run();
    let whole = network.server.read_all(server).len();
    assert!((1..2000).contains(&whole), "one full segment, not {whole} bytes");
    assert_eq!(network.client.engine.send(client, &[1; 10]), 10);
    network.run_until(network.now + 10 * SECOND);
    assert_eq!(network.server.read_all(server), b"");
    network.client.engine.set_corked(client, false);
    network.run();
    assert_eq!(network.server.read_all(server).len(), 2010 - whole);
    // A closed side sends all its data, corked or not.
    network.client.engine.set_corked(client, true);
    assert_eq!(network.client.engine.send(client, b"the end"), 7);
    network.client.engine.shutdown_send(client);
    network.run();
    assert_eq!(network.server.read_all(server), b"the end");
    assert!(network.server.engine.at_end(server));
}

#[test]
fn packets_carry_the_class_and_the_hops_that_were_set() {
    for six in [false, true] {
        let mut network = Network::dual();
        let server = if six {
            SocketAddr::new(address6(2).into(), SERVER_PORT)
        } else {
            network.server_address().into()
        };
        let (client, server) = network.open_to(server);
        // The lower two bits are TCP's own.
        network.client.engine.set_traffic_class(client, 0xbb);
        network.client.engine.set_hop_limit(client, 7);
        let seen = Rc::new(RefCell::new(Vec::new()));
        let note = Rc::clone(&seen);
        network.fate = Box::new(move |_, from, frame| {
            if from == From::Client {
                let class = if six { frame[14] << 4 | frame[15] >> 4 } else { frame[15] };
                note.borrow_mut().push((class, if six { frame[21] } else { frame[22] }));
            }
            Fate::Pass
        });
        assert_eq!(network.client.engine.send(client, b"urgent"), 6);
        network.run();
        // The server verifies the header's checksum.
        assert_eq!(network.server.read_all(server), b"urgent");
        let seen = seen.borrow();
        assert!(!seen.is_empty() && seen.iter().all(|found| *found == (0xb8, 7)), "{seen:?}");
    }
}

#[test]
fn keepalive_probes_keep_the_requested_interval_and_count() {
    let mut peer = Peer::connected(|_| {});
    peer.host.engine.set_keepalive_probes(peer.flow, 2 * SECOND, 3);
    peer.host.engine.set_keepalive(peer.flow, Some(10 * SECOND));
    let start = peer.now;
    let probes: Vec<u64> = peer.until(start + 60 * SECOND).iter().map(|probe| probe.at - start).collect();
    // The last one is the reset.
    assert_eq!(probes, [10 * SECOND, 12 * SECOND, 14 * SECOND, 16 * SECOND]);
    assert!(peer.host.saw(peer.flow, EventKind::Closed(CloseReason::TimedOut)));
}

#[test]
fn a_window_grows_no_further_than_its_limit() {
    let largest = |limit: Option<usize>| {
        let mut network = Network::new();
        let (client, server) = network.open();
        if let Some(limit) = limit {
            network.server.engine.set_receive_limit(server, limit);
        }
        for _ in 0..400 {
            network.client.engine.send(client, &[0; 100_000]);
            network.run();
            network.server.read_all(server);
        }
        network.server.engine.flow_info(server).expect("it is open").receive_buffer
    };
    let limited = largest(Some(100_000));
    assert!(limited <= 100_000 && limited < largest(None), "{limited}");
}
