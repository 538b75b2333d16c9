//! Each frame of a whole conversation is lost, repeated, or overtaken, one at a time: all bytes
//! arrive.

use crate::harness;

use std::cell::Cell;
use std::rc::Rc;

use crate::harness::{Fate, Network, SECOND};
use sietch_net::{CloseReason, EventKind, FlowId};

/// A conversation with an end: opens, sends `up` and `down` at the same time, half-closes both
/// ways, and checks every byte. Returns the number of frames.
fn converse(up: usize, down: usize, fate: impl FnMut(usize) -> Fate + 'static) -> usize {
    converse_on(Network::new(), up, down, fate)
}

fn converse_on(
    mut network: Network,
    up: usize,
    down: usize,
    fate: impl FnMut(usize) -> Fate + 'static,
) -> usize {
    let mut fate = fate;
    network.fate = Box::new(move |number, _, _| fate(number));
    let client =
        network.client.engine.connect(network.server_address(), network.now).expect("there is a route");
    let (upward, downward) = (pattern(up, 3), pattern(down, 5));
    let (mut sent_up, mut sent_down) = (0, 0);
    let (mut got_up, mut got_down) = (Vec::new(), Vec::new());
    let limit = network.now + 300 * SECOND;

    let mut server: Option<FlowId> = None;
    let mut connected = false;
    let mut frames = 0;
    while network.now < limit {
        if !network.advance() {
            break;
        }
        if frames == 0 && network.server.saw_any_close() && network.client.saw_any_close() {
            frames = network.frames;
            break;
        }
        connected |= network.client.saw(client, EventKind::Connected);
        if connected && sent_up < up {
            sent_up += network.client.engine.send(client, &upward[sent_up..]);
            if sent_up == up {
                network.client.engine.shutdown_send(client);
            }
        }
        got_down.extend(network.client.read_all(client));
        server = server.or_else(|| network.server.accepted().first().copied());
        if let Some(server) = server {
            got_up.extend(network.server.read_all(server));
            if sent_down < down {
                sent_down += network.server.engine.send(server, &downward[sent_down..]);
                if sent_down == down {
                    network.server.engine.shutdown_send(server);
                }
            }
        }
        network.step();
    }
    assert!(got_up == upward, "{} of {} bytes went up", got_up.len(), up);
    assert!(got_down == downward, "{} of {} bytes came down", got_down.len(), down);
    assert!(
        network.client.saw(client, EventKind::Closed(CloseReason::Normal)),
        "{:?}",
        network.client.events.last()
    );
    let server = server.expect("the server accepted");
    assert!(
        network.server.saw(server, EventKind::Closed(CloseReason::Normal)),
        "{:?}",
        network.server.events.last()
    );
    network.fate = Box::new(|_, _, _| Fate::Pass);
    network.settle();
    frames
}

fn pattern(length: usize, step: usize) -> Vec<u8> {
    (0..length).map(|index| (index * step + index / 251) as u8).collect()
}

const UP: usize = 40_000;
const DOWN: usize = 30_000;

fn each_frame(fate: Fate) {
    let frames = converse(UP, DOWN, |_| Fate::Pass);
    assert!(frames > 40, "{frames}");
    for victim in 0..frames {
        converse(UP, DOWN, move |number| if number == victim { fate } else { Fate::Pass });
    }
}

#[test]
fn survives_the_loss_of_each_frame() {
    each_frame(Fate::Drop);
}

#[test]
fn survives_the_duplication_of_each_frame() {
    each_frame(Fate::Duplicate);
}

#[test]
fn survives_the_swap_of_each_frame_with_the_next() {
    each_frame(Fate::Swap);
}

#[test]
fn survives_the_loss_of_each_pair_of_neighbours() {
    let frames = converse(UP, DOWN, |_| Fate::Pass);
    for victim in 0..frames {
        converse(
            UP,
            DOWN,
            move |number| {
                if number == victim || number == victim + 1 { Fate::Drop } else { Fate::Pass }
            },
        );
    }
}

#[test]
fn a_slow_device_delays_and_loses_nothing() {
    for frames in [1, 2, 7] {
        let network = Network::new();
        network.client.tap.limit_transmitted(frames);
        network.server.tap.limit_transmitted(frames);
        converse_on(network, 2_000_000, 1_500_000, |_| Fate::Pass);
    }
}

/// The initial sequence number that each side chooses in a fresh network: a fixed hash plus a clock
/// of 4096 ns.
fn initial_numbers() -> [u32; 2] {
    let mut network = Network::new();
    let seen = Rc::new(Cell::new([0; 2]));
    let numbers = Rc::clone(&seen);
    network.fate = Box::new(move |_, from, frame| {
        if frame[12..14] == [8, 0] && frame[47] & 2 != 0 {
            let mut both = numbers.get();
            both[usize::from(from == harness::From::Server)] =
                u32::from_be_bytes([frame[38], frame[39], frame[40], frame[41]]);
            numbers.set(both);
        }
        Fate::Pass
    });
    network.open();
    seen.get()
}

#[test]
fn sequence_numbers_wrap_in_mid_transfer() {
    for initial in initial_numbers() {
        let mut network = Network::new();
        // Both directions carry more than this many bytes.
        let ticks = (u32::MAX - 20_000).wrapping_sub(initial);
        network.now += u64::from(ticks) << 12;
        converse_on(network, UP, DOWN, |number| if number % 23 == 22 { Fate::Drop } else { Fate::Pass });
    }
}

#[test]
fn survives_heavy_random_damage() {
    for seed in 1..40u64 {
        let state = Rc::new(Cell::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
        converse(60_000, 90_000, move |_| {
            let mut x = state.get();
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            state.set(x);
            match x % 100 {
                0..5 => Fate::Drop,
                5..10 => Fate::Duplicate,
                10..18 => Fate::Swap,
                _ => Fate::Pass,
            }
        });
    }
}
