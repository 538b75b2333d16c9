//! The rules of TCP, UDP and ICMP, one segment at a time.

use std::collections::HashSet;

use crate::harness::peer::{PEER_ISS, PEER_MAC, Peer};
use crate::harness::{Fate, MILLISECOND, Network, SECOND, SERVER_PORT};
use sietch_net::packet::tcp::{ACK, FIN, Options, PSH, RST, SYN};
use sietch_net::{CloseReason, EventKind, Seq, State, limits};

const PLAIN: Options = Options::Syn { mss: 1000, shift: None, sack: false, timestamps: None };

#[test]
fn retransmits_with_exact_exponential_backoff_and_gives_up() {
    let mut peer = Peer::connected(|_| {});
    peer.host.engine.send(peer.flow, b"data");
    peer.poll();
    let start = peer.now;
    assert_eq!(peer.one().payload, b"data");
    let sent = peer.until(start + 1000 * SECOND);
    let (last, repeats) = sent.split_last().expect("it repeats itself");
    let mut expected = Vec::new();
    let mut at = start;
    for attempt in 0..u32::from(limits::RETRANSMITS) {
        at += ((200 * MILLISECOND) << attempt.min(20)).min(60 * SECOND);
        expected.push(at);
    }
    assert_eq!(repeats.iter().map(|got| got.at).collect::<Vec<_>>(), expected);
    assert!(repeats.iter().all(|got| got.payload == b"data"));
    assert_eq!(last.flags & RST, RST);
    assert!(peer.host.saw(peer.flow, EventKind::Closed(CloseReason::TimedOut)));
    assert_eq!(peer.host.engine.population(), (0, 0, 0, 0));
}

#[test]
fn a_syn_without_an_answer_times_out_and_a_reset_refuses() {
    let mut network = Network::new();
    network.fate = Box::new(|_, _, frame| if frame[12..14] == [8, 6] { Fate::Pass } else { Fate::Drop });
    let flow =
        network.client.engine.connect(network.server_address(), network.now).expect("there is a route");
    network.run_until(network.now + 200 * SECOND);
    assert!(network.client.saw(flow, EventKind::Closed(CloseReason::TimedOut)));
    network.fate = Box::new(|_, _, _| Fate::Pass);
    let mut address = network.server_address();
    address.set_port(9);
    let flow = network.client.engine.connect(address, network.now).expect("there is a route");
    network.run();
    assert!(network.client.saw(flow, EventKind::Closed(CloseReason::Refused)));
    network.fate = Box::new(|_, _, _| Fate::Drop);
    address.set_ip("10.0.0.77".parse().expect("an address"));
    let flow = network.client.engine.connect(address, network.now).expect("it is on the link");
    network.run_until(network.now + 10 * SECOND);
    assert!(network.client.saw(flow, EventKind::Closed(CloseReason::Unreachable)));
    address.set_ip("192.0.2.1".parse().expect("an address"));
    assert!(network.client.engine.connect(address, network.now).is_err(), "off the link without a gateway");
}

#[test]
fn a_reset_counts_only_with_the_exact_sequence_number() {
    let mut peer = Peer::connected(|_| {});
    peer.say(500, 0, RST, b"");
    let challenge = peer.one();
    assert_eq!((challenge.flags, challenge.ack), (ACK, PEER_ISS.plus(1)));
    peer.say(501, 0, RST, b"");
    peer.nothing();
    peer.now += SECOND;
    peer.say(100_000, 0, RST, b"");
    peer.nothing();
    assert!(!peer.host.saw_any_close());
    peer.say(0, 0, RST, b"");
    assert!(peer.host.saw(peer.flow, EventKind::Closed(CloseReason::Reset)));
    assert_eq!(peer.host.engine.send(peer.flow, b"x"), 0, "a stale id is harmless");
}

#[test]
fn a_syn_on_a_live_connection_gets_a_challenge() {
    let mut peer = Peer::connected(|_| {});
    peer.put(Seq(77), Seq(0), SYN, PLAIN, b"");
    assert_eq!(peer.one().flags, ACK);
    peer.now += SECOND;
    peer.say(10, 0, SYN, b"");
    assert_eq!(peer.one().flags, ACK);
    assert!(!peer.host.saw_any_close());
    // A peer that restarted resets after the challenge, and can connect again.
    peer.say(0, 0, RST, b"");
    assert!(peer.host.saw_any_close());
    peer.handshake(PLAIN);
}

#[test]
fn acknowledgements_of_unsent_data_are_challenged() {
    let mut peer = Peer::connected(|_| {});
    peer.say(0, 1000, ACK, b"data");
    let challenge = peer.one();
    assert_eq!(challenge.ack, PEER_ISS.plus(1), "the data of such a segment do not count");
    peer.now += SECOND;
    peer.say(0, 0u32.wrapping_sub(100_000), ACK, b"data");
    assert_eq!(peer.one().ack, PEER_ISS.plus(1));
    assert!(peer.host.read_all(peer.flow).is_empty());
}

#[test]
fn a_syn_flood_takes_bounded_memory_and_an_honest_client_gets_in() {
    let mut peer = Peer::new(|config| config.half_open = 100);
    let mut sequence_numbers = HashSet::new();
    for port in 1..5000 {
        peer.port = port;
        peer.put(Seq(u32::from(port)), Seq(0), SYN, PLAIN, b"");
        let answer = peer.one();
        sequence_numbers.insert(answer.seq.0);
        assert!(peer.host.engine.population().1 <= 100);
    }
    assert!(sequence_numbers.len() > 4990, "initial sequence numbers differ");
    peer.port = 6000;
    peer.handshake(PLAIN);
    peer.until(peer.now + 100 * SECOND);
    assert_eq!(peer.host.engine.population().1, 0, "half-open connections go away");
}

#[test]
fn syn_acks_repeat_and_the_accept_queue_is_bounded() {
    let mut peer = Peer::new(|_| {});
    peer.put(PEER_ISS, Seq(0), SYN, PLAIN, b"");
    let start = peer.now;
    let answers = peer.until(start + 100 * SECOND);
    let times: Vec<_> = answers.iter().map(|got| (got.at - start) / SECOND).collect();
    assert_eq!(times, [0, 1, 3, 7, 15, 31]);
    peer.host.engine.unlisten(SERVER_PORT);
    peer.host.engine.listen(SERVER_PORT, 2).expect("it is free again");
    peer.host.hold_events = true;
    for port in 1..=3 {
        peer.port = port;
        peer.put(PEER_ISS, Seq(0), SYN, PLAIN, b"");
        peer.irs = peer.one().seq;
        peer.say(0, 0, ACK, b"");
    }
    assert_eq!(peer.host.engine.population().0, 2, "two wait for the application, the third outside");
    assert_eq!(peer.host.engine.population().1, 1);
    peer.host.hold_events = false;
    peer.poll();
    peer.say(0, 0, ACK, b"");
    peer.poll();
    assert_eq!(peer.host.accepted().len(), 3, "there is room again");
}

#[test]
fn a_closed_window_is_probed_and_data_flow_when_it_opens() {
    let mut peer = Peer::connected(|_| {});
    peer.window = 0;
    peer.say(0, 0, ACK, b"x");
    peer.host.read_all(peer.flow);
    peer.host.engine.send(peer.flow, &[7; 3000]);
    peer.poll();
    let start = peer.now;
    let acks = peer.take();
    assert!(acks.iter().all(|got| got.payload.is_empty()));
    let mut probes = Vec::new();
    for _ in 0..12 {
        let sent = peer.until(peer.host.engine.next_deadline().expect("a probe is due"));
        for got in sent.iter().filter(|got| !got.payload.is_empty()) {
            assert_eq!((got.seq, got.payload.len()), (peer.irs.plus(1), 1));
            probes.push(got.at - start);
            peer.say(1, 0, ACK, b"");
        }
    }
    assert!(probes.len() >= 4, "{probes:?}");
    assert!(probes.windows(3).all(|times| times[2] - times[1] == 2 * (times[1] - times[0])), "{probes:?}");
    // A peer that keeps answering may keep its window closed.
    peer.window = 60_000;
    peer.say(1, 0, ACK, b"");
    let bytes: usize = peer.take().iter().map(|got| got.payload.len()).sum();
    assert_eq!(bytes, 3000);
}

#[test]
fn our_own_window_closes_never_shrinks_and_opens_in_full_segments() {
    let mut peer = Peer::connected(|config| config.receive_buffer = 8192);
    let mut edge = 8192;
    let mut offset = 0u32;
    while offset < 8192 {
        let length = (8192 - offset).min(1000);
        peer.say(offset, 0, ACK, &vec![1; length as usize]);
        offset += length;
        for got in peer.take() {
            let new_edge = got.ack.since(PEER_ISS.plus(1)) + u32::from(got.window);
            assert!(new_edge >= edge, "the window shrank");
            edge = new_edge;
        }
    }
    peer.until(peer.now + SECOND);
    peer.say(offset, 0, ACK, b"probe");
    let answer = peer.one();
    assert_eq!((answer.window, answer.ack), (0, PEER_ISS.plus(1 + 8192)));
    peer.host.engine.consume(peer.flow, 100);
    peer.poll();
    peer.nothing();
    peer.host.engine.consume(peer.flow, 1000);
    peer.poll();
    assert_eq!(peer.one().window, 1100, "a silly window is not announced");
}

#[test]
fn acknowledges_every_second_segment_at_once_and_a_single_one_later() {
    let mut peer = Peer::connected(|_| {});
    peer.say(0, 0, ACK, b"one");
    peer.nothing();
    let later = peer.until(peer.now + SECOND);
    assert_eq!(later.len(), 1);
    assert_eq!(later[0].at, SECOND + limits::DELAYED_ACK);
    peer.say(3, 0, ACK, b"two");
    peer.nothing();
    peer.say(6, 0, ACK, b"three");
    assert_eq!(peer.one().ack, PEER_ISS.plus(12));
    peer.say(11, 0, ACK, b"question");
    peer.host.engine.send(peer.flow, b"answer");
    peer.poll();
    let answer = peer.one();
    assert_eq!((answer.ack, answer.payload.as_slice()), (PEER_ISS.plus(20), b"answer".as_slice()));
    peer.say(19, 6, ACK, b"");
    assert!(peer.until(peer.now + SECOND).is_empty(), "the answer carried the acknowledgement");
}

#[test]
fn each_segment_out_of_order_is_answered_with_a_duplicate() {
    let mut peer = Peer::connected(|_| {});
    for index in 1..=3 {
        peer.say(index * 10, 0, ACK, b"0123456789");
        let duplicate = peer.one();
        assert_eq!((duplicate.ack, duplicate.flags), (PEER_ISS.plus(1), ACK));
    }
    peer.say(0, 0, ACK, b"abcdefghij");
    assert_eq!(peer.one().ack, PEER_ISS.plus(41));
    assert_eq!(peer.host.read_all(peer.flow), b"abcdefghij012345678901234567890123456789");
}

#[test]
fn three_duplicates_bring_the_segment_at_once_and_partial_ones_the_next() {
    let mut peer = Peer::connected(|_| {});
    peer.host.engine.send(peer.flow, &[9; 8000]);
    peer.poll();
    assert_eq!(peer.take().len(), 8);
    for _ in 0..2 {
        peer.say(0, 0, ACK, b"");
        peer.nothing();
    }
    peer.say(0, 0, ACK, b"");
    let again = peer.one();
    assert_eq!((again.seq, again.payload.len()), (peer.irs.plus(1), 1000));
    peer.say(0, 3000, ACK, b"");
    assert_eq!(peer.one().seq, peer.irs.plus(3001), "a partial acknowledgement names the next hole");
    peer.say(0, 8000, ACK, b"");
    peer.nothing();
    let info = peer.host.engine.flow_info(peer.flow).expect("it is open");
    assert_eq!(info.retransmits, 2);
    assert!(info.congestion_window < 10_000);
}

#[test]
fn old_timestamps_are_refused_and_peers_without_options_served() {
    let mut peer = Peer::new(|_| {});
    peer.handshake(Options::Syn { mss: 1460, shift: Some(7), sack: false, timestamps: Some((5000, 0)) });
    let info = peer.host.engine.flow_info(peer.flow).expect("it is open");
    assert!(info.timestamps);
    assert_eq!((info.segment_size, info.peer_window), (1448, 60_000 << 7));
    let (seq, ack) = (PEER_ISS.plus(1), peer.irs.plus(1));
    peer.put(seq, ack, ACK, Options::Timestamps(4000, 0), b"from the past");
    assert_eq!(peer.one().flags, ACK);
    peer.put(seq, ack, ACK, Options::None, b"no timestamp");
    peer.nothing();
    assert!(peer.host.read_all(peer.flow).is_empty());
    peer.put(seq, ack, ACK, Options::Timestamps(5001, 0), b"new");
    assert_eq!(peer.host.read_all(peer.flow), b"new");
    let echoed = peer.until(peer.now + SECOND);
    assert_eq!(echoed[0].options.timestamps.expect("it has them").1, 5001);
    let mut bare = Peer::new(|_| {});
    bare.handshake(Options::None);
    let info = bare.host.engine.flow_info(bare.flow).expect("it is open");
    assert_eq!((info.segment_size, info.peer_window, info.timestamps), (536, 60_000, false));
}

#[test]
fn keepalive_probes_a_silent_peer_and_ends_the_flow() {
    let mut peer = Peer::connected(|_| {});
    peer.host.engine.set_keepalive(peer.flow, Some(30 * SECOND));
    let start = peer.now;
    let probes = peer.until(start + 31 * SECOND);
    assert_eq!((probes.len(), probes[0].seq, probes[0].at), (1, peer.irs, start + 30 * SECOND));
    peer.say(0, 0, ACK, b"");
    let answered = peer.now;
    let probes = peer.until(answered + 300 * SECOND);
    assert_eq!(probes.len(), 1 + usize::from(limits::KEEPALIVE_PROBES));
    assert_eq!(probes[0].at, answered + 30 * SECOND);
    assert!(peer.host.saw(peer.flow, EventKind::Closed(CloseReason::TimedOut)));
}

#[test]
fn data_flow_after_either_side_has_closed() {
    let mut peer = Peer::connected(|_| {});
    peer.say(0, 0, ACK | FIN, b"last words");
    assert_eq!(peer.one().ack, PEER_ISS.plus(12));
    assert_eq!(peer.host.engine.flow_info(peer.flow).expect("it is open").state, State::CloseWait);
    assert_eq!(peer.host.read_all(peer.flow), b"last words");
    assert!(peer.host.engine.at_end(peer.flow));
    peer.host.engine.send(peer.flow, b"answer");
    peer.poll();
    assert_eq!(peer.one().payload, b"answer");
    peer.host.engine.shutdown_send(peer.flow);
    peer.poll();
    assert_eq!(peer.one().flags & FIN, FIN);
    peer.say(11, 7, ACK, b"");
    assert!(peer.host.saw(peer.flow, EventKind::Closed(CloseReason::Normal)));
    assert_eq!(peer.host.engine.population(), (0, 0, 0, 0), "the passive side does not wait");
}

#[test]
fn both_close_at_once() {
    let mut peer = Peer::connected(|_| {});
    peer.host.engine.shutdown_send(peer.flow);
    peer.poll();
    assert_eq!(peer.one().flags, FIN | ACK | PSH);
    peer.say(0, 0, FIN | ACK, b"");
    assert_eq!(peer.host.engine.flow_info(peer.flow).expect("it is open").state, State::Closing);
    assert_eq!(peer.one().ack, PEER_ISS.plus(2));
    peer.say(1, 1, ACK, b"");
    assert!(peer.host.saw(peer.flow, EventKind::Closed(CloseReason::Normal)));
    assert_eq!(peer.host.engine.population().2, 1);
}

#[test]
fn both_open_at_once() {
    let mut peer = Peer::new(|config| config.source_ports = (40_000, 40_000));
    // The engine learns the peer's link address from its request.
    let frame = arp_request();
    assert!(peer.host.tap.deliver(&frame));
    peer.poll();
    peer.take();
    peer.flow = peer
        .host
        .engine
        .connect(std::net::SocketAddr::from(([10, 0, 0, 1], 5555)), peer.now)
        .expect("there is a route");
    peer.engine_port = 40_000;
    peer.poll();
    let syn = peer.one();
    assert_eq!((syn.flags, syn.port), (SYN, 40_000));
    peer.irs = syn.seq;
    peer.put(PEER_ISS, Seq(0), SYN, PLAIN, b"");
    let both = peer.one();
    assert_eq!((both.flags, both.seq, both.ack), (SYN | ACK, syn.seq, PEER_ISS.plus(1)));
    peer.put(PEER_ISS, syn.seq.plus(1), SYN | ACK, PLAIN, b"");
    assert!(peer.host.saw(peer.flow, EventKind::Connected));
    peer.take();
    peer.say(0, 0, ACK, b"hello");
    assert_eq!(peer.host.read_all(peer.flow), b"hello");
}

fn arp_request() -> Vec<u8> {
    let mut frame = vec![0xff; 6];
    frame.extend(PEER_MAC);
    frame.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
    frame.extend(PEER_MAC);
    frame.extend([10, 0, 0, 1, 0, 0, 0, 0, 0, 0, 10, 0, 0, 2]);
    frame
}

#[test]
fn closing_with_unread_data_or_receiving_after_close_resets() {
    let mut peer = Peer::connected(|_| {});
    peer.say(0, 0, ACK, b"never read");
    peer.host.engine.close(peer.flow);
    peer.poll();
    assert_eq!(peer.one().flags & RST, RST);
    assert_eq!(peer.host.engine.population(), (0, 0, 0, 0));
    let mut peer = Peer::connected(|_| {});
    peer.host.engine.send(peer.flow, b"bye");
    peer.host.engine.close(peer.flow);
    peer.poll();
    let last = peer.one();
    assert_eq!((last.flags & FIN, last.payload.as_slice()), (FIN, b"bye".as_slice()));
    peer.say(0, 4, ACK, b"too late");
    assert_eq!(peer.one().flags & RST, RST);
    assert_eq!(peer.host.engine.population(), (0, 0, 0, 0));
}

#[test]
fn time_wait_answers_a_repeated_fin_and_yields_to_a_new_connection() {
    let mut peer = Peer::connected(|config| config.time_waits = 1);
    peer.host.engine.shutdown_send(peer.flow);
    peer.poll();
    peer.one();
    peer.say(0, 1, FIN | ACK, b"");
    assert_eq!(peer.one().ack, PEER_ISS.plus(2));
    assert!(peer.host.saw(peer.flow, EventKind::Closed(CloseReason::Normal)));
    peer.now += SECOND;
    peer.say(0, 1, FIN | ACK, b"");
    assert_eq!(peer.one().ack, PEER_ISS.plus(2));
    peer.say(1, 1, RST, b"");
    assert_eq!(peer.host.engine.population().2, 1, "a reset does not assassinate TIME-WAIT");
    peer.now += SECOND;
    peer.put(PEER_ISS.minus(5), Seq(0), SYN, PLAIN, b"");
    assert_eq!(peer.one().flags, ACK, "an old duplicate");
    peer.put(PEER_ISS.plus(50_000), Seq(0), SYN, PLAIN, b"");
    let answer = peer.one();
    assert_eq!(answer.flags, SYN | ACK);
    assert!(answer.seq.after(peer.irs.plus(2)), "the new numbers are beyond the old");
    assert_eq!(peer.host.engine.population().2, 0);
}

#[test]
fn detached_flows_do_not_stay_for_ever() {
    let mut peer = Peer::connected(|_| {});
    peer.host.engine.close(peer.flow);
    peer.poll();
    peer.one();
    peer.say(0, 1, ACK, b"");
    assert_eq!(peer.host.engine.population().0, 1);
    peer.until(peer.now + limits::FIN_WAIT_2 + SECOND);
    assert_eq!(peer.host.engine.population().0, 0);
    // A peer that keeps its window closed cannot hold a flow without an application.
    let mut peer = Peer::connected(|_| {});
    peer.window = 0;
    peer.say(0, 0, ACK, b"x");
    peer.host.read_all(peer.flow);
    peer.host.engine.send(peer.flow, b"stuck");
    peer.host.engine.close(peer.flow);
    for _ in 0..40 {
        let Some(next) = peer.host.engine.next_deadline() else { break };
        peer.until(next);
        if peer.host.engine.population().0 > 0 {
            peer.say(1, 0, ACK, b"");
        }
    }
    assert_eq!(peer.host.engine.population().0, 0);
}

#[test]
fn answers_echo_and_udp_and_bounds_replies_to_unmatched_packets() {
    let mut network = Network::new();
    network.client.engine.udp_bind(53).expect("free");
    network.server.engine.udp_bind(53).expect("free");
    let address = std::net::SocketAddrV4::new(network.server.address, 53);
    network.client.engine.udp_send(53, address, b"query").expect("there is room");
    network.run();
    network.run_until(network.now + SECOND);
    let datagram = network.server.engine.udp_receive(53).expect("it arrived");
    assert_eq!(datagram.payload, b"query");
    network.server.engine.udp_send(53, datagram.remote, b"reply").expect("there is room");
    network.run();
    assert!(network.client.events.iter().any(|event| event.kind == EventKind::Datagram { port: 53 }));
    assert_eq!(network.client.engine.udp_receive(53).expect("it arrived").payload, b"reply");
    let mut unbound = address;
    unbound.set_port(54);
    for _ in 0..500 {
        network.client.engine.udp_send(53, unbound, b"?").expect("there is room");
        network.run();
    }
    assert!(network.server.engine.metrics().rate_limited > 0, "refusals are bounded");
}

#[test]
fn ten_thousand_idle_connections_hold_no_buffers() {
    let mut peer = Peer::new(|_| {});
    for port in 1..=10_000 {
        peer.port = port;
        peer.handshake(PLAIN);
        peer.say(0, 0, ACK, b"request");
        assert_eq!(peer.host.read_all(peer.flow), b"request");
        peer.host.engine.send(peer.flow, b"reply");
        peer.poll();
        assert_eq!(peer.one().payload, b"reply");
        peer.say(7, 5, ACK, b"");
        peer.host.events.clear();
    }
    assert_eq!(peer.host.engine.population(), (10_000, 0, 0, 0));
    peer.until(peer.now + SECOND);
    assert_eq!(peer.host.engine.next_deadline(), None, "idle connections need no deadline");
}

#[test]
fn buffer_memory_is_bounded_over_all_flows() {
    let mut peer = Peer::new(|config| config.buffer_memory = 64 << 10);
    for port in 1..=40 {
        peer.port = port;
        peer.handshake(PLAIN);
        peer.say(0, 0, ACK, &[1; 1000]);
        peer.take();
        assert!(peer.host.engine.population().3 <= 64 << 10);
    }
    assert!(peer.host.engine.metrics().buffer_drops > 0);
    // The last one's segment was dropped, not acknowledged: it arrives when there is memory again.
    peer.now += SECOND;
    let first = peer.host.accepted()[0];
    assert_eq!(peer.host.read_all(first).len(), 1000);
    peer.say(0, 0, ACK, &[1; 1000]);
    assert_eq!(peer.host.read_all(peer.flow).len(), 1000);
}

#[test]
fn a_closed_flow_is_not_held_by_a_talkative_peer() {
    let mut peer = Peer::connected(|_| {});
    peer.host.engine.close(peer.flow);
    peer.poll();
    peer.say(0, 1, ACK, b"");
    for _ in 0..10 {
        peer.until(peer.now + limits::FIN_WAIT_2 / 8);
        peer.say(0, 1, ACK, b"");
    }
    assert_eq!(peer.host.engine.population().0, 0);
}

/// What a receiver announces, for all scales of its windows, all sizes of segments, and all reads.
mod announced {
    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Copy, Debug)]
    enum Step {
        /// The peer sends this many bytes, or what the window takes.
        Send(usize),
        /// The application reads at most this many.
        Read(usize),
        /// This many milliseconds pass.
        Wait(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (1..200_usize).prop_map(Step::Send),
            3 => (1..1000_usize).prop_map(Step::Send),
            1 => (1..20_000_usize).prop_map(Step::Read),
            1 => (1..60_u64).prop_map(Step::Wait),
        ]
    }

    struct Receiver {
        peer: Peer,
        scale: u8,
        sent: usize,
        read: usize,
        /// The highest right edge that was announced.
        edge: usize,
    }

    impl Receiver {
        fn new(receive_buffer: usize) -> Self {
            let mut peer = Peer::new(|config| config.receive_buffer = receive_buffer);
            peer.handshake(Options::Syn { mss: 1000, shift: Some(0), sack: false, timestamps: None });
            let info = peer.host.engine.flow_info(peer.flow).expect("it is open");
            // What the SYN-ACK says is not scaled.
            let edge = receive_buffer.min(0xffff);
            Self { peer, scale: info.receive_scale, sent: 0, read: 0, edge }
        }

        fn take(&mut self, step: Step) {
            match step {
                Step::Send(length) => {
                    let length = length.min(self.edge - self.sent);
                    if length > 0 {
                        self.peer.say(self.sent as u32, 0, ACK, &vec![7; length]);
                        self.sent += length;
                    }
                }
                Step::Read(length) => {
                    let mut bytes = vec![0; length];
                    let flow = self.peer.flow;
                    self.read += self.peer.host.engine.read(flow, &mut bytes);
                    self.peer.poll();
                }
                Step::Wait(time) => {
                    let at = self.peer.now + time * MILLISECOND;
                    let sent = self.peer.until(at);
                    sent.iter().for_each(|got| self.check(got));
                }
            }
            let sent = self.peer.take();
            sent.iter().for_each(|got| self.check(got));
            let info = self.peer.host.engine.flow_info(self.peer.flow).expect("it is open");
            assert_eq!(info.received_bytes as usize, self.sent, "bytes in the window were dropped");
        }

        fn check(&mut self, got: &crate::harness::peer::Got) {
            let info = self.peer.host.engine.flow_info(self.peer.flow).expect("it is open");
            let announced =
                got.ack.since(PEER_ISS.plus(1)) as usize + (usize::from(got.window) << self.scale);
            assert!(announced <= self.read + info.receive_buffer, "more than the buffer takes");
            assert!(announced + (1 << self.scale) > self.edge, "it moved back by {}", self.edge - announced);
            self.edge = self.edge.max(announced);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn windows_fit_the_buffer_and_all_bytes_in_them_are_taken(
            size in 13..27_u32,
            steps in proptest::collection::vec(step(), 100..800),
        ) {
            let mut receiver = Receiver::new(1 << size);
            steps.into_iter().for_each(|step| receiver.take(step));
        }
    }

    #[test]
    fn small_segments_do_not_move_the_edge() {
        let mut receiver = Receiver::new(64 << 20);
        let edge = receiver.edge;
        while receiver.sent < edge {
            receiver.take(Step::Send(10));
        }
        receiver.take(Step::Wait(50));
        assert_eq!((receiver.edge, receiver.sent), (edge, edge));
    }
}

/// Ports of outgoing connections.
mod source_ports {
    use std::net::SocketAddrV4;

    use sietch_net::ConnectError;

    use super::*;

    fn peer(last: u8, port: u16) -> SocketAddrV4 {
        SocketAddrV4::new([10, 0, 0, last].into(), port)
    }

    fn port_of(peer: &Peer, flow: sietch_net::FlowId) -> u16 {
        peer.host.engine.flow_info(flow).expect("it is open").local.port()
    }

    #[test]
    fn each_of_the_range_is_found_once_and_none_is_listened_on() {
        const FIRST: u16 = 40_000;
        const LAST: u16 = 49_999;
        let mut own = Peer::new(|config| config.source_ports = (FIRST, LAST));
        for port in (FIRST..=LAST).step_by(10) {
            own.host.engine.listen(port, 1).expect("it is free");
        }
        let mut seen = HashSet::new();
        for _ in 0..9000 {
            let flow = own.host.engine.connect(peer(1, 80), own.now).expect("there is a port");
            let port = port_of(&own, flow);
            assert!((FIRST..=LAST).contains(&port) && !port.is_multiple_of(10), "{port}");
            assert!(seen.insert(port), "{port} twice");
        }
        let refused = own.host.engine.connect(peer(1, 80), own.now);
        assert_eq!(refused, Err(ConnectError::NoPort(peer(1, 80).into())));
        // The same ports serve another peer.
        for _ in 0..1000 {
            own.host.engine.connect(peer(3, 80), own.now).expect("there is a port");
        }
    }

    #[test]
    fn the_next_port_does_not_follow_from_those_before() {
        let mut own = Peer::new(|_| {});
        let mut ports = Vec::new();
        for _ in 0..200 {
            let flow = own.host.engine.connect(peer(1, 80), own.now).expect("there is a port");
            ports.push(port_of(&own, flow));
        }
        let steps: HashSet<u16> = ports.windows(2).map(|two| two[1].wrapping_sub(two[0])).collect();
        assert!(steps.len() > 150, "ports follow a pattern: {ports:?}");
        let near = ports.windows(2).filter(|two| two[0].abs_diff(two[1]) < 16).count();
        assert!(near < 10, "{near} of 199 are neighbours of the one before");
    }

    /// A server that closes first holds each name in TIME-WAIT, and refuses a SYN that comes before
    /// its clocks have moved on.
    #[test]
    fn short_lived_connections_do_not_meet_earlier_ones_of_their_four_tuples() {
        let mut network = Network::with(|config| config.source_ports = (40_000, 40_063), |_| {});
        for round in 0..2000 {
            let client =
                network.client.engine.connect(network.server_address(), network.now).expect("a port");
            network.run();
            let connected = network.client.saw(client, EventKind::Connected);
            assert!(connected, "connection {round} waits for its SYN to be repeated");
            // More bytes than the initial sequence number moves by until the name may come again.
            assert_eq!(network.client.engine.send(client, &[1; 1000]), 1000);
            network.run();
            let server = *network.server.accepted().last().expect("it has arrived");
            assert_eq!(network.server.read_all(server).len(), 1000);
            network.server.engine.close(server);
            network.run();
            network.client.engine.close(client);
            network.run();
        }
        assert!(network.server.engine.population().2 > 0, "names are in TIME-WAIT");
    }
}

#[test]
fn bytes_before_a_reset_can_be_read_after_it() {
    for (reset, readable) in [(true, true), (false, false)] {
        let mut peer = Peer::connected(|_| {});
        peer.host.hold_events = true;
        peer.say(0, 0, ACK | PSH, b"last words");
        if reset {
            peer.say(10, 0, RST, b"");
        }
        let mut events = Vec::new();
        peer.host.engine.take_events(&mut events);
        let kinds: Vec<EventKind> = events.iter().map(|event| event.kind).collect();
        let closed = EventKind::Closed(CloseReason::Reset);
        assert!(kinds.contains(&EventKind::Readable), "{kinds:?}");
        assert_eq!((kinds.last() == Some(&closed), peer.host.engine.is_over(peer.flow)), (reset, reset));
        assert_eq!(peer.host.engine.received(peer.flow).0, b"last words");
        assert_eq!(peer.host.engine.send(peer.flow, b"?") == 0, readable);
        if !reset {
            continue;
        }
        // All of it, a part of it, or by closing: no second Closed event follows, and nothing is
        // left.
        let mut bytes = [0; 10];
        assert_eq!(peer.host.engine.read(peer.flow, &mut bytes), 10);
        peer.host.engine.close(peer.flow);
        peer.poll();
        events.clear();
        peer.host.engine.take_events(&mut events);
        assert_eq!(events, []);
        assert_eq!(peer.host.engine.population(), (0, 0, 0, 0));
    }
}

#[test]
fn unread_bytes_after_a_reset_are_released_with_the_next_events() {
    let mut peer = Peer::connected(|_| {});
    peer.host.hold_events = true;
    peer.say(0, 0, ACK | PSH, b"last words");
    peer.say(10, 0, RST, b"");
    let mut events = Vec::new();
    peer.host.engine.take_events(&mut events);
    assert_eq!(peer.host.engine.next_deadline(), Some(peer.now), "memory waits to be let go");
    assert!(peer.host.engine.population().3 > 0);
    events.clear();
    peer.host.engine.take_events(&mut events);
    assert_eq!((events.len(), peer.host.engine.population()), (0, (0, 0, 0, 0)));
    assert_eq!(peer.host.engine.received(peer.flow).0, b"");
}
