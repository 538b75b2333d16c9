//! Two engines talk over a wire.

use crate::harness::{Network, SERVER_PORT};
use sietch_net::{CloseReason, EventKind};

#[test]
fn a_request_and_a_reply_and_an_orderly_close() {
    let mut network = Network::new();
    let (client, server) = network.open();
    assert_eq!(network.client.engine.send(client, b"ping"), 4);
    network.run();
    assert_eq!(network.server.read_all(server), b"ping");
    assert_eq!(network.server.engine.send(server, b"pong"), 4);
    network.run();
    assert_eq!(network.client.read_all(client), b"pong");
    network.client.engine.shutdown_send(client);
    network.run();
    assert!(network.server.engine.at_end(server));
    network.server.engine.shutdown_send(server);
    network.run();
    assert!(network.client.saw(client, EventKind::PeerClosed));
    assert!(network.client.saw(client, EventKind::Closed(CloseReason::Normal)));
    assert!(network.server.saw(server, EventKind::Closed(CloseReason::Normal)));
    assert_eq!(network.server.engine.population().0, 0);
    assert_eq!(network.client.engine.population().2, 1, "the end that closes first waits");
    network.settle();
    let _ = SERVER_PORT;
}
