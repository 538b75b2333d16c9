//! Malicious peers and off-path attackers: their packets have a bounded cost, and the connections
//! of honest peers live.

use std::net::SocketAddr;

use crate::harness::{Host, SECOND, SERVER_PORT};
use sietch_net::FlowId;
use sietch_sim::segment::{ACK, CWR, ECE, FIN, Macs, Options, PSH, RST, SYN, Segment, icmp_error};

const ATTACKER: [u8; 6] = [2, 0, 0, 0, 0, 7];

/// A peer of bare segments, written and read without the engine's own packet code.
struct Wire {
    host: Host,
    now: u64,
    peer: SocketAddr,
    local: SocketAddr,
    /// The engine's initial sequence number, and ours.
    irs: u32,
    iss: u32,
    window: u16,
}

/// A segment that the engine sent, with offsets into the streams instead of numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Sent {
    from: u32,
    ack: u32,
    flags: u8,
    window: u16,
    length: u32,
}

impl Wire {
    /// An engine that listens and has one established connection, without options but a segment
    /// size of 1000.
    fn connected() -> (Self, FlowId) {
        let mut host = Host::new(2, |_| {});
        host.engine.listen(SERVER_PORT, 64).expect("the port is free");
        let mut wire = Self {
            host,
            now: SECOND,
            peer: "10.0.0.1:5555".parse().expect("legal"),
            local: SocketAddr::from(([10, 0, 0, 2], SERVER_PORT)),
            irs: 0,
            iss: 1_000_000,
            window: 8000,
        };
        let options = Options { mss: Some(1000), ..Options::default() };
        wire.put(SYN, wire.iss, 0, &options, &[]);
        let frames = wire.frames();
        let answer = Segment::decode(&frames[0]).expect("it answers a SYN");
        assert_eq!((answer.flags, answer.ack), (SYN | ACK, wire.iss + 1));
        wire.irs = answer.seq;
        wire.say(0, 0, ACK, &[]);
        let flow = *wire.host.accepted().first().expect("the handshake is complete");
        (wire, flow)
    }

    fn put(&mut self, flags: u8, seq: u32, ack: u32, options: &Options, payload: &[u8]) {
        let macs = Macs { from: ATTACKER, to: self.host.mac };
        let options = options.bytes();
        let window = self.window;
        let segment = Segment {
            window,
            options: &options,
            payload,
            ..Segment::bare(self.peer, self.local, flags, seq, ack)
        };
        assert!(self.host.tap.deliver(&segment.encode(macs)));
        while self.host.poll(self.now) {}
    }

    /// Sends data or control at offset `at` of our stream, acknowledging this many bytes of the
    /// engine's.
    fn say(&mut self, at: u32, acknowledged: u32, flags: u8, payload: &[u8]) {
        let (seq, ack) = (self.iss.wrapping_add(1 + at), self.irs.wrapping_add(1 + acknowledged));
        self.put(flags, seq, ack, &Options::default(), payload);
    }

    fn frames(&mut self) -> Vec<Vec<u8>> {
        std::iter::from_fn(|| self.host.tap.take_transmitted()).collect()
    }

    fn sent(&mut self) -> Vec<Sent> {
        let frames = self.frames();
        let segments = frames.iter().filter_map(|frame| Segment::decode(frame));
        segments
            .map(|segment| Sent {
                from: segment.seq.wrapping_sub(self.irs.wrapping_add(1)),
                ack: segment.ack.wrapping_sub(self.iss + 1),
                flags: segment.flags,
                window: segment.window,
                length: segment.payload.len() as u32,
            })
            .collect()
    }
}

#[test]
fn an_acknowledgement_on_repeated_data_brings_its_window_along() {
    let (mut wire, flow) = Wire::connected();
    wire.host.engine.send(flow, &[1; 50_000]);
    while wire.host.poll(wire.now) {}
    let first = wire.sent();
    assert_eq!(first.last().map(|last| last.from + last.length), Some(8000), "{first:?}");
    wire.say(0, 0, ACK | PSH, &[7; 500]);
    wire.say(500, 0, ACK | PSH, &[7; 500]);
    // The peer repeats its bytes and adds more, because our acknowledgement was lost. Its own
    // acknowledgement has come meanwhile, and its application has read nothing.
    wire.window = 3000;
    wire.say(0, 5000, ACK | PSH, &[7; 1000 + 200]);
    while wire.host.poll(wire.now) {}
    let beyond: Vec<Sent> = wire.sent().into_iter().filter(|sent| sent.from + sent.length > 8000).collect();
    assert_eq!(beyond, [], "the peer said 5000 + 3000");
}

impl Wire {
    /// Blind segments of an attacker that forges the peer's address: numbers all over the space,
    /// none of them right.
    fn blind(&mut self, flags: u8, payload: &[u8]) {
        for step in 1..64u32 {
            let away = step << 26;
            self.put(
                flags,
                self.iss.wrapping_add(1 + away),
                self.irs.wrapping_add(1 + away),
                &Options::default(),
                payload,
            );
        }
    }

    /// The connection carries bytes both ways; `offset` and `acknowledged` bytes have passed
    /// before.
    fn assert_alive(&mut self, flow: FlowId, offset: u32, acknowledged: u32) {
        self.window = 8000;
        self.say(offset, acknowledged, ACK | PSH, b"alive");
        assert_eq!(self.host.read_all(flow), b"alive");
        assert_eq!(self.host.engine.send(flow, b"answer"), 6);
        while self.host.poll(self.now) {}
        let carries = |sent: &Sent| sent.from == acknowledged && sent.length == 6;
        assert!(self.sent().iter().any(carries), "nothing comes back");
    }
}

#[test]
fn blind_resets_syns_and_data_neither_end_nor_change_a_connection() {
    let (mut wire, flow) = Wire::connected();
    for flags in [RST, RST | ACK, SYN, SYN | ACK, ACK | PSH, FIN | ACK] {
        wire.blind(flags, if flags & PSH != 0 { b"forged" } else { b"" });
    }
    assert!(!wire.host.saw_any_close(), "a blind segment ended it");
    assert_eq!(wire.host.read_all(flow), b"", "a blind segment brought data");
    // Challenge ACKs are few, however many segments call for one (RFC 5961 section 10): hundreds of
    // segments came within an instant.
    let answers = wire.sent().len();
    assert!(answers < 300, "{answers} frames in answer to 378");
    wire.assert_alive(flow, 0, 0);
}

#[test]
fn a_reset_in_the_window_is_challenged_and_an_exact_one_is_believed() {
    let (mut wire, flow) = Wire::connected();
    wire.say(500, 0, RST, &[]);
    let answer = wire.sent();
    assert_eq!(answer.len(), 1, "{answer:?}");
    assert_eq!((answer[0].flags, answer[0].ack), (ACK, 0));
    wire.now += SECOND;
    wire.say(0, 0, SYN, &[]);
    assert_eq!(wire.sent().len(), 1, "a SYN is challenged as well");
    wire.assert_alive(flow, 0, 0);
    wire.say(5, 6, RST, &[]);
    assert!(wire.host.saw_any_close());
}

#[test]
fn a_forged_path_mtu_shrinks_segments_to_the_minimum_only() {
    let (mut wire, flow) = Wire::connected();
    wire.host.engine.send(flow, &[1; 5000]);
    while wire.host.poll(wire.now) {}
    let frames = wire.frames();
    let macs = Macs { from: ATTACKER, to: wire.host.mac };
    for mtu in [68, 0, 1] {
        let router = "192.0.2.1".parse().expect("legal");
        let lie = icmp_error(macs, router, 3, 4, mtu, &frames[0]).expect("it quotes a packet");
        wire.host.tap.deliver(&lie);
        while wire.host.poll(wire.now) {}
    }
    wire.sent();
    wire.say(0, 5000, ACK, &[]);
    wire.host.engine.send(flow, &[2; 3000]);
    while wire.host.poll(wire.now) {}
    let sent = wire.sent();
    let bytes: u32 = sent.iter().map(|sent| sent.length).sum();
    assert!(bytes > 0 && sent.len() <= 3000 / 40, "{} segments for {bytes} bytes", sent.len());
    wire.say(0, 8000, ACK, &[]);
}

#[test]
fn many_small_acknowledgements_open_the_window_no_further() {
    let grown = |crumbs: u32| {
        let (mut wire, flow) = Wire::connected();
        wire.window = 65_535;
        wire.host.engine.send(flow, &[1; 200_000]);
        wire.say(0, 0, ACK, &[]);
        wire.sent();
        for step in 1..=crumbs {
            wire.say(0, 4000 / crumbs * step, ACK, &[]);
        }
        wire.sent().iter().map(|sent| sent.from + sent.length).max().unwrap_or(0)
    };
    // RFC 3465: the window grows by bytes acknowledged, not by acknowledgements.
    let (whole, split) = (grown(4), grown(400));
    assert!(split <= whole + 2000, "{split} against {whole}");
}

#[test]
fn a_window_that_is_closed_for_ever_costs_little_and_the_connection_lives() {
    let (mut wire, flow) = Wire::connected();
    wire.host.engine.send(flow, &[1; 4000]);
    wire.window = 0;
    wire.say(0, 0, ACK, &[]);
    wire.sent();
    let mut probes = 0;
    for _ in 0..3600 {
        wire.now += SECOND;
        while wire.host.poll(wire.now) {}
        let sent = wire.sent();
        probes += sent.len();
        if !sent.is_empty() {
            wire.window = 0;
            wire.say(0, 0, ACK, &[]);
        }
    }
    assert!(!wire.host.saw_any_close(), "RFC 9293 section 3.8.6.1: it stays open while the peer answers");
    assert!((30..500).contains(&probes), "{probes} probes in an hour");
    assert!(wire.host.engine.population().3 <= 64 << 10);
}

#[test]
fn data_in_single_bytes_out_of_order_fill_no_memory() {
    let (mut wire, flow) = Wire::connected();
    for step in 0..4000u32 {
        wire.say(2 + step * 2, 0, ACK, &[7]);
        assert!(wire.sent().len() <= 2, "more than an answer a segment");
    }
    assert!(wire.host.engine.population().3 <= 1 << 20, "{:?}", wire.host.engine.population());
    wire.sent();
    wire.assert_alive(flow, 0, 0);
}

/// A flood of forged SYNs, and honest peers beside it.
mod flood {
    use super::*;

    const HALF_OPEN: usize = 64;

    fn wire() -> Wire {
        let mut host = Host::new(2, |config| config.half_open = HALF_OPEN);
        host.engine.listen(SERVER_PORT, 64).expect("the port is free");
        Wire {
            host,
            now: SECOND,
            peer: "10.0.0.1:5555".parse().expect("legal"),
            local: SocketAddr::from(([10, 0, 0, 2], SERVER_PORT)),
            irs: 0,
            iss: 1_000_000,
            window: 8000,
        }
    }

    impl Wire {
        /// SYNs of hosts that do not exist. Returns the answers.
        fn flood(&mut self, from: u32, count: u32) -> usize {
            let (peer, iss) = (self.peer, self.iss);
            let mut answers = 0;
            for number in from..from + count {
                self.peer =
                    SocketAddr::from(([10, 0, 0, 3 + (number % 200) as u8], 1024 + (number / 200) as u16));
                self.put(SYN, number.wrapping_mul(0x9e37_79b9), 0, &Options::default(), &[]);
                answers += self.frames().len();
            }
            (self.peer, self.iss) = (peer, iss);
            answers
        }

        /// An honest peer's SYN; returns what the answer offers.
        fn open(&mut self, port: u16, options: &Options) -> Options {
            self.peer.set_port(port);
            self.put(SYN, self.iss, 0, options, &[]);
            let frames = self.frames();
            let answer = Segment::decode(&frames[0]).expect("a SYN is answered");
            assert_eq!((answer.flags, answer.ack), (SYN | ACK, self.iss + 1));
            self.irs = answer.seq;
            answer.read_options()
        }
    }

    #[test]
    fn neither_transfers_nor_new_connections_suffer() {
        let mut wire = wire();
        wire.open(5555, &Options { mss: Some(1000), ..Options::default() });
        wire.say(0, 0, ACK, &[]);
        let steady = wire.host.accepted()[0];
        let (peer, irs) = (wire.peer, wire.irs);
        let mut answers = 0;
        for round in 0..100u32 {
            answers += wire.flood(round * 1000, 1000);
            let (_, half_open, _, bytes) = wire.host.engine.population();
            assert!(half_open <= HALF_OPEN && bytes <= 1 << 20, "{:?}", wire.host.engine.population());
            // The transfer continues.
            (wire.peer, wire.irs) = (peer, irs);
            wire.assert_alive(steady, round * 5, round * 6);
            wire.say((round + 1) * 5, (round + 1) * 6, ACK, &[]);
            // A new peer connects, sends at once, and is served.
            wire.open(6000 + round as u16, &Options { mss: Some(1460), ..Options::default() });
            wire.say(0, 0, ACK | PSH, b"alive");
            let fresh = *wire.host.accepted().last().expect("there is room");
            assert_ne!(fresh, steady);
            assert_eq!(wire.host.read_all(fresh), b"alive");
            wire.host.engine.abort(fresh);
            wire.host.events.clear();
            while wire.host.poll(wire.now) {}
            wire.frames();
            wire.now += SECOND / 20;
        }
        // A cookie answers each SYN once; the SYN-ACK of a half-open connection is sent six times.
        assert!(answers <= 100_000 + 6 * HALF_OPEN, "{answers} answers");
        let metrics = wire.host.engine.metrics();
        assert!(metrics.syn_cookies_sent > 99_000, "{}", metrics.syn_cookies_sent);
        assert_eq!((metrics.syn_cookies_accepted, metrics.syn_cookies_refused), (100, 0));
    }

    #[test]
    fn a_cookie_keeps_the_options_of_a_peer_with_timestamps() {
        let mut wire = wire();
        wire.flood(0, 100);
        let offer = Options {
            mss: Some(1400),
            shift: Some(5),
            sack_permitted: true,
            timestamps: Some((777, 0)),
            ..Options::default()
        };
        let answer = wire.open(5000, &offer);
        let (value, echo) = answer.timestamps.expect("offered and taken");
        assert_eq!((answer.sack_permitted, echo), (true, 777));
        let stamps = Options { timestamps: Some((778, value)), ..Options::default() };
        wire.put(ACK, wire.iss + 1, wire.irs.wrapping_add(1), &stamps, &[]);
        let flow = wire.host.accepted()[0];
        let info = wire.host.engine.flow_info(flow).expect("it is open");
        assert_eq!((info.send_scale, info.sack, info.timestamps), (5, true, true));
        // 1400 is rounded down to 1360, less the timestamp.
        assert_eq!((info.segment_size, info.peer_window), (1348, 8000 << 5));
    }

    #[test]
    fn a_later_segment_of_a_handshake_waits_for_the_first_and_a_guess_is_reset() {
        let mut wire = wire();
        wire.flood(0, 100);
        wire.open(5000, &Options::default());
        wire.say(500, 0, ACK | PSH, b"second");
        assert_eq!(wire.frames(), Vec::<Vec<u8>>::new(), "it may be honest");
        assert!(wire.host.accepted().is_empty());
        // The right number for another peer, and blind guesses.
        wire.peer.set_port(5001);
        for guess in 1..400u32 {
            wire.put(
                ACK,
                wire.iss + 1,
                wire.irs.wrapping_add(guess.wrapping_mul(0x0101_0101)),
                &Options::default(),
                b"x",
            );
        }
        assert!(wire.host.accepted().is_empty(), "28 bits were guessed");
        let resets = wire.sent();
        assert!(resets.len() > 300 && resets.iter().all(|sent| sent.flags == RST));
        // The first segment arrives late.
        wire.peer.set_port(5000);
        wire.say(0, 0, ACK | PSH, &[1; 500]);
        wire.say(500, 0, ACK | PSH, b"second");
        let flow = wire.host.accepted()[0];
        assert_eq!(wire.host.read_all(flow).len(), 506);
        wire.frames();
        // An old cookie is invalid.
        wire.open(5002, &Options::default());
        wire.now += 200 * SECOND;
        wire.say(0, 0, ACK, &[]);
        assert_eq!(wire.host.accepted().len(), 1);
    }

    #[test]
    fn a_peer_with_a_cookie_and_a_half_open_connection_may_use_either() {
        let mut wire = wire();
        wire.flood(0, 100);
        wire.open(5000, &Options::default());
        let cookie = wire.irs;
        // The forged half-open connections expire. The repeated SYN finds room, but the peer
        // acknowledges the first answer.
        for _ in 0..64 {
            wire.now += SECOND;
            while wire.host.poll(wire.now) {}
            wire.frames();
        }
        wire.open(5000, &Options::default());
        assert!(wire.host.engine.population().1 > 0, "it has a place");
        wire.irs = cookie;
        wire.say(0, 0, ACK | PSH, b"hello");
        let flow = wire.host.accepted()[0];
        assert_eq!(wire.host.read_all(flow), b"hello");
    }
}

/// Segments of an attacker that knows the ports and sees nothing. If the peer cannot have sent
/// their acknowledgement, they change nothing, with any other content.
mod guessed {
    use super::*;

    const STAMP: u32 = 5000;
    const FUTURE: u32 = 2_000_000_000;

    /// A connection with timestamps, ranges and ECN, which has carried 100 bytes each way.
    fn wire() -> (Wire, FlowId) {
        let (mut wire, _) = Wire::connected();
        wire.peer.set_port(5556);
        let stamps = Some((STAMP, 0));
        let options =
            Options { mss: Some(1000), sack_permitted: true, timestamps: stamps, ..Options::default() };
        wire.put(SYN | ECE | CWR, wire.iss, 0, &options, &[]);
        wire.irs = Segment::decode(&wire.frames()[0]).expect("a SYN is answered").seq;
        wire.stamped(0, 0, ACK | PSH, STAMP, &[7; 100]);
        let flow = *wire.host.accepted().last().expect("the handshake is complete");
        wire.host.engine.send(flow, &[8; 100]);
        while wire.host.poll(wire.now) {}
        wire.stamped(100, 100, ACK, STAMP + 1, &[]);
        assert_eq!(wire.host.read_all(flow), [7; 100]);
        wire.host.engine.set_keepalive(flow, Some(100 * SECOND));
        wire.frames();
        (wire, flow)
    }

    impl Wire {
        fn stamped(&mut self, at: u32, acknowledged: u32, flags: u8, value: u32, payload: &[u8]) {
            let options = Options { timestamps: Some((value, 0)), ..Options::default() };
            let (seq, ack) = (self.iss.wrapping_add(1 + at), self.irs.wrapping_add(1 + acknowledged));
            self.put(flags, seq, ack, &options, payload);
        }
    }

    #[test]
    fn segments_with_an_impossible_acknowledgement_change_nothing() {
        let (mut wire, flow) = wire();
        let before = wire.host.engine.flow_info(flow).expect("it is open");
        let acknowledged = [101, 200, 1 << 20, 1 << 31, 0u32.wrapping_sub(1 << 20)];
        // Before the next byte, overlapping it, at it, beyond it.
        for at in [40u32, 0, 100, 150] {
            for ack in acknowledged {
                for flags in [ACK, ACK | PSH, ACK | PSH | ECE, ACK | PSH | CWR, ACK | FIN] {
                    wire.now += SECOND / 10;
                    wire.window = 1;
                    let payload = if flags & PSH != 0 { &[9; 80][..] } else { &[] };
                    wire.stamped(at, ack, flags, FUTURE, payload);
                    for frame in wire.frames() {
                        let answer = Segment::decode(&frame).expect("what it sends is legal");
                        let options = answer.read_options();
                        assert_eq!(answer.flags, ACK, "no echo of marks");
                        assert_eq!(options.blocks, 0, "no duplicate is reported");
                        assert_eq!(options.timestamps.map(|stamps| stamps.1), Some(STAMP + 1));
                    }
                }
            }
        }
        let after = wire.host.engine.flow_info(flow).expect("it is open");
        assert!(
            after.since_received >= 9 * SECOND,
            "it was taken for a sign of life: {} ns",
            after.since_received
        );
        let since_received = before.since_received;
        assert_eq!(sietch_net::FlowInfo { since_received, since_sent: before.since_sent, ..after }, before);
        // The peer itself is served.
        wire.window = 8000;
        wire.stamped(100, 100, ACK | PSH, STAMP + 10_000, b"alive");
        assert_eq!(wire.host.read_all(flow), b"alive");
    }
}

/// Peers that make a connection hold memory: a byte far beyond the next one, and nothing before it.
mod gaps {
    use super::*;

    const MEMORY: usize = 32 << 20;
    const WINDOW: u32 = 65_535;

    fn wire(memory: usize) -> Wire {
        let mut host = Host::new(2, |config| config.buffer_memory = memory);
        host.engine.listen(SERVER_PORT, 4096).expect("the port is free");
        let peer = "10.0.0.1:5555".parse().expect("legal");
        let local = SocketAddr::from(([10, 0, 0, 2], SERVER_PORT));
        Wire { host, now: SECOND, peer, local, irs: 0, iss: 1_000_000, window: 8000 }
    }

    impl Wire {
        /// A connection from this port, which is the present one from now on; and the window that
        /// it announces.
        fn enter(&mut self, port: u16) -> (FlowId, u16) {
            self.peer.set_port(port);
            self.put(SYN, self.iss, 0, &Options { mss: Some(1000), ..Options::default() }, &[]);
            let frames = self.frames();
            let answer = Segment::decode(frames.last().expect("a SYN is answered")).expect("it is legal");
            self.irs = answer.seq;
            self.say(0, 0, ACK, &[]);
            (*self.host.accepted().last().expect("the handshake is complete"), answer.window)
        }

        /// Opens this many connections, each with one byte at the end of its window.
        fn stretch(&mut self, from: u16, count: u16) -> Vec<FlowId> {
            let mut flows = Vec::new();
            for port in from..from + count {
                flows.push(self.enter(port).0);
                self.say(WINDOW - 1, 0, ACK, &[7]);
                self.frames();
            }
            flows
        }

        fn memory(&self) -> usize {
            self.host.engine.population().3
        }
    }

    #[test]
    fn a_byte_at_the_end_of_each_window_leaves_memory_for_others() {
        let mut wire = wire(MEMORY);
        wire.stretch(1000, 600);
        assert!(wire.memory() <= MEMORY / 4, "{} bytes are held", wire.memory());
        assert!(wire.host.engine.metrics().out_of_order_pruned > 0);
        // Others send, and receive what comes out of order.
        let (flow, _) = wire.enter(5555);
        assert_eq!(wire.host.engine.send(flow, &[1; 300_000]), 300_000);
        wire.say(1000, 0, ACK, &[2; 1000]);
        wire.say(0, 0, ACK, &[1; 1000]);
        assert_eq!(wire.host.read_all(flow), [[1; 1000], [2; 1000]].concat());
    }

    #[test]
    fn oldest_gaps_are_pruned_first_and_their_bytes_can_be_retransmitted() {
        let mut wire = wire(MEMORY);
        let (first, _) = wire.enter(999);
        let irs = wire.irs;
        wire.say(1000, 0, ACK, &[2; 1000]);
        // Half of the quota and a little less: it is kept.
        wire.stretch(1000, 60);
        wire.peer.set_port(999);
        wire.irs = irs;
        assert_eq!(wire.host.engine.flow_info(first).map(|info| info.out_of_order), Some(1000));
        wire.stretch(2000, 100);
        assert_eq!(wire.host.engine.flow_info(first).map(|info| info.out_of_order), Some(0), "the oldest");
        wire.peer.set_port(999);
        wire.irs = irs;
        wire.say(0, 0, ACK, &[1; 1000]);
        assert_eq!(wire.host.read_all(first), [1; 1000]);
        wire.say(1000, 0, ACK, &[2; 1000]);
        assert_eq!(wire.host.read_all(first), [2; 1000]);
    }

    #[test]
    fn a_gap_that_is_filled_a_byte_at_a_time_grows_old() {
        let mut wire = wire(MEMORY);
        let mut held = Vec::new();
        for port in 1000..1060 {
            wire.stretch(port, 1);
            held.push((port, wire.irs));
        }
        let (honest, _) = wire.enter(999);
        wire.say(1000, 0, ACK, &[2; 1000]);
        for (port, irs) in held {
            wire.peer.set_port(port);
            wire.irs = irs;
            wire.say(0, 0, ACK, &[1]);
        }
        wire.stretch(2000, 100);
        assert!(wire.host.engine.metrics().out_of_order_pruned > 20);
        assert_eq!(wire.host.engine.flow_info(honest).map(|info| info.out_of_order), Some(1000));
    }

    #[test]
    fn bytes_in_order_may_use_the_memory_of_bytes_out_of_order() {
        let mut wire = wire(1 << 20);
        let window = wire.enter(998).1;
        assert!(window < 65_535, "a first window is a part of what is free");
        // Full of unread bytes, except for the share of the gaps.
        wire.say(4096, 0, ACK, &[7; 1000]);
        for port in 1000..1250 {
            let (_, window) = wire.enter(port);
            let mut at = 0;
            while at < u32::from(window) && wire.memory() + 8192 <= 1 << 20 {
                wire.say(at, 0, ACK, &[1; 1000]);
                at += 1000;
            }
            wire.frames();
        }
        let before = wire.host.engine.metrics().clone();
        let (last, _) = wire.enter(2000);
        wire.say(0, 0, ACK, &[3; 4000][..1000]);
        let (next, _) = wire.enter(2001);
        wire.say(0, 0, ACK, &[4; 1000]);
        let after = wire.host.engine.metrics();
        assert_eq!(after.buffer_drops, before.buffer_drops);
        assert!(after.out_of_order_pruned > before.out_of_order_pruned);
        assert_eq!(wire.host.read_all(last), [3; 1000]);
        assert_eq!(wire.host.read_all(next), [4; 1000]);
    }

    /// In any order of the bytes, and whichever side ends the flow: no charge stays.
    #[test]
    fn an_ended_flow_is_charged_no_more() {
        let mut wire = wire(MEMORY);
        let flows = wire.stretch(1000, 64);
        for (number, flow) in flows.iter().enumerate() {
            match number % 3 {
                0 => wire.host.engine.abort(*flow),
                1 => wire.host.engine.close(*flow),
                _ => {}
            }
        }
        for round in 0..4 {
            wire.stretch(2000 + round * 1000, 128);
        }
        assert!(wire.memory() <= MEMORY / 4, "{} bytes are held", wire.memory());
        for flow in wire.host.accepted() {
            wire.host.engine.abort(flow);
        }
        while wire.host.poll(wire.now) {}
        assert_eq!(wire.memory(), 0);
        wire.frames();
        wire.stretch(10_000, 128);
        assert_eq!(wire.memory(), MEMORY / 4, "all of the quota is free again");
    }
}
