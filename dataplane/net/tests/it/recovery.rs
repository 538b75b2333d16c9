//! Loss recovery as a sender, one acknowledgement at a time: what is retransmitted, when, and what
//! is not.

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::rc::Rc;

use crate::harness::peer::{Got, PEER_ISS, Peer};
use crate::harness::{Fate, From, MILLISECOND, Network, SECOND};
use sietch_net::packet::tcp::{ACK, Options, SackBlocks};
use sietch_net::{FlowInfo, RecoveryState, limits};

const ROUND_TRIP: u64 = 10 * MILLISECOND;
/// No segment was sent.
const NOTHING: [u32; 0] = [];

/// A sender that knows its round trip and has `segments` of a thousand bytes in flight.
fn sending(segments: u32) -> Peer {
    let mut peer = Peer::new(|_| {});
    peer.handshake(Options::Syn { mss: 1000, shift: None, sack: true, timestamps: None });
    peer.host.engine.send(peer.flow, b"?");
    peer.poll();
    peer.one();
    peer.now += ROUND_TRIP;
    acknowledge(&mut peer, 0, &[]);
    peer.host.engine.send(peer.flow, &vec![7; segments as usize * 1000]);
    peer.poll();
    assert_eq!(peer.take().len(), segments as usize);
    peer
}

/// Acknowledges this many thousands of bytes (after the request), and these ranges of thousands.
fn acknowledge(peer: &mut Peer, thousands: u32, ranges: &[(u32, u32)]) {
    let mut blocks = SackBlocks::default();
    for range in ranges {
        let place = |thousand: u32| peer.irs.plus(2 + thousand * 1000);
        blocks.push((place(range.0), place(range.1)));
    }
    let options = if ranges.is_empty() { Options::None } else { Options::Sack { timestamps: None, blocks } };
    peer.put(PEER_ISS.plus(1), peer.irs.plus(2 + thousands * 1000), ACK, options, b"");
}

/// Which thousands were sent.
fn thousands(peer: &Peer, sent: &[Got]) -> Vec<u32> {
    sent.iter().map(|got| got.seq.since(peer.irs.plus(2)) / 1000).collect()
}

fn sent(peer: &mut Peer) -> Vec<u32> {
    let sent = peer.take();
    thousands(peer, &sent)
}

fn info(peer: &Peer) -> FlowInfo {
    peer.host.engine.flow_info(peer.flow).expect("it is open")
}

#[test]
fn a_single_loss_is_retransmitted_with_one_segment() {
    let mut peer = sending(8);
    peer.now += ROUND_TRIP;
    acknowledge(&mut peer, 0, &[(1, 2)]);
    assert_eq!(sent(&mut peer), NOTHING);
    assert_eq!(info(&peer).recovery, RecoveryState::Disorder);
    acknowledge(&mut peer, 0, &[(1, 4)]);
    assert_eq!(sent(&mut peer), [0]);
    assert_eq!((info(&peer).recovery, info(&peer).recoveries), (RecoveryState::Recovery, 1));
    acknowledge(&mut peer, 0, &[(1, 8)]);
    peer.now += ROUND_TRIP;
    acknowledge(&mut peer, 8, &[]);
    assert_eq!(sent(&mut peer), NOTHING);
    let info = info(&peer);
    assert_eq!((info.recovery, info.retransmits, info.retransmitted_bytes), (RecoveryState::Open, 1, 1000));
    assert_eq!((info.sacked, info.lost, info.in_flight), (0, 0, 0));
}

#[test]
fn a_burst_of_losses_is_retransmitted_in_one_recovery_and_nothing_else_is_sent() {
    let mut peer = sending(10);
    peer.now += ROUND_TRIP;
    acknowledge(&mut peer, 1, &[(4, 10)]);
    let mut again = sent(&mut peer);
    for _ in 0..10 {
        peer.now += ROUND_TRIP;
        let through = (1..4).find(|thousand| !again.contains(thousand)).unwrap_or(10);
        acknowledge(&mut peer, through, if through < 4 { &[(4, 10)] } else { &[] });
        again.extend(sent(&mut peer));
    }
    assert_eq!(again, [1, 2, 3]);
    assert_eq!((info(&peer).recoveries, info(&peer).timeouts), (1, 0));
}

#[test]
fn a_lost_tail_is_probed_long_before_the_timeout() {
    let mut peer = sending(6);
    peer.now += ROUND_TRIP;
    acknowledge(&mut peer, 3, &[]);
    let start = peer.now;
    let probes = peer.until(start + 5 * ROUND_TRIP);
    assert_eq!(thousands(&peer, &probes), [5], "the last segment");
    assert!(probes[0].at - start < 3 * ROUND_TRIP + limits::TAIL_SLACK);
    peer.now += ROUND_TRIP;
    acknowledge(&mut peer, 3, &[(5, 6)]);
    let mut again = sent(&mut peer);
    while again.len() < 2 {
        peer.now += ROUND_TRIP;
        acknowledge(&mut peer, 3 + again.len() as u32, &[(5, 6)]);
        again.extend(sent(&mut peer));
    }
    assert_eq!(again, [3, 4]);
    acknowledge(&mut peer, 6, &[]);
    assert_eq!((info(&peer).timeouts, info(&peer).tail_probes, info(&peer).in_flight), (0, 1, 0));
}

#[test]
fn late_segments_are_not_retransmitted_once_reordering_was_seen() {
    let mut peer = sending(4);
    peer.now += ROUND_TRIP;
    acknowledge(&mut peer, 0, &[(1, 2)]);
    peer.now += ROUND_TRIP / 8;
    acknowledge(&mut peer, 4, &[]);
    assert_eq!(sent(&mut peer), NOTHING, "within a quarter of a round trip");
    assert!(info(&peer).reordered > 0);
    peer.host.engine.send(peer.flow, &[8; 8000]);
    peer.poll();
    assert_eq!(peer.take().len(), 8);
    peer.now += ROUND_TRIP;
    acknowledge(&mut peer, 4, &[(5, 12)]);
    assert_eq!(sent(&mut peer), NOTHING, "many arrived before it, yet it may only be late");
    peer.now += ROUND_TRIP / 8;
    acknowledge(&mut peer, 12, &[]);
    assert_eq!((sent(&mut peer), info(&peer).retransmits, info(&peer).recoveries), (vec![], 0, 0));
    // If it was lost, a timer expires.
    peer.host.engine.send(peer.flow, &[9; 4000]);
    peer.poll();
    peer.take();
    peer.now += ROUND_TRIP;
    acknowledge(&mut peer, 12, &[(13, 16)]);
    assert_eq!(sent(&mut peer), NOTHING);
    let later = peer.until(peer.now + ROUND_TRIP);
    assert_eq!(thousands(&peer, &later), [12]);
}

#[test]
fn a_lost_retransmission_is_found_without_a_timeout() {
    let mut peer = sending(8);
    peer.host.engine.send(peer.flow, &[7; 20_000]);
    peer.poll();
    peer.take();
    peer.now += ROUND_TRIP;
    acknowledge(&mut peer, 0, &[(1, 8)]);
    let first = sent(&mut peer);
    assert_eq!(first[0], 0);
    let beyond = peer.until(peer.now + MILLISECOND);
    assert!(beyond.is_empty());
    // What was sent after the retransmission arrives, the retransmission does not.
    peer.now += ROUND_TRIP;
    let newest = *first.last().expect("new data left with it");
    assert!(newest >= 8, "{first:?}");
    peer.now += ROUND_TRIP;
    acknowledge(&mut peer, 0, &[(1, newest + 1)]);
    let mut second = sent(&mut peer);
    if !second.contains(&0) {
        let highest = second.last().map_or(newest, |last| (*last).max(newest));
        peer.now += ROUND_TRIP;
        acknowledge(&mut peer, 0, &[(1, highest + 1)]);
        second.extend(sent(&mut peer));
    }
    assert!(second.contains(&0), "{first:?} {second:?}");
    assert_eq!(info(&peer).timeouts, 0);
}

#[test]
fn a_dsack_undoes_a_spurious_reduction() {
    let mut peer = sending(8);
    let before = info(&peer).congestion_window;
    peer.now += ROUND_TRIP;
    acknowledge(&mut peer, 0, &[(1, 5)]);
    assert_eq!(sent(&mut peer), [0]);
    // It was only late: both copies arrive.
    acknowledge(&mut peer, 8, &[]);
    assert!(info(&peer).congestion_window < before);
    acknowledge(&mut peer, 8, &[(0, 1)]);
    let info = info(&peer);
    assert_eq!((info.dsacks_received, info.reductions_undone), (1, 1));
    assert!(info.congestion_window >= before);
}

#[test]
fn a_spurious_timeout_is_undone_and_nothing_more_is_retransmitted() {
    let mut peer = sending(8);
    let before = info(&peer).congestion_window;
    let sent = peer.until(peer.now + 400 * MILLISECOND);
    assert_eq!(thousands(&peer, &sent), [7, 0], "a probe of the tail, then the timeout");
    assert_eq!(info(&peer).recovery, RecoveryState::Loss);
    // The path had stalled: now everything arrives, the first four first.
    acknowledge(&mut peer, 4, &[]);
    assert_eq!(info(&peer).reductions_undone, 1);
    assert!(info(&peer).congestion_window >= before);
    acknowledge(&mut peer, 8, &[]);
    peer.nothing();
    assert_eq!(info(&peer).retransmits, 2);
}

#[test]
fn a_receiver_may_renege() {
    let mut peer = sending(8);
    peer.now += ROUND_TRIP;
    acknowledge(&mut peer, 0, &[(1, 8)]);
    assert_eq!(sent(&mut peer), [0]);
    peer.now += ROUND_TRIP;
    // The receiver has dropped all ranges that it had reported but the first.
    acknowledge(&mut peer, 1, &[(1, 2)]);
    let mut through = 1;
    for _ in 0..30 {
        let again = peer.until(peer.now + 20 * ROUND_TRIP);
        for thousand in thousands(&peer, &again) {
            if thousand == through {
                through += 1;
            }
        }
        acknowledge(&mut peer, through, &[]);
        let more = sent(&mut peer);
        for thousand in more {
            if thousand == through {
                through += 1;
            }
        }
        acknowledge(&mut peer, through, &[]);
    }
    assert_eq!(through, 8);
    assert!(peer.host.engine.metrics().sack_reneges > 0);
    assert_eq!(info(&peer).unsent_or_unacknowledged, 0);
}

/// Two percent of the data frames are lost, some of the copies too: hardly more is retransmitted
/// than was lost, without a timeout but for rare cases.
#[test]
fn only_lost_bytes_are_retransmitted() {
    for seed in 1..6u64 {
        // A window of no more frames than fit the queue: what overflows it is not counted.
        let mut network = Network::with(|_| {}, |config| config.receive_buffer = 512 << 10);
        let (client, server) = network.open();
        let state = Rc::new(Cell::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
        let lost = Rc::new(Cell::new(0u64));
        let count = Rc::clone(&lost);
        network.fate = Box::new(move |_, from, frame| {
            let mut x = state.get();
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            state.set(x);
            if from == From::Client && frame.len() > 200 && x % 50 == 0 {
                count.set(count.get() + 1);
                return Fate::Drop;
            }
            Fate::Pass
        });
        let total = 3_000_000;
        let (mut written, mut read) = (0, 0);
        while read < total {
            if written < total {
                let chunk = vec![5; (total - written).min(64 << 10)];
                written += network.client.engine.send(client, &chunk);
            }
            assert!(network.advance(), "it goes on");
            read += network.server.read_all(server).len();
            network.step();
        }
        network.run_until(network.now + SECOND);
        let again = network.client.engine.metrics().retransmits;
        assert!(lost.get() > 20, "{}", lost.get());
        assert!(
            again >= lost.get() && again <= lost.get() + lost.get() / 5 + 3,
            "{again} for {}",
            lost.get()
        );
    }
}

/// Without SACK the same transfer works as RFC 6582 has it.
#[test]
fn a_peer_without_selective_acknowledgements_is_served_as_well() {
    let mut peer = Peer::connected(|_| {});
    peer.host.engine.send(peer.flow, &[9; 8000]);
    peer.poll();
    assert_eq!(peer.take().len(), 8);
    for _ in 0..3 {
        peer.say(0, 0, ACK, b"");
    }
    let again = peer.take();
    assert_eq!((again.len(), again[0].seq), (1, peer.irs.plus(1)));
    for _ in 0..4 {
        peer.say(0, 0, ACK, b"");
    }
    peer.nothing();
    peer.say(0, 8000, ACK, b"");
    assert_eq!((info(&peer).recovery, info(&peer).retransmits), (RecoveryState::Open, 1));
}

/// What a hostile receiver may do to a sender. Memory is bounded for all its segments, and a valid
/// acknowledgement later restores the connection.
#[test]
fn floods_of_ranges_are_bounded_and_the_connection_lives() {
    let mut peer = Peer::new(|config| config.send_buffer = 1 << 20);
    peer.handshake(Options::Syn { mss: 1000, shift: Some(7), sack: true, timestamps: None });
    let total = 400_000u32;
    peer.host.engine.send(peer.flow, &vec![1; total as usize]);
    peer.poll();
    let mut max = 0;
    let mut seed = 7u32;
    let mut honest = 0;
    for round in 0..3000u32 {
        for got in peer.take() {
            max = max.max(got.seq.since(peer.irs.plus(1)) + got.payload.len() as u32);
        }
        let mut blocks = SackBlocks::default();
        for _ in 0..4 {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let at = honest + (seed >> 8) % (max - honest + 2000);
            // Every third is inverted or far away; most of the others are single bytes.
            let length = [1, 1, 0u32.wrapping_sub(50), 500, 1 << 30][(seed >> 3) as usize % 5];
            blocks.push((peer.irs.plus(1 + at), peer.irs.plus(1 + at.wrapping_add(length))));
        }
        if round % 50 == 49 {
            honest = (honest + 3000).min(max);
        }
        let options = Options::Sack { timestamps: None, blocks };
        peer.put(PEER_ISS.plus(1), peer.irs.plus(1 + honest), ACK, options, b"");
        peer.now += MILLISECOND;
        peer.poll();
        let info = info(&peer);
        assert!(info.scoreboard_runs <= limits::RUNS + 1, "{}", info.scoreboard_runs);
        assert!(info.congestion_window <= 4 * total);
    }
    // From here on the peer is honest.
    let mut here = HashSet::new();
    let mut acknowledged = honest;
    for _ in 0..3000 {
        for got in peer.until(peer.now + ROUND_TRIP) {
            here.extend((0..got.payload.len() as u32).map(|at| got.seq.since(peer.irs.plus(1)) + at));
        }
        while here.remove(&acknowledged) {
            acknowledged += 1;
        }
        peer.put(PEER_ISS.plus(1), peer.irs.plus(1 + acknowledged), ACK, Options::None, b"");
        if info(&peer).unsent_or_unacknowledged == 0 {
            break;
        }
    }
    assert_eq!(info(&peer).unsent_or_unacknowledged, 0, "{:?}", info(&peer));
}

/// Savage et al.: acknowledging byte by byte, in advance, or repeatedly gains nothing.
#[test]
fn split_duplicate_and_optimistic_acknowledgements_gain_nothing() {
    let grown = |split: u32| {
        let mut peer = sending(8);
        peer.host.engine.send(peer.flow, &[7; 60_000]);
        peer.poll();
        peer.take();
        peer.now += ROUND_TRIP;
        for part in 1..=split {
            let ack = peer.irs.plus(2 + 4000 * part / split);
            peer.put(PEER_ISS.plus(1), ack, ACK, Options::None, b"");
        }
        info(&peer).congestion_window
    };
    assert!(grown(1000) <= grown(1), "splitting: {} {}", grown(1000), grown(1));
    // Optimistic ACKs: an acknowledgement of bytes that were never sent counts for nothing.
    let mut peer = sending(8);
    let window = info(&peer).congestion_window;
    acknowledge(&mut peer, 50, &[]);
    assert_eq!((info(&peer).congestion_window, info(&peer).in_flight), (window, 8000));
    assert!(!peer.take().is_empty(), "it is challenged");
    // Duplicates: more of them than segments in flight release no more segments than that.
    let mut peer = Peer::connected(|_| {});
    peer.host.engine.send(peer.flow, &[9; 100_000]);
    peer.poll();
    let first = peer.take().len();
    for _ in 0..1000 {
        peer.say(0, 0, ACK, b"");
    }
    let more = peer.take().len();
    assert!(more <= 2 * first, "{more} after {first}");
}

/// A window of one byte, then of zero for ever: the memory of an orphaned flow is freed in the end.
#[test]
fn a_tiny_or_closed_window_holds_nothing_for_ever() {
    let mut peer = sending(2);
    peer.window = 1;
    acknowledge(&mut peer, 2, &[]);
    peer.host.engine.send(peer.flow, &[1; 5000]);
    let seen = Rc::new(RefCell::new(0usize));
    for step in 0..20u32 {
        let sent = peer.until(peer.now + 3 * SECOND);
        let bytes: usize = sent.iter().map(|got| got.payload.len()).sum();
        assert!(bytes <= 20, "{bytes} bytes into a window of one");
        *seen.borrow_mut() += bytes;
        let _ = step;
        acknowledge(&mut peer, 2, &[]);
    }
    peer.window = 0;
    acknowledge(&mut peer, 2, &[]);
    peer.host.engine.close(peer.flow);
    for _ in 0..60 {
        let Some(next) = peer.host.engine.next_deadline() else { break };
        peer.until(next);
        if peer.host.engine.population().0 > 0 {
            acknowledge(&mut peer, 2, &[]);
        }
    }
    assert_eq!(peer.host.engine.population().0, 0);
    assert_eq!(peer.host.engine.population().3, 0, "no byte of memory either");
}
