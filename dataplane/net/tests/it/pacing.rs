//! Flows keep their rate, and wake the engine no more often than they must.

use crate::harness::{MILLISECOND, Network, SECOND};
use sietch_net::congestion::Kind;

#[test]
fn a_limited_flow_sends_at_its_rate_without_a_busy_loop() {
    let mut network = Network::new();
    let (client, server) = network.open();
    network.client.engine.set_max_pacing_rate(client, Some(2_000_000));
    let (begin, mut got, mut steps) = (network.now, 0, 0);
    let data = vec![7; 100_000];
    while network.now < begin + SECOND {
        network.client.engine.send(client, &data);
        network.step();
        assert!(network.advance());
        got += network.server.read_all(server).len();
        steps += 1;
    }
    assert!((1_960_000..=2_010_000).contains(&got), "{got}");
    // A segment, its arrival, its acknowledgement's: a few steps for each of 1382 segments.
    assert!(steps < 9_000, "{steps}");
    network.client.engine.set_max_pacing_rate(client, None);
    let until = network.now + 100 * MILLISECOND;
    while network.now < until && network.advance() {
        network.server.read_all(server);
    }
    assert_eq!(network.client.engine.unacknowledged(client), 0, "without a limit all leaves at once");
}

#[test]
fn timely_is_paced_and_carries_a_transfer() {
    let mut network = Network::with(|config| config.congestion = Kind::Timely, |_| {});
    let (client, server) = network.open();
    let data = vec![7; 2_000_000];
    let (mut sent, mut got) = (0, 0);
    let limit = network.now + 10 * SECOND;
    while got < data.len() && network.now < limit {
        sent += network.client.engine.send(client, &data[sent..]);
        network.step();
        assert!(network.advance());
        got += network.server.read_all(server).len();
    }
    assert_eq!(got, data.len());
    let info = network.client.engine.flow_info(client).expect("it is open");
    assert!(info.pacing_rate > 0);
}
