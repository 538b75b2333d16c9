//! Zero-copy send and receive: bytes arrive intact and in order over any wire, and no share is
//! dropped too early or kept too long.

use crate::harness;

use std::sync::Arc;

use crate::harness::{Fate, MILLISECOND, Network, SECOND};
use proptest::prelude::*;
use sietch_net::limits::{ZERO_COPY_BUFFERS, ZERO_COPY_BYTES, ZERO_COPY_PIECES};
use sietch_net::{EventKind, FlowId, ReceivedBuffer, SharedBytes};

fn pattern(length: usize, salt: usize) -> Vec<u8> {
    (0..length).map(|index| (index * 7 + index / 253 + salt * 31) as u8).collect()
}

/// Bytes whose sharers can be counted.
fn shareable(bytes: &[u8]) -> (Arc<Vec<u8>>, SharedBytes) {
    let owner = Arc::new(bytes.to_vec());
    let shared: Arc<dyn AsRef<[u8]> + Send + Sync> = Arc::<Vec<u8>>::clone(&owner);
    (owner, SharedBytes::shared(shared))
}

/// One after the other with damage from a seed: about one frame in `one_in` is lost, and as many
/// doubled and swapped.
fn damage(seed: u64, one_in: u64) -> harness::Decide {
    let mut x = seed | 1;
    Box::new(move |_, _, _| {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        match x % one_in {
            0 => Fate::Drop,
            1 => Fate::Duplicate,
            2 => Fate::Swap,
            _ => Fate::Pass,
        }
    })
}

/// Bytes to send, copied or shared.
#[derive(Clone, Debug)]
enum Given {
    Copied(usize),
    SharedBytes(usize),
    /// Waits until all before is acknowledged.
    Pause,
}

fn given() -> impl Strategy<Value = Given> {
    prop_oneof![
        4 => (1..5000_usize).prop_map(Given::Copied),
        4 => (1..40_000_usize).prop_map(Given::SharedBytes),
        1 => Just(Given::Pause),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(64) })]

    #[test]
    fn shared_and_copied_bytes_arrive_in_order_and_shares_are_dropped(
        plan in prop::collection::vec(given(), 1..30),
        seed in any::<u64>(),
        one_in in prop_oneof![Just(10_u64), Just(40), Just(1 << 40)],
        takes in any::<bool>(),
    ) {
        let mut network = Network::new();
        let (client, server) = network.open();
        network.fate = damage(seed, one_in);
        let mut expected = Vec::new();
        let mut received = Vec::new();
        let mut owners = Vec::new();
        let mut plan: std::collections::VecDeque<_> = plan.into();
        // Where one frame of ten is lost, both ways, timeouts grow to a minute.
        let limit = network.now + 100_000 * SECOND;
        // What could not be taken of a copied piece.
        let mut rest: Vec<u8> = Vec::new();
        while network.now < limit {
            while rest.is_empty() {
                let bytes = match plan.front() {
                    None => break,
                    Some(Given::Pause) if network.client.engine.unacknowledged(client) > 0 => break,
                    Some(Given::Pause) => Vec::new(),
                    Some(Given::Copied(length) | Given::SharedBytes(length)) => pattern(*length, owners.len()),
                };
                expected.extend_from_slice(&bytes);
                if let Some(Given::SharedBytes(_)) = plan.pop_front() {
                    let (owner, shared) = shareable(&bytes);
                    prop_assert!(network.client.engine.send_zero_copy(client, shared).is_ok());
                    owners.push(owner);
                } else {
                    rest = bytes;
                }
            }
            let taken = network.client.engine.send(client, &rest);
            rest.drain(..taken);
            if !network.advance() {
                break;
            }
            if takes {
                while let Some(buffer) = network.server.engine.receive_zero_copy(server) {
                    let (first, second) = buffer.slices();
                    received.extend_from_slice(first);
                    received.extend_from_slice(second);
                }
            }
            received.extend(network.server.read_all(server));
        }
        let stuck = (network.client.engine.flow_info(client), network.server.engine.flow_info(server));
        prop_assert!(
            plan.is_empty() && rest.is_empty(),
            "{} pieces and {} bytes are stuck at {}: {stuck:?}",
            plan.len(),
            rest.len(),
            network.now
        );
        let wrong = received.iter().zip(&expected).position(|(got, wanted)| got != wanted);
        prop_assert!(
            received.len() == expected.len() && wrong.is_none(),
            "{} of {} bytes, the first wrong one at {wrong:?}: {stuck:?}",
            received.len(),
            expected.len()
        );
        for owner in &owners {
            prop_assert_eq!(Arc::strong_count(owner), 1, "acknowledged bytes are let go of");
        }
        network.fate = Box::new(|_, _, _| Fate::Pass);
        network.client.engine.close(client);
        network.server.engine.close(server);
        network.settle();
    }
}

#[test]
fn shared_bytes_are_kept_until_they_are_acknowledged() {
    let mut network = Network::new();
    let (client, server) = network.open();
    network.fate = Box::new(|_, _, _| Fate::Drop);
    let (owner, shared) = shareable(&pattern(3000, 0));
    network.client.engine.send_zero_copy(client, shared).expect("there is room");
    network.run_until(network.now + 2 * SECOND);
    assert_eq!(Arc::strong_count(&owner), 2, "all of it may have to be sent again");
    network.fate = Box::new(|_, _, _| Fate::Pass);
    network.run_until(network.now + 20 * SECOND);
    assert_eq!(Arc::strong_count(&owner), 1);
    assert_eq!(network.server.read_all(server), pattern(3000, 0));
}

#[test]
fn shares_are_dropped_when_the_flow_ends_early() {
    type End = fn(&mut Network, FlowId, FlowId);
    let ends: [End; 3] = [
        |network, client, _| network.client.engine.abort(client),
        |network, _, server| {
            network.server.engine.abort(server);
            network.run();
        },
        // The peer falls silent.
        |network, _, _| {
            network.fate = Box::new(|_, _, _| Fate::Drop);
            network.run_until(network.now + 2000 * SECOND);
        },
    ];
    for end in ends {
        let mut network = Network::new();
        let (client, server) = network.open();
        let (owner, shared) = shareable(&pattern(2_000_000, 1));
        network.client.engine.send(client, b"copied");
        network.client.engine.send_zero_copy(client, shared).expect("there is room");
        network.client.engine.send(client, b"copied behind it");
        network.run();
        assert_eq!(Arc::strong_count(&owner), 2);
        end(&mut network, client, server);
        assert_eq!(Arc::strong_count(&owner), 1);
    }
}

#[test]
fn bytes_beyond_the_limit_are_returned_and_room_is_announced() {
    let mut network = Network::new();
    let (client, server) = network.open();
    let engine = &mut network.client.engine;
    let small: SharedBytes = Vec::from(*b"x").into();
    for _ in 0..ZERO_COPY_PIECES {
        engine.send_zero_copy(client, small.clone()).expect("there is room");
    }
    assert!(engine.send_zero_copy(client, small.clone()).is_err());
    assert_eq!(engine.send(client, b"copied"), 0);
    network.run_until(network.now + SECOND);
    assert_eq!(network.server.read_all(server).len(), ZERO_COPY_PIECES);
    assert!(network.client.saw(client, EventKind::Writable));
    let engine = &mut network.client.engine;
    let large: SharedBytes = vec![0; ZERO_COPY_BYTES + 1].into();
    let back = engine.send_zero_copy(client, large).expect_err("it is too long in one piece");
    assert_eq!(back.len(), ZERO_COPY_BYTES + 1);
    engine.send_zero_copy(client, back.slice(0, ZERO_COPY_BYTES)).expect("this much is allowed");
    assert!(engine.send_zero_copy(client, back.slice(0, 1)).is_err());
    engine.abort(client);
    let (flows, ..) = engine.population();
    assert_eq!(flows, 0);
    let stale = engine.send_zero_copy(client, small);
    assert_eq!(stale.expect_err("the flow is closed").as_ref(), b"x");
}

#[test]
fn copied_bytes_behind_shared_ones_are_bounded_by_the_send_buffer() {
    let mut network = Network::with(|config| config.send_buffer = 16 << 10, |_| {});
    let (client, server) = network.open();
    network.fate = Box::new(|_, _, _| Fate::Drop);
    let engine = &mut network.client.engine;
    engine.send_zero_copy(client, pattern(100, 0).into()).expect("there is room");
    let taken = engine.send(client, &pattern(100_000, 1));
    assert_eq!(taken, (16 << 10) - 100);
    network.fate = Box::new(|_, _, _| Fate::Pass);
    network.run_until(network.now + 10 * SECOND);
    let expected = [pattern(100, 0), pattern(taken, 1)].concat();
    assert_eq!(network.server.read_all(server), expected);
    assert!(network.client.saw(client, EventKind::Writable));
}

#[test]
fn held_buffers_close_the_window_and_open_it_when_they_are_dropped() {
    let mut network = Network::with(|_| {}, |config| config.receive_buffer = 64 << 10);
    let (client, server) = network.open();
    let sent = pattern(400_000, 3);
    let mut unsent = &sent[..];
    let mut held: Vec<ReceivedBuffer> = Vec::new();
    let mut received = Vec::new();
    for _ in 0..40 {
        let taken = network.client.engine.send(client, unsent);
        unsent = &unsent[taken..];
        let until = network.now + 300 * MILLISECOND;
        while network.now < until {
            network.run_until(network.now + 10 * MILLISECOND);
            held.extend(network.server.engine.receive_zero_copy(server));
        }
        let total: usize = held.iter().map(ReceivedBuffer::len).sum();
        assert_eq!(total, network.server.engine.held(server));
        assert!(total <= 64 << 10, "the peer sent {total} bytes into a window of 64 KiB");
        assert!(total > 60 << 10 || unsent.is_empty(), "the window was used: {total} bytes");
        for buffer in held.drain(..) {
            let (first, second) = buffer.slices();
            received.extend_from_slice(first);
            received.extend_from_slice(second);
        }
    }
    assert_eq!(received, sent);
    assert_eq!(network.server.engine.held(server), 0);
    network.client.engine.close(client);
    network.server.engine.close(server);
    network.settle();
}

#[test]
fn received_buffers_are_sent_on_without_a_copy() {
    let mut network = Network::new();
    let (client, server) = network.open();
    let sent = pattern(300_000, 5);
    let (mut unsent, mut echoed) = (&sent[..], Vec::new());
    network.fate = damage(77, 50);
    let limit = network.now + 100 * SECOND;
    while echoed.len() < sent.len() && network.now < limit {
        unsent = &unsent[network.client.engine.send(client, unsent)..];
        assert!(network.advance());
        while let Some(buffer) = network.server.engine.receive_zero_copy(server) {
            let (first, second) = buffer.into_shared();
            network.server.engine.send_zero_copy(server, first).expect("there is room");
            network.server.engine.send_zero_copy(server, second).expect("there is room");
        }
        echoed.extend(network.client.read_all(client));
    }
    assert!(echoed == sent, "{} bytes", echoed.len());
    network.fate = Box::new(|_, _, _| Fate::Pass);
    network.client.engine.close(client);
    network.server.engine.close(server);
    network.settle();
}

#[test]
fn buffers_that_are_out_are_bounded_and_outlive_their_flow() {
    let mut network = Network::new();
    let (client, server) = network.open();
    let mut held = Vec::new();
    for number in 0..ZERO_COPY_BUFFERS + 1 {
        network.client.engine.send(client, &[number as u8]);
        network.run();
        held.extend(network.server.engine.receive_zero_copy(server));
    }
    assert_eq!(held.len(), ZERO_COPY_BUFFERS);
    assert_eq!(network.server.read_all(server), [ZERO_COPY_BUFFERS as u8], "the last one can be copied out");
    network.client.engine.close(client);
    network.server.engine.close(server);
    network.run_until(network.now + 100 * SECOND);
    for (number, buffer) in held.iter().enumerate() {
        assert_eq!(buffer.slices().0, [number as u8]);
    }
    drop(held);
    network.settle();
}

#[test]
fn buffers_that_are_out_outlive_their_engine() {
    let mut network = Network::new();
    let (client, server) = network.open();
    network.client.engine.send(client, b"spice");
    network.run();
    let buffer = network.server.engine.receive_zero_copy(server).expect("something has arrived");
    drop(network);
    assert_eq!(buffer.slices(), (&b"spice"[..], &b""[..]));
}
